enable wgpu_cooperative_matrix;
enable f16;
var<storage, read> b0: array<vec4<f32>>;
var<storage, read> b1: array<vec4<f32>>;
var<storage, read> b2: array<vec4<f32>>;
var<storage, read> b3: array<vec4<f32>>;
var<storage, read> b4: array<f32>;
var<storage, read> b5: array<f32>;
var<storage, read_write> b6: array<u32>;
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
var<workgroup> pool: array<vec4<f16>, 1152>;
var<workgroup> sums: array<vec4<f32>, 576>;
var<workgroup> largest: array<atomic<u32>, 33>;
fn size_of(x: vec4<f32>) -> u32 {
let bits = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
return max(max(bits.x, bits.y), max(bits.z, bits.w));
}
fn factor_of(size: u32) -> f32 {
let exponent = size >> 23u;
return bitcast<f32>(select(clamp(254u - exponent, 1u, 253u), 127u, exponent == 255u) << 23u);
}
fn inverse_of(factor: f32) -> f32 {
return bitcast<f32>((254u << 23u) - bitcast<u32>(factor));
}
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
let group_number = group.x;
let tile = 9u - group_number / 4u;
let batch = group_number % 4u / 4u;
let head = group_number % 4u;
let kv_head = head / 2u;
let first = tile * 32u;
let last = min(first + 32u, 300u) - 1u;
let subgroup = local / 32u;
let sub_row = subgroup / 4u * 16u;
let which = subgroup / 2u % 2u;
let sub_column = subgroup % 2u;
let own_row = local % 32u;
let part = local / 32u;
let shift = 11u;
let begin = 0u;
let end = last + shift;
let all_from = 0u;
let all_to = first + shift;
var column = begin;
var column_0_0 = fetch_k(batch, column + ((local + 0u) / 16u), kv_head, (local + 0u) % 16u);
var column_1_0 = fetch_v(batch, column + ((local + 0u) / 16u), kv_head, (local + 0u) % 16u);
var column_0_1 = fetch_k(batch, column + ((local + 256u) / 16u), kv_head, (local + 256u) % 16u);
var column_1_1 = fetch_v(batch, column + ((local + 256u) / 16u), kv_head, (local + 256u) % 16u);
let row_0_0 = fetch_q(batch, first + ((local + 0u) / 16u), head, (local + 0u) % 16u);
let row_1_0 = fetch_dout(batch, first + ((local + 0u) / 16u), head, (local + 0u) % 16u);
let row_0_1 = fetch_q(batch, first + ((local + 256u) / 16u), head, (local + 256u) % 16u);
let row_1_1 = fetch_dout(batch, first + ((local + 256u) / 16u), head, (local + 256u) % 16u);
let lse = b4[(batch * 4u + head) * 300u + min((first + own_row), 299u)];
let given_delta = b5[(batch * 4u + head) * 300u + min((first + own_row), 299u)];
let query = min(first + own_row, last);
let seen_to = query + shift;
let seen_from = 0u;
if (local <= 32u) {
atomicStore(&largest[local], 0u);
}
workgroupBarrier();
if (part == 0u) {
atomicMax(&largest[own_row], size_of(vec4<f32>(given_delta)));
}
atomicMax(&largest[((local + 0u) / 16u)], size_of(row_1_0));
atomicMax(&largest[((local + 256u) / 16u)], size_of(row_1_1));
workgroupBarrier();
let own_size = atomicLoad(&largest[own_row]);
let delta = given_delta * factor_of(own_size);
if (part == 0u) {
atomicMax(&largest[32u], own_size);
}
pool[((local + 0u) / 16u) * 18u + (local + 0u) % 16u] = vec4<f16>(row_0_0);
pool[576u + ((local + 0u) / 16u) * 18u + (local + 0u) % 16u] = vec4<f16>(row_1_0 * factor_of(atomicLoad(&largest[((local + 0u) / 16u)])));
pool[((local + 256u) / 16u) * 18u + (local + 256u) % 16u] = vec4<f16>(row_0_1);
pool[576u + ((local + 256u) / 16u) * 18u + (local + 256u) % 16u] = vec4<f16>(row_1_1 * factor_of(atomicLoad(&largest[((local + 256u) / 16u)])));
workgroupBarrier();
let at_row_0 = which * 576u + sub_row * 18u + 0u;
let row_0 = coopLoadT<coop_mat16x16<f16,A>>(&pool[at_row_0], 18u);
let at_row_1 = which * 576u + sub_row * 18u + 4u;
let row_1 = coopLoadT<coop_mat16x16<f16,A>>(&pool[at_row_1], 18u);
let at_row_2 = which * 576u + sub_row * 18u + 8u;
let row_2 = coopLoadT<coop_mat16x16<f16,A>>(&pool[at_row_2], 18u);
let at_row_3 = which * 576u + sub_row * 18u + 12u;
let row_3 = coopLoadT<coop_mat16x16<f16,A>>(&pool[at_row_3], 18u);
workgroupBarrier();
if (local == 0u) {
b6[(batch * 4u + head) * 10u + tile] = atomicLoad(&largest[32u]);
}
workgroupBarrier();
var sum_0 = coop_mat16x16<f32,C>();
var sum_1 = coop_mat16x16<f32,C>();
loop {
if (column >= end) {
break;
}
pool[0u + ((local + 0u) / 16u) * 18u + (local + 0u) % 16u] = vec4<f16>(column_0_0);
pool[576u + ((local + 0u) / 16u) * 18u + (local + 0u) % 16u] = vec4<f16>(column_1_0);
pool[0u + ((local + 256u) / 16u) * 18u + (local + 256u) % 16u] = vec4<f16>(column_0_1);
pool[576u + ((local + 256u) / 16u) * 18u + (local + 256u) % 16u] = vec4<f16>(column_1_1);
workgroupBarrier();
if (column + 32u < end) {
column_0_0 = fetch_k(batch, column + 32u + ((local + 0u) / 16u), kv_head, (local + 0u) % 16u);
column_1_0 = fetch_v(batch, column + 32u + ((local + 0u) / 16u), kv_head, (local + 0u) % 16u);
column_0_1 = fetch_k(batch, column + 32u + ((local + 256u) / 16u), kv_head, (local + 256u) % 16u);
column_1_1 = fetch_v(batch, column + 32u + ((local + 256u) / 16u), kv_head, (local + 256u) % 16u);
}
var product_0 = coop_mat16x16<f32,C>();
let at_column_0_0 = which * 576u + (sub_column * 16u + 0u) * 18u + 0u;
let column_0_0 = coopLoad<coop_mat16x16<f16,B>>(&pool[at_column_0_0], 18u);
product_0 = coopMultiplyAdd(row_0, column_0_0, product_0);
let at_column_1_0 = which * 576u + (sub_column * 16u + 0u) * 18u + 4u;
let column_1_0 = coopLoad<coop_mat16x16<f16,B>>(&pool[at_column_1_0], 18u);
product_0 = coopMultiplyAdd(row_1, column_1_0, product_0);
let at_column_2_0 = which * 576u + (sub_column * 16u + 0u) * 18u + 8u;
let column_2_0 = coopLoad<coop_mat16x16<f16,B>>(&pool[at_column_2_0], 18u);
product_0 = coopMultiplyAdd(row_2, column_2_0, product_0);
let at_column_3_0 = which * 576u + (sub_column * 16u + 0u) * 18u + 12u;
let column_3_0 = coopLoad<coop_mat16x16<f16,B>>(&pool[at_column_3_0], 18u);
product_0 = coopMultiplyAdd(row_3, column_3_0, product_0);
let to_product_0 = which * 288u + sub_row * 9u + sub_column * 4u + 0u;
coopStoreT(product_0, &sums[to_product_0], 9u);
workgroupBarrier();
let vector_0 = 0u + part;
let s0 = sums[own_row * 9u + vector_0];
let t0 = sums[288u + own_row * 9u + vector_0];
var d0 = numerators(s0 * (1.25e-1f) - vec4<f32>(lse)) * (t0 - vec4<f32>(delta)) * (1.25e-1f);
if (column < all_from || column + 32u > all_to) {
let key_0 = vec4<u32>(column + vector_0 * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
let seen_0 = (key_0 >= vec4<u32>(seen_from)) & (key_0 < vec4<u32>(seen_to));
d0 = select(vec4<f32>(), d0, seen_0);
}
pool[576u + own_row * 10u + vector_0] = vec4<f16>(d0);
workgroupBarrier();
let at_weight_0 = 576u + which * 4u + sub_row * 10u;
let weight_0 = coopLoadT<coop_mat16x16<f16,A>>(&pool[at_weight_0], 10u);
let at_term_0_0 = which * 288u + 0u + sub_column * 8u;
let term_0_0 = coopLoadT<coop_mat16x16<f16,B>>(&pool[at_term_0_0], 18u);
sum_0 = coopMultiplyAdd(weight_0, term_0_0, sum_0);
let at_term_0_1 = which * 288u + 4u + sub_column * 8u;
let term_0_1 = coopLoadT<coop_mat16x16<f16,B>>(&pool[at_term_0_1], 18u);
sum_1 = coopMultiplyAdd(weight_0, term_0_1, sum_1);
workgroupBarrier();
column = column + 32u;
}
let to_sum_0 = which * 288u + sub_row * 9u + sub_column * 4u;
coopStoreT(sum_0, &sums[to_sum_0], 9u);
workgroupBarrier();
{
let own = ((local + 0u) / 8u);
let across = (local + 0u) % 8u;
let row = first + own;
let vector = (across / 4u * 2u + 0u) * 4u + across % 4u;
let at = own * 9u + across;
let dq = (sums[at] + sums[288u + at]) * inverse_of(factor_of(atomicLoad(&largest[own])));
if (row < 300u) {
if (vector < 16u) {
b7[(((batch * 300u + row) * 4u + head) * 64u) / 4u + vector] = vec4<f32>(dq);
}
}
}
workgroupBarrier();
let to_sum_1 = which * 288u + sub_row * 9u + sub_column * 4u;
coopStoreT(sum_1, &sums[to_sum_1], 9u);
workgroupBarrier();
{
let own = ((local + 0u) / 8u);
let across = (local + 0u) % 8u;
let row = first + own;
let vector = (across / 4u * 2u + 1u) * 4u + across % 4u;
let at = own * 9u + across;
let dq = (sums[at] + sums[288u + at]) * inverse_of(factor_of(atomicLoad(&largest[own])));
if (row < 300u) {
if (vector < 16u) {
b7[(((batch * 300u + row) * 4u + head) * 64u) / 4u + vector] = vec4<f32>(dq);
}
}
}
workgroupBarrier();
}
