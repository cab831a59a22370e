// Cooperative matrices of 16 by 16, distributed over the threads of a warp and multiplied on tensor
// cores: products of halves, accumulated in single precision. The distribution is that of PTX's
// `mma.m16n8k16`: of each 8 by 8 tile of A and C, thread 4 r + c has the elements 2 c and 2 c + 1
// of row r; of B, it has those of column r. The distribution does not depend on the layout in
// memory, so WGSL's types, which do not contain the layout, are sufficient.
//
// As in Vulkan, rows (or columns) in memory begin at multiples of 16 bytes.
namespace wgsl {

struct matrix_a { u32 pair[4]; }; // rows 0 and 8, of columns 0; rows 0 and 8, of columns 8
struct matrix_b { u32 pair[4]; }; // rows 0 and 8, of columns 0; rows 0 and 8, of columns 8
struct matrix_c { f32 at[8]; };   // rows 0 and 8, of columns 0; rows 0 and 8, of columns 8

// Loads four 8 by 8 tiles from shared memory. Thread i passes the address of row i % 8 of tile i /
// 8.
template <bool TRANSPOSED> WGSL void load_parts(u32 (&to)[4], const f16* row) {
    const u32 at = (u32)__cvta_generic_to_shared(row);
    if (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
    }
}
template <bool ROWS> WGSL matrix_a load_a_shared(const void* from, u32 stride) {
    const f16* p = (const f16*)from;
    const u32 lane = lane_here(), part = lane >> 3, line = lane & 7u;
    matrix_a r;
    if (ROWS) {
        load_parts<false>(r.pair, p + ((part & 1u) * 8u + line) * stride + (part >> 1) * 8u);
    } else {
        load_parts<true>(r.pair, p + ((part >> 1) * 8u + line) * stride + (part & 1u) * 8u);
    }
    return r;
}
template <bool ROWS> WGSL matrix_b load_b_shared(const void* from, u32 stride) {
    const f16* p = (const f16*)from;
    const u32 lane = lane_here(), part = lane >> 3, line = lane & 7u;
    matrix_b r;
    if (ROWS) {
        load_parts<true>(r.pair, p + ((part & 1u) * 8u + line) * stride + (part >> 1) * 8u);
    } else {
        load_parts<false>(r.pair, p + ((part >> 1) * 8u + line) * stride + (part & 1u) * 8u);
    }
    return r;
}

// Loads two halves, `apart` elements from each other.
template <bool NEIGHBOURS> WGSL u32 load_pair(const f16* p, u32 apart) {
    return NEIGHBOURS ? *(const u32*)p : (u32)p[0].bits | (u32)p[apart].bits << 16;
}
template <bool ROWS> WGSL matrix_a load_a_global(const void* from, u32 stride) {
    const u32 down = ROWS ? stride : 1u, across = ROWS ? 1u : stride;
    const u32 row = lane_here() >> 2, column = (lane_here() & 3u) * 2u;
    const f16* p = (const f16*)from + row * down + column * across;
    return {{load_pair<ROWS>(p, across), load_pair<ROWS>(p + 8u * down, across), load_pair<ROWS>(p + 8u * across, across),
             load_pair<ROWS>(p + 8u * down + 8u * across, across)}};
}
template <bool ROWS> WGSL matrix_b load_b_global(const void* from, u32 stride) {
    const u32 down = ROWS ? stride : 1u, across = ROWS ? 1u : stride;
    const u32 row = (lane_here() & 3u) * 2u, column = lane_here() >> 2;
    const f16* p = (const f16*)from + row * down + column * across;
    return {{load_pair<!ROWS>(p, down), load_pair<!ROWS>(p + 8u * down, down), load_pair<!ROWS>(p + 8u * across, down),
             load_pair<!ROWS>(p + 8u * down + 8u * across, down)}};
}

// Returns the offset of this thread's element `i` of C.
WGSL u32 place_c(u32 i, u32 down, u32 across) {
    const u32 row = (lane_here() >> 2) + (i >> 1 & 1u) * 8u;
    const u32 column = (lane_here() & 3u) * 2u + (i & 1u) + (i >> 2) * 8u;
    return row * down + column * across;
}
template <bool ROWS> WGSL matrix_c load_c(const void* from, u32 stride) {
    const f32* p = (const f32*)from;
    matrix_c r;
    WGSL_UNROLL for (u32 i = 0u; i < 8u; ++i) r.at[i] = p[place_c(i, ROWS ? stride : 1u, ROWS ? 1u : stride)];
    return r;
}
template <bool ROWS> WGSL void store_c(matrix_c m, void* to, u32 stride) {
    f32* p = (f32*)to;
    if (ROWS && ((u64)p & 7u) == 0u && (stride & 1u) == 0u) {
        WGSL_UNROLL for (u32 i = 0u; i < 8u; i += 2u) {
            *(vec<f32, 2>*)(p + place_c(i, stride, 1u)) = vec<f32, 2>{{m.at[i], m.at[i + 1u]}};
        }
    } else {
        WGSL_UNROLL for (u32 i = 0u; i < 8u; ++i) p[place_c(i, ROWS ? stride : 1u, ROWS ? 1u : stride)] = m.at[i];
    }
}

// Adds a product of 16 by 8 elements to C, of which each thread has four elements here.
WGSL void multiply_add_half(f32* c, const u32* a, const u32* b) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    WGSL_UNROLL for (int k = 0; k < 2; ++k) {
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[2 * k]), "r"(a[2 * k + 1]), "r"(b[k]));
    }
#endif
}
WGSL matrix_c multiply_add(matrix_a a, matrix_b b, matrix_c c) {
    multiply_add_half(c.at, a.pair, b.pair);
    multiply_add_half(c.at + 4, a.pair, b.pair + 2);
    return c;
}

// Elementwise operations.
WGSL matrix_c add(matrix_c a, matrix_c b) {
    WGSL_UNROLL for (int i = 0; i < 8; ++i) a.at[i] += b.at[i];
    return a;
}
WGSL matrix_c sub(matrix_c a, matrix_c b) {
    WGSL_UNROLL for (int i = 0; i < 8; ++i) a.at[i] -= b.at[i];
    return a;
}
WGSL matrix_c mul(matrix_c a, f32 b) {
    WGSL_UNROLL for (int i = 0; i < 8; ++i) a.at[i] *= b;
    return a;
}
WGSL matrix_c mul(f32 a, matrix_c b) { return mul(b, a); }

} // namespace wgsl
