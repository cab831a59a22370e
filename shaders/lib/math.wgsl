// Scalar functions. WGSL leaves NaN, infinities and the accuracy of most built-in functions to the driver; these
// functions define them. A kernel contains only the functions that it uses, with their dependencies.

// Not a constant, so that no compiler evaluates expressions of these bits.
fn from_bits(bits: u32) -> f32 {
    var word = bits;
    return bitcast<f32>(word);
}

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn is_inf(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u;
}

fn max_f32(a: f32, b: f32) -> f32 {
    let larger = select(a, b, a < b);
    return select(larger, b, is_nan(b));
}

fn min_f32(a: f32, b: f32) -> f32 {
    let smaller = select(a, b, b < a);
    return select(smaller, b, is_nan(b));
}

// 2^n for whole n from -126 to 127.
fn power_of_two(n: i32) -> f32 {
    return bitcast<f32>(u32(n + 127) << 23u);
}

// x 2^n, through two factors, so that n may be beyond the range of one.
fn scale_by_power(x: f32, n: i32) -> f32 {
    let half = n / 2;
    return x * power_of_two(half) * power_of_two(n - half);
}

// e^r for |r| <= ln(2) / 2: the Taylor series.
fn exp_core(r: f32) -> f32 {
    var p = 1.0 / 5040.0;
    p = fma(p, r, 1.0 / 720.0);
    p = fma(p, r, 1.0 / 120.0);
    p = fma(p, r, 1.0 / 24.0);
    p = fma(p, r, 1.0 / 6.0);
    p = fma(p, r, 0.5);
    p = fma(p, r, 1.0);
    return fma(p, r, 1.0);
}

fn exp_f32(x: f32) -> f32 {
    // Beyond this the result is 0 or infinite; NaN passes both comparisons.
    let limited = select(select(x, 90.0, x > 90.0), -105.0, x < -105.0);
    let n = round(limited * 1.44269504);
    // ln(2) in two parts, the first with trailing zeros.
    let r = fma(n, -1.42860682e-6, fma(n, -0.693145752, limited));
    let whole = i32(select(n, 0.0, is_nan(x)));
    return select(scale_by_power(exp_core(r), whole), x, is_nan(x));
}

// e^x of scores relative to the maximum. The error of the built-in function grows with |x|, but e^x shrinks faster, so
// the error is negligible relative to e^0 = 1 of the maximum score. Minus infinity gives 0; NaN stays NaN.
fn numerators(x: vec4<f32>) -> vec4<f32> {
    let nan = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u);
    let small = x < vec4<f32>(-87.0);
    return select(select(exp(select(x, vec4<f32>(), small)), vec4<f32>(), small), x, nan);
}

fn exp2_f32(x: f32) -> f32 {
    let limited = select(select(x, 130.0, x > 130.0), -151.0, x < -151.0);
    let n = round(limited);
    let whole = i32(select(n, 0.0, is_nan(x)));
    return select(scale_by_power(exp_core((limited - n) * 0.693147181), whole), x, is_nan(x));
}

// The natural logarithm of 1 + m, where 1 + m is between sqrt(1/2) and sqrt(2): 2 artanh(m / (2 + m)).
fn log_core(m: f32) -> f32 {
    let s = m / (2.0 + m);
    let z = s * s;
    var p = 2.0 / 11.0;
    p = fma(p, z, 2.0 / 9.0);
    p = fma(p, z, 2.0 / 7.0);
    p = fma(p, z, 2.0 / 5.0);
    p = fma(p, z, 2.0 / 3.0);
    return s * fma(p, z, 2.0);
}

// Exponent, and mantissa less 1, of a normal positive number.
fn split_number(x: f32) -> vec2<f32> {
    let bits = bitcast<u32>(x) - 0x3f3504f3u;
    let exponent = bitcast<i32>(bits) >> 23u;
    let mantissa = bitcast<f32>((bits & 0x007fffffu) + 0x3f3504f3u);
    return vec2<f32>(f32(exponent), mantissa - 1.0);
}

// Result of a logarithm for NaN, infinities, zero and negative numbers; else 0.
fn log_special(x: f32) -> f32 {
    if (is_nan(x) || x < 0.0) {
        return from_bits(0x7fc00000u);
    }
    if (x == 0.0) {
        return from_bits(0xff800000u);
    }
    return select(0.0, x, is_inf(x));
}

