//! Checkpoints: folders from which an interrupted run resumes.
//!
//! `checkpoint.json` is a small manifest. It names a
//! [safetensors](https://github.com/huggingface/safetensors) file with its length and SHA-256. That
//! file holds the parameters under their names, states (the optimizer's among them) as
//! `state/NAME`, the best weights of early stopping as `best/parameter/NAME` and `best/state/NAME`,
//! and in its metadata, as RON, everything else that the following steps depend on.
//!
//! A checkpoint is written next to the previous one: first the tensors, under a unique name, then
//! the manifest by a rename; then the old tensors are removed. If the process is killed at any
//! moment, the folder holds a complete checkpoint.
//!
//! A run holds a lock on its folder, so that no other run writes into it; the partial files of a
//! killed run are removed.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;

use meganeura_core::files::{FolderLock, clean_partial_files, read_limited, sha256, sha256_of, write_atomically};
use meganeura_core::plan::TensorView as PlanTensor;
use meganeura_core::session::{Progress, ShardedState};
use meganeura_core::{DType, Error, Session, TensorType, Weight, Weights as Tensors};
use safetensors::tensor::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};

use super::checkpoints::{Checkpoints, MANIFEST};
use super::distributed;
use super::early_stopping::{Tracker, Weights};
use super::{BestEvaluation, EarlyStopping, EpochReport, Evaluation, TrainConfig, TrainError, Trainer};
use crate::data::Dataset;

/// Version of the file format.
const FORMAT: u32 = 1;
/// Key of the run in the metadata of the tensors.
const RUN: &str = "meganeura";
/// Maximum length of a manifest.
const MAX_MANIFEST_BYTES: u64 = 1 << 16;
/// Maximum of all counters: no run gets this far, and larger numbers in a file could overflow.
const MAX_COUNT: u64 = 1 << 53;
const STATE: &str = "state/";
const BEST_PARAMETER: &str = "best/parameter/";
const BEST_STATE: &str = "best/state/";

#[derive(Serialize, Deserialize)]
struct Manifest {
    format: u32,
    file: String,
    bytes: u64,
    sha256: String,
}

/// The state of a run, without its tensors.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RunState {
    /// Settings that must not change, by name: data, and settings that determine the result of a
    /// step.
    pub(super) settings: Vec<(String, String)>,
    /// Counters of the training session.
    pub(super) progress: Progress,
    /// Number of epochs begun by all runs of the trainer.
    pub(super) epochs_begun: u64,
    /// Number of completed steps of the current epoch; `None` between epochs.
    pub(super) in_epoch: Option<usize>,
    /// Number of completed steps of the run.
    pub(super) total: u64,
    /// Learning rate of the last step.
    pub(super) learning_rate: f32,
    /// Last evaluation, with the number of steps before it.
    pub(super) evaluated: Option<(u64, Evaluation)>,
    /// Completed epochs.
    pub(super) reports: Vec<EpochReport>,
    /// Best evaluation, and the number of evaluations since.
    pub(super) best: Option<BestEvaluation>,
    pub(super) since: usize,
}

/// Returns the settings that determine the following steps and the end of the run, but are not in
/// the tensors. A run only resumes with equal settings.
pub(super) fn settings(trainer: &Trainer, data: &Dataset, test: Option<&Dataset>) -> Vec<(String, String)> {
    let (config, plan) = (&trainer.config, trainer.training.plan());
    let pairs = [
        ("seed", config.seed.to_string()),
        ("batch size", config.batch_size.to_string()),
        (
            "order of the examples",
            format!("shuffle {}, {:?}", config.shuffle, config.remainder),
        ),
        ("augmentation", format!("{:?}", config.augmentation)),
        ("training data", shapes(data)),
        ("labels of the training data", hash_of_labels(data)),
        ("early stopping", early_stopping(config, test)),
        ("precision", plan.precision.to_string()),
        (
            "loss scale",
            plan.loss_scaling.map_or_else(|| "none".into(), |s| s.to_string()),
        ),
    ];
    let later = [
        ("features of the training data", hash_of_features(data)),
        ("learning rate", config.learning_rate.to_string()),
        ("schedule", format!("{:?}", config.schedule)),
        ("warm-up", format!("{:?}", config.warmup)),
        ("optimizer", format!("{:?}", config.optimizer)),
        ("limit of the gradients", format!("{:?}", config.clip)),
        ("accumulation", config.accumulate.to_string()),
        ("parameter groups", format!("{:?}", config.groups)),
    ];
    let pairs = pairs.into_iter().chain(later);
    let mut pairs: Vec<(String, String)> = pairs.map(|(name, value)| (name.to_owned(), value)).collect();
    // Only if they are set: checkpoints from before these settings existed can still be resumed.
    if let Some(weights) = &config.class_weights {
        pairs.push(("class weights".into(), format!("{weights:?}")));
    }
    if config.label_smoothing != 0.0 {
        pairs.push(("label smoothing".into(), config.label_smoothing.to_string()));
    }
    pairs
}

