//! Pooling of the rows of a text's tokens into one vector.

use std::str::FromStr;

use meganeura_core::{Error, Result};

/// Method that combines the rows of a text's tokens into one vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// Mean of all rows.
    #[default]
    Mean,
    /// Row of the first token.
    Cls,
}

impl FromStr for Pooling {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "mean" => Ok(Pooling::Mean),
            "cls" => Ok(Pooling::Cls),
            _ => Err(Error::misuse(
                format!("expected the pooling mean or cls, found '{text}'"),
                "use mean, or cls for the first token",
            )),
        }
    }
}
