// Programmatic dependent launch.
namespace wgsl {

// Waits for the end of the launches that this one depends on, in case it was launched earlier. Then
// allows the launch of the dependent ones: the work that they do before their own wait does not
// depend on this block.
WGSL void wait_for_earlier_launches() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

} // namespace wgsl
