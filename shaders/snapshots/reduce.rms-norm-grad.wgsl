var<storage, read> b0: array<f32>;
var<storage, read> b1: array<f32>;
var<storage, read> b2: array<f32>;
var<storage, read> b3: array<f32>;
var<storage, read_write> b4: array<f32>;
var<storage, read_write> b5: array<f32>;
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
let v2 = b1[element_0];
let v3 = v1 * v2;
let v4 = b2[element_0];
let v5 = b3[0u];
let v6 = v4 * v5;
let v7 = v3 * v6;
let v8 = b0[element_1];
let v9 = b1[element_1];
let v10 = v8 * v9;
let v11 = b2[element_1];
let v12 = v11 * v5;
let v13 = v10 * v12;
let v14 = b0[element_2];
let v15 = b1[element_2];
let v16 = v14 * v15;
let v17 = b2[element_2];
let v18 = v17 * v5;
let v19 = v16 * v18;
let v20 = ((v7 + v13) + v19);
let v21 = v20;
let v22 = v21 * (3.3333334e-1f);
if (exists) {
let v23 = v6 * v22;
let v24 = v3 - v23;
let v25 = v24 * v5;
let v26 = v1 * v6;
b4[element_0] = v25;
b5[element_0] = v26;
}
if (exists) {
let v27 = v12 * v22;
let v28 = v10 - v27;
let v29 = v28 * v5;
let v30 = v8 * v12;
b4[element_1] = v29;
b5[element_1] = v30;
}
if (exists) {
let v31 = v18 * v22;
let v32 = v16 - v31;
let v33 = v32 * v5;
let v34 = v14 * v18;
b4[element_2] = v33;
b5[element_2] = v34;
}
}
