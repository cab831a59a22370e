//! Low-rank adapters in the layout of Hugging Face's PEFT: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! Each adapted weight `W [outputs, inputs]` has two matrices `A [rank, inputs]` and `B [outputs, rank]`. Merging them
//! results in the weight `W + (alpha / rank) B A` (LoRA; Hu et al., 2021). With DoRA (Liu et al., 2024), its rows then get the lengths
//! in a trained vector `[outputs]`.

mod config;
mod lengths;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use meganeura_core::files::read_within_memory;
use meganeura_core::{Error, Result, Session};
use meganeura_nn::layers::{LORA_MAGNITUDE, LoraConfig, LoraTargets};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use self::config::Settings;
pub use self::lengths::set_lengths;
use crate::files::{ADAPTER_CONFIG, NO_ADAPTERS, damaged};
use crate::tensors::arrangement::Arrangement;
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

/// The two matrices of an adapter in the layout of graphs: transposes of the stored matrices. All adapters have the rank and the
/// scale of [`Adapters::config`].
#[derive(Debug, Default)]
struct Pair {
    /// `[inputs, rank]`.
    a: Matrix,
    /// `[rank, outputs]`.
    b: Matrix,
    /// Lengths of the columns of the adapted weight, `[outputs]`; empty without DoRA.
    magnitude: Vec<f32>,
}

#[derive(Debug, Default)]
struct Matrix {
    shape: [usize; 2],
    values: Vec<f32>,
}

