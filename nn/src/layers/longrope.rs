//! LongRoPE: factors of rotary frequencies for short and long contexts.

use super::Fault;

/// Factors of the rotary frequencies of the pairs of features of a head, for short and for long contexts (LongRoPE;
/// Ding et al., 2024, in the form of Phi-3). The frequency of pair `i` is `theta^(-i / pairs) / factor[i]`, and queries
/// and keys are multiplied by `magnitude`.
///
/// A graph uses the long factors if it supports more positions than `original_context`, regardless of the actual number
/// of positions. A training or prefill graph supports its number of rows, a decode graph the capacity of its cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LongRope {
    short: [f32; LongRope::MAX_PAIRS],
    long: [f32; LongRope::MAX_PAIRS],
    pairs: usize,
    original_context: usize,
    magnitude: f32,
}

impl LongRope {
    /// Maximum number of pairs of a head.
    pub const MAX_PAIRS: usize = 64;

    /// Creates factors for a model that was first trained in `original_context` positions, with a
    /// short and a long factor for each pair. Returns `None` if their numbers differ or exceed
    /// [`LongRope::MAX_PAIRS`].
    pub fn new(short: &[f32], long: &[f32], original_context: usize, magnitude: f32) -> Option<Self> {
        let padded = |factors: &[f32]| {
            let mut all = [1.0; LongRope::MAX_PAIRS];
            all.get_mut(..factors.len())?.copy_from_slice(factors);
            Some(all)
        };
        (short.len() == long.len()).then_some(LongRope {
            short: padded(short)?,
            long: padded(long)?,
            pairs: short.len(),
            original_context,
            magnitude,
        })
    }

    /// Returns the factor by which rotated queries and keys are multiplied.
    pub fn magnitude(&self) -> f32 {
        self.magnitude
    }

    /// Returns the frequency of each pair, in radians per position, for a graph that supports up to `positions`
    /// positions.
    pub fn speeds(&self, theta: f32, positions: usize) -> Vec<f64> {
        let factors = if positions > self.original_context {
            &self.long
        } else {
            &self.short
        };
        let usual = |i: usize| f64::from(theta).powf(-(i as f64) / self.pairs as f64);
        let pairs = factors.iter().take(self.pairs).enumerate();
        pairs.map(|(i, &factor)| usual(i) / f64::from(factor)).collect()
    }

    /// Checks that there are factors for heads with this number of pairs.
    pub(crate) fn check(&self, pairs: usize) -> Result<(), Fault> {
        if self.pairs != pairs {
            return Err((
                format!("longrope has {} factors for {pairs} pairs of a head", self.pairs),
                "there is a factor for each pair of features that are rotated",
            ));
        }
        let mut all = self.short.iter().chain(&self.long).chain([&self.magnitude]);
        match all.find(|factor| !(**factor > 0.0 && factor.is_finite())) {
            Some(factor) => Err((
                format!("a factor of longrope is {factor}"),
                "factors and the magnitude are finite and above 0",
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_go_with_the_context() {
        let rope = LongRope::new(&[1.0, 2.0], &[4.0, 8.0], 10, 1.5).expect("factors");
        assert_eq!(rope.speeds(100.0, 10), [1.0, 0.1 / 2.0]);
        assert_eq!(rope.speeds(100.0, 11), [1.0 / 4.0, 0.1 / 8.0]);
        assert!(rope.check(2).is_ok() && rope.check(3).is_err());
        assert!(LongRope::new(&[1.0], &[1.0, 1.0], 10, 1.0).is_none());
        assert!(LongRope::new(&[1.0; 65], &[1.0; 65], 10, 1.0).is_none());
        for (short, magnitude) in [(0.0, 1.0), (f32::NAN, 1.0), (1.0, f32::INFINITY)] {
            let rope = LongRope::new(&[short], &[1.0], 10, magnitude).expect("factors");
            assert!(rope.check(1).is_err(), "{short} {magnitude}");
        }
    }
}