fn shapes(data: &Dataset) -> String {
    format!("{} examples of shape {:?}", data.len(), data.feature_shape())
}

/// Hashes the features that the model reads, so that scaled and unscaled features differ.
fn hash_of_features(data: &Dataset) -> String {
    sha256_of(data.features().iter().map(|feature| feature.to_le_bytes()))
}

fn hash_of_labels(data: &Dataset) -> String {
    let labels = data.labels().iter().map(|label| label.to_le_bytes());
    let targets = data.targets().iter().map(|target| target.to_le_bytes());
    sha256_of(labels.chain(targets))
}

/// Returns the settings of early stopping, with the evaluations that it counts. Runs without early
/// stopping may change their evaluations, which do not affect any step.
fn early_stopping(config: &TrainConfig, test: Option<&Dataset>) -> String {
    let (Some(settings), Some(test)) = (config.early_stopping, test) else {
        return "off".into();
    };
    let EarlyStopping {
        patience,
        min_delta,
        metric,
        restore_best,
    } = settings;
    let labels = hash_of_labels(test);
    format!(
        "patience {patience}, at least {min_delta} better by {metric:?}, best weights kept: {restore_best}, evaluated \
         every {} epochs and {} steps on {} (labels {})",
        config.evaluate_every,
        config.evaluate_every_steps,
        shapes(test),
        &labels[..8]
    )
}

/// Begins a run: creates the folder, or resumes from its checkpoint. If that fails, the trainer and
/// the tracker are not changed.
pub(super) fn begin(
    checkpoints: &Checkpoints,
    trainer: &mut Trainer,
    tracker: &mut Tracker,
    settings: &[(String, String)],
    steps: usize,
) -> Result<(Option<RunState>, Option<FolderLock>), TrainError> {
    let config = &trainer.config;
    let mut lock = None;
    let found = match config.rank() {
        0 => find(checkpoints, &mut lock),
        _ => Ok(None),
    };
    // Only the first rank reads; the other ranks do not need access to the folder.
    let found = distributed::from_first(config, "the checkpoint", found)?;
    let manifest = checkpoints.folder.join(MANIFEST);
    let restored = found.map(|bytes| restore(&bytes, &manifest, trainer, tracker, settings, steps));
    Ok((restored.transpose()?, lock))
}

/// Reads the tensors of the checkpoint to resume from, if there is one. Creates and locks the
/// folder.
fn find(checkpoints: &Checkpoints, lock: &mut Option<FolderLock>) -> Result<Option<Vec<u8>>, TrainError> {
    let folder = &checkpoints.folder;
    fs::create_dir_all(folder).map_err(|e| {
        let message = format!("could not be created: {e}");
        Error::file(folder, message, "name a writable folder")
    })?;
    *lock = Some(FolderLock::take(folder)?);
    // The lock is held, so no other run uses the folder.
    clean_partial_files(folder, "step-");
    clean_partial_files(folder, MANIFEST);
    let manifest = folder.join(MANIFEST);
    if !manifest.exists() {
        return Ok(None);
    }
    if !checkpoints.resume {
        return Err(Error::file(
            folder,
            "contains the checkpoint of a run",
            "resume it (`--resume`, or `resume: true`), or name another folder",
        )
        .into());
    }
    read(folder, &manifest).map(Some)
}

fn damaged(path: &Path, message: impl Into<String>) -> TrainError {
    let remedy = "restore it from a copy, or start a new run in another folder; nothing was changed";
    Error::file(path, message, remedy).into()
}

