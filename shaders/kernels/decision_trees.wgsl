// The leaf that each decision tree reaches for each row: one thread per row and tree.
//
// Twin in the oracle: core/src/ops/decision_trees.rs.

const COUNT: u32 = 1024u; // number of results
const FEATURES: u32 = 10u; // number of features of a row
const TREES: u32 = 16u;
const NODES: u32 = 1000u;
const DEPTH: u32 = 8u;
const STRICT: bool = false; // compare with < instead of <=
const THREADS: u32 = 256u;

var<storage, read> x: array<f32>;
var<storage, read> roots: array<u32>;
var<storage, read> features: array<u32>;
var<storage, read> thresholds: array<f32>;
var<storage, read> children: array<u32>;
var<storage, read_write> out: array<u32>;

fn load(at: u32) -> f32 {
    return x[at];
}

fn load_root(at: u32) -> u32 {
    return roots[at];
}

fn load_feature(at: u32) -> u32 {
    return features[at];
}

fn load_threshold(at: u32) -> f32 {
    return thresholds[at];
}

fn load_child(at: u32) -> u32 {
    return children[at];
}

fn store(at: u32, leaf: u32) {
    out[at] = leaf;
}

// Compares a feature with a threshold. Bit 31 of the node's word decides for NaN, which has the largest exponent and a
// fraction that is not zero.
fn is_true(value: f32, threshold: f32, word: u32) -> bool {
    if ((bitcast<u32>(value) & 0x7fffffffu) > 0x7f800000u) {
        return word >= 0x80000000u;
    }
    return select(value <= threshold, value < threshold, STRICT);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let i = group_number * THREADS + local;
    if (i >= COUNT) {
        return;
    }
    let start = i / TREES * FEATURES;
    var at = min(load_root(i % TREES), NODES - 1u);
    for (var step = 0u; step < DEPTH; step += 1u) {
        let word = load_feature(at);
        let feature = min(word & 0x7fffffffu, FEATURES - 1u);
        let value = load(start + feature);
        var child = 2u * at;
        if (is_true(value, load_threshold(at), word)) {
            child += 1u;
        }
        at = min(load_child(child), NODES - 1u);
    }
    store(i, at);
}
