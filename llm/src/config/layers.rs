//! Sets of layers that have a window, or no position embedding.

use std::path::Path;

use meganeura_core::Result;
use meganeura_nn::models::LayerSet;

use super::raw::Raw;
use super::unsupported;
use crate::files::damaged;

/// Name of a layer type without a window: a row attends to all positions up to its own.
const FULL: &str = "full_attention";
/// Name of a layer type with a window.
const SLIDING: &str = "sliding_attention";

impl Raw {
    /// Returns the layers without a position embedding (`no_rope_layers` of SmolLM3, which has 0
    /// for them).
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

    /// Returns the window and the layers without it, whose rows attend to all earlier positions, for a model that has
    /// this window in at least some layers. Without `layer_types`, `is_sliding` decides.
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
        // No layer has the window.
        Ok(if all {
            (None, LayerSet::NONE)
        } else {
            (Some(window), full)
        })
    }
}

/// Returns the layers of a model that fulfil a condition.
pub(super) fn set(layers: usize, option: &str, path: &Path, holds: impl Fn(usize) -> bool) -> Result<LayerSet> {
    // No model has this number of layers, but a damaged file may contain it.
    const MAX_LAYERS: usize = 1 << 16;
    if layers > MAX_LAYERS || (LayerSet::LAYERS..layers).any(&holds) {
        let what = format!("more than {} layers that differ ({option})", LayerSet::LAYERS);
        return Err(unsupported(path, what));
    }
    Ok((0..layers).filter(|&layer| holds(layer)).collect())
}
