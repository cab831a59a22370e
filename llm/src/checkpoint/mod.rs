//! Weights in safetensors files, mapped into memory and streamed into sessions.
//!
//! A file is never read as a whole. A thread converts each tensor into memory of its own size, while the previous
//! tensor is copied to the session. Later tensors reuse the memory. Tensors that are stored in the session's format are
//! copied directly.

mod loading;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use meganeura_core::graph::NodeKind;
use meganeura_core::quantization::{BLOCK, BlockFormat};
use meganeura_core::{DType, Error, Graph, Result, Session, TensorType};
use meganeura_nn::layers::WeightStorage;
use meganeura_nn::models::{LlamaConfig, LogitsOf, StorageMap};
use serde::Deserialize;

use self::loading::{ConvertedTensor, Parameter};
use crate::adapters::{ADAPTERS, Adapters};
use crate::files::{damaged, read_text};
use crate::gguf;
use crate::plans::timed;
use crate::tensors::element::Element;
use crate::tensors::layout::{self, TensorLocation};
use crate::tensors::shard::{Shard, Tensor};

pub use self::loading::{LoadObserver, LoadedBytes};

/// Prefix of the names of caches: parameters of a graph, but not of a checkpoint.
const CACHES: &str = "kv_cache.";
/// The projection to logits, which some checkpoints contain although it equals the table of
/// embeddings.
const HEAD: &str = "lm_head.weight";
/// Suffix of the names of tables that older programs stored. They are ignored, because the configuration determines
/// them.
const TABLES: &str = ".rotary_emb.inv_freq";
/// Suffixes of the names of tables whose rows are looked up: they are stored as in graphs, other
/// matrices as `[outputs, inputs]`.
const EMBEDDINGS: [&str; 2] = ["embed_tokens.weight", "_embeddings.weight"];
/// Suffix of the names of parameters with the scales of blocks.
const SCALES: &str = "_scales";

/// Remedy for weights and a configuration that do not belong together.
const OF_ANOTHER: &str = "use the config.json that belongs to the weights";

/// The weights of a model.
#[derive(Debug)]
pub struct Checkpoint {
    shards: Vec<Shard>,
    /// Location of each tensor.
    places: BTreeMap<String, TensorLocation>,
    /// Adapters that are added to weights as they are read.
    adapters: Option<Adapters>,
    /// Receives reports while a session is loaded.
    observer: Option<LoadObserver>,
}

/// The differences between a checkpoint and a model.
#[derive(Default)]
struct Differences {
    missing: Vec<String>,
    unexpected: Vec<String>,
    wrong: Vec<String>,
}

impl Checkpoint {
    /// Opens `model.safetensors` of a folder, or the files that `model.safetensors.index.json` lists; or a GGUF file.
    /// For a multimodal model, only the text part is kept. Fused projections (`qkv_proj`, `gate_up_proj` of Phi-3) are
    /// split into the separate projections of a model's parameters, and the matrices of experts are combined into one
    /// for all experts.
    ///
    /// The files must not change while the checkpoint is open.
    ///
    /// # Errors
    /// [`Error::File`]: missing files, a damaged or inconsistent header, tensors of the index that
    /// the files do not contain.
    pub fn open(path: &Path) -> Result<Self> {
        if gguf::is_one(path) {
            return Checkpoint::of_gguf(gguf::Gguf::open(path)?);
        }
        let folder = path;
        let single = folder.join("model.safetensors");
        let index = folder.join("model.safetensors.index.json");
        if single.exists() || !index.exists() {
            return Checkpoint::of(vec![Shard::open(single)?]);
        }
        #[derive(Deserialize)]
        struct Index {
            weight_map: BTreeMap<String, String>,
        }
        let listed: Index = serde_json::from_str(&read_text(&index)?).map_err(|e| damaged(&index, e))?;
        let names: BTreeSet<&String> = listed.weight_map.values().collect();
        let mut shards = Vec::new();
        for name in names {
            // Names in the list must not lead to files outside of the folder.
            if Path::new(name).file_name() != Some(name.as_ref()) {
                return Err(damaged(
                    &index,
                    format!("it names '{name}', which is in another folder"),
                ));
            }
            shards.push(Shard::open(folder.join(name))?);
        }
        if shards.is_empty() {
            return Err(damaged(&index, "it lists no tensors"));
        }
        let names = shards.iter().flat_map(|shard| shard.tensors.keys().cloned());
        let stored: BTreeSet<String> = names.collect();
        let checkpoint = Checkpoint::of(shards)?;
        match listed.weight_map.keys().find(|name| !stored.contains(*name)) {
            None => Ok(checkpoint),
            Some(name) => Err(damaged(
                &index,
                format!("no file has the tensor '{name}' that it lists"),
            )),
        }
    }

