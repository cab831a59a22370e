//! Scaling of rotary positions for contexts longer than those of pretraining.

use std::f64::consts::TAU;

use crate::attrs::Attrs;

/// Scaling of the frequencies (radians per position) of the rotated pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    #[default]
    None,
    /// Divides all frequencies by the factor: positional interpolation (Chen et al., 2023).
    Linear {
        /// Ratio of the longer context to the original one.
        factor: f64,
    },
    /// Divides frequencies by the factor if a turn takes more than `context / low_freq_factor` positions, keeps them if
    /// it takes less than `context / high_freq_factor`, and interpolates in between: Llama 3.1 (Dubey et al., 2024).
    Llama3 {
        /// Ratio of the longer context to the original one.
        factor: f64,
        /// If a pair makes at most this number of turns in the original context, its frequency is divided by the full
        /// factor.
        low_freq_factor: f64,
        /// If a pair makes at least this number of turns in the original context, its frequency does not change. More
        /// than `low_freq_factor`.
        high_freq_factor: f64,
        /// Context length of pretraining.
        original_context: u32,
    },
}

impl RopeScaling {
    /// Reads the attributes of a call.
    pub(super) fn of(attrs: &Attrs) -> Result<Self, String> {
        let [factor, low, high] = ["factor", "low_freq_factor", "high_freq_factor"].map(|name| attrs.float(name));
        let (factor, low, high) = (factor?, low?, high?);
        let context = attrs.size("original_context")?;
        if !(factor > 0.0 && factor.is_finite()) {
            return Err(format!(
                "the factor {factor} divides speeds, so it must be positive and finite"
            ));
        }
        if context == 0 {
            return Ok(if factor == 1.0 {
                RopeScaling::None
            } else {
                RopeScaling::Linear { factor }
            });
        }
        if !(low > 0.0 && high > low && high.is_finite()) {
            return Err(format!(
                "low_freq_factor is {low} and high_freq_factor {high}, but they must be positive, the second the larger"
            ));
        }
        Ok(RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_context: u32::try_from(context).map_err(|_| format!("a context of {context} positions"))?,
        })
    }

    /// Adds the scaling to the attributes of a call.
    pub(super) fn write(self, attrs: Attrs) -> Attrs {
        let (factor, low, high, context) = match self {
            RopeScaling::None => (1.0, 1.0, 1.0, 0),
            RopeScaling::Linear { factor } => (factor, 1.0, 1.0, 0),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context,
            } => (factor, low_freq_factor, high_freq_factor, original_context),
        };
        attrs
            .with("factor", factor)
            .with("low_freq_factor", low)
            .with("high_freq_factor", high)
            .with("original_context", context)
    }

    /// Scales a frequency, in radians per position.
    pub fn apply(self, speed: f64) -> f64 {
        match self {
            RopeScaling::None => speed,
            RopeScaling::Linear { factor } => speed / factor,
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_context,
            } => {
                let turns = f64::from(original_context) * speed / TAU;
                let kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                (1.0 - kept) * speed / factor + kept * speed
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The scaled frequencies follow the published rule of Llama 3.1.
    #[test]
    fn llama3_slows_down_what_turns_slowly() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192,
        };
        let per_turns = |turns: f64| turns * TAU / 8192.0;
        for (turns, expected) in [
            (100.0, 100.0),
            (4.0, 4.0),
            (1.0, 1.0 / 8.0),
            (0.01, 0.01 / 8.0),
            (2.5, 0.5 * 2.5 / 8.0 + 0.5 * 2.5),
        ] {
            let error = scaling.apply(per_turns(turns)) - per_turns(expected);
            assert!(error.abs() < 1e-12, "{turns}");
        }
        assert_eq!(RopeScaling::Linear { factor: 4.0 }.apply(1.0), 0.25);
    }
}
