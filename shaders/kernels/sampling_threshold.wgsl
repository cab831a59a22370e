// The smallest logit of each row that sampling with top-k, top-p and min-p keeps. Each workgroup computes one row. A number
// is converted to a key: an unsigned integer with the same order. A search finds the largest threshold such that the logits
// above or at it have enough total weight. For top-k, each logit has the weight 1. Each round of the search finds four bits of
// the threshold's key: it adds the weights of the logits that agree with the bits found so far, for each value of the next
// four bits. After the first round few logits agree, so that few weights are computed.
//
// Twin in the oracle: core/src/ops/sampling_threshold.rs.

const LENGTH: u32 = 1000u; // number of logits of a row
const THREADS: u32 = 256u;
const BITS: u32 = 4u; // bits that a round of the search finds
const DIGITS: u32 = 16u; // values of these bits
const PARTS: u32 = THREADS / DIGITS; // threads that add the weights of a digit
const LOADS: u32 = 8u; // logits that a thread loads at a time, because it waits long for each
const i: u32 = 0u; // index of repeats

var<storage, read> logits: array<f32>;
var<storage, read> temperature: array<f32>;
var<storage, read> top_k: array<u32>;
var<storage, read> top_p: array<f32>;
var<storage, read> min_p: array<f32>;
var<storage, read_write> out: array<f32>;

// Weights of each digit, by thread. After a round, the first THREADS numbers of each digit begin with its total weight.
var<workgroup> sums: array<f32, DIGITS * THREADS>;

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
            // @repeat i < LOADS
            let logit_i = load(start + min(k + i * THREADS, LENGTH - 1u));
            // @end
            // All logits are needed here, so that a compiler does not move their loads to the branches, one after the other.
            var hits = 0u;
            // @repeat i < LOADS
            let key_i = select(0u, key_of(logit_i), k + i * THREADS < LENGTH);
            let hit_i = u32(((key_i & mask) == found) & (key_i >= first));
            hits += hit_i;
            // @end
            if (hits > 0u) {
                // @repeat i < LOADS
                if (hit_i > 0u) {
                    var weight = 1.0;
                    if (!is_count) {
                        weight = weight_of(logit_i, most, divisor);
                    }
                    sums[((key_i >> (shift - BITS)) % DIGITS) * THREADS + local] += weight;
                }
                // @end
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
