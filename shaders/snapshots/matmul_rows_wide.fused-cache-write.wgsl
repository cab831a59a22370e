var<storage, read> b0: array<u32>;
var<storage, read_write> fault: array<atomic<u32>>;
var<uniform> reporter: u32;
var<storage, read> b1: array<u32>;
var<storage, read> b2: array<u32>;
var<storage, read_write> b3: array<f32>;
var<storage, read> b4: array<vec4<f32>>;
var<storage, read> b5: array<vec4<f32>>;
// Matrix product of few rows whose operands lie along K: a thread loads units of one or more vectors of four terms, and all that
// it needs of the matrix B, if that is not too much, before it waits for anything else.
//
// A workgroup has THREADS / LANES times COLUMNS columns, each thread COLUMNS of them for all M rows, with sums in registers;
// LANES threads share the sums of a column. Where they are a subgroup, it adds them up; elsewhere that goes through shared
// memory, TOGETHER sums of a thread at a time. Rows that have to be computed are computed once (STAGED). Where there are few
// columns, K is cut into PARTS (split-K). Packed weights stay so in registers, and the scale of a unit is multiplied with its sum.
//
// Twin in the oracle: core/src/ops/matmul.rs, core/src/ops/quantized.rs.
const BATCH: u32 = 1u;
const M: u32 = 4u;
const N: u32 = 32u;
const K: u32 = 96u;
// The schedule.
const COLUMNS: u32 = 1u;
const UNIT: u32 = 1u;
const TOGETHER: u32 = 4u;
const THREADS: u32 = 256u;
const LANES: u32 = 32u;
const HALF: u32 = 8u;
const ADDERS: u32 = 8u;
const LAST_ADDERS: u32 = 8u;
const GROUPS: u32 = 8u;
const TILE: u32 = 8u;
const ACROSS: u32 = 4u;
const WIDTH: u32 = 24u;
const UNITS: u32 = 24u;
const SUMS: u32 = 4u;
const LAST: u32 = 4u;
const STRIDE: u32 = 33u;
alias Unit = vec4<f32>;
var<workgroup> sums: array<f32, TOGETHER * GROUPS * STRIDE>;
var<workgroup> products: array<f32, M * TILE>;
var<workgroup> few: array<f32, GROUPS * max(TOGETHER * ADDERS, LAST * LAST_ADDERS)>;
// The vector `k` of a row.
fn load_a(batch: u32, line: u32, k: u32) -> vec4<f32> {
    let v60 = k * 4u;
    return b5[(line * 96u + v60) / 4u];
}
// The unit `k` of a column.
fn load_b(batch: u32, line: u32, k: u32) -> Unit {
    let v59 = k * 4u;
    return b4[(line * 96u + v59) / 4u];
}
// A vector of a unit.
fn expand_b(unit: Unit, number: u32) -> vec4<f32> { return unit; }
// The number in its line of a vector of the unit `k`.
fn vector_of(k: u32, number: u32) -> u32 { return k * UNIT + number; }
// A sum and four terms more.
fn add_terms(sum: f32, x: vec4<f32>, y: vec4<f32>) -> f32 { return fma(x.w, y.w, fma(x.z, y.z, fma(x.y, y.y, fma(x.x, y.x, sum)))); }
// The number of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 { return (batch * M + row) * N + column; }
// What becomes of a sum, or of a part of one.
fn finish(part: u32, i: u32, product: f32) {
    let sequence = i / 128u;
    let given = b0[sequence];
    let position = checked_index(given, 6u);
    if (given != position) {
        return;
    }
    let at = (sequence * 9u + position) * 32u + i % 128u;
    let v1 = (i % 16u);
    let v2 = clamp(v1, 0u, 7u) - 0u;
    let v3 = (i / 16u);
    let v4 = v3 * 16u + v2;
    let v5 = product_at(v4);
    let v6 = b0[0u];
    let v7 = (i / 32u);
    let v8 = v7;
    let v9 = v6 + v8;
    let v10 = b1[v2];
    let v11 = v9 * v10;
    let v12 = shift_right_u32(v9, 16u);
    let v13 = b2[v2];
    let v14 = v12 * v13;
    let v15 = v11 + v14;
    let v16 = v9 & 65535u;
    let v17 = b2[v2];
    let v18 = v16 * v17;
    let v19 = shift_right_u32(v18, 16u);
    let v20 = v15 + v19;
    let v21 = v20 + 2147483648u;
    let v22 = f32(v21);
    let v23 = v22 * (1.4629181e-9f);
    let v24 = v23 - (3.1415927e0f);
    let v25 = cos_f32(v24);
    let v26 = v5 * v25;
    let v27 = v2 + 8u;
    let v28 = v3 * 16u + v27;
    let v29 = product_at(v28);
    let v30 = sin_f32(v24);
    let v31 = v29 * v30;
    let v32 = v26 - v31;
    let v33 = select((0e0f), v32, v1 >= 0u);
    let v34 = clamp(v1, 8u, 15u) - 8u;
    let v35 = v34 + 8u;
    let v36 = v3 * 16u + v35;
    let v37 = product_at(v36);
    let v38 = b1[v34];
    let v39 = v9 * v38;
    let v40 = b2[v34];
    let v41 = v12 * v40;
    let v42 = v39 + v41;
    let v43 = b2[v34];
    let v44 = v16 * v43;
    let v45 = shift_right_u32(v44, 16u);
    let v46 = v42 + v45;
    let v47 = v46 + 2147483648u;
    let v48 = f32(v47);
    let v49 = v48 * (1.4629181e-9f);
    let v50 = v49 - (3.1415927e0f);
    let v51 = cos_f32(v50);
    let v52 = v37 * v51;
    let v53 = v3 * 16u + v34;
    let v54 = product_at(v53);
    let v55 = sin_f32(v50);
    let v56 = v54 * v55;
    let v57 = v52 + v56;
    let v58 = select(v33, v57, v1 >= 8u);
    let value = v58;
    b3[at] = value;
}
// The same by the LAST_ADDERS of the last sums.
fn add_last_lanes(at: u32) -> f32 {
    return ((sums[at + 0u] + sums[at + 8u]) + (sums[at + 16u] + sums[at + 24u]));
}
fn add_last_few(own: u32) -> f32 {
    return (((few[own * 8u + 0u] + few[own * 8u + 1u]) + (few[own * 8u + 2u] + few[own * 8u + 3u])) + ((few[own * 8u + 4u] + few[own * 8u + 5u]) + (few[own * 8u + 6u] + few[own * 8u + 7u])));
}
// Backends that begin a launch before the one in front of it has ended wait for it here: what is read before, no launch writes.
fn await_earlier_launches() {}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let tile = group_number % ACROSS;
    let batch = group_number / ACROSS % BATCH;
    let part = group_number / (ACROSS * BATCH);
    let slot = local % LANES;
    let first_vector = part * WIDTH;
    let first_unit = part * UNITS;
    let end = min(first_unit + UNITS, K / (4u * UNIT));
    let column_0 = min(column_of(tile, 0u * GROUPS + local / LANES), N - 1u);
    var sum_0 = 0.0;
    var sum_1 = 0.0;
    var sum_2 = 0.0;
    var sum_3 = 0.0;
    // What comes before needs none of the matrix, which is loaded meanwhile.
    let k = first_unit + slot;
    let k_0 = min(k + 0u * LANES, end - 1u);
    let b_0_0 = load_b(batch, column_0, k_0);
    await_earlier_launches();
    if (k + 0u * LANES < end) {
        let y_0_0_0 = expand_b(b_0_0, 0u);
        let row_0_0_0 = load_a(batch, 0u, vector_of(k_0, 0u));
        let x_0_0_0 = row_0_0_0;
        sum_0 = add_terms(sum_0, x_0_0_0, y_0_0_0);
        let row_0_0_1 = load_a(batch, 1u, vector_of(k_0, 0u));
        let x_0_0_1 = row_0_0_1;
        sum_1 = add_terms(sum_1, x_0_0_1, y_0_0_0);
        let row_0_0_2 = load_a(batch, 2u, vector_of(k_0, 0u));
        let x_0_0_2 = row_0_0_2;
        sum_2 = add_terms(sum_2, x_0_0_2, y_0_0_0);
        let row_0_0_3 = load_a(batch, 3u, vector_of(k_0, 0u));
        let x_0_0_3 = row_0_0_3;
        sum_3 = add_terms(sum_3, x_0_0_3, y_0_0_0);
    }
    {
        let first = 0u * TOGETHER;
        sums[((0u - 0u * TOGETHER) * GROUPS + local / LANES) * STRIDE + slot] = sum_0;
        sums[((1u - 0u * TOGETHER) * GROUPS + local / LANES) * STRIDE + slot] = sum_1;
        sums[((2u - 0u * TOGETHER) * GROUPS + local / LANES) * STRIDE + slot] = sum_2;
        sums[((3u - 0u * TOGETHER) * GROUPS + local / LANES) * STRIDE + slot] = sum_3;
        workgroupBarrier();
        if (local < LAST * GROUPS * LAST_ADDERS) {
            few[local] = add_last_lanes(local / LAST_ADDERS * STRIDE + local % LAST_ADDERS);
        }
        workgroupBarrier();
        if (local < min(TOGETHER, SUMS - 0u * TOGETHER) * GROUPS) {
            let own = 0u * TOGETHER + local / GROUPS;
            let own_number = own % COLUMNS * GROUPS + local % GROUPS;
            let sum = add_last_few(local);
            products[own / COLUMNS * TILE + own_number] = sum;
        }
    }
    workgroupBarrier();
    for (var at = local; at < M * TILE; at += THREADS) {
        let own_column = column_of(tile, at % TILE);
        if (own_column < N) {
            finish(0u, element_number(0u, at / TILE, own_column), products[at]);
        }
    }
}
// Scalar functions. WGSL leaves NaN, infinities and the accuracy of most built-in functions to the driver; these
// say what happens. A kernel gets the functions that it uses, and those that they use.
// Not a constant, so that no compiler evaluates what comes out of these bits.
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
// Remainder of x by pi / 2, and the number of the quadrant. Cody and Waite: pi / 2 in three parts, whose products
// with k are exact also where `fma` rounds twice.
fn quadrant(x: f32) -> vec2<f32> {
    let k = round(x * 0.636619772);
    let r = fma(k, -7.54978995e-8, fma(k, -4.83751297e-4, fma(k, -1.5703125, x)));
    return vec2<f32>(r, k);
}
fn sin_core(r: f32) -> f32 {
    let z = r * r;
    var p = 2.75573192e-6;
    p = fma(p, z, -1.98412698e-4);
    p = fma(p, z, 8.33333333e-3);
    p = fma(p, z, -1.66666667e-1);
    return fma(p * z, r, r);
}
fn cos_core(r: f32) -> f32 {
    let z = r * r;
    var p = 2.48015873e-5;
    p = fma(p, z, -1.38888889e-3);
    p = fma(p, z, 4.16666667e-2);
    p = fma(p, z, -0.5);
    return fma(p, z, 1.0);
}
fn sin_of_quadrants(x: f32, offset: u32) -> f32 {
    if (is_nan(x) || is_inf(x)) {
        return from_bits(0x7fc00000u);
    }
    let q = quadrant(x);
    let number = (bitcast<u32>(i32(q.y)) + offset) & 3u;
    let y = select(sin_core(q.x), cos_core(q.x), (number & 1u) == 1u);
    return select(y, -y, number >= 2u);
}
fn sin_f32(x: f32) -> f32 {
    return sin_of_quadrants(x, 0u);
}
fn cos_f32(x: f32) -> f32 {
    return sin_of_quadrants(x, 1u);
}
fn shift_right_u32(a: u32, b: u32) -> u32 {
    return select(a >> (b & 31u), 0u, b > 31u);
}
// An index that is below `rows`. One that is not is reported, and 0 stands in for it. Of several the largest is kept, so
// that the report depends on no order.
fn checked_index(index: u32, rows: u32) -> u32 {
    if (index < rows) {
        return index;
    }
    atomicStore(&fault[0], 1u);
    atomicStore(&fault[1u + 2u * reporter], 1u);
    atomicMax(&fault[2u + 2u * reporter], index);
    return 0u;
}
// The columns of a workgroup, for matmuls of few rows whose epilogues may read other sums than the one at hand. A kernel that calls
// these declares N, TILE, the columns of a workgroup, HALF, the columns between the two of a pair that is rotated, or 0, and
// `products` in memory of the workgroup: all its sums, row by row.
// A column by its number in the workgroup. Of columns that are rotated, the first ones of pairs come before the second ones.
fn column_of(tile: u32, number: u32) -> u32 {
    const PAIRS: u32 = TILE / 2u;
    const SOME_HALF: u32 = max(HALF, 1u);
    let pair = tile * PAIRS + number % PAIRS;
    let rotated = pair / SOME_HALF * (2u * HALF) + number / PAIRS * HALF + pair % SOME_HALF;
    return select(tile * TILE + number, rotated, HALF > 0u);
}
// The number of a column in its workgroup.
fn number_of(column: u32) -> u32 {
    const PAIRS: u32 = TILE / 2u;
    const SOME_HALF: u32 = max(HALF, 1u);
    return select(column % TILE, column / SOME_HALF % 2u * PAIRS + column % SOME_HALF % PAIRS, HALF > 0u);
}
// The sum of an element of the result that is in the same workgroup.
fn product_at(i: u32) -> f32 {
    return products[i / N * TILE + number_of(i % N)];
}