/// Reads the tensors that the manifest names, and checks that they are undamaged.
fn read(folder: &Path, manifest: &Path) -> Result<Vec<u8>, TrainError> {
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |e: io::Error| damaged(&path, format!("could not be read: {e}"))
    };
    let text = read_limited(manifest, MAX_MANIFEST_BYTES).map_err(unreadable(manifest))?;
    let found: Manifest = serde_json::from_slice(&text).map_err(|e| damaged(manifest, format!("is damaged: {e}")))?;
    if found.format != FORMAT {
        let message = format!("has format {}, expected {FORMAT}", found.format);
        return Err(Error::file(manifest, message, "resume with the program that wrote it").into());
    }
    if Path::new(&found.file).file_name() != Some(found.file.as_ref()) {
        return Err(damaged(manifest, "is damaged: it names a file in another folder"));
    }
    let path = folder.join(&found.file);
    // The length is checked first, so that no more is read than was written.
    let length = fs::metadata(&path).map_err(unreadable(&path))?.len();
    if length != found.bytes {
        let message = format!("is damaged: it has {length} bytes, expected {}", found.bytes);
        return Err(damaged(&path, message));
    }
    let bytes = read_limited(&path, length).map_err(unreadable(&path))?;
    if sha256([&bytes[..]]) == found.sha256 {
        Ok(bytes)
    } else {
        Err(damaged(&path, "is damaged: its checksum does not match"))
    }
}

/// Restores the state, after everything was checked.
fn restore(
    bytes: &[u8],
    manifest: &Path,
    trainer: &mut Trainer,
    tracker: &mut Tracker,
    settings: &[(String, String)],
    steps: usize,
) -> Result<RunState, TrainError> {
    let fail = |message: String| damaged(manifest, format!("names tensors that are not a checkpoint: {message}"));
    let tensors = SafeTensors::deserialize(bytes).map_err(|e| fail(e.to_string()))?;
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| fail(e.to_string()))?;
    let run = metadata.metadata().as_ref().and_then(|m| m.get(RUN));
    let run = run.ok_or_else(|| fail("they contain no metadata of a run".into()))?;
    let state: RunState = ron::from_str(run).map_err(|e| fail(e.to_string()))?;
    let differs = |message: String| {
        let remedy = "resume with the original model, data and settings";
        TrainError::from(Error::file(
            manifest,
            format!("belongs to another run: {message}"),
            remedy,
        ))
    };
    let allowed = trainer
        .config
        .checkpoints
        .as_ref()
        .map_or(&[][..], |c| &c.allow_changes);
    check_settings(&state.settings, settings, allowed, manifest)?;
    if state.in_epoch.is_some_and(|step| step > steps) || state.in_epoch.is_some() && state.epochs_begun == 0 {
        return Err(fail("their step is beyond the end of the epoch".into()));
    }
    let progress = &state.progress;
    let counters = [
        state.total,
        state.epochs_begun,
        progress.steps,
        progress.updates,
        state.since as u64,
    ];
    // Without accumulation there is no buffer for the sum; that error is reported elsewhere.
    if counters.iter().any(|n| *n > MAX_COUNT)
        || trainer.config.accumulate > 1 && progress.accumulated > trainer.config.accumulate
    {
        return Err(fail("their counters are too large".into()));
    }
    let session = &mut trainer.training;
    let (parameters, states) = (session.plan().parameters(), session.plan().states());
    let parameters = parameters.iter().map(|view| (view.name.clone(), false, view));
    let states = states.iter().map(|view| (format!("{STATE}{}", view.name), true, view));
    // Name in the file, whether it is a state, and the tensor.
    let wanted: Vec<(String, bool, &PlanTensor)> = parameters.chain(states).collect();
    // States of other ranks are checked too, so that all ranks report the same error.
    let others = session.states_of_other_ranks().into_iter();
    let others: Vec<(String, TensorType)> = others
        .map(|state| (format!("{STATE}{}", state.name), TensorType::f32(state.shape)))
        .collect();
    let own = wanted.iter().map(|(name, _, view)| (name, &view.ty));
    for (name, ty) in own.chain(others.iter().map(|(name, ty)| (name, ty))) {
        let Ok(found) = tensors.tensor(name) else {
            return Err(differs(format!("it has no '{name}'")));
        };
        if Some(found.dtype()) != stored_as(ty.dtype) || found.shape() != ty.shape.dims() {
            let (dtype, shape) = (found.dtype(), found.shape());
            return Err(differs(format!("'{name}' is {dtype:?} {shape:?}, not {ty}")));
        }
    }
    let own = |name: &str| wanted.iter().any(|(w, ..)| w == name) || others.iter().any(|(other, _)| other == name);
    let is_best = |name: &str| name.starts_with(BEST_PARAMETER) || name.starts_with(BEST_STATE);
    if let Some(name) = tensors.names().into_iter().filter(|n| !own(n) && !is_best(n)).min() {
        return Err(differs(format!("the model has no '{name}'")));
    }
    let best = best_weights(&tensors, session).map_err(differs)?;
    session.try_set_progress(&state.progress)?;
    for (name, is_state, view) in &wanted {
        let Ok(found) = tensors.tensor(name) else { continue };
        match is_state {
            true => session.try_set_state(&view.name, &floats(found.data()))?,
            false => session.try_set_parameter_bytes(&view.name, found.data())?,
        }
    }
    trainer.epochs_begun = state.epochs_begun;
    tracker.go_on(state.best, state.since, best);
    Ok(state)
}

