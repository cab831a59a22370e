//! Which layers have a window, and which have no positions.

use std::path::Path;

use meganeura_core::Result;
use meganeura_nn::models::LayerSet;

use super::raw::Raw;
use super::unsupported;
use crate::files::damaged;

/// A layer that sees all positions up to its own.
const FULL: &str = "full_attention";
/// A layer that sees the window.
const SLIDING: &str = "sliding_attention";

impl Raw {
    /// The layers without a position embedding (`no_rope_layers` of SmolLM3, which has 0 for them).
    pub(super) fn nope_layers(&self, family: &str, path: &Path) -> Result<LayerSet> {
        if family != "smollm3" {
            return Ok(LayerSet::NONE);
        }
        const INTERVAL: usize = 4;
        let layers = self.num_hidden_layers;
        match (&self.no_rope_layers, self.no_rope_layer_interval) {
            (Some(list), _) if list.len() < layers => Err(damaged(
                path,
                format!("no_rope_layers has {} numbers for {layers} layers", list.len()),
            )),
            (Some(list), _) => set(layers, "no_rope_layers", path, |layer| list[layer] == 0),
            (None, Some(0)) => Err(damaged(path, "no_rope_layer_interval is 0")),
            (None, interval) => set(layers, "no_rope_layers", path, |layer| {
                (layer + 1).is_multiple_of(interval.unwrap_or(INTERVAL))
            }),
        }
    }

    /// The window and the layers that see all positions nevertheless, of a model with this window in some layers at least.
    /// Where `layer_types` does not say which, `is_sliding` does.
    pub(super) fn windows(
        &self,
        window: Option<u32>,
        path: &Path,
        is_sliding: impl Fn(usize) -> bool,
    ) -> Result<(Option<u32>, LayerSet)> {
        let layers = self.num_hidden_layers;
        if let Some(other) = self
            .layer_types
            .iter()
            .flatten()
            .find(|ty| ![FULL, SLIDING].contains(&ty.as_str()))
        {
            return Err(unsupported(path, format!("layers of the type '{other}' (layer_types)")));
        }
        let Some(window) = window else {
            return Ok((None, LayerSet::NONE));
        };
        let full = match &self.layer_types {
            Some(types) if types.len() != layers => {
                let message = format!("layer_types has {} types for {layers} layers", types.len());
                return Err(damaged(path, message));
            }
            Some(types) => set(layers, "layer_types", path, |layer| types[layer] == FULL)?,
            None => set(layers, "layer_types", path, |layer| !is_sliding(layer))?,
        };
        let all = (0..layers.min(LayerSet::LAYERS + 1)).all(|layer| full.contains(layer));
        // A window that no layer has.
        Ok(if all {
            (None, LayerSet::NONE)
        } else {
            (Some(window), full)
        })
    }
}

/// The layers of a model for which something holds.
pub(super) fn set(layers: usize, option: &str, path: &Path, holds: impl Fn(usize) -> bool) -> Result<LayerSet> {
    // No model has so many; a file may say so.
    const MOST: usize = 1 << 16;
    if layers > MOST || (LayerSet::LAYERS..layers).any(&holds) {
        let what = format!("more than {} layers that differ ({option})", LayerSet::LAYERS);
        return Err(unsupported(path, what));
    }
    Ok((0..layers).filter(|&layer| holds(layer)).collect())
}