    /// Opens the checkpoint in a GGUF file.
    pub(crate) fn of_gguf(file: gguf::Gguf) -> Result<Self> {
        Checkpoint::of(file.shards()?)
    }

    fn of(mut shards: Vec<Shard>) -> Result<Self> {
        layout::drop_prediction_layers(&mut shards);
        let named = layout::keep_text_part(&mut shards)
            .and_then(|()| layout::separate_gpt_oss(&mut shards))
            .and_then(|()| layout::split_projections(&mut shards))
            .and_then(|()| layout::rename_mixtral(&mut shards))
            .and_then(|()| layout::rename_lfm2(&mut shards));
        let places = named.and_then(|()| layout::places(&shards));
        let places = places.map_err(|(file, message)| damaged(&shards[file].path, message))?;
        Ok(Checkpoint {
            shards,
            places,
            adapters: None,
            observer: None,
        })
    }

    /// Adds adapters and merges them into the weights as these are read.
    ///
    /// # Errors
    /// [`Error::File`]: adapters of weights that the checkpoint does not have, or has in another
    /// shape.
    pub fn with_adapters(mut self, adapters: Adapters) -> Result<Self> {
        self.check_adapters(&adapters)?;
        self.adapters = Some(adapters);
        Ok(self)
    }

    /// Checks that adapters belong to weights of the checkpoint.
    ///
    /// # Errors
    /// As [`Checkpoint::with_adapters`].
    pub fn check_adapters(&self, adapters: &Adapters) -> Result<()> {
        adapters.check(|name| {
            let tensor = self.tensor(name)?;
            Some(tensor.shape.to_vec())
        })
    }

    /// Renames the tensors, and drops the ones without a new name.
    ///
    /// # Errors
    /// [`Error::File`]: two tensors get the same name.
    pub(crate) fn renamed(mut self, name: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let places = layout::rename(&mut self.shards, name).and_then(|()| layout::places(&self.shards));
        self.places = places.map_err(|(file, message)| damaged(&self.shards[file].path, message))?;
        Ok(self)
    }

    /// Checks that the tensors are those of a model. Sizes in a `config.json` may be any numbers:
    /// they are compared with the files before memory is allocated for a model.
    ///
    /// # Errors
    /// [`Error::File`] as of [`Checkpoint::load_into`]; [`Error::InvalidUse`] for an impossible
    /// model.
    pub fn check_model(&self, model: &LlamaConfig) -> Result<()> {
        self.check_layers(model.layers)?;
        self.check_graph(&model.decode_graph(&[], 1, 1, LogitsOf::AllRows))
    }

    /// Checks that there can be this number of layers: the size of a graph grows with them, and
    /// each has tensors.
    ///
    /// # Errors
    /// [`Error::File`] with both numbers.
    pub(crate) fn check_layers(&self, layers: usize) -> Result<()> {
        let count = self.places.len();
        if layers <= count {
            Ok(())
        } else {
            Err(Error::file(
                &self.shards[0].path,
                format!("has {count} tensors, too few for the {layers} layers of the model"),
                OF_ANOTHER,
            ))
        }
    }

