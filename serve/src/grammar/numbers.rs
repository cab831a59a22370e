//! Limits of the bounds and multiples of numbers in a schema.

use meganeura_core::{Error, Result};
use serde_json::{Map, Value};

use super::check::too_large;

/// Maximum sum of all `multipleOf` values, taken as integers without the decimal point: the compiler creates a state
/// for each remainder. Also the maximum least common multiple of the values that apply to one number.
const MAX_MULTIPLE: u64 = 10_000;
/// Bounds of numbers in a schema whose parts are combined. The compiler allows an exclusive bound that is an integer if the other
/// bound is at most 1 away, so these are refused wherever both may apply to one number.
#[derive(Default)]
pub(super) struct Bounds {
    low: Vec<Bound>,
    high: Vec<Bound>,
}

struct Bound {
    value: f64,
    /// True if it is an exclusive bound of numbers that need not be integers, and is an integer.
    is_exclusive_integer: bool,
}

impl Bounds {
    pub(super) fn add(&mut self, fields: &Map<String, Value>) {
        let is_integer = fields.get("type").is_some_and(|kind| kind == "integer");
        for (name, is_exclusive) in [
            ("minimum", false),
            ("exclusiveMinimum", true),
            ("maximum", false),
            ("exclusiveMaximum", true),
        ] {
            let Some(value) = fields.get(name).and_then(Value::as_f64) else {
                continue;
            };
            let is_low = name.ends_with("inimum");
            let bounds = if is_low { &mut self.low } else { &mut self.high };
            bounds.push(Bound {
                value,
                is_exclusive_integer: is_exclusive && !is_integer && value.fract() == 0.0,
            });
        }
    }

    pub(super) fn check(&mut self) -> Result<()> {
        self.high.sort_by(|a, b| a.value.total_cmp(&b.value));
        self.low.sort_by(|a, b| a.value.total_cmp(&b.value));
        for low in self.low.iter().filter(|low| low.is_exclusive_integer) {
            let next = self.high.partition_point(|high| high.value < low.value);
            if let Some(high) = self.high.get(next).filter(|high| high.value - low.value <= 1.0) {
                return Err(too_close(low, high));
            }
        }
        for high in self.high.iter().filter(|high| high.is_exclusive_integer) {
            let next = self.low.partition_point(|low| low.value <= high.value);
            let low = next.checked_sub(1).and_then(|last| self.low.get(last));
            if let Some(low) = low.filter(|low| high.value - low.value <= 1.0) {
                return Err(too_close(low, high));
            }
        }
        Ok(())
    }
}

fn too_close(low: &Bound, high: &Bound) -> Error {
    Error::misuse(
        format!(
            "an exclusive bound is not supported where schemas are combined and another bound is at most 1 away: found {} and {}",
            low.value, high.value
        ),
        "use minimum and maximum, or bounds that are further apart",
    )
}

/// Values of `multipleOf` in a schema.
#[derive(Default)]
pub(super) struct Multiples {
    /// Each value as an integer without the decimal point, and its number of decimals.
    found: Vec<(u64, u32)>,
    /// Sum of the integers.
    sum: u64,
    /// True if several of the values may apply to one number.
    are_combined: bool,
}

impl Multiples {
    pub(super) fn add(&mut self, fields: &Map<String, Value>) -> Result<()> {
        let combining = ["allOf", "anyOf", "oneOf", "$ref"];
        self.are_combined |= combining.iter().any(|name| fields.contains_key(*name));
        let Some(Value::Number(number)) = fields.get("multipleOf") else {
            return Ok(());
        };
        let too_fine = || {
            too_large(format!(
                "expected multipleOf of at most {MAX_MULTIPLE}, as an integer of all its digits, found {number}"
            ))
        };
        // The compiler ignores the sign.
        let value = number
            .as_f64()
            .map(f64::abs)
            .filter(|value| *value > 0.0)
            .unwrap_or(1.0);
        // The compiler supports at most nine decimals.
        let places = (0..=9).find(|&places| {
            let scaled = value * 10_f64.powi(places);
            (scaled - scaled.round()).abs() <= 1e-9 * scaled
        });
        let places = places.ok_or_else(too_fine)?;
        let scaled = (value * 10_f64.powi(places)).round();
        if scaled > MAX_MULTIPLE as f64 {
            return Err(too_fine());
        }
        self.sum += scaled as u64;
        if self.sum > MAX_MULTIPLE {
            return Err(too_large(format!(
                "expected all values of multipleOf to be at most {MAX_MULTIPLE} together, as integers of all their digits"
            )));
        }
        self.found.push((scaled as u64, places as u32));
        Ok(())
    }

    /// Returns an estimate of the time to compile the values, in units of 0.6 us: 4 us for each state.
    pub(super) fn cost(&self) -> u64 {
        self.sum * 7
    }

    /// Checks the least common multiple of all values, if they are combined.
    pub(super) fn check(&self) -> Result<()> {
        if !self.are_combined || self.found.len() < 2 {
            return Ok(());
        }
        let places = self.found.iter().map(|(_, places)| *places).max().unwrap_or(0);
        let mut multiple = 1_u64;
        for (value, own) in &self.found {
            let value = value * 10_u64.pow(places - own);
            // Stays below 10^4 * 10^4 * 10^9 = 10^17, which u64 holds.
            multiple = multiple / gcd(multiple, value) * value;
            if multiple > MAX_MULTIPLE {
                return Err(too_large(format!(
                    "expected values of multipleOf with a least common multiple of at most {MAX_MULTIPLE} where schemas are combined"
                )));
            }
        }
        Ok(())
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn numbers_are_read_exactly() {
        for text in ["-991812.7932298721", "3929.3391757239133", "0.1", "5e-324"] {
            let read: serde_json::Value = serde_json::from_str(text).expect("a number");
            let exact: f64 = text.parse().expect("a number");
            assert_eq!(read, json!(exact), "{text}");
        }
    }
}
