//! Mapping of checkpoint tensors that have other names than parameters, or contain several of them.

use std::collections::BTreeMap;
use std::collections::btree_map;

use super::arrangement::Arrangement;
use super::element::Element;
use super::shard::{Entry, Shard};

/// Prefixes of the text part of multimodal models, and their replacements.
const TEXT_PARTS: [(&str, &str); 2] = [("language_model.", ""), ("model.language_model.", "model.")];
/// Prefixes of the other parts of such a model.
const OTHER_PARTS: [&str; 4] = [
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
];

/// Projections that some checkpoints store as one tensor, with stacked rows: the name of the
/// module, and those of its parts.
pub(crate) const FUSED: [(&str, &[&str]); 2] = [
    ("qkv_proj", &["q_proj", "k_proj", "v_proj"]),
    ("gate_up_proj", &["gate_proj", "up_proj"]),
];

/// Module of the experts in Mixtral, and in other models.
const MIXTRAL: [&str; 2] = [".block_sparse_moe.", ".mlp."];
/// Names of an expert's matrices in Mixtral, and in other models.
const MIXTRAL_MATRICES: [[&str; 2]; 3] = [["w1", "gate_proj"], ["w2", "down_proj"], ["w3", "up_proj"]];
/// Separator before the index of an expert.
pub(crate) const EXPERTS: &str = ".experts.";

/// Returns the usual name of a Mixtral tensor.
fn of_mixtral(name: &str) -> Option<String> {
    renamed(name, [0, 1])
}

/// Returns the Mixtral name of a tensor.
pub(crate) fn to_mixtral(name: &str) -> Option<String> {
    renamed(name, [1, 0])
}

/// Converts a name from the naming at index `from` of [`MIXTRAL`] and [`MIXTRAL_MATRICES`] to the one at index `to`.
fn renamed(name: &str, [from, to]: [usize; 2]) -> Option<String> {
    let (block, rest) = name.split_once(MIXTRAL[from])?;
    let matrix = MIXTRAL_MATRICES.iter().find_map(|names| {
        let expert = rest.strip_suffix(".weight")?.strip_suffix(names[from])?;
        Some(format!("{expert}{}.weight", names[to]))
    });
    Some(format!("{block}{}{}", MIXTRAL[to], matrix.as_deref().unwrap_or(rest)))
}

/// The index of a file, and the error of its tensors.
pub(crate) type FileError = (usize, String);

/// Renames tensors, and drops the ones without a new name.
///
/// # Errors
/// Two tensors of a file get the same name. ([`places`] detects equal names in two files.)
pub(crate) fn rename(shards: &mut [Shard], name: impl Fn(&str) -> Option<String>) -> Result<(), FileError> {
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

/// Renames the tensors of Mixtral's experts to the names in other models.
///
/// # Errors
/// As of [`rename`].
pub(crate) fn rename_mixtral(shards: &mut [Shard]) -> Result<(), FileError> {
    rename(shards, |name| Some(of_mixtral(name).unwrap_or_else(|| name.to_owned())))
}

/// Returns the parameter of all experts that contains an expert's tensor, and the index of the
/// expert.
pub(crate) fn of_expert(name: &str) -> Option<(String, usize)> {
    let (layer, rest) = name.split_once(EXPERTS)?;
    let (number, module) = rest.split_once('.')?;
    let expert: usize = number.parse().ok()?;
    // Only the canonical spelling of a number is accepted.
    (expert.to_string() == number).then(|| (format!("{layer}{EXPERTS}{module}"), expert))
}

/// Returns the tensor of one expert, for a parameter of all experts.
pub(crate) fn expert_name(parameter: &str, expert: usize) -> Option<String> {
    let (layer, module) = parameter.split_once(EXPERTS)?;
    Some(format!("{layer}{EXPERTS}{expert}.{module}"))
}

/// The location of a parameter's tensor.
#[derive(Debug)]
pub(crate) enum TensorLocation {
    /// One tensor, in the file with this index.
    File(usize),
    /// One tensor for each expert: index of its file, and its name.
    Experts(Vec<(usize, String)>),
}

/// Returns the locations of all tensors.
///
/// # Errors
/// The index of a file and its error: a name that another file also has; gaps between the indices
/// of experts.
pub(crate) fn places(shards: &[Shard]) -> Result<BTreeMap<String, TensorLocation>, FileError> {
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
                        entry.insert(TensorLocation::File(number));
                        None
                    }
                    btree_map::Entry::Occupied(entry) => match entry.get() {
                        TensorLocation::File(other) => Some(*other),
                        TensorLocation::Experts(_) => None,
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
                format!("one of at least {count} experts is missing: no file has '{name}'"),
            ));
        }
        if places.contains_key(&parameter) {
            return Err((file, format!("'{parameter}' is stored both as a whole and per expert")));
        }
        places.insert(parameter, TensorLocation::Experts(parts.into_values().collect()));
    }
    Ok(places)
}

