//! Communication between the ranks of a distributed run, in addition to gradients.

use meganeura_core::Error;
use meganeura_core::distributed::{Communicator, agree};
use meganeura_core::error::{Collective, CollectiveError, CollectiveFailure};
use meganeura_core::plan::optimizer::Update;
use meganeura_core::select::DEVICE_VARIABLE;
use serde_json::Value;

use super::{TrainConfig, TrainError, Trainer};
use crate::data::Dataset;

/// Returns the seed of dropout masks. It differs between ranks, because equal masks for different
/// examples would reduce the variety of masks.
pub(super) fn dropout_seed(config: &TrainConfig) -> u64 {
    let rank = config.rank() as u64;
    config.seed.wrapping_add(rank.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// Returns the update that a training session is built with. With sharded states it is attached later, so that no rank
/// ever allocates the states of all parameters. But groups determine which parameters are stored as one, and a memory
/// budget counts the states, so these cases need the update from the start.
pub(super) fn first_update(config: &TrainConfig) -> Option<Update> {
    let later = config.zero1 && config.ranks().is_some() && config.groups.is_empty() && config.memory_budget.is_none();
    (!later).then(|| config.update())
}

/// Returns the selector of the training device: the requested one, or that of the communicator if
/// there is no request or only its backend is requested.
pub(super) fn device(config: &TrainConfig) -> Option<String> {
    let asked = config.device.clone();
    let Some(own) = config.ranks().and_then(|communicator| communicator.device()) else {
        return asked;
    };
    let of_environment = std::env::var(DEVICE_VARIABLE)
        .ok()
        .filter(|text| !text.trim().is_empty());
    match asked.as_ref().or(of_environment.as_ref()) {
        None => Some(own),
        Some(backend) if own.split(':').next() == Some(backend.trim()) => Some(own),
        Some(_) => asked,
    }
}

/// Begins a run: compares settings and data between the ranks, and copies the weights of the first
/// rank to all.
pub(super) fn begin(
    trainer: &mut Trainer,
    settings: &[(String, String)],
    test: Option<&Dataset>,
    steps: usize,
) -> Result<(), TrainError> {
    let config = &trainer.config;
    let Some(communicator) = config.ranks() else {
        return Ok(());
    };
    let mut facts: Vec<(&str, String)> = settings.iter().map(|(name, value)| (&**name, value.clone())).collect();
    let json = config.to_json();
    if let Value::Object(fields) = &json {
        facts.extend(fields.iter().map(|(name, value)| (&**name, value.to_string())));
    }
    let checkpoints = config.checkpoints.as_ref();
    facts.extend([
        ("number of steps in an epoch", steps.to_string()),
        ("number of test examples", test.map_or(0, Dataset::len).to_string()),
        ("evaluate_every", config.evaluate_every.to_string()),
        ("evaluate_every_steps", config.evaluate_every_steps.to_string()),
        ("loss_every", config.loss_every.to_string()),
        ("statistics_every", config.statistics_every.to_string()),
        ("zero1", config.zero1.to_string()),
        (
            "steps between checkpoints",
            checkpoints.map_or_else(|| "none".into(), |c| c.every.to_string()),
        ),
        ("number of epochs begun", trainer.epochs_begun.to_string()),
    ]);
    agree(&**communicator, "the settings", &facts)?;
    trainer.training.try_broadcast_parameters(0)?;
    Ok(())
}

/// Returns sums of numbers over all ranks, added up in the order of the ranks: bitwise equal on
/// each.
pub(super) fn sums(communicator: &dyn Communicator, what: &str, own: &[f64]) -> Result<Vec<f64>, TrainError> {
    let bytes: Vec<u8> = own.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut all = vec![0; bytes.len() * communicator.size()];
    communicator.all_gather(what, &bytes, &mut all)?;
    let mut sums = vec![0.0; own.len()];
    for (at, value) in all.chunks_exact(8).enumerate() {
        let mut word = [0; 8];
        word.copy_from_slice(value);
        sums[at % own.len()] += f64::from_le_bytes(word);
    }
    Ok(sums)
}

/// Returns the mean of a number over all ranks.
pub(super) fn mean(config: &TrainConfig, what: &str, own: f64) -> Result<f64, TrainError> {
    match config.ranks() {
        None => Ok(own),
        Some(ranks) => Ok(sums(&**ranks, what, &[own])?[0] / ranks.size() as f64),
    }
}

/// Returns true if `own` is true on any rank.
pub(super) fn any(config: &TrainConfig, what: &str, own: bool) -> Result<bool, TrainError> {
    let Some(ranks) = config.ranks() else { return Ok(own) };
    let mut all = vec![0; ranks.size()];
    ranks.all_gather(what, &[u8::from(own)], &mut all)?;
    Ok(all.iter().any(|&said| said != 0))
}

/// Waits for the first rank's result: if it failed, all ranks fail.
pub(super) fn done_by_first(config: &TrainConfig, what: &str, done: Result<(), TrainError>) -> Result<(), TrainError> {
    let outcome = done.map(|()| Some(Vec::new()));
    from_first(config, what, outcome).map(|_| ())
}

/// Distributes bytes of the first rank, if it has any, or its error to every rank.
pub(super) fn from_first(
    config: &TrainConfig,
    what: &str,
    own: Result<Option<Vec<u8>>, TrainError>,
) -> Result<Option<Vec<u8>>, TrainError> {
    const NONE: u64 = u64::MAX;
    const FAILED: u64 = u64::MAX - 1;
    let Some(ranks) = config.ranks() else { return own };
    let mut length = match &own {
        Ok(Some(bytes)) => bytes.len() as u64,
        Ok(None) => NONE,
        Err(_) => FAILED,
    }
    .to_le_bytes();
    ranks.broadcast(what, 0, &mut length)?;
    let own = own?;
    match u64::from_le_bytes(length) {
        NONE => Ok(None),
        FAILED => Err(Error::collective(CollectiveError {
            rank: ranks.rank(),
            size: ranks.size(),
            operation: Collective::Broadcast,
            tensor: what.to_owned(),
            failure: CollectiveFailure::PeerLost {
                peer: 0,
                reason: "it could not read or write it".into(),
            },
        })
        .into()),
        length => {
            let mut bytes = own.unwrap_or_default();
            bytes.resize(length as usize, 0);
            if length > 0 {
                ranks.broadcast(what, 0, &mut bytes)?;
            }
            Ok(Some(bytes))
        }
    }
}
