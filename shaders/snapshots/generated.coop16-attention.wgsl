enable wgpu_cooperative_matrix;
enable f16;
var<storage, read> b0: array<vec4<f32>>;
var<storage, read> b1: array<vec4<f32>>;
var<storage, read> b2: array<vec4<f32>>;
var<storage, read_write> b3: array<f32>;
var<storage, read_write> b4: array<vec4<f32>>;
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
var<workgroup> pool: array<vec4<f16>, 1152>;
var<workgroup> sums: array<vec4<f32>, 544>;
var<workgroup> partial: array<f32, 128>;
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
@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
let group_number = group.x;
let tile = 9u - group_number / 4u;
let batch = group_number % 4u / 4u;
let head = group_number % 4u;
let kv_head = head / 2u;
let first = tile * 32u;
let last = min(first + 32u, 300u) - 1u;
let shift = 11u;
let begin = 0u;
let end = last + shift;
let all_from = 0u;
let all_to = first + shift;
let sub_row = local / 32u / 2u * 16u;
let sub_column = local / 32u % 2u;
let own_row = local % 32u;
let part = local / 32u;
let query = min(first + own_row, last);
let seen_to = query + shift;
let seen_from = 0u;
let hidden = from_bits(0xff800000u);
var greatest = -3.4028234e38;
var total = 0.0;
var out_0 = vec4<f32>();
var out_1 = vec4<f32>();
var out_2 = vec4<f32>();
var out_3 = vec4<f32>();
pool[((local + 0u) / 16u) * 18u + (local + 0u) % 16u] = vec4<f16>(fetch_q(batch, first + ((local + 0u) / 16u), head, (local + 0u) % 16u));
pool[((local + 128u) / 16u) * 18u + (local + 128u) % 16u] = vec4<f16>(fetch_q(batch, first + ((local + 128u) / 16u), head, (local + 128u) % 16u));
pool[((local + 256u) / 16u) * 18u + (local + 256u) % 16u] = vec4<f16>(fetch_q(batch, first + ((local + 256u) / 16u), head, (local + 256u) % 16u));
pool[((local + 384u) / 16u) * 18u + (local + 384u) % 16u] = vec4<f16>(fetch_q(batch, first + ((local + 384u) / 16u), head, (local + 384u) % 16u));
workgroupBarrier();
let at_q0 = sub_row * 18u + 0u;
let q0 = coopLoadT<coop_mat16x16<f16,A>>(&pool[at_q0], 18u);
let at_q1 = sub_row * 18u + 4u;
let q1 = coopLoadT<coop_mat16x16<f16,A>>(&pool[at_q1], 18u);
let at_q2 = sub_row * 18u + 8u;
let q2 = coopLoadT<coop_mat16x16<f16,A>>(&pool[at_q2], 18u);
let at_q3 = sub_row * 18u + 12u;
let q3 = coopLoadT<coop_mat16x16<f16,A>>(&pool[at_q3], 18u);
workgroupBarrier();
var key = begin;
var k_0 = fetch_k(batch, key + ((local + 0u) / 16u), kv_head, (local + 0u) % 16u);
var v_0 = fetch_v(batch, key + ((local + 0u) / 16u), kv_head, (local + 0u) % 16u);
var k_1 = fetch_k(batch, key + ((local + 128u) / 16u), kv_head, (local + 128u) % 16u);
var v_1 = fetch_v(batch, key + ((local + 128u) / 16u), kv_head, (local + 128u) % 16u);
var k_2 = fetch_k(batch, key + ((local + 256u) / 16u), kv_head, (local + 256u) % 16u);
var v_2 = fetch_v(batch, key + ((local + 256u) / 16u), kv_head, (local + 256u) % 16u);
var k_3 = fetch_k(batch, key + ((local + 384u) / 16u), kv_head, (local + 384u) % 16u);
var v_3 = fetch_v(batch, key + ((local + 384u) / 16u), kv_head, (local + 384u) % 16u);
loop {
pool[((local + 0u) / 16u) * 18u + (local + 0u) % 16u] = vec4<f16>(k_0);
pool[576u + ((local + 0u) / 16u) * 18u + (local + 0u) % 16u] = vec4<f16>(v_0);
pool[((local + 128u) / 16u) * 18u + (local + 128u) % 16u] = vec4<f16>(k_1);
pool[576u + ((local + 128u) / 16u) * 18u + (local + 128u) % 16u] = vec4<f16>(v_1);
pool[((local + 256u) / 16u) * 18u + (local + 256u) % 16u] = vec4<f16>(k_2);
pool[576u + ((local + 256u) / 16u) * 18u + (local + 256u) % 16u] = vec4<f16>(v_2);
pool[((local + 384u) / 16u) * 18u + (local + 384u) % 16u] = vec4<f16>(k_3);
pool[576u + ((local + 384u) / 16u) * 18u + (local + 384u) % 16u] = vec4<f16>(v_3);
workgroupBarrier();
if (key + 32u < end) {
k_0 = fetch_k(batch, key + 32u + ((local + 0u) / 16u), kv_head, (local + 0u) % 16u);
v_0 = fetch_v(batch, key + 32u + ((local + 0u) / 16u), kv_head, (local + 0u) % 16u);
k_1 = fetch_k(batch, key + 32u + ((local + 128u) / 16u), kv_head, (local + 128u) % 16u);
v_1 = fetch_v(batch, key + 32u + ((local + 128u) / 16u), kv_head, (local + 128u) % 16u);
k_2 = fetch_k(batch, key + 32u + ((local + 256u) / 16u), kv_head, (local + 256u) % 16u);
v_2 = fetch_v(batch, key + 32u + ((local + 256u) / 16u), kv_head, (local + 256u) % 16u);
k_3 = fetch_k(batch, key + 32u + ((local + 384u) / 16u), kv_head, (local + 384u) % 16u);
v_3 = fetch_v(batch, key + 32u + ((local + 384u) / 16u), kv_head, (local + 384u) % 16u);
}
var score_0 = coop_mat16x16<f32,C>();
let at_k0_0 = (sub_column * 16u + 0u) * 18u + 0u;
let k0_0 = coopLoad<coop_mat16x16<f16,B>>(&pool[at_k0_0], 18u);
score_0 = coopMultiplyAdd(q0, k0_0, score_0);
let at_k1_0 = (sub_column * 16u + 0u) * 18u + 4u;
let k1_0 = coopLoad<coop_mat16x16<f16,B>>(&pool[at_k1_0], 18u);
score_0 = coopMultiplyAdd(q1, k1_0, score_0);
let at_k2_0 = (sub_column * 16u + 0u) * 18u + 8u;
let k2_0 = coopLoad<coop_mat16x16<f16,B>>(&pool[at_k2_0], 18u);
score_0 = coopMultiplyAdd(q2, k2_0, score_0);
let at_k3_0 = (sub_column * 16u + 0u) * 18u + 12u;
let k3_0 = coopLoad<coop_mat16x16<f16,B>>(&pool[at_k3_0], 18u);
score_0 = coopMultiplyAdd(q3, k3_0, score_0);
let to_score_0 = sub_row * 17u + sub_column * 4u + 0u;
coopStoreT(score_0, &sums[to_score_0], 17u);
workgroupBarrier();
var s0 = sums[own_row * 17u + 0u + part] * (1.25e-1f);
var s1 = sums[own_row * 17u + 4u + part] * (1.25e-1f);
if (key < all_from || key + 32u > all_to) {
let key_0 = vec4<u32>(key + (0u + part) * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
s0 = select(vec4<f32>(hidden), s0, (key_0 >= vec4<u32>(seen_from)) & (key_0 < vec4<u32>(seen_to)));
let key_1 = vec4<u32>(key + (4u + part) * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
s1 = select(vec4<f32>(hidden), s1, (key_1 >= vec4<u32>(seen_from)) & (key_1 < vec4<u32>(seen_to)));
}
var most = greatest;
{
var all = s0;
all = max(all, s1);
partial[part * 32u + own_row] = max(max(all.x, all.y), max(all.z, all.w));
}
workgroupBarrier();
most = max(most, partial[0u + own_row]);
most = max(most, partial[32u + own_row]);
most = max(most, partial[64u + own_row]);
most = max(most, partial[96u + own_row]);
let change = numerators(vec4<f32>(greatest - most)).x;
greatest = most;
total *= change;
s0 = numerators(s0 - vec4<f32>(most));
total += (s0.x + s0.y) + (s0.z + s0.w);
pool[own_row * 10u + 0u + part] = vec4<f16>(s0);
s1 = numerators(s1 - vec4<f32>(most));
total += (s1.x + s1.y) + (s1.z + s1.w);
pool[own_row * 10u + 4u + part] = vec4<f16>(s1);
workgroupBarrier();
var product_0 = coop_mat16x16<f32,C>();
var product_1 = coop_mat16x16<f32,C>();
let at_p0 = sub_row * 10u + 0u;
let p0 = coopLoadT<coop_mat16x16<f16,A>>(&pool[at_p0], 10u);
let at_v0_0 = 576u + sub_column * 8u + 0u;
let v0_0 = coopLoadT<coop_mat16x16<f16,B>>(&pool[at_v0_0], 18u);
product_0 = coopMultiplyAdd(p0, v0_0, product_0);
let at_v0_1 = 576u + sub_column * 8u + 4u;
let v0_1 = coopLoadT<coop_mat16x16<f16,B>>(&pool[at_v0_1], 18u);
product_1 = coopMultiplyAdd(p0, v0_1, product_1);
let at_p1 = sub_row * 10u + 4u;
let p1 = coopLoadT<coop_mat16x16<f16,A>>(&pool[at_p1], 10u);
let at_v1_0 = 864u + sub_column * 8u + 0u;
let v1_0 = coopLoadT<coop_mat16x16<f16,B>>(&pool[at_v1_0], 18u);
product_0 = coopMultiplyAdd(p1, v1_0, product_0);
let at_v1_1 = 864u + sub_column * 8u + 4u;
let v1_1 = coopLoadT<coop_mat16x16<f16,B>>(&pool[at_v1_1], 18u);
product_1 = coopMultiplyAdd(p1, v1_1, product_1);
let to_product_0 = sub_row * 17u + sub_column * 8u + 0u;
coopStoreT(product_0, &sums[to_product_0], 17u);
let to_product_1 = sub_row * 17u + sub_column * 8u + 4u;
coopStoreT(product_1, &sums[to_product_1], 17u);
workgroupBarrier();
out_0 = out_0 * change + sums[own_row * 17u + min(0u + part, 15u)];
out_1 = out_1 * change + sums[own_row * 17u + min(4u + part, 15u)];
out_2 = out_2 * change + sums[own_row * 17u + min(8u + part, 15u)];
out_3 = out_3 * change + sums[own_row * 17u + min(12u + part, 15u)];
key += 32u;
if (key >= end) {
break;
}
}
partial[part * 32u + own_row] = total;
workgroupBarrier();
var sum = 0.0;
sum += partial[0u + own_row];
sum += partial[32u + own_row];
sum += partial[64u + own_row];
sum += partial[96u + own_row];
sum = select(sum, from_bits(0x7fc00000u), sum == 0.0);
sums[own_row * 17u + 0u + part] = out_0 / sum;
sums[own_row * 17u + 4u + part] = out_1 / sum;
sums[own_row * 17u + 8u + part] = out_2 / sum;
sums[own_row * 17u + 12u + part] = out_3 / sum;
if (part == 0u && first + own_row < 300u) {
b3[(batch * 4u + head) * 300u + first + own_row] = greatest + log_f32(sum);
}
workgroupBarrier();
{
let own = ((local + 0u) / 16u);
let vector = (local + 0u) % 16u;
let row = first + own;
let at = own * 17u + vector;
if (row < 300u) {
if (vector < 16u) {
b4[(((batch * 300u + row) * 4u + head) * 64u) / 4u + vector] = vec4<f32>(sums[at]);
}
}
}
{
let own = ((local + 128u) / 16u);
let vector = (local + 128u) % 16u;
let row = first + own;
let at = own * 17u + vector;
if (row < 300u) {
if (vector < 16u) {
b4[(((batch * 300u + row) * 4u + head) * 64u) / 4u + vector] = vec4<f32>(sums[at]);
}
}
}
{
let own = ((local + 256u) / 16u);
let vector = (local + 256u) % 16u;
let row = first + own;
let at = own * 17u + vector;
if (row < 300u) {
if (vector < 16u) {
b4[(((batch * 300u + row) * 4u + head) * 64u) / 4u + vector] = vec4<f32>(sums[at]);
}
}
}
{
let own = ((local + 384u) / 16u);
let vector = (local + 384u) % 16u;
let row = first + own;
let at = own * 17u + vector;
if (row < 300u) {
if (vector < 16u) {
b4[(((batch * 300u + row) * 4u + head) * 64u) / 4u + vector] = vec4<f32>(sums[at]);
}
}
}
}