    /// Checks that the tensors are the parameters of a graph.
    ///
    /// # Errors
    /// As [`Checkpoint::check_model`].
    pub(crate) fn check_graph(&self, graph: &Graph) -> Result<()> {
        graph.verify()?;
        let nodes = graph.nodes().iter();
        let parameters: Vec<(String, TensorType)> = nodes
            .filter(|node| matches!(node.kind, NodeKind::Parameter { .. }))
            .filter_map(|node| Some((node.name.as_ref()?.to_string(), node.outputs.first()?.clone())))
            .filter(|(name, _)| is_stored(name))
            .collect();
        self.check(&wanted(&parameters))
    }

    /// Returns this checkpoint with an observer of [`Checkpoint::load_into`].
    #[must_use]
    pub fn with_observer(self, observer: Option<LoadObserver>) -> Self {
        Checkpoint { observer, ..self }
    }

    /// Returns the names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// Returns the size of the tensors of a parameter in the files, in bytes.
    fn stored_bytes(&self, name: &str) -> u64 {
        let parts = self.parts(name);
        parts.iter().map(|(shard, part)| shard.stored_bytes(part)).sum()
    }

    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        match self.places.get(name)? {
            TensorLocation::File(file) => self.shards[*file].tensor(name),
            TensorLocation::Experts(_) => None,
        }
    }

    /// Returns the tensors of a parameter in order: a single one, or one for each expert.
    fn parts(&self, name: &str) -> Vec<(&Shard, &str)> {
        match self.places.get(name) {
            None => Vec::new(),
            Some(TensorLocation::File(file)) => {
                let stored = self.shards[*file].tensors.get_key_value(name);
                stored
                    .map(|(name, _)| (&self.shards[*file], name.as_str()))
                    .into_iter()
                    .collect()
            }
            Some(TensorLocation::Experts(parts)) => parts
                .iter()
                .map(|(file, name)| (&self.shards[*file], name.as_str()))
                .collect(),
        }
    }

    /// Sets all parameters of a session except for caches and adapters, which keep their values. Matrices in `f32`,
    /// except for the table of embeddings, are transposed: checkpoints have `[outputs, inputs]`, graphs
    /// `[inputs, outputs]`. Matrices in `f16` or in blocks are not transposed. If the file stores a matrix in the block
    /// format of the session, or in a K format that corresponds to it, its quantized integers do not change. For
    /// [`WeightStorage::Q8`], the same holds for Q5_0, Q4_0, IQ4_NL, IQ4_XS and MXFP4. Other matrices are quantized row by
    /// row. Nothing is set unless all names, shapes and types match.
    ///
    /// # Errors
    /// [`Error::File`] with all tensors that are missing, that the model does not have, or that have the wrong shape or
    /// element type; a matrix to quantize has numbers that are not finite; errors of the session.
    pub fn load_into(&self, session: &mut Session) -> Result<()> {
        let mut parameters: Vec<(String, TensorType)> = session
            .plan()
            .parameters()
            .into_iter()
            .filter(|view| is_stored(&view.name))
            .map(|view| (view.name, view.ty))
            .collect();
        parameters.sort_by(|(a, _), (b, _)| a.cmp(b));
        let wanted = wanted(&parameters);
        self.check(&wanted)?;
        if let Some(adapters) = &self.adapters {
            adapters.check_forms(|name| {
                matches!(
                    wanted.get(name),
                    Some(TensorRequirements {
                        form: ParameterForm::F32 { transposed: true },
                        ..
                    })
                )
            })?;
        }
        let parameters = wanted.iter().map(|(name, wanted)| (*name, wanted.form));
        let mut bytes = LoadedBytes {
            loaded: 0,
            total: wanted.keys().map(|name| self.stored_bytes(name)).sum(),
        };
        let store = |parameter: &Parameter, converted: &ConvertedTensor| {
            parameter.store(session, converted)?;
            bytes.loaded += self.stored_bytes(parameter.name);
            if let Some(observer) = &self.observer {
                observer.report(bytes);
            }
            Ok(())
        };
        timed("loading the weights", || self.convert_while_storing(parameters, store))
    }

    fn check(&self, wanted: &BTreeMap<&str, TensorRequirements>) -> Result<()> {
        let mut differences = Differences::default();
        for (&name, wanted) in wanted {
            let Some(place) = self.places.get(name) else {
                differences.missing.push(name.to_owned());
                continue;
            };
            let parts = self.parts(name);
            // The shape of each expert is that of the parameter without its first axis.
            let shape = match (place, wanted.stored.split_first()) {
                (TensorLocation::Experts(_), Some((experts, shape))) if *experts != parts.len() => {
                    let wrong = format!("{name} ({} experts, not {experts} of {shape:?})", parts.len());
                    differences.wrong.push(wrong);
                    continue;
                }
                (TensorLocation::Experts(_), Some((_, shape))) => shape,
                _ => wanted.stored.as_slice(),
            };
            for (shard, part) in parts {
                let entry = &shard.tensors[part];
                if entry.shape != shape {
                    let wrong = format!("{part} ({:?}, not {shape:?})", entry.shape);
                    differences.wrong.push(wrong);
                } else if shard.tensor(part).is_none() {
                    let wrong = format!("{part} ({}, not {})", entry.stored, Element::KNOWN);
                    differences.wrong.push(wrong);
                }
            }
        }
        let extra = self.names().filter(|name| !wanted.contains_key(name));
        let extra = extra.filter(|name| *name != HEAD && !name.ends_with(TABLES));
        differences.unexpected.extend(extra.map(str::to_owned));
        differences.report(&self.shards[0].path)
    }

    /// Returns the default storage of matrices. For GGUF files it is that of the file: blocks with
    /// the same integers for all types of less than 16 bits, [`WeightStorage::F16`] for F16. Scales
    /// of the K formats are rounded to `f16`. Everything else is computed as `f32`. For safetensors files, it is `f32` except for
    /// packed matrices, such as the experts of gpt-oss.
    pub fn usual_storage(&self) -> StorageMap {
        let is_gguf = self.shards.iter().all(|shard| gguf::is_one(&shard.path));
        let of = |element: Element| match (element, element.format()) {
            (_, Some(format)) => WeightStorage::from(format),
            // No block format represents the numbers of Q2_K.
            (Element::F16 | Element::Q2K, None) => WeightStorage::F16,
            (_, None) => WeightStorage::F32,
        };
        let most = self
            .elements()
            .into_iter()
            .filter(|_| is_gguf)
            .max_by_key(|(_, size)| *size);
        let mut map = StorageMap::all(most.map_or(WeightStorage::F32, |(element, _)| of(element)));
        for (name, entry) in self.shards.iter().flat_map(|shard| &shard.tensors) {
            if let Some(element) = entry.element.filter(|element| is_gguf || element.format().is_some()) {
                map.set(name, of(element));
            }
        }
        map
    }

    /// Returns the number of elements of all tensors.
    pub fn parameters(&self) -> u64 {
        let entries = self.shards.iter().flat_map(|shard| shard.tensors.values());
        entries.fold(0, |sum: u64, entry| sum.saturating_add(entry.count()))
    }

    /// Returns the most frequent element type of matrices, by its lower-case name in the files;
    /// `None` without matrices.
    pub(crate) fn stored(&self) -> Option<String> {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for entry in self.shards.iter().flat_map(|shard| shard.tensors.values()) {
            if entry.shape.len() > 1 {
                let count = counts.entry(&entry.stored).or_default();
                *count = count.saturating_add(entry.count());
            }
        }
        let most = counts.into_iter().max_by_key(|&(_, count)| count);
        most.map(|(stored, _)| stored.to_lowercase())
    }

    /// Returns the element types of matrices in the files, with the number of elements of each.
    fn elements(&self) -> Vec<(Element, usize)> {
        let mut sizes: Vec<(Element, usize)> = Vec::new();
        for entry in self.shards.iter().flat_map(|shard| shard.tensors.values()) {
            let (Some(element), 2..) = (entry.element, entry.shape.len()) else {
                continue;
            };
            let size: usize = entry.shape.iter().product();
            match sizes.iter_mut().find(|(e, _)| *e == element) {
                Some((_, sum)) => *sum += size,
                None => sizes.push((element, size)),
            }
        }
        sizes
    }
}

