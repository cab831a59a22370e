var<storage, read> b0: array<f32>;
var<storage, read_write> b1: array<u32>;
var<storage, read> found: array<u32>;
// Joins the results of arg_reduce.wgsl for the parts of each row: one thread per row selects the index whose element
// comes first.
//
// Twin in the oracle: core/src/ops/arg_reduce.rs.
alias Value = f32;
const ROWS: u32 = 4u;
const LENGTH: u32 = 100000u;
const INNER: u32 = 1u;
const PARTS: u32 = 16u;
const THREADS: u32 = 256u;
fn load(at: u32) -> Value {
    return b0[at];
}
fn store(row: u32, best: u32) {
    b1[row] = best;
}
// Returns true if a precedes b in the order.
fn comes_before(a: Value, b: Value) -> bool {
    return a > b && !is_nan(b) || is_nan(a) && !is_nan(b);
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let row = group_number * THREADS + local;
    if (row >= ROWS) {
        return;
    }
    let start = row / INNER * (LENGTH * INNER) + row % INNER;
    var best = found[row * PARTS];
    var most = load(start + best * INNER);
    for (var part = 1u; part < PARTS; part += 1u) {
        let at = found[row * PARTS + part];
        let value = load(start + at * INNER);
        if (comes_before(value, most) || at < best && !comes_before(most, value)) {
            best = at;
            most = value;
        }
    }
    store(row, best);
}
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}
