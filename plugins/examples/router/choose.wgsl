// The k largest entries of the softmax of each row, and where they are. Sizes and attributes are constants: `experts`,
// `numel` (elements of the first result) and `k`, which is an i32.
@group(0) @binding(0) var<storage> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> weights: array<f32>;
@group(0) @binding(2) var<storage, read_write> experts_of: array<u32>;

const ROWS: u32 = 32u;
const rows: u32 = numel / u32(k);

// Rows of a workgroup, one after the other with a gap, so that threads that read the same column do not wait for
// each other.
var<workgroup> tile: array<f32, 2080>;

@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = group.x * ROWS;
    let count = min(ROWS, rows - first) * experts;
    // Neighbours in memory are read by neighbours.
    for (var i = thread; i < count; i += ROWS) {
        tile[i / experts * 65u + i % experts] = logits[first * experts + i];
    }
    workgroupBarrier();
    if (first + thread < rows) {
        let own = thread * 65u;
        var largest = tile[own];
        for (var e = 1u; e < experts; e += 1u) {
            largest = max(largest, tile[own + e]);
        }
        var sum = 0.0;
        for (var e = 0u; e < experts; e += 1u) {
            sum += exp(tile[own + e] - largest);
        }
        // In each round the first of the largest entries that come after the last one found.
        var last = 3.4e38;
        var at = 0u;
        for (var rank = 0u; rank < u32(k); rank += 1u) {
            var best = -3.4e38;
            var found = experts;
            for (var e = 0u; e < experts; e += 1u) {
                let value = tile[own + e];
                let open = value < last || (value == last && rank > 0u && e > at);
                if (open && (found == experts || value > best)) {
                    best = value;
                    found = e;
                }
            }
            last = best;
            at = found;
            let to = (first + thread) * u32(k) + rank;
            weights[to] = exp(best - largest) / sum;
            experts_of[to] = found;
        }
    }
}
