var<storage, read> b0: array<f32>;
var<storage, read> b1: array<f32>;
var<storage, read> b2: array<f32>;
var<storage, read_write> b3: array<f32>;
// Elementwise programs: every thread computes one element of each result, or several elements at a distance of COUNT,
// or the two f16 elements of a word. All operands are read before the first result is written, so that loads are in
// flight together.
//
// The computation is inserted; without insertion the kernel copies.
//
// Twin in the oracle: core/src/ops/elementwise, core/src/ops/fused.rs.
const COUNT: u32 = 1200u;
const THREADS: u32 = 256u;
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let i = group_number * THREADS + local;
    if (i >= COUNT) {
        return;
    }
    let v1 = b0[i];
    let v2 = b1[i];
    let v3 = v1 * v2;
    let v4 = (i % 40u);
    let v5 = b2[v4];
    let v6 = v3 + v5;
    let v7 = gelu_tanh_f32(v6);
    b3[i] = v7;
}
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
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
fn tanh_f32(x: f32) -> f32 {
    let a = abs(x);
    if (a < 0.15) {
        let z = x * x;
        return fma(x * z, fma(z, fma(z, -17.0 / 315.0, 2.0 / 15.0), -1.0 / 3.0), x);
    }
    let t = 1.0 - 2.0 / (exp_f32(2.0 * min(a, 20.0)) + 1.0);
    return select(select(t, -t, x < 0.0), x, is_nan(x));
}
fn gelu_tanh_f32(x: f32) -> f32 {
    return 0.5 * x * (1.0 + tanh_f32(0.797884561 * fma(0.044715 * x * x, x, x)));
}
