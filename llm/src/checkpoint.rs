//! Weights in safetensors files, mapped into memory and streamed into sessions.
//!
//! A file is never read as a whole: each tensor is converted into memory of its own size, which the next one reuses,
//! and goes to the session from there. What is stored as the session has it goes there directly.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use half::f16;
use meganeura_core::graph::NodeKind;
use meganeura_core::quantization::{BLOCK, BlockFormat};
use meganeura_core::{DType, Error, Graph, Result, Session, TensorType};
use meganeura_nn::layers::WeightStorage;
use meganeura_nn::models::{LlamaConfig, LogitsOf, StorageMap};
use serde::Deserialize;

use crate::adapters::{ADAPTERS, Adapters};
use crate::files::{damaged, read_text};
use crate::gguf;
use crate::tensors::convert;
use crate::tensors::element::Element;
use crate::tensors::layout::{self, Place};
use crate::tensors::shard::{Shard, Tensor};

/// Begins the names of caches, which are parameters of a graph, but not of a checkpoint.
const CACHES: &str = "kv_cache.";
/// The projection to logits, which some checkpoints hold though it is the table of embeddings.
const HEAD: &str = "lm_head.weight";
/// Ends the names of tables that older programs stored, and that follow from the configuration.
const TABLES: &str = ".rotary_emb.inv_freq";
/// Ends the names of tables whose rows are looked up: they are stored as graphs have them, other matrices as `[outputs, inputs]`.
const EMBEDDINGS: [&str; 2] = ["embed_tokens.weight", "_embeddings.weight"];
/// Ends the names of parameters that have the scales of blocks.
const SCALES: &str = "_scales";

/// What helps where weights and configuration do not belong together.
const OF_ANOTHER: &str = "use the config.json that belongs to the weights";

/// The weights of a model.
#[derive(Debug)]
pub struct Checkpoint {
    shards: Vec<Shard>,
    /// Where each tensor is.
    places: BTreeMap<String, Place>,
    /// What is added to weights as they are read.
    adapters: Option<Adapters>,
}

/// What a checkpoint and a model do not agree on.
#[derive(Default)]
struct Differences {
    missing: Vec<String>,
    unexpected: Vec<String>,
    wrong: Vec<String>,
}

impl Checkpoint {
    /// Opens `model.safetensors` of a folder, or the files that `model.safetensors.index.json` lists; or a GGUF file. Of a
    /// model with several kinds of input, only the text part is kept. Projections that are stored as one (`qkv_proj`,
    /// `gate_up_proj` of Phi-3) become those that parameters are named after, and the matrices of experts one that has those of
    /// all.
    ///
    /// The files must not change while the checkpoint is open.
    ///
    /// # Errors
    /// [`Error::File`]: no such files, a header that is damaged or lies, tensors that the index promises in vain.
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
            // A list of files is no reason to open any file of the machine.
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

    /// The checkpoint of a GGUF file.
    pub(crate) fn of_gguf(file: gguf::Gguf) -> Result<Self> {
        Checkpoint::of(file.shards()?)
    }

    fn of(mut shards: Vec<Shard>) -> Result<Self> {
        let named = layout::keep_text_part(&mut shards)
            .and_then(|()| layout::split_projections(&mut shards))
            .and_then(|()| layout::rename_mixtral(&mut shards));
        let places = named.and_then(|()| layout::places(&shards));
        let places = places.map_err(|(file, message)| damaged(&shards[file].path, message))?;
        Ok(Checkpoint {
            shards,
            places,
            adapters: None,
        })
    }

    /// The checkpoint with adapters, which are merged into its weights as these are read.
    ///
    /// # Errors
    /// [`Error::File`]: adapters of weights that the checkpoint has not, or has in another shape.
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

