//! A precision on the command line.

use clap::ValueEnum;
use meganeura::precision::Precision;

/// How exactly products are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Choice {
    /// Operands are never rounded.
    F32,
    /// Operands of matrix products and convolutions may be rounded to f16 where the device is faster then.
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
