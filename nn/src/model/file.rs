//! Reading and writing of the files of a model folder.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use meganeura_core::files::{FolderKind, NewFolder, old_of, place_of, read_limited, sha256};
use meganeura_core::host_memory::collected;
use meganeura_core::{Weight, Weights};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::architecture::Leaf;
use super::{Model, ModelError, Tensor, check};

/// Version of the file format.
const FORMAT: u64 = 1;
/// Maximum length of `model.json`: mostly class names and categories.
const MAX_JSON_BYTES: u64 = 1 << 26;
/// Maximum number of attempts to read a folder that a program replaces meanwhile.
const ATTEMPTS: usize = 10;

const JSON: &str = "model.json";
const WEIGHTS: &str = "model.safetensors";
/// Contents of a folder that a model may replace.
pub(super) const FOLDER: FolderKind = FolderKind {
    names: &[JSON, WEIGHTS],
    marker: JSON,
    // Another program's file may have the same name.
    is_own: |text| {
        let fields = serde_json::from_slice::<Value>(text).ok();
        fields.is_some_and(|fields| fields.get("format").is_some() && fields.get("architecture").is_some())
    },
};

/// Writes a folder with the two files of a model, replacing an existing one.
pub(super) fn save(model: &Model, folder: &Path) -> Result<(), ModelError> {
    let (json, weights) = encode(model, folder)?;
    let new = NewFolder::begin(folder, FOLDER)?;
    for (name, bytes) in [(WEIGHTS, weights), (JSON, json)] {
        let path = new.path().join(name);
        fs::write(&path, bytes).map_err(ModelError::io(&path, "written"))?;
    }
    Ok(new.put()?)
}

/// The description of the weights in `model.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WeightsFile {
    file: String,
    bytes: u64,
    sha256: String,
}

/// Returns the contents of both files; `folder` is their destination.
fn encode(model: &Model, folder: &Path) -> Result<(Vec<u8>, Vec<u8>), ModelError> {
    let unwritable = |field: &'static str, message: String| ModelError::Invalid { field, message };
    let mut weights = Weights::default();
    for Tensor { leaf, values } in &model.tensors {
        let weight =
            Weight::f32(&leaf.shape, values).map_err(|e| unwritable("weights", format!("'{}': {e}", leaf.name)))?;
        weights.insert(&leaf.name, weight);
    }
    let weights = weights.to_bytes().map_err(|e| unwritable("weights", e.to_string()))?;
    let value = |field: &'static str, value: Result<Value, serde_json::Error>| {
        value.map_err(|e| unwritable(field, format!("{e}; it was for {}", folder.display())))
    };
    let contents = json!({
        "format": FORMAT,
        "program": super::program(),
        "architecture": value("architecture", serde_json::to_value(&model.architecture))?,
        "task": value("task", serde_json::to_value(&model.task))?,
        "preprocessing": value("preprocessing", serde_json::to_value(&model.preprocessing))?,
        "metrics": &model.metrics,
        "training": &model.training,
        "weights": value("weights", serde_json::to_value(WeightsFile {
            file: WEIGHTS.to_owned(),
            bytes: weights.len() as u64,
            sha256: sha256([&weights[..]]),
        }))?,
    });
    let mut text = serde_json::to_vec_pretty(&contents).map_err(|e| unwritable("model.json", e.to_string()))?;
    text.push(b'\n');
    Ok((text, weights))
}

/// Reads the model of a folder, and tries again if another program replaces the folder meanwhile.
pub(super) fn load(folder: &Path) -> Result<Model, ModelError> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        // On systems without an atomic exchange of folders, the old folder has another name for a
        // moment while a model is saved.
        let place = place_of(folder);
        let json = match read_json(&place) {
            Ok(json) => json,
            // Retry if the folder exists again, or under another name.
            Err(_) if place != folder => continue,
            Err(_) if !folder.exists() && old_of(folder).is_some_and(|old| old.is_dir()) => continue,
            Err(error) => return Err(error),
        };
        match parse(&place, &json) {
            Ok(model) => return Ok(model),
            // Both files must come from the same save.
            Err(error) if read_json(&place).ok().as_ref() == Some(&json) => return Err(error),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| ModelError::NotFound {
        folder: folder.to_owned(),
        message: "it is replaced repeatedly".into(),
    }))
}

/// Reads the contents of `model.json`.
fn read_json(folder: &Path) -> Result<Vec<u8>, ModelError> {
    let missing = |message: &str| ModelError::NotFound {
        folder: folder.to_owned(),
        message: message.to_owned(),
    };
    match fs::metadata(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(missing("the folder does not exist")),
        Err(e) => return Err(ModelError::io(folder, "read")(e)),
        Ok(found) if !found.is_dir() => return Err(missing("it is a file")),
        Ok(_) => {}
    }
    let path = folder.join(JSON);
    match read(&path, MAX_JSON_BYTES) {
        Err(ModelError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Err(missing("the folder has no model.json"))
        }
        read => read,
    }
}

/// Reads a file of at most `limit` bytes.
fn read(path: &Path, limit: u64) -> Result<Vec<u8>, ModelError> {
    read_limited(path, limit).map_err(|e| match e.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge => ModelError::Damaged {
            file: path.to_owned(),
            message: e.to_string(),
        },
        _ => ModelError::io(path, "read")(e),
    })
}

