//! Tensors of checkpoints that have other names than parameters, or hold several of them.

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

/// Gives the tensors of a text part the names that they have alone, and drops the other parts, if there are any
/// (the layout of Gemma 3).
pub(crate) fn keep_text_part(shards: &mut [Shard]) {
    let renamed = |name: &str| {
        let mut parts = TEXT_PARTS.iter();
        parts.find_map(|(from, to)| Some(format!("{to}{}", name.strip_prefix(from)?)))
    };
    let names = |shard: &Shard| shard.tensors.keys().any(|name| renamed(name).is_some());
    if !shards.iter().any(names) {
        return;
    }
    for shard in shards {
        let all = std::mem::take(&mut shard.tensors).into_iter();
        let own = all.filter(|(name, _)| !OTHER_PARTS.iter().any(|part| name.starts_with(part)));
        shard.tensors = own
            .map(|(name, entry)| (renamed(&name).unwrap_or(name), entry))
            .collect();
    }
}

/// Makes of projections that are stored as one the parts that parameters have. A tensor that cannot be divided stays.
pub(crate) fn split_projections(shards: &mut [Shard]) {
    let mut found = Vec::new();
    for (number, shard) in shards.iter().enumerate() {
        for (name, entry) in &shard.tensors {
            if let Some(parts) = parts_of(shards, name, entry) {
                found.push((number, name.clone(), parts));
            }
        }
    }
    for (number, name, parts) in found {
        shards[number].tensors.remove(&name);
        shards[number].tensors.extend(parts);
    }
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
