//! Statistics of the elements of a tensor.

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::error::TensorKind;
use crate::storage::decode;

/// Number of bins of a histogram.
const BINS: usize = 32;
/// Number of elements that are decoded at a time.
const CHUNK: usize = 4096;

/// Statistics of the elements of a tensor: the number of NaNs, infinities and zeros, and range, mean and distribution
/// of the finite elements.
///
/// ```
/// use meganeura_core::TensorStatistics;
///
/// let statistics = TensorStatistics::of(&[1.0, -2.0, 0.0, f32::NAN, f32::INFINITY]);
/// assert_eq!((statistics.len, statistics.nan, statistics.positive_infinities), (5, 1, 1));
/// let finite = statistics.finite.unwrap();
/// assert_eq!((finite.min, finite.max), (-2.0, 1.0));
/// assert!((finite.mean + 1.0 / 3.0).abs() < 1e-12);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TensorStatistics {
    /// Number of elements.
    pub len: usize,
    /// Number of elements that are NaN.
    pub nan: usize,
    /// Number of elements that are plus infinity.
    pub positive_infinities: usize,
    /// Number of elements that are minus infinity.
    pub negative_infinities: usize,
    /// Number of elements that are 0 or -0.
    pub zeros: usize,
    /// The finite elements; `None` if there are none.
    pub finite: Option<FiniteStatistics>,
}

/// Statistics of at least one finite number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FiniteStatistics {
    /// The smallest element.
    pub min: f64,
    /// The largest element.
    pub max: f64,
    /// Mean of the elements.
    pub mean: f64,
    /// Standard deviation of the elements, computed with division by their number.
    pub deviation: f64,
    /// Number of elements in each of equally wide bins from the smallest to the largest; one bin if
    /// all are equal. The sum is the number of finite elements.
    pub histogram: Vec<u64>,
}

impl FiniteStatistics {
    /// Returns the number of finite elements.
    pub fn count(&self) -> u64 {
        self.histogram.iter().sum()
    }

    /// Returns the right edge of a bin of the histogram. That of the last one is the largest
    /// element.
    pub fn right_edge(&self, bin: usize) -> f64 {
        match (bin + 1).cmp(&self.histogram.len()) {
            std::cmp::Ordering::Less => {
                let part = (bin + 1) as f64 / self.histogram.len() as f64;
                self.min + (self.max - self.min) * part
            }
            _ => self.max,
        }
    }
}

impl TensorStatistics {
    /// Computes the statistics of some numbers.
    pub fn of(values: &[f32]) -> Self {
        Self::gathered(|visit| values.iter().for_each(|v| visit(f64::from(*v))))
    }

    /// Computes the statistics of a tensor of any dtype in its storage bytes, little-endian.
    pub fn of_bytes(dtype: DType, bytes: &[u8]) -> Self {
        let block = dtype.block().bytes;
        Self::gathered(|visit| {
            let chunks = bytes.chunks(CHUNK * block);
            chunks.for_each(|chunk| decode(dtype, chunk).into_iter().for_each(&mut *visit));
        })
    }

    /// Returns the number of elements that are not finite.
    pub fn not_finite(&self) -> usize {
        self.nan + self.positive_infinities + self.negative_infinities
    }

    /// Computes the statistics of numbers that `each` passes to its argument, in the same order at each call.
    fn gathered(each: impl Fn(&mut dyn FnMut(f64))) -> Self {
        let mut all = TensorStatistics::default();
        let (mut min, mut max, mut sum) = (f64::INFINITY, f64::NEG_INFINITY, 0.0);
        each(&mut |v| {
            all.len += 1;
            if v.is_finite() {
                all.zeros += usize::from(v == 0.0);
                (min, max, sum) = (v.min(min), v.max(max), sum + v);
            } else if v.is_nan() {
                all.nan += 1;
            } else if v > 0.0 {
                all.positive_infinities += 1;
            } else {
                all.negative_infinities += 1;
            }
        });
        let count = all.len - all.not_finite();
        if count == 0 {
            return all;
        }
        // Rounding must not move the mean out of the range, as happens for many equal numbers.
        let mean = (sum / count as f64).clamp(min, max);
        let mut histogram = vec![0; if min == max { 1 } else { BINS }];
        let scale = BINS as f64 / (max - min);
        let last = histogram.len() - 1;
        let mut squares = 0.0;
        each(&mut |v| {
            if v.is_finite() {
                squares += (v - mean) * (v - mean);
                // The cast maps NaN (0 times infinity) to 0.
                histogram[(((v - min) * scale) as usize).min(last)] += 1;
            }
        });
        all.finite = Some(FiniteStatistics {
            min,
            max,
            mean,
            deviation: (squares / count as f64).sqrt(),
            histogram,
        });
        all
    }
}

