var<storage, read> b0: array<f32>;
var<storage, read> b1: array<f32>;
var<storage, read> b2: array<u32>;
var<storage, read> b3: array<f32>;
var<storage, read> b4: array<f32>;
var<storage, read_write> b5: array<f32>;
// The smallest logit of each row that sampling with top-k, top-p and min-p keeps. Each workgroup computes one row. A number
// is converted to a key: an unsigned integer with the same order. A binary search over the bits of the key finds the largest
// threshold such that the logits above or at it have enough total weight. For top-k, each logit has the weight 1.
//
// Twin in the oracle: core/src/ops/sampling_threshold.rs.
const LENGTH: u32 = 1u;
const THREADS: u32 = 256u;
const BITS: u32 = 2u;
const LOADS: u32 = 8u;
// Sums of all threads for the first key, then for the second and the third.
var<workgroup> sums: array<f32, 3u * THREADS>;
fn load(at: u32) -> f32 {
    return b0[at];
}
fn load_temperature(row: u32) -> f32 {
    return b1[row];
}
fn load_top_k(row: u32) -> u32 {
    return b2[row];
}
fn load_top_p(row: u32) -> f32 {
    return b3[row];
}
fn load_min_p(row: u32) -> f32 {
    return b4[row];
}
fn store(row: u32, threshold: f32) {
    b5[row] = threshold;
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
            let logit_0 = load(start + min(k + 0u * THREADS, LENGTH - 1u));
            let logit_1 = load(start + min(k + 1u * THREADS, LENGTH - 1u));
            let logit_2 = load(start + min(k + 2u * THREADS, LENGTH - 1u));
            let logit_3 = load(start + min(k + 3u * THREADS, LENGTH - 1u));
            let logit_4 = load(start + min(k + 4u * THREADS, LENGTH - 1u));
            let logit_5 = load(start + min(k + 5u * THREADS, LENGTH - 1u));
            let logit_6 = load(start + min(k + 6u * THREADS, LENGTH - 1u));
            let logit_7 = load(start + min(k + 7u * THREADS, LENGTH - 1u));
            let key_0 = select(0u, key_of(logit_0), k + 0u * THREADS < LENGTH);
            let weight_0 = weight_of(logit_0, key_0, first, most, divisor, is_count);
            own0 += select(0.0, weight_0, key_0 >= found + bit);
            own1 += select(0.0, weight_0, key_0 >= found + 2u * bit);
            own2 += select(0.0, weight_0, key_0 >= found + 3u * bit);
            let key_1 = select(0u, key_of(logit_1), k + 1u * THREADS < LENGTH);
            let weight_1 = weight_of(logit_1, key_1, first, most, divisor, is_count);
            own0 += select(0.0, weight_1, key_1 >= found + bit);
            own1 += select(0.0, weight_1, key_1 >= found + 2u * bit);
            own2 += select(0.0, weight_1, key_1 >= found + 3u * bit);
            let key_2 = select(0u, key_of(logit_2), k + 2u * THREADS < LENGTH);
            let weight_2 = weight_of(logit_2, key_2, first, most, divisor, is_count);
            own0 += select(0.0, weight_2, key_2 >= found + bit);
            own1 += select(0.0, weight_2, key_2 >= found + 2u * bit);
            own2 += select(0.0, weight_2, key_2 >= found + 3u * bit);
            let key_3 = select(0u, key_of(logit_3), k + 3u * THREADS < LENGTH);
            let weight_3 = weight_of(logit_3, key_3, first, most, divisor, is_count);
            own0 += select(0.0, weight_3, key_3 >= found + bit);
            own1 += select(0.0, weight_3, key_3 >= found + 2u * bit);
            own2 += select(0.0, weight_3, key_3 >= found + 3u * bit);
            let key_4 = select(0u, key_of(logit_4), k + 4u * THREADS < LENGTH);
            let weight_4 = weight_of(logit_4, key_4, first, most, divisor, is_count);
            own0 += select(0.0, weight_4, key_4 >= found + bit);
            own1 += select(0.0, weight_4, key_4 >= found + 2u * bit);
            own2 += select(0.0, weight_4, key_4 >= found + 3u * bit);
            let key_5 = select(0u, key_of(logit_5), k + 5u * THREADS < LENGTH);
            let weight_5 = weight_of(logit_5, key_5, first, most, divisor, is_count);
            own0 += select(0.0, weight_5, key_5 >= found + bit);
            own1 += select(0.0, weight_5, key_5 >= found + 2u * bit);
            own2 += select(0.0, weight_5, key_5 >= found + 3u * bit);
            let key_6 = select(0u, key_of(logit_6), k + 6u * THREADS < LENGTH);
            let weight_6 = weight_of(logit_6, key_6, first, most, divisor, is_count);
            own0 += select(0.0, weight_6, key_6 >= found + bit);
            own1 += select(0.0, weight_6, key_6 >= found + 2u * bit);
            own2 += select(0.0, weight_6, key_6 >= found + 3u * bit);
            let key_7 = select(0u, key_of(logit_7), k + 7u * THREADS < LENGTH);
            let weight_7 = weight_of(logit_7, key_7, first, most, divisor, is_count);
            own0 += select(0.0, weight_7, key_7 >= found + bit);
            own1 += select(0.0, weight_7, key_7 >= found + 2u * bit);
            own2 += select(0.0, weight_7, key_7 >= found + 3u * bit);
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
        let logit_0 = load(start + min(j + 0u * THREADS, LENGTH - 1u));
        let logit_1 = load(start + min(j + 1u * THREADS, LENGTH - 1u));
        let logit_2 = load(start + min(j + 2u * THREADS, LENGTH - 1u));
        let logit_3 = load(start + min(j + 3u * THREADS, LENGTH - 1u));
        let logit_4 = load(start + min(j + 4u * THREADS, LENGTH - 1u));
        let logit_5 = load(start + min(j + 5u * THREADS, LENGTH - 1u));
        let logit_6 = load(start + min(j + 6u * THREADS, LENGTH - 1u));
        let logit_7 = load(start + min(j + 7u * THREADS, LENGTH - 1u));
        own = max(own, logit_0);
        own = max(own, logit_1);
        own = max(own, logit_2);
        own = max(own, logit_3);
        own = max(own, logit_4);
        own = max(own, logit_5);
        own = max(own, logit_6);
        own = max(own, logit_7);
    }
    let most = largest(local, own);
    if (k > 0u && k <= LENGTH) {
        first = search(local, start, first, f32(k), most, divisor, true);
    }
    if (p < 1.0) {
        var weight = 0.0;
        for (var j = local; j < LENGTH; j += LOADS * THREADS) {
            let logit_0 = load(start + min(j + 0u * THREADS, LENGTH - 1u));
            let logit_1 = load(start + min(j + 1u * THREADS, LENGTH - 1u));
            let logit_2 = load(start + min(j + 2u * THREADS, LENGTH - 1u));
            let logit_3 = load(start + min(j + 3u * THREADS, LENGTH - 1u));
            let logit_4 = load(start + min(j + 4u * THREADS, LENGTH - 1u));
            let logit_5 = load(start + min(j + 5u * THREADS, LENGTH - 1u));
            let logit_6 = load(start + min(j + 6u * THREADS, LENGTH - 1u));
            let logit_7 = load(start + min(j + 7u * THREADS, LENGTH - 1u));
            let key_0 = select(0u, key_of(logit_0), j + 0u * THREADS < LENGTH);
            weight += weight_of(logit_0, key_0, first, most, divisor, false);
            let key_1 = select(0u, key_of(logit_1), j + 1u * THREADS < LENGTH);
            weight += weight_of(logit_1, key_1, first, most, divisor, false);
            let key_2 = select(0u, key_of(logit_2), j + 2u * THREADS < LENGTH);
            weight += weight_of(logit_2, key_2, first, most, divisor, false);
            let key_3 = select(0u, key_of(logit_3), j + 3u * THREADS < LENGTH);
            weight += weight_of(logit_3, key_3, first, most, divisor, false);
            let key_4 = select(0u, key_of(logit_4), j + 4u * THREADS < LENGTH);
            weight += weight_of(logit_4, key_4, first, most, divisor, false);
            let key_5 = select(0u, key_of(logit_5), j + 5u * THREADS < LENGTH);
            weight += weight_of(logit_5, key_5, first, most, divisor, false);
            let key_6 = select(0u, key_of(logit_6), j + 6u * THREADS < LENGTH);
            weight += weight_of(logit_6, key_6, first, most, divisor, false);
            let key_7 = select(0u, key_of(logit_7), j + 7u * THREADS < LENGTH);
            weight += weight_of(logit_7, key_7, first, most, divisor, false);
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
