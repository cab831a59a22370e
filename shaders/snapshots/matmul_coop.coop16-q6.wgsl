enable wgpu_cooperative_matrix;
enable f16;
var<storage, read_write> b0: array<f32>;
var<storage, read> b1: array<vec4<f32>>;
var<storage, read> b2: array<u32>;
var<storage, read> b3: array<f16>;
alias Element = f16;
alias Vector = vec4<Element>;
alias MatrixA = coop_mat16x16<f16,A>;
alias MatrixB = coop_mat16x16<f16,B>;
alias MatrixC = coop_mat16x16<f32,C>;
// The product. Whether neighbours in memory are neighbours along K, rather than along M or N.
const BATCH: u32 = 1u;
const M: u32 = 16u;
const N: u32 = 1536u;
const K: u32 = 576u;
// The schedule.
const TILE: u32 = 16u;
const SUBGROUP: u32 = 32u;
const ROWS: u32 = 16u;
const COLUMNS: u32 = 16u;
const STEP: u32 = 256u;
const SUB_ROWS: u32 = 16u;
const SUB_COLUMNS: u32 = 16u;
const DEPTHS: u32 = 8u;
const PREFETCH: u32 = 3u;
const TOGETHER: u32 = 1u;
const ACROSS: u32 = 96u;
const DOWN: u32 = 1u;
const BESIDE: u32 = 1u;
const SUBGROUPS: u32 = 8u;
const THREADS: u32 = 256u;
// Vectors of a row of each piece in shared memory, and from one row to the next.
const A_WIDTH: u32 = 64u;
const B_WIDTH: u32 = 64u;
const A_STRIDE: u32 = 66u;
const B_STRIDE: u32 = 66u;
const A_VECTORS: u32 = 1024u;
const B_VECTORS: u32 = 1024u;
// Threads that bring a row of tiles to the epilogue, and what of it goes through shared memory together.
const ROW_THREADS: u32 = 256u;
const SLAB_COLUMNS: u32 = 16u;
const SLAB_TILES: u32 = 1u;
const SLAB: u32 = 256u;
var<workgroup> shared_a: array<Vector, A_VECTORS / A_WIDTH * A_STRIDE>;
var<workgroup> shared_b: array<Vector, B_VECTORS / B_WIDTH * B_STRIDE>;
var<workgroup> slab: array<f32, SLAB * SUBGROUPS>;
// Four elements of A, side by side in memory, from row `line` and term `k` on; zero from K on.
fn load_a(batch: u32, line: u32, k: u32) -> Vector {
    let v1 = line;
    let v2 = min(k, 572u);
    return select(vec4<f16>(), vec4<f16>(b1[(v1 * 576u + v2) / 4u]), k < 576u);
}
// The same of B, from column `line` on.
fn load_b(batch: u32, line: u32, k: u32) -> Vector {
    let v3 = line;
    let v4 = min(k, 572u);
    let v5 = v3 * 576u + v4;
    let v6 = v5 / 32u;
    let v7 = v5 / 16u % 2u;
    let v8 = v5 / 4u % 4u;
    let v9 = b2[v6 * 6u + v8];
    let v10 = b2[v6 * 6u + 4u + v8 % 2u];
    let v11 = v10 >> (v8 / 2u * 2u);
    let v12 = f32(b3[v6 * 2u + v7]);
    return select(vec4<f16>(), vec4<f16>(v12 * six_bits_to_f32x4(v9, v11, v7)), k < 576u);
}
// The number of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 {
    return (batch * M + row) * N + column;
}
// What becomes of a sum, or of a part of one.
fn finish(part: u32, i: u32, product: f32) {
    b0[i] = product;
}
// The element `e` of a slab, a sum over the subgroups that share steps.
fn slab_sum(sub_block: u32, e: u32) -> f32 {
    return (((slab[(sub_block * 8u + 0u) * 256u + e] + slab[(sub_block * 8u + 1u) * 256u + e]) + (slab[(sub_block * 8u + 2u) * 256u + e] + slab[(sub_block * 8u + 3u) * 256u + e])) + ((slab[(sub_block * 8u + 4u) * 256u + e] + slab[(sub_block * 8u + 5u) * 256u + e]) + (slab[(sub_block * 8u + 6u) * 256u + e] + slab[(sub_block * 8u + 7u) * 256u + e])));
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let block = group_number;
    let part = group_number / (ACROSS * DOWN * BATCH);
    let first_column = block % ACROSS * COLUMNS;
    let first_row = block / ACROSS % DOWN * ROWS;
    let batch = block / (ACROSS * DOWN) % BATCH;
    let subgroup = local / SUBGROUP;
    let sub_block = subgroup / DEPTHS;
    let sub_row = sub_block / BESIDE * SUB_ROWS;
    let sub_column = sub_block % BESIDE * SUB_COLUMNS;
    var sum_0_0 = MatrixC();
    var begin = 0u;
    var terms = K;
    var a_0_0 = load_a(batch, first_row + (local + 0u * THREADS) / A_WIDTH, begin + 0u * STEP + (local + 0u * THREADS) % A_WIDTH * 4u);
    var a_1_0 = load_a(batch, first_row + (local + 1u * THREADS) / A_WIDTH, begin + 0u * STEP + (local + 1u * THREADS) % A_WIDTH * 4u);
    var a_2_0 = load_a(batch, first_row + (local + 2u * THREADS) / A_WIDTH, begin + 0u * STEP + (local + 2u * THREADS) % A_WIDTH * 4u);
    var a_3_0 = load_a(batch, first_row + (local + 3u * THREADS) / A_WIDTH, begin + 0u * STEP + (local + 3u * THREADS) % A_WIDTH * 4u);
    var a_0_1 = load_a(batch, first_row + (local + 0u * THREADS) / A_WIDTH, begin + 1u * STEP + (local + 0u * THREADS) % A_WIDTH * 4u);
    var a_1_1 = load_a(batch, first_row + (local + 1u * THREADS) / A_WIDTH, begin + 1u * STEP + (local + 1u * THREADS) % A_WIDTH * 4u);
    var a_2_1 = load_a(batch, first_row + (local + 2u * THREADS) / A_WIDTH, begin + 1u * STEP + (local + 2u * THREADS) % A_WIDTH * 4u);
    var a_3_1 = load_a(batch, first_row + (local + 3u * THREADS) / A_WIDTH, begin + 1u * STEP + (local + 3u * THREADS) % A_WIDTH * 4u);
    var a_0_2 = load_a(batch, first_row + (local + 0u * THREADS) / A_WIDTH, begin + 2u * STEP + (local + 0u * THREADS) % A_WIDTH * 4u);
    var a_1_2 = load_a(batch, first_row + (local + 1u * THREADS) / A_WIDTH, begin + 2u * STEP + (local + 1u * THREADS) % A_WIDTH * 4u);
    var a_2_2 = load_a(batch, first_row + (local + 2u * THREADS) / A_WIDTH, begin + 2u * STEP + (local + 2u * THREADS) % A_WIDTH * 4u);
    var a_3_2 = load_a(batch, first_row + (local + 3u * THREADS) / A_WIDTH, begin + 2u * STEP + (local + 3u * THREADS) % A_WIDTH * 4u);
    var b_0_0 = load_b(batch, first_column + (local + 0u * THREADS) / B_WIDTH, begin + 0u * STEP + (local + 0u * THREADS) % B_WIDTH * 4u);
    var b_1_0 = load_b(batch, first_column + (local + 1u * THREADS) / B_WIDTH, begin + 0u * STEP + (local + 1u * THREADS) % B_WIDTH * 4u);
    var b_2_0 = load_b(batch, first_column + (local + 2u * THREADS) / B_WIDTH, begin + 0u * STEP + (local + 2u * THREADS) % B_WIDTH * 4u);
    var b_3_0 = load_b(batch, first_column + (local + 3u * THREADS) / B_WIDTH, begin + 0u * STEP + (local + 3u * THREADS) % B_WIDTH * 4u);
    var b_0_1 = load_b(batch, first_column + (local + 0u * THREADS) / B_WIDTH, begin + 1u * STEP + (local + 0u * THREADS) % B_WIDTH * 4u);
    var b_1_1 = load_b(batch, first_column + (local + 1u * THREADS) / B_WIDTH, begin + 1u * STEP + (local + 1u * THREADS) % B_WIDTH * 4u);
    var b_2_1 = load_b(batch, first_column + (local + 2u * THREADS) / B_WIDTH, begin + 1u * STEP + (local + 2u * THREADS) % B_WIDTH * 4u);
    var b_3_1 = load_b(batch, first_column + (local + 3u * THREADS) / B_WIDTH, begin + 1u * STEP + (local + 3u * THREADS) % B_WIDTH * 4u);
    var b_0_2 = load_b(batch, first_column + (local + 0u * THREADS) / B_WIDTH, begin + 2u * STEP + (local + 0u * THREADS) % B_WIDTH * 4u);
    var b_1_2 = load_b(batch, first_column + (local + 1u * THREADS) / B_WIDTH, begin + 2u * STEP + (local + 1u * THREADS) % B_WIDTH * 4u);
    var b_2_2 = load_b(batch, first_column + (local + 2u * THREADS) / B_WIDTH, begin + 2u * STEP + (local + 2u * THREADS) % B_WIDTH * 4u);
    var b_3_2 = load_b(batch, first_column + (local + 3u * THREADS) / B_WIDTH, begin + 2u * STEP + (local + 3u * THREADS) % B_WIDTH * 4u);
    var done = 0u;
    loop {
        shared_a[(local + 0u * THREADS) / A_WIDTH * A_STRIDE + (local + 0u * THREADS) % A_WIDTH] = a_0_0;
        shared_a[(local + 1u * THREADS) / A_WIDTH * A_STRIDE + (local + 1u * THREADS) % A_WIDTH] = a_1_0;
        shared_a[(local + 2u * THREADS) / A_WIDTH * A_STRIDE + (local + 2u * THREADS) % A_WIDTH] = a_2_0;
        shared_a[(local + 3u * THREADS) / A_WIDTH * A_STRIDE + (local + 3u * THREADS) % A_WIDTH] = a_3_0;
        shared_b[(local + 0u * THREADS) / B_WIDTH * B_STRIDE + (local + 0u * THREADS) % B_WIDTH] = b_0_0;
        shared_b[(local + 1u * THREADS) / B_WIDTH * B_STRIDE + (local + 1u * THREADS) % B_WIDTH] = b_1_0;
        shared_b[(local + 2u * THREADS) / B_WIDTH * B_STRIDE + (local + 2u * THREADS) % B_WIDTH] = b_2_0;
        shared_b[(local + 3u * THREADS) / B_WIDTH * B_STRIDE + (local + 3u * THREADS) % B_WIDTH] = b_3_0;
        workgroupBarrier();
        if (done + PREFETCH * STEP < terms) {
            let next_k = begin + done + PREFETCH * STEP;
            a_0_0 = load_a(batch, first_row + (local + 0u * THREADS) / A_WIDTH, next_k + (local + 0u * THREADS) % A_WIDTH * 4u);
            a_1_0 = load_a(batch, first_row + (local + 1u * THREADS) / A_WIDTH, next_k + (local + 1u * THREADS) % A_WIDTH * 4u);
            a_2_0 = load_a(batch, first_row + (local + 2u * THREADS) / A_WIDTH, next_k + (local + 2u * THREADS) % A_WIDTH * 4u);
            a_3_0 = load_a(batch, first_row + (local + 3u * THREADS) / A_WIDTH, next_k + (local + 3u * THREADS) % A_WIDTH * 4u);
            b_0_0 = load_b(batch, first_column + (local + 0u * THREADS) / B_WIDTH, next_k + (local + 0u * THREADS) % B_WIDTH * 4u);
            b_1_0 = load_b(batch, first_column + (local + 1u * THREADS) / B_WIDTH, next_k + (local + 1u * THREADS) % B_WIDTH * 4u);
            b_2_0 = load_b(batch, first_column + (local + 2u * THREADS) / B_WIDTH, next_k + (local + 2u * THREADS) % B_WIDTH * 4u);
            b_3_0 = load_b(batch, first_column + (local + 3u * THREADS) / B_WIDTH, next_k + (local + 3u * THREADS) % B_WIDTH * 4u);
        }
        {
            let depth = 0u * (TILE * DEPTHS) + subgroup % DEPTHS * TILE;
            let at_a_0 = (sub_row + 0u * TILE) * A_STRIDE + depth / 4u;
            let a_0 = coopLoadT<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_b_0 = (sub_column + 0u * TILE) * B_STRIDE + depth / 4u;
            let b_0 = coopLoad<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
        }
        {
            let depth = 1u * (TILE * DEPTHS) + subgroup % DEPTHS * TILE;
            let at_a_0 = (sub_row + 0u * TILE) * A_STRIDE + depth / 4u;
            let a_0 = coopLoadT<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_b_0 = (sub_column + 0u * TILE) * B_STRIDE + depth / 4u;
            let b_0 = coopLoad<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
        }
        workgroupBarrier();
        done += STEP;
        if (done >= terms) {
            break;
        }
        shared_a[(local + 0u * THREADS) / A_WIDTH * A_STRIDE + (local + 0u * THREADS) % A_WIDTH] = a_0_1;
        shared_a[(local + 1u * THREADS) / A_WIDTH * A_STRIDE + (local + 1u * THREADS) % A_WIDTH] = a_1_1;
        shared_a[(local + 2u * THREADS) / A_WIDTH * A_STRIDE + (local + 2u * THREADS) % A_WIDTH] = a_2_1;
        shared_a[(local + 3u * THREADS) / A_WIDTH * A_STRIDE + (local + 3u * THREADS) % A_WIDTH] = a_3_1;
        shared_b[(local + 0u * THREADS) / B_WIDTH * B_STRIDE + (local + 0u * THREADS) % B_WIDTH] = b_0_1;
        shared_b[(local + 1u * THREADS) / B_WIDTH * B_STRIDE + (local + 1u * THREADS) % B_WIDTH] = b_1_1;
        shared_b[(local + 2u * THREADS) / B_WIDTH * B_STRIDE + (local + 2u * THREADS) % B_WIDTH] = b_2_1;
        shared_b[(local + 3u * THREADS) / B_WIDTH * B_STRIDE + (local + 3u * THREADS) % B_WIDTH] = b_3_1;
        workgroupBarrier();
        if (done + PREFETCH * STEP < terms) {
            let next_k = begin + done + PREFETCH * STEP;
            a_0_1 = load_a(batch, first_row + (local + 0u * THREADS) / A_WIDTH, next_k + (local + 0u * THREADS) % A_WIDTH * 4u);
            a_1_1 = load_a(batch, first_row + (local + 1u * THREADS) / A_WIDTH, next_k + (local + 1u * THREADS) % A_WIDTH * 4u);
            a_2_1 = load_a(batch, first_row + (local + 2u * THREADS) / A_WIDTH, next_k + (local + 2u * THREADS) % A_WIDTH * 4u);
            a_3_1 = load_a(batch, first_row + (local + 3u * THREADS) / A_WIDTH, next_k + (local + 3u * THREADS) % A_WIDTH * 4u);
            b_0_1 = load_b(batch, first_column + (local + 0u * THREADS) / B_WIDTH, next_k + (local + 0u * THREADS) % B_WIDTH * 4u);
            b_1_1 = load_b(batch, first_column + (local + 1u * THREADS) / B_WIDTH, next_k + (local + 1u * THREADS) % B_WIDTH * 4u);
            b_2_1 = load_b(batch, first_column + (local + 2u * THREADS) / B_WIDTH, next_k + (local + 2u * THREADS) % B_WIDTH * 4u);
            b_3_1 = load_b(batch, first_column + (local + 3u * THREADS) / B_WIDTH, next_k + (local + 3u * THREADS) % B_WIDTH * 4u);
        }
        {
            let depth = 0u * (TILE * DEPTHS) + subgroup % DEPTHS * TILE;
            let at_a_0 = (sub_row + 0u * TILE) * A_STRIDE + depth / 4u;
            let a_0 = coopLoadT<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_b_0 = (sub_column + 0u * TILE) * B_STRIDE + depth / 4u;
            let b_0 = coopLoad<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
        }
        {
            let depth = 1u * (TILE * DEPTHS) + subgroup % DEPTHS * TILE;
            let at_a_0 = (sub_row + 0u * TILE) * A_STRIDE + depth / 4u;
            let a_0 = coopLoadT<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_b_0 = (sub_column + 0u * TILE) * B_STRIDE + depth / 4u;
            let b_0 = coopLoad<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
        }
        workgroupBarrier();
        done += STEP;
        if (done >= terms) {
            break;
        }
        shared_a[(local + 0u * THREADS) / A_WIDTH * A_STRIDE + (local + 0u * THREADS) % A_WIDTH] = a_0_2;
        shared_a[(local + 1u * THREADS) / A_WIDTH * A_STRIDE + (local + 1u * THREADS) % A_WIDTH] = a_1_2;
        shared_a[(local + 2u * THREADS) / A_WIDTH * A_STRIDE + (local + 2u * THREADS) % A_WIDTH] = a_2_2;
        shared_a[(local + 3u * THREADS) / A_WIDTH * A_STRIDE + (local + 3u * THREADS) % A_WIDTH] = a_3_2;
        shared_b[(local + 0u * THREADS) / B_WIDTH * B_STRIDE + (local + 0u * THREADS) % B_WIDTH] = b_0_2;
        shared_b[(local + 1u * THREADS) / B_WIDTH * B_STRIDE + (local + 1u * THREADS) % B_WIDTH] = b_1_2;
        shared_b[(local + 2u * THREADS) / B_WIDTH * B_STRIDE + (local + 2u * THREADS) % B_WIDTH] = b_2_2;
        shared_b[(local + 3u * THREADS) / B_WIDTH * B_STRIDE + (local + 3u * THREADS) % B_WIDTH] = b_3_2;
        workgroupBarrier();
        if (done + PREFETCH * STEP < terms) {
            let next_k = begin + done + PREFETCH * STEP;
            a_0_2 = load_a(batch, first_row + (local + 0u * THREADS) / A_WIDTH, next_k + (local + 0u * THREADS) % A_WIDTH * 4u);
            a_1_2 = load_a(batch, first_row + (local + 1u * THREADS) / A_WIDTH, next_k + (local + 1u * THREADS) % A_WIDTH * 4u);
            a_2_2 = load_a(batch, first_row + (local + 2u * THREADS) / A_WIDTH, next_k + (local + 2u * THREADS) % A_WIDTH * 4u);
            a_3_2 = load_a(batch, first_row + (local + 3u * THREADS) / A_WIDTH, next_k + (local + 3u * THREADS) % A_WIDTH * 4u);
            b_0_2 = load_b(batch, first_column + (local + 0u * THREADS) / B_WIDTH, next_k + (local + 0u * THREADS) % B_WIDTH * 4u);
            b_1_2 = load_b(batch, first_column + (local + 1u * THREADS) / B_WIDTH, next_k + (local + 1u * THREADS) % B_WIDTH * 4u);
            b_2_2 = load_b(batch, first_column + (local + 2u * THREADS) / B_WIDTH, next_k + (local + 2u * THREADS) % B_WIDTH * 4u);
            b_3_2 = load_b(batch, first_column + (local + 3u * THREADS) / B_WIDTH, next_k + (local + 3u * THREADS) % B_WIDTH * 4u);
        }
        {
            let depth = 0u * (TILE * DEPTHS) + subgroup % DEPTHS * TILE;
            let at_a_0 = (sub_row + 0u * TILE) * A_STRIDE + depth / 4u;
            let a_0 = coopLoadT<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_b_0 = (sub_column + 0u * TILE) * B_STRIDE + depth / 4u;
            let b_0 = coopLoad<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
        }
        {
            let depth = 1u * (TILE * DEPTHS) + subgroup % DEPTHS * TILE;
            let at_a_0 = (sub_row + 0u * TILE) * A_STRIDE + depth / 4u;
            let a_0 = coopLoadT<MatrixA>(&shared_a[at_a_0], A_STRIDE);
            let at_b_0 = (sub_column + 0u * TILE) * B_STRIDE + depth / 4u;
            let b_0 = coopLoad<MatrixB>(&shared_b[at_b_0], B_STRIDE);
            sum_0_0 = coopMultiplyAdd(a_0, b_0, sum_0_0);
        }
        workgroupBarrier();
        done += STEP;
        if (done >= terms) {
            break;
        }
    }
    let slab_0_0 = subgroup * SLAB + 0u % SLAB_TILES * TILE;
    coopStoreT(sum_0_0, &slab[slab_0_0], SLAB_COLUMNS);
    workgroupBarrier();
    for (var first = local % ROW_THREADS; first < SLAB; first += ROW_THREADS * TOGETHER) {
        let e_0 = first + 0u * ROW_THREADS;
        let row_0 = first_row + sub_row + 0u * TILE + e_0 / SLAB_COLUMNS;
        let column_0 = first_column + sub_column + 0u * SLAB_COLUMNS + e_0 % SLAB_COLUMNS;
        let sum_0 = slab_sum(sub_block, e_0);
        finish(part, element_number(batch, row_0, column_0), sum_0);
    }
    workgroupBarrier();
}
// Four bytes minus an offset.
fn bytes_to_f32x4(bytes: u32, offset: f32) -> vec4<f32> {
    let high = bytes >> 16u;
    let bits = vec4<u32>(bytes & 0xffu, bytes & 0xff00u, high & 0xffu, high & 0xff00u);
    let floats = bitcast<vec4<f32>>(bits | vec4<u32>(0x4b000000u, 0x47000000u, 0x4b000000u, 0x47000000u));
    return floats - vec4<f32>(8388608.0 + offset, 32768.0 + offset, 8388608.0 + offset, 32768.0 + offset);
}
// With two bits above each.
fn six_bits_to_f32x4(word: u32, above: u32, half: u32) -> vec4<f32> {
    let low = (word >> (4u * half)) & 0x0f0f0f0fu;
    return bytes_to_f32x4(low | (((above >> (4u * half)) & 0x03030303u) << 4u), 32.0);
}
