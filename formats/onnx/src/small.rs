//! Floating-point types of 8 and 4 bits: graphs compute with their values in `f32`.

use crate::element::ElementType;

/// A floating-point type with a sign, an exponent and a mantissa in at most one byte.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SmallFloat {
    exponent: u32,
    pub(crate) mantissa: i32,
    bias: i32,
    /// Largest finite number.
    pub(crate) max: f32,
    /// Result of rounding numbers beyond the maximum, if they do not saturate.
    pub(crate) beyond: f32,
    /// Value of NaN: 0 if the type has none.
    pub(crate) nan: f32,
    /// Bits of infinity, after which all bits are NaN; `None` for types without infinity.
    infinity: Option<u8>,
    /// Bits of the only NaN: either without the sign bit, or exactly the sign bit.
    only_nan: Option<u8>,
}

impl SmallFloat {
    /// Returns the layout of a type, from these sources: Micikevicius et al., 2022 (E4M3FN, E5M2), Noune et al., 2022
    /// (FNUZ), and the MX specification of the Open Compute Project (E2M1).
    pub(crate) fn of(element: ElementType) -> Option<Self> {
        let usual = SmallFloat {
            exponent: 4,
            mantissa: 3,
            bias: 7,
            max: 448.0,
            beyond: f32::NAN,
            nan: f32::NAN,
            infinity: None,
            only_nan: None,
        };
        Some(match element {
            ElementType::F8E4M3FN => SmallFloat {
                only_nan: Some(0x7f),
                ..usual
            },
            ElementType::F8E4M3FNUZ => SmallFloat {
                bias: 8,
                max: 240.0,
                only_nan: Some(0x80),
                ..usual
            },
            ElementType::F8E5M2 => SmallFloat {
                exponent: 5,
                mantissa: 2,
                bias: 15,
                max: 57344.0,
                beyond: f32::INFINITY,
                infinity: Some(0x7c),
                ..usual
            },
            ElementType::F8E5M2FNUZ => SmallFloat {
                exponent: 5,
                mantissa: 2,
                bias: 16,
                max: 57344.0,
                only_nan: Some(0x80),
                ..usual
            },
            ElementType::F4E2M1 => SmallFloat {
                exponent: 2,
                mantissa: 1,
                bias: 1,
                max: 6.0,
                beyond: 6.0,
                nan: 0.0,
                ..usual
            },
            _ => return None,
        })
    }

    /// Returns the exponent of the smallest number that is not subnormal.
    pub(crate) fn lowest(&self) -> i32 {
        1 - self.bias
    }

    /// Returns the exponent of the largest number.
    pub(crate) fn highest(&self) -> i32 {
        self.max.log2().floor() as i32
    }

    /// Returns the number with these bits.
    pub(crate) fn decode(&self, bits: u8) -> f32 {
        let width = self.exponent + self.mantissa as u32;
        let sign_bit = 1u8 << width;
        let size = bits & (sign_bit - 1);
        let sign = if bits & sign_bit != 0 { -1.0 } else { 1.0 };
        let is_only = |nan: u8| if nan == sign_bit { bits == nan } else { size == nan };
        if self.only_nan.is_some_and(is_only) || self.infinity.is_some_and(|infinity| size > infinity) {
            return f32::NAN;
        }
        if self.infinity == Some(size) {
            return sign * f32::INFINITY;
        }
        let exponent = i32::from(size >> self.mantissa);
        let part = f32::from(size & ((1 << self.mantissa) - 1)) / (1 << self.mantissa) as f32;
        sign * match exponent {
            0 => part * 2f32.powi(self.lowest()),
            exponent => (1.0 + part) * 2f32.powi(exponent - self.bias),
        }
    }

    /// Rounds to the nearest number of the type, to even in a tie; at most to the maximum.
    pub(crate) fn round(&self, x: f64) -> f32 {
        if x.is_nan() {
            return self.nan;
        }
        let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
        let step = 2f64.powi(exponent.max(self.lowest()) - self.mantissa);
        let max = f64::from(self.max);
        ((x / step).round_ties_even() * step).clamp(-max, max) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each number of a type rounds to itself, and values between two numbers round to the nearer one.
    #[test]
    fn numbers_are_rounded_to_the_nearest() {
        use ElementType::*;
        for (element, bits) in [
            (F8E4M3FN, 8),
            (F8E4M3FNUZ, 8),
            (F8E5M2, 8),
            (F8E5M2FNUZ, 8),
            (F4E2M1, 4),
        ] {
            let small = SmallFloat::of(element).expect("a small type");
            let mut all: Vec<f32> = (0..1u16 << bits).map(|b| small.decode(b as u8)).collect();
            all.retain(|v| v.is_finite());
            all.sort_by(f32::total_cmp);
            assert_eq!(all.last(), Some(&small.max), "{element}");
            for pair in all.windows(2) {
                let (low, high) = (f64::from(pair[0]), f64::from(pair[1]));
                assert_eq!(f64::from(small.round(low)), low, "{element}");
                assert_eq!(f64::from(small.round(low + (high - low) * 0.49)), low, "{element}");
                assert_eq!(f64::from(small.round(low + (high - low) * 0.51)), high, "{element}");
            }
        }
    }
}
