//! A precision on the command line.

use clap::ValueEnum;
use meganeura::precision::Precision;

/// Precision of matmuls and convolutions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Choice {
    /// Operands are never rounded.
    F32,
    /// Operands of matmuls and convolutions may be rounded to f16 if that is faster.
    Mixed,
}

impl From<Choice> for Precision {
    fn from(choice: Choice) -> Self {
        match choice {
            Choice::F32 => Precision::F32,
            Choice::Mixed => Precision::Mixed,
        }
    }
}
