//! Rotary positions for long contexts, from the metadata and a tensor.

use std::f64::consts::TAU;

use meganeura_core::Result;
use meganeura_core::ops::RopeScaling;
use serde_json::{Value as Json, json};

use super::{Gguf, names};
use crate::tensors::arrangement::Arrangement;
use crate::tensors::convert;
use crate::tensors::shard::Tensor;

/// Maximum relative difference between a stored factor and Llama 3.1's rule; programs compute the factors in `f32`.
const TOLERANCE: f64 = 1e-5;
/// Parameters of Llama 3.1's rule: `low_freq_factor`, `high_freq_factor` and `original_max_position_embeddings`. Files
/// only contain the resulting factors.
const LOW: f64 = 1.0;
const HIGH: f64 = 4.0;
const CONTEXT: f64 = 8192.0;

impl Gguf {
    /// Returns the base of the angles; files may omit the usual one.
    pub(super) fn theta(&self) -> Result<f64> {
        const USUAL: f64 = 10_000.0;
        Ok(self.float(&self.own("rope.freq_base")?)?.unwrap_or(USUAL))
    }

    /// Returns `rope_parameters` of an equivalent `config.json`, for heads of `head_dim` elements.
    pub(super) fn rope(&self, head_dim: u64) -> Result<Json> {
        let kind = self.text(&self.own("rope.scaling.type")?)?;
        let factor = match self.float(&self.own("rope.scaling.factor")?)? {
            // The key of older programs.
            None => self.float(&self.own("rope.scale_linear")?)?,
            factor => factor,
        };
        // 0 also means none.
        let factor = factor.filter(|&factor| factor != 1.0 && factor != 0.0);
        let slowed = self.slowed(head_dim)?;
        match (kind, factor, slowed) {
            (Some("none"), _, slowed) | (None | Some("linear"), None, slowed) => Ok(match slowed {
                RopeScaling::None => Json::Null,
                RopeScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
                RopeScaling::Llama3 {
                    factor,
                    low_freq_factor,
                    high_freq_factor,
                    original_context,
                } => json!({
                    "rope_type": "llama3", "factor": factor, "low_freq_factor": low_freq_factor,
                    "high_freq_factor": high_freq_factor, "original_max_position_embeddings": original_context,
                }),
            }),
            (None | Some("linear"), factor, RopeScaling::None) => {
                Ok(json!({ "rope_type": "linear", "factor": factor }))
            }
            (Some("yarn"), Some(factor), RopeScaling::None) => self.yarn(factor),
            (None | Some("linear"), ..) => Err(self.unsupported(
                "rotary positions that are scaled by a factor and by frequencies",
                REMEDY,
            )),
            (Some(other), ..) => Err(self.unsupported(format!("rotary positions of type '{other}'"), REMEDY)),
        }
    }

    /// Returns YaRN with this factor.
    fn yarn(&self, factor: f64) -> Result<Json> {
        // DeepSeek's variant of the factor of scores.
        if self
            .float(&self.own("rope.scaling.yarn_log_multiplier")?)?
            .is_some_and(|own| own != 0.0)
        {
            return Err(self.unsupported(
                "rotary positions of type 'yarn' with a multiplier of its logarithm",
                REMEDY,
            ));
        }
        let mut rope = json!({ "rope_type": "yarn", "factor": factor });
        if self.architecture()? == "gpt-oss" {
            // Files do not contain this setting of the checkpoints.
            rope["truncate"] = json!(false);
        }
        if let Some(context) = self.own_count("rope.scaling.original_context_length")? {
            rope["original_max_position_embeddings"] = json!(context);
        }
        for field in ["beta_fast", "beta_slow"] {
            if let Some(turns) = self.float(&self.own(&format!("rope.scaling.yarn_{field}"))?)? {
                rope[field] = json!(turns);
            }
        }
        // llama.cpp multiplies its own factor of scores by the usual one.
        let mut magnitude = 0.1 * factor.ln() + 1.0;
        for key in ["attn_factor", "yarn_attn_factor"] {
            magnitude *= self.float(&self.own(&format!("rope.scaling.{key}"))?)?.unwrap_or(1.0);
        }
        rope["attention_factor"] = json!(magnitude);
        Ok(rope)
    }

    /// Returns the scaling of rotary positions that the tensor of factors (divisors of the frequencies) represents.
    fn slowed(&self, head_dim: u64) -> Result<RopeScaling> {
        let Some(info) = self.tensors.get(names::FREQUENCIES) else {
            return Ok(RopeScaling::None);
        };
        let count: usize = info.shape.iter().product();
        let bytes = info.element.and_then(|element| Some((element, element.bytes(count)?)));
        let bytes = bytes.and_then(|(element, size)| Some((element, self.bytes(info, size)?)));
        let (Some((element, bytes)), true) = (bytes, count as u64 == head_dim / 2) else {
            let message = format!(
                "'{}' does not have a number for each pair of a head",
                names::FREQUENCIES
            );
            return Err(self.damaged(message));
        };
        let mut factors = vec![0.0; count];
        let tensor = Tensor {
            element,
            shape: &[count],
            bytes,
            arrangement: &Arrangement::Rows,
            scales: &[],
        };
        convert::to_f32(&tensor, false, &mut factors);
        scaling_of(&factors, self.theta()?).ok_or_else(|| {
            self.unsupported(
                format!(
                    "factors of rotary positions ('{}') of another kind than Llama 3.1's",
                    names::FREQUENCIES
                ),
                REMEDY,
            )
        })
    }
}

