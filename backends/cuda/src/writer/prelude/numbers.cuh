// WGSL's operators and functions on numbers, and elementwise on vectors. Signed overflow, division
// by zero and shifts by too many bits are undefined behaviour in C++, but defined in WGSL.
namespace wgsl {

// Arithmetic.
WGSL u32 add(u32 a, u32 b) { return a + b; }
WGSL f32 add(f32 a, f32 b) { return a + b; }
WGSL i32 add(i32 a, i32 b) { return (i32)((u32)a + (u32)b); }
WGSL u32 sub(u32 a, u32 b) { return a - b; }
WGSL f32 sub(f32 a, f32 b) { return a - b; }
WGSL i32 sub(i32 a, i32 b) { return (i32)((u32)a - (u32)b); }
WGSL u32 mul(u32 a, u32 b) { return a * b; }
WGSL f32 mul(f32 a, f32 b) { return a * b; }
WGSL i32 mul(i32 a, i32 b) { return (i32)((u32)a * (u32)b); }
WGSL f32 neg(f32 a) { return -a; }
WGSL i32 neg(i32 a) { return (i32)(0u - (u32)a); }
// Integer division by zero gives the dividend, with the remainder 0. The smallest number divided by
// -1 is itself.
WGSL u32 div(u32 a, u32 b) { return b == 0u ? a : a / b; }
WGSL f32 div(f32 a, f32 b) { return a / b; }
WGSL i32 div(i32 a, i32 b) { return b == 0 ? a : b == -1 ? neg(a) : a / b; }
WGSL u32 rem(u32 a, u32 b) { return b == 0u ? 0u : a % b; }
WGSL f32 rem(f32 a, f32 b) { return ::fmodf(a, b); }
WGSL i32 rem(i32 a, i32 b) { return b == 0 || b == -1 ? 0 : a % b; }

// Bits. Only the lowest five bits of a shift count are used.
WGSL u32 bit_and(u32 a, u32 b) { return a & b; }
WGSL i32 bit_and(i32 a, i32 b) { return a & b; }
WGSL bool bit_and(bool a, bool b) { return a && b; }
WGSL u32 bit_or(u32 a, u32 b) { return a | b; }
WGSL i32 bit_or(i32 a, i32 b) { return a | b; }
WGSL bool bit_or(bool a, bool b) { return a || b; }
WGSL u32 bit_xor(u32 a, u32 b) { return a ^ b; }
WGSL i32 bit_xor(i32 a, i32 b) { return a ^ b; }
WGSL bool bit_xor(bool a, bool b) { return a != b; }
WGSL u32 bit_not(u32 a) { return ~a; }
WGSL i32 bit_not(i32 a) { return ~a; }
WGSL bool logical_not(bool a) { return !a; }
WGSL u32 shl(u32 a, u32 b) { return a << (b & 31u); }
WGSL i32 shl(i32 a, u32 b) { return (i32)((u32)a << (b & 31u)); }
WGSL u32 shr(u32 a, u32 b) { return a >> (b & 31u); }
WGSL i32 shr(i32 a, u32 b) { return a >> (b & 31u); }
WGSL u32 count_bits(u32 a) { return ::__popc(a); }
WGSL u32 reverse_bits(u32 a) { return ::__brev(a); }
WGSL u32 leading_zeros(u32 a) { return ::__clz((i32)a); }
WGSL u32 trailing_zeros(u32 a) { return a == 0u ? 32u : (u32)(::__ffs((i32)a) - 1); }
WGSL u32 first_trailing_bit(u32 a) { return (u32)(::__ffs((i32)a) - 1); }
WGSL u32 first_leading_bit(u32 a) { return 31u - (u32)::__clz((i32)a); }
WGSL i32 count_bits(i32 a) { return (i32)count_bits((u32)a); }
WGSL i32 reverse_bits(i32 a) { return (i32)reverse_bits((u32)a); }
WGSL i32 leading_zeros(i32 a) { return (i32)leading_zeros((u32)a); }
WGSL i32 trailing_zeros(i32 a) { return (i32)trailing_zeros((u32)a); }
WGSL i32 first_trailing_bit(i32 a) { return (i32)first_trailing_bit((u32)a); }
WGSL i32 first_leading_bit(i32 a) { return (i32)first_leading_bit((u32)(a < 0 ? ~a : a)); }

// Comparisons.
#define WGSL_COMPARE(name, op)                                                                                         \
    WGSL bool name(u32 a, u32 b) { return a op b; }                                                                    \
    WGSL bool name(i32 a, i32 b) { return a op b; }                                                                    \
    WGSL bool name(f32 a, f32 b) { return a op b; }
WGSL_COMPARE(equal, ==)
WGSL_COMPARE(not_equal, !=)
WGSL_COMPARE(less, <)
WGSL_COMPARE(less_equal, <=)
WGSL_COMPARE(greater, >)
WGSL_COMPARE(greater_equal, >=)
WGSL bool equal(bool a, bool b) { return a == b; }
WGSL bool not_equal(bool a, bool b) { return a != b; }

WGSL u32 min(u32 a, u32 b) { return a < b ? a : b; }
WGSL i32 min(i32 a, i32 b) { return a < b ? a : b; }
WGSL f32 min(f32 a, f32 b) { return ::fminf(a, b); }
WGSL u32 max(u32 a, u32 b) { return a > b ? a : b; }
WGSL i32 max(i32 a, i32 b) { return a > b ? a : b; }
WGSL f32 max(f32 a, f32 b) { return ::fmaxf(a, b); }
WGSL u32 clamp(u32 x, u32 low, u32 high) { return min(max(x, low), high); }
WGSL i32 clamp(i32 x, i32 low, i32 high) { return min(max(x, low), high); }
WGSL f32 clamp(f32 x, f32 low, f32 high) { return min(max(x, low), high); }
WGSL u32 abs(u32 a) { return a; }
WGSL i32 abs(i32 a) { return a < 0 ? neg(a) : a; }
WGSL f32 abs(f32 a) { return ::fabsf(a); }
WGSL i32 sign(i32 a) { return (a > 0) - (a < 0); }
WGSL f32 sign(f32 a) { return (f32)((a > 0.0f) - (a < 0.0f)); }
WGSL bool is_nan(f32 a) { return (__float_as_uint(a) & 0x7fffffffu) > 0x7f800000u; }
WGSL bool is_inf(f32 a) { return (__float_as_uint(a) & 0x7fffffffu) == 0x7f800000u; }

// Mathematical functions: the accurate ones, not the fast intrinsics.
#define WGSL_FUNCTION(name, of)                                                                                        \
    WGSL f32 name(f32 x) { return of(x); }
WGSL_FUNCTION(ceil, ::ceilf)
WGSL_FUNCTION(floor, ::floorf)
WGSL_FUNCTION(round, ::rintf)
WGSL_FUNCTION(trunc, ::truncf)
WGSL_FUNCTION(sqrt, ::sqrtf)
WGSL_FUNCTION(inverse_sqrt, 1.0f / ::sqrtf)
WGSL_FUNCTION(exp, ::expf)
WGSL_FUNCTION(exp2, ::exp2f)
WGSL_FUNCTION(log, ::logf)
WGSL_FUNCTION(log2, ::log2f)
WGSL_FUNCTION(sin, ::sinf)
WGSL_FUNCTION(cos, ::cosf)
WGSL_FUNCTION(tan, ::tanf)
WGSL_FUNCTION(asin, ::asinf)
WGSL_FUNCTION(acos, ::acosf)
WGSL_FUNCTION(atan, ::atanf)
WGSL_FUNCTION(sinh, ::sinhf)
WGSL_FUNCTION(cosh, ::coshf)
WGSL_FUNCTION(tanh, ::tanhf)
WGSL_FUNCTION(asinh, ::asinhf)
WGSL_FUNCTION(acosh, ::acoshf)
WGSL_FUNCTION(atanh, ::atanhf)
WGSL f32 atan2(f32 y, f32 x) { return ::atan2f(y, x); }
WGSL f32 pow(f32 x, f32 y) { return ::powf(x, y); }
WGSL f32 fma(f32 a, f32 b, f32 c) { return ::fmaf(a, b, c); }
WGSL f32 ldexp(f32 x, i32 n) { return ::ldexpf(x, n); }
WGSL f32 fract(f32 x) { return x - ::floorf(x); }
WGSL f32 saturate(f32 x) { return clamp(x, 0.0f, 1.0f); }
WGSL f32 radians(f32 x) { return x * 0.017453292519943295f; }
WGSL f32 degrees(f32 x) { return x * 57.29577951308232f; }
WGSL f32 mix(f32 a, f32 b, f32 t) { return a * (1.0f - t) + b * t; }
WGSL f32 step(f32 edge, f32 x) { return edge <= x ? 1.0f : 0.0f; }
WGSL f32 smooth_step(f32 low, f32 high, f32 x) {
    const f32 t = saturate((x - low) / (high - low));
    return t * t * (3.0f - 2.0f * t);
}

// Conversions. Numbers that are too large become the largest one, and NaN becomes 0.
WGSL u32 to_u32(u32 a) { return a; }
WGSL u32 to_u32(i32 a) { return (u32)a; }
WGSL u32 to_u32(f32 a) { return ::__float2uint_rz(a); }
WGSL u32 to_u32(bool a) { return a ? 1u : 0u; }
WGSL i32 to_i32(i32 a) { return a; }
WGSL i32 to_i32(u32 a) { return (i32)a; }
WGSL i32 to_i32(f32 a) { return ::__float2int_rz(a); }
WGSL i32 to_i32(bool a) { return a ? 1 : 0; }
WGSL f32 to_f32(f32 a) { return a; }
WGSL f32 to_f32(u32 a) { return ::__uint2float_rn(a); }
WGSL f32 to_f32(i32 a) { return ::__int2float_rn(a); }
WGSL f32 to_f32(bool a) { return a ? 1.0f : 0.0f; }
WGSL bool to_bool(bool a) { return a; }
WGSL bool to_bool(u32 a) { return a != 0u; }
WGSL bool to_bool(i32 a) { return a != 0; }
WGSL bool to_bool(f32 a) { return a != 0.0f; }
// Reinterpretation of the bits as another type.
WGSL u32 bits_u32(u32 a) { return a; }
WGSL u32 bits_u32(i32 a) { return (u32)a; }
WGSL u32 bits_u32(f32 a) { return ::__float_as_uint(a); }
WGSL i32 bits_i32(i32 a) { return a; }
WGSL i32 bits_i32(u32 a) { return (i32)a; }
WGSL i32 bits_i32(f32 a) { return ::__float_as_int(a); }
WGSL f32 bits_f32(f32 a) { return a; }
WGSL f32 bits_f32(u32 a) { return ::__uint_as_float(a); }
WGSL f32 bits_f32(i32 a) { return ::__int_as_float(a); }

// Bit fields, cut off at the end of the number.
WGSL u32 extract_bits(u32 a, u32 offset, u32 count) {
    const u32 from = min(offset, 32u), bits = min(count, 32u - from);
    return bits == 0u ? 0u : (a << (32u - bits - from)) >> (32u - bits);
}
WGSL i32 extract_bits(i32 a, u32 offset, u32 count) {
    const u32 from = min(offset, 32u), bits = min(count, 32u - from);
    return bits == 0u ? 0 : (i32)((u32)a << (32u - bits - from)) >> (32u - bits);
}
WGSL u32 insert_bits(u32 a, u32 field, u32 offset, u32 count) {
    const u32 from = min(offset, 32u), bits = min(count, 32u - from);
    const u32 mask = bits == 0u ? 0u : (0xffffffffu >> (32u - bits)) << from;
    return bits == 0u ? a : (a & ~mask) | ((field << from) & mask);
}
WGSL i32 insert_bits(i32 a, i32 field, u32 offset, u32 count) {
    return (i32)insert_bits((u32)a, (u32)field, offset, count);
}

// Elementwise forms for vectors.
#define WGSL_EACH_1(name)                                                                                              \
    template <typename T, int N> WGSL auto name(vec<T, N> a) {                                                         \
        vec<decltype(name(a.at[0])), N> r;                                                                             \
        WGSL_UNROLL for (int i = 0; i < N; ++i) r.at[i] = name(a.at[i]);                                               \
        return r;                                                                                                      \
    }
#define WGSL_EACH_2(name)                                                                                              \
    template <typename T, typename U, int N> WGSL auto name(vec<T, N> a, vec<U, N> b) {                                \
        vec<decltype(name(a.at[0], b.at[0])), N> r;                                                                    \
        WGSL_UNROLL for (int i = 0; i < N; ++i) r.at[i] = name(a.at[i], b.at[i]);                                      \
        return r;                                                                                                      \
    }
#define WGSL_EACH_3(name)                                                                                              \
    template <typename T, int N> WGSL auto name(vec<T, N> a, vec<T, N> b, vec<T, N> c) {                               \
        vec<T, N> r;                                                                                                   \
        WGSL_UNROLL for (int i = 0; i < N; ++i) r.at[i] = name(a.at[i], b.at[i], c.at[i]);                             \
        return r;                                                                                                      \
    }
WGSL_EACH_1(neg) WGSL_EACH_1(bit_not) WGSL_EACH_1(logical_not)
WGSL_EACH_1(abs) WGSL_EACH_1(sign) WGSL_EACH_1(is_nan) WGSL_EACH_1(is_inf)
WGSL_EACH_1(count_bits) WGSL_EACH_1(reverse_bits) WGSL_EACH_1(leading_zeros) WGSL_EACH_1(trailing_zeros)
WGSL_EACH_1(first_leading_bit) WGSL_EACH_1(first_trailing_bit)
WGSL_EACH_1(ceil) WGSL_EACH_1(floor) WGSL_EACH_1(round) WGSL_EACH_1(trunc) WGSL_EACH_1(fract) WGSL_EACH_1(saturate)
WGSL_EACH_1(sqrt) WGSL_EACH_1(inverse_sqrt) WGSL_EACH_1(exp) WGSL_EACH_1(exp2) WGSL_EACH_1(log) WGSL_EACH_1(log2)
WGSL_EACH_1(sin) WGSL_EACH_1(cos) WGSL_EACH_1(tan) WGSL_EACH_1(asin) WGSL_EACH_1(acos) WGSL_EACH_1(atan)
WGSL_EACH_1(sinh) WGSL_EACH_1(cosh) WGSL_EACH_1(tanh) WGSL_EACH_1(asinh) WGSL_EACH_1(acosh) WGSL_EACH_1(atanh)
WGSL_EACH_1(radians) WGSL_EACH_1(degrees)
WGSL_EACH_1(to_u32) WGSL_EACH_1(to_i32) WGSL_EACH_1(to_f32) WGSL_EACH_1(to_bool)
WGSL_EACH_1(bits_u32) WGSL_EACH_1(bits_i32) WGSL_EACH_1(bits_f32)
WGSL_EACH_2(add) WGSL_EACH_2(sub) WGSL_EACH_2(mul) WGSL_EACH_2(div) WGSL_EACH_2(rem)
WGSL_EACH_2(bit_and) WGSL_EACH_2(bit_or) WGSL_EACH_2(bit_xor) WGSL_EACH_2(shl) WGSL_EACH_2(shr)
WGSL_EACH_2(equal) WGSL_EACH_2(not_equal) WGSL_EACH_2(less) WGSL_EACH_2(less_equal)
WGSL_EACH_2(greater) WGSL_EACH_2(greater_equal)
WGSL_EACH_2(min) WGSL_EACH_2(max) WGSL_EACH_2(atan2) WGSL_EACH_2(pow) WGSL_EACH_2(step) WGSL_EACH_2(ldexp)
WGSL_EACH_3(clamp) WGSL_EACH_3(fma) WGSL_EACH_3(mix) WGSL_EACH_3(smooth_step)

// Operations on vectors and scalars.
template <typename T, int N> WGSL vec<T, N> mul(vec<T, N> a, T b) { return mul(a, splat<N>(b)); }
template <typename T, int N> WGSL vec<T, N> mul(T a, vec<T, N> b) { return mul(splat<N>(a), b); }
template <typename T, int N> WGSL vec<T, N> mix(vec<T, N> a, vec<T, N> b, T t) { return mix(a, b, splat<N>(t)); }
template <typename T, int N> WGSL vec<T, N> extract_bits(vec<T, N> a, u32 offset, u32 count) {
    vec<T, N> r;
    WGSL_UNROLL for (int i = 0; i < N; ++i) r.at[i] = extract_bits(a.at[i], offset, count);
    return r;
}
template <typename T, int N> WGSL vec<T, N> insert_bits(vec<T, N> a, vec<T, N> field, u32 offset, u32 count) {
    vec<T, N> r;
    WGSL_UNROLL for (int i = 0; i < N; ++i) r.at[i] = insert_bits(a.at[i], field.at[i], offset, count);
    return r;
}

// Reductions and products of vectors.
template <int N> WGSL bool all(vec<bool, N> v) {
    bool r = true;
    WGSL_UNROLL for (int i = 0; i < N; ++i) r = r && v.at[i];
    return r;
}
template <int N> WGSL bool any(vec<bool, N> v) {
    bool r = false;
    WGSL_UNROLL for (int i = 0; i < N; ++i) r = r || v.at[i];
    return r;
}
WGSL bool all(bool v) { return v; }
WGSL bool any(bool v) { return v; }
template <typename T, int N> WGSL T dot(vec<T, N> a, vec<T, N> b) {
    T r = mul(a.at[0], b.at[0]);
    WGSL_UNROLL for (int i = 1; i < N; ++i) r = add(r, mul(a.at[i], b.at[i]));
    return r;
}
template <typename T> WGSL vec<T, 3> cross(vec<T, 3> a, vec<T, 3> b) {
    return sub(mul(swizzle<1, 2, 0>(a), swizzle<2, 0, 1>(b)), mul(swizzle<2, 0, 1>(a), swizzle<1, 2, 0>(b)));
}
WGSL f32 length(f32 v) { return abs(v); }
WGSL f32 distance(f32 a, f32 b) { return abs(a - b); }
template <typename T, int N> WGSL T length(vec<T, N> v) { return sqrt(dot(v, v)); }
template <typename T, int N> WGSL T distance(vec<T, N> a, vec<T, N> b) { return length(sub(a, b)); }
template <typename T, int N> WGSL vec<T, N> normalize(vec<T, N> v) { return div(v, splat<N>(length(v))); }

// Operations on four bytes in a word.
WGSL i32 dot4_i8(u32 a, u32 b) { return ::__dp4a((i32)a, (i32)b, 0); }
WGSL u32 dot4_u8(u32 a, u32 b) { return ::__dp4a(a, b, 0u); }
WGSL vec<u32, 4> unpack4_u8(u32 a) { return {{a & 255u, (a >> 8) & 255u, (a >> 16) & 255u, a >> 24}}; }
WGSL vec<i32, 4> unpack4_i8(u32 a) {
    return {{(i32)(a << 24) >> 24, (i32)(a << 16) >> 24, (i32)(a << 8) >> 24, (i32)a >> 24}};
}
WGSL u32 pack4_u8(vec<u32, 4> v) {
    return (v.at[0] & 255u) | (v.at[1] & 255u) << 8 | (v.at[2] & 255u) << 16 | (v.at[3] & 255u) << 24;
}
WGSL u32 pack4_i8(vec<i32, 4> v) { return pack4_u8(to_u32(v)); }
WGSL u32 pack4_u8_clamp(vec<u32, 4> v) { return pack4_u8(min(v, splat<4>(255u))); }
WGSL u32 pack4_i8_clamp(vec<i32, 4> v) { return pack4_i8(clamp(v, splat<4>(-128), splat<4>(127))); }

} // namespace wgsl
