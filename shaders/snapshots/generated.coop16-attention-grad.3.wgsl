var<storage, read> b0: array<f32>;
var<storage, read_write> b1: array<f32>;
var<storage, read> b2: array<f32>;
var<storage, read_write> b3: array<f32>;
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
let group_number = group.x;
let i = group_number * 256u + local;
if (i >= 39680u) {
return;
}
let start = i / 64u * 128u + i % 64u;
var sum_0 = 0.0;
for (var head = 0u; head < 2u; head += 1u) {
sum_0 += b0[start + head * 64u];
}
b1[i] = sum_0;
var sum_1 = 0.0;
for (var head = 0u; head < 2u; head += 1u) {
sum_1 += b2[start + head * 64u];
}
b3[i] = sum_1;
}
