var<storage, read> b0: array<f32>;
var<storage, read> b1: array<f32>;
var<storage, read> b2: array<f32>;
var<storage, read> b3: array<f32>;
var<storage, read_write> b4: array<f32>;
var<storage, read_write> b5: array<f32>;
// Reductions over some axes, with fused elementwise programs before them, and programs per row or per element after
// them: sums, norms, softmaxes, losses.
//
// ROWS is the number of kept elements, COLUMNS the number of reduced ones. A row has LANES threads of a workgroup. Each
// reduces every LANES-th column in registers; then the lanes are joined in shared memory, pairwise. A reduction that
// depends on others has a later level (in a softmax the sum comes after the maximum). The kernel iterates over the
// columns once per level, and once more if results have an element per column.
//
// Loops have UNROLL columns of a thread in flight. If a thread has few columns (WRITTEN) there is no loop: columns are
// loaded once and stay in registers for later levels. If there are few long rows, they are split into PARTS (split
// reduction), which reduce_join.wgsl combines. PROLOGUE: every workgroup of a matmul kernel computes the single row for
// itself.
//
// The programs for elements and rows are inserted; without insertion the kernel adds up the elements of each row.
//
// Twin in the oracle: core/src/ops/reduce.rs.
const ROWS: u32 = 1u;
const COLUMNS: u32 = 3u;
// Schedule. With ROWS_FIRST adjacent threads have adjacent rows, because these are then adjacent in memory.
const LANES: u32 = 1u;
const PARTS: u32 = 1u;
const THREADS: u32 = 256u;
const WIDTH: u32 = 256u;
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let row_here = local;
    let lane = 0u;
    // Threads without a row compute the last row, and store nothing.
    let exists = group_number / PARTS * WIDTH + row_here <= ROWS - 1u;
    let row = min(group_number / PARTS * WIDTH + row_here, ROWS - 1u);
    let begin = 0u;
    let end = COLUMNS;
    let column_0 = lane + 0u * LANES;
    let element_0 = column_0;
    let column_1 = lane + 1u * LANES;
    let element_1 = column_1;
    let column_2 = lane + 2u * LANES;
    let element_2 = column_2;
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
