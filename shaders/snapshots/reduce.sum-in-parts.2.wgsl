var<storage, read> b0: array<f32>;
var<storage, read_write> b1: array<f32>;
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
let group_number = group.x;
let row = group_number * 256u + local;
if (row >= 1u) {
return;
}
var v1 = (0e0f);
for (var part = 0u; part < 256u; part += 1u) {
v1 = v1 + b0[row * 256u + part];
}
let v2 = v1;
if (true) {
b1[row] = v2;
}
}
