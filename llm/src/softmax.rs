//! Probabilities of logits on the host, written for vectorization by the compiler: a vocabulary has
//! 50,000 to 250,000 tokens, and a step of a small model takes less than half a millisecond.

/// Number of parallel lanes.
const LANES: usize = 16;

/// Returns the largest logit; `None` if one is NaN, or if none is finite.
pub(crate) fn largest_finite(logits: &[f32]) -> Option<f32> {
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut most = [f32::NEG_INFINITY; LANES];
    let mut bad = [false; LANES];
    let mut look = |lane: usize, x: f32| {
        most[lane] = if x > most[lane] { x } else { most[lane] };
        bad[lane] |= x.is_nan();
    };
    for chunk in chunks {
        for (lane, &x) in chunk.iter().enumerate() {
            look(lane, x);
        }
    }
    for (lane, &x) in rest.iter().enumerate() {
        look(lane, x);
    }
    let most = most.into_iter().fold(f32::NEG_INFINITY, f32::max);
    (most.is_finite() && !bad.contains(&true)).then_some(most)
}

/// Replaces each logit `x` by its weight: `exp((x - most) / temperature)`, at most 1.
///
/// The difference is computed first: it stays finite or is minus infinity for any temperature.
pub(crate) fn weigh(logits: &mut [f32], most: f32, temperature: f32) {
    for x in logits {
        *x = exp_of_negative((*x - most) / temperature);
    }
}

/// Returns the sum of some weights.
pub(crate) fn sum(weights: &[f32]) -> f64 {
    weights.chunks(CHUNK).map(sum_of_chunk).sum()
}

/// Returns the natural logarithm of the sum of `exp(x)`; NaN if [`largest_finite`] returns `None`,
/// because no token is then chosen.
pub(crate) fn log_sum_of_exponentials(logits: &[f32]) -> f32 {
    largest_finite(logits).map_or(f32::NAN, |most| most + sum_of_exponentials(logits, most).ln() as f32)
}

/// Returns the sum of `exp(x - most)`.
fn sum_of_exponentials(logits: &[f32], most: f32) -> f64 {
    let chunks = logits.chunks(CHUNK);
    chunks
        .map(|chunk| {
            let mut weights = [0.0; CHUNK];
            weights[..chunk.len()].copy_from_slice(chunk);
            weigh(&mut weights[..chunk.len()], most, 1.0);
            sum_of_chunk(&weights[..chunk.len()])
        })
        .sum()
}

/// Returns the first index up to which the weights sum up to more than `limit`. If none does
/// because of rounding, returns the last index with a weight above 0.
pub(crate) fn place_of(weights: &[f32], limit: f64) -> usize {
    let mut rest = limit;
    let mut last = 0;
    for (number, chunk) in weights.chunks(CHUNK).enumerate() {
        let of_chunk = sum_of_chunk(chunk);
        if of_chunk == 0.0 {
            continue;
        }
        if of_chunk <= rest {
            rest -= of_chunk;
            last = number;
            continue;
        }
        return number * CHUNK + place_in(chunk, rest);
    }
    let first = last * CHUNK;
    let end = weights.len().min(first + CHUNK);
    weights
        .get(first..end)
        .map_or(0, |chunk| first + place_in(chunk, f64::INFINITY))
}

/// Number of weights that are summed up in `f32`; the sums of chunks are added in `f64`.
const CHUNK: usize = 256;

/// Returns the same index as [`place_of`] for the weights of a chunk, with the limit `rest`, by adding weights one by
/// one.
fn place_in(chunk: &[f32], mut rest: f64) -> usize {
    let mut last = 0;
    for (place, &weight) in chunk.iter().enumerate() {
        if weight > 0.0 {
            last = place;
        }
        rest -= f64::from(weight);
        if rest < 0.0 {
            return place;
        }
    }
    last
}

fn sum_of_chunk(chunk: &[f32]) -> f64 {
    let (vectors, rest) = chunk.as_chunks::<LANES>();
    let mut sums = [0.0f32; LANES];
    for vector in vectors {
        for (sum, x) in sums.iter_mut().zip(vector) {
            *sum += x;
        }
    }
    f64::from(sums.iter().sum::<f32>() + rest.iter().sum::<f32>())
}

/// Computes `exp(x)` for `x <= 0`, with a relative error within 2e-7; 0 below -87, where `f32` has
/// no normal number.
///
/// As in Moshier's Cephes library (`expf`): a power of two by the bits of the exponent, and a
/// polynomial for the rest.
#[inline(always)]
fn exp_of_negative(x: f32) -> f32 {
    // Adding this number rounds to the nearest integer and puts it into the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    const LEAST: f32 = -87.0;
    let inside = if x < LEAST { LEAST } else { x };
    let rounded = inside * std::f32::consts::LOG2_E + ROUND;
    let power = rounded - ROUND;
    // The logarithm of 2 in two parts; the first one has few digits.
    let r = inside - power * 0.693_359_4 + power * 2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p * r + c;
    }
    let of_rest = p * r * r + r + 1.0;
    let two_to = f32::from_bits((rounded.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x < LEAST { 0.0 } else { of_rest * two_to }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_those_of_f64() {
        for i in 0..=870_000 {
            let x = i as f32 * -1e-4;
            let (found, wanted) = (f64::from(exp_of_negative(x)), f64::from(x).exp());
            assert!(
                (found - wanted).abs() <= 2e-7 * wanted,
                "exp({x}) is {found}, not {wanted}"
            );
        }
        assert_eq!(exp_of_negative(0.0), 1.0);
        for x in [-87.1, -1e9, f32::NEG_INFINITY] {
            assert_eq!(exp_of_negative(x), 0.0);
        }
    }

    #[test]
    fn the_largest_is_found_among_numbers_alone() {
        for len in [1, 5, 16, 100] {
            for at in [0, len / 2, len - 1] {
                let mut logits = vec![-3.0; len];
                logits[at] = 2.0;
                assert_eq!(largest_finite(&logits), Some(2.0));
                logits[at] = f32::NAN;
                assert_eq!(largest_finite(&logits), None);
                logits[at] = f32::INFINITY;
                assert_eq!(largest_finite(&logits), None);
            }
            assert_eq!(largest_finite(&vec![f32::NEG_INFINITY; len]), None);
        }
        assert_eq!(largest_finite(&[]), None);
    }

    #[test]
    fn places_follow_the_sums() {
        let mut weights = vec![0.0; 1000];
        (weights[3], weights[500], weights[700]) = (1.0, 2.0, 0.5);
        for (limit, place) in [
            (0.0, 3),
            (0.99, 3),
            (1.0, 500),
            (2.9, 500),
            (3.2, 700),
            (3.5, 700),
            (9.0, 700),
        ] {
            assert_eq!(place_of(&weights, limit), place, "{limit}");
        }
        assert_eq!(sum(&weights), 3.5);
        assert_eq!(place_of(&[], 1.0), 0);
    }

    #[test]
    fn sums_are_those_of_the_weights() {
        let logits: Vec<f32> = (0..1003).map(|i| (i as f32 * 0.37).sin() * 9.0).collect();
        let wanted: f64 = logits.iter().map(|&x| (f64::from(x) - 9.0).exp()).sum();
        let found = sum_of_exponentials(&logits, 9.0);
        assert!((found / wanted - 1.0).abs() < 1e-6, "{found}, not {wanted}");
        let mut weights = logits;
        weigh(&mut weights, 9.0, 1.0);
        assert_eq!(sum(&weights), found);
    }
}
