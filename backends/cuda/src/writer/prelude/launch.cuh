// Programmatic dependent launch.
namespace wgsl {

// Waits for the launches that this one depends on, if it was launched before they ended, and lets those that depend on it be
// launched: what they do before they wait in turn, this block need not be ahead of.
WGSL void wait_for_earlier_launches() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

} // namespace wgsl
