var<storage, read> b0: array<f32>;
var<storage, read> b1: array<f32>;
var<storage, read_write> b2: array<f32>;
var<storage, read_write> b3: array<f32>;
fn is_inf(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u;
}
fn sqrt_f32(x: f32) -> f32 {
    // Drivers may compute x / sqrt(x).
    return select(sqrt(x), x, x == 0.0 || is_inf(x) && x > 0.0);
}
fn rsqrt_f32(x: f32) -> f32 {
    return 1.0 / sqrt_f32(x);
}
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
let group_number = group.x;
let row_here = local;
let lane = 0u;
let wanted = group_number * 256u + row_here;
let exists = wanted <= 0u;
let row = min(wanted, 0u);
let column_here_0 = lane + 0u;
let element_0 = column_here_0;
let column_here_1 = lane + 1u;
let element_1 = column_here_1;
let column_here_2 = lane + 2u;
let element_2 = column_here_2;
let v1 = b0[element_0];
let v2 = v1 * v1;
let v3 = b0[element_1];
let v4 = v3 * v3;
let v5 = b0[element_2];
let v6 = v5 * v5;
let v7 = ((v2 + v4) + v6);
let v8 = v7;
let v9 = v8 * (3.3333334e-1f);
let v10 = v9 + (1e-5f);
let v11 = rsqrt_f32(v10);
if (exists) {
let v12 = v1 * v11;
let v13 = b1[element_0];
let v14 = v12 * v13;
b2[element_0] = v14;
}
if (exists) {
let v15 = v3 * v11;
let v16 = b1[element_1];
let v17 = v15 * v16;
b2[element_1] = v17;
}
if (exists) {
let v18 = v5 * v11;
let v19 = b1[element_2];
let v20 = v18 * v19;
b2[element_2] = v20;
}
if (exists && lane == 0u) {
b3[row] = v11;
}
}
