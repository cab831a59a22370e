// Half precision. Addition, subtraction, multiplication and `fma` are instructions of the GPU;
// other operations are computed in single precision and rounded, which for a single operation gives
// the same result as rounding once.
namespace wgsl {

WGSL f32 to_f32(f16 a) {
    f32 r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(a.bits));
    return r;
}
WGSL f16 to_f16(f32 a) {
    f16 r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(a));
    return r;
}
WGSL f16 to_f16(f16 a) { return a; }
WGSL f16 to_f16(u32 a) { return to_f16(to_f32(a)); }
WGSL f16 to_f16(i32 a) { return to_f16(to_f32(a)); }
WGSL f16 to_f16(bool a) { return to_f16(to_f32(a)); }
WGSL u32 to_u32(f16 a) { return to_u32(to_f32(a)); }
WGSL i32 to_i32(f16 a) { return to_i32(to_f32(a)); }
WGSL bool to_bool(f16 a) { return (a.bits & 0x7fffu) != 0u; }
WGSL f16 bits_f16(f16 a) { return a; }

#define WGSL_HALF_2(name, instruction)                                                                                 \
    WGSL f16 name(f16 a, f16 b) {                                                                                      \
        f16 r;                                                                                                         \
        asm(instruction " %0, %1, %2;" : "=h"(r.bits) : "h"(a.bits), "h"(b.bits));                                     \
        return r;                                                                                                      \
    }
WGSL_HALF_2(add, "add.f16")
WGSL_HALF_2(sub, "sub.f16")
WGSL_HALF_2(mul, "mul.f16")
WGSL f16 fma(f16 a, f16 b, f16 c) {
    f16 r;
    asm("fma.rn.f16 %0, %1, %2, %3;" : "=h"(r.bits) : "h"(a.bits), "h"(b.bits), "h"(c.bits));
    return r;
}
WGSL f16 neg(f16 a) { return {(unsigned short)(a.bits ^ 0x8000u)}; }
WGSL f16 abs(f16 a) { return {(unsigned short)(a.bits & 0x7fffu)}; }
WGSL bool is_nan(f16 a) { return (a.bits & 0x7fffu) > 0x7c00u; }
WGSL bool is_inf(f16 a) { return (a.bits & 0x7fffu) == 0x7c00u; }

#define WGSL_HALF_COMPARE(name)                                                                                        \
    WGSL bool name(f16 a, f16 b) { return name(to_f32(a), to_f32(b)); }
WGSL_HALF_COMPARE(equal) WGSL_HALF_COMPARE(not_equal) WGSL_HALF_COMPARE(less) WGSL_HALF_COMPARE(less_equal)
WGSL_HALF_COMPARE(greater) WGSL_HALF_COMPARE(greater_equal)

#define WGSL_HALF_BY_F32_1(name)                                                                                       \
    WGSL f16 name(f16 a) { return to_f16(name(to_f32(a))); }
#define WGSL_HALF_BY_F32_2(name)                                                                                       \
    WGSL f16 name(f16 a, f16 b) { return to_f16(name(to_f32(a), to_f32(b))); }
#define WGSL_HALF_BY_F32_3(name)                                                                                       \
    WGSL f16 name(f16 a, f16 b, f16 c) { return to_f16(name(to_f32(a), to_f32(b), to_f32(c))); }
WGSL_HALF_BY_F32_1(sign) WGSL_HALF_BY_F32_1(ceil) WGSL_HALF_BY_F32_1(floor) WGSL_HALF_BY_F32_1(round)
WGSL_HALF_BY_F32_1(trunc) WGSL_HALF_BY_F32_1(fract) WGSL_HALF_BY_F32_1(saturate) WGSL_HALF_BY_F32_1(sqrt)
WGSL_HALF_BY_F32_1(inverse_sqrt) WGSL_HALF_BY_F32_1(exp) WGSL_HALF_BY_F32_1(exp2) WGSL_HALF_BY_F32_1(log)
WGSL_HALF_BY_F32_1(log2) WGSL_HALF_BY_F32_1(sin) WGSL_HALF_BY_F32_1(cos) WGSL_HALF_BY_F32_1(tan)
WGSL_HALF_BY_F32_1(asin) WGSL_HALF_BY_F32_1(acos) WGSL_HALF_BY_F32_1(atan) WGSL_HALF_BY_F32_1(sinh)
WGSL_HALF_BY_F32_1(cosh) WGSL_HALF_BY_F32_1(tanh) WGSL_HALF_BY_F32_1(asinh) WGSL_HALF_BY_F32_1(acosh)
WGSL_HALF_BY_F32_1(atanh) WGSL_HALF_BY_F32_1(radians) WGSL_HALF_BY_F32_1(degrees) WGSL_HALF_BY_F32_1(length)
WGSL_HALF_BY_F32_2(div) WGSL_HALF_BY_F32_2(rem) WGSL_HALF_BY_F32_2(min) WGSL_HALF_BY_F32_2(max)
WGSL_HALF_BY_F32_2(atan2) WGSL_HALF_BY_F32_2(pow) WGSL_HALF_BY_F32_2(step) WGSL_HALF_BY_F32_2(distance)
WGSL_HALF_BY_F32_3(clamp) WGSL_HALF_BY_F32_3(mix) WGSL_HALF_BY_F32_3(smooth_step)
WGSL f16 ldexp(f16 x, i32 n) { return to_f16(ldexp(to_f32(x), n)); }
WGSL_EACH_1(to_f16) WGSL_EACH_1(bits_f16)

// Rounds two numbers to halves and packs them into a word.
WGSL u32 round_pair(f32 low, f32 high) {
#if __CUDA_ARCH__ >= 800
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
#else
    return (u32)to_f16(low).bits | (u32)to_f16(high).bits << 16;
#endif
}
WGSL vec<f16, 2> to_f16(vec<f32, 2> v) {
    vec<f16, 2> r;
    r.at.pair[0] = round_pair(v.at[0], v.at[1]);
    return r;
}
WGSL vec<f16, 4> to_f16(vec<f32, 4> v) {
    vec<f16, 4> r;
    r.at.pair[0] = round_pair(v.at[0], v.at[1]);
    r.at.pair[1] = round_pair(v.at[2], v.at[3]);
    return r;
}
WGSL u32 pack2_f16(vec<f32, 2> v) { return round_pair(v.at[0], v.at[1]); }
WGSL vec<f32, 2> unpack2_f16(u32 a) {
    return {{to_f32(f16{(unsigned short)(a & 0xffffu)}), to_f32(f16{(unsigned short)(a >> 16)})}};
}
WGSL f32 quantize_f16(f32 a) { return to_f32(to_f16(a)); }
WGSL_EACH_1(quantize_f16)

} // namespace wgsl
