var<storage, read> b0: array<vec4<f32>>;
var<storage, read> b1: array<vec4<f32>>;
var<storage, read> b2: array<vec4<f32>>;
var<storage, read> b3: array<vec4<f32>>;
var<storage, read> b4: array<f32>;
var<storage, read> b5: array<f32>;
var<storage, read_write> b6: array<vec4<f32>>;
var<storage, read_write> b7: array<vec4<f32>>;
fn numerators(x: vec4<f32>) -> vec4<f32> {
    let nan = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u);
    let small = x < vec4<f32>(-87.0);
    return select(select(exp(select(x, vec4<f32>(), small)), vec4<f32>(), small), x, nan);
}
fn fetch_q(batch: u32, row: u32, head: u32, vector: u32) -> vec4<f32> {
let known_row = min(row, 299u);
let known_vector = min(vector, 15u);
return b0[(((batch * 300u + known_row) * 4u + head) * 64u) / 4u + known_vector];
}
fn fetch_k(batch: u32, row: u32, head: u32, vector: u32) -> vec4<f32> {
let known_row = min(row, 309u);
let known_vector = min(vector, 15u);
return b1[(((batch * 310u + known_row) * 2u + head) * 64u) / 4u + known_vector];
}
fn fetch_v(batch: u32, row: u32, head: u32, vector: u32) -> vec4<f32> {
let known_row = min(row, 309u);
let known_vector = min(vector, 15u);
return b2[(((batch * 310u + known_row) * 2u + head) * 64u) / 4u + known_vector];
}
fn fetch_dout(batch: u32, row: u32, head: u32, vector: u32) -> vec4<f32> {
let known_row = min(row, 299u);
let known_vector = min(vector, 15u);
return b3[(((batch * 300u + known_row) * 4u + head) * 64u) / 4u + known_vector];
}
var<workgroup> pool: array<vec4<f32>, 720>;
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
let group_number = group.x;
let tile = group_number / 4u;
let batch = group_number % 4u / 4u;
let head = group_number % 4u;
let kv_head = head / 2u;
let first = tile * 16u;
let last = min(first + 16u, 310u) - 1u;
let down = local / 32u;
let across = local % 32u;
let part = across / 16u;
let piece = across % 16u;
let row = first + down * 4u;
let row_numbers = vec4<u32>(row) + vec4<u32>(0u, 1u, 2u, 3u);
var dk_0_0 = vec4<f32>();
var dk_0_1 = vec4<f32>();
var dk_0_2 = vec4<f32>();
var dk_0_3 = vec4<f32>();
var dv_0_0 = vec4<f32>();
var dv_0_1 = vec4<f32>();
var dv_0_2 = vec4<f32>();
var dv_0_3 = vec4<f32>();
let begin = max(first, 10u) - 10u;
let end = 300u;
let all_from = max(last, 10u) - 10u;
let all_to = 300u;
var column = begin;
var c_0 = fetch_q(batch, column + (local + 0u) / 4u, head, 0u + (local + 0u) % 4u);
var c_1 = fetch_q(batch, column + (local + 128u) / 4u, head, 0u + (local + 128u) % 4u);
var c_2 = fetch_q(batch, column + (local + 256u) / 4u, head, 0u + (local + 256u) % 4u);
var c_3 = fetch_q(batch, column + (local + 384u) / 4u, head, 0u + (local + 384u) % 4u);
var r_0 = fetch_k(batch, first + local / 4u, kv_head, 0u + local % 4u);
loop {
if (column >= end) {
break;
}
let query_0 = column + across + 0u;
let lse_0 = b4[(batch * 4u + head) * 300u + min(query_0, 299u)];
let delta_0 = b5[(batch * 4u + head) * 300u + min(query_0, 299u)];
let query_1 = column + across + 32u;
let lse_1 = b4[(batch * 4u + head) * 300u + min(query_1, 299u)];
let delta_1 = b5[(batch * 4u + head) * 300u + min(query_1, 299u)];
let query_2 = column + across + 64u;
let lse_2 = b4[(batch * 4u + head) * 300u + min(query_2, 299u)];
let delta_2 = b5[(batch * 4u + head) * 300u + min(query_2, 299u)];
let query_3 = column + across + 96u;
let lse_3 = b4[(batch * 4u + head) * 300u + min(query_3, 299u)];
let delta_3 = b5[(batch * 4u + head) * 300u + min(query_3, 299u)];

var s0 = vec4<f32>();
var s1 = vec4<f32>();
var s2 = vec4<f32>();
var s3 = vec4<f32>();
for (var step = 0u; step < 4u; step += 1u) {
pool[(local + 0u) / 4u * 5u + (local + 0u) % 4u] = c_0;
pool[(local + 128u) / 4u * 5u + (local + 128u) % 4u] = c_1;
pool[(local + 256u) / 4u * 5u + (local + 256u) % 4u] = c_2;
pool[(local + 384u) / 4u * 5u + (local + 384u) % 4u] = c_3;
if (local < 64u) {
pool[640u + local / 4u * 5u + local % 4u] = r_0;
}
workgroupBarrier();
if (step + 1u < 4u) {
c_0 = fetch_q(batch, column + (local + 0u) / 4u, head, (step + 1u) * 4u + (local + 0u) % 4u);
c_1 = fetch_q(batch, column + (local + 128u) / 4u, head, (step + 1u) * 4u + (local + 128u) % 4u);
c_2 = fetch_q(batch, column + (local + 256u) / 4u, head, (step + 1u) * 4u + (local + 256u) % 4u);
c_3 = fetch_q(batch, column + (local + 384u) / 4u, head, (step + 1u) * 4u + (local + 384u) % 4u);
r_0 = fetch_k(batch, first + local / 4u, kv_head, (step + 1u) * 4u + local % 4u);
}
if (step + 1u == 4u) {
c_0 = fetch_dout(batch, column + (local + 0u) / 4u, head, 0u + (local + 0u) % 4u);
c_1 = fetch_dout(batch, column + (local + 128u) / 4u, head, 0u + (local + 128u) % 4u);
c_2 = fetch_dout(batch, column + (local + 256u) / 4u, head, 0u + (local + 256u) % 4u);
c_3 = fetch_dout(batch, column + (local + 384u) / 4u, head, 0u + (local + 384u) % 4u);
r_0 = fetch_v(batch, first + local / 4u, kv_head, 0u + local % 4u);
}
for (var d = 0u; d < 4u; d += 1u) {
let a0 = pool[640u + (down * 4u + 0u) * 5u + d];
let b0 = pool[(across + 0u) * 5u + d];
let a1 = pool[640u + (down * 4u + 1u) * 5u + d];
let b1 = pool[(across + 32u) * 5u + d];
let a2 = pool[640u + (down * 4u + 2u) * 5u + d];
let b2 = pool[(across + 64u) * 5u + d];
let a3 = pool[640u + (down * 4u + 3u) * 5u + d];
let b3 = pool[(across + 96u) * 5u + d];
let a_x = vec4<f32>(a0.x, a1.x, a2.x, a3.x);
s0 = fma(a_x, vec4<f32>(b0.x), s0);
s1 = fma(a_x, vec4<f32>(b1.x), s1);
s2 = fma(a_x, vec4<f32>(b2.x), s2);
s3 = fma(a_x, vec4<f32>(b3.x), s3);
let a_y = vec4<f32>(a0.y, a1.y, a2.y, a3.y);
s0 = fma(a_y, vec4<f32>(b0.y), s0);
s1 = fma(a_y, vec4<f32>(b1.y), s1);
s2 = fma(a_y, vec4<f32>(b2.y), s2);
s3 = fma(a_y, vec4<f32>(b3.y), s3);
let a_z = vec4<f32>(a0.z, a1.z, a2.z, a3.z);
s0 = fma(a_z, vec4<f32>(b0.z), s0);
s1 = fma(a_z, vec4<f32>(b1.z), s1);
s2 = fma(a_z, vec4<f32>(b2.z), s2);
s3 = fma(a_z, vec4<f32>(b3.z), s3);
let a_w = vec4<f32>(a0.w, a1.w, a2.w, a3.w);
s0 = fma(a_w, vec4<f32>(b0.w), s0);
s1 = fma(a_w, vec4<f32>(b1.w), s1);
s2 = fma(a_w, vec4<f32>(b2.w), s2);
s3 = fma(a_w, vec4<f32>(b3.w), s3);
}
workgroupBarrier();
}
var t0 = vec4<f32>();
var t1 = vec4<f32>();
var t2 = vec4<f32>();
var t3 = vec4<f32>();
for (var step = 0u; step < 4u; step += 1u) {
pool[(local + 0u) / 4u * 5u + (local + 0u) % 4u] = c_0;
pool[(local + 128u) / 4u * 5u + (local + 128u) % 4u] = c_1;
pool[(local + 256u) / 4u * 5u + (local + 256u) % 4u] = c_2;
pool[(local + 384u) / 4u * 5u + (local + 384u) % 4u] = c_3;
if (local < 64u) {
pool[640u + local / 4u * 5u + local % 4u] = r_0;
}
workgroupBarrier();
if (step + 1u < 4u) {
c_0 = fetch_dout(batch, column + (local + 0u) / 4u, head, (step + 1u) * 4u + (local + 0u) % 4u);
c_1 = fetch_dout(batch, column + (local + 128u) / 4u, head, (step + 1u) * 4u + (local + 128u) % 4u);
c_2 = fetch_dout(batch, column + (local + 256u) / 4u, head, (step + 1u) * 4u + (local + 256u) % 4u);
c_3 = fetch_dout(batch, column + (local + 384u) / 4u, head, (step + 1u) * 4u + (local + 384u) % 4u);
r_0 = fetch_v(batch, first + local / 4u, kv_head, (step + 1u) * 4u + local % 4u);
}
for (var d = 0u; d < 4u; d += 1u) {
let a0 = pool[640u + (down * 4u + 0u) * 5u + d];
let b0 = pool[(across + 0u) * 5u + d];
let a1 = pool[640u + (down * 4u + 1u) * 5u + d];
let b1 = pool[(across + 32u) * 5u + d];
let a2 = pool[640u + (down * 4u + 2u) * 5u + d];
let b2 = pool[(across + 64u) * 5u + d];
let a3 = pool[640u + (down * 4u + 3u) * 5u + d];
let b3 = pool[(across + 96u) * 5u + d];
let a_x = vec4<f32>(a0.x, a1.x, a2.x, a3.x);
t0 = fma(a_x, vec4<f32>(b0.x), t0);
t1 = fma(a_x, vec4<f32>(b1.x), t1);
t2 = fma(a_x, vec4<f32>(b2.x), t2);
t3 = fma(a_x, vec4<f32>(b3.x), t3);
let a_y = vec4<f32>(a0.y, a1.y, a2.y, a3.y);
t0 = fma(a_y, vec4<f32>(b0.y), t0);
t1 = fma(a_y, vec4<f32>(b1.y), t1);
t2 = fma(a_y, vec4<f32>(b2.y), t2);
t3 = fma(a_y, vec4<f32>(b3.y), t3);
let a_z = vec4<f32>(a0.z, a1.z, a2.z, a3.z);
t0 = fma(a_z, vec4<f32>(b0.z), t0);
t1 = fma(a_z, vec4<f32>(b1.z), t1);
t2 = fma(a_z, vec4<f32>(b2.z), t2);
t3 = fma(a_z, vec4<f32>(b3.z), t3);
let a_w = vec4<f32>(a0.w, a1.w, a2.w, a3.w);
t0 = fma(a_w, vec4<f32>(b0.w), t0);
t1 = fma(a_w, vec4<f32>(b1.w), t1);
t2 = fma(a_w, vec4<f32>(b2.w), t2);
t3 = fma(a_w, vec4<f32>(b3.w), t3);
}
workgroupBarrier();
}
var v_0 = fetch_q(batch, column + 0u + (local + 0u) / 16u, head, 0u + (local + 0u) % 16u);
var v_1 = fetch_q(batch, column + 0u + (local + 128u) / 16u, head, 0u + (local + 128u) % 16u);
var v_2 = fetch_q(batch, column + 0u + (local + 256u) / 16u, head, 0u + (local + 256u) % 16u);
var v_3 = fetch_q(batch, column + 0u + (local + 384u) / 16u, head, 0u + (local + 384u) % 16u);
s0 = numerators(s0 * (1.25e-1f) - vec4<f32>(lse_0));
t0 = s0 * (t0 - vec4<f32>(delta_0)) * (1.25e-1f);
s1 = numerators(s1 * (1.25e-1f) - vec4<f32>(lse_1));
t1 = s1 * (t1 - vec4<f32>(delta_1)) * (1.25e-1f);
s2 = numerators(s2 * (1.25e-1f) - vec4<f32>(lse_2));
t2 = s2 * (t2 - vec4<f32>(delta_2)) * (1.25e-1f);
s3 = numerators(s3 * (1.25e-1f) - vec4<f32>(lse_3));
t3 = s3 * (t3 - vec4<f32>(delta_3)) * (1.25e-1f);
if (column < all_from || column + 128u > all_to) {
let seen_0 = (vec4<u32>(query_0) < vec4<u32>(end)) & (row_numbers < vec4<u32>(query_0) + vec4<u32>(11u));
s0 = select(vec4<f32>(), s0, seen_0);
t0 = select(vec4<f32>(), t0, seen_0);
let seen_1 = (vec4<u32>(query_1) < vec4<u32>(end)) & (row_numbers < vec4<u32>(query_1) + vec4<u32>(11u));
s1 = select(vec4<f32>(), s1, seen_1);
t1 = select(vec4<f32>(), t1, seen_1);
let seen_2 = (vec4<u32>(query_2) < vec4<u32>(end)) & (row_numbers < vec4<u32>(query_2) + vec4<u32>(11u));
s2 = select(vec4<f32>(), s2, seen_2);
t2 = select(vec4<f32>(), t2, seen_2);
let seen_3 = (vec4<u32>(query_3) < vec4<u32>(end)) & (row_numbers < vec4<u32>(query_3) + vec4<u32>(11u));
s3 = select(vec4<f32>(), s3, seen_3);
t3 = select(vec4<f32>(), t3, seen_3);
}
pool[(local + 0u)] = v_0;
pool[(local + 128u)] = v_1;
pool[(local + 256u)] = v_2;
pool[(local + 384u)] = v_3;
pool[512u + across * 5u + down] = t0;
workgroupBarrier();
v_0 = fetch_dout(batch, column + 0u + (local + 0u) / 16u, head, 0u + (local + 0u) % 16u);
v_1 = fetch_dout(batch, column + 0u + (local + 128u) / 16u, head, 0u + (local + 128u) % 16u);
v_2 = fetch_dout(batch, column + 0u + (local + 256u) / 16u, head, 0u + (local + 256u) % 16u);
v_3 = fetch_dout(batch, column + 0u + (local + 384u) / 16u, head, 0u + (local + 384u) % 16u);
for (var i = part; i < 32u; i += 2u) {
let value = pool[i * 16u + piece];
let weights = pool[512u + i * 5u + down];
dk_0_0 = fma(vec4<f32>(weights[0]), value, dk_0_0);
dk_0_1 = fma(vec4<f32>(weights[1]), value, dk_0_1);
dk_0_2 = fma(vec4<f32>(weights[2]), value, dk_0_2);
dk_0_3 = fma(vec4<f32>(weights[3]), value, dk_0_3);
}
workgroupBarrier();
pool[(local + 0u)] = v_0;
pool[(local + 128u)] = v_1;
pool[(local + 256u)] = v_2;
pool[(local + 384u)] = v_3;
pool[512u + across * 5u + down] = s0;
workgroupBarrier();
v_0 = fetch_q(batch, column + 32u + (local + 0u) / 16u, head, 0u + (local + 0u) % 16u);
v_1 = fetch_q(batch, column + 32u + (local + 128u) / 16u, head, 0u + (local + 128u) % 16u);
v_2 = fetch_q(batch, column + 32u + (local + 256u) / 16u, head, 0u + (local + 256u) % 16u);
v_3 = fetch_q(batch, column + 32u + (local + 384u) / 16u, head, 0u + (local + 384u) % 16u);
for (var i = part; i < 32u; i += 2u) {
let value = pool[i * 16u + piece];
let weights = pool[512u + i * 5u + down];
dv_0_0 = fma(vec4<f32>(weights[0]), value, dv_0_0);
dv_0_1 = fma(vec4<f32>(weights[1]), value, dv_0_1);
dv_0_2 = fma(vec4<f32>(weights[2]), value, dv_0_2);
dv_0_3 = fma(vec4<f32>(weights[3]), value, dv_0_3);
}
workgroupBarrier();
if (column + 32u < end) {
pool[(local + 0u)] = v_0;
pool[(local + 128u)] = v_1;
pool[(local + 256u)] = v_2;
pool[(local + 384u)] = v_3;
pool[512u + across * 5u + down] = t1;
workgroupBarrier();
v_0 = fetch_dout(batch, column + 32u + (local + 0u) / 16u, head, 0u + (local + 0u) % 16u);
v_1 = fetch_dout(batch, column + 32u + (local + 128u) / 16u, head, 0u + (local + 128u) % 16u);
v_2 = fetch_dout(batch, column + 32u + (local + 256u) / 16u, head, 0u + (local + 256u) % 16u);
v_3 = fetch_dout(batch, column + 32u + (local + 384u) / 16u, head, 0u + (local + 384u) % 16u);
for (var i = part; i < 32u; i += 2u) {
let value = pool[i * 16u + piece];
let weights = pool[512u + i * 5u + down];
dk_0_0 = fma(vec4<f32>(weights[0]), value, dk_0_0);
dk_0_1 = fma(vec4<f32>(weights[1]), value, dk_0_1);
dk_0_2 = fma(vec4<f32>(weights[2]), value, dk_0_2);
dk_0_3 = fma(vec4<f32>(weights[3]), value, dk_0_3);
}
workgroupBarrier();
pool[(local + 0u)] = v_0;
pool[(local + 128u)] = v_1;
pool[(local + 256u)] = v_2;
pool[(local + 384u)] = v_3;
pool[512u + across * 5u + down] = s1;
workgroupBarrier();
v_0 = fetch_q(batch, column + 64u + (local + 0u) / 16u, head, 0u + (local + 0u) % 16u);
v_1 = fetch_q(batch, column + 64u + (local + 128u) / 16u, head, 0u + (local + 128u) % 16u);
v_2 = fetch_q(batch, column + 64u + (local + 256u) / 16u, head, 0u + (local + 256u) % 16u);
v_3 = fetch_q(batch, column + 64u + (local + 384u) / 16u, head, 0u + (local + 384u) % 16u);
for (var i = part; i < 32u; i += 2u) {
let value = pool[i * 16u + piece];
let weights = pool[512u + i * 5u + down];
dv_0_0 = fma(vec4<f32>(weights[0]), value, dv_0_0);
dv_0_1 = fma(vec4<f32>(weights[1]), value, dv_0_1);
dv_0_2 = fma(vec4<f32>(weights[2]), value, dv_0_2);
dv_0_3 = fma(vec4<f32>(weights[3]), value, dv_0_3);
}
workgroupBarrier();
if (column + 64u < end) {
pool[(local + 0u)] = v_0;
pool[(local + 128u)] = v_1;
pool[(local + 256u)] = v_2;
pool[(local + 384u)] = v_3;
pool[512u + across * 5u + down] = t2;
workgroupBarrier();
v_0 = fetch_dout(batch, column + 64u + (local + 0u) / 16u, head, 0u + (local + 0u) % 16u);
v_1 = fetch_dout(batch, column + 64u + (local + 128u) / 16u, head, 0u + (local + 128u) % 16u);
v_2 = fetch_dout(batch, column + 64u + (local + 256u) / 16u, head, 0u + (local + 256u) % 16u);
v_3 = fetch_dout(batch, column + 64u + (local + 384u) / 16u, head, 0u + (local + 384u) % 16u);
for (var i = part; i < 32u; i += 2u) {
let value = pool[i * 16u + piece];
let weights = pool[512u + i * 5u + down];
dk_0_0 = fma(vec4<f32>(weights[0]), value, dk_0_0);
dk_0_1 = fma(vec4<f32>(weights[1]), value, dk_0_1);
dk_0_2 = fma(vec4<f32>(weights[2]), value, dk_0_2);
dk_0_3 = fma(vec4<f32>(weights[3]), value, dk_0_3);
}
workgroupBarrier();
pool[(local + 0u)] = v_0;
pool[(local + 128u)] = v_1;
pool[(local + 256u)] = v_2;
pool[(local + 384u)] = v_3;
pool[512u + across * 5u + down] = s2;
workgroupBarrier();
v_0 = fetch_q(batch, column + 96u + (local + 0u) / 16u, head, 0u + (local + 0u) % 16u);
v_1 = fetch_q(batch, column + 96u + (local + 128u) / 16u, head, 0u + (local + 128u) % 16u);
v_2 = fetch_q(batch, column + 96u + (local + 256u) / 16u, head, 0u + (local + 256u) % 16u);
v_3 = fetch_q(batch, column + 96u + (local + 384u) / 16u, head, 0u + (local + 384u) % 16u);
for (var i = part; i < 32u; i += 2u) {
let value = pool[i * 16u + piece];
let weights = pool[512u + i * 5u + down];
dv_0_0 = fma(vec4<f32>(weights[0]), value, dv_0_0);
dv_0_1 = fma(vec4<f32>(weights[1]), value, dv_0_1);
dv_0_2 = fma(vec4<f32>(weights[2]), value, dv_0_2);
dv_0_3 = fma(vec4<f32>(weights[3]), value, dv_0_3);
}
workgroupBarrier();
if (column + 96u < end) {
pool[(local + 0u)] = v_0;
pool[(local + 128u)] = v_1;
pool[(local + 256u)] = v_2;
pool[(local + 384u)] = v_3;
pool[512u + across * 5u + down] = t3;
workgroupBarrier();
v_0 = fetch_dout(batch, column + 96u + (local + 0u) / 16u, head, 0u + (local + 0u) % 16u);
v_1 = fetch_dout(batch, column + 96u + (local + 128u) / 16u, head, 0u + (local + 128u) % 16u);
v_2 = fetch_dout(batch, column + 96u + (local + 256u) / 16u, head, 0u + (local + 256u) % 16u);
v_3 = fetch_dout(batch, column + 96u + (local + 384u) / 16u, head, 0u + (local + 384u) % 16u);
for (var i = part; i < 32u; i += 2u) {
let value = pool[i * 16u + piece];
let weights = pool[512u + i * 5u + down];
dk_0_0 = fma(vec4<f32>(weights[0]), value, dk_0_0);
dk_0_1 = fma(vec4<f32>(weights[1]), value, dk_0_1);
dk_0_2 = fma(vec4<f32>(weights[2]), value, dk_0_2);
dk_0_3 = fma(vec4<f32>(weights[3]), value, dk_0_3);
}
workgroupBarrier();
pool[(local + 0u)] = v_0;
pool[(local + 128u)] = v_1;
pool[(local + 256u)] = v_2;
pool[(local + 384u)] = v_3;
pool[512u + across * 5u + down] = s3;
workgroupBarrier();
if (column + 128u < end) {
c_0 = fetch_q(batch, column + 128u + (local + 0u) / 4u, head, 0u + (local + 0u) % 4u);
c_1 = fetch_q(batch, column + 128u + (local + 128u) / 4u, head, 0u + (local + 128u) % 4u);
c_2 = fetch_q(batch, column + 128u + (local + 256u) / 4u, head, 0u + (local + 256u) % 4u);
c_3 = fetch_q(batch, column + 128u + (local + 384u) / 4u, head, 0u + (local + 384u) % 4u);
r_0 = fetch_k(batch, first + local / 4u, kv_head, 0u + local % 4u);
}
for (var i = part; i < 32u; i += 2u) {
let value = pool[i * 16u + piece];
let weights = pool[512u + i * 5u + down];
dv_0_0 = fma(vec4<f32>(weights[0]), value, dv_0_0);
dv_0_1 = fma(vec4<f32>(weights[1]), value, dv_0_1);
dv_0_2 = fma(vec4<f32>(weights[2]), value, dv_0_2);
dv_0_3 = fma(vec4<f32>(weights[3]), value, dv_0_3);
}
workgroupBarrier();
}
}
}
column += 128u;
}
if (part >= 1u && part < 2u) {
pool[(down * 4u + 0u) * 16u + across % 16u] = dk_0_0;
pool[(down * 4u + 1u) * 16u + across % 16u] = dk_0_1;
pool[(down * 4u + 2u) * 16u + across % 16u] = dk_0_2;
pool[(down * 4u + 3u) * 16u + across % 16u] = dk_0_3;
}
workgroupBarrier();
if (part < 1u) {
dk_0_0 += pool[(down * 4u + 0u) * 16u + across % 16u];
dk_0_1 += pool[(down * 4u + 1u) * 16u + across % 16u];
dk_0_2 += pool[(down * 4u + 2u) * 16u + across % 16u];
dk_0_3 += pool[(down * 4u + 3u) * 16u + across % 16u];
}
workgroupBarrier();
if (part >= 1u && part < 2u) {
pool[(down * 4u + 0u) * 16u + across % 16u] = dv_0_0;
pool[(down * 4u + 1u) * 16u + across % 16u] = dv_0_1;
pool[(down * 4u + 2u) * 16u + across % 16u] = dv_0_2;
pool[(down * 4u + 3u) * 16u + across % 16u] = dv_0_3;
}
workgroupBarrier();
if (part < 1u) {
dv_0_0 += pool[(down * 4u + 0u) * 16u + across % 16u];
dv_0_1 += pool[(down * 4u + 1u) * 16u + across % 16u];
dv_0_2 += pool[(down * 4u + 2u) * 16u + across % 16u];
dv_0_3 += pool[(down * 4u + 3u) * 16u + across % 16u];
}
workgroupBarrier();
if (part == 0u) {
if (row + 0u < 310u) {
if ((0u + piece) < 16u) {
b6[(((batch * 310u + (row + 0u)) * 4u + head) * 64u) / 4u + (0u + piece)] = dk_0_0;
}
}
if (row + 1u < 310u) {
if ((0u + piece) < 16u) {
b6[(((batch * 310u + (row + 1u)) * 4u + head) * 64u) / 4u + (0u + piece)] = dk_0_1;
}
}
if (row + 2u < 310u) {
if ((0u + piece) < 16u) {
b6[(((batch * 310u + (row + 2u)) * 4u + head) * 64u) / 4u + (0u + piece)] = dk_0_2;
}
}
if (row + 3u < 310u) {
if ((0u + piece) < 16u) {
b6[(((batch * 310u + (row + 3u)) * 4u + head) * 64u) / 4u + (0u + piece)] = dk_0_3;
}
}
if (row + 0u < 310u) {
if ((0u + piece) < 16u) {
b7[(((batch * 310u + (row + 0u)) * 4u + head) * 64u) / 4u + (0u + piece)] = dv_0_0;
}
}
if (row + 1u < 310u) {
if ((0u + piece) < 16u) {
b7[(((batch * 310u + (row + 1u)) * 4u + head) * 64u) / 4u + (0u + piece)] = dv_0_1;
}
}
if (row + 2u < 310u) {
if ((0u + piece) < 16u) {
b7[(((batch * 310u + (row + 2u)) * 4u + head) * 64u) / 4u + (0u + piece)] = dv_0_2;
}
}
if (row + 3u < 310u) {
if ((0u + piece) < 16u) {
b7[(((batch * 310u + (row + 3u)) * 4u + head) * 64u) / 4u + (0u + piece)] = dv_0_3;
}
}
}
}