/// Renames the tensors of a multimodal model's text part to the names of a separate model, and drops the other parts,
/// if there are any (the layout of Gemma 3).
///
/// # Errors
/// As of [`rename`].
pub(crate) fn keep_text_part(shards: &mut [Shard]) -> Result<(), FileError> {
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

/// Removes the layers that predict further tokens (multi-token prediction; GLM-4.5): they follow the layers of the model, and
/// generation does not use them.
pub(crate) fn drop_prediction_layers(shards: &mut [Shard]) {
    let names = shards.iter().flat_map(|shard| shard.tensors.keys());
    let prefixes: Vec<String> = names
        .filter_map(|name| Some(format!("{}.", name.strip_suffix(".eh_proj.weight")?)))
        .collect();
    for shard in shards {
        shard
            .tensors
            .retain(|name, _| !prefixes.iter().any(|prefix| name.starts_with(prefix)));
    }
}

/// Splits fused projections into the parts that parameters have. A tensor that cannot be divided is
/// kept.
///
/// # Errors
/// A file contains a fused projection and also one of its parts. ([`places`] detects parts in other files.)
pub(crate) fn split_projections(shards: &mut [Shard]) -> Result<(), FileError> {
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
                format!("'{name}' contains '{part}', which is also stored separately"),
            ));
        }
        tensors.remove(&name);
        tensors.extend(parts);
    }
    Ok(())
}

/// Returns the names and entries of the parts of a fused projection; `None` for other tensors.
fn parts_of(shards: &[Shard], name: &str, entry: &Entry) -> Option<Vec<(String, Entry)>> {
    let (layer, kind) = name.rsplit_once('.')?;
    let (block, module) = layer.rsplit_once('.')?;
    let (_, modules) = FUSED.iter().find(|(fused, _)| *fused == module)?;
    let (&rows, rest) = entry.shape.split_first()?;
    let counts = match modules.len() {
        // The number of queries is the input size of the output projection; keys and values share
        // the rest.
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
        // Sizes of unsupported types are unknown.
        let size = entry.element.map_or(Some(0), |element| element.bytes(count * width))?;
        let range = start..start + size;
        start = range.end;
        let entry = Entry {
            element: entry.element,
            stored: entry.stored.clone(),
            shape: [&[count], rest].concat(),
            range,
            arrangement: entry.arrangement.clone(),
        };
        Some((format!("{block}.{part}.{kind}"), entry))
    });
    parts.collect()
}

/// Router of gpt-oss, and its usual name.
pub(crate) const GPT_OSS_ROUTER: [&str; 2] = [".mlp.router.", ".mlp.gate."];
/// Parameter that only layers of gpt-oss have.
const SINKS: &str = ".self_attn.sinks";

/// Converts the experts of gpt-oss to the usual layout: separates gates and up-projections, whose columns alternate, and describes
/// transposed and packed matrices. Renames routers.
///
/// # Errors
/// A file has packed matrices without their scales; as of [`rename`].
pub(crate) fn separate_gpt_oss(shards: &mut [Shard]) -> Result<(), FileError> {
    if !shards
        .iter()
        .any(|shard| shard.tensors.keys().any(|name| name.ends_with(SINKS)))
    {
        return Ok(());
    }
    let [own, usual] = GPT_OSS_ROUTER;
    rename(shards, |name| Some(name.replace(own, usual)))?;
    for (number, shard) in shards.iter_mut().enumerate() {
        let all = std::mem::take(&mut shard.tensors);
        for (name, entry) in &all {
            let Some((layer, tensor)) = of_all_experts(name) else {
                continue;
            };
            let parts = experts_of_gpt_oss(tensor, entry, |scales| all.get(&format!("{layer}{EXPERTS}{scales}")));
            let parts = parts.map_err(|message| (number, format!("'{name}' {message}")))?;
            let named = parts
                .into_iter()
                .map(|(part, entry)| (format!("{layer}{EXPERTS}{part}"), entry));
            shard.tensors.extend(named);
        }
        let others = all.into_iter().filter(|(name, _)| of_all_experts(name).is_none());
        shard.tensors.extend(others);
    }
    Ok(())
}

/// Splits the name of a tensor of all experts that is not the parameter of a module, as in checkpoints of gpt-oss. GGUF files have parameters
/// of modules.
fn of_all_experts(name: &str) -> Option<(&str, &str)> {
    name.split_once(EXPERTS).filter(|(_, tensor)| !tensor.contains('.'))
}

