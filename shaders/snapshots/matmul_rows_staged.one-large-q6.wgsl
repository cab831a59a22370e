enable f16;
var<storage, read_write> b0: array<f32>;
var<storage, read> b1: array<u32>;
var<storage, read> b2: array<f16>;
var<storage, read> b3: array<vec4<f32>>;
// Matrix product of few rows with a large matrix whose columns lie along K, as for a token of a model of billions of parameters.
//
// A workgroup stores the rows in shared memory (CHUNK units at a time), and then computes one TILE of columns after the other.
// Each column has LANES threads. A thread has COUNT units of COLUMNS columns in flight
// while rows are stored, and while earlier units are added. A unit is UNIT vectors
// of four terms: a block of packed weights, or one vector of a plain matrix. An element of a row is read from shared memory once for
// COLUMNS columns. Where there are few columns, K is cut into PARTS (split-K).
//
// Packed integers q become floats by bits of a mantissa: BIAS + q takes a shift, an "and" and an "or". The bias is subtracted once
// for each block: sum(q x) = sum((BIAS + q) x) - BIAS sum(x), and sum(x) is computed once for all columns (SUMMED). The vector with
// that sum keeps neighbouring lanes in different banks.
//
// Twin in the oracle: core/src/ops/matmul.rs, core/src/ops/quantized.rs.
const BATCH: u32 = 1u;
const M: u32 = 1u;
const N: u32 = 28672u;
const K: u32 = 4096u;
// The schedule.
const COLUMNS: u32 = 4u;
const CHUNK: u32 = 128u;
const UNIT: u32 = 8u;
const STRIDE: u32 = 9u;
const COUNT: u32 = 1u;
const HALF: u32 = 0u;
const THREADS: u32 = 256u;
const LANES: u32 = 32u;
const GROUPS: u32 = 8u;
const TILE: u32 = 32u;
const ACROSS: u32 = 896u;
const UNITS: u32 = 128u;
const ALL_UNITS: u32 = 128u;
const SUMS: u32 = 4u;
const ROW: u32 = 1152u;
const CHUNK_VECTORS: u32 = 1024u;
var<workgroup> staged: array<vec4<f32>, M * ROW>;
// The vector `k` of a row.
fn load_a(batch: u32, line: u32, k: u32) -> vec4<f32> {
    let v9 = k * 4u;
    return b3[(v9) / 4u];
}
// The first four words of the block `k` of a column, the words after them, and its scales.
fn load_low(batch: u32, line: u32, k: u32) -> vec4<u32> {
    let v1 = k * 32u;
    let v2 = (line * 4096u + v1) / 32u;
    return vec4<u32>(b1[v2 * 6u + 0u], b1[v2 * 6u + 1u], b1[v2 * 6u + 2u], b1[v2 * 6u + 3u]);
}
fn load_high(batch: u32, line: u32, k: u32) -> vec4<u32> {
    let v7 = k * 32u;
    let v8 = (line * 4096u + v7) / 32u;
    return vec4<u32>(b1[v8 * 6u + 4u], b1[v8 * 6u + 5u], 0u, 0u);
}
fn load_scales(batch: u32, line: u32, k: u32) -> vec2<f32> {
    let v3 = k * 32u;
    let v4 = (line * 4096u + v3) / 32u;
    let v5 = f32(b2[v4 * 2u]);
    let v6 = f32(b2[v4 * 2u + 1u]);
    return vec2<f32>(v5, v6);
}
// A vector of a block, with the bias.
fn expand(low: vec4<u32>, high: vec4<u32>, number: u32) -> vec4<f32> {
    return six_bits_to_f32x4(low[number % 4u], high[number % 2u] >> (number % 4u / 2u * 2u), number / 4u);
}
// The sum of a block: its scales, the sums of both halves with the bias, and the sums of the row's terms of both halves.
fn scaled(scales: vec2<f32>, halves: vec2<f32>, terms: vec2<f32>) -> f32 {
    return fma(scales.x, halves.x, scales.y * halves.y);
}
// A sum and four terms more.
fn add_terms(sum: f32, x: vec4<f32>, y: vec4<f32>) -> f32 { return fma(x.w, y.w, fma(x.z, y.z, fma(x.y, y.y, fma(x.x, y.x, sum)))); }
// The number of an element of the result.
fn element_number(batch: u32, row: u32, column: u32) -> u32 { return (batch * M + row) * N + column; }
// What becomes of a sum, or of a part of one.
fn finish(part: u32, i: u32, product: f32) {
    b0[i] = product;
}
// Backends that begin a launch before the one in front of it has ended wait for it here: what is read before, no launch writes.
fn await_earlier_launches() {}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let first_tile = group_number % ACROSS;
    let batch = group_number / ACROSS % BATCH;
    let part = group_number / (ACROSS * BATCH);
    let slot = local % LANES;
    let first_unit = part * UNITS;
    let end = min(first_unit + UNITS, ALL_UNITS);
    {
        let tile = first_tile + 0u * ACROSS;
        let column_0 = min(column_of(tile, 0u * GROUPS + local / LANES), N - 1u);
        let column_1 = min(column_of(tile, 1u * GROUPS + local / LANES), N - 1u);
        let column_2 = min(column_of(tile, 2u * GROUPS + local / LANES), N - 1u);
        let column_3 = min(column_of(tile, 3u * GROUPS + local / LANES), N - 1u);
        var sum_0 = 0.0;
        var sum_1 = 0.0;
        var sum_2 = 0.0;
        var sum_3 = 0.0;
        let chunk = first_unit;
        {
            let chunk_end = min(chunk + CHUNK, end);
            // What comes before needs none of the matrix, which is loaded meanwhile.
            let first_0 = min(chunk + slot + 0u * LANES, chunk_end - 1u);
            var low_0_0 = load_low(batch, column_0, first_0);
            var high_0_0 = load_high(batch, column_0, first_0);
            var scales_0_0 = load_scales(batch, column_0, first_0);
            var low_0_1 = load_low(batch, column_1, first_0);
            var high_0_1 = load_high(batch, column_1, first_0);
            var scales_0_1 = load_scales(batch, column_1, first_0);
            var low_0_2 = load_low(batch, column_2, first_0);
            var high_0_2 = load_high(batch, column_2, first_0);
            var scales_0_2 = load_scales(batch, column_2, first_0);
            var low_0_3 = load_low(batch, column_3, first_0);
            var high_0_3 = load_high(batch, column_3, first_0);
            var scales_0_3 = load_scales(batch, column_3, first_0);
            await_earlier_launches();
            for (var i = local; i < M * CHUNK_VECTORS; i += THREADS) {
                let row = i / CHUNK_VECTORS;
                let vector = i % CHUNK_VECTORS;
                let found = min(chunk * UNIT + vector, K / 4u - 1u);
                let x = load_a(batch, row, found);
                staged[row * ROW + vector / UNIT * STRIDE + vector % UNIT] = x;
            }
            workgroupBarrier();
            for (var k = chunk + slot; k < chunk_end; k += COUNT * LANES) {
                let k_0 = min(k + 0u * LANES, chunk_end - 1u);
                // The units of the next round are loaded while those of this one are added.
                let next_0 = min(k + (COUNT + 0u) * LANES, chunk_end - 1u);
                let own_low_0_0 = low_0_0;
                let own_high_0_0 = high_0_0;
                let own_scales_0_0 = scales_0_0;
                low_0_0 = load_low(batch, column_0, next_0);
                high_0_0 = load_high(batch, column_0, next_0);
                scales_0_0 = load_scales(batch, column_0, next_0);
                let own_low_0_1 = low_0_1;
                let own_high_0_1 = high_0_1;
                let own_scales_0_1 = scales_0_1;
                low_0_1 = load_low(batch, column_1, next_0);
                high_0_1 = load_high(batch, column_1, next_0);
                scales_0_1 = load_scales(batch, column_1, next_0);
                let own_low_0_2 = low_0_2;
                let own_high_0_2 = high_0_2;
                let own_scales_0_2 = scales_0_2;
                low_0_2 = load_low(batch, column_2, next_0);
                high_0_2 = load_high(batch, column_2, next_0);
                scales_0_2 = load_scales(batch, column_2, next_0);
                let own_low_0_3 = low_0_3;
                let own_high_0_3 = high_0_3;
                let own_scales_0_3 = scales_0_3;
                low_0_3 = load_low(batch, column_3, next_0);
                high_0_3 = load_high(batch, column_3, next_0);
                scales_0_3 = load_scales(batch, column_3, next_0);
                let at_0 = (k_0 - chunk) * STRIDE;
                let is_inside_0 = k + 0u * LANES < chunk_end;
                var terms_0_0 = vec2<f32>();
                let x_0_0_0 = staged[0u * ROW + at_0 + 0u];
                let x_0_0_1 = staged[0u * ROW + at_0 + 1u];
                let x_0_0_2 = staged[0u * ROW + at_0 + 2u];
                let x_0_0_3 = staged[0u * ROW + at_0 + 3u];
                let x_0_0_4 = staged[0u * ROW + at_0 + 4u];
                let x_0_0_5 = staged[0u * ROW + at_0 + 5u];
                let x_0_0_6 = staged[0u * ROW + at_0 + 6u];
                let x_0_0_7 = staged[0u * ROW + at_0 + 7u];
                var lower_0_0 = 0.0;
                var upper_0_0 = 0.0;
                lower_0_0 = add_terms(lower_0_0, x_0_0_0, expand(own_low_0_0, own_high_0_0, 0u));
                lower_0_0 = add_terms(lower_0_0, x_0_0_1, expand(own_low_0_0, own_high_0_0, 1u));
                lower_0_0 = add_terms(lower_0_0, x_0_0_2, expand(own_low_0_0, own_high_0_0, 2u));
                lower_0_0 = add_terms(lower_0_0, x_0_0_3, expand(own_low_0_0, own_high_0_0, 3u));
                upper_0_0 = add_terms(upper_0_0, x_0_0_4, expand(own_low_0_0, own_high_0_0, 4u));
                upper_0_0 = add_terms(upper_0_0, x_0_0_5, expand(own_low_0_0, own_high_0_0, 5u));
                upper_0_0 = add_terms(upper_0_0, x_0_0_6, expand(own_low_0_0, own_high_0_0, 6u));
                upper_0_0 = add_terms(upper_0_0, x_0_0_7, expand(own_low_0_0, own_high_0_0, 7u));
                sum_0 += select(0.0, scaled(own_scales_0_0, vec2<f32>(lower_0_0, upper_0_0), terms_0_0), is_inside_0);
                var lower_0_1 = 0.0;
                var upper_0_1 = 0.0;
                lower_0_1 = add_terms(lower_0_1, x_0_0_0, expand(own_low_0_1, own_high_0_1, 0u));
                lower_0_1 = add_terms(lower_0_1, x_0_0_1, expand(own_low_0_1, own_high_0_1, 1u));
                lower_0_1 = add_terms(lower_0_1, x_0_0_2, expand(own_low_0_1, own_high_0_1, 2u));
                lower_0_1 = add_terms(lower_0_1, x_0_0_3, expand(own_low_0_1, own_high_0_1, 3u));
                upper_0_1 = add_terms(upper_0_1, x_0_0_4, expand(own_low_0_1, own_high_0_1, 4u));
                upper_0_1 = add_terms(upper_0_1, x_0_0_5, expand(own_low_0_1, own_high_0_1, 5u));
                upper_0_1 = add_terms(upper_0_1, x_0_0_6, expand(own_low_0_1, own_high_0_1, 6u));
                upper_0_1 = add_terms(upper_0_1, x_0_0_7, expand(own_low_0_1, own_high_0_1, 7u));
                sum_1 += select(0.0, scaled(own_scales_0_1, vec2<f32>(lower_0_1, upper_0_1), terms_0_0), is_inside_0);
                var lower_0_2 = 0.0;
                var upper_0_2 = 0.0;
                lower_0_2 = add_terms(lower_0_2, x_0_0_0, expand(own_low_0_2, own_high_0_2, 0u));
                lower_0_2 = add_terms(lower_0_2, x_0_0_1, expand(own_low_0_2, own_high_0_2, 1u));
                lower_0_2 = add_terms(lower_0_2, x_0_0_2, expand(own_low_0_2, own_high_0_2, 2u));
                lower_0_2 = add_terms(lower_0_2, x_0_0_3, expand(own_low_0_2, own_high_0_2, 3u));
                upper_0_2 = add_terms(upper_0_2, x_0_0_4, expand(own_low_0_2, own_high_0_2, 4u));
                upper_0_2 = add_terms(upper_0_2, x_0_0_5, expand(own_low_0_2, own_high_0_2, 5u));
                upper_0_2 = add_terms(upper_0_2, x_0_0_6, expand(own_low_0_2, own_high_0_2, 6u));
                upper_0_2 = add_terms(upper_0_2, x_0_0_7, expand(own_low_0_2, own_high_0_2, 7u));
                sum_2 += select(0.0, scaled(own_scales_0_2, vec2<f32>(lower_0_2, upper_0_2), terms_0_0), is_inside_0);
                var lower_0_3 = 0.0;
                var upper_0_3 = 0.0;
                lower_0_3 = add_terms(lower_0_3, x_0_0_0, expand(own_low_0_3, own_high_0_3, 0u));
                lower_0_3 = add_terms(lower_0_3, x_0_0_1, expand(own_low_0_3, own_high_0_3, 1u));
                lower_0_3 = add_terms(lower_0_3, x_0_0_2, expand(own_low_0_3, own_high_0_3, 2u));
                lower_0_3 = add_terms(lower_0_3, x_0_0_3, expand(own_low_0_3, own_high_0_3, 3u));
                upper_0_3 = add_terms(upper_0_3, x_0_0_4, expand(own_low_0_3, own_high_0_3, 4u));
                upper_0_3 = add_terms(upper_0_3, x_0_0_5, expand(own_low_0_3, own_high_0_3, 5u));
                upper_0_3 = add_terms(upper_0_3, x_0_0_6, expand(own_low_0_3, own_high_0_3, 6u));
                upper_0_3 = add_terms(upper_0_3, x_0_0_7, expand(own_low_0_3, own_high_0_3, 7u));
                sum_3 += select(0.0, scaled(own_scales_0_3, vec2<f32>(lower_0_3, upper_0_3), terms_0_0), is_inside_0);
            }
        }
        let all_0 = subgroupAdd(sum_0);
        let all_1 = subgroupAdd(sum_1);
        let all_2 = subgroupAdd(sum_2);
        let all_3 = subgroupAdd(sum_3);
        // Lane `t` of a column finishes the sum `t`.
        var own_sum = all_0;
        own_sum = select(own_sum, all_1, slot == 1u);
        own_sum = select(own_sum, all_2, slot == 2u);
        own_sum = select(own_sum, all_3, slot == 3u);
        let own_number = slot % COLUMNS * GROUPS + local / LANES;
        if (slot < SUMS && column_of(tile, own_number) < N) {
            finish(part, element_number(batch, slot / COLUMNS, column_of(tile, own_number)), own_sum);
        }
    }
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
