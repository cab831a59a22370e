//! Fields of LFM2's configurations: short convolutions, and the size of the feed-forward layers.

use std::path::Path;

use meganeura_core::Result;
use meganeura_nn::models::ShortConvLayers;
use serde::Deserialize;

use super::layers::set;
use super::raw::Raw;
use super::unsupported;
use crate::files::damaged;

/// Names of layer types.
const ATTENTION: &str = "full_attention";
const CONV: &str = "conv";

#[derive(Deserialize)]
pub(super) struct Lfm2 {
    #[serde(rename = "conv_L_cache")]
    taps: Option<usize>,
    conv_bias: Option<bool>,
    full_attn_idxs: Option<Vec<usize>>,
    block_ff_dim: Option<usize>,
    block_multiple_of: Option<usize>,
    block_ffn_dim_multiplier: Option<f64>,
    block_auto_adjust_ff_dim: Option<bool>,
    pub(super) tie_embedding: Option<bool>,
}

impl Raw {
    /// Returns the short convolutions of a model, and sets the size of its feed-forward layers.
    pub(super) fn short_conv(&mut self, family: &str, path: &Path) -> Result<Option<ShortConvLayers>> {
        if family != "lfm2" {
            self.lfm2.tie_embedding = None;
            return Ok(None);
        }
        self.adjust_feed_forward(path)?;
        let (layers, own) = (self.num_hidden_layers, &self.lfm2);
        let is_conv = |layer: usize| match (&self.layer_types, &own.full_attn_idxs) {
            (Some(types), _) => types.get(layer).is_some_and(|ty| ty == CONV),
            (None, Some(attention)) => !attention.contains(&layer),
            (None, None) => false,
        };
        if let Some(types) = &self.layer_types {
            if types.len() != layers {
                let message = format!("layer_types has {} types for {layers} layers", types.len());
                return Err(damaged(path, message));
            }
            if let Some(other) = types.iter().find(|ty| ![ATTENTION, CONV].contains(&ty.as_str())) {
                return Err(unsupported(path, format!("layers of the type '{other}' (layer_types)")));
            }
        }
        let taps = own.taps.unwrap_or(3);
        if !(1..=ShortConvLayers::MAX_TAPS).contains(&taps) {
            let most = ShortConvLayers::MAX_TAPS;
            return Err(damaged(
                path,
                format!("conv_L_cache is {taps}, and has to be from 1 to {most}"),
            ));
        }
        Ok(Some(ShortConvLayers {
            layers: set(layers, "layer_types", path, is_conv)?,
            taps,
            bias: own.conv_bias.unwrap_or(false),
        }))
    }

    /// Computes the size of the feed-forward layers as transformers does.
    fn adjust_feed_forward(&mut self, path: &Path) -> Result<()> {
        let own = &self.lfm2;
        let mut size = own.block_ff_dim.unwrap_or(match self.intermediate_size {
            0 => 12_288,
            given => given,
        });
        if own.block_auto_adjust_ff_dim.unwrap_or(true) {
            size = (2.0 * size as f64 / 3.0) as usize;
            let multiple = own.block_multiple_of.unwrap_or(256);
            if multiple == 0 {
                return Err(damaged(path, "block_multiple_of is 0"));
            }
            size = (own.block_ffn_dim_multiplier.unwrap_or(1.0) * size as f64) as usize;
            size = size.checked_next_multiple_of(multiple).unwrap_or(usize::MAX);
        }
        self.intermediate_size = size;
        Ok(())
    }
}