// Binary exponent, and natural logarithm of the mantissa; subnormal numbers are scaled first.
fn log_parts(x: f32) -> vec2<f32> {
    let small = x < 1.17549435e-38;
    let parts = split_number(select(x, x * 8388608.0, small));
    return vec2<f32>(parts.x - select(0.0, 23.0, small), log_core(parts.y));
}

fn log_f32(x: f32) -> f32 {
    let special = log_special(x);
    if (special != 0.0 || is_nan(special)) {
        return special;
    }
    let parts = log_parts(x);
    return fma(parts.x, 0.693147181, parts.y);
}

fn log2_f32(x: f32) -> f32 {
    let special = log_special(x);
    if (special != 0.0 || is_nan(special)) {
        return special;
    }
    let parts = log_parts(x);
    return fma(parts.y, 1.44269504, parts.x);
}

fn log1p_f32(x: f32) -> f32 {
    if (abs(x) < 0.29) {
        return log_core(x);
    }
    return log_f32(1.0 + x);
}

fn expm1_f32(x: f32) -> f32 {
    if (abs(x) < 0.35) {
        var p = 1.0 / 40320.0;
        p = fma(p, x, 1.0 / 5040.0);
        p = fma(p, x, 1.0 / 720.0);
        p = fma(p, x, 1.0 / 120.0);
        p = fma(p, x, 1.0 / 24.0);
        p = fma(p, x, 1.0 / 6.0);
        p = fma(p, x, 0.5);
        return fma(p * x, x, x);
    }
    return exp_f32(x) - 1.0;
}

fn sqrt_f32(x: f32) -> f32 {
    // Drivers may compute x / sqrt(x).
    return select(sqrt(x), x, x == 0.0 || is_inf(x) && x > 0.0);
}

fn rsqrt_f32(x: f32) -> f32 {
    return 1.0 / sqrt_f32(x);
}

fn sigmoid_f32(x: f32) -> f32 {
    return 1.0 / (1.0 + exp_f32(-x));
}

fn tanh_f32(x: f32) -> f32 {
    let a = abs(x);
    if (a < 0.15) {
        let z = x * x;
        return fma(x * z, fma(z, fma(z, -17.0 / 315.0, 2.0 / 15.0), -1.0 / 3.0), x);
    }
    let t = 1.0 - 2.0 / (exp_f32(2.0 * min(a, 20.0)) + 1.0);
    return select(select(t, -t, x < 0.0), x, is_nan(x));
}

fn softplus_f32(x: f32) -> f32 {
    return max_f32(x, 0.0) + log1p_f32(exp_f32(-abs(x)));
}

fn silu_f32(x: f32) -> f32 {
    return x / (1.0 + exp_f32(-x));
}

// Abramowitz and Stegun, 7.1.26.
fn erf_f32(x: f32) -> f32 {
    let a = abs(x);
    let t = 1.0 / fma(a, 0.3275911, 1.0);
    var p = 1.061405429;
    p = fma(p, t, -1.453152027);
    p = fma(p, t, 1.421413741);
    p = fma(p, t, -0.284496736);
    p = fma(p, t, 0.254829592);
    let tail = p * t * exp_f32(-a * a);
    // Near 0 the difference from 1 has lost its digits.
    let near = x * fma(a * a, fma(a * a, 0.112837917, -0.376126389), 1.12837917);
    let y = select(1.0 - tail, -(1.0 - tail), x < 0.0);
    return select(select(y, near, a < 0.1), x, is_nan(x));
}

fn gelu_tanh_f32(x: f32) -> f32 {
    return 0.5 * x * (1.0 + tanh_f32(0.797884561 * fma(0.044715 * x * x, x, x)));
}

fn gelu_erf_f32(x: f32) -> f32 {
    return 0.5 * x * (1.0 + erf_f32(x * 0.707106781));
}

fn sign_f32(x: f32) -> f32 {
    return select(select(x, 1.0, x > 0.0), -1.0, x < 0.0);
}

// Drivers turn these comparisons into a minimum and a maximum, which lose NaN.
fn clamp_f32(x: f32, low: f32, high: f32) -> f32 {
    let limited = select(select(x, low, x < low), high, x > high);
    return select(limited, x, is_nan(x));
}

fn leaky_relu_f32(x: f32, slope: f32) -> f32 {
    return select(slope * x, x, x > 0.0);
}

fn elu_f32(x: f32, alpha: f32) -> f32 {
    if (x > 0.0) {
        return x;
    }
    return alpha * expm1_f32(x);
}

fn relu_f32(x: f32) -> f32 {
    let positive = select(x, 0.0, x < 0.0);
    return select(positive, x, is_nan(x));
}

