var<storage, read> b0: array<u32>;
var<storage, read_write> fault: array<atomic<u32>>;
var<uniform> reporter: u32;
var<storage, read> b1: array<u32>;
var<storage, read> b2: array<u32>;
var<storage, read_write> b3: array<u32>;
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
const M: u32 = 3u;
const N: u32 = 32u;
const K: u32 = 40u;
// The schedule.
const COLUMNS: u32 = 1u;
const UNIT: u32 = 1u;
const TOGETHER: u32 = 3u;
const THREADS: u32 = 256u;
const LANES: u32 = 32u;
const HALF: u32 = 16u;
const ADDERS: u32 = 8u;
const LAST_ADDERS: u32 = 8u;
const GROUPS: u32 = 8u;
const TILE: u32 = 8u;
const ACROSS: u32 = 4u;
const WIDTH: u32 = 10u;
const UNITS: u32 = 10u;
const SUMS: u32 = 3u;
const LAST: u32 = 3u;
const STRIDE: u32 = 33u;
alias Unit = vec4<f32>;
var<workgroup> sums: array<f32, TOGETHER * GROUPS * STRIDE>;
var<workgroup> products: array<f32, M * TILE>;
var<workgroup> few: array<f32, GROUPS * max(TOGETHER * ADDERS, LAST * LAST_ADDERS)>;
// The vector `k` of a row.
fn load_a(batch: u32, line: u32, k: u32) -> vec4<f32> {
    let v114 = k * 4u;
    return b5[(line * 40u + v114) / 4u];
}
// The unit `k` of a column.
fn load_b(batch: u32, line: u32, k: u32) -> Unit {
    let v113 = k * 4u;
    return b4[(line * 40u + v113) / 4u];
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
    if ((i & 1u) != 0u) {
        return;
    }
    let next = i + 1u;
    let row = i / 32u;
    let given = b0[row];
    let slot = checked_index(given, 33u);
    var is_written = given == slot && slot < 32u;
    for (var later = row + 1u; later < 3u; later += 1u) {
        is_written = is_written && b0[later] != given;
    }
    if (!is_written) {
        return;
    }
    let at = slot * 32u + i % 32u;
    let v1 = (i % 32u);
    let v2 = clamp(v1, 0u, 15u) - 0u;
    let v3 = (i / 32u);
    let v4 = v3 * 32u + v2;
    let v5 = product_at(v4);
    let v6 = b0[v3];
    let v7 = v6 + 0u;
    let v8 = b1[v2];
    let v9 = v7 * v8;
    let v10 = shift_right_u32(v7, 16u);
    let v11 = b2[v2];
    let v12 = v10 * v11;
    let v13 = v9 + v12;
    let v14 = v7 & 65535u;
    let v15 = b2[v2];
    let v16 = v14 * v15;
    let v17 = shift_right_u32(v16, 16u);
    let v18 = v13 + v17;
    let v19 = v18 + 2147483648u;
    let v20 = f32(v19);
    let v21 = v20 * (1.4629181e-9f);
    let v22 = v21 - (3.1415927e0f);
    let v23 = cos_f32(v22);
    let v24 = v5 * v23;
    let v25 = v2 + 16u;
    let v26 = v3 * 32u + v25;
    let v27 = product_at(v26);
    let v28 = sin_f32(v22);
    let v29 = v27 * v28;
    let v30 = v24 - v29;
    let v31 = select((0e0f), v30, v1 >= 0u);
    let v32 = clamp(v1, 16u, 31u) - 16u;
    let v33 = v32 + 16u;
    let v34 = v3 * 32u + v33;
    let v35 = product_at(v34);
    let v36 = b1[v32];
    let v37 = v7 * v36;
    let v38 = b2[v32];
    let v39 = v10 * v38;
    let v40 = v37 + v39;
    let v41 = b2[v32];
    let v42 = v14 * v41;
    let v43 = shift_right_u32(v42, 16u);
    let v44 = v40 + v43;
    let v45 = v44 + 2147483648u;
    let v46 = f32(v45);
    let v47 = v46 * (1.4629181e-9f);
    let v48 = v47 - (3.1415927e0f);
    let v49 = cos_f32(v48);
    let v50 = v35 * v49;
    let v51 = v3 * 32u + v32;
    let v52 = product_at(v51);
    let v53 = sin_f32(v48);
    let v54 = v52 * v53;
    let v55 = v50 + v54;
    let v56 = select(v31, v55, v1 >= 16u);
    let first = v56;
    let v57 = (next % 32u);
    let v58 = clamp(v57, 0u, 15u) - 0u;
    let v59 = (next / 32u);
    let v60 = v59 * 32u + v58;
    let v61 = product_at(v60);
    let v62 = b0[v59];
    let v63 = v62 + 0u;
    let v64 = b1[v58];
    let v65 = v63 * v64;
    let v66 = shift_right_u32(v63, 16u);
    let v67 = b2[v58];
    let v68 = v66 * v67;
    let v69 = v65 + v68;
    let v70 = v63 & 65535u;
    let v71 = b2[v58];
    let v72 = v70 * v71;
    let v73 = shift_right_u32(v72, 16u);
    let v74 = v69 + v73;
    let v75 = v74 + 2147483648u;
    let v76 = f32(v75);
    let v77 = v76 * (1.4629181e-9f);
    let v78 = v77 - (3.1415927e0f);
    let v79 = cos_f32(v78);
    let v80 = v61 * v79;
    let v81 = v58 + 16u;
    let v82 = v59 * 32u + v81;
    let v83 = product_at(v82);
    let v84 = sin_f32(v78);
    let v85 = v83 * v84;
    let v86 = v80 - v85;
    let v87 = select((0e0f), v86, v57 >= 0u);
    let v88 = clamp(v57, 16u, 31u) - 16u;
    let v89 = v88 + 16u;
    let v90 = v59 * 32u + v89;
    let v91 = product_at(v90);
    let v92 = b1[v88];
    let v93 = v63 * v92;
    let v94 = b2[v88];
    let v95 = v66 * v94;
    let v96 = v93 + v95;
    let v97 = b2[v88];
    let v98 = v70 * v97;
    let v99 = shift_right_u32(v98, 16u);
    let v100 = v96 + v99;
    let v101 = v100 + 2147483648u;
    let v102 = f32(v101);
    let v103 = v102 * (1.4629181e-9f);
    let v104 = v103 - (3.1415927e0f);
    let v105 = cos_f32(v104);
    let v106 = v91 * v105;
    let v107 = v59 * 32u + v88;
    let v108 = product_at(v107);
    let v109 = sin_f32(v104);
    let v110 = v108 * v109;
    let v111 = v106 + v110;
    let v112 = select(v87, v111, v57 >= 16u);
    let second = v112;
    b3[at >> 1u] = f32_to_f16(first) | (f32_to_f16(second) << 16u);
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
    // What comes before needs none of the matrix, which is loaded meanwhile.
    let k = first_unit + slot;
    let k_0 = min(k + 0u * LANES, end - 1u);
    let b_0_0 = select(Unit(), load_b(batch, column_0, k_0), k + 0u * LANES < end);
    await_earlier_launches();
    let y_0_0_0 = expand_b(b_0_0, 0u);
    let row_0_0_0 = load_a(batch, 0u, vector_of(k_0, 0u));
    let x_0_0_0 = select(vec4<f32>(), row_0_0_0, k + 0u * LANES < end);
    sum_0 = add_terms(sum_0, x_0_0_0, y_0_0_0);
    let row_0_0_1 = load_a(batch, 1u, vector_of(k_0, 0u));
    let x_0_0_1 = select(vec4<f32>(), row_0_0_1, k + 0u * LANES < end);
    sum_1 = add_terms(sum_1, x_0_0_1, y_0_0_0);
    let row_0_0_2 = load_a(batch, 2u, vector_of(k_0, 0u));
    let x_0_0_2 = select(vec4<f32>(), row_0_0_2, k + 0u * LANES < end);
    sum_2 = add_terms(sum_2, x_0_0_2, y_0_0_0);
    {
        let first = 0u * TOGETHER;
        sums[((0u - 0u * TOGETHER) * GROUPS + local / LANES) * STRIDE + slot] = sum_0;
        sums[((1u - 0u * TOGETHER) * GROUPS + local / LANES) * STRIDE + slot] = sum_1;
        sums[((2u - 0u * TOGETHER) * GROUPS + local / LANES) * STRIDE + slot] = sum_2;
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
fn f32_to_f16(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return sign | 0x7e00u;
    }
    if (magnitude >= 0x47800000u) {
        return sign | 0x7c00u;
    }
    if (magnitude < 0x38800000u) {
        // A multiple of 2^-24; the sum rounds to it.
        let shifted = bitcast<f32>(magnitude) + 0.5;
        return sign | (bitcast<u32>(shifted) - 0x3f000000u);
    }
    let odd = (magnitude >> 13u) & 1u;
    return sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13u);
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