/// Statistics of a named tensor of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamedStatistics {
    /// Parameter, gradient or state.
    pub kind: TensorKind,
    /// Name of the tensor.
    pub name: String,
    /// Statistics of the tensor.
    pub statistics: TensorStatistics,
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    fn finite(values: &[f32]) -> FiniteStatistics {
        TensorStatistics::of(values).finite.expect("finite numbers")
    }

    #[test]
    fn known_numbers_have_known_statistics() {
        let values: Vec<f32> = (0..=64).map(|i| i as f32 / 2.0 - 16.0).collect();
        let found = finite(&values);
        assert_eq!(
            (found.min, found.max, found.mean, found.count()),
            (-16.0, 16.0, 0.0, 65)
        );
        // Of n equally spaced numbers: d² (n² - 1) / 12.
        let variance = 0.25 * f64::from(65 * 65 - 1) / 12.0;
        assert!((found.deviation - variance.sqrt()).abs() < 1e-12, "{found:?}");
        // Two in each bin of width 1; the largest belongs to the last one.
        assert_eq!(found.histogram[..31], [2; 31]);
        assert_eq!(found.histogram[31], 3);
        assert_eq!((found.right_edge(0), found.right_edge(30)), (-15.0, 15.0));
        assert_eq!(found.right_edge(31), 16.0);
    }

    #[test]
    fn what_is_not_finite_is_counted_and_nothing_else() {
        let values = [
            f32::NAN,
            1.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            -0.0,
            f32::NEG_INFINITY,
            3.0,
            0.0,
        ];
        let found = TensorStatistics::of(&values);
        let counts = (
            found.len,
            found.nan,
            found.positive_infinities,
            found.negative_infinities,
            found.zeros,
        );
        assert_eq!(counts, (8, 1, 1, 2, 2));
        assert_eq!(found.not_finite(), 4);
        let finite = found.finite.expect("four of them");
        assert_eq!((finite.min, finite.max, finite.mean), (0.0, 3.0, 1.0));
        assert_eq!(finite.count(), 4);
        let none = TensorStatistics::of(&[f32::NAN, f32::INFINITY]);
        assert_eq!((none.len, none.not_finite(), none.finite), (2, 2, None));
    }

    #[test]
    fn empty_and_constant_tensors() {
        assert_eq!(TensorStatistics::of(&[]), TensorStatistics::default());
        // 0.1 is not exact, and neither is the sum of a thousand of it.
        let constant = finite(&[0.1; 1000]);
        let value = f64::from(0.1_f32);
        assert_eq!((constant.min, constant.max, constant.mean), (value, value, value));
        assert_eq!((constant.deviation, constant.histogram.as_slice()), (0.0, &[1000][..]));
        assert_eq!(constant.right_edge(0), value);
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let found = finite(&[f32::MAX, -f32::MAX, f32::MAX]);
        assert!(found.mean.is_finite() && found.deviation.is_finite(), "{found:?}");
        assert_eq!((found.histogram[0], found.histogram[31]), (1, 2));
        // The smallest possible difference.
        let found = finite(&[0.0, f32::from_bits(1)]);
        assert_eq!((found.histogram[0], found.histogram[31]), (1, 1));
    }

    #[test]
    fn storage_of_every_dtype_is_understood() {
        let numbers = [-1.0f32, 0.0, 2.0, 7.0];
        let f16s: Vec<u8> = numbers.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
        let bf16s: Vec<u8> = numbers.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
        let i32s: Vec<u8> = numbers.iter().flat_map(|v| (*v as i32).to_le_bytes()).collect();
        for (dtype, bytes) in [(DType::F16, f16s), (DType::BF16, bf16s), (DType::I32, i32s)] {
            assert_eq!(
                TensorStatistics::of_bytes(dtype, &bytes),
                TensorStatistics::of(&numbers),
                "{dtype}"
            );
        }
        // More elements than are decoded at a time.
        let many: Vec<f32> = (0..3 * CHUNK + 5).map(|i| (i as f32 * 0.7).sin()).collect();
        let bytes: Vec<u8> = many.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(
            TensorStatistics::of_bytes(DType::F32, &bytes),
            TensorStatistics::of(&many)
        );
    }
}
