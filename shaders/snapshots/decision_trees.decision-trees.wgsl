var<storage, read> b0: array<f32>;
var<storage, read> b1: array<u32>;
var<storage, read> b2: array<u32>;
var<storage, read> b3: array<f32>;
var<storage, read> b4: array<u32>;
var<storage, read_write> b5: array<u32>;
// The leaf that each decision tree reaches for each row: one thread per row and tree.
//
// Twin in the oracle: core/src/ops/decision_trees.rs.
const COUNT: u32 = 1u;
const FEATURES: u32 = 3u;
const TREES: u32 = 1u;
const NODES: u32 = 7u;
const DEPTH: u32 = 3u;
const STRICT: bool = false;
const THREADS: u32 = 256u;
fn load(at: u32) -> f32 {
    return b0[at];
}
fn load_root(at: u32) -> u32 {
    return b1[at];
}
fn load_feature(at: u32) -> u32 {
    return b2[at];
}
fn load_threshold(at: u32) -> f32 {
    return b3[at];
}
fn load_child(at: u32) -> u32 {
    return b4[at];
}
fn store(at: u32, leaf: u32) {
    b5[at] = leaf;
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