fn hard_sigmoid_f32(x: f32) -> f32 {
    return clamp_f32(x + 3.0, 0.0, 6.0) * (1.0 / 6.0);
}

// a - b trunc(a / b), exact for every quotient: long division of the significands, eight bits at a time.
fn rest_f32(a: f32, b: f32) -> f32 {
    let dividend = bitcast<u32>(a) & 0x7fffffffu;
    let divisor = bitcast<u32>(b) & 0x7fffffffu;
    if (dividend >= 0x7f800000u || divisor > 0x7f800000u || divisor == 0u) {
        return from_bits(0x7fc00000u);
    }
    if (dividend < divisor) {
        return a;
    }
    // Numbers below the smallest normal one have its exponent, 1.
    var exponent = max(divisor >> 23u, 1u);
    var left = max(dividend >> 23u, 1u) - exponent;
    let whole = (divisor & 0x7fffffu) | select(0u, 0x800000u, divisor >= 0x800000u);
    var rest = ((dividend & 0x7fffffu) | select(0u, 0x800000u, dividend >= 0x800000u)) % whole;
    while (left > 0u && rest > 0u) {
        let bits = min(left, 8u);
        rest = (rest << bits) % whole;
        left -= bits;
    }
    let sign = bitcast<u32>(a) & 0x80000000u;
    if (rest == 0u) {
        return from_bits(sign);
    }
    let shift = min(countLeadingZeros(rest) - 8u, exponent - 1u);
    rest = rest << shift;
    exponent = select(0u, exponent - shift, rest >= 0x800000u);
    return from_bits(sign | (exponent << 23u) | (rest & 0x7fffffu));
}

fn mod_f32(a: f32, b: f32) -> f32 {
    let r = rest_f32(a, b);
    if (r != 0.0 && (r < 0.0) != (b < 0.0)) {
        return r + b;
    }
    return r;
}

fn pow_f32(a: f32, b: f32) -> f32 {
    if (b == 0.0 || a == 1.0) {
        return 1.0;
    }
    if (is_nan(a) || is_nan(b)) {
        return from_bits(0x7fc00000u);
    }
    let size = abs(a);
    var p = 1.0;
    if (size != 1.0) {
        p = exp2_f32(b * log2_f32(size));
    }
    // An infinite exponent is even.
    let whole = is_inf(b) || floor(b) == b;
    let odd = !is_inf(b) && whole && abs(b) < 16777216.0 && (bitcast<u32>(i32(b)) & 1u) == 1u;
    if (bitcast<u32>(a) >> 31u == 0u) {
        return p;
    }
    if (!whole && a != 0.0 && !is_inf(a)) {
        return from_bits(0x7fc00000u);
    }
    return select(p, -p, odd);
}

fn div_u32(a: u32, b: u32) -> u32 {
    return select(a / max(b, 1u), 0u, b == 0u);
}

fn mod_u32(a: u32, b: u32) -> u32 {
    return select(a % max(b, 1u), 0u, b == 0u);
}

fn div_i32(a: i32, b: i32) -> i32 {
    // Neither 0 nor -1 reach the division, which may trap.
    let safe = select(b, 1, b == 0 || b == -1);
    return select(select(a / safe, 0 - a, b == -1), 0, b == 0);
}

fn mod_i32(a: i32, b: i32) -> i32 {
    let safe = select(b, 1, b == 0 || b == -1);
    let r = a - (a / safe) * safe;
    return select(r, r + b, r != 0 && (r < 0) != (b < 0));
}

fn shift_left_u32(a: u32, b: u32) -> u32 {
    return select(a << (b & 31u), 0u, b > 31u);
}

fn shift_right_u32(a: u32, b: u32) -> u32 {
    return select(a >> (b & 31u), 0u, b > 31u);
}

fn f32_to_u32(x: f32) -> u32 {
    if (x >= 4294967296.0) {
        return 0xffffffffu;
    }
    return u32(select(0.0, x, x > 0.0));
}

fn f32_to_i32(x: f32) -> i32 {
    if (x >= 2147483648.0) {
        return 0x7fffffff;
    }
    if (x <= -2147483648.0) {
        return -0x7fffffff - 1;
    }
    return i32(select(x, 0.0, is_nan(x)));
}

// Half precision in 16 bits, without the device's own conversions: these may flush small numbers.
fn f16_to_f32(half: u32) -> f32 {
    // Without branches, because loads after them would wait for each other.
    let magnitude = half & 0x7fffu;
    let tiny = bitcast<u32>(f32(magnitude) * 5.9604644775390625e-8);
    let finite = select((magnitude << 13u) + 0x38000000u, tiny, magnitude < 0x400u);
    let word = select(finite, (magnitude << 13u) | 0x7f800000u, magnitude >= 0x7c00u);
    return from_bits(word | ((half & 0x8000u) << 16u));
}

