var<storage, read> b0: array<vec4<f32>>;
var<storage, read> b1: array<vec4<f32>>;
var<storage, read> b2: array<vec4<f32>>;
var<storage, read_write> b3: array<vec4<f32>>;
var<storage, read_write> b4: array<f32>;
fn from_bits(bits: u32) -> f32 {
    var word = bits;
    return bitcast<f32>(word);
}
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
fn is_inf(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u;
}
fn numerators(x: vec4<f32>) -> vec4<f32> {
    let nan = (bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u);
    let small = x < vec4<f32>(-87.0);
    return select(select(exp(select(x, vec4<f32>(), small)), vec4<f32>(), small), x, nan);
}
fn log_core(m: f32) -> f32 {
    let s = m / (2.0 + m);
    let z = s * s;
    var p = 2.0 / 11.0;
    p = fma(p, z, 2.0 / 9.0);
    p = fma(p, z, 2.0 / 7.0);
    p = fma(p, z, 2.0 / 5.0);
    p = fma(p, z, 2.0 / 3.0);
    return s * fma(p, z, 2.0);
}
fn split_number(x: f32) -> vec2<f32> {
    let bits = bitcast<u32>(x) - 0x3f3504f3u;
    let exponent = bitcast<i32>(bits) >> 23u;
    let mantissa = bitcast<f32>((bits & 0x007fffffu) + 0x3f3504f3u);
    return vec2<f32>(f32(exponent), mantissa - 1.0);
}
fn log_special(x: f32) -> f32 {
    if (is_nan(x) || x < 0.0) {
        return from_bits(0x7fc00000u);
    }
    if (x == 0.0) {
        return from_bits(0xff800000u);
    }
    return select(0.0, x, is_inf(x));
}
fn log_parts(x: f32) -> vec2<f32> {
    let small = x < 1.17549435e-38;
    let parts = split_number(select(x, x * 8388608.0, small));
    return vec2<f32>(parts.x - select(0.0, 23.0, small), log_core(parts.y));
}
fn log_f32(x: f32) -> f32 {
    let special = log_special(x);
    if (special != 0.0 || is_nan(special)) {
        return special;
    }
    let parts = log_parts(x);
    return fma(parts.x, 0.693147181, parts.y);
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
var<workgroup> pool: array<vec4<f32>, 720>;
fn sum_of(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
return a + b;
}
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
var out_0_0 = vec4<f32>();
var out_0_1 = vec4<f32>();
var out_0_2 = vec4<f32>();
var out_0_3 = vec4<f32>();
let shift = 11u;
let begin = 0u;
let end = last + shift;
let all_from = 0u;
let all_to = first + shift;
let seen_to = min(row_numbers, vec4<u32>(299u)) + vec4<u32>(shift);
let seen_from = vec4<u32>();
let hidden = vec4<f32>(from_bits(0xff800000u));
var greatest = vec4<f32>(-3.4028234e38);
var sums = vec4<f32>();
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
var v_0 = fetch_v(batch, column + 0u + (local + 0u) / 16u, kv_head, 0u + (local + 0u) % 16u);
var v_1 = fetch_v(batch, column + 0u + (local + 128u) / 16u, kv_head, 0u + (local + 128u) % 16u);
var v_2 = fetch_v(batch, column + 0u + (local + 256u) / 16u, kv_head, 0u + (local + 256u) % 16u);
var v_3 = fetch_v(batch, column + 0u + (local + 384u) / 16u, kv_head, 0u + (local + 384u) % 16u);
s0 *= (1.25e-1f);
s1 *= (1.25e-1f);
s2 *= (1.25e-1f);
s3 *= (1.25e-1f);
if (column < all_from || column + 128u > all_to) {
let key_0 = vec4<u32>(column + across + 0u);
s0 = select(hidden, s0, (key_0 >= seen_from) & (key_0 < seen_to));
let key_1 = vec4<u32>(column + across + 32u);
s1 = select(hidden, s1, (key_1 >= seen_from) & (key_1 < seen_to));
let key_2 = vec4<u32>(column + across + 64u);
s2 = select(hidden, s2, (key_2 >= seen_from) & (key_2 < seen_to));
let key_3 = vec4<u32>(column + across + 96u);
s3 = select(hidden, s3, (key_3 >= seen_from) & (key_3 < seen_to));
}
pool[local] = max(max(s0, s1), max(s2, s3));
workgroupBarrier();
if (across < 8u) {
let at = down * 32u + across * 4u;
pool[672u + down * 8u + across] = max(max(max(pool[at], pool[at + 1u]), pool[at + 2u]), pool[at + 3u]);
}
workgroupBarrier();
let reduced_at = 672u + down * 8u;
let reduced = max(max(max(max(max(max(max(pool[reduced_at], pool[reduced_at + 1u]), pool[reduced_at + 2u]), pool[reduced_at + 3u]), pool[reduced_at + 4u]), pool[reduced_at + 5u]), pool[reduced_at + 6u]), pool[reduced_at + 7u]);
let most = max(greatest, reduced);
let change = numerators(greatest - most);
greatest = most;
s0 = numerators(s0 - most);
s1 = numerators(s1 - most);
s2 = numerators(s2 - most);
s3 = numerators(s3 - most);
sums = sums * change + ((s0 + s1) + (s2 + s3));
out_0_0 *= change[0];
out_0_1 *= change[1];
out_0_2 *= change[2];
out_0_3 *= change[3];
pool[(local + 0u)] = v_0;
pool[(local + 128u)] = v_1;
pool[(local + 256u)] = v_2;
pool[(local + 384u)] = v_3;
pool[512u + across * 5u + down] = s0;
workgroupBarrier();
v_0 = fetch_v(batch, column + 32u + (local + 0u) / 16u, kv_head, 0u + (local + 0u) % 16u);
v_1 = fetch_v(batch, column + 32u + (local + 128u) / 16u, kv_head, 0u + (local + 128u) % 16u);
v_2 = fetch_v(batch, column + 32u + (local + 256u) / 16u, kv_head, 0u + (local + 256u) % 16u);
v_3 = fetch_v(batch, column + 32u + (local + 384u) / 16u, kv_head, 0u + (local + 384u) % 16u);
for (var i = part; i < 32u; i += 2u) {
let value = pool[i * 16u + piece];
let weights = pool[512u + i * 5u + down];
out_0_0 = fma(vec4<f32>(weights[0]), value, out_0_0);
out_0_1 = fma(vec4<f32>(weights[1]), value, out_0_1);
out_0_2 = fma(vec4<f32>(weights[2]), value, out_0_2);
out_0_3 = fma(vec4<f32>(weights[3]), value, out_0_3);
}
workgroupBarrier();
if (column + 32u < end) {
pool[(local + 0u)] = v_0;
pool[(local + 128u)] = v_1;
pool[(local + 256u)] = v_2;
pool[(local + 384u)] = v_3;
pool[512u + across * 5u + down] = s1;
workgroupBarrier();
v_0 = fetch_v(batch, column + 64u + (local + 0u) / 16u, kv_head, 0u + (local + 0u) % 16u);
v_1 = fetch_v(batch, column + 64u + (local + 128u) / 16u, kv_head, 0u + (local + 128u) % 16u);
v_2 = fetch_v(batch, column + 64u + (local + 256u) / 16u, kv_head, 0u + (local + 256u) % 16u);
v_3 = fetch_v(batch, column + 64u + (local + 384u) / 16u, kv_head, 0u + (local + 384u) % 16u);
for (var i = part; i < 32u; i += 2u) {
let value = pool[i * 16u + piece];
let weights = pool[512u + i * 5u + down];
out_0_0 = fma(vec4<f32>(weights[0]), value, out_0_0);
out_0_1 = fma(vec4<f32>(weights[1]), value, out_0_1);
out_0_2 = fma(vec4<f32>(weights[2]), value, out_0_2);
out_0_3 = fma(vec4<f32>(weights[3]), value, out_0_3);
}
workgroupBarrier();
if (column + 64u < end) {
pool[(local + 0u)] = v_0;
pool[(local + 128u)] = v_1;
pool[(local + 256u)] = v_2;
pool[(local + 384u)] = v_3;
pool[512u + across * 5u + down] = s2;
workgroupBarrier();
v_0 = fetch_v(batch, column + 96u + (local + 0u) / 16u, kv_head, 0u + (local + 0u) % 16u);
v_1 = fetch_v(batch, column + 96u + (local + 128u) / 16u, kv_head, 0u + (local + 128u) % 16u);
v_2 = fetch_v(batch, column + 96u + (local + 256u) / 16u, kv_head, 0u + (local + 256u) % 16u);
v_3 = fetch_v(batch, column + 96u + (local + 384u) / 16u, kv_head, 0u + (local + 384u) % 16u);
for (var i = part; i < 32u; i += 2u) {
let value = pool[i * 16u + piece];
let weights = pool[512u + i * 5u + down];
out_0_0 = fma(vec4<f32>(weights[0]), value, out_0_0);
out_0_1 = fma(vec4<f32>(weights[1]), value, out_0_1);
out_0_2 = fma(vec4<f32>(weights[2]), value, out_0_2);
out_0_3 = fma(vec4<f32>(weights[3]), value, out_0_3);
}
workgroupBarrier();
if (column + 96u < end) {
pool[(local + 0u)] = v_0;
pool[(local + 128u)] = v_1;
pool[(local + 256u)] = v_2;
pool[(local + 384u)] = v_3;
pool[512u + across * 5u + down] = s3;
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
out_0_0 = fma(vec4<f32>(weights[0]), value, out_0_0);
out_0_1 = fma(vec4<f32>(weights[1]), value, out_0_1);
out_0_2 = fma(vec4<f32>(weights[2]), value, out_0_2);
out_0_3 = fma(vec4<f32>(weights[3]), value, out_0_3);
}
workgroupBarrier();
}
}
}
column += 128u;
}
pool[local] = sums;
workgroupBarrier();
if (across < 8u) {
let at = down * 32u + across * 4u;
pool[672u + down * 8u + across] = sum_of(sum_of(sum_of(pool[at], pool[at + 1u]), pool[at + 2u]), pool[at + 3u]);
}
workgroupBarrier();
let reduced_at = 672u + down * 8u;
let reduced = sum_of(sum_of(sum_of(sum_of(sum_of(sum_of(sum_of(pool[reduced_at], pool[reduced_at + 1u]), pool[reduced_at + 2u]), pool[reduced_at + 3u]), pool[reduced_at + 4u]), pool[reduced_at + 5u]), pool[reduced_at + 6u]), pool[reduced_at + 7u]);
let total = select(reduced, vec4<f32>(from_bits(0x7fc00000u)), reduced == vec4<f32>());
workgroupBarrier();
if (part >= 1u && part < 2u) {
pool[(down * 4u + 0u) * 16u + across % 16u] = out_0_0;
pool[(down * 4u + 1u) * 16u + across % 16u] = out_0_1;
pool[(down * 4u + 2u) * 16u + across % 16u] = out_0_2;
pool[(down * 4u + 3u) * 16u + across % 16u] = out_0_3;
}
workgroupBarrier();
if (part < 1u) {
out_0_0 += pool[(down * 4u + 0u) * 16u + across % 16u];
out_0_1 += pool[(down * 4u + 1u) * 16u + across % 16u];
out_0_2 += pool[(down * 4u + 2u) * 16u + across % 16u];
out_0_3 += pool[(down * 4u + 3u) * 16u + across % 16u];
}
workgroupBarrier();
if (part == 0u) {
if (row + 0u < 300u) {
if ((0u + piece) < 16u) {
b3[(((batch * 300u + (row + 0u)) * 4u + head) * 64u) / 4u + (0u + piece)] = vec4<f32>((out_0_0 / total[0]));
}
}
if (row + 1u < 300u) {
if ((0u + piece) < 16u) {
b3[(((batch * 300u + (row + 1u)) * 4u + head) * 64u) / 4u + (0u + piece)] = vec4<f32>((out_0_1 / total[1]));
}
}
if (row + 2u < 300u) {
if ((0u + piece) < 16u) {
b3[(((batch * 300u + (row + 2u)) * 4u + head) * 64u) / 4u + (0u + piece)] = vec4<f32>((out_0_2 / total[2]));
}
}
if (row + 3u < 300u) {
if ((0u + piece) < 16u) {
b3[(((batch * 300u + (row + 3u)) * 4u + head) * 64u) / 4u + (0u + piece)] = vec4<f32>((out_0_3 / total[3]));
}
}
}
if (across == 0u) {
for (var i = 0u; i < 4u && row + i < 300u; i += 1u) {
b4[(batch * 4u + head) * 300u + row + i] = greatest[i] + log_f32(total[i]);
}
}
}
