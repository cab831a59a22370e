//! Weights in safetensors files, mapped into memory and streamed into sessions.
//!
//! A file is never read as a whole: each tensor is converted into memory of its own size, which the next one reuses,
//! and goes to the session from there.

pub(crate) mod convert;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use meganeura_core::{Error, Result, Session};
use memmap2::Mmap;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, Metadata};
use serde::Deserialize;

use crate::adapters::Adapters;
use crate::{damaged, read_text};

/// Begins the names of caches, which are parameters of a graph, but not of a checkpoint.
const CACHES: &str = "kv_cache.";
/// In the names of adapters, which are not part of a checkpoint, either.
pub(crate) const ADAPTERS: &str = ".lora_";
/// The projection to logits, which some checkpoints hold though it is the table of embeddings.
const HEAD: &str = "lm_head.weight";
/// Ends the names of tables that older programs stored, and that follow from the configuration.
const TABLES: &str = ".rotary_emb.inv_freq";
/// The table whose rows are looked up: it is stored as graphs have it, other matrices as `[outputs, inputs]`.
const EMBEDDING: &str = "embed_tokens.weight";

/// The weights of a model.
#[derive(Debug)]
pub struct Checkpoint {
    shards: Vec<Shard>,
    /// Where each tensor is.
    places: BTreeMap<String, usize>,
    /// What is added to weights as they are read.
    adapters: Option<Adapters>,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    map: Mmap,
    metadata: Metadata,
    /// First byte of the data.
    start: usize,
}

/// A tensor of a checkpoint.
#[derive(Clone, Copy, Debug)]
struct Tensor<'a> {
    dtype: Dtype,
    shape: &'a [usize],
    bytes: &'a [u8],
}

/// What a checkpoint and a model do not agree on.
#[derive(Default)]
struct Differences {
    missing: Vec<String>,
    unexpected: Vec<String>,
    wrong: Vec<String>,
}

impl Checkpoint {
    /// Opens `model.safetensors` of a folder, or the files that `model.safetensors.index.json` lists.
    ///
    /// The files must not change while the checkpoint is open.
    ///
    /// # Errors
    /// [`Error::File`]: no such files, a header that is damaged or lies, tensors that the index promises in vain.
    pub fn open(folder: &Path) -> Result<Self> {
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
        let checkpoint = Checkpoint::of(shards)?;
        match listed
            .weight_map
            .keys()
            .find(|name| !checkpoint.places.contains_key(*name))
        {
            None => Ok(checkpoint),
            Some(name) => Err(damaged(
                &index,
                format!("no file has the tensor '{name}' that it lists"),
            )),
        }
    }

    fn of(shards: Vec<Shard>) -> Result<Self> {
        let mut places = BTreeMap::new();
        for (number, shard) in shards.iter().enumerate() {
            for name in shard.metadata.tensors().into_keys() {
                if let Some(other) = places.insert(name.clone(), number) {
                    let other = shards[other].path.display();
                    return Err(damaged(
                        &shard.path,
                        format!("the tensor '{name}' is in '{other}', too"),
                    ));
                }
            }
        }
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
        adapters.check(|name| {
            let tensor = self.tensor(name)?;
            Some(tensor.shape.to_vec())
        })?;
        self.adapters = Some(adapters);
        Ok(self)
    }

    /// Names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let shard = &self.shards[*self.places.get(name)?];
        let info = shard.metadata.info(name)?;
        let (from, to) = info.data_offsets;
        Some(Tensor {
            dtype: info.dtype,
            shape: &info.shape,
            bytes: shard.map.get(shard.start + from..shard.start + to)?,
        })
    }

    /// Sets all parameters of a session but caches and adapters, which keep what they hold. Matrices but the table of embeddings are transposed: checkpoints
    /// have `[outputs, inputs]`, graphs `[inputs, outputs]`. Nothing is set unless everything fits.
    ///
    /// # Errors
    /// [`Error::File`] with all tensors that are missing, that the model does not have, and whose shape or element type
    /// is not the model's; errors of the session.
    pub fn load_into(&self, session: &mut Session) -> Result<()> {
        let mut parameters: Vec<(String, Vec<usize>)> = session
            .plan()
            .parameters()
            .into_iter()
            .filter(|view| !view.name.starts_with(CACHES) && !view.name.contains(ADAPTERS))
            .map(|view| (view.name, view.ty.shape.to_vec()))
            .collect();
        parameters.sort();
        self.check(&parameters)?;
        let mut values = Vec::new();
        for (name, shape) in &parameters {
            let Some(tensor) = self.tensor(name) else {
                continue;
            };
            convert::to_f32(tensor.dtype, tensor.bytes, transposed(name, shape), &mut values);
            if let Some(adapters) = &self.adapters {
                adapters.merge_into(name, &mut values);
            }
            session.try_set_parameter(name, &values)?;
        }
        Ok(())
    }

    fn check(&self, parameters: &[(String, Vec<usize>)]) -> Result<()> {
        let mut differences = Differences::default();
        let known: BTreeSet<&str> = parameters.iter().map(|(name, _)| name.as_str()).collect();
        for (name, shape) in parameters {
            let Some(tensor) = self.tensor(name) else {
                differences.missing.push(name.clone());
                continue;
            };
            let mut stored = shape.clone();
            if transposed(name, shape).is_some() {
                stored.reverse();
            }
            if !convert::is_known(tensor.dtype) {
                let wrong = format!("{name} ({:?}, not F32, F16 or BF16)", tensor.dtype);
                differences.wrong.push(wrong);
            } else if tensor.shape != stored {
                differences
                    .wrong
                    .push(format!("{name} ({:?}, not {stored:?})", tensor.shape));
            }
        }
        let extra = self.names().filter(|name| !known.contains(name));
        let extra = extra.filter(|name| *name != HEAD && !name.ends_with(TABLES));
        differences.unexpected.extend(extra.map(str::to_owned));
        differences.report(&self.shards[0].path)
    }
}

/// Rows and columns of a matrix that is stored transposed, as graphs have them.
pub(crate) fn transposed(name: &str, shape: &[usize]) -> Option<[usize; 2]> {
    match *shape {
        [inputs, outputs] if !name.ends_with(EMBEDDING) => Some([inputs, outputs]),
        _ => None,
    }
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
            "use the config.json that belongs to the weights",
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

impl Shard {
    fn open(path: PathBuf) -> Result<Self> {
        let unreadable = |e: std::io::Error| {
            let remedy =
                "give the folder of a checkpoint with model.safetensors, or with all files that its index lists";
            Error::file(&path, format!("cannot be read: {e}"), remedy)
        };
        let file = File::open(&path).map_err(unreadable)?;
        // SAFETY: the map is only read. That nobody changes the file meanwhile is asked of the caller; what is read
        // from it is checked before, and only ever converted to numbers after.
        let map = unsafe { Mmap::map(&file) }.map_err(unreadable)?;
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|e| damaged(&path, e))?;
        let start = size_of::<u64>() + header;
        Ok(Shard {
            path,
            map,
            metadata,
            start,
        })
    }
}
