//! Low-rank adapters in the layout of Hugging Face's PEFT: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! Each adapted weight `W [outputs, inputs]` has two matrices `A [rank, inputs]` and `B [outputs, rank]`. Merging them
//! results in the weight `W + (alpha / rank) B A` (LoRA; Hu et al., 2021).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use meganeura_core::files::read_within_memory;
use meganeura_core::{Error, Result, Session};
use meganeura_nn::layers::{LoraConfig, LoraTargets};
use safetensors::SafeTensors;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::files::{ADAPTER_CONFIG, NO_ADAPTERS, damaged, read_text};
use crate::tensors::convert;
use crate::tensors::element::Element;
use crate::tensors::shard::Tensor;

/// File name of the matrices.
pub(crate) const MATRICES: &str = "adapter_model.safetensors";
/// Prefix of the names of tensors.
pub(crate) const PREFIX: &str = "base_model.model.";
/// Part of the names of adapter parameters. A checkpoint does not contain these parameters.
pub(crate) const ADAPTERS: &str = ".lora_";

/// Adapters of a model.
#[derive(Debug)]
pub struct Adapters {
    path: PathBuf,
    config: LoraConfig,
    /// Matrices of the adapters, by the names of their weights.
    pairs: BTreeMap<String, Pair>,
}

/// The two matrices of an adapter in the layout of graphs: transposes of the stored matrices.
#[derive(Debug, Default)]
struct Pair {
    /// `[inputs, rank]`.
    a: Matrix,
    /// `[rank, outputs]`.
    b: Matrix,
}

#[derive(Debug, Default)]
struct Matrix {
    shape: [usize; 2],
    values: Vec<f32>,
}

/// Fields of `adapter_config.json`. Options that change the meaning of adapters are only accepted
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
    rank_pattern: Value,
    #[serde(default)]
    alpha_pattern: Value,
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
            let remedy = "supported are plain LoRA adapters of the projections of attention and feed-forward layers";
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
            (self.use_dora, "DoRA (use_dora)"),
            (self.use_rslora, "the scale of rsLoRA (use_rslora)"),
            (self.fan_in_fan_out, "transposed weights (fan_in_fan_out)"),
            (is_set(&self.rank_pattern), "ranks by layer (rank_pattern)"),
            (is_set(&self.alpha_pattern), "scales by layer (alpha_pattern)"),
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
        })
    }
}

