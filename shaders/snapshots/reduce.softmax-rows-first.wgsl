var<storage, read> b0: array<f32>;
var<storage, read_write> b1: array<f32>;
// Reductions over some axes, with what is computed for each element before them, and for each row or element after them: sums,
// norms, softmaxes, losses.
//
// The axes that are kept number ROWS, those that are reduced COLUMNS. A row has LANES threads of a workgroup, each of which
// reduces every LANES-th column in registers; then what the lanes have is joined in shared memory, in pairs of pairs. Reductions
// that depend on others are of a later level (in a softmax the sum is behind the maximum): columns are gone over once for each
// level, and once more where results have an element for each column.
//
// Loops have UNROLL columns of a thread in flight. If a thread has few columns (WRITTEN) there is no loop: what is loaded for
// them once stays in registers for later levels. Long rows of which there are few are cut into PARTS (split reduction), which
// reduce_join.wgsl puts together. PROLOGUE: every workgroup of a matmul kernel computes the one row for itself.
//
// What is computed for elements and rows is inserted; as it stands, the kernel adds up the elements of each row.
//
// Twin in the oracle: core/src/ops/reduce.rs.
const ROWS: u32 = 256u;
const COLUMNS: u32 = 100u;
// The schedule. Neighbouring threads have neighbouring rows where ROWS_FIRST, as those are neighbours in memory then.
const LANES: u32 = 8u;
const ROWS_FIRST: bool = true;
const PARTS: u32 = 1u;
const THREADS: u32 = 256u;
const WIDTH: u32 = 32u;
alias Value_0 = f32;
var<workgroup> shared_0: array<Value_0, THREADS>;
// What the first JOINED lanes have, in pairs of pairs.
fn joined_0(row_here: u32) -> Value_0 {
    return (max_f32((max_f32((max_f32(shared_0[0u * WIDTH + row_here], shared_0[1u * WIDTH + row_here])), (max_f32(shared_0[2u * WIDTH + row_here], shared_0[3u * WIDTH + row_here])))), (max_f32((max_f32(shared_0[4u * WIDTH + row_here], shared_0[5u * WIDTH + row_here])), (max_f32(shared_0[6u * WIDTH + row_here], shared_0[7u * WIDTH + row_here]))))));
}
alias Value_1 = f32;
var<workgroup> shared_1: array<Value_1, THREADS>;
// What the first JOINED lanes have, in pairs of pairs.
fn joined_1(row_here: u32) -> Value_1 {
    return (((shared_1[0u * WIDTH + row_here] + shared_1[1u * WIDTH + row_here]) + (shared_1[2u * WIDTH + row_here] + shared_1[3u * WIDTH + row_here])) + ((shared_1[4u * WIDTH + row_here] + shared_1[5u * WIDTH + row_here]) + (shared_1[6u * WIDTH + row_here] + shared_1[7u * WIDTH + row_here])));
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let row_here = select(local / LANES, local % WIDTH, ROWS_FIRST);
    let lane = select(local % LANES, local / WIDTH, ROWS_FIRST);
    // Threads without a row do the work of the last one, and store nothing.
    let exists = group_number / PARTS * WIDTH + row_here <= ROWS - 1u;
    let row = min(group_number / PARTS * WIDTH + row_here, ROWS - 1u);
    let begin = 0u;
    let end = COLUMNS;
    let column_0 = lane + 0u * LANES;
    let element_0 = column_0 * 256u + row;
    let column_1 = lane + 1u * LANES;
    let element_1 = column_1 * 256u + row;
    let column_2 = lane + 2u * LANES;
    let element_2 = column_2 * 256u + row;
    let column_3 = lane + 3u * LANES;
    let element_3 = column_3 * 256u + row;
    let column_4 = lane + 4u * LANES;
    let element_4 = column_4 * 256u + row;
    let column_5 = lane + 5u * LANES;
    let element_5 = column_5 * 256u + row;
    let column_6 = lane + 6u * LANES;
    let element_6 = column_6 * 256u + row;
    let column_7 = lane + 7u * LANES;
    let element_7 = column_7 * 256u + row;
    let column_8 = lane + 8u * LANES;
    let element_8 = column_8 * 256u + row;
    let column_9 = lane + 9u * LANES;
    let element_9 = column_9 * 256u + row;
    let column_10 = lane + 10u * LANES;
    let element_10 = column_10 * 256u + row;
    let column_11 = lane + 11u * LANES;
    let element_11 = column_11 * 256u + row;
    let within_12 = lane + 12u * LANES < COLUMNS;
    let column_12 = min(lane + 12u * LANES, COLUMNS - 1u);
    let element_12 = column_12 * 256u + row;
    let v1 = b0[element_0];
    let v2 = b0[element_1];
    let v3 = b0[element_2];
    let v4 = b0[element_3];
    let v5 = b0[element_4];
    let v6 = b0[element_5];
    let v7 = b0[element_6];
    let v8 = b0[element_7];
    let v9 = b0[element_8];
    let v10 = b0[element_9];
    let v11 = b0[element_10];
    let v12 = b0[element_11];
    let v13 = b0[element_12];
    let v14 = (max_f32((max_f32((max_f32((max_f32(v1, v2)), (max_f32(v3, v4)))), (max_f32((max_f32(v5, v6)), (max_f32(v7, v8)))))), (max_f32((max_f32((max_f32(v9, v10)), (max_f32(v11, v12)))), select(from_bits(0xff800000u), v13, within_12)))));
    shared_0[lane * WIDTH + row_here] = v14;
    workgroupBarrier();
    let v15 = joined_0(row_here);
    let v16 = v1 - v15;
    let v17 = exp_f32(v16);
    let v18 = v2 - v15;
    let v19 = exp_f32(v18);
    let v20 = v3 - v15;
    let v21 = exp_f32(v20);
    let v22 = v4 - v15;
    let v23 = exp_f32(v22);
    let v24 = v5 - v15;
    let v25 = exp_f32(v24);
    let v26 = v6 - v15;
    let v27 = exp_f32(v26);
    let v28 = v7 - v15;
    let v29 = exp_f32(v28);
    let v30 = v8 - v15;
    let v31 = exp_f32(v30);
    let v32 = v9 - v15;
    let v33 = exp_f32(v32);
    let v34 = v10 - v15;
    let v35 = exp_f32(v34);
    let v36 = v11 - v15;
    let v37 = exp_f32(v36);
    let v38 = v12 - v15;
    let v39 = exp_f32(v38);
    let v40 = v13 - v15;
    let v41 = exp_f32(v40);
    let v42 = ((((v17 + v19) + (v21 + v23)) + ((v25 + v27) + (v29 + v31))) + (((v33 + v35) + (v37 + v39)) + select((0e0f), v41, within_12)));
    shared_1[lane * WIDTH + row_here] = v42;
    workgroupBarrier();
    let v43 = joined_1(row_here);
    if (exists) {
        let v44 = v17 / v43;
        b1[element_0] = v44;
    }
    if (exists) {
        let v45 = v19 / v43;
        b1[element_1] = v45;
    }
    if (exists) {
        let v46 = v21 / v43;
        b1[element_2] = v46;
    }
    if (exists) {
        let v47 = v23 / v43;
        b1[element_3] = v47;
    }
    if (exists) {
        let v48 = v25 / v43;
        b1[element_4] = v48;
    }
    if (exists) {
        let v49 = v27 / v43;
        b1[element_5] = v49;
    }
    if (exists) {
        let v50 = v29 / v43;
        b1[element_6] = v50;
    }
    if (exists) {
        let v51 = v31 / v43;
        b1[element_7] = v51;
    }
    if (exists) {
        let v52 = v33 / v43;
        b1[element_8] = v52;
    }
    if (exists) {
        let v53 = v35 / v43;
        b1[element_9] = v53;
    }
    if (exists) {
        let v54 = v37 / v43;
        b1[element_10] = v54;
    }
    if (exists) {
        let v55 = v39 / v43;
        b1[element_11] = v55;
    }
    if (exists && within_12) {
        let v56 = v41 / v43;
        b1[element_12] = v56;
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
fn max_f32(a: f32, b: f32) -> f32 {
    let larger = select(a, b, a < b);
    return select(larger, b, is_nan(b));
}
// 2^n for whole n from -126 to 127.
fn power_of_two(n: i32) -> f32 {
    return bitcast<f32>(u32(n + 127) << 23u);
}
// x 2^n, through two factors, so that n may be beyond the range of one.
fn scale_by_power(x: f32, n: i32) -> f32 {
    let half = n / 2;
    return x * power_of_two(half) * power_of_two(n - half);
}
// e^r for |r| <= ln(2) / 2: the Taylor series.
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
