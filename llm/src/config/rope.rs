//! Configuration of rotary position embeddings.

use std::path::Path;

use meganeura_core::Result;
use meganeura_core::ops::RopeScaling;
use meganeura_nn::layers::LongRope;
use serde::Deserialize;

use super::unsupported;
use crate::files::damaged;

/// Fields of rotary positions, with the names of both generations of the format.
#[derive(Default, Deserialize)]
pub(super) struct Rope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    pub(super) rope_theta: Option<f32>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<u32>,
    pub(super) partial_rotary_factor: Option<f64>,
    short_factor: Option<Vec<f32>>,
    long_factor: Option<Vec<f32>>,
    attention_factor: Option<f32>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    truncate: Option<bool>,
    pub(super) llama_4_scaling_beta: Option<f32>,
    /// Settings of the layers without a window, if layers differ.
    pub(super) full_attention: Option<Box<Rope>>,
    /// Settings of the layers with a window.
    pub(super) sliding_attention: Option<Box<Rope>>,
}

impl Rope {
    pub(super) fn scaling(&self, path: &Path) -> Result<RopeScaling> {
        let factor = || {
            let factor = self.factor.filter(|f| *f > 0.0 && f.is_finite());
            factor.ok_or_else(|| damaged(path, "scaled rotary positions need a positive factor"))
        };
        match self.rope_type.as_deref() {
            // Dynamic scaling begins after the context. A cache never exceeds it.
            None | Some("default" | "dynamic") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear { factor: factor()? }),
            Some("llama3") => {
                let (Some(low), Some(high), Some(context)) = (
                    self.low_freq_factor,
                    self.high_freq_factor,
                    self.original_max_position_embeddings,
                ) else {
                    return Err(damaged(
                        path,
                        "rotary positions of type llama3 need low_freq_factor, high_freq_factor and \
                         original_max_position_embeddings",
                    ));
                };
                if !(low > 0.0 && high > low && high.is_finite() && context > 0) {
                    let message = format!(
                        "rotary positions of type llama3 with the factors {low} and {high} in a context of {context}"
                    );
                    return Err(damaged(path, message));
                }
                Ok(RopeScaling::Llama3 {
                    factor: factor()?,
                    low_freq_factor: low,
                    high_freq_factor: high,
                    original_context: context,
                })
            }
            Some(other) => Err(unsupported(path, format!("rotary positions of type '{other}'"))),
        }
    }

    /// Returns the context of the first training.
    pub(super) fn original_context(&self) -> Option<u32> {
        self.original_max_position_embeddings
    }

    /// Returns factors of each pair of a head for YaRN (Peng et al., 2023), for heads of which `rotated` elements are rotated:
    /// pairs that turn slowly in the original context are interpolated, fast ones are not.
    pub(super) fn yarn(&self, theta: f32, rotated: usize, context: usize, path: &Path) -> Result<Option<LongRope>> {
        if self.rope_type.as_deref() != Some("yarn") {
            return Ok(None);
        }
        let original = self.original_max_position_embeddings.map_or(context, |n| n as usize);
        let longer = (original < context).then(|| context as f64 / original.max(1) as f64);
        let factor = self
            .factor
            .or(longer)
            .ok_or_else(|| damaged(path, "rotary positions of type yarn need a factor"))?;
        let (fast, slow) = (self.beta_fast.unwrap_or(32.0), self.beta_slow.unwrap_or(1.0));
        let pairs = rotated / 2;
        if pairs == 0 || pairs > LongRope::MAX_PAIRS {
            let most = 2 * LongRope::MAX_PAIRS;
            return Err(unsupported(
                path,
                format!("rotary positions of type yarn for heads of more than {most} elements"),
            ));
        }
        let is_positive = |number: f64| number > 0.0 && number.is_finite();
        if !is_positive(factor) || !is_positive(slow) || !is_positive(fast) || original == 0 || theta <= 1.0 {
            let message = format!(
                "rotary positions of type yarn with the factor {factor}, beta_fast {fast} and beta_slow {slow} for {original} positions"
            );
            return Err(damaged(path, message));
        }
        // The pair that makes this number of turns in the original context.
        let pair = |turns: f64| {
            let ratio = original as f64 / (turns * std::f64::consts::TAU);
            rotated as f64 * ratio.ln() / (2.0 * f64::from(theta).ln())
        };
        let (mut low, mut high) = (pair(fast), pair(slow));
        if self.truncate.unwrap_or(true) {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, mut high) = (low.max(0.0), high.min(rotated as f64 - 1.0));
        if low == high {
            high += 0.001;
        }
        let factors: Vec<f32> = (0..pairs)
            .map(|i| {
                let interpolated = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 / (interpolated / factor + (1.0 - interpolated))) as f32
            })
            .collect();
        let sharpened = |scale: f64| {
            if factor <= 1.0 {
                1.0
            } else {
                0.1 * scale * factor.ln() + 1.0
            }
        };
        let usual = match (self.mscale, self.mscale_all_dim) {
            (Some(own), Some(all)) if own != 0.0 && all != 0.0 => sharpened(own) / sharpened(all),
            _ => sharpened(1.0),
        };
        let magnitude = self.attention_factor.unwrap_or(usual as f32);
        Ok(LongRope::new(&factors, &factors, original, magnitude))
    }

    /// Returns factors of each pair of a head (`longrope`, called `su` in older files), for a model
    /// with `context` positions. `original` is the context of the first training, if the file has
    /// it outside of these fields.
    pub(super) fn longrope(&self, context: usize, original: Option<u32>, path: &Path) -> Result<Option<LongRope>> {
        if !matches!(self.rope_type.as_deref(), Some("longrope" | "su")) {
            return Ok(None);
        }
        let original = self
            .original_max_position_embeddings
            .or(original)
            .filter(|&original| original > 1);
        let (Some(short), Some(long), Some(original)) = (&self.short_factor, &self.long_factor, original) else {
            return Err(damaged(
                path,
                "rotary positions of type longrope need short_factor, long_factor and original_max_position_embeddings",
            ));
        };
        let original = original as usize;
        let factor = self.factor.unwrap_or(context as f64 / original as f64);
        // The factor that sharpens the attention of a longer context, as the paper recommends.
        let usual = if factor > 1.0 {
            (1.0 + factor.ln() / (original as f64).ln()).sqrt() as f32
        } else {
            1.0
        };
        let magnitude = self.attention_factor.unwrap_or(usual);
        let found = LongRope::new(short, long, original, magnitude);
        let message = || {
            let most = LongRope::MAX_PAIRS;
            let (short, long) = (short.len(), long.len());
            format!("longrope has {short} short and {long} long factors, expected equal numbers of at most {most}")
        };
        found.map(Some).ok_or_else(|| damaged(path, message()))
    }
}