const REMEDY: &str = "use another model, or the checkpoint that the file was converted from";

/// Returns the scaling rule that results in these divisors of the frequencies `theta^(-i / factors.len())`, if there is
/// one.
fn scaling_of(factors: &[f32], theta: f64) -> Option<RopeScaling> {
    let speeds: Vec<f64> = (0..factors.len())
        .map(|i| theta.powf(-(i as f64) / factors.len() as f64))
        .collect();
    let agrees = |scaling: &RopeScaling| {
        let mut pairs = speeds.iter().zip(factors);
        pairs.all(|(&speed, &f)| (scaling.apply(speed) * f64::from(f) / speed - 1.0).abs() <= TOLERANCE)
    };
    let largest = f64::from(factors.iter().copied().fold(1.0, f32::max));
    let is_whole = (largest.round() / largest - 1.0).abs() <= TOLERANCE;
    let factor = if is_whole { largest.round() } else { largest };
    let simple = [RopeScaling::None, RopeScaling::Linear { factor }];
    if let Some(found) = simple.into_iter().find(agrees) {
        return Some(found);
    }
    // Between two limits, the rule interpolates the frequency of a pair linearly by its number of turns in the original
    // context.
    let kept = |f: f32| (1.0 / f64::from(f) - 1.0 / factor) / (1.0 - 1.0 / factor);
    let between: Vec<(f64, f64)> = (speeds.iter().zip(factors))
        .map(|(speed, &f)| (speed / TAU, kept(f)))
        .filter(|(_, kept)| (1e-4..1.0 - 1e-4).contains(kept))
        .collect();
    let (context, high) = match between.as_slice() {
        [] => (CONTEXT, HIGH),
        [(turns, kept)] => ((LOW + kept * (HIGH - LOW)) / turns, HIGH),
        [(turns, kept), .., (turns_2, kept_2)] => {
            let slope = (turns - turns_2) / (kept - kept_2);
            let context = LOW / (turns - kept * slope);
            (context, LOW + context * slope)
        }
    };
    let llama3 = |original_context: f64, low_freq_factor: f64, high_freq_factor: f64| RopeScaling::Llama3 {
        factor,
        low_freq_factor,
        high_freq_factor,
        original_context: original_context as u32,
    };
    // First candidate: the two factors are integers. Second one: only the original context is, and the factors follow
    // from it.
    let whole = context.round().clamp(1.0, f64::from(u32::MAX));
    let low = whole / context;
    let candidates = [llama3(whole, LOW, high.round()), llama3(whole, low, low * high)];
    candidates
        .into_iter()
        .find(|scaling| is_rule(scaling) && agrees(scaling))
}

/// Returns true if the parameters of a rule are valid.
fn is_rule(scaling: &RopeScaling) -> bool {
    match *scaling {
        RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            ..
        } => factor.is_finite() && low > 0.0 && high > low && high.is_finite(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factors(scaling: RopeScaling, theta: f64, half: usize) -> Vec<f32> {
        let speeds = (0..half).map(|i| theta.powf(-(i as f64) / half as f64));
        speeds.map(|speed| (speed / scaling.apply(speed)) as f32).collect()
    }

    #[test]
    fn rules_are_found_again() {
        let llama3 = |factor, low, high, context| RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_context: context,
        };
        for (scaling, theta, half) in [
            (RopeScaling::None, 1e4, 8),
            (RopeScaling::Linear { factor: 4.0 }, 1e4, 8),
            // Llama 3.1 and 3.2.
            (llama3(8.0, 1.0, 4.0, 8192), 5e5, 64),
            (llama3(32.0, 1.0, 4.0, 8192), 5e5, 32),
            (llama3(8.0, 1.0, 4.0, 64), 1e4, 8),
            (llama3(8.0, 1.0, 16.0, 64), 2e4, 16),
        ] {
            assert_eq!(scaling_of(&factors(scaling, theta, half), theta), Some(scaling));
        }
    }

    #[test]
    fn another_scale_of_the_same_numbers_has_the_same_angles() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.7,
            high_freq_factor: 5.3,
            original_context: 9001,
        };
        let found = scaling_of(&factors(scaling, 5e5, 64), 5e5).expect("a rule");
        for i in 0..64 {
            let speed = 5e5f64.powf(-f64::from(i) / 64.0);
            let error = found.apply(speed) / scaling.apply(speed) - 1.0;
            assert!(error.abs() < 1e-6, "{i}: {error}");
        }
    }

    #[test]
    fn other_factors_are_of_no_rule() {
        for other in [
            vec![1.0, 1.5, 1.0, 8.0],
            vec![8.0, 4.0, 2.0, 1.0],
            vec![1.0, f32::NAN, 8.0, 8.0],
            vec![0.0; 4],
            vec![-1.0; 4],
            vec![f32::INFINITY; 4],
            vec![1.0, 1.0, 0.5, 0.25],
        ] {
            assert_eq!(scaling_of(&other, 1e4), None, "{other:?}");
        }
        assert_eq!(scaling_of(&[], 1e4), Some(RopeScaling::None));
    }
}