// Four f16 values in two words.
fn f16_to_f32x4(pairs: vec2<u32>) -> vec4<f32> {
    let halves = vec4<u32>(pairs.x & 0xffffu, pairs.x >> 16u, pairs.y & 0xffffu, pairs.y >> 16u);
    let magnitudes = halves & vec4<u32>(0x7fffu);
    let tiny = bitcast<vec4<u32>>(vec4<f32>(magnitudes) * 5.9604644775390625e-8);
    let shifted = magnitudes << vec4<u32>(13u);
    let finite = select(shifted + vec4<u32>(0x38000000u), tiny, magnitudes < vec4<u32>(0x400u));
    let words = select(finite, shifted | vec4<u32>(0x7f800000u), magnitudes >= vec4<u32>(0x7c00u));
    return bitcast<vec4<f32>>(words | ((halves & vec4<u32>(0x8000u)) << vec4<u32>(16u)));
}

fn bf16_to_f32x4(pairs: vec2<u32>) -> vec4<f32> {
    let words = vec4<u32>(pairs.x << 16u, pairs.x & 0xffff0000u, pairs.y << 16u, pairs.y & 0xffff0000u);
    return bitcast<vec4<f32>>(words);
}

// Conversion of integers through the mantissas of floats: 2^23 + i contains the bits of i for i < 2^8, and 2^15 + i /
// 2^8 contains them 8 bits higher. The conversion is an "and", an "or" and a subtraction, which on many devices is
// faster than a conversion instruction.

// Four integers of Q8_0 in a word, in two's complement.
fn q8_0_to_f32x4(word: u32) -> vec4<f32> {
    let low = word ^ 0x80808080u;
    let high = low >> 16u;
    let bits = vec4<u32>(low & 0xffu, low & 0xff00u, high & 0xffu, high & 0xff00u);
    let floats = bitcast<vec4<f32>>(bits | vec4<u32>(0x4b000000u, 0x47000000u, 0x4b000000u, 0x47000000u));
    return floats - vec4<f32>(8388736.0, 32896.0, 8388736.0, 32896.0);
}

// Four integers of Q4_0 in a word: of the first half of a block in the lower halves of bytes.
fn q4_0_low_to_f32x4(word: u32) -> vec4<f32> {
    let high = word >> 16u;
    let bits = vec4<u32>(word & 0xfu, word & 0xf00u, high & 0xfu, high & 0xf00u);
    let floats = bitcast<vec4<f32>>(bits | vec4<u32>(0x4b000000u, 0x47000000u, 0x4b000000u, 0x47000000u));
    return floats - vec4<f32>(8388616.0, 32776.0, 8388616.0, 32776.0);
}

// The same for the second half of a block, in the upper halves of bytes: 2^19 + i / 2^4, and 2^11 + i / 2^12.
fn q4_0_high_to_f32x4(word: u32) -> vec4<f32> {
    let high = word >> 16u;
    let bits = vec4<u32>(word & 0xf0u, word & 0xf000u, high & 0xf0u, high & 0xf000u);
    let floats = bitcast<vec4<f32>>(bits | vec4<u32>(0x49000000u, 0x45000000u, 0x49000000u, 0x45000000u));
    return floats - vec4<f32>(524296.0, 2056.0, 524296.0, 2056.0);
}

// Four integers of four bits in the lower halves of the bytes of a word, each plus 16: the bits of i follow the leading
// bit of 16.
fn four_bits_plus_16(word: u32) -> vec4<f32> {
    let bits = vec4<u32>(word << 19u, word << 11u, word << 3u, word >> 5u);
    return bitcast<vec4<f32>>((bits & vec4<u32>(0x00780000u)) | vec4<u32>(0x41800000u));
}

// Four integers of Q8_0 in a word, in two's complement, each plus 384: the unsigned integers 0 to 255, plus 256.
fn q8_0_plus_384(word: u32) -> vec4<f32> {
    let bytes = word ^ 0x80808080u;
    let bits = vec4<u32>(bytes << 15u, bytes << 7u, bytes >> 1u, bytes >> 9u);
    return bitcast<vec4<f32>>((bits & vec4<u32>(0x007f8000u)) | vec4<u32>(0x43800000u));
}

