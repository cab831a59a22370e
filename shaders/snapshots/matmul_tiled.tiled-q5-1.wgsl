var<storage, read_write> b0: array<f32>;
var<storage, read> b1: array<vec4<f32>>;
var<storage, read> b2: array<u32>;
var<storage, read> b3: array<u32>;
// Matrix product in f32, by tiles in shared memory: out[batch, M, N] = epilogue(A[batch, M, K] B[batch, K, N]).
//
// A workgroup of SIDE by SIDE threads computes a block of SIDE * EACH rows and columns, every thread EACH by EACH elements of it
// in registers. It goes over K in steps: a piece of both operands is copied to shared memory, from where each thread reads
// vectors of WIDTH lines, the next piece being loaded into registers meanwhile. Two barriers a step. Where there are few blocks,
// K is cut into PARTS (split-K), whose sums split_k_join.wgsl adds up.
//
// Twin in the oracle: core/src/ops/matmul.rs, core/src/ops/conv2d.
// Neighbouring lines of an operand: f32, vec2<f32> or vec4<f32>.
alias Vector = vec4<f32>;
// The product. Whether neighbours in memory are neighbours along K, rather than along M or N.
const BATCH: u32 = 1u;
const M: u32 = 200u;
const N: u32 = 1200u;
const K: u32 = 96u;
const A_ALONG_K: bool = true;
const B_ALONG_K: bool = true;
const SIDE: u32 = 16u;
const STEP: u32 = 16u;
const THREADS: u32 = 256u;
const BLOCK: u32 = 64u;
const WIDTH: u32 = 4u;
const ACROSS: u32 = 19u;
const DOWN: u32 = 4u;
var<workgroup> shared_a: array<Vector, BLOCK / WIDTH * STEP>;
var<workgroup> shared_b: array<Vector, BLOCK / WIDTH * STEP>;
// WIDTH elements of A, side by side in memory, from row `line` and term `k` on; zero from K on, where nothing may come in, not
// even NaN.
fn load_a(batch: u32, line: u32, k: u32) -> Vector {
    let v1 = min(line, 199u);
    let v2 = min(k, 92u);
    return select(vec4<f32>(), b1[(v1 * 96u + v2) / 4u], k < 96u);
}
// The same of B, from column `line` on.
fn load_b(batch: u32, line: u32, k: u32) -> Vector {
    let v3 = min(line, 1199u);
    let v4 = min(k, 92u);
    let v5 = v3 * 96u + v4;
    let v6 = v5 / 32u;
    let v7 = v5 / 16u % 2u;
    let v8 = v5 / 4u % 4u;
    let v9 = b2[v6 * 5u + v8];
    let v10 = b2[v6 * 5u + 4u];
    let v11 = v10 >> v8;
    let v12 = f16_to_f32((b3[(v6 * 2u) >> 1u] >> (((v6 * 2u) & 1u) * 16u)) & 0xffffu);
    let v13 = f16_to_f32((b3[(v6 * 2u + 1u) >> 1u] >> (((v6 * 2u + 1u) & 1u) * 16u)) & 0xffffu);
    return select(vec4<f32>(), fma(five_bits_to_f32x4(v9, v11, v7, 0.0), vec4<f32>(v12), vec4<f32>(v13)), k < 96u);
}
// The number of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 {
    return (batch * M + row) * N + column;
}
// What becomes of a sum, or of a part of one.
fn finish(part: u32, i: u32, product: f32) {
    b0[i] = product;
}
fn finish_within(part: u32, batch: u32, row: u32, column: u32, sum: f32) {
    if (row < M && column < N) {
        finish(part, element_number(batch, min(row, M - 1u), min(column, N - 1u)), sum);
    }
}
// The first line, and the first term, of a thread's vector `number` within a piece.
fn line_of(number: u32, along_k: bool) -> u32 {
    return select(number % (BLOCK / WIDTH) * WIDTH, number / (STEP / WIDTH), along_k);
}
fn depth_of(number: u32, along_k: bool) -> u32 {
    return select(number / (BLOCK / WIDTH), number % (STEP / WIDTH) * WIDTH, along_k);
}
// Where shared memory has a line at a depth. Vectors are shuffled from depth to depth, so that threads that store one line at
// several depths do not wait for the same bank.
fn location_of(depth: u32, line: u32) -> u32 {
    return depth * (BLOCK / WIDTH) + (line / WIDTH ^ depth % 8u);
}
// Line `number` of a thread within the block: its lines lie together in vectors.
fn own_line(thread: u32, number: u32) -> u32 {
    return thread * WIDTH + (number / WIDTH * SIDE * WIDTH + number % WIDTH);
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let first_column = group_number % ACROSS * BLOCK;
    let first_row = group_number / ACROSS % DOWN * BLOCK;
    let batch = group_number / (ACROSS * DOWN) % BATCH;
    let part = group_number / (ACROSS * DOWN * BATCH);
    let y = local / SIDE;
    let x = local % SIDE;
    var sum_0_0 = 0.0;
    var sum_0_1 = 0.0;
    var sum_0_2 = 0.0;
    var sum_0_3 = 0.0;
    var sum_1_0 = 0.0;
    var sum_1_1 = 0.0;
    var sum_1_2 = 0.0;
    var sum_1_3 = 0.0;
    var sum_2_0 = 0.0;
    var sum_2_1 = 0.0;
    var sum_2_2 = 0.0;
    var sum_2_3 = 0.0;
    var sum_3_0 = 0.0;
    var sum_3_1 = 0.0;
    var sum_3_2 = 0.0;
    var sum_3_3 = 0.0;
    var begin = 0u;
    var terms = K;
    var a_0 = load_a(batch, first_row + line_of(local + 0u * THREADS, A_ALONG_K), begin + depth_of(local + 0u * THREADS, A_ALONG_K));
    var b_0 = load_b(batch, first_column + line_of(local + 0u * THREADS, B_ALONG_K), begin + depth_of(local + 0u * THREADS, B_ALONG_K));
    var done = 0u;
    loop {
        {
            let line = line_of(local + 0u * THREADS, A_ALONG_K);
            let depth = depth_of(local + 0u * THREADS, A_ALONG_K);
            shared_a[location_of(depth + 0u, line)][line % WIDTH] = a_0[0u];
            shared_a[location_of(depth + 1u, line)][line % WIDTH] = a_0[1u];
            shared_a[location_of(depth + 2u, line)][line % WIDTH] = a_0[2u];
            shared_a[location_of(depth + 3u, line)][line % WIDTH] = a_0[3u];
        }
        {
            let line = line_of(local + 0u * THREADS, B_ALONG_K);
            let depth = depth_of(local + 0u * THREADS, B_ALONG_K);
            shared_b[location_of(depth + 0u, line)][line % WIDTH] = b_0[0u];
            shared_b[location_of(depth + 1u, line)][line % WIDTH] = b_0[1u];
            shared_b[location_of(depth + 2u, line)][line % WIDTH] = b_0[2u];
            shared_b[location_of(depth + 3u, line)][line % WIDTH] = b_0[3u];
        }
        workgroupBarrier();
        let next = done + STEP;
        if (next < terms) {
            let next_k = begin + next;
            a_0 = load_a(batch, first_row + line_of(local + 0u * THREADS, A_ALONG_K), next_k + depth_of(local + 0u * THREADS, A_ALONG_K));
            b_0 = load_b(batch, first_column + line_of(local + 0u * THREADS, B_ALONG_K), next_k + depth_of(local + 0u * THREADS, B_ALONG_K));
        }
        for (var d = 0u; d < STEP; d += 1u) {
            let own_a_0 = shared_a[location_of(d, own_line(y, 0u * WIDTH))];
            let own_b_0 = shared_b[location_of(d, own_line(x, 0u * WIDTH))];
            sum_0_0 = fma(own_a_0[0u % WIDTH], own_b_0[0u % WIDTH], sum_0_0);
            sum_0_1 = fma(own_a_0[0u % WIDTH], own_b_0[1u % WIDTH], sum_0_1);
            sum_0_2 = fma(own_a_0[0u % WIDTH], own_b_0[2u % WIDTH], sum_0_2);
            sum_0_3 = fma(own_a_0[0u % WIDTH], own_b_0[3u % WIDTH], sum_0_3);
            sum_1_0 = fma(own_a_0[1u % WIDTH], own_b_0[0u % WIDTH], sum_1_0);
            sum_1_1 = fma(own_a_0[1u % WIDTH], own_b_0[1u % WIDTH], sum_1_1);
            sum_1_2 = fma(own_a_0[1u % WIDTH], own_b_0[2u % WIDTH], sum_1_2);
            sum_1_3 = fma(own_a_0[1u % WIDTH], own_b_0[3u % WIDTH], sum_1_3);
            sum_2_0 = fma(own_a_0[2u % WIDTH], own_b_0[0u % WIDTH], sum_2_0);
            sum_2_1 = fma(own_a_0[2u % WIDTH], own_b_0[1u % WIDTH], sum_2_1);
            sum_2_2 = fma(own_a_0[2u % WIDTH], own_b_0[2u % WIDTH], sum_2_2);
            sum_2_3 = fma(own_a_0[2u % WIDTH], own_b_0[3u % WIDTH], sum_2_3);
            sum_3_0 = fma(own_a_0[3u % WIDTH], own_b_0[0u % WIDTH], sum_3_0);
            sum_3_1 = fma(own_a_0[3u % WIDTH], own_b_0[1u % WIDTH], sum_3_1);
            sum_3_2 = fma(own_a_0[3u % WIDTH], own_b_0[2u % WIDTH], sum_3_2);
            sum_3_3 = fma(own_a_0[3u % WIDTH], own_b_0[3u % WIDTH], sum_3_3);
        }
        workgroupBarrier();
        done = next;
        if (done >= terms) {
            break;
        }
    }
    finish_within(part, batch, first_row + own_line(y, 0u), first_column + own_line(x, 0u), sum_0_0);
    finish_within(part, batch, first_row + own_line(y, 0u), first_column + own_line(x, 1u), sum_0_1);
    finish_within(part, batch, first_row + own_line(y, 0u), first_column + own_line(x, 2u), sum_0_2);
    finish_within(part, batch, first_row + own_line(y, 0u), first_column + own_line(x, 3u), sum_0_3);
    finish_within(part, batch, first_row + own_line(y, 1u), first_column + own_line(x, 0u), sum_1_0);
    finish_within(part, batch, first_row + own_line(y, 1u), first_column + own_line(x, 1u), sum_1_1);
    finish_within(part, batch, first_row + own_line(y, 1u), first_column + own_line(x, 2u), sum_1_2);
    finish_within(part, batch, first_row + own_line(y, 1u), first_column + own_line(x, 3u), sum_1_3);
    finish_within(part, batch, first_row + own_line(y, 2u), first_column + own_line(x, 0u), sum_2_0);
    finish_within(part, batch, first_row + own_line(y, 2u), first_column + own_line(x, 1u), sum_2_1);
    finish_within(part, batch, first_row + own_line(y, 2u), first_column + own_line(x, 2u), sum_2_2);
    finish_within(part, batch, first_row + own_line(y, 2u), first_column + own_line(x, 3u), sum_2_3);
    finish_within(part, batch, first_row + own_line(y, 3u), first_column + own_line(x, 0u), sum_3_0);
    finish_within(part, batch, first_row + own_line(y, 3u), first_column + own_line(x, 1u), sum_3_1);
    finish_within(part, batch, first_row + own_line(y, 3u), first_column + own_line(x, 2u), sum_3_2);
    finish_within(part, batch, first_row + own_line(y, 3u), first_column + own_line(x, 3u), sum_3_3);
}
// Scalar functions. WGSL leaves NaN, infinities and the accuracy of most built-in functions to the driver; these
// say what happens. A kernel gets the functions that it uses, and those that they use.
// Not a constant, so that no compiler evaluates what comes out of these bits.
fn from_bits(bits: u32) -> f32 {
    var word = bits;
    return bitcast<f32>(word);
}
// Half precision in 16 bits, without the device's own conversions: these may flush small numbers.
fn f16_to_f32(half: u32) -> f32 {
    // Without branches, behind which loads would wait for each other.
    let magnitude = half & 0x7fffu;
    let tiny = bitcast<u32>(f32(magnitude) * 5.9604644775390625e-8);
    let finite = select((magnitude << 13u) + 0x38000000u, tiny, magnitude < 0x400u);
    let word = select(finite, (magnitude << 13u) | 0x7f800000u, magnitude >= 0x7c00u);
    return from_bits(word | ((half & 0x8000u) << 16u));
}
// Four bytes minus an offset.
fn bytes_to_f32x4(bytes: u32, offset: f32) -> vec4<f32> {
    let high = bytes >> 16u;
    let bits = vec4<u32>(bytes & 0xffu, bytes & 0xff00u, high & 0xffu, high & 0xff00u);
    let floats = bitcast<vec4<f32>>(bits | vec4<u32>(0x4b000000u, 0x47000000u, 0x4b000000u, 0x47000000u));
    return floats - vec4<f32>(8388608.0 + offset, 32768.0 + offset, 8388608.0 + offset, 32768.0 + offset);
}
// The same with a bit above each, those of the first half in the lowest bits of bytes and those of the second four bits higher.
fn five_bits_to_f32x4(word: u32, above: u32, half: u32, offset: f32) -> vec4<f32> {
    let low = (word >> (4u * half)) & 0x0f0f0f0fu;
    return bytes_to_f32x4(low | (((above >> (4u * half)) & 0x01010101u) << 4u), offset);
}
