//! Tensors of checkpoints that have other names than parameters, or hold several of them.

use std::collections::BTreeMap;
use std::collections::btree_map;

use super::shard::{Entry, Shard};

/// Where a model with several kinds of input has its text part, and what replaces that.
const TEXT_PARTS: [(&str, &str); 2] = [("language_model.", ""), ("model.language_model.", "model.")];
/// Begins the names of the other parts of such a model.
const OTHER_PARTS: [&str; 4] = [
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
];

/// Projections that some checkpoints store as one, below each other: the name of the module, and those of its parts.
pub(crate) const FUSED: [(&str, &[&str]); 2] = [
    ("qkv_proj", &["q_proj", "k_proj", "v_proj"]),
    ("gate_up_proj", &["gate_proj", "up_proj"]),
];

/// Where Mixtral has its experts, and what others call that.
const MIXTRAL: [&str; 2] = [".block_sparse_moe.", ".mlp."];
/// What it calls the matrices of an expert, and what others do.
const MIXTRAL_MATRICES: [[&str; 2]; 3] = [["w1", "gate_proj"], ["w2", "down_proj"], ["w3", "up_proj"]];
/// In front of the number of an expert.
const EXPERTS: &str = ".experts.";

/// Name of a tensor of Mixtral as others have it.
fn of_mixtral(name: &str) -> Option<String> {
    renamed(name, [0, 1])
}

/// Name of a tensor as Mixtral has it.
pub(crate) fn to_mixtral(name: &str) -> Option<String> {
    renamed(name, [1, 0])
}

/// A name from a column of [`MIXTRAL`] and [`MIXTRAL_MATRICES`] to another.
fn renamed(name: &str, [from, to]: [usize; 2]) -> Option<String> {
    let (block, rest) = name.split_once(MIXTRAL[from])?;
    let matrix = MIXTRAL_MATRICES.iter().find_map(|names| {
        let expert = rest.strip_suffix(".weight")?.strip_suffix(names[from])?;
        Some(format!("{expert}{}.weight", names[to]))
    });
    Some(format!("{block}{}{}", MIXTRAL[to], matrix.as_deref().unwrap_or(rest)))
}

/// What is wrong with tensors of a checkpoint, and the number of the file that has them.
pub(crate) type Wrong = (usize, String);

/// Gives tensors other names, and drops those that get none.
///
/// # Errors
/// Two tensors of a file get one name. (Those of two files are found by [`places`].)
pub(crate) fn rename(shards: &mut [Shard], name: impl Fn(&str) -> Option<String>) -> Result<(), Wrong> {
    for (number, shard) in shards.iter_mut().enumerate() {
        let mut names: BTreeMap<String, String> = BTreeMap::new();
        for (old, entry) in std::mem::take(&mut shard.tensors) {
            let Some(new) = name(&old) else { continue };
            if let Some(other) = names.insert(new.clone(), old.clone()) {
                return Err((number, format!("the tensors '{other}' and '{old}' are both '{new}'")));
            }
            shard.tensors.insert(new, entry);
        }
    }
    Ok(())
}

/// Gives the experts of Mixtral the names that those of others have.
///
/// # Errors
/// As of [`rename`].
pub(crate) fn rename_mixtral(shards: &mut [Shard]) -> Result<(), Wrong> {
    rename(shards, |name| Some(of_mixtral(name).unwrap_or_else(|| name.to_owned())))
}

/// The parameter that has a tensor of one expert with those of the others, and the number of the expert.
pub(crate) fn of_expert(name: &str) -> Option<(String, usize)> {
    let (layer, rest) = name.split_once(EXPERTS)?;
    let (number, module) = rest.split_once('.')?;
    let expert: usize = number.parse().ok()?;
    // Of two that are the same number, one is none.
    (expert.to_string() == number).then(|| (format!("{layer}{EXPERTS}{module}"), expert))
}

/// The tensor of an expert, of a parameter with those of all.
pub(crate) fn expert_name(parameter: &str, expert: usize) -> Option<String> {
    let (layer, module) = parameter.split_once(EXPERTS)?;
    Some(format!("{layer}{EXPERTS}{expert}.{module}"))
}

/// Where a tensor is that parameters are named after.
#[derive(Debug)]
pub(crate) enum Place {
    /// In the file of this number.
    File(usize),
    /// In parts, one for each expert, with the numbers of their files.
    Experts(Vec<(usize, String)>),
}