// Four bytes minus an offset.
fn bytes_to_f32x4(bytes: u32, offset: f32) -> vec4<f32> {
    let high = bytes >> 16u;
    let bits = vec4<u32>(bytes & 0xffu, bytes & 0xff00u, high & 0xffu, high & 0xff00u);
    let floats = bitcast<vec4<f32>>(bits | vec4<u32>(0x4b000000u, 0x47000000u, 0x4b000000u, 0x47000000u));
    return floats - vec4<f32>(8388608.0 + offset, 32768.0 + offset, 8388608.0 + offset, 32768.0 + offset);
}

// Four integers of four bits in a word: of the first half of a block in the lower halves of bytes (0), or of the second (1).
fn four_bits_to_f32x4(word: u32, half: u32) -> vec4<f32> {
    return bytes_to_f32x4((word >> (4u * half)) & 0x0f0f0f0fu, 0.0);
}

// The same with a fifth bit for each integer: `above` contains those of the first half in the lowest bits of bytes, and
// those of the second half four bits higher.
fn five_bits_to_f32x4(word: u32, above: u32, half: u32, offset: f32) -> vec4<f32> {
    let low = (word >> (4u * half)) & 0x0f0f0f0fu;
    return bytes_to_f32x4(low | (((above >> (4u * half)) & 0x01010101u) << 4u), offset);
}

// The same with two more bits for each integer, in `above`.
fn six_bits_to_f32x4(word: u32, above: u32, half: u32) -> vec4<f32> {
    let low = (word >> (4u * half)) & 0x0f0f0f0fu;
    return bytes_to_f32x4(low | (((above >> (4u * half)) & 0x03030303u) << 4u), 32.0);
}

// The integer `i` of a block of Q8_0 in its word.
fn q8_0_to_f32(word: u32, i: u32) -> f32 {
    return f32(i32(word << (24u - i % 4u * 8u)) >> 24u);
}

// The integer `i` of a block of Q4_0 in its word.
fn q4_0_to_f32(word: u32, i: u32) -> f32 {
    return f32((word >> (i % 4u * 8u + i / 16u * 4u)) & 0xfu) - 8.0;
}

// The lower four bits of the integer `i` of a block, in its word.
fn four_bits(word: u32, i: u32) -> u32 {
    return (word >> (i % 4u * 8u + i / 16u * 4u)) & 0xfu;
}

// The integer `i` of a block of five bits, in its word and that of the highest bits.
fn five_bits(word: u32, above: u32, i: u32) -> u32 {
    return four_bits(word, i) | (((above >> (i % 4u * 8u + i / 4u)) & 1u) << 4u);
}

// The integer `i` of a block of six bits, in its word and that of its upper two bits.
fn six_bits(word: u32, above: u32, i: u32) -> u32 {
    return four_bits(word, i) | (((above >> (i % 4u * 8u + i / 8u * 2u)) & 3u) << 4u);
}

fn f32_to_f16(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return sign | 0x7e00u;
    }
    if (magnitude >= 0x47800000u) {
        return sign | 0x7c00u;
    }
    if (magnitude < 0x38800000u) {
        // A multiple of 2^-24; the sum rounds to it.
        let shifted = bitcast<f32>(magnitude) + 0.5;
        return sign | (bitcast<u32>(shifted) - 0x3f000000u);
    }
    let odd = (magnitude >> 13u) & 1u;
    return sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13u);
}

fn bf16_to_f32(half: u32) -> f32 {
    return from_bits(half << 16u);
}

fn f32_to_bf16(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (bits >> 16u) | 0x40u;
    }
    let odd = (bits >> 16u) & 1u;
    return (bits + 0x7fffu + odd) >> 16u;
}

// Numbers rounded to half precision.
fn round_to_f16(x: f32) -> f32 {
    return f16_to_f32(f32_to_f16(x));
}

fn round_to_bf16(x: f32) -> f32 {
    return bf16_to_f32(f32_to_bf16(x));
}

// Counter-based random words, the same as the core's `random_word`.
fn random_mix(word: u32) -> u32 {
    var x = word;
    x ^= x >> 16u;
    x *= 0x7feb352du;
    x ^= x >> 15u;
    x *= 0x846ca68bu;
    return x ^ (x >> 16u);
}

fn random_word(seed: u32, uid: u32, step: u32, element: u32) -> u32 {
    var h = random_mix(seed ^ 0x9e3779b9u);
    h = random_mix(h ^ (uid * 0x85ebca6bu));
    h = random_mix(h ^ step);
    return random_mix(h ^ element);
}
