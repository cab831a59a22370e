//! Ranges of activations.

/// Maximum number of numbers that each sample contributes to percentiles.
const PER_SAMPLE: usize = 1 << 14;

/// The range of a tensor in all samples, and some of its numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Range {
    low: f32,
    high: f32,
    /// Numbers at equal distances in each sample.
    drawn: Vec<f32>,
}

impl Range {
    /// Adds the numbers of a sample. Returns false if one is not finite.
    pub(super) fn add(&mut self, numbers: &[f32]) -> bool {
        let step = numbers.len().div_ceil(PER_SAMPLE).max(1);
        self.drawn.extend(numbers.iter().step_by(step));
        for &x in numbers {
            self.low = self.low.min(x);
            self.high = self.high.max(x);
        }
        numbers.iter().all(|x| x.is_finite())
    }

    /// Returns the bounds of the numbers, which include 0. They exclude the numbers beyond a percentile at both ends.
    pub(super) fn bounds(&self, percentile: f64) -> [f32; 2] {
        if percentile >= 100.0 || self.drawn.is_empty() {
            return [self.low, self.high];
        }
        let mut sorted = self.drawn.clone();
        sorted.sort_by(f32::total_cmp);
        let last = (sorted.len() - 1) as f64;
        let at = |percent: f64| sorted[(last * percent / 100.0).round() as usize];
        [at(100.0 - percentile).min(0.0), at(percentile).max(0.0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_include_zero_and_exclude_outliers() {
        let mut range = Range::default();
        assert!(range.add(&[1.0, 2.0, 3.0]));
        assert_eq!(range.bounds(100.0), [0.0, 3.0]);
        let many: Vec<f32> = (0..10_000).map(|i| (i as f32 - 5_000.0) / 5_000.0).collect();
        assert!(range.add(&many) && range.add(&[1e6]));
        assert_eq!(range.bounds(100.0), [-1.0, 1e6]);
        let [low, high] = range.bounds(99.0);
        assert!(
            (-1.0..-0.97).contains(&low) && (0.97..1.0).contains(&high),
            "{low} {high}"
        );
        assert!(!range.add(&[f32::NAN]));
    }
}
