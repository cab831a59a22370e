//! Precision of matmuls and convolutions.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Precision of matmuls and convolutions. All other operators, and storage, use the tensor's own type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Operands of `f32` are never rounded.
    #[default]
    F32,
    /// Operands of matmuls and convolutions may be rounded to `f16` if that is faster on the device. The relative error
    /// is 2^-11 for magnitudes from 6e-5 to 65,504; greater ones become infinite, and the smallest nonzero one is 6e-8.
    /// Sums are in `f32`. A value that only such operations read may be rounded when it is written, with the residual
    /// and the bias that are added to it. NVIDIA's cuDNN also rounds results and gradients of convolutions. Nothing else
    /// changes, including parameters and their updates; training scales its loss
    /// ([`LossScaling`](crate::LossScaling)).
    Mixed,
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::Mixed => "mixed",
        })
    }
}

impl FromStr for Precision {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "f32" => Ok(Precision::F32),
            "mixed" => Ok(Precision::Mixed),
            _ => Err(Error::Config {
                origin: "precision".into(),
                message: format!("there is no precision '{text}'; use f32 or mixed"),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precisions_have_names() {
        for precision in [Precision::F32, Precision::Mixed] {
            assert_eq!(precision.to_string().parse::<Precision>().ok(), Some(precision));
        }
        let error = "f64".parse::<Precision>().expect_err("no such precision");
        assert!(error.to_string().contains("f32 or mixed"), "{error}");
    }
}
