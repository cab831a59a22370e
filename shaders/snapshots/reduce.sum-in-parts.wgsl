var<storage, read> b0: array<f32>;
var<storage, read_write> b1: array<f32>;
var<workgroup> shared_f32: array<f32, 256>;
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
let group_number = group.x;
let part = group_number % 256u;
let row_group = group_number / 256u;
let row_here = local / 256u;
let lane = local % 256u;
let wanted = row_group * 1u + row_here;
let exists = wanted <= 0u;
let row = min(wanted, 0u);
let first = part * 8192u;
let end = min(first + 8192u, 2097152u);
var v1 = (0e0f);
var v2 = (0e0f);
var v3 = (0e0f);
var v4 = (0e0f);
var v9 = first + lane;
for (; v9 + 768u < end; v9 += 1024u) {
{
let column = v9 + 0u;
let i = column;
let v5 = b0[i];
v1 = v1 + v5;
}
{
let column = v9 + 256u;
let i = column;
let v6 = b0[i];
v2 = v2 + v6;
}
{
let column = v9 + 512u;
let i = column;
let v7 = b0[i];
v3 = v3 + v7;
}
{
let column = v9 + 768u;
let i = column;
let v8 = b0[i];
v4 = v4 + v8;
}
}
for (var column = v9; column < end; column += 256u) {
let i = column;
let v5 = b0[i];
v1 = v1 + v5;
}
v1 = v1 + v2;
v1 = v1 + v3;
v1 = v1 + v4;
workgroupBarrier();
shared_f32[(lane) * 1u + row_here] = v1;
workgroupBarrier();
if (lane < 16u) {
var joined = shared_f32[(lane) * 1u + row_here];
for (var other = lane + 16u; other < 256u; other += 16u) {
joined = joined + shared_f32[(other) * 1u + row_here];
}
shared_f32[(lane) * 1u + row_here] = joined;
}
workgroupBarrier();
let v10 = ((((shared_f32[(0u) * 1u + row_here] + shared_f32[(1u) * 1u + row_here]) + (shared_f32[(2u) * 1u + row_here] + shared_f32[(3u) * 1u + row_here])) + ((shared_f32[(4u) * 1u + row_here] + shared_f32[(5u) * 1u + row_here]) + (shared_f32[(6u) * 1u + row_here] + shared_f32[(7u) * 1u + row_here]))) + (((shared_f32[(8u) * 1u + row_here] + shared_f32[(9u) * 1u + row_here]) + (shared_f32[(10u) * 1u + row_here] + shared_f32[(11u) * 1u + row_here])) + ((shared_f32[(12u) * 1u + row_here] + shared_f32[(13u) * 1u + row_here]) + (shared_f32[(14u) * 1u + row_here] + shared_f32[(15u) * 1u + row_here]))));
if (exists && lane == 0u) {
b1[row * 256u + part] = v10;
}
}
