//! Initial values of parameters.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::host_memory;
use crate::random::SplitMix64;

/// Initializer of a parameter in `Session::initialize_parameters`.
///
/// `fan_in` is the number of inputs that each output sums over, `fan_out` the number of outputs
/// that each input feeds; layers provide both.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// All the same value.
    Constant(f32),
    /// Uniform in `[-bound, bound)`.
    Uniform {
        /// Upper bound of the magnitude.
        bound: f32,
    },
    /// Normal with mean 0.
    Normal {
        /// Standard deviation.
        std: f32,
    },
}

impl Init {
    /// Returns the uniform distribution of Xavier (Glorot): bound `sqrt(6 / (fan_in + fan_out))`.
    /// Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural
    /// networks", 2010, equation 16.
    pub fn xavier_uniform(fan_in: usize, fan_out: usize) -> Self {
        Init::Uniform {
            bound: (6.0 / fan_in.saturating_add(fan_out).max(1) as f32).sqrt(),
        }
    }

    /// Returns the normal distribution of Xavier (Glorot): standard deviation
    /// `sqrt(2 / (fan_in + fan_out))`.
    pub fn xavier_normal(fan_in: usize, fan_out: usize) -> Self {
        Init::Normal {
            std: (2.0 / fan_in.saturating_add(fan_out).max(1) as f32).sqrt(),
        }
    }

    /// Returns the uniform distribution of Kaiming (He) for ReLU networks: bound
    /// `sqrt(6 / fan_in)`. He et al., "Delving deep into rectifiers", 2015, equation 10.
    pub fn kaiming_uniform(fan_in: usize) -> Self {
        Init::Uniform {
            bound: (6.0 / fan_in.max(1) as f32).sqrt(),
        }
    }

    /// Returns the normal distribution of Kaiming (He) for ReLU networks: standard deviation
    /// `sqrt(2 / fan_in)`.
    pub fn kaiming_normal(fan_in: usize) -> Self {
        Init::Normal {
            std: (2.0 / fan_in.max(1) as f32).sqrt(),
        }
    }

    /// Returns `len` values. The random stream depends only on the seed and the parameter's name,
    /// so adding a parameter to a model does not change the values of others.
    pub fn values(self, name: &str, len: usize, seed: u64) -> Vec<f32> {
        let mut values = Vec::with_capacity(len);
        self.append(name, len, seed, &mut values);
        values
    }

    /// Returns the same as [`Init::values`], but returns an error if there is not enough memory.
    pub(crate) fn try_values(self, name: &str, len: usize, seed: u64) -> Result<Vec<f32>> {
        let mut values = host_memory::room(&format!("the first values of '{name}'"), len)?;
        self.append(name, len, seed, &mut values);
        Ok(values)
    }

    fn append(self, name: &str, len: usize, seed: u64, values: &mut Vec<f32>) {
        let mut rng = SplitMix64::new(seed ^ fnv1a(name.as_bytes()));
        match self {
            Init::Zeros => values.resize(len, 0.0),
            Init::Ones => values.resize(len, 1.0),
            Init::Constant(c) => values.resize(len, c),
            Init::Uniform { bound } => {
                values.extend((0..len).map(|_| ((2.0 * rng.unit() - 1.0) * f64::from(bound)) as f32));
            }
            Init::Normal { std } => values.extend((0..len).map(|_| (rng.normal() * f64::from(std)) as f32)),
        }
    }
}

/// Computes FNV-1a with 64 bits (Fowler, Noll, Vo): a fixed hash, unlike the standard library's.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| {
        (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_as_asked() {
        let v = Init::Normal { std: 0.5 }.values("w", 40_000, 1);
        let mean = v.iter().sum::<f32>() / v.len() as f32;
        let var = v.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / v.len() as f32;
        assert!(mean.abs() < 0.01 && (var.sqrt() - 0.5).abs() < 0.01, "{mean} {var}");
        let u = Init::kaiming_uniform(6).values("w", 10_000, 1);
        assert!(u.iter().all(|x| (-1.0..1.0).contains(x)));
        assert!(u.iter().any(|x| *x > 0.9) && u.iter().any(|x| *x < -0.9));
    }

    #[test]
    fn the_stream_depends_on_seed_and_name_only() {
        let a = Init::Uniform { bound: 1.0 };
        assert_eq!(a.values("w", 4, 7), a.values("w", 4, 7));
        assert_ne!(a.values("w", 4, 7), a.values("w", 4, 8));
        assert_ne!(a.values("w", 4, 7), a.values("v", 4, 7));
    }
}