/// Settings that checkpoints of earlier versions do not contain; for such a checkpoint, their values are not compared.
const LATER: [&str; 8] = [
    "features of the training data",
    "learning rate",
    "schedule",
    "warm-up",
    "optimizer",
    "limit of the gradients",
    "accumulation",
    "parameter groups",
];

/// Compares the settings of a run with the saved ones, except for those that may differ.
fn check_settings(
    then: &[(String, String)],
    now: &[(String, String)],
    allowed: &[String],
    manifest: &Path,
) -> Result<(), TrainError> {
    let key = |name: &str| name.to_lowercase().replace(' ', "-");
    if let Some(unknown) = allowed
        .iter()
        .find(|a| !then.iter().chain(now).any(|(name, _)| key(name) == key(a)))
    {
        let names: Vec<String> = now.iter().map(|(name, _)| key(name)).collect();
        return Err(TrainError::Config {
            field: "checkpoints",
            message: format!(
                "'{unknown}' is not a setting that may change; there are {}",
                names.join(", ")
            ),
        });
    }
    let find = |list: &'_ [(String, String)], name: &str| list.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
    let new = then
        .iter()
        .map(|(name, _)| name)
        .filter(|name| find(now, name).is_none());
    let (mut names, mut fixed, mut differences) = (Vec::new(), Vec::new(), Vec::new());
    for name in now.iter().map(|(name, _)| name).chain(new) {
        let (before, after) = (find(then, name), find(now, name));
        let is_unknown = before.is_none() && LATER.contains(&name.as_str());
        if before == after || is_unknown {
            continue;
        }
        if let (Some(before), Some(after)) = (&before, &after)
            && changes_states(name, before, after)
        {
            fixed.push(name.as_str());
        } else if allowed.iter().any(|a| key(a) == key(name)) {
            continue;
        }
        let before = before.unwrap_or_else(|| "not noted".into());
        differences.push(match after {
            Some(after) => format!("{name} was {before}, and is {after}"),
            None => format!("{name} was {before}, and is not set"),
        });
        names.push(key(name));
    }
    if names.is_empty() {
        return Ok(());
    }
    let remedy = if fixed.is_empty() {
        format!(
            "if the change is intended, allow it (`--allow-changes {}`)",
            names.join(",")
        )
    } else {
        format!(
            "the saved state does not support another value of: {}",
            fixed.join(", ")
        )
    };
    let remedy = format!("resume with the original model, data and settings; {remedy}");
    let message = format!("belongs to another run: {}", differences.join("; "));
    Err(Error::file(manifest, message, remedy).into())
}

/// Returns whether the new value of a setting changes the states of the session, so that the checkpoint does not fit.
fn changes_states(name: &str, before: &str, after: &str) -> bool {
    let part = |text: &str| -> String {
        match name {
            // The name of the rule without its hyper-parameters.
            "optimizer" => text.split(' ').next().unwrap_or_default().into(),
            "limit of the gradients" => text.chars().take_while(|c| !c.is_ascii_digit()).collect(),
            "accumulation" => (text != "1").to_string(),
            "loss scale" => (text != "none").to_string(),
            "parameter groups" => text
                .split("patterns: ")
                .skip(1)
                .map(|group| group.split(", learning_rate_scale").next().unwrap_or_default())
                .collect(),
            _ => String::new(),
        }
    };
    part(before) != part(after)
}