/// Where all tensors are.
///
/// # Errors
/// The number of a file, and what is wrong: a name that another file has, too; experts whose numbers have gaps.
pub(crate) fn places(shards: &[Shard]) -> Result<BTreeMap<String, Place>, Wrong> {
    let mut places = BTreeMap::new();
    let mut experts: BTreeMap<String, BTreeMap<usize, (usize, String)>> = BTreeMap::new();
    for (number, shard) in shards.iter().enumerate() {
        for name in shard.tensors.keys() {
            let other = match of_expert(name) {
                Some((parameter, expert)) => {
                    let of_parameter = experts.entry(parameter).or_default();
                    of_parameter
                        .insert(expert, (number, name.clone()))
                        .map(|(file, _)| file)
                }
                None => match places.entry(name.clone()) {
                    btree_map::Entry::Vacant(entry) => {
                        entry.insert(Place::File(number));
                        None
                    }
                    btree_map::Entry::Occupied(entry) => match entry.get() {
                        Place::File(other) => Some(*other),
                        Place::Experts(_) => None,
                    },
                },
            };
            if let Some(other) = other {
                let other = shards[other].path.display();
                return Err((number, format!("the tensor '{name}' is in '{other}', too")));
            }
        }
    }
    for (parameter, parts) in experts {
        let missing = (0..).zip(parts.keys()).find(|(wanted, found)| wanted != *found);
        let file = parts.values().next().map_or(0, |(file, _)| *file);
        if let Some((missing, _)) = missing {
            let count = parts.len();
            let name = expert_name(&parameter, missing).unwrap_or_default();
            return Err((
                file,
                format!("of {count} experts and more, one is missing: no file has '{name}'"),
            ));
        }
        if places.contains_key(&parameter) {
            return Err((file, format!("'{parameter}' is stored as a whole and by expert")));
        }
        places.insert(parameter, Place::Experts(parts.into_values().collect()));
    }
    Ok(places)
}

/// Gives the tensors of a text part the names that they have alone, and drops the other parts, if there are any
/// (the layout of Gemma 3).
///
/// # Errors
/// As of [`rename`].
pub(crate) fn keep_text_part(shards: &mut [Shard]) -> Result<(), Wrong> {
    let of_text = |name: &str| {
        let mut parts = TEXT_PARTS.iter();
        parts.find_map(|(from, to)| Some(format!("{to}{}", name.strip_prefix(from)?)))
    };
    let has_text = |shard: &Shard| shard.tensors.keys().any(|name| of_text(name).is_some());
    if !shards.iter().any(has_text) {
        return Ok(());
    }
    rename(shards, |name| {
        let is_other = OTHER_PARTS.iter().any(|part| name.starts_with(part));
        (!is_other).then(|| of_text(name).unwrap_or_else(|| name.to_owned()))
    })
}

/// Makes of projections that are stored as one the parts that parameters have. A tensor that cannot be divided stays.
///
/// # Errors
/// A file has a part beside the whole. (That another file has it is found by [`places`].)
pub(crate) fn split_projections(shards: &mut [Shard]) -> Result<(), Wrong> {
    let mut found = Vec::new();
    for (number, shard) in shards.iter().enumerate() {
        for (name, entry) in &shard.tensors {
            if let Some(parts) = parts_of(shards, name, entry) {
                found.push((number, name.clone(), parts));
            }
        }
    }
    for (number, name, parts) in found {
        let tensors = &mut shards[number].tensors;
        if let Some((part, _)) = parts.iter().find(|(part, _)| tensors.contains_key(part)) {
            return Err((
                number,
                format!("'{name}' has '{part}' in it, which is stored beside it, too"),
            ));
        }
        tensors.remove(&name);
        tensors.extend(parts);
    }
    Ok(())
}

/// The parts of a tensor, with their names.
fn parts_of(shards: &[Shard], name: &str, entry: &Entry) -> Option<Vec<(String, Entry)>> {
    let (layer, kind) = name.rsplit_once('.')?;
    let (block, module) = layer.rsplit_once('.')?;
    let (_, modules) = FUSED.iter().find(|(fused, _)| *fused == module)?;
    let (&rows, rest) = entry.shape.split_first()?;
    let counts = match modules.len() {
        // As many queries as the projection of the result reads; keys and values share what is left.
        3 => {
            let output = format!("{block}.o_proj.weight");
            let queries = *shards
                .iter()
                .find_map(|shard| shard.tensors.get(&output))?
                .shape
                .get(1)?;
            let shared = rows.checked_sub(queries)?;
            vec![queries, shared / 2, shared / 2]
        }
        parts => vec![rows / parts; parts],
    };
    if counts.iter().sum::<usize>() != rows {
        return None;
    }
    let width: usize = rest.iter().product();
    let mut start = entry.range.start;
    let parts = modules.iter().zip(counts).map(|(part, count)| {
        // Of a type that cannot be read, sizes are not known.
        let size = entry.element.map_or(Some(0), |element| element.bytes(count * width))?;
        let range = start..start + size;
        start = range.end;
        let entry = Entry {
            element: entry.element,
            stored: entry.stored.clone(),
            shape: [&[count], rest].concat(),
            range,
            heads: entry.heads,
        };
        Some((format!("{block}.{part}.{kind}"), entry))
    });
    parts.collect()
}
