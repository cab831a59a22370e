//! Settings of adapters: `adapter_config.json`.

use std::path::Path;

use meganeura_core::{Error, Result};
use meganeura_nn::layers::{LoraConfig, LoraTargets};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::files::{damaged, read_text};

/// Fields of `adapter_config.json`. Unsupported options, which change the meaning of adapters, are only accepted
/// if they have no effect.
#[derive(Deserialize)]
struct Raw {
    peft_type: String,
    r: usize,
    lora_alpha: f32,
    target_modules: Value,
    #[serde(default)]
    bias: Option<String>,
    #[serde(default)]
    use_dora: bool,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    fan_in_fan_out: bool,
    #[serde(default)]
    rank_pattern: Option<Map<String, Value>>,
    #[serde(default)]
    alpha_pattern: Option<Map<String, Value>>,
    #[serde(default)]
    modules_to_save: Value,
    #[serde(default)]
    init_lora_weights: Value,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Unsupported options, which change the meaning of adapters if they are set, with their descriptions for errors.
const CHANGING: [(&str, &str); 8] = [
    ("layer_replication", "layers that are used more than once"),
    ("alora_invocation_tokens", "adapters that begin to act at some tokens"),
    ("use_qalora", "the groups of QA-LoRA"),
    ("lora_bias", "biases of adapters"),
    ("target_parameters", "adapters of parameters that are not layers"),
    ("use_bdlora", "the blocks of BD-LoRA"),
    ("arrow_config", "the routing of Arrow"),
    ("kasa_config", "KaSA"),
];

/// Supported initializations, which leave the weights of the model unchanged. Others either subtract a part from the
/// weights before training, so that the adapter belongs to weights that no file contains, or define another kind of
/// adapter.
const BEGINNINGS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

impl Raw {
    fn config(&self, path: &Path) -> Result<LoraConfig> {
        let unsupported = |what: String| {
            let remedy =
                "supported are LoRA, rsLoRA and DoRA adapters of the projections of attention and feed-forward layers";
            Error::file(path, format!("describes {what}, which is not supported"), remedy)
        };
        let is_set = |value: &Value| match value {
            Value::Object(map) => !map.is_empty(),
            Value::Array(list) => !list.is_empty(),
            Value::Null | Value::Bool(false) => false,
            _ => true,
        };
        if self.peft_type != "LORA" {
            return Err(unsupported(format!("adapters of the type '{}'", self.peft_type)));
        }
        for (is_used, what) in [
            (self.fan_in_fan_out, "transposed weights (fan_in_fan_out)"),
            (
                is_set(&self.modules_to_save),
                "trained layers in addition to adapters (modules_to_save)",
            ),
            (
                self.bias.as_deref().is_some_and(|b| b != "none"),
                "trained biases (bias)",
            ),
        ] {
            if is_used {
                return Err(unsupported(what.into()));
            }
        }
        for (name, what) in CHANGING {
            if self.others.get(name).is_some_and(is_set) {
                return Err(unsupported(format!("{what} ({name})")));
            }
        }
        let is_plain = match &self.init_lora_weights {
            Value::Null | Value::Bool(_) => true,
            Value::String(name) => BEGINNINGS.contains(&name.as_str()),
            _ => false,
        };
        if !is_plain {
            return Err(unsupported(format!(
                "adapters initialized with {} (init_lora_weights)",
                self.init_lora_weights
            )));
        }
        if self.r == 0 || !self.lora_alpha.is_finite() {
            return Err(damaged(path, format!("rank {} with alpha {}", self.r, self.lora_alpha)));
        }
        let targets = match &self.target_modules {
            Value::String(all) if all == "all-linear" => Ok(LoraTargets::ALL),
            Value::String(one) => LoraTargets::named([one.as_str()]),
            Value::Array(list) => LoraTargets::named(list.iter().map(|name| name.as_str().unwrap_or_default())),
            _ => Err("it names no layers".into()),
        };
        Ok(LoraConfig {
            rank: self.r,
            alpha: self.lora_alpha,
            targets: targets.map_err(unsupported)?,
            rank_stabilized: self.use_rslora,
            dora: self.use_dora,
        })
    }
}

/// Settings of adapters, which may differ from layer to layer.
pub(super) struct Settings {
    /// Settings of layers that no pattern matches.
    pub(super) config: LoraConfig,
    ranks: Vec<(String, usize)>,
    alphas: Vec<(String, f32)>,
}

impl Settings {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::File`]: a file that cannot be read or is damaged, options that are not supported.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let raw: Raw = serde_json::from_str(&read_text(path)?).map_err(|e| damaged(path, e))?;
        let config = raw.config(path)?;
        let patterns = |field: &str, map: &Option<Map<String, Value>>| {
            let entries = map.iter().flatten().map(|(pattern, value)| {
                let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
                if !pattern.strip_prefix('^').unwrap_or(pattern).chars().all(is_name) {
                    let message = format!("has the regular expression '{pattern}' in {field}, which is not supported");
                    return Err(Error::file(
                        path,
                        message,
                        "name layers, or the ends of their names, such as q_proj",
                    ));
                }
                match value.as_f64().filter(|number| number.is_finite()) {
                    Some(number) => Ok((pattern.clone(), number)),
                    None => Err(damaged(path, format!("{field} of '{pattern}' is {value}"))),
                }
            });
            entries.collect::<Result<Vec<_>>>()
        };
        let ranks = patterns("rank_pattern", &raw.rank_pattern)?;
        if let Some((pattern, rank)) = ranks.iter().find(|(_, rank)| *rank < 1.0 || rank.fract() != 0.0) {
            return Err(damaged(path, format!("the rank of '{pattern}' is {rank}")));
        }
        let alphas = patterns("alpha_pattern", &raw.alpha_pattern)?;
        Ok(Settings {
            config,
            ranks: ranks.into_iter().map(|(name, rank)| (name, rank as usize)).collect(),
            alphas: alphas.into_iter().map(|(name, alpha)| (name, alpha as f32)).collect(),
        })
    }

    /// Returns rank and scale of the adapter of a weight, such as `model.layers.0.self_attn.q_proj.weight`.
    pub(super) fn of_weight(&self, name: &str) -> (usize, f32) {
        let layer = name.strip_suffix(".weight").unwrap_or(name);
        let rank = matching(&self.ranks, layer).unwrap_or(self.config.rank);
        let alpha = matching(&self.alphas, layer).unwrap_or(self.config.alpha);
        (rank, self.config.scale_of(rank, alpha))
    }

    /// Returns one configuration for the adapters of these weights. It is that of the file if no weight differs from it. Otherwise it
    /// has the largest rank and a scale of 1.
    pub(super) fn common<'n>(&self, names: impl Iterator<Item = &'n String>) -> LoraConfig {
        let (mut rank, mut is_uniform) = (0, true);
        for name in names {
            let (own, scale) = self.of_weight(name);
            rank = own.max(rank);
            is_uniform &= own == self.config.rank && scale == self.config.scale();
        }
        if is_uniform {
            return self.config;
        }
        LoraConfig {
            rank,
            // A scale of 1.
            alpha: rank as f32,
            rank_stabilized: false,
            ..self.config
        }
    }
}

/// Returns the value of the first pattern that matches a layer as in PEFT: the whole name, or its end after a dot. A pattern that begins
/// with `^` matches only the whole name.
fn matching<T: Copy>(patterns: &[(String, T)], layer: &str) -> Option<T> {
    let matches = |pattern: &str| match pattern.strip_prefix('^') {
        Some(whole) => whole == layer,
        None => {
            let before = layer.strip_suffix(pattern);
            before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
        }
    };
    patterns
        .iter()
        .find(|(pattern, _)| matches(pattern))
        .map(|(_, value)| *value)
}
