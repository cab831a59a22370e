var<storage, read> b0: array<f32>;
var<storage, read> b1: array<u32>;
var<storage, read_write> fault: array<atomic<u32>>;
var<uniform> reporter: u32;
var<storage, read_write> b2: array<u32>;
// Writes new rows of a key-value cache in place: [SEQUENCES, CAPACITY, WIDTH] from the row on that the position of each sequence
// names. A thread for each element of the new rows, or for two of a cache of half precision. A position beyond the cache is reported, and nothing is written.
//
// Twin in the oracle: core/src/ops/cache_write.rs.
const COUNT: u32 = 1u;
const ROWS: u32 = 1u;
const CAPACITY: u32 = 1u;
const WIDTH: u32 = 2u;
const POSITIONS: u32 = 1u;
const THREADS: u32 = 256u;
fn load_position(sequence: u32) -> u32 {
    return b1[sequence];
}
// An element of the new rows, or what it becomes before it is written, such as rotated by its position.
fn new_element(i: u32) -> f32 {
    let v1 = b0[0u];
    let v2 = b1[0u];
    let v3 = v2 + 0u;
    let v4 = v3 * 683565275u;
    let v5 = shift_right_u32(v3, 16u);
    let v6 = v5 * 37777u;
    let v7 = v4 + v6;
    let v8 = v3 & 65535u;
    let v9 = v8 * 37777u;
    let v10 = shift_right_u32(v9, 16u);
    let v11 = v7 + v10;
    let v12 = v11 + 2147483648u;
    let v13 = f32(v12);
    let v14 = v13 * (1.4629181e-9f);
    let v15 = v14 - (3.1415927e0f);
    let v16 = cos_f32(v15);
    let v17 = v1 * v16;
    let v18 = 1u;
    let v19 = b0[v18];
    let v20 = sin_f32(v15);
    let v21 = v19 * v20;
    let v22 = v17 - v21;
    let v23 = select((0e0f), v22, i >= 0u);
    let v24 = v19 * v16;
    let v25 = v1 * v20;
    let v26 = v24 + v25;
    let v27 = select(v23, v26, i >= 1u);
    return v27;
}
// Two neighbours, of which the first has an even number.
fn store_pair(at: u32, first: f32, second: f32) {
    b2[at >> 1u] = f32_to_f16(first) | (f32_to_f16(second) << 16u);
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let thread = group_number * THREADS + local;
    if (thread >= COUNT) {
        return;
    }
    var i = thread;
    i = 2u * thread;
    let sequence = i / (ROWS * WIDTH);
    let given = load_position(sequence);
    let position = checked_index(given, POSITIONS);
    if (given != position) {
        return;
    }
    let at = (sequence * CAPACITY + position) * WIDTH + i % (ROWS * WIDTH);
    store_pair(at, new_element(i), new_element(i + 1u));
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
