//! Loss scaling: it prevents underflow of small gradients in mixed precision.
//!
//! Gradients are often far smaller than the smallest `f16`. So the backward pass begins with a factor, the loss scale,
//! instead of 1; gradients are divided by it before they are used. Where a scaled gradient overflows, the update is
//! skipped and the scale is halved; after a number of updates in a row without overflow, it is doubled (Micikevicius et
//! al., 2018, section 3.2). The scale is a power of two, so that both factors are exact.
//!
//! All of it is part of the plan: the scale and its counters are states on the device, and no step waits for the host.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Prefix of state names that are reserved for loss scaling.
pub const RESERVED: &str = "loss_scale.";
/// State `f32 []`: the scale.
pub const SCALE_STATE: &str = "loss_scale.scale";
/// State `f32 []`: one over the scale.
pub const INVERSE_STATE: &str = "loss_scale.inverse";
/// State `f32 []` of the optimizer: number of consecutive updates without overflow since the scale last changed.
pub const GOOD_STATE: &str = "optimizer.good_updates";
/// State `f32 []` of the optimizer: number of updates that were skipped because a gradient was not finite.
pub const SKIPPED_STATE: &str = "optimizer.skipped_updates";
/// State `f32 []` of the optimizer: number of elements of the last update's gradients that were not finite.
pub const FOUND_STATE: &str = "optimizer.non_finite";

/// Maximum scale; its reciprocal is the minimum.
pub const MAX_SCALE: f32 = 16_777_216.0;

/// The factor of the gradients during the backward pass of training in mixed precision.
///
/// As text: `dynamic`, `dynamic:START`, `dynamic:START:INTERVAL`, or the number of a fixed scale.
///
/// ```
/// use meganeura_core::LossScaling;
///
/// assert_eq!("dynamic".parse(), Ok(LossScaling::default()));
/// assert_eq!("1024".parse(), Ok(LossScaling::Fixed(1024.0)));
/// assert_eq!(LossScaling::default().to_string(), "dynamic:65536:2000");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum LossScaling {
    /// A scale that is halved with each skipped update, and doubled after a number of updates in a row without a skip.
    Dynamic {
        /// The first scale: a power of two from 2^-24 to 2^24.
        initial: f32,
        /// Number of consecutive updates without overflow after which the scale is doubled, from 1 to 2^24.
        interval: u32,
    },
    /// A constant scale: a power of two from 2^-24 to 2^24. Updates whose gradients are not finite are skipped, too.
    Fixed(f32),
}

impl Default for LossScaling {
    /// Returns the settings of PyTorch's `GradScaler`: 65536 at first, doubled after 2000 updates.
    fn default() -> Self {
        LossScaling::Dynamic {
            initial: 65_536.0,
            interval: 2000,
        }
    }
}

impl LossScaling {
    /// Returns the scale of the first step.
    pub fn initial(self) -> f32 {
        match self {
            LossScaling::Dynamic { initial, .. } => initial,
            LossScaling::Fixed(scale) => scale,
        }
    }

    /// Returns the number of updates from one doubling to the next; 0 if the scale never changes.
    pub(crate) fn interval(self) -> u32 {
        match self {
            LossScaling::Dynamic { interval, .. } => interval,
            LossScaling::Fixed(_) => 0,
        }
    }

    /// Checks the scale and the interval.
    ///
    /// # Errors
    /// Description of the invalid number.
    pub fn check(self) -> Result<(), String> {
        // The counter of updates is an `f32` state, and therefore exact only up to 2^24.
        const MAX: u32 = 1 << 24;
        let (scale, exponent_only) = (self.initial(), self.initial().to_bits() & 0x007f_ffff == 0);
        let in_range = (1.0 / MAX_SCALE..=MAX_SCALE).contains(&scale);
        if !in_range || !exponent_only {
            return Err(format!(
                "the loss scale {scale} is not a power of two from 2^-24 to 2^24"
            ));
        }
        match self {
            LossScaling::Dynamic { interval, .. } if interval == 0 || interval > MAX => Err(format!(
                "the loss scale cannot grow every {interval} updates; use 1 to {MAX}, or a fixed scale"
            )),
            _ => Ok(()),
        }
    }

    /// Calls [`LossScaling::check`] and returns its message as an error of the library.
    pub(crate) fn checked(self) -> Result<()> {
        self.check().map_err(|message| Error::Config {
            origin: "loss_scale".into(),
            message,
        })
    }
}

impl fmt::Display for LossScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossScaling::Dynamic { initial, interval } => write!(f, "dynamic:{initial}:{interval}"),
            LossScaling::Fixed(scale) => write!(f, "{scale}"),
        }
    }
}

impl FromStr for LossScaling {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}' is not a loss scale; use dynamic, dynamic:START, dynamic:START:INTERVAL or a power of \
                two"
            )
        };
        let scaling = match text.strip_prefix("dynamic") {
            None => LossScaling::Fixed(text.parse().map_err(|_| wrong())?),
            Some("") => LossScaling::default(),
            Some(rest) => {
                let rest = rest.strip_prefix(':').ok_or_else(wrong)?;
                let (initial, interval) = match rest.split_once(':') {
                    Some((initial, interval)) => (initial, interval.parse().map_err(|_| wrong())?),
                    None => (rest, LossScaling::default().interval()),
                };
                LossScaling::Dynamic {
                    initial: initial.parse().map_err(|_| wrong())?,
                    interval,
                }
            }
        };
        scaling.check()?;
        Ok(scaling)
    }
}

impl TryFrom<String> for LossScaling {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<LossScaling> for String {
    fn from(scaling: LossScaling) -> Self {
        scaling.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_say_what_they_are_read_as() {
        let cases = [
            ("dynamic", LossScaling::default()),
            (
                "dynamic:1024",
                LossScaling::Dynamic {
                    initial: 1024.0,
                    interval: 2000,
                },
            ),
            (
                "dynamic:0.5:7",
                LossScaling::Dynamic {
                    initial: 0.5,
                    interval: 7,
                },
            ),
            ("16777216", LossScaling::Fixed(MAX_SCALE)),
            ("5.9604645e-8", LossScaling::Fixed(1.0 / MAX_SCALE)),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse(), Ok(expected), "{text}");
            assert_eq!(expected.to_string().parse(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn scales_that_are_not_exact_are_refused() {
        for text in ["3", "0", "-2", "NaN", "inf", "33554432", "1e-30", "dynamic:100"] {
            let message = text.parse::<LossScaling>().expect_err(text);
            assert!(message.contains("power of two from"), "{text}: {message}");
        }
        for text in ["", "dynamics", "dynamic:", "dynamic:1:x", "fast"] {
            let message = text.parse::<LossScaling>().expect_err(text);
            assert!(message.contains("is not a loss scale"), "{text}: {message}");
        }
        for text in ["dynamic:1:0", "dynamic:1:16777217"] {
            let message = text.parse::<LossScaling>().expect_err(text);
            assert!(message.contains("cannot grow"), "{text}: {message}");
        }
    }
}
