// Atomic operations. They do not order other memory accesses; barriers do. All return the previous
// value.
namespace wgsl {

template <typename T> WGSL T atomic_load(const T* at) { return *(const volatile T*)at; }
template <typename T> WGSL void atomic_store(T* at, T value) { *(volatile T*)at = value; }
template <typename T> WGSL T atomic_add(T* at, T value) { return ::atomicAdd(at, value); }
template <typename T> WGSL T atomic_sub(T* at, T value) { return ::atomicAdd(at, neg(value)); }
WGSL u32 atomic_sub(u32* at, u32 value) { return ::atomicAdd(at, 0u - value); }
template <typename T> WGSL T atomic_min(T* at, T value) { return ::atomicMin(at, value); }
template <typename T> WGSL T atomic_max(T* at, T value) { return ::atomicMax(at, value); }
template <typename T> WGSL T atomic_and(T* at, T value) { return ::atomicAnd(at, value); }
template <typename T> WGSL T atomic_or(T* at, T value) { return ::atomicOr(at, value); }
template <typename T> WGSL T atomic_xor(T* at, T value) { return ::atomicXor(at, value); }
template <typename T> WGSL T atomic_exchange(T* at, T value) { return ::atomicExch(at, value); }
template <typename T> WGSL T atomic_compare_exchange(T* at, T compare, T value) { return ::atomicCAS(at, compare, value); }

} // namespace wgsl