    /// The checkpoint with other names of tensors, without those that have none.
    ///
    /// # Errors
    /// [`Error::File`]: two tensors get the same name.
    pub(crate) fn renamed(mut self, name: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let places = layout::rename(&mut self.shards, name).and_then(|()| layout::places(&self.shards));
        self.places = places.map_err(|(file, message)| damaged(&self.shards[file].path, message))?;
        Ok(self)
    }

    /// Whether the tensors are those of a model. Sizes of a `config.json` may be any numbers: before memory is taken for
    /// a model, they are compared with what is there.
    ///
    /// # Errors
    /// [`Error::File`] as of [`Checkpoint::load_into`]; [`Error::InvalidUse`] for a model that cannot be.
    pub fn check_model(&self, model: &LlamaConfig) -> Result<()> {
        self.check_layers(model.layers)?;
        self.check_graph(&model.decode_graph(&[], 1, 1, LogitsOf::AllRows))
    }

    /// Whether there can be so many layers: a graph grows with them, and each has tensors.
    ///
    /// # Errors
    /// [`Error::File`] with both numbers.
    pub(crate) fn check_layers(&self, layers: usize) -> Result<()> {
        let count = self.places.len();
        match layers <= count {
            true => Ok(()),
            false => Err(Error::file(
                &self.shards[0].path,
                format!("has {count} tensors, too few for the {layers} layers of the model"),
                OF_ANOTHER,
            )),
        }
    }

    /// Whether the tensors are the parameters of a graph.
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

