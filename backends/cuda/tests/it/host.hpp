// Emulation of CUDA on the CPU: a system thread runs each thread of a block, one block after the
// other. `host.rs` replaces the inline assembly of the prelude by these functions.
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <barrier>
#include <memory>
#include <thread>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __shared__ static
#define __CUDA_ARCH__ 900

struct Three {
    unsigned x, y, z;
};
static thread_local Three threadIdx, blockIdx;
static Three blockDim, gridDim;

// Data that the threads of a warp exchange.
struct Warp {
    std::unique_ptr<std::barrier<>> barrier;
    const unsigned short* rows[32];
    unsigned words[32][4];
};
static std::unique_ptr<std::barrier<>> block_barrier;
static std::vector<Warp> warps;

static void __syncthreads() { block_barrier->arrive_and_wait(); }
static Warp& warp() { return warps[threadIdx.x / 32]; }
static unsigned host_lane() { return threadIdx.x % 32; }

static unsigned __float_as_uint(float x) { unsigned r; memcpy(&r, &x, 4); return r; }
static int __float_as_int(float x) { int r; memcpy(&r, &x, 4); return r; }
static float __uint_as_float(unsigned x) { float r; memcpy(&r, &x, 4); return r; }
static float __int_as_float(int x) { float r; memcpy(&r, &x, 4); return r; }
static float __uint2float_rn(unsigned x) { return (float)x; }
static float __int2float_rn(int x) { return (float)x; }
static unsigned __float2uint_rz(float x) {
    return !(x > 0.0f) ? 0u : x >= 4294967296.0f ? 0xffffffffu : (unsigned)x;
}
static int __float2int_rz(float x) {
    return x != x ? 0 : x >= 2147483648.0f ? 0x7fffffff : x <= -2147483648.0f ? -0x7fffffff - 1 : (int)x;
}
static int __popc(unsigned x) { return __builtin_popcount(x); }
static int __clz(int x) { return x == 0 ? 32 : __builtin_clz((unsigned)x); }
static int __ffs(int x) { return __builtin_ffs(x); }
static unsigned __brev(unsigned x) {
    unsigned r = 0;
    for (int i = 0; i < 32; ++i) r |= (x >> i & 1u) << (31 - i);
    return r;
}
static int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; ++i) c += (int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
    return c;
}
static unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; ++i) c += (uint8_t)(a >> 8 * i) * (uint8_t)(b >> 8 * i);
    return c;
}

template <typename T> T atomicAdd(T* at, T v) { return __atomic_fetch_add(at, v, __ATOMIC_RELAXED); }
template <typename T> T atomicAnd(T* at, T v) { return __atomic_fetch_and(at, v, __ATOMIC_RELAXED); }
template <typename T> T atomicOr(T* at, T v) { return __atomic_fetch_or(at, v, __ATOMIC_RELAXED); }
template <typename T> T atomicXor(T* at, T v) { return __atomic_fetch_xor(at, v, __ATOMIC_RELAXED); }
template <typename T> T atomicExch(T* at, T v) { return __atomic_exchange_n(at, v, __ATOMIC_RELAXED); }
template <typename T> T atomicCAS(T* at, T compare, T v) {
    __atomic_compare_exchange_n(at, &compare, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return compare;
}
template <typename T> T atomicMax(T* at, T v) {
    T old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (old < v && !__atomic_compare_exchange_n(at, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return old;
}
template <typename T> T atomicMin(T* at, T v) {
    T old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (v < old && !__atomic_compare_exchange_n(at, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return old;
}

static float host_from_half(unsigned short bits) { _Float16 h; memcpy(&h, &bits, 2); return (float)h; }
static unsigned short host_to_half(float x) { _Float16 h = (_Float16)x; unsigned short r; memcpy(&r, &h, 2); return r; }
static unsigned short host_half(const char* instruction, unsigned short a, unsigned short b) {
    const float x = host_from_half(a), y = host_from_half(b);
    return host_to_half(!strcmp(instruction, "add.f16") ? x + y : !strcmp(instruction, "sub.f16") ? x - y : x * y);
}

// Emulates `ldmatrix` of four tiles: thread i passes row i % 8 of tile i / 8, and receives two
// neighbours of row i / 4 of each.
static void host_load_parts(unsigned (&to)[4], const void* row, bool transposed) {
    Warp& w = warp();
    w.rows[host_lane()] = (const unsigned short*)row;
    w.barrier->arrive_and_wait();
    const unsigned r = host_lane() / 4, c = host_lane() % 4 * 2;
    for (int part = 0; part < 4; ++part) {
        const unsigned short* const* rows = w.rows + 8 * part;
        const unsigned low = transposed ? rows[c][r] : rows[r][c], high = transposed ? rows[c + 1][r] : rows[r][c + 1];
        to[part] = low | high << 16;
    }
    w.barrier->arrive_and_wait();
}
// Emulates `mma.m16n8k16`, with PTX's distribution of elements over threads.
static void host_multiply_add(float* c, const unsigned* a, const unsigned* b) {
    static thread_local unsigned all[32][4], right[32][2];
    Warp& w = warp();
    memcpy(w.words[host_lane()], a, 16);
    w.barrier->arrive_and_wait();
    memcpy(all, w.words, sizeof(all));
    w.barrier->arrive_and_wait();
    memcpy(w.words[host_lane()], b, 8);
    w.barrier->arrive_and_wait();
    for (int i = 0; i < 32; ++i) memcpy(right[i], w.words[i], 8);
    w.barrier->arrive_and_wait();
    for (int i = 0; i < 4; ++i) {
        const unsigned row = host_lane() / 4 + (i >= 2 ? 8 : 0), column = host_lane() % 4 * 2 + i % 2;
        float sum = 0.0f;
        for (unsigned k = 0; k < 16; ++k) {
            const unsigned of_a = (row >= 8 ? 1 : 0) + (k >= 8 ? 2 : 0), of_b = k >= 8 ? 1 : 0, shift = k % 2 * 16;
            const unsigned short x = all[row % 8 * 4 + k % 8 / 2][of_a] >> shift;
            const unsigned short y = right[column * 4 + k % 8 / 2][of_b] >> shift;
            sum += host_from_half(x) * host_from_half(y);
        }
        c[i] += sum;
    }
}

// Parameter that converts to the type of the kernel's parameter.
struct Parameter {
    uint64_t bits;
    template <typename T> operator T*() const { return (T*)bits; }
    operator unsigned long long() const { return bits; }
};

template <typename Kernel> static void host_run(Kernel kernel, unsigned threads, const unsigned* groups) {
    blockDim = {threads, 1, 1};
    gridDim = {groups[0], groups[1], groups[2]};
    warps.resize((threads + 31) / 32);
    block_barrier = std::make_unique<std::barrier<>>(threads);
    for (size_t i = 0; i < warps.size(); ++i) {
        warps[i].barrier = std::make_unique<std::barrier<>>(threads - i * 32 < 32 ? threads - i * 32 : 32);
    }
    // All threads go to the next block together, because there is only one copy of shared memory.
    std::barrier next(threads);
    std::vector<std::thread> all;
    for (unsigned number = 0; number < threads; ++number) {
        all.emplace_back([&, number] {
            threadIdx = {number, 0, 0};
            for (unsigned z = 0; z < groups[2]; ++z)
                for (unsigned y = 0; y < groups[1]; ++y)
                    for (unsigned x = 0; x < groups[0]; ++x) {
                        blockIdx = {x, y, z};
                        kernel();
                        next.arrive_and_wait();
                    }
        });
    }
    for (std::thread& thread : all) thread.join();
}
