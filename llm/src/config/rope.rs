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
