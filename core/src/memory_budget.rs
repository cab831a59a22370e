//! Memory limit of a plan.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// Memory limit of a plan; activations are recomputed (gradient checkpointing) to stay within it. Shares are between 0
/// and 1.
///
/// As a text: `4GB`, `1.5GiB`, `800000000`; `50%` of the plan's memory without recomputation, `50%:step` of activation
/// memory, `80%:device` of the device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub enum MemoryBudget {
    /// A number of bytes.
    Bytes(u64),
    /// A share of the plan's memory without recomputation.
    OfPeak(f64),
    /// All memory of parameters, gradients and the optimizer's state, plus a share of the memory that is needed only
    /// within a step ([`MemoryForecast::transient`](crate::plan::MemoryForecast::transient)).
    OfStep(f64),
    /// A share of the device's memory.
    OfDevice(f64),
}

/// Units of bytes.
const UNITS: [(&str, f64); 8] = [
    ("kib", 1024.0),
    ("mib", 1_048_576.0),
    ("gib", 1_073_741_824.0),
    ("kb", 1e3),
    ("mb", 1e6),
    ("gb", 1e9),
    ("b", 1.0),
    ("", 1.0),
];

impl FromStr for MemoryBudget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}' is not a memory budget; use bytes such as 4GB or 800MiB, 50% of the plan's memory, 50%:step \
                 of activation memory, or 80%:device of the device's memory"
            )
        };
        let lower = text.trim().to_ascii_lowercase();
        if let Some((number, of)) = lower.split_once('%') {
            let share = number.trim().parse::<f64>().map_err(|_| wrong())? / 100.0;
            if !(share > 0.0 && share <= 1.0) {
                return Err(format!("'{text}': expected a share above 0 % and at most 100 %"));
            }
            return match of {
                "" => Ok(MemoryBudget::OfPeak(share)),
                ":step" => Ok(MemoryBudget::OfStep(share)),
                ":device" => Ok(MemoryBudget::OfDevice(share)),
                _ => Err(wrong()),
            };
        }
        let digits = lower.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(lower.len());
        let (number, unit) = lower.split_at(digits);
        let &(_, factor) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let bytes = number.trim().parse::<f64>().map_err(|_| wrong())? * factor;
        if bytes >= 1.0 && bytes < u64::MAX as f64 {
            Ok(MemoryBudget::Bytes(bytes as u64))
        } else {
            Err(wrong())
        }
    }
}

impl TryFrom<String> for MemoryBudget {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for MemoryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryBudget::Bytes(bytes) => write!(f, "{bytes}"),
            MemoryBudget::OfPeak(share) => write!(f, "{}%", share * 100.0),
            MemoryBudget::OfStep(share) => write!(f, "{}%:step", share * 100.0),
            MemoryBudget::OfDevice(share) => write!(f, "{}%:device", share * 100.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read() {
        let read = |text: &str| text.parse::<MemoryBudget>();
        assert_eq!(read("4GB"), Ok(MemoryBudget::Bytes(4_000_000_000)));
        assert_eq!(read("1.5 GiB"), Ok(MemoryBudget::Bytes(1_610_612_736)));
        assert_eq!(read("1024"), Ok(MemoryBudget::Bytes(1024)));
        assert_eq!(read("50%"), Ok(MemoryBudget::OfPeak(0.5)));
        assert_eq!(read("12.5%:step"), Ok(MemoryBudget::OfStep(0.125)));
        assert_eq!(read("80%:device"), Ok(MemoryBudget::OfDevice(0.8)));
        for wrong in [
            "", "%", "0%", "-5%", "101%", "nan%", "50%x", "GB", "4XB", "-4GB", "nan", "inf", "0", "1e300GB",
        ] {
            let error = read(wrong).expect_err(wrong);
            assert!(error.contains(wrong), "{error}");
        }
    }
}