/// Returns rows and columns, in the layout of graphs, of a matrix that files store transposed.
pub(crate) fn transposed(name: &str, shape: &[usize]) -> Option<[usize; 2]> {
    match *shape {
        // Biases of all experts have two axes.
        [_, _] if name.ends_with(".bias") || EMBEDDINGS.iter().any(|end| name.ends_with(end)) => None,
        [inputs, outputs] => Some([inputs, outputs]),
        _ => None,
    }
}

/// Returns true if a parameter of a graph is part of a checkpoint.
fn is_stored(name: &str) -> bool {
    !name.starts_with(CACHES) && !name.contains(ADAPTERS)
}

/// Storage form of a parameter on the device.
#[derive(Clone, Copy)]
enum ParameterForm {
    F32 { transposed: bool },
    F16,
    Blocks(BlockFormat),
}

/// The requirements of a session for a tensor.
struct TensorRequirements {
    form: ParameterForm,
    /// Shape of the tensor in a file.
    stored: Vec<usize>,
}

/// Returns the tensors for these parameters; a parameter in blocks consists of two, integers and
/// scales.
fn wanted(parameters: &[(String, TensorType)]) -> BTreeMap<&str, TensorRequirements> {
    let mut all = BTreeMap::new();
    let scales_of = |name: &str| {
        let scales = format!("{name}{SCALES}");
        parameters.iter().find(|(other, _)| *other == scales).map(|(_, ty)| ty)
    };
    for (name, ty) in parameters {
        let shape = ty.shape.to_vec();
        let (form, stored) = match (ty.dtype, shape.as_slice()) {
            (DType::F16, _) if name.ends_with(SCALES) => continue,
            (DType::F16, _) => (ParameterForm::F16, shape),
            (DType::U32, [rows @ .., words]) => {
                let scales = scales_of(name).and_then(|ty| ty.shape.last().copied()).unwrap_or(0);
                let format = BlockFormat::of(*words, scales).unwrap_or(BlockFormat::Q8_0);
                let columns = scales / format.scales() * BLOCK;
                (ParameterForm::Blocks(format), [rows, &[columns]].concat())
            }
            _ => match transposed(name, &shape) {
                Some([inputs, outputs]) => (ParameterForm::F32 { transposed: true }, vec![outputs, inputs]),
                None => (ParameterForm::F32 { transposed: false }, shape),
            },
        };
        all.insert(name.as_str(), TensorRequirements { form, stored });
    }
    all
}

impl Differences {
    /// Returns one error with all differences.
    fn report(self, path: &Path) -> Result<()> {
        let lists = [
            ("missing", self.missing),
            ("unexpected", self.unexpected),
            ("mis-shaped", self.wrong),
        ];
        let said: Vec<String> = lists.iter().filter_map(|(what, list)| line(what, list)).collect();
        if said.is_empty() {
            return Ok(());
        }
        Err(Error::file(
            path,
            format!("does not hold the weights of this model:\n{}", said.join("\n")),
            OF_ANOTHER,
        ))
    }
}

/// Returns some names of a list, and their total number.
fn line(what: &str, names: &[String]) -> Option<String> {
    const SHOWN: usize = 8;
    let more = match names.len().saturating_sub(SHOWN) {
        _ if names.is_empty() => return None,
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let shown = names[..names.len().min(SHOWN)].join(", ");
    Some(format!("  {} {what}: {shown}{more}", names.len()))
}
