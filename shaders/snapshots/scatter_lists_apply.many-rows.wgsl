var<storage, read_write> b0: array<f32>;
var<storage, read> b1: array<u32>;
var<storage, read> b2: array<f32>;
var<storage, read> first: array<u32>;
var<storage, read> next: array<u32>;
// Scatter of many updates, last of three launches. One thread per element of the result visits the list of its row from
// the smallest index to the largest, so that sums are the same in every run. The time is quadratic in the length of the
// list. Rows with a list longer than SHORT scan all updates instead.
//
// Twin in the oracle: core/src/ops/scatter.rs.
alias Value = f32;
const COUNT: u32 = 150u;
const UPDATES: u32 = 33u;
const ROWS: u32 = 50u;
const INNER: u32 = 3u;
const SHORT: u32 = 32u;
const END: u32 = 4294967295u;
const THREADS: u32 = 256u;
fn load_index(number: u32) -> u32 {
    return b1[number];
}
fn load_update(number: u32) -> Value {
    return b2[number];
}
// Returns the value of an element before the first update.
fn load_base(i: u32) -> Value {
    return f32();
}
// Returns the value of an element after an update: the sum, or the update.
fn join(value: Value, update: Value) -> Value {
    return value + update;
}
fn store(i: u32, value: Value) {
    b0[i] = value;
}
@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let i = group_number * THREADS + local;
    if (i >= COUNT) {
        return;
    }
    let outer = i / (ROWS * INNER);
    let row = i / INNER % ROWS;
    let column = i % INNER;
    var value = load_base(i);
    var length = 0u;
    for (var k = first[row]; k != END && length <= SHORT; k = next[k]) {
        length += 1u;
    }
    if (length <= SHORT) {
        var least = 0u;
        for (var done = 0u; done < length; done += 1u) {
            var k = END;
            for (var other = first[row]; other != END; other = next[other]) {
                if (other >= least && other < k) {
                    k = other;
                }
            }
            value = join(value, load_update((outer * UPDATES + k) * INNER + column));
            least = k + 1u;
        }
    } else {
        for (var k = 0u; k < UPDATES; k += 1u) {
            if (load_index(k) == row) {
                value = join(value, load_update((outer * UPDATES + k) * INNER + column));
            }
        }
    }
    store(i, value);
}