/// Returns the weights that early stopping keeps, if they fit the session.
fn best_weights(tensors: &SafeTensors, session: &Session) -> Result<Weights, String> {
    let own: HashMap<String, usize> = {
        let plan = session.plan();
        let parameters = plan.parameters().into_iter();
        let parameters = parameters.map(|v| (format!("{BEST_PARAMETER}{}", v.name), v.ty.numel()));
        let states = plan.states().into_iter();
        let states = states.map(|v| (format!("{BEST_STATE}{}", v.name), v.ty.numel()));
        parameters.chain(states).collect()
    };
    let mut weights = Weights::default();
    for (name, tensor) in tensors.iter() {
        let lists = [
            (BEST_PARAMETER, &mut weights.parameters),
            (BEST_STATE, &mut weights.states),
        ];
        for (prefix, list) in lists {
            let Some(own_name) = name.strip_prefix(prefix) else {
                continue;
            };
            let values = floats(tensor.data());
            if tensor.dtype() != Dtype::F32 || own.get(name) != Some(&values.len()) {
                return Err(format!("'{name}' does not fit the model"));
            }
            list.push((own_name.to_owned(), values));
        }
    }
    Ok(weights)
}

/// Returns the safetensors type for a dtype, if there is one.
fn stored_as(dtype: DType) -> Option<Dtype> {
    match dtype {
        DType::F32 => Some(Dtype::F32),
        DType::F16 => Some(Dtype::F16),
        DType::BF16 => Some(Dtype::BF16),
        DType::U32 => Some(Dtype::U32),
        DType::I32 => Some(Dtype::I32),
        _ => None,
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.chunks_exact(4);
    words.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Writes a checkpoint and removes the previous one. `others` are states of the optimizer on other
/// ranks.
pub(super) fn save(
    folder: &Path,
    state: &RunState,
    session: &mut Session,
    others: &[(ShardedState, Vec<f32>)],
    best: &Weights,
) -> Result<(), TrainError> {
    let bytes = encode(folder, state, session, others, best)?;
    let hash = sha256([&bytes[..]]);
    let file = format!("step-{:08}-{}.safetensors", state.total, &hash[..8]);
    write_atomically(&folder.join(&file), |w| w.write_all(&bytes))?;
    let manifest = Manifest {
        format: FORMAT,
        bytes: bytes.len() as u64,
        sha256: hash,
        file: file.clone(),
    };
    let path = folder.join(MANIFEST);
    let text = serde_json::to_vec_pretty(&manifest).map_err(|e| damaged(&path, e.to_string()))?;
    write_atomically(&path, |w| w.write_all(&text))?;
    clean(folder, &file);
    Ok(())
}

/// Removes files of earlier checkpoints, and partial files of killed processes.
fn clean(folder: &Path, current: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("step-") && name.ends_with(".safetensors") && name != current {
            // Errors are ignored: a remaining file only takes space.
            let _ = fs::remove_file(entry.path());
        }
    }
    clean_partial_files(folder, "step-");
}

fn encode(
    folder: &Path,
    state: &RunState,
    session: &mut Session,
    others: &[(ShardedState, Vec<f32>)],
    best: &Weights,
) -> Result<Vec<u8>, TrainError> {
    let unwritable = |message: String| {
        TrainError::from(Error::file(
            folder,
            format!("cannot hold this model: {message}"),
            "rename the parameter: names that begin with 'state/' or 'best/' are taken",
        ))
    };
    let mut tensors = Tensors::default();
    let mut add = |name: String, tensor: meganeura_core::Result<Weight>| {
        if tensors.get(&name).is_some() {
            return Err(unwritable(format!("two of its tensors are named '{name}'")));
        }
        tensors.insert(name, tensor.map_err(|e| unwritable(e.to_string()))?);
        Ok(())
    };
    for view in session.plan().parameters() {
        // Frozen parameters may be stored in fewer bits.
        let bytes = session.try_read_parameter_bytes(&view.name)?;
        add(view.name, Weight::from_bytes(view.ty, bytes))?;
    }
    let mut add = |name, shape: &[usize], values: &[f32]| add(name, Weight::f32(shape, values));
    for view in session.plan().states() {
        let values = session.try_read_state(&view.name)?;
        add(format!("{STATE}{}", view.name), view.ty.shape.dims(), &values)?;
    }
    for (state, values) in others {
        add(format!("{STATE}{}", state.name), state.shape.dims(), values)?;
    }
    for (prefix, list) in [(BEST_PARAMETER, &best.parameters), (BEST_STATE, &best.states)] {
        for (name, values) in list {
            add(format!("{prefix}{name}"), &[values.len()], values)?;
        }
    }
    let run = ron::to_string(state).map_err(|e| unwritable(e.to_string()))?;
    let bytes = tensors.to_bytes_with_metadata(RUN, &run);
    bytes.map_err(|e| unwritable(e.to_string()))
}
