//! The files of a model's folder.

use std::fs;
use std::path::Path;
use std::time::Duration;

use meganeura_core::files::{sha256, write_atomically};
use meganeura_core::{Error, Result, Weights};
use serde::{Deserialize, Serialize};

use super::{Description, Model};

/// The file that makes a folder a model.
const DESCRIPTION: &str = "model.json";
/// Beginning and end of the names of weight files; a part of the hash is between them.
const WEIGHTS: (&str, &str) = ("weights-", ".safetensors");
/// Version of this layout.
const FORMAT: u32 = 1;
/// Largest `model.json` that is read: a million column names.
const MAX_DESCRIPTION: u64 = 64 << 20;

/// `model.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: u32,
    weights: WeightsFile,
    model: Description,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WeightsFile {
    file: String,
    sha256: String,
}

/// Makes the folder, and refuses one that holds something else.
pub(super) fn prepare(folder: &Path) -> Result<()> {
    let unusable = |e: &std::io::Error| {
        Error::file(
            folder,
            format!("cannot be used: {e}"),
            "name a folder that can be written",
        )
    };
    fs::create_dir_all(folder).map_err(|e| unusable(&e))?;
    let mut entries = fs::read_dir(folder).map_err(|e| unusable(&e))?.flatten();
    if !folder.join(DESCRIPTION).exists() && entries.any(|entry| !is_ours(&entry.file_name().to_string_lossy())) {
        return Err(Error::file(
            folder,
            "has files, and none of them is model.json",
            "name an empty folder, or that of a model to replace",
        ));
    }
    // A trial, so that a run of hours does not end with this.
    let trial = folder.join(".trial");
    write_atomically(&trial, |w| w.write_all(b"may be removed"))?;
    fs::remove_file(&trial).map_err(|e| unusable(&e))
}

/// Whether a file is one that an interrupted save may have left.
fn is_ours(name: &str) -> bool {
    is_weights(name) || name.starts_with(".trial") || is_partial(name)
}

/// Whether a file never got its name.
fn is_partial(name: &str) -> bool {
    name.starts_with(".weights-") || name.starts_with(".model.json")
}

/// Whether whoever wrote a file must have ended.
fn is_abandoned(entry: &fs::DirEntry) -> bool {
    const LONG: Duration = Duration::from_secs(3600);
    let modified = entry.metadata().and_then(|m| m.modified()).ok();
    modified.and_then(|m| m.elapsed().ok()).is_some_and(|age| age > LONG)
}

fn is_weights(name: &str) -> bool {
    name.starts_with(WEIGHTS.0) && name.ends_with(WEIGHTS.1)
}

pub(super) fn save(model: &Model, folder: &Path) -> Result<()> {
    prepare(folder)?;
    let bytes = model.weights.to_bytes()?;
    let hash = sha256([&bytes[..]]);
    let name = format!("{}{}{}", WEIGHTS.0, &hash[..16], WEIGHTS.1);
    write_atomically(&folder.join(&name), |w| w.write_all(&bytes))?;
    let file = File {
        format: FORMAT,
        weights: WeightsFile {
            file: name.clone(),
            sha256: hash,
        },
        model: model.description.clone(),
    };
    let path = folder.join(DESCRIPTION);
    let text = serde_json::to_string_pretty(&file)
        .map_err(|e| Error::file(&path, format!("cannot be written: {e}"), "use finite numbers"))?;
    // From here on the folder is the new model; until here it was the old one.
    write_atomically(&path, |w| writeln!(w, "{text}"))?;
    // What the old model, or a killed process, left.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let other = entry.file_name();
        let other = other.to_string_lossy();
        let is_old = is_weights(&other) && other != name.as_str();
        if is_old || (is_partial(&other) && is_abandoned(&entry)) {
            let _ = fs::remove_file(entry.path());
        }
    }
    // Another process that saved into the folder at the same time took this file for an old one.
    if !folder.join(&name).exists() {
        write_atomically(&folder.join(&name), |w| w.write_all(&bytes))?;
    }
    Ok(())
}

pub(super) fn load(folder: &Path) -> Result<Model> {
    // A save that ends meanwhile removes the weights of the description that was just read.
    const ATTEMPTS: usize = 3;
    for _ in 1..ATTEMPTS {
        if let Ok(model) = try_load(folder) {
            return Ok(model);
        }
    }
    try_load(folder)
}

fn try_load(folder: &Path) -> Result<Model> {
    let path = folder.join(DESCRIPTION);
    let refuse = |message: String| Error::file(&path, message, "`meganeura train --out` writes such folders");
    let size = fs::metadata(&path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::file(
            folder,
            "is no model's folder: it has no model.json",
            "name a folder that `meganeura train --out` wrote",
        ),
        _ => refuse(format!("cannot be read: {e}")),
    })?;
    if !size.is_file() || size.len() > MAX_DESCRIPTION {
        return Err(refuse(format!("is no description: {} bytes", size.len())));
    }
    let text = fs::read_to_string(&path).map_err(|e| refuse(format!("cannot be read: {e}")))?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| refuse(format!("is damaged: {e}")))?;
    match value.get("format").and_then(serde_json::Value::as_u64) {
        Some(format) if format == u64::from(FORMAT) => {}
        Some(format) => {
            return Err(Error::file(
                &path,
                format!("is of the format {format}, and this program reads format {FORMAT}"),
                "use the version of meganeura that wrote it, or train again",
            ));
        }
        None => return Err(refuse("is no description of a model: it has no format".into())),
    }
    let File { weights, model, .. } = serde_json::from_value(value).map_err(|e| refuse(format!("is damaged: {e}")))?;
    model.check().map_err(&refuse)?;
    // The name comes from a file: it must not lead out of the folder.
    if !is_weights(&weights.file) || weights.file.contains(['/', '\\']) {
        return Err(refuse(format!(
            "names the weights '{}', which is no name of such a file",
            weights.file
        )));
    }
    let file = folder.join(&weights.file);
    let again = "copy the whole folder again, or train again";
    let bytes = fs::read(&file).map_err(|e| Error::file(&file, format!("cannot be read: {e}"), again))?;
    if sha256([&bytes[..]]) != weights.sha256 {
        return Err(Error::file(
            &file,
            "is damaged: its hash is not the one in model.json",
            again,
        ));
    }
    let weights = Weights::parse(&file, &bytes)?;
    Ok(Model {
        description: model,
        weights,
    })
}