/// Returns the parts of a tensor of experts, and their names. `other` returns another tensor of the same layer. Scales have no
/// parts, because the packed matrices contain them.
fn experts_of_gpt_oss<'a>(
    tensor: &str,
    entry: &Entry,
    other: impl Fn(&str) -> Option<&'a Entry>,
) -> Result<Vec<(String, Entry)>, String> {
    let (module, kind) = ["_blocks", "_scales", "_bias"]
        .into_iter()
        .find_map(|kind| Some((tensor.strip_suffix(kind)?, kind)))
        .unwrap_or((tensor, ""));
    let modules: &[&str] = match module {
        "gate_up_proj" => &["gate_proj", "up_proj"],
        "down_proj" => &["down_proj"],
        _ => return Err("is not a tensor of experts of gpt-oss".into()),
    };
    let step = modules.len();
    let (kind, shape, element, scales) = match (kind, entry.shape.as_slice()) {
        ("", &[experts, inputs, outputs]) => ("weight", vec![experts, outputs / step, inputs], entry.element, None),
        ("_bias", &[experts, outputs]) => ("bias", vec![experts, outputs / step], entry.element, None),
        ("_blocks", &[experts, outputs, blocks, 16]) if entry.stored == "U8" => {
            let scales = other(&format!("{module}_scales")).ok_or("has no scales in its file")?;
            if scales.stored != "U8" || scales.shape != [experts, outputs, blocks] {
                let found = &scales.shape;
                return Err(format!(
                    "needs scales U8 [{experts}, {outputs}, {blocks}], found {} {found:?}",
                    scales.stored
                ));
            }
            let shape = vec![experts, outputs / step, 32 * blocks];
            ("weight", shape, Some(Element::Mxfp4), Some(scales.range.clone()))
        }
        ("_scales", _) => return Ok(Vec::new()),
        (_, shape) => {
            return Err(format!(
                "has the type {} and the shape {shape:?}, which are not supported",
                entry.stored
            ));
        }
    };
    let parts = modules.iter().enumerate().map(|(first, part)| {
        let entry = Entry {
            element,
            stored: entry.stored.clone(),
            shape: shape.clone(),
            range: entry.range.clone(),
            arrangement: match (&scales, kind) {
                (Some(scales), _) => Arrangement::SplitMxfp4 {
                    first,
                    step,
                    scales: scales.clone(),
                },
                (None, "bias") => Arrangement::Every { first, step },
                (None, _) => Arrangement::Columns { first, step },
            },
        };
        (format!("{part}.{kind}"), entry)
    });
    Ok(parts.collect())
}

/// Parts of names in checkpoints of LFM2, and their usual forms.
const LFM2: [[&str; 2]; 9] = [
    ["model.embedding_norm.", "model.norm."],
    [".operator_norm.", ".input_layernorm."],
    [".ffn_norm.", ".post_attention_layernorm."],
    [".feed_forward.w1.", ".mlp.gate_proj."],
    [".feed_forward.w3.", ".mlp.up_proj."],
    [".feed_forward.w2.", ".mlp.down_proj."],
    [".self_attn.out_proj.", ".self_attn.o_proj."],
    [".self_attn.q_layernorm.", ".self_attn.q_norm."],
    [".self_attn.k_layernorm.", ".self_attn.k_norm."],
];
/// End of the names of filters of short convolutions.
pub(crate) const FILTERS: &str = ".conv.conv.weight";

/// Returns the LFM2 name of a tensor.
pub(crate) fn to_lfm2(name: &str) -> String {
    LFM2.iter()
        .fold(name.to_owned(), |name, [own, usual]| name.replace(usual, own))
}

/// Renames the tensors of LFM2, and removes the axis of size 1 of its filters.
///
/// # Errors
/// As of [`rename`].
pub(crate) fn rename_lfm2(shards: &mut [Shard]) -> Result<(), FileError> {
    let [[norm, _], ..] = LFM2;
    if !shards
        .iter()
        .any(|shard| shard.tensors.keys().any(|name| name.starts_with(norm)))
    {
        return Ok(());
    }
    rename(shards, |name| {
        Some(
            LFM2.iter()
                .fold(name.to_owned(), |name, [own, usual]| name.replace(own, usual)),
        )
    })?;
    for (name, entry) in shards.iter_mut().flat_map(|shard| &mut shard.tensors) {
        if let (true, &[features, 1, taps]) = (name.ends_with(FILTERS), entry.shape.as_slice()) {
            entry.shape = vec![features, taps];
        }
    }
    Ok(())
}