/// Reads the model of a folder, given its `model.json`.
fn parse(folder: &Path, json: &[u8]) -> Result<Model, ModelError> {
    let path = folder.join(JSON);
    let fields = Fields::of(&path, json)?;
    fields.check_format()?;
    let architecture = fields.get("architecture")?;
    let task = fields.get("task")?;
    let preprocessing = fields.get("preprocessing")?;
    let program = fields.get("program")?;
    let weights: WeightsFile = fields.get("weights")?;
    check(&architecture, &task, &preprocessing).map_err(|(field, message)| fields.wrong(field, message))?;
    if weights.file != WEIGHTS {
        let message = format!("the file is '{}', not '{WEIGHTS}'", weights.file);
        return Err(fields.wrong("weights", message));
    }
    let leaves = architecture
        .leaves()
        .map_err(|e| fields.wrong("architecture", e.to_string()))?;
    let tensors = read_weights(&folder.join(WEIGHTS), &weights, leaves)?;
    Ok(Model {
        architecture,
        task,
        preprocessing,
        tensors,
        metrics: fields.any("metrics"),
        training: fields.any("training"),
        program,
    })
}

/// The fields of `model.json`.
struct Fields<'f> {
    file: &'f Path,
    fields: Map<String, Value>,
}

impl<'f> Fields<'f> {
    fn of(file: &'f Path, json: &[u8]) -> Result<Self, ModelError> {
        let damaged = |message: String| ModelError::Damaged {
            file: file.to_owned(),
            message,
        };
        match serde_json::from_slice(json) {
            Ok(Value::Object(fields)) => Ok(Fields { file, fields }),
            Ok(_) => Err(damaged("it is JSON, but not an object".into())),
            Err(error) => Err(damaged(format!("it is not JSON: {error}"))),
        }
    }

    fn wrong(&self, field: &str, message: impl Into<String>) -> ModelError {
        ModelError::Field {
            file: self.file.to_owned(),
            field: field.to_owned(),
            message: message.into(),
        }
    }

    /// Checks the version before all other fields, whose form depends on it.
    fn check_format(&self) -> Result<(), ModelError> {
        match self.fields.get("format").map(Value::as_u64) {
            Some(Some(FORMAT)) => Ok(()),
            Some(Some(found)) => Err(ModelError::Version {
                file: self.file.to_owned(),
                found,
                supported: FORMAT,
            }),
            Some(None) => Err(self.wrong("format", "it is not a whole number")),
            None => Err(self.wrong("format", "it is missing; this is not the model.json of a model")),
        }
    }

    fn get<T: DeserializeOwned>(&self, field: &str) -> Result<T, ModelError> {
        let value = self
            .fields
            .get(field)
            .ok_or_else(|| self.wrong(field, "it is missing"))?;
        T::deserialize(value).map_err(|e| self.wrong(field, e.to_string()))
    }

    fn any(&self, field: &str) -> Value {
        self.fields.get(field).cloned().unwrap_or_default()
    }
}

/// Reads the tensors of a file, and checks that they are undamaged and fit the model.
fn read_weights(path: &Path, expected: &WeightsFile, leaves: Vec<Leaf>) -> Result<Vec<Tensor>, ModelError> {
    let damaged = |message: String| ModelError::Damaged {
        file: path.to_owned(),
        message,
    };
    let bytes = read(path, expected.bytes)?;
    if bytes.len() as u64 != expected.bytes {
        let message = format!(
            "it has {} bytes, but model.json specifies {}",
            bytes.len(),
            expected.bytes
        );
        return Err(damaged(message));
    }
    if sha256([&bytes[..]]) != expected.sha256 {
        return Err(damaged(
            "its contents do not match the SHA-256 sum in model.json".into(),
        ));
    }
    let file = SafeTensors::deserialize(&bytes).map_err(|e| damaged(format!("it is not a safetensors file: {e}")))?;
    let wrong = |tensor: &str, message: String| ModelError::Tensor {
        file: path.to_owned(),
        tensor: tensor.to_owned(),
        message,
    };
    let mut found: BTreeMap<String, TensorView> = file.tensors().into_iter().collect();
    let mut tensors = Vec::with_capacity(leaves.len());
    for leaf in leaves {
        let tensor = found.remove(&leaf.name).ok_or_else(|| {
            wrong(
                &leaf.name,
                format!("it is missing; the architecture needs it as {:?}", leaf.shape),
            )
        })?;
        if tensor.dtype() != Dtype::F32 || tensor.shape() != leaf.shape {
            let message = format!(
                "found {:?} {:?}, expected F32 {:?} for the architecture",
                tensor.dtype(),
                tensor.shape(),
                leaf.shape
            );
            return Err(wrong(&leaf.name, message));
        }
        let words = tensor.data().chunks_exact(4);
        let values = words.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let values = collected("its values", values).map_err(|e| wrong(&leaf.name, e.to_string()))?;
        if let Some(at) = values.iter().position(|v| !v.is_finite()) {
            return Err(wrong(&leaf.name, format!("value {at} is {}", values[at])));
        }
        tensors.push(Tensor { leaf, values });
    }
    match found.keys().next() {
        None => Ok(tensors),
        Some(extra) => Err(wrong(extra, "the architecture has no such tensor".into())),
    }
}