    /// Names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        match self.places.get(name)? {
            Place::File(file) => self.shards[*file].tensor(name),
            Place::Experts(_) => None,
        }
    }

    /// The tensors that follow each other in a parameter: one, or that of each expert.
    fn parts(&self, name: &str) -> Vec<(&Shard, &str)> {
        match self.places.get(name) {
            None => Vec::new(),
            Some(Place::File(file)) => {
                let stored = self.shards[*file].tensors.get_key_value(name);
                stored
                    .map(|(name, _)| (&self.shards[*file], name.as_str()))
                    .into_iter()
                    .collect()
            }
            Some(Place::Experts(parts)) => parts
                .iter()
                .map(|(file, name)| (&self.shards[*file], name.as_str()))
                .collect(),
        }
    }

    /// Sets all parameters of a session but caches and adapters, which keep what they hold. Matrices in `f32` but the
    /// table of embeddings are transposed: checkpoints have `[outputs, inputs]`, graphs `[inputs, outputs]`. Parameters in
    /// fewer bits have the rows of the checkpoint; they keep their integers where the file stores them so, and in
    /// [`WeightStorage::Q8`] also where it has Q5_0, Q4_0, IQ4_NL or MXFP4; else they are rounded row by row.
    /// Nothing is set unless everything fits.
    ///
    /// # Errors
    /// [`Error::File`] with all tensors that are missing, that the model does not have, and whose shape or element type
    /// is not the model's; numbers that are not finite in a matrix that is quantised; errors of the session.
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
                    Some(Wanted {
                        form: Form::F32 { transposed: true },
                        ..
                    })
                )
            })?;
        }
        let mut memory = Memory::default();
        for (name, wanted) in &wanted {
            self.load(session, name, wanted.form, &mut memory)?;
        }
        Ok(())
    }

    fn load(&self, session: &mut Session, name: &str, form: Form, memory: &mut Memory) -> Result<()> {
        let parts = self.parts(name);
        // Adapters change matrices that are transposed.
        let element = match form {
            Form::F32 { transposed: false } => Some(Element::F32),
            Form::F16 => Some(Element::F16),
            _ => None,
        };
        if let (&[(shard, part)], Some(element)) = (parts.as_slice(), element)
            && let Some(stored) = shard.tensor(part).as_ref().and_then(|tensor| tensor.bytes_in(element))
        {
            return session.try_set_parameter_bytes(name, stored);
        }
        let Memory { whole, part: one } = memory;
        whole.clear();
        for &(shard, part) in &parts {
            let Some(tensor) = shard.tensor(part) else { continue };
            // A tensor that is all is converted where it stays.
            let to = if parts.len() == 1 { &mut *whole } else { &mut *one };
            to.reserve(part, &tensor, form)?;
            to.convert(&tensor, form).map_err(|row| {
                let message =
                    format!("row {row} of '{part}' has numbers that are not finite, or too large to be stored so");
                Error::file(&shard.path, message, "load the weights as f32")
            })?;
            if parts.len() > 1 {
                whole.extend(one);
            }
        }
        let Converted { numbers, bytes, scales } = whole;
        match form {
            Form::F32 { .. } => {
                if let Some(adapters) = &self.adapters {
                    adapters.merge_into(name, numbers);
                }
                session.try_set_parameter(name, numbers)
            }
            Form::F16 => session.try_set_parameter_bytes(name, bytes),
            Form::Blocks(_) => {
                session.try_set_parameter_bytes(name, bytes)?;
                session.try_set_parameter_bytes(&format!("{name}{SCALES}"), scales)
            }
        }
    }

    fn check(&self, wanted: &BTreeMap<&str, Wanted>) -> Result<()> {
        let mut differences = Differences::default();
        for (&name, wanted) in wanted {
            let Some(place) = self.places.get(name) else {
                differences.missing.push(name.to_owned());
                continue;
            };
            let parts = self.parts(name);
            // Each expert has what the parameter has beside its first axis.
            let shape = match (place, wanted.stored.split_first()) {
                (Place::Experts(_), Some((experts, shape))) if *experts != parts.len() => {
                    let wrong = format!("{name} ({} experts, not {experts} of {shape:?})", parts.len());
                    differences.wrong.push(wrong);
                    continue;
                }
                (Place::Experts(_), Some((_, shape))) => shape,
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

    /// How matrices are stored if nothing else is asked for. Those of GGUF files keep what they are in: blocks with the same
    /// integers for all types of less than 16 bits, [`WeightStorage::F16`] for F16. Scales of the K formats are rounded to
    /// `f16`. Everything else is computed as `f32`, safetensors always.
    pub fn usual_storage(&self) -> StorageMap {
        if !self.shards.iter().all(|shard| gguf::is_one(&shard.path)) {
            return StorageMap::default();
        }
        let of = |element: Element| match (element, element.format()) {
            (_, Some(format)) => WeightStorage::from(format),
            // No format of blocks has the numbers of Q2_K.
            (Element::F16 | Element::Q2K, None) => WeightStorage::F16,
            (_, None) => WeightStorage::F32,
        };
        let most = self.elements().into_iter().max_by_key(|(_, size)| *size);
        let mut map = StorageMap::all(most.map_or(WeightStorage::F32, |(element, _)| of(element)));
        for (name, entry) in self.shards.iter().flat_map(|shard| &shard.tensors) {
            if let Some(element) = entry.element {
                map.set(name, of(element));
            }
        }
        map
    }

    /// Numbers of all tensors.
    pub fn parameters(&self) -> u64 {
        let entries = self.shards.iter().flat_map(|shard| shard.tensors.values());
        entries.fold(0, |sum: u64, entry| sum.saturating_add(entry.count()))
    }

    /// What the files call the type of most numbers of matrices, in lower case; `None` if there are no matrices.
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

    /// How the files store matrices, and how many numbers are stored so.
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

/// Rows and columns of a matrix that is stored transposed, as graphs have them.
pub(crate) fn transposed(name: &str, shape: &[usize]) -> Option<[usize; 2]> {
    match *shape {
        [inputs, outputs] if !EMBEDDINGS.iter().any(|end| name.ends_with(end)) => Some([inputs, outputs]),
        _ => None,
    }
}

/// Whether a parameter of a graph is part of a checkpoint.
fn is_stored(name: &str) -> bool {
    !name.starts_with(CACHES) && !name.contains(ADAPTERS)
}

/// Memory that tensors go through.
#[derive(Default)]
struct Memory {
    whole: Converted,
    /// One of several tensors that make a parameter.
    part: Converted,
}

/// A tensor in the form of a parameter.
#[derive(Default)]
struct Converted {
    numbers: Vec<f32>,
    bytes: Vec<u8>,
    scales: Vec<u8>,
}

impl Converted {
    fn clear(&mut self) {
        self.numbers.clear();
        self.bytes.clear();
        self.scales.clear();
    }

    fn extend(&mut self, other: &Converted) {
        self.numbers.extend_from_slice(&other.numbers);
        self.bytes.extend_from_slice(&other.bytes);
        self.scales.extend_from_slice(&other.scales);
    }

    /// Makes room for a tensor, which takes most of the memory that loading needs.
    fn reserve(&mut self, name: &str, tensor: &Tensor, form: Form) -> Result<()> {
        self.clear();
        let [rows, width] = tensor.rows();
        let (numbers, bytes, scales) = match form {
            Form::F32 { .. } => (rows * width, 0, 0),
            Form::F16 => (0, rows * width * size_of::<f16>(), 0),
            Form::Blocks(format) => {
                let blocks = rows * (width / BLOCK);
                (0, blocks * format.bytes(), blocks * format.scales() * size_of::<f16>())
            }
        };
        let reserved = self.numbers.try_reserve(numbers);
        let reserved = reserved.and_then(|()| self.bytes.try_reserve(bytes));
        let reserved = reserved.and_then(|()| self.scales.try_reserve(scales));
        reserved.map_err(|_| Error::HostMemory {
            what: format!("the tensor '{name}'"),
            bytes: numbers * size_of::<f32>() + bytes + scales,
        })
    }

    /// Becomes a tensor; the error is the number of a row that cannot be stored so.
    fn convert(&mut self, tensor: &Tensor, form: Form) -> std::result::Result<(), usize> {
        self.clear();
        match form {
            Form::F32 { transposed } => {
                convert::to_f32(tensor, transposed, &mut self.numbers);
                Ok(())
            }
            Form::F16 => convert::to_f16(tensor, &mut self.bytes),
            Form::Blocks(format) => convert::to_blocks(tensor, format, &mut self.bytes, &mut self.scales),
        }
    }
}

/// The form of a parameter.
#[derive(Clone, Copy)]
enum Form {
    F32 { transposed: bool },
    F16,
    Blocks(BlockFormat),
}

/// What a session needs of a tensor.
struct Wanted {
    form: Form,
    /// Its shape in a file.
    stored: Vec<usize>,
}

/// Tensors for these parameters, of which those with scales are of two.
fn wanted(parameters: &[(String, TensorType)]) -> BTreeMap<&str, Wanted> {
    let mut all = BTreeMap::new();
    let scales_of = |name: &str| {
        let scales = format!("{name}{SCALES}");
        parameters.iter().find(|(other, _)| *other == scales).map(|(_, ty)| ty)
    };
    for (name, ty) in parameters {
        let shape = ty.shape.to_vec();
        let (form, stored) = match (ty.dtype, shape.as_slice()) {
            (DType::F16, _) if name.ends_with(SCALES) => continue,
            (DType::F16, _) => (Form::F16, shape),
            (DType::U32, [rows @ .., words]) => {
                let scales = scales_of(name).and_then(|ty| ty.shape.last().copied()).unwrap_or(0);
                let format = BlockFormat::of(*words, scales).unwrap_or(BlockFormat::Q8_0);
                let columns = scales / format.scales() * BLOCK;
                (Form::Blocks(format), [rows, &[columns]].concat())
            }
            _ => match transposed(name, &shape) {
                Some([inputs, outputs]) => (Form::F32 { transposed: true }, vec![outputs, inputs]),
                None => (Form::F32 { transposed: false }, shape),
            },
        };
        all.insert(name.as_str(), Wanted { form, stored });
    }
    all
}

impl Differences {
    /// One error with everything.
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

/// Some names of a list, and how many there are.
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
