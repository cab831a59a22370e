//! Rotary positions.

use std::path::Path;

use meganeura_core::Result;
use meganeura_core::ops::RopeScaling;
use serde::Deserialize;

use super::unsupported;
use crate::files::damaged;

/// Rotary positions, in the spelling of either generation of the format.
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
    /// Those of the layers that see all positions, where layers differ.
    pub(super) full_attention: Option<Box<Rope>>,
    /// Those of the layers with a window.
    pub(super) sliding_attention: Option<Box<Rope>>,
}

impl Rope {
    pub(super) fn scaling(&self, path: &Path) -> Result<RopeScaling> {
        let factor = || {
            let factor = self.factor.filter(|f| *f > 0.0 && f.is_finite());
            factor.ok_or_else(|| damaged(path, "scaled rotary positions need a positive factor"))
        };
        match self.rope_type.as_deref() {
            // Dynamic scaling begins behind the context, which a cache never exceeds.
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
}
