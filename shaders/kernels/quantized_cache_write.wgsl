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

const ROWS: u32 = 8u;
const WIDTH: u32 = 192u;
const SLOTS: u32 = 1024u; // number of rows of the cache
const PAGED: bool = false;
// New rows of a sequence, and rows of a sequence in the cache; unless PAGED.
const SEQUENCE_ROWS: u32 = 1u;
const CAPACITY: u32 = 512u;
const THREADS: u32 = 64u;

const PAIRS: u32 = WIDTH / 64u; // pairs of blocks of a row
const WORDS: u32 = 8u; // words of a block, which are as many as its vectors of four elements
const j: u32 = 0u; // index of a repeat

var<storage, read> rows: array<vec4<f32>>;
var<storage, read> places: array<u32>; // slots, or positions
var<storage, read_write> words: array<u32>;
var<storage, read_write> scales: array<u32>;

fn load_place(index: u32) -> u32 {
    return places[index];
}

fn load_new(vector: u32) -> vec4<f32> {
    return rows[vector];
}

fn store_word(at: u32, value: u32) {
    words[at] = value;
}

// The scales of two adjacent blocks.
fn store_scales(at: u32, value: u32) {
    scales[at] = value;
}

// lib/fault.wgsl
fn checked_index(i: u32, rows: u32) -> u32 {
    return min(i, rows - 1u);
}

// lib/math.wgsl
fn f32_to_f16(x: f32) -> u32 { return u32(x); }

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
    // @repeat j < WORDS
    let x_j = load_new(from_vector + j);
    // @end
    var bits = 0u;
    // @repeat j < WORDS
    bits = max(bits, greatest_bits(x_j));
    // @end
    let scale = bitcast<f32>(bits) / 127.0;
    if (scale == 0.0 || bits >= 0x7f800000u) {
        // @repeat j < WORDS
        store_word(to_word + j, 0u);
        // @end
    } else {
        // @repeat j < WORDS
        store_word(to_word + j, quantized_word(x_j, scale));
        // @end
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
    // @if PAGED
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
    // @else
    let sequence = row / SEQUENCE_ROWS;
    let first_row = load_place(sequence);
    let position = checked_index(first_row, CAPACITY + 1u - SEQUENCE_ROWS);
    if (first_row != position) {
        return;
    }
    slot = sequence * CAPACITY + position + row % SEQUENCE_ROWS;
    // @end
    for (var pair = local; pair < PAIRS; pair += THREADS) {
        let from_vector = (row * PAIRS + pair) * 2u * WORDS;
        let to_word = (slot * PAIRS + pair) * 2u * WORDS;
        let first = write_block(from_vector, to_word);
        let second = write_block(from_vector + WORDS, to_word + WORDS);
        store_scales(slot * PAIRS + pair, first | (second << 16u));
    }
}