impl Adapters {
    /// Reads the adapters in a folder.
    ///
    /// # Errors
    /// [`Error::File`]: files that cannot be read, options that are not supported, matrices that do not belong together.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(ADAPTER_CONFIG);
        let raw: Raw = serde_json::from_str(&read_text(&path)?).map_err(|e| damaged(&path, e))?;
        let config = raw.config(&path)?;
        let path = folder.join(MATRICES);
        let bytes =
            read_within_memory(&path).map_err(|e| Error::file(&path, format!("cannot be read: {e}"), NO_ADAPTERS))?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(|e| damaged(&path, e))?;
        let mut pairs: BTreeMap<String, Pair> = BTreeMap::new();
        for (name, tensor) in tensors.tensors() {
            let own = name.strip_prefix(PREFIX);
            let split = own.and_then(|own| own.strip_suffix(".weight")?.rsplit_once(ADAPTERS));
            let (Some((layer, which @ ("A" | "B"))), &[rows, columns]) = (split, tensor.shape()) else {
                return Err(damaged(
                    &path,
                    format!("'{name}' {:?} is not part of an adapter", tensor.shape()),
                ));
            };
            let Some(element) = Element::of_safetensors(tensor.dtype()) else {
                return Err(damaged(&path, format!("'{name}' is of type {:?}", tensor.dtype())));
            };
            let rank = if which == "A" { rows } else { columns };
            if rank != config.rank || rows == 0 || columns == 0 {
                let message = format!(
                    "'{name}' of shape {:?} is not one of two matrices of rank {}",
                    tensor.shape(),
                    config.rank
                );
                return Err(damaged(&path, message));
            }
            let pair = pairs.entry(format!("{layer}.weight")).or_default();
            let matrix = if which == "A" { &mut pair.a } else { &mut pair.b };
            matrix.shape = [columns, rows];
            let tensor = Tensor {
                element,
                shape: tensor.shape(),
                bytes: tensor.data(),
                heads: None,
            };
            matrix.values.resize(rows * columns, 0.0);
            convert::to_f32(&tensor, true, &mut matrix.values);
            if let Some(value) = matrix.values.iter().find(|x| !x.is_finite()) {
                return Err(damaged(&path, format!("'{name}' contains {value}")));
            }
        }
        if let Some((name, _)) = pairs
            .iter()
            .find(|(_, p)| p.a.shape[1] != config.rank || p.b.shape[0] != config.rank)
        {
            return Err(damaged(
                &path,
                format!(
                    "the adapter of '{name}' does not have two matrices of rank {}",
                    config.rank
                ),
            ));
        }
        Ok(Adapters { path, config, pairs })
    }

    /// Returns rank, scale and layers.
    pub fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// Checks that the weight of every adapter exists; `shape` returns the shape of a weight, `[outputs, inputs]`.
    pub(crate) fn check(&self, shape: impl Fn(&str) -> Option<Vec<usize>>) -> Result<()> {
        for (name, pair) in &self.pairs {
            let own = [pair.b.shape[1], pair.a.shape[0]];
            let message = match shape(name) {
                Some(found) if found == own => continue,
                Some(found) => format!("expects weights '{name}' of shape {own:?}, but the model has {found:?}"),
                None => format!("expects weights '{name}', which the model does not have"),
            };
            return Err(Error::file(
                &self.path,
                message,
                "use the model that the adapters were trained on",
            ));
        }
        Ok(())
    }

    /// Checks that every adapter can be added to its weight: weights that stay packed are only
    /// copied or rounded.
    pub(crate) fn check_forms(&self, is_f32: impl Fn(&str) -> bool) -> Result<()> {
        match self.pairs.keys().find(|name| !is_f32(name)) {
            None => Ok(()),
            Some(name) => Err(Error::file(
                &self.path,
                format!("has an adapter of '{name}', which is not an f32 matrix"),
                "store the weights in f32 (`--weights f32`); embedding tables do not support adapters",
            )),
        }
    }

    /// Adds an adapter to its weight, which is already transposed: `[inputs, outputs]`. Does
    /// nothing for other tensors.
    pub(crate) fn merge_into(&self, name: &str, weight: &mut [f32]) {
        if let Some(Pair { a, b }) = self.pairs.get(name) {
            add_product(weight, &a.values, &b.values, &self.config);
        }
    }

    /// Returns the matrix of a parameter of a graph, such as `{layer}.lora_A.weight`, if there is
    /// one.
    fn parameter(&self, name: &str) -> Option<&Matrix> {
        let (layer, which) = name.strip_suffix(".weight")?.rsplit_once(ADAPTERS)?;
        let pair = self.pairs.get(&format!("{layer}.weight"))?;
        Some(if which == "A" { &pair.a } else { &pair.b })
    }

    /// Sets the adapters of a session whose model was built with them.
    ///
    /// # Errors
    /// [`Error::File`]: an adapter of the model is missing here, or has another shape; errors of the session.
    pub fn load_into(&self, session: &mut Session) -> Result<()> {
        let views = session.plan().parameters().into_iter();
        for view in views.filter(|view| view.name.contains(ADAPTERS)) {
            let matrix = self.parameter(&view.name);
            let matrix = matrix.filter(|m| m.shape[..] == *view.ty.shape.dims());
            let matrix = matrix.ok_or_else(|| {
                let message = format!("does not hold '{}' of shape {}", view.name, view.ty.shape);
                Error::file(&self.path, message, "use the model that the adapters were trained on")
            })?;
            session.try_set_parameter(&view.name, &matrix.values)?;
        }
        Ok(())
    }
}

