// WGSL's types, and functions that construct values. Needs no header: the compiler has everything
// built in.
#define WGSL static __device__ __forceinline__
#define WGSL_UNROLL _Pragma("unroll")

namespace wgsl {

typedef unsigned int u32;
typedef int i32;
typedef float f32;
typedef unsigned long long u64;

// Index of a block along each axis, or the number of blocks.
struct blocks {
    u32 x, y, z;
};

// Bits of a number in half precision. Its arithmetic is in `half.cuh`.
struct f16 {
    unsigned short bits;
};

// Vectors of two and four elements are aligned so that one instruction loads them; vectors of three
// elements are aligned like one element.
template <typename T, int N> struct vec;
template <typename T> struct alignas(2 * sizeof(T)) vec<T, 2> { T at[2]; };
template <typename T> struct vec<T, 3> { T at[3]; };
template <typename T> struct alignas(4 * sizeof(T)) vec<T, 4> { T at[4]; };

// Halves in pairs, one pair in a 32-bit word, so that the compiler moves and selects whole words.
template <int WORDS> struct halves {
    u32 pair[WORDS];
    halves() = default;
    constexpr __device__ halves(f16 a, f16 b) : pair{(u32)a.bits | (u32)b.bits << 16} {}
    constexpr __device__ halves(f16 a, f16 b, f16 c, f16 d)
        : pair{(u32)a.bits | (u32)b.bits << 16, (u32)c.bits | (u32)d.bits << 16} {}
    __device__ f16& operator[](u32 i) { return ((f16*)pair)[i]; }
    __device__ const f16& operator[](u32 i) const { return ((const f16*)pair)[i]; }
};
template <> struct alignas(4) vec<f16, 2> { halves<1> at; };
template <> struct alignas(8) vec<f16, 4> { halves<2> at; };

// Array that is a value.
template <typename T, int N> struct array { T at[N]; };
// Element of an array whose stride is larger than the size of its elements.
template <typename T, int STRIDE> struct padded {
    T value;
    char rest[STRIDE - sizeof(T)];
};

// Returns the runtime-sized array at the end of a structure.
template <typename T, typename S> WGSL T* tail(S* start, u32 offset) {
    return (T*)((const char*)start + offset);
}
// Returns the number of elements from `offset` to the end of a buffer of `bytes` bytes, at most
// 2^32 - 1.
WGSL u32 elements(u64 bytes, u32 offset, u32 stride) {
    const u64 count = bytes < offset ? 0u : (bytes - offset) / stride;
    return count < 0xffffffffu ? (u32)count : 0xffffffffu;
}
// Clamps an index to the last one of `count`. A negative index counts as a large one.
WGSL u32 within(u32 index, u32 count) { return index < count ? index : count - 1u; }
WGSL u32 within(i32 index, u32 count) { return within((u32)index, count); }

template <typename T> WGSL T select(bool condition, T accept, T reject) { return condition ? accept : reject; }
template <typename T, int N> WGSL vec<T, N> select(vec<bool, N> condition, vec<T, N> accept, vec<T, N> reject) {
    vec<T, N> r;
    WGSL_UNROLL for (int i = 0; i < N; ++i) r.at[i] = condition.at[i] ? accept.at[i] : reject.at[i];
    return r;
}

template <int N, typename T> WGSL vec<T, N> splat(T x) {
    vec<T, N> r;
    WGSL_UNROLL for (int i = 0; i < N; ++i) r.at[i] = x;
    return r;
}
template <int... I, typename T, int N> WGSL vec<T, sizeof...(I)> swizzle(vec<T, N> v) { return {{v.at[I]...}}; }

// Concatenates scalars and shorter vectors to a vector.
template <typename T> WGSL vec<T, 3> join(vec<T, 2> a, T b) { return {{a.at[0], a.at[1], b}}; }
template <typename T> WGSL vec<T, 3> join(T a, vec<T, 2> b) { return {{a, b.at[0], b.at[1]}}; }
template <typename T> WGSL vec<T, 4> join(vec<T, 2> a, vec<T, 2> b) { return {{a.at[0], a.at[1], b.at[0], b.at[1]}}; }
template <typename T> WGSL vec<T, 4> join(vec<T, 2> a, T b, T c) { return {{a.at[0], a.at[1], b, c}}; }
template <typename T> WGSL vec<T, 4> join(T a, vec<T, 2> b, T c) { return {{a, b.at[0], b.at[1], c}}; }
template <typename T> WGSL vec<T, 4> join(T a, T b, vec<T, 2> c) { return {{a, b, c.at[0], c.at[1]}}; }
template <typename T> WGSL vec<T, 4> join(vec<T, 3> a, T b) { return {{a.at[0], a.at[1], a.at[2], b}}; }
template <typename T> WGSL vec<T, 4> join(T a, vec<T, 3> b) { return {{a, b.at[0], b.at[1], b.at[2]}}; }

// Returns the index of a thread in its warp. The register `%laneid` is not used, because each use
// would read it again.
WGSL u32 lane_here() {
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31u;
}

} // namespace wgsl
