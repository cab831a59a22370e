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
        // A NaN, an infinity, or nothing but minus infinity: no entry has a probability. That is told by bits, since compilers
        // may take it for granted that there are no such numbers.
        var broken = false;
        var empty = true;
        var largest = tile[own];
        for (var e = 0u; e < experts; e += 1u) {
            let bits = bitcast<u32>(tile[own + e]);
            broken = broken || (bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u;
            empty = empty && bits == 0xff800000u;
            largest = max(largest, tile[own + e]);
        }
        broken = broken || empty;
        var lowest = 0xff800000u;
        var sum = 0.0;
        for (var e = 0u; e < experts; e += 1u) {
            let below = tile[own + e] - largest;
            sum += exp(below);
            // So much less likely that its probability is 0 to the definition as well, where the first of equal ones comes
            // first.
            if (below < -745.0) {
                tile[own + e] = bitcast<f32>(lowest);
            }
        }
        // In each round the first of the largest entries that come after the last one found.
        var nan = 0x7fc00000u;
        var last = 0.0;
        var at = 0u;
        for (var rank = 0u; rank < u32(k); rank += 1u) {
            var best = 0.0;
            var found = experts;
            for (var e = 0u; e < experts; e += 1u) {
                let value = tile[own + e];
                let open = rank == 0u || value < last || (value == last && e > at);
                if (open && (found == experts || value > best)) {
                    best = value;
                    found = e;
                }
            }
            last = best;
            at = found;
            let to = (first + thread) * u32(k) + rank;
            // Where all are NaN, the first ones come first.
            weights[to] = select(exp(best - largest) / sum, bitcast<f32>(nan), broken);
            experts_of[to] = select(found, rank, broken);
        }
    }
}
