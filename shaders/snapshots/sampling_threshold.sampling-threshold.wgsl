var<storage, read> b0: array<f32>;
var<storage, read> b1: array<f32>;
var<storage, read> b2: array<u32>;
var<storage, read> b3: array<f32>;
var<storage, read> b4: array<f32>;
var<storage, read_write> b5: array<f32>;
// The smallest logit of each row that sampling with top-k, top-p and min-p keeps. Each workgroup computes one row. A number
// is converted to a key: an unsigned integer with the same order. A search finds the largest threshold such that the logits
// above or at it have enough total weight. For top-k, each logit has the weight 1. Each round of the search finds four bits of
// the threshold's key: it adds the weights of the logits that agree with the bits found so far, for each value of the next
// four bits. After the first round few logits agree, so that few weights are computed.
//
// Twin in the oracle: core/src/ops/sampling_threshold.rs.
const LENGTH: u32 = 1u;
const THREADS: u32 = 256u;
const BITS: u32 = 4u;
const DIGITS: u32 = 16u;
const PARTS: u32 = 16u;
const LOADS: u32 = 8u;
// Weights of each digit, by thread. After a round, the first THREADS numbers of each digit begin with its total weight.
var<workgroup> sums: array<f32, DIGITS * THREADS>;
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
// Adds the weights of all threads. The results are at multiples of THREADS in `sums`.
fn join(local: u32) {
    workgroupBarrier();
    let first = (local / PARTS) * THREADS + (local % PARTS);
    var own = 0.0;
    for (var j = 0u; j < DIGITS; j++) {
        own += sums[first + j * PARTS];
    }
    // Only this thread reads the numbers that it added, so it may replace one.
    sums[first] = own;
    workgroupBarrier();
    if (local < DIGITS) {
        var total = 0.0;
        for (var j = 0u; j < PARTS; j++) {
            total += sums[local * THREADS + j];
        }
        sums[local * THREADS] = total;
    }
    workgroupBarrier();
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
    let most = sums[0];
    workgroupBarrier();
    return most;
}
// Returns the weight of a logit for top-p: its probability relative to the largest logit.
fn weight_of(logit: f32, most: f32, divisor: f32) -> f32 {
    return exp((logit - most) / divisor);
}
// Returns the largest key such that the total weight of logits with this key or a larger one is at least a limit. Logits
// below the key `first` do not count. With `is_count`, the weight is 1 and the limit `share`. Otherwise the weight is the
// probability relative to the largest logit, and the limit a share of the weight of all logits.
fn search(local: u32, start: u32, first: u32, share: f32, most: f32, divisor: f32, is_count: bool) -> u32 {
    var found = 0u;
    var mask = 0u; // bits that are found
    var above = 0.0; // weight of the logits whose found bits are above those of the threshold
    var limit = share;
    for (var shift = 32u; shift > 0u; shift -= BITS) {
        for (var digit = 0u; digit < DIGITS; digit++) {
            sums[digit * THREADS + local] = 0.0;
        }
        for (var k = local; k < LENGTH; k += LOADS * THREADS) {
            let logit_0 = load(start + min(k + 0u * THREADS, LENGTH - 1u));
            let logit_1 = load(start + min(k + 1u * THREADS, LENGTH - 1u));
            let logit_2 = load(start + min(k + 2u * THREADS, LENGTH - 1u));
            let logit_3 = load(start + min(k + 3u * THREADS, LENGTH - 1u));
            let logit_4 = load(start + min(k + 4u * THREADS, LENGTH - 1u));
            let logit_5 = load(start + min(k + 5u * THREADS, LENGTH - 1u));
            let logit_6 = load(start + min(k + 6u * THREADS, LENGTH - 1u));
            let logit_7 = load(start + min(k + 7u * THREADS, LENGTH - 1u));
            // All logits are needed here, so that a compiler does not move their loads to the branches, one after the other.
            var hits = 0u;
            let key_0 = select(0u, key_of(logit_0), k + 0u * THREADS < LENGTH);
            let hit_0 = u32(((key_0 & mask) == found) & (key_0 >= first));
            hits += hit_0;
            let key_1 = select(0u, key_of(logit_1), k + 1u * THREADS < LENGTH);
            let hit_1 = u32(((key_1 & mask) == found) & (key_1 >= first));
            hits += hit_1;
            let key_2 = select(0u, key_of(logit_2), k + 2u * THREADS < LENGTH);
            let hit_2 = u32(((key_2 & mask) == found) & (key_2 >= first));
            hits += hit_2;
            let key_3 = select(0u, key_of(logit_3), k + 3u * THREADS < LENGTH);
            let hit_3 = u32(((key_3 & mask) == found) & (key_3 >= first));
            hits += hit_3;
            let key_4 = select(0u, key_of(logit_4), k + 4u * THREADS < LENGTH);
            let hit_4 = u32(((key_4 & mask) == found) & (key_4 >= first));
            hits += hit_4;
            let key_5 = select(0u, key_of(logit_5), k + 5u * THREADS < LENGTH);
            let hit_5 = u32(((key_5 & mask) == found) & (key_5 >= first));
            hits += hit_5;
            let key_6 = select(0u, key_of(logit_6), k + 6u * THREADS < LENGTH);
            let hit_6 = u32(((key_6 & mask) == found) & (key_6 >= first));
            hits += hit_6;
            let key_7 = select(0u, key_of(logit_7), k + 7u * THREADS < LENGTH);
            let hit_7 = u32(((key_7 & mask) == found) & (key_7 >= first));
            hits += hit_7;
            if (hits > 0u) {
                if (hit_0 > 0u) {
                    var weight = 1.0;
                    if (!is_count) {
                        weight = weight_of(logit_0, most, divisor);
                    }
                    sums[((key_0 >> (shift - BITS)) % DIGITS) * THREADS + local] += weight;
                }
                if (hit_1 > 0u) {
                    var weight = 1.0;
                    if (!is_count) {
                        weight = weight_of(logit_1, most, divisor);
                    }
                    sums[((key_1 >> (shift - BITS)) % DIGITS) * THREADS + local] += weight;
                }
                if (hit_2 > 0u) {
                    var weight = 1.0;
                    if (!is_count) {
                        weight = weight_of(logit_2, most, divisor);
                    }
                    sums[((key_2 >> (shift - BITS)) % DIGITS) * THREADS + local] += weight;
                }
                if (hit_3 > 0u) {
                    var weight = 1.0;
                    if (!is_count) {
                        weight = weight_of(logit_3, most, divisor);
                    }
                    sums[((key_3 >> (shift - BITS)) % DIGITS) * THREADS + local] += weight;
                }
                if (hit_4 > 0u) {
                    var weight = 1.0;
                    if (!is_count) {
                        weight = weight_of(logit_4, most, divisor);
                    }
                    sums[((key_4 >> (shift - BITS)) % DIGITS) * THREADS + local] += weight;
                }
                if (hit_5 > 0u) {
                    var weight = 1.0;
                    if (!is_count) {
                        weight = weight_of(logit_5, most, divisor);
                    }
                    sums[((key_5 >> (shift - BITS)) % DIGITS) * THREADS + local] += weight;
                }
                if (hit_6 > 0u) {
                    var weight = 1.0;
                    if (!is_count) {
                        weight = weight_of(logit_6, most, divisor);
                    }
                    sums[((key_6 >> (shift - BITS)) % DIGITS) * THREADS + local] += weight;
                }
                if (hit_7 > 0u) {
                    var weight = 1.0;
                    if (!is_count) {
                        weight = weight_of(logit_7, most, divisor);
                    }
                    sums[((key_7 >> (shift - BITS)) % DIGITS) * THREADS + local] += weight;
                }
            }
        }
        join(local);
        if (shift == 32u && !is_count) {
            var total = 0.0;
            for (var digit = 0u; digit < DIGITS; digit++) {
                total += sums[digit * THREADS];
            }
            // The weight of the largest logit is 1, so it is kept in any case.
            limit = max(share * total, 1e-30);
        }
        var digit = DIGITS - 1u;
        while (digit > 0u && above + sums[digit * THREADS] < limit) {
            above += sums[digit * THREADS];
            digit -= 1u;
        }
        found |= digit << (shift - BITS);
        mask |= (DIGITS - 1u) << (shift - BITS);
        // The next round replaces the sums.
        workgroupBarrier();
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
        first = search(local, start, first, p, most, divisor, false);
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
