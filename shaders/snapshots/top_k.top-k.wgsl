var<storage, read> b0: array<f32>;
var<storage, read_write> b1: array<f32>;
var<storage, read_write> b2: array<u32>;
// The K largest elements along an axis with their indices, in descending order, NaN first: one thread per element
// counts the elements that precede it, which gives its rank. Equal elements keep their order.
//
// Twin in the oracle: core/src/ops/top_k.rs.
alias Value = f32;
const COUNT: u32 = 1u;
const LENGTH: u32 = 1u;
const INNER: u32 = 1u;
const K: u32 = 1u;
const THREADS: u32 = 256u;
fn load(at: u32) -> Value {
    return b0[at];
}
fn store(at: u32, value: Value, location: u32) {
    b1[at] = value;
    b2[at] = location;
}
// Returns true if a precedes b in the order.
fn comes_before(a: Value, b: Value) -> bool {
    return a > b && !is_nan(b) || is_nan(a) && !is_nan(b);
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let i = group_number * THREADS + local;
    if (i >= COUNT) {
        return;
    }
    let outer = i / (LENGTH * INNER);
    let location = i / INNER % LENGTH;
    let start = outer * (LENGTH * INNER) + i % INNER;
    let own = load(i);
    var rank = 0u;
    for (var q = 0u; q < LENGTH; q += 1u) {
        let other = load(start + q * INNER);
        if (comes_before(other, own) || q < location && !comes_before(own, other)) {
            rank += 1u;
        }
    }
    if (rank < K) {
        store((outer * K + rank) * INNER + i % INNER, own, location);
    }
}
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
