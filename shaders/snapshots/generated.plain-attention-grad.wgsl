var<storage, read> b0: array<vec4<f32>>;
var<storage, read> b1: array<vec4<f32>>;
var<storage, read> b2: array<vec4<f32>>;
var<storage, read> b3: array<vec4<f32>>;
var<storage, read> b4: array<f32>;
var<storage, read> b5: array<f32>;
var<storage, read_write> b6: array<vec4<f32>>;
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
let tile = 18u - group_number / 4u;
let batch = group_number % 4u / 4u;
let head = group_number % 4u;
let kv_head = head / 2u;
let first = tile * 16u;
let last = min(first + 16u, 300u) - 1u;
let down = local / 32u;
let across = local % 32u;
let part = across / 16u;
let piece = across % 16u;
let row = first + down * 4u;
let row_numbers = vec4<u32>(row) + vec4<u32>(0u, 1u, 2u, 3u);
var dq_0_0 = vec4<f32>();
var dq_0_1 = vec4<f32>();
var dq_0_2 = vec4<f32>();
var dq_0_3 = vec4<f32>();
let shift = 11u;
let begin = 0u;
let end = last + shift;
let all_from = 0u;
let all_to = first + shift;
let seen_to = min(row_numbers, vec4<u32>(299u)) + vec4<u32>(shift);
let seen_from = vec4<u32>();
let lse = vec4<f32>(b4[(batch * 4u + head) * 300u + min(row + 0u, 299u)], b4[(batch * 4u + head) * 300u + min(row + 1u, 299u)], b4[(batch * 4u + head) * 300u + min(row + 2u, 299u)], b4[(batch * 4u + head) * 300u + min(row + 3u, 299u)]);
let delta = vec4<f32>(b5[(batch * 4u + head) * 300u + min(row + 0u, 299u)], b5[(batch * 4u + head) * 300u + min(row + 1u, 299u)], b5[(batch * 4u + head) * 300u + min(row + 2u, 299u)], b5[(batch * 4u + head) * 300u + min(row + 3u, 299u)]);
var column = begin;
var c_0 = fetch_k(batch, column + (local + 0u) / 4u, kv_head, 0u + (local + 0u) % 4u);
var c_1 = fetch_k(batch, column + (local + 128u) / 4u, kv_head, 0u + (local + 128u) % 4u);
var c_2 = fetch_k(batch, column + (local + 256u) / 4u, kv_head, 0u + (local + 256u) % 4u);
var c_3 = fetch_k(batch, column + (local + 384u) / 4u, kv_head, 0u + (local + 384u) % 4u);
var r_0 = fetch_q(batch, first + local / 4u, head, 0u + local % 4u);
loop {
if (column >= end) {
break;
}

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
c_0 = fetch_k(batch, column + (local + 0u) / 4u, kv_head, (step + 1u) * 4u + (local + 0u) % 4u);
c_1 = fetch_k(batch, column + (local + 128u) / 4u, kv_head, (step + 1u) * 4u + (local + 128u) % 4u);
c_2 = fetch_k(batch, column + (local + 256u) / 4u, kv_head, (step + 1u) * 4u + (local + 256u) % 4u);
c_3 = fetch_k(batch, column + (local + 384u) / 4u, kv_head, (step + 1u) * 4u + (local + 384u) % 4u);
r_0 = fetch_q(batch, first + local / 4u, head, (step + 1u) * 4u + local % 4u);
}
if (step + 1u == 4u) {
c_0 = fetch_v(batch, column + (local + 0u) / 4u, kv_head, 0u + (local + 0u) % 4u);
c_1 = fetch_v(batch, column + (local + 128u) / 4u, kv_head, 0u + (local + 128u) % 4u);
c_2 = fetch_v(batch, column + (local + 256u) / 4u, kv_head, 0u + (local + 256u) % 4u);
c_3 = fetch_v(batch, column + (local + 384u) / 4u, kv_head, 0u + (local + 384u) % 4u);
r_0 = fetch_dout(batch, first + local / 4u, head, 0u + local % 4u);
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
c_0 = fetch_v(batch, column + (local + 0u) / 4u, kv_head, (step + 1u) * 4u + (local + 0u) % 4u);
c_1 = fetch_v(batch, column + (local + 128u) / 4u, kv_head, (step + 1u) * 4u + (local + 128u) % 4u);
c_2 = fetch_v(batch, column + (local + 256u) / 4u, kv_head, (step + 1u) * 4u + (local + 256u) % 4u);
c_3 = fetch_v(batch, column + (local + 384u) / 4u, kv_head, (step + 1u) * 4u + (local + 384u) % 4u);
r_0 = fetch_dout(batch, first + local / 4u, head, (step + 1u) * 4u + local % 4u);
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
var v_0 = fetch_k(batch, column + 0u + (local + 0u) / 16u, kv_head, 0u + (local + 0u) % 16u);
var v_1 = fetch_k(batch, column + 0u + (local + 128u) / 16u, kv_head, 0u + (local + 128u) % 16u);
var v_2 = fetch_k(batch, column + 0u + (local + 256u) / 16u, kv_head, 0u + (local + 256u) % 16u);
var v_3 = fetch_k(batch, column + 0u + (local + 384u) / 16u, kv_head, 0u + (local + 384u) % 16u);
t0 = numerators(s0 * (1.25e-1f) - lse) * (t0 - delta) * (1.25e-1f);
t1 = numerators(s1 * (1.25e-1f) - lse) * (t1 - delta) * (1.25e-1f);
t2 = numerators(s2 * (1.25e-1f) - lse) * (t2 - delta) * (1.25e-1f);
t3 = numerators(s3 * (1.25e-1f) - lse) * (t3 - delta) * (1.25e-1f);
if (column < all_from || column + 128u > all_to) {
let key_0 = vec4<u32>(column + across + 0u);
t0 = select(vec4<f32>(), t0, (key_0 >= seen_from) & (key_0 < seen_to));
let key_1 = vec4<u32>(column + across + 32u);
t1 = select(vec4<f32>(), t1, (key_1 >= seen_from) & (key_1 < seen_to));
let key_2 = vec4<u32>(column + across + 64u);
t2 = select(vec4<f32>(), t2, (key_2 >= seen_from) & (key_2 < seen_to));
let key_3 = vec4<u32>(column + across + 96u);
t3 = select(vec4<f32>(), t3, (key_3 >= seen_from) & (key_3 < seen_to));
}
pool[(local + 0u)] = v_0;
pool[(local + 128u)] = v_1;
pool[(local + 256u)] = v_2;
pool[(local + 384u)] = v_3;
pool[512u + across * 5u + down] = t0;
workgroupBarrier();
v_0 = fetch_k(batch, column + 32u + (local + 0u) / 16u, kv_head, 0u + (local + 0u) % 16u);
v_1 = fetch_k(batch, column + 32u + (local + 128u) / 16u, kv_head, 0u + (local + 128u) % 16u);
v_2 = fetch_k(batch, column + 32u + (local + 256u) / 16u, kv_head, 0u + (local + 256u) % 16u);
v_3 = fetch_k(batch, column + 32u + (local + 384u) / 16u, kv_head, 0u + (local + 384u) % 16u);
for (var i = part; i < 32u; i += 2u) {
let value = pool[i * 16u + piece];
let weights = pool[512u + i * 5u + down];
dq_0_0 = fma(vec4<f32>(weights[0]), value, dq_0_0);
dq_0_1 = fma(vec4<f32>(weights[1]), value, dq_0_1);
dq_0_2 = fma(vec4<f32>(weights[2]), value, dq_0_2);
dq_0_3 = fma(vec4<f32>(weights[3]), value, dq_0_3);
}
workgroupBarrier();
if (column + 32u < end) {
pool[(local + 0u)] = v_0;
pool[(local + 128u)] = v_1;
pool[(local + 256u)] = v_2;
pool[(local + 384u)] = v_3;
pool[512u + across * 5u + down] = t1;
workgroupBarrier();
v_0 = fetch_k(batch, column + 64u + (local + 0u) / 16u, kv_head, 0u + (local + 0u) % 16u);
v_1 = fetch_k(batch, column + 64u + (local + 128u) / 16u, kv_head, 0u + (local + 128u) % 16u);
v_2 = fetch_k(batch, column + 64u + (local + 256u) / 16u, kv_head, 0u + (local + 256u) % 16u);
v_3 = fetch_k(batch, column + 64u + (local + 384u) / 16u, kv_head, 0u + (local + 384u) % 16u);
for (var i = part; i < 32u; i += 2u) {
let value = pool[i * 16u + piece];
let weights = pool[512u + i * 5u + down];
dq_0_0 = fma(vec4<f32>(weights[0]), value, dq_0_0);
dq_0_1 = fma(vec4<f32>(weights[1]), value, dq_0_1);
dq_0_2 = fma(vec4<f32>(weights[2]), value, dq_0_2);
dq_0_3 = fma(vec4<f32>(weights[3]), value, dq_0_3);
}
workgroupBarrier();
if (column + 64u < end) {
pool[(local + 0u)] = v_0;
pool[(local + 128u)] = v_1;
pool[(local + 256u)] = v_2;
pool[(local + 384u)] = v_3;
pool[512u + across * 5u + down] = t2;
workgroupBarrier();
v_0 = fetch_k(batch, column + 96u + (local + 0u) / 16u, kv_head, 0u + (local + 0u) % 16u);
v_1 = fetch_k(batch, column + 96u + (local + 128u) / 16u, kv_head, 0u + (local + 128u) % 16u);
v_2 = fetch_k(batch, column + 96u + (local + 256u) / 16u, kv_head, 0u + (local + 256u) % 16u);
v_3 = fetch_k(batch, column + 96u + (local + 384u) / 16u, kv_head, 0u + (local + 384u) % 16u);
for (var i = part; i < 32u; i += 2u) {
let value = pool[i * 16u + piece];
let weights = pool[512u + i * 5u + down];
dq_0_0 = fma(vec4<f32>(weights[0]), value, dq_0_0);
dq_0_1 = fma(vec4<f32>(weights[1]), value, dq_0_1);
dq_0_2 = fma(vec4<f32>(weights[2]), value, dq_0_2);
dq_0_3 = fma(vec4<f32>(weights[3]), value, dq_0_3);
}
workgroupBarrier();
if (column + 96u < end) {
pool[(local + 0u)] = v_0;
pool[(local + 128u)] = v_1;
pool[(local + 256u)] = v_2;
pool[(local + 384u)] = v_3;
pool[512u + across * 5u + down] = t3;
workgroupBarrier();
if (column + 128u < end) {
c_0 = fetch_k(batch, column + 128u + (local + 0u) / 4u, kv_head, 0u + (local + 0u) % 4u);
c_1 = fetch_k(batch, column + 128u + (local + 128u) / 4u, kv_head, 0u + (local + 128u) % 4u);
c_2 = fetch_k(batch, column + 128u + (local + 256u) / 4u, kv_head, 0u + (local + 256u) % 4u);
c_3 = fetch_k(batch, column + 128u + (local + 384u) / 4u, kv_head, 0u + (local + 384u) % 4u);
r_0 = fetch_q(batch, first + local / 4u, head, 0u + local % 4u);
}
for (var i = part; i < 32u; i += 2u) {
let value = pool[i * 16u + piece];
let weights = pool[512u + i * 5u + down];
dq_0_0 = fma(vec4<f32>(weights[0]), value, dq_0_0);
dq_0_1 = fma(vec4<f32>(weights[1]), value, dq_0_1);
dq_0_2 = fma(vec4<f32>(weights[2]), value, dq_0_2);
dq_0_3 = fma(vec4<f32>(weights[3]), value, dq_0_3);
}
workgroupBarrier();
}
}
}
column += 128u;
}
if (part >= 1u && part < 2u) {
pool[(down * 4u + 0u) * 16u + across % 16u] = dq_0_0;
pool[(down * 4u + 1u) * 16u + across % 16u] = dq_0_1;
pool[(down * 4u + 2u) * 16u + across % 16u] = dq_0_2;
pool[(down * 4u + 3u) * 16u + across % 16u] = dq_0_3;
}
workgroupBarrier();
if (part < 1u) {
dq_0_0 += pool[(down * 4u + 0u) * 16u + across % 16u];
dq_0_1 += pool[(down * 4u + 1u) * 16u + across % 16u];
dq_0_2 += pool[(down * 4u + 2u) * 16u + across % 16u];
dq_0_3 += pool[(down * 4u + 3u) * 16u + across % 16u];
}
workgroupBarrier();
if (part == 0u) {
if (row + 0u < 300u) {
if ((0u + piece) < 16u) {
b6[(((batch * 300u + (row + 0u)) * 4u + head) * 64u) / 4u + (0u + piece)] = vec4<f32>(dq_0_0);
}
}
if (row + 1u < 300u) {
if ((0u + piece) < 16u) {
b6[(((batch * 300u + (row + 1u)) * 4u + head) * 64u) / 4u + (0u + piece)] = vec4<f32>(dq_0_1);
}
}
if (row + 2u < 300u) {
if ((0u + piece) < 16u) {
b6[(((batch * 300u + (row + 2u)) * 4u + head) * 64u) / 4u + (0u + piece)] = vec4<f32>(dq_0_2);
}
}
if (row + 3u < 300u) {
if ((0u + piece) < 16u) {
b6[(((batch * 300u + (row + 3u)) * 4u + head) * 64u) / 4u + (0u + piece)] = vec4<f32>(dq_0_3);
}
}
}
}
