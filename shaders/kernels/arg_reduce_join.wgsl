// Joins the results of arg_reduce.wgsl for the parts of each row: one thread per row selects the index whose element
// comes first.
//
// Twin in the oracle: core/src/ops/arg_reduce.rs.

alias Value = f32;
const ROWS: u32 = 4u;
const LENGTH: u32 = 100000u; // number of elements of a row
const INNER: u32 = 1u; // distance between neighbours in a row
const PARTS: u32 = 16u;
const THREADS: u32 = 256u;

var<storage, read> x: array<Value>;
var<storage, read> found: array<u32>;
var<storage, read_write> out: array<u32>;

fn load(at: u32) -> Value {
    return x[at];
}

fn store(row: u32, best: u32) {
    out[row] = best;
}

// Returns true if a precedes b in the order.
fn comes_before(a: Value, b: Value) -> bool {
    return a > b;
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
