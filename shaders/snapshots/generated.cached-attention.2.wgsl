var<storage, read_write> b0: array<vec4<f32>>;
var<storage, read_write> b1: array<f32>;
var<storage, read_write> b2: array<vec4<f32>>;
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
fn power_of_two(n: i32) -> f32 {
    return bitcast<f32>(u32(n + 127) << 23u);
}
fn scale_by_power(x: f32, n: i32) -> f32 {
    let half = n / 2;
    return x * power_of_two(half) * power_of_two(n - half);
}
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
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
let group_number = group.x;
let i = group_number * 256u + local;
if (i >= 64u) {
return;
}
let own_query = i / 16u;
let vector = i % 16u;
let head = own_query % 4u;
let row = own_query / 4u % 1u;
let sequence = own_query / 4u;
let own = ((sequence * 1u + row) * 4u + head) * 64u;
var most = b1[own_query * 2u];
for (var w = 0u; w < 8u; w += 1u) {
let found = w * 4u + own_query;
most = max(most, b1[found * 2u]);
}
var total = 0.0;
var sum = vec4<f32>();
for (var w = 0u; w < 8u; w += 1u) {
let found = w * 4u + own_query;
let weight = exp_f32(b1[found * 2u] - most);
total += weight * b1[found * 2u + 1u];
sum += weight * b0[found * 16u + vector];
}
if (vector < 16u) {
b2[(own) / 4u + vector] = vec4<f32>(sum / total);
}
}