/// Adapters that are not merged into the weights of a model. Their ranks are concatenated, and each row of a step selects the
/// columns of its adapter ([`ADAPTER_SCALES`](meganeura_nn::models::ADAPTER_SCALES)).
#[derive(Debug, Default)]
pub(crate) struct PackedAdapters {
    all: Vec<Adapters>,
    /// Factors of all columns of the concatenated ranks, for each adapter.
    scales: Vec<Vec<f32>>,
    /// Factors of rows that select no adapter.
    default: Vec<f32>,
}

impl PackedAdapters {
    /// Packs adapters that rows select by their index.
    pub(crate) fn select(all: Vec<Adapters>) -> Self {
        let rank = all.iter().map(|adapters| adapters.config.rank).sum();
        let mut first = 0;
        let mut scales = Vec::new();
        for adapters in &all {
            let LoraConfig { rank: own, .. } = adapters.config;
            let mut columns = vec![0.0; rank];
            columns[first..first + own].fill(adapters.config.scale());
            scales.push(columns);
            first += own;
        }
        PackedAdapters {
            all,
            scales,
            default: vec![0.0; rank],
        }
    }

    /// Packs one adapter, which all rows use.
    pub(crate) fn for_all(adapters: Adapters) -> Self {
        let mut packed = PackedAdapters::select(vec![adapters]);
        packed.default = packed.scales.remove(0);
        packed
    }

    /// Returns rank and layers of the concatenated adapters; `None` without adapters.
    pub(crate) fn config(&self) -> Option<LoraConfig> {
        let names = self.all.iter().flat_map(|adapters| adapters.config.targets.names());
        let targets = LoraTargets::named(names).ok()?;
        let rank = self.default.len();
        Some(LoraConfig {
            rank,
            alpha: rank as f32,
            targets,
        })
    }

    /// Returns the factors of the columns for rows that select an adapter, `[rank]`.
    pub(crate) fn scales(&self, adapter: Option<usize>) -> &[f32] {
        adapter
            .and_then(|adapter| self.scales.get(adapter))
            .unwrap_or(&self.default)
    }

    /// Sets the matrices of a session whose model was built with [`PackedAdapters::config`]. Layers without an adapter get
    /// zeros.
    ///
    /// # Errors
    /// The errors of the session.
    pub(crate) fn load_into(&self, session: &mut Session) -> Result<()> {
        let views = session.plan().parameters().into_iter();
        for view in views.filter(|view| view.name.contains(ADAPTERS)) {
            let &[rows, columns] = view.ty.shape.dims() else {
                continue;
            };
            let is_a = view.name.contains(".lora_A.");
            let mut values = vec![0.0; rows * columns];
            let mut first = 0;
            for adapters in &self.all {
                let rank = adapters.config.rank;
                if let Some(matrix) = adapters.parameter(&view.name) {
                    if is_a {
                        let to = values.chunks_exact_mut(columns);
                        for (to, from) in to.zip(matrix.values.chunks_exact(rank)) {
                            to[first..first + rank].copy_from_slice(from);
                        }
                    } else {
                        values[first * columns..(first + rank) * columns].copy_from_slice(&matrix.values);
                    }
                }
                first += rank;
            }
            session.try_set_parameter(&view.name, &values)?;
        }
        Ok(())
    }
}

/// Adds `(alpha / rank) A B` to a weight `[inputs, outputs]`; `A [inputs, rank]`, `B [rank, outputs]`.
pub(crate) fn add_product(weight: &mut [f32], a: &[f32], b: &[f32], config: &LoraConfig) {
    let (rank, scale) = (config.rank.max(1), config.scale());
    let outputs = (b.len() / rank).max(1);
    for (row, a) in weight.chunks_exact_mut(outputs).zip(a.chunks_exact(rank)) {
        for (&a, b) in a.iter().zip(b.chunks_exact(outputs)) {
            row.iter_mut().zip(b).for_each(|(w, b)| *w += scale * a * b);
        }
    }
}
