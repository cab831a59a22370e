// Operations among the 32 threads of a warp, which form a subgroup. Inactive threads are ignored.
namespace wgsl {

template <typename T> WGSL T exchange(u32 mask, T v, u32 lane) { return ::__shfl_sync(mask, v, (int)(lane & 31u)); }
WGSL f16 exchange(u32 mask, f16 v, u32 lane) { return {(unsigned short)exchange(mask, (u32)v.bits, lane)}; }
template <typename T, int N> WGSL vec<T, N> exchange(u32 mask, vec<T, N> v, u32 lane) {
    vec<T, N> r;
    WGSL_UNROLL for (int i = 0; i < N; ++i) r.at[i] = exchange(mask, v.at[i], lane);
    return r;
}
// Returns the value of another thread.
template <typename T> WGSL T subgroup_from(T v, u32 lane) { return exchange(::__activemask(), v, lane); }
WGSL u32 subgroup_first() { return (u32)(::__ffs((i32)::__activemask()) - 1); }

WGSL bool subgroup_all(bool v) { return ::__all_sync(::__activemask(), v) != 0; }
WGSL bool subgroup_any(bool v) { return ::__any_sync(::__activemask(), v) != 0; }
WGSL vec<u32, 4> subgroup_ballot(bool v) { return {{::__ballot_sync(::__activemask(), v), 0u, 0u, 0u}}; }

// Operations that combine two values.
#define WGSL_JOIN(op, function)                                                                                        \
    struct op {                                                                                                        \
        template <typename T> static __device__ __forceinline__ T of(T a, T b) { return function(a, b); }              \
    };
WGSL_JOIN(join_add, add)
WGSL_JOIN(join_mul, mul)
WGSL_JOIN(join_min, min)
WGSL_JOIN(join_max, max)
WGSL_JOIN(join_and, bit_and)
WGSL_JOIN(join_or, bit_or)
WGSL_JOIN(join_xor, bit_xor)

// Reduces the values of all active threads: as a butterfly if all 32 are active, otherwise one
// after the other.
template <typename Op, typename T> WGSL T subgroup_reduce(T v) {
    const u32 mask = ::__activemask();
    if (mask == 0xffffffffu) {
        WGSL_UNROLL for (u32 apart = 16u; apart > 0u; apart >>= 1) v = Op::of(v, exchange(mask, v, lane_here() ^ apart));
        return v;
    }
    u32 lane = subgroup_first();
    T r = exchange(mask, v, lane);
    for (++lane; lane < 32u; ++lane) {
        const T other = exchange(mask, v, lane);
        if ((mask >> lane & 1u) != 0u) r = Op::of(r, other);
    }
    return r;
}
// Reduces the values of the preceding active threads, and of this one if `own`; returns `none` if
// there is none.
template <typename Op, typename T> WGSL T subgroup_scan(T v, bool own, T none) {
    const u32 mask = ::__activemask();
    const u32 here = lane_here();
    T r = none;
    for (u32 lane = 0u; lane < 32u; ++lane) {
        const T other = exchange(mask, v, lane);
        if ((mask >> lane & 1u) != 0u && (lane < here || (own && lane == here))) r = Op::of(r, other);
    }
    return r;
}

} // namespace wgsl
