var<storage, read_write> fault: array<atomic<u32>>;
var<uniform> reporter: u32;
var<storage, read> b0: array<vec4<f32>>;
var<storage, read_write> b1: array<u32>;
var<storage, read> b2: array<u32>;
var<storage, read_write> b3: array<u32>;
// Quantizes new rows and writes them into a cache of words [SLOTS, WIDTH / 4] and scales [SLOTS, WIDTH / 32] in place. A
// workgroup has one new row.
//
// If PAGED, each row has a slot. The workgroup checks first if a later row has the same slot: only the last of these rows
// is written. A row with the slot SLOTS is not written. Otherwise, each sequence has the position of its first row. Larger
// slots or positions are reported as faults.
//
// A thread quantizes two blocks of 32 elements, because two scales share a word. The scale of a block is its largest
// magnitude divided by 127, rounded to f16 after the integers are computed.
//
// Twin in the oracle: core/src/ops/quantized_cache_write.rs.
const ROWS: u32 = 1u;
const SLOTS: u32 = 1u;
const THREADS: u32 = 64u;
const PAIRS: u32 = 1u;
const WORDS: u32 = 8u;
fn load_place(index: u32) -> u32 {
    return b2[index];
}
fn load_new(vector: u32) -> vec4<f32> {
    return b0[vector];
}
fn store_word(at: u32, value: u32) {
    b3[at] = value;
}
// The scales of two adjacent blocks.
fn store_scales(at: u32, value: u32) {
    b1[at] = value;
}
// Bits of the largest magnitude. Magnitudes have the order of their bits, and NaN is above infinity.
fn greatest_bits(x: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}
// Four elements divided by a scale and rounded, as bytes in two's complement.
fn quantized_word(x: vec4<f32>, scale: f32) -> u32 {
    let q = vec4<i32>(clamp(round(x / scale), vec4<f32>(-127.0), vec4<f32>(127.0)));
    let bytes = bitcast<vec4<u32>>(q) & vec4<u32>(0xffu);
    return bytes.x | (bytes.y << 8u) | (bytes.z << 16u) | (bytes.w << 24u);
}
// Quantizes a block, and returns its scale as f16. A block of zeros, or with infinity or NaN, has integers of 0.
fn write_block(from_vector: u32, to_word: u32) -> u32 {
    let x_0 = load_new(from_vector + 0u);
    let x_1 = load_new(from_vector + 1u);
    let x_2 = load_new(from_vector + 2u);
    let x_3 = load_new(from_vector + 3u);
    let x_4 = load_new(from_vector + 4u);
    let x_5 = load_new(from_vector + 5u);
    let x_6 = load_new(from_vector + 6u);
    let x_7 = load_new(from_vector + 7u);
    var bits = 0u;
    bits = max(bits, greatest_bits(x_0));
    bits = max(bits, greatest_bits(x_1));
    bits = max(bits, greatest_bits(x_2));
    bits = max(bits, greatest_bits(x_3));
    bits = max(bits, greatest_bits(x_4));
    bits = max(bits, greatest_bits(x_5));
    bits = max(bits, greatest_bits(x_6));
    bits = max(bits, greatest_bits(x_7));
    let scale = bitcast<f32>(bits) / 127.0;
    if (scale == 0.0 || bits >= 0x7f800000u) {
        store_word(to_word + 0u, 0u);
        store_word(to_word + 1u, 0u);
        store_word(to_word + 2u, 0u);
        store_word(to_word + 3u, 0u);
        store_word(to_word + 4u, 0u);
        store_word(to_word + 5u, 0u);
        store_word(to_word + 6u, 0u);
        store_word(to_word + 7u, 0u);
    } else {
        store_word(to_word + 0u, quantized_word(x_0, scale));
        store_word(to_word + 1u, quantized_word(x_1, scale));
        store_word(to_word + 2u, quantized_word(x_2, scale));
        store_word(to_word + 3u, quantized_word(x_3, scale));
        store_word(to_word + 4u, quantized_word(x_4, scale));
        store_word(to_word + 5u, quantized_word(x_5, scale));
        store_word(to_word + 6u, quantized_word(x_6, scale));
        store_word(to_word + 7u, quantized_word(x_7, scale));
    }
    return f32_to_f16(scale);
}
// 1 if a later row has the same slot.
var<workgroup> is_replaced: atomic<u32>;
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let row = group_number;
    var slot = 0u;
    let given = load_place(row);
    slot = checked_index(given, SLOTS + 1u);
    if (local == 0u) {
        atomicStore(&is_replaced, 0u);
    }
    workgroupBarrier();
    for (var later = row + 1u + local; later < ROWS; later += THREADS) {
        if (load_place(later) == given) {
            atomicStore(&is_replaced, 1u);
        }
    }
    workgroupBarrier();
    if (given != slot || slot >= SLOTS || atomicLoad(&is_replaced) != 0u) {
        return;
    }
    for (var pair = local; pair < PAIRS; pair += THREADS) {
        let from_vector = (row * PAIRS + pair) * 2u * WORDS;
        let to_word = (slot * PAIRS + pair) * 2u * WORDS;
        let first = write_block(from_vector, to_word);
        let second = write_block(from_vector + WORDS, to_word + WORDS);
        store_scales(slot * PAIRS + pair, first | (second << 16u));
    }
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
// Returns the index if it is below `rows`. Otherwise reports it and returns 0. The largest invalid index is kept, so
// that the report does not depend on the order.
fn checked_index(index: u32, rows: u32) -> u32 {
    if (index < rows) {
        return index;
    }
    atomicStore(&fault[0], 1u);
    atomicStore(&fault[1u + 2u * reporter], 1u);
    atomicMax(&fault[2u + 2u * reporter], index);
    return 0u;
}