impl Adapters {
    /// Reads the adapters in a folder.
    ///
    /// # Errors
    /// [`Error::File`]: files that cannot be read, options that are not supported, matrices that do not belong together.
    pub fn open(folder: &Path) -> Result<Self> {
        let settings = Settings::read(&folder.join(ADAPTER_CONFIG))?;
        let path = folder.join(MATRICES);
        let bytes =
            read_within_memory(&path).map_err(|e| Error::file(&path, format!("cannot be read: {e}"), NO_ADAPTERS))?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(|e| damaged(&path, e))?;
        let mut pairs: BTreeMap<String, Pair> = BTreeMap::new();
        for (name, tensor) in tensors.tensors() {
            let unknown = || {
                let message = format!("'{name}' {:?} is not part of an adapter", tensor.shape());
                damaged(&path, message)
            };
            let own = name.strip_prefix(PREFIX).ok_or_else(unknown)?;
            let own = own.strip_suffix(".weight").unwrap_or(own);
            let (layer, part) = own
                .rsplit_once(ADAPTERS)
                .map(|(layer, _)| (layer, &own[layer.len() + 1..]))
                .ok_or_else(unknown)?;
            let shape = match (part, tensor.shape()) {
                ("lora_A" | "lora_B", &[rows, columns]) => [rows, columns],
                (LORA_MAGNITUDE, &[columns]) if settings.config.dora => [1, columns],
                _ => return Err(unknown()),
            };
            let values = numbers(&path, &name, &tensor, shape)?;
            let pair = pairs.entry(format!("{layer}.weight")).or_default();
            let matrix = Matrix {
                shape: [shape[1], shape[0]],
                values,
            };
            match part {
                "lora_A" => pair.a = matrix,
                "lora_B" => pair.b = matrix,
                _ => pair.magnitude = matrix.values,
            }
        }
        for (name, pair) in &pairs {
            let (rank, _) = settings.of_weight(name);
            if pair.a.shape[1] != rank
                || pair.b.shape[0] != rank
                || pair.a.values.is_empty()
                || pair.b.values.is_empty()
            {
                let message = format!("the adapter of '{name}' does not have two matrices of rank {rank}");
                return Err(damaged(&path, message));
            }
            if settings.config.dora && pair.magnitude.len() != pair.b.shape[1] {
                let (found, expected) = (pair.magnitude.len(), pair.b.shape[1]);
                return Err(damaged(
                    &path,
                    format!("the adapter of '{name}' has {found} lengths (DoRA), expected {expected}"),
                ));
            }
        }
        let config = settings.common(pairs.keys());
        for (name, pair) in &mut pairs {
            let (_, scale) = settings.of_weight(name);
            pair.make_uniform(scale, &config);
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

    /// Merges an adapter into its weight `[inputs, outputs]`, the transpose of the stored one. Does nothing for other tensors.
    pub(crate) fn merge_into(&self, name: &str, weight: &mut [f32]) {
        if let Some(Pair { a, b, magnitude }) = self.pairs.get(name) {
            merge(weight, &a.values, &b.values, magnitude, &self.config);
        }
    }

    /// Returns the values of a parameter of a graph, such as `{layer}.lora_A.weight`, if there are
    /// any.
    fn parameter(&self, name: &str) -> Option<&[f32]> {
        let own = name.strip_suffix(".weight").unwrap_or(name);
        let (layer, part) = own.rsplit_once(ADAPTERS)?;
        let pair = self.pairs.get(&format!("{layer}.weight"))?;
        Some(match part {
            "A" => &pair.a.values,
            "B" => &pair.b.values,
            _ => &pair.magnitude,
        })
    }

    /// Sets the adapters of a session whose model was built with them.
    ///
    /// # Errors
    /// [`Error::File`]: an adapter of the model is missing here, or has another shape; errors of the session.
    pub fn load_into(&self, session: &mut Session) -> Result<()> {
        let views = session.plan().parameters().into_iter();
        for view in views.filter(|view| view.name.contains(ADAPTERS)) {
            let values = self.parameter(&view.name);
            let values = values.filter(|values| values.len() == view.ty.numel());
            let values = values.ok_or_else(|| {
                let message = format!("does not hold '{}' of shape {}", view.name, view.ty.shape);
                Error::file(&self.path, message, "use the model that the adapters were trained on")
            })?;
            session.try_set_parameter(&view.name, values)?;
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
    ///
    /// # Errors
    /// [`Error::File`] for adapters with DoRA: their lengths belong to a whole weight, not to a row.
    pub(crate) fn select(all: Vec<Adapters>) -> Result<Self> {
        match all.iter().find(|adapters| adapters.config.dora) {
            None => Ok(PackedAdapters::pack(all)),
            Some(dora) => Err(Error::file(
                &dora.path,
                "is a DoRA adapter, which requests cannot select",
                "pass it as the only adapter of the server (--lora DIR), or train it without DoRA",
            )),
        }
    }

    fn pack(all: Vec<Adapters>) -> Self {
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
    pub(crate) fn for_all(mut adapters: Adapters) -> Self {
        if adapters.config.dora {
            // The lengths of columns depend on the scale, which rows otherwise select.
            adapters.fold_scale();
        }
        let mut packed = PackedAdapters::pack(vec![adapters]);
        packed.default = packed.scales.remove(0);
        packed
    }

    /// Returns the settings of the only adapter; `None` with several, and without adapters.
    pub(crate) fn single(&self) -> Option<LoraConfig> {
        match self.all.as_slice() {
            [only] => Some(only.config),
            _ => None,
        }
    }

    /// Returns rank and layers of the concatenated adapters; `None` without adapters.
    pub(crate) fn config(&self) -> Option<LoraConfig> {
        let names = self.all.iter().flat_map(|adapters| adapters.config.targets.names());
        let targets = LoraTargets::named(names).ok()?;
        let rank = self.default.len();
        Some(LoraConfig {
            alpha: rank as f32,
            targets,
            dora: self.all.iter().any(|adapters| adapters.config.dora),
            ..LoraConfig::new(rank)
        })
    }

    /// Returns the factors of the columns for rows that select an adapter, `[rank]`.
    pub(crate) fn scales(&self, adapter: Option<usize>) -> &[f32] {
        adapter
            .and_then(|adapter| self.scales.get(adapter))
            .unwrap_or(&self.default)
    }

    /// Sets the matrices of a session whose model was built with [`PackedAdapters::config`], and has its weights. Layers without an
    /// adapter get zeros.
    ///
    /// # Errors
    /// The errors of the session.
    pub(crate) fn load_into(&self, session: &mut Session) -> Result<()> {
        if self.config().is_some_and(|config| config.dora) {
            set_lengths(session)?;
        }
        let views = session.plan().parameters().into_iter();
        for view in views.filter(|view| view.name.contains(ADAPTERS)) {
            let &[rows, columns] = view.ty.shape.dims() else {
                // Layers without an adapter keep the lengths of their weights.
                if let Some(lengths) = self.all.iter().find_map(|adapters| adapters.parameter(&view.name)) {
                    session.try_set_parameter(&view.name, lengths)?;
                }
                continue;
            };
            let is_a = view.name.contains(".lora_A.");
            let mut values = vec![0.0; rows * columns];
            let mut first = 0;
            for adapters in &self.all {
                let rank = adapters.config.rank;
                if let Some(own) = adapters.parameter(&view.name) {
                    if is_a {
                        let to = values.chunks_exact_mut(columns);
                        for (to, from) in to.zip(own.chunks_exact(rank)) {
                            to[first..first + rank].copy_from_slice(from);
                        }
                    } else {
                        values[first * columns..(first + rank) * columns].copy_from_slice(own);
                    }
                }
                first += rank;
            }
            session.try_set_parameter(&view.name, &values)?;
        }
        Ok(())
    }
}

impl Adapters {
    /// Multiplies the second matrices by the scale, which becomes 1.
    fn fold_scale(&mut self) {
        let scale = self.config.scale();
        let matrices = self.pairs.values_mut().map(|pair| &mut pair.b.values);
        matrices.flatten().for_each(|value| *value *= scale);
        self.config.alpha = self.config.rank as f32;
        self.config.rank_stabilized = false;
    }
}

impl Pair {
    /// Gives an adapter with this scale the rank and scale of `config`: columns of zeros are added to `A`, rows of zeros to `B`.
    fn make_uniform(&mut self, scale: f32, config: &LoraConfig) {
        let ([inputs, rank], [_, outputs]) = (self.a.shape, self.b.shape);
        if rank < config.rank {
            let mut wide = vec![0.0; inputs * config.rank];
            for (to, from) in wide.chunks_exact_mut(config.rank).zip(self.a.values.chunks_exact(rank)) {
                to[..rank].copy_from_slice(from);
            }
            self.a = Matrix {
                shape: [inputs, config.rank],
                values: wide,
            };
            self.b.values.resize(config.rank * outputs, 0.0);
            self.b.shape = [config.rank, outputs];
        }
        if scale != config.scale() {
            let factor = scale / config.scale();
            self.b.values.iter_mut().for_each(|value| *value *= factor);
        }
    }
}

/// Returns the numbers of a tensor of the shape `[rows, columns]`, transposed.
fn numbers(path: &Path, name: &str, tensor: &TensorView, [rows, columns]: [usize; 2]) -> Result<Vec<f32>> {
    let Some(element) = Element::of_safetensors(tensor.dtype()) else {
        return Err(damaged(path, format!("'{name}' is of type {:?}", tensor.dtype())));
    };
    let tensor = Tensor {
        element,
        shape: &[rows, columns],
        bytes: tensor.data(),
        arrangement: &Arrangement::Rows,
        scales: &[],
    };
    let mut values = vec![0.0; rows * columns];
    convert::to_f32(&tensor, true, &mut values);
    match values.iter().find(|x| !x.is_finite()) {
        None => Ok(values),
        Some(value) => Err(damaged(path, format!("'{name}' contains {value}"))),
    }
}

/// Shortest length of a column that DoRA divides by.
const SHORTEST: f32 = 1e-10;

/// Merges an adapter into its weight `[inputs, outputs]`; `A [inputs, rank]`, `B [rank, outputs]`. With DoRA, `magnitude` is
/// `[outputs]`, otherwise it is empty.
pub(crate) fn merge(weight: &mut [f32], a: &[f32], b: &[f32], magnitude: &[f32], config: &LoraConfig) {
    add_product(weight, a, b, config);
    if magnitude.is_empty() {
        return;
    }
    let lengths = lengths::of_columns(weight, magnitude.len());
    // A column of zeros stays one, as in graphs.
    let factor = |(m, length): (&f32, &f32)| m / length.max(SHORTEST);
    let factors: Vec<f32> = magnitude.iter().zip(&lengths).map(factor).collect();
    for row in weight.chunks_exact_mut(magnitude.len()) {
        row.iter_mut().zip(&factors).for_each(|(w, factor)| *w *= factor);
    }
}

/// Adds `s A B` to a weight `[inputs, outputs]`; `A [inputs, rank]`, `B [rank, outputs]`.
fn add_product(weight: &mut [f32], a: &[f32], b: &[f32], config: &LoraConfig) {
    let (rank, scale) = (config.rank.max(1), config.scale());
    let outputs = (b.len() / rank).max(1);
    for (row, a) in weight.chunks_exact_mut(outputs).zip(a.chunks_exact(rank)) {
        for (&a, b) in a.iter().zip(b.chunks_exact(outputs)) {
            row.iter_mut().zip(b).for_each(|(w, b)| *w += scale * a * b);
        }
    }
}
