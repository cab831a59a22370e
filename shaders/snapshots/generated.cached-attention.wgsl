var<storage, read> b0: array<vec4<f32>>;
var<storage, read> b1: array<vec4<f32>>;
var<storage, read> b2: array<vec4<f32>>;
var<storage, read> b3: array<u32>;
var<storage, read_write> fault: array<atomic<u32>>;
var<uniform> reporter: u32;
var<storage, read_write> b4: array<vec4<f32>>;
var<storage, read_write> b5: array<f32>;
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
fn power_of_two(n: i32) -> f32 {
    return bitcast<f32>(u32(n + 127) << 23u);
}
fn scale_by_power(x: f32, n: i32) -> f32 {
    let half = n / 2;
    return x * power_of_two(half) * power_of_two(n - half);
}
fn exp_core(r: f32) -> f32 {
    var p = 1.0 / 5040.0;
    p = fma(p, r, 1.0 / 720.0);
    p = fma(p, r, 1.0 / 120.0);
    p = fma(p, r, 1.0 / 24.0);
    p = fma(p, r, 1.0 / 6.0);
    p = fma(p, r, 0.5);
    p = fma(p, r, 1.0);
    return fma(p, r, 1.0);
}
fn exp_f32(x: f32) -> f32 {
    // Beyond this the result is 0 or infinite; NaN passes both comparisons.
    let limited = select(select(x, 90.0, x > 90.0), -105.0, x < -105.0);
    let n = round(limited * 1.44269504);
    // ln(2) in two parts, the first with trailing zeros.
    let r = fma(n, -1.42860682e-6, fma(n, -0.693145752, limited));
    let whole = i32(select(n, 0.0, is_nan(x)));
    return select(scale_by_power(exp_core(r), whole), x, is_nan(x));
}
fn checked_index(index: u32, rows: u32) -> u32 {
    if (index < rows) {
        return index;
    }
    atomicStore(&fault[0], 1u);
    atomicStore(&fault[1u + 2u * reporter], 1u);
    atomicMax(&fault[2u + 2u * reporter], index);
    return 0u;
}
var<workgroup> partial: array<f32, 2048>;
var<workgroup> folded: array<vec4<f32>, 256>;
var<workgroup> few: array<f32, 16>;
const LEAST: f32 = -3.4028234e38;
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
let group_number = group.x;
let own_query = group_number % 4u;
let head = own_query % 4u;
let row = own_query / 4u % 1u;
let sequence = own_query / 4u;
let own = ((sequence * 1u + row) * 4u + head) * 64u;
let shared_head = head / 2u * 64u;
let given = b3[sequence];
if (local == 0u) {
let reported = checked_index(given, 4096u);
}
let seen_to = min(given, 4095u) + row + 1u;
let seen_from = 0u;
let share = ((seen_to - seen_from + 7u) / 8u + 511u) / 512u * 512u;
let start = seen_from + group_number / 4u * share;
let end = min(start + share, seen_to);
if (start >= end) {
if (local < 16u) {
b4[group_number * 16u + local] = vec4<f32>();
}
if (local == 0u) {
b5[group_number * 2u] = LEAST;
b5[group_number * 2u + 1u] = 0.0;
}
return;
}
let slot = local % 4u;
let piece = min(local % 16u, 15u);
let part = local / 16u;
let scale = (1.25e-1f);
var greatest = LEAST;
var total = 0.0;
var sum = vec4<f32>();
var tile = start;
loop {
var value_0: vec4<f32>;
{
let known_key = min(tile + part + 0u, 4095u);
value_0 = b2[(sequence * 4096u + known_key) * 32u + shared_head / 4u + piece];
}
var value_1: vec4<f32>;
{
let known_key = min(tile + part + 16u, 4095u);
value_1 = b2[(sequence * 4096u + known_key) * 32u + shared_head / 4u + piece];
}
var value_2: vec4<f32>;
{
let known_key = min(tile + part + 32u, 4095u);
value_2 = b2[(sequence * 4096u + known_key) * 32u + shared_head / 4u + piece];
}
var value_3: vec4<f32>;
{
let known_key = min(tile + part + 48u, 4095u);
value_3 = b2[(sequence * 4096u + known_key) * 32u + shared_head / 4u + piece];
}
var value_4: vec4<f32>;
{
let known_key = min(tile + part + 64u, 4095u);
value_4 = b2[(sequence * 4096u + known_key) * 32u + shared_head / 4u + piece];
}
var value_5: vec4<f32>;
{
let known_key = min(tile + part + 80u, 4095u);
value_5 = b2[(sequence * 4096u + known_key) * 32u + shared_head / 4u + piece];
}
var value_6: vec4<f32>;
{
let known_key = min(tile + part + 96u, 4095u);
value_6 = b2[(sequence * 4096u + known_key) * 32u + shared_head / 4u + piece];
}
var value_7: vec4<f32>;
{
let known_key = min(tile + part + 112u, 4095u);
value_7 = b2[(sequence * 4096u + known_key) * 32u + shared_head / 4u + piece];
}
var key_0_0: vec4<f32>;
{
let known_key = min(tile + local / 4u + 0u, 4095u);
let known_element = min(slot + 0u, 15u);
key_0_0 = b1[(sequence * 4096u + known_key) * 32u + shared_head / 4u + known_element];
}
var key_0_1: vec4<f32>;
{
let known_key = min(tile + local / 4u + 0u, 4095u);
let known_element = min(slot + 4u, 15u);
key_0_1 = b1[(sequence * 4096u + known_key) * 32u + shared_head / 4u + known_element];
}
var key_0_2: vec4<f32>;
{
let known_key = min(tile + local / 4u + 0u, 4095u);
let known_element = min(slot + 8u, 15u);
key_0_2 = b1[(sequence * 4096u + known_key) * 32u + shared_head / 4u + known_element];
}
var key_0_3: vec4<f32>;
{
let known_key = min(tile + local / 4u + 0u, 4095u);
let known_element = min(slot + 12u, 15u);
key_0_3 = b1[(sequence * 4096u + known_key) * 32u + shared_head / 4u + known_element];
}
var key_1_0: vec4<f32>;
{
let known_key = min(tile + local / 4u + 64u, 4095u);
let known_element = min(slot + 0u, 15u);
key_1_0 = b1[(sequence * 4096u + known_key) * 32u + shared_head / 4u + known_element];
}
var key_1_1: vec4<f32>;
{
let known_key = min(tile + local / 4u + 64u, 4095u);
let known_element = min(slot + 4u, 15u);
key_1_1 = b1[(sequence * 4096u + known_key) * 32u + shared_head / 4u + known_element];
}
var key_1_2: vec4<f32>;
{
let known_key = min(tile + local / 4u + 64u, 4095u);
let known_element = min(slot + 8u, 15u);
key_1_2 = b1[(sequence * 4096u + known_key) * 32u + shared_head / 4u + known_element];
}
var key_1_3: vec4<f32>;
{
let known_key = min(tile + local / 4u + 64u, 4095u);
let known_element = min(slot + 12u, 15u);
key_1_3 = b1[(sequence * 4096u + known_key) * 32u + shared_head / 4u + known_element];
}
let count = min(end - tile, 512u);
var product_0 = vec4<f32>();
var product_1 = vec4<f32>();
{
let known_element = min(slot + 0u, 15u);
let query = b0[own / 4u + known_element];
product_0 = fma(query, key_0_0, product_0);
product_1 = fma(query, key_1_0, product_1);
}
{
let known_element = min(slot + 4u, 15u);
let query = b0[own / 4u + known_element];
product_0 = fma(query, key_0_1, product_0);
product_1 = fma(query, key_1_1, product_1);
}
{
let known_element = min(slot + 8u, 15u);
let query = b0[own / 4u + known_element];
product_0 = fma(query, key_0_2, product_0);
product_1 = fma(query, key_1_2, product_1);
}
{
let known_element = min(slot + 12u, 15u);
let query = b0[own / 4u + known_element];
product_0 = fma(query, key_0_3, product_0);
product_1 = fma(query, key_1_3, product_1);
}
{
let j = local / 4u + 0u;
if (j < count) {
let halves = product_0.xy + product_0.zw;
partial[slot * 512u + j] = (halves.x + halves.y) * scale;
}
}
{
let j = local / 4u + 64u;
if (j < count) {
let halves = product_1.xy + product_1.zw;
partial[slot * 512u + j] = (halves.x + halves.y) * scale;
}
}
for (var j = local / 4u + 128u; j < count; j += 128u) {
var key_0_0: vec4<f32>;
{
let known_key = min(tile + j + 0u, 4095u);
let known_element = min(slot + 0u, 15u);
key_0_0 = b1[(sequence * 4096u + known_key) * 32u + shared_head / 4u + known_element];
}
var key_0_1: vec4<f32>;
{
let known_key = min(tile + j + 0u, 4095u);
let known_element = min(slot + 4u, 15u);
key_0_1 = b1[(sequence * 4096u + known_key) * 32u + shared_head / 4u + known_element];
}
var key_0_2: vec4<f32>;
{
let known_key = min(tile + j + 0u, 4095u);
let known_element = min(slot + 8u, 15u);
key_0_2 = b1[(sequence * 4096u + known_key) * 32u + shared_head / 4u + known_element];
}
var key_0_3: vec4<f32>;
{
let known_key = min(tile + j + 0u, 4095u);
let known_element = min(slot + 12u, 15u);
key_0_3 = b1[(sequence * 4096u + known_key) * 32u + shared_head / 4u + known_element];
}
var key_1_0: vec4<f32>;
{
let known_key = min(tile + j + 64u, 4095u);
let known_element = min(slot + 0u, 15u);
key_1_0 = b1[(sequence * 4096u + known_key) * 32u + shared_head / 4u + known_element];
}
var key_1_1: vec4<f32>;
{
let known_key = min(tile + j + 64u, 4095u);
let known_element = min(slot + 4u, 15u);
key_1_1 = b1[(sequence * 4096u + known_key) * 32u + shared_head / 4u + known_element];
}
var key_1_2: vec4<f32>;
{
let known_key = min(tile + j + 64u, 4095u);
let known_element = min(slot + 8u, 15u);
key_1_2 = b1[(sequence * 4096u + known_key) * 32u + shared_head / 4u + known_element];
}
var key_1_3: vec4<f32>;
{
let known_key = min(tile + j + 64u, 4095u);
let known_element = min(slot + 12u, 15u);
key_1_3 = b1[(sequence * 4096u + known_key) * 32u + shared_head / 4u + known_element];
}
let first_j = j;
var product_0 = vec4<f32>();
var product_1 = vec4<f32>();
{
let known_element = min(slot + 0u, 15u);
let query = b0[own / 4u + known_element];
product_0 = fma(query, key_0_0, product_0);
product_1 = fma(query, key_1_0, product_1);
}
{
let known_element = min(slot + 4u, 15u);
let query = b0[own / 4u + known_element];
product_0 = fma(query, key_0_1, product_0);
product_1 = fma(query, key_1_1, product_1);
}
{
let known_element = min(slot + 8u, 15u);
let query = b0[own / 4u + known_element];
product_0 = fma(query, key_0_2, product_0);
product_1 = fma(query, key_1_2, product_1);
}
{
let known_element = min(slot + 12u, 15u);
let query = b0[own / 4u + known_element];
product_0 = fma(query, key_0_3, product_0);
product_1 = fma(query, key_1_3, product_1);
}
{
let j = first_j + 0u;
if (j < count) {
let halves = product_0.xy + product_0.zw;
partial[slot * 512u + j] = (halves.x + halves.y) * scale;
}
}
{
let j = first_j + 64u;
if (j < count) {
let halves = product_1.xy + product_1.zw;
partial[slot * 512u + j] = (halves.x + halves.y) * scale;
}
}
}
workgroupBarrier();
var most = greatest;
for (var j = local; j < count; j += 256u) {
var score = partial[j];
for (var i = 1u; i < 4u; i += 1u) {
score += partial[i * 512u + j];
}
partial[j] = score;
most = max(most, score);
}
folded[local].x = most;
workgroupBarrier();
if (local < 16u) {
few[local] = max(max(max(max(folded[local * 16u + 0u].x, folded[local * 16u + 1u].x), max(folded[local * 16u + 2u].x, folded[local * 16u + 3u].x)), max(max(folded[local * 16u + 4u].x, folded[local * 16u + 5u].x), max(folded[local * 16u + 6u].x, folded[local * 16u + 7u].x))), max(max(max(folded[local * 16u + 8u].x, folded[local * 16u + 9u].x), max(folded[local * 16u + 10u].x, folded[local * 16u + 11u].x)), max(max(folded[local * 16u + 12u].x, folded[local * 16u + 13u].x), max(folded[local * 16u + 14u].x, folded[local * 16u + 15u].x))));
}
workgroupBarrier();
most = max(max(max(max(few[0], few[1]), max(few[2], few[3])), max(max(few[4], few[5]), max(few[6], few[7]))), max(max(max(few[8], few[9]), max(few[10], few[11])), max(max(few[12], few[13]), max(few[14], few[15]))));
let kept = exp_f32(greatest - most);
greatest = most;
total *= kept;
sum *= kept;
for (var j = local; j < count; j += 256u) {
let weight = exp_f32(partial[j] - most);
partial[j] = weight;
total += weight;
}
workgroupBarrier();
{
let j = part + 0u;
let weight = vec4<f32>(partial[min(j, 511u)]);
sum = select(sum, fma(weight, value_0, sum), j < count);
}
{
let j = part + 16u;
let weight = vec4<f32>(partial[min(j, 511u)]);
sum = select(sum, fma(weight, value_1, sum), j < count);
}
{
let j = part + 32u;
let weight = vec4<f32>(partial[min(j, 511u)]);
sum = select(sum, fma(weight, value_2, sum), j < count);
}
{
let j = part + 48u;
let weight = vec4<f32>(partial[min(j, 511u)]);
sum = select(sum, fma(weight, value_3, sum), j < count);
}
{
let j = part + 64u;
let weight = vec4<f32>(partial[min(j, 511u)]);
sum = select(sum, fma(weight, value_4, sum), j < count);
}
{
let j = part + 80u;
let weight = vec4<f32>(partial[min(j, 511u)]);
sum = select(sum, fma(weight, value_5, sum), j < count);
}
{
let j = part + 96u;
let weight = vec4<f32>(partial[min(j, 511u)]);
sum = select(sum, fma(weight, value_6, sum), j < count);
}
{
let j = part + 112u;
let weight = vec4<f32>(partial[min(j, 511u)]);
sum = select(sum, fma(weight, value_7, sum), j < count);
}
for (var first = part + 128u; first < count; first += 128u) {
var value_0: vec4<f32>;
{
let known_key = min(tile + first + 0u, 4095u);
value_0 = b2[(sequence * 4096u + known_key) * 32u + shared_head / 4u + piece];
}
var value_1: vec4<f32>;
{
let known_key = min(tile + first + 16u, 4095u);
value_1 = b2[(sequence * 4096u + known_key) * 32u + shared_head / 4u + piece];
}
var value_2: vec4<f32>;
{
let known_key = min(tile + first + 32u, 4095u);
value_2 = b2[(sequence * 4096u + known_key) * 32u + shared_head / 4u + piece];
}
var value_3: vec4<f32>;
{
let known_key = min(tile + first + 48u, 4095u);
value_3 = b2[(sequence * 4096u + known_key) * 32u + shared_head / 4u + piece];
}
var value_4: vec4<f32>;
{
let known_key = min(tile + first + 64u, 4095u);
value_4 = b2[(sequence * 4096u + known_key) * 32u + shared_head / 4u + piece];
}
var value_5: vec4<f32>;
{
let known_key = min(tile + first + 80u, 4095u);
value_5 = b2[(sequence * 4096u + known_key) * 32u + shared_head / 4u + piece];
}
var value_6: vec4<f32>;
{
let known_key = min(tile + first + 96u, 4095u);
value_6 = b2[(sequence * 4096u + known_key) * 32u + shared_head / 4u + piece];
}
var value_7: vec4<f32>;
{
let known_key = min(tile + first + 112u, 4095u);
value_7 = b2[(sequence * 4096u + known_key) * 32u + shared_head / 4u + piece];
}
{
let j = first + 0u;
let weight = vec4<f32>(partial[min(j, 511u)]);
sum = select(sum, fma(weight, value_0, sum), j < count);
}
{
let j = first + 16u;
let weight = vec4<f32>(partial[min(j, 511u)]);
sum = select(sum, fma(weight, value_1, sum), j < count);
}
{
let j = first + 32u;
let weight = vec4<f32>(partial[min(j, 511u)]);
sum = select(sum, fma(weight, value_2, sum), j < count);
}
{
let j = first + 48u;
let weight = vec4<f32>(partial[min(j, 511u)]);
sum = select(sum, fma(weight, value_3, sum), j < count);
}
{
let j = first + 64u;
let weight = vec4<f32>(partial[min(j, 511u)]);
sum = select(sum, fma(weight, value_4, sum), j < count);
}
{
let j = first + 80u;
let weight = vec4<f32>(partial[min(j, 511u)]);
sum = select(sum, fma(weight, value_5, sum), j < count);
}
{
let j = first + 96u;
let weight = vec4<f32>(partial[min(j, 511u)]);
sum = select(sum, fma(weight, value_6, sum), j < count);
}
{
let j = first + 112u;
let weight = vec4<f32>(partial[min(j, 511u)]);
sum = select(sum, fma(weight, value_7, sum), j < count);
}
}
tile += 512u;
if (tile >= end) {
break;
}
workgroupBarrier();
}
folded[local].x = total;
workgroupBarrier();
if (local < 16u) {
few[local] = ((((folded[local * 16u + 0u].x + folded[local * 16u + 1u].x) + (folded[local * 16u + 2u].x + folded[local * 16u + 3u].x)) + ((folded[local * 16u + 4u].x + folded[local * 16u + 5u].x) + (folded[local * 16u + 6u].x + folded[local * 16u + 7u].x))) + (((folded[local * 16u + 8u].x + folded[local * 16u + 9u].x) + (folded[local * 16u + 10u].x + folded[local * 16u + 11u].x)) + ((folded[local * 16u + 12u].x + folded[local * 16u + 13u].x) + (folded[local * 16u + 14u].x + folded[local * 16u + 15u].x))));
}
workgroupBarrier();
total = ((((few[0] + few[1]) + (few[2] + few[3])) + ((few[4] + few[5]) + (few[6] + few[7]))) + (((few[8] + few[9]) + (few[10] + few[11])) + ((few[12] + few[13]) + (few[14] + few[15]))));
workgroupBarrier();
folded[local] = sum;
workgroupBarrier();
if (local < 16u) {
b4[group_number * 16u + local] = ((((sum + folded[local + 16u]) + (folded[local + 32u] + folded[local + 48u])) + ((folded[local + 64u] + folded[local + 80u]) + (folded[local + 96u] + folded[local + 112u]))) + (((folded[local + 128u] + folded[local + 144u]) + (folded[local + 160u] + folded[local + 176u])) + ((folded[local + 192u] + folded[local + 208u]) + (folded[local + 224u] + folded[local + 240u]))));
}
if (local == 0u) {
b5[group_number * 2u] = greatest;
b5[group_number * 2u + 1u] = total;
}
}
