// The smallest logit of each row that sampling with top-k, top-p and min-p keeps. Each workgroup computes one row. A number
// is converted to a key: an unsigned integer with the same order. A binary search over the bits of the key finds the largest
// threshold such that the logits above or at it have enough total weight. For top-k, each logit has the weight 1.
//
// Twin in the oracle: core/src/ops/sampling_threshold.rs.

const LENGTH: u32 = 1000u; // number of logits of a row
const THREADS: u32 = 256u;
const BITS: u32 = 2u; // bits that a round of the search finds, by comparing with three keys
const LOADS: u32 = 8u; // logits that a thread loads at a time, because it waits long for each
const i: u32 = 0u; // index of repeats

var<storage, read> logits: array<f32>;
var<storage, read> temperature: array<f32>;
var<storage, read> top_k: array<u32>;
var<storage, read> top_p: array<f32>;
var<storage, read> min_p: array<f32>;
var<storage, read_write> out: array<f32>;

// Sums of all threads for the first key, then for the second and the third.
var<workgroup> sums: array<f32, 3u * THREADS>;

fn load(at: u32) -> f32 {
    return logits[at];
}

fn load_temperature(row: u32) -> f32 {
    return temperature[row];
}

fn load_top_k(row: u32) -> u32 {
    return top_k[row];
}

fn load_top_p(row: u32) -> f32 {
    return top_p[row];
}

fn load_min_p(row: u32) -> f32 {
    return min_p[row];
}

fn store(row: u32, threshold: f32) {
    out[row] = threshold;
}

// Returns a key with the order of the logits.
fn key_of(logit: f32) -> u32 {
    let bits = bitcast<u32>(logit);
    return select(bits ^ 0x80000000u, ~bits, bits >= 0x80000000u);
}

fn logit_of(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key ^ 0x80000000u, key >= 0x80000000u));
}

// Adds the numbers of all threads. The results are at the indices 0, THREADS and 2 THREADS of `sums`.
fn join(local: u32, own0: f32, own1: f32, own2: f32) {
    workgroupBarrier();
    sums[local] = own0;
    sums[THREADS + local] = own1;
    sums[2u * THREADS + local] = own2;
    workgroupBarrier();
    for (var step = THREADS / 2u; step > 0u; step /= 2u) {
        if (local < step) {
            sums[local] += sums[local + step];
            sums[THREADS + local] += sums[THREADS + local + step];
            sums[2u * THREADS + local] += sums[2u * THREADS + local + step];
        }
        workgroupBarrier();
    }
}

// Returns the largest number of all threads.
fn largest(local: u32, own: f32) -> f32 {
    sums[local] = own;
    workgroupBarrier();
    for (var step = THREADS / 2u; step > 0u; step /= 2u) {
        if (local < step) {
            sums[local] = max(sums[local], sums[local + step]);
        }
        workgroupBarrier();
    }
    return sums[0];
}

// Returns the weight of a logit; 0 if its key is below `first`.
fn weight_of(logit: f32, key: u32, first: u32, most: f32, divisor: f32, is_count: bool) -> f32 {
    let weight = select(exp((logit - most) / divisor), 1.0, is_count);
    return select(0.0, weight, key >= first);
}

// Returns the largest key such that the total weight of logits with this key or a larger one is at least `limit`. Logits
// below the key `first` do not count. The weight is 1 if `is_count` is true, else the probability relative to the largest
// logit.
fn search(local: u32, start: u32, first: u32, limit: f32, most: f32, divisor: f32, is_count: bool) -> u32 {
    var found = 0u;
    for (var shift = 32u; shift > 0u; shift -= BITS) {
        let bit = 1u << (shift - BITS);
        var own0 = 0.0;
        var own1 = 0.0;
        var own2 = 0.0;
        for (var k = local; k < LENGTH; k += LOADS * THREADS) {
            // @repeat i < LOADS
            let logit_i = load(start + min(k + i * THREADS, LENGTH - 1u));
            // @end
            // @repeat i < LOADS
            let key_i = select(0u, key_of(logit_i), k + i * THREADS < LENGTH);
            let weight_i = weight_of(logit_i, key_i, first, most, divisor, is_count);
            own0 += select(0.0, weight_i, key_i >= found + bit);
            own1 += select(0.0, weight_i, key_i >= found + 2u * bit);
            own2 += select(0.0, weight_i, key_i >= found + 3u * bit);
            // @end
        }
        join(local, own0, own1, own2);
        // The sums fall from key to key.
        if (sums[2u * THREADS] >= limit) {
            found += 3u * bit;
        } else if (sums[THREADS] >= limit) {
            found += 2u * bit;
        } else if (sums[0] >= limit) {
            found += bit;
        }
    }
    return max(found, first);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let group_number = group.x;
    let row = group_number;
    let start = row * LENGTH;
    let divisor = load_temperature(row);
    let k = load_top_k(row);
    let p = load_top_p(row);
    let m = load_min_p(row);
    // The key of minus infinity.
    var first = 0x007fffffu;
    if (divisor == 0.0) {
        if (local == 0u) {
            store(row, logit_of(first));
        }
        return;
    }
    var own = logit_of(first);
    for (var j = local; j < LENGTH; j += LOADS * THREADS) {
        // @repeat i < LOADS
        let logit_i = load(start + min(j + i * THREADS, LENGTH - 1u));
        // @end
        // @repeat i < LOADS
        own = max(own, logit_i);
        // @end
    }
    let most = largest(local, own);
    if (k > 0u && k <= LENGTH) {
        first = search(local, start, first, f32(k), most, divisor, true);
    }
    if (p < 1.0) {
        var weight = 0.0;
        for (var j = local; j < LENGTH; j += LOADS * THREADS) {
            // @repeat i < LOADS
            let logit_i = load(start + min(j + i * THREADS, LENGTH - 1u));
            // @end
            // @repeat i < LOADS
            let key_i = select(0u, key_of(logit_i), j + i * THREADS < LENGTH);
            weight += weight_of(logit_i, key_i, first, most, divisor, false);
            // @end
        }
        join(local, weight, 0.0, 0.0);
        // The weight of the largest logit is 1, so it is kept in any case.
        first = search(local, start, first, max(p * sums[0], 1e-30), most, divisor, false);
    }
    var least = logit_of(first);
    if (m > 0.0) {
        // The logarithm of 1 may be rounded to more than 0.
        least = min(max(least, most + divisor * log(m)), most);
    }
    if (local == 0u) {
        store(row, least);
    }
}
