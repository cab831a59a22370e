// Sine and cosine of any finite angle in radians; NaN for infinities.

// Remainder of x by pi / 2, and the number of the quadrant. Cody and Waite: pi / 2 in three parts, whose products
// with k are exact also where `fma` rounds twice. Their sum is too short for larger operands.
fn quadrant(x: f32) -> vec2<f32> {
    if (abs(x) >= 256.0) {
        return large_quadrant(x);
    }
    let k = round(x * 0.636619772);
    let r = fma(k, -7.54978995e-8, fma(k, -4.83751297e-4, fma(k, -1.5703125, x)));
    return vec2<f32>(r, k);
}

// The upper half of a product of 64 bits.
fn high_product(a: u32, b: u32) -> u32 {
    let middle = (a >> 16u) * (b & 0xffffu) + (((a & 0xffffu) * (b & 0xffffu)) >> 16u);
    let other = (a & 0xffffu) * (b >> 16u) + (middle & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (middle >> 16u) + (other >> 16u);
}

// Words of the binary fraction of 2 / pi, from the most significant one at index 0; zero outside.
fn two_over_pi(word: u32) -> u32 {
    switch word {
        case 0u: { return 0xa2f9836eu; }
        case 1u: { return 0x4e441529u; }
        case 2u: { return 0xfc2757d1u; }
        case 3u: { return 0xf534ddc0u; }
        case 4u: { return 0xdb629599u; }
        case 5u: { return 0x3c439041u; }
        case 6u: { return 0xfe5163abu; }
        default: { return 0u; }
    }
}

// `quadrant` of a finite number of magnitude 1 or more. Payne and Hanek: x is m * 2^e with an integer m of 24 bits. Bits of 2 / pi
// above 2^(1 - e) change x * 2 / pi by multiples of 4, so m is multiplied by the 96 bits from there on, modulo 2^96. The upper
// two bits of the product are the quadrant.
fn large_quadrant(x: f32) -> vec2<f32> {
    let bits = bitcast<u32>(x) & 0x7fffffffu;
    let m = (bits & 0x7fffffu) | 0x800000u;
    let offset = (bits >> 23u) - 120u; // e - 2, plus 32 so that it is not negative
    let word = (offset >> 5u) - 1u;
    let shift = offset & 31u;
    let next = two_over_pi(word + 1u);
    let after = two_over_pi(word + 2u);
    // Shifts by 32 are two shifts.
    let upper = (two_over_pi(word) << shift) | ((next >> 1u) >> (31u - shift));
    let middle = (next << shift) | ((after >> 1u) >> (31u - shift));
    let lower = (after << shift) | ((two_over_pi(word + 3u) >> 1u) >> (31u - shift));
    let second = m * middle;
    let p1 = high_product(m, lower) + second;
    let p2 = high_product(m, middle) + m * upper + select(0u, 1u, p1 < second);
    var high = (p2 << 2u) | (p1 >> 30u);
    var low = (p1 << 2u) | ((m * lower) >> 30u);
    var number = p2 >> 30u;
    // Fractions above a half are negative fractions of the next quadrant.
    let above = high >= 0x80000000u;
    if (above) {
        low = ~low + 1u;
        high = ~high + select(0u, 1u, low == 0u);
        number += 1u;
    }
    let r = (f32(high) * 2.32830644e-10 + f32(low) * 5.42101086e-20) * 1.57079633;
    let flip = above != (x < 0.0);
    return vec2<f32>(select(r, -r, flip), select(f32(number), -f32(number), x < 0.0));
}

fn sin_core(r: f32) -> f32 {
    let z = r * r;
    var p = 2.75573192e-6;
    p = fma(p, z, -1.98412698e-4);
    p = fma(p, z, 8.33333333e-3);
    p = fma(p, z, -1.66666667e-1);
    return fma(p * z, r, r);
}

fn cos_core(r: f32) -> f32 {
    let z = r * r;
    var p = 2.48015873e-5;
    p = fma(p, z, -1.38888889e-3);
    p = fma(p, z, 4.16666667e-2);
    p = fma(p, z, -0.5);
    return fma(p, z, 1.0);
}

fn sin_of_quadrants(x: f32, offset: u32) -> f32 {
    if (is_nan(x) || is_inf(x)) {
        return from_bits(0x7fc00000u);
    }
    let q = quadrant(x);
    let number = (bitcast<u32>(i32(q.y)) + offset) & 3u;
    let y = select(sin_core(q.x), cos_core(q.x), (number & 1u) == 1u);
    return select(y, -y, number >= 2u);
}

fn sin_f32(x: f32) -> f32 {
    return sin_of_quadrants(x, 0u);
}

fn cos_f32(x: f32) -> f32 {
    return sin_of_quadrants(x, 1u);
}
