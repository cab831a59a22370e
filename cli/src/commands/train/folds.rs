//! Choice of the network and of the number of epochs for small tables, by cross-validation.

use std::collections::HashMap;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use meganeura::cpu::CpuDevice;
use meganeura::nn::data::{Dataset, Remainder};
use meganeura::nn::model::{Architecture, Loss, mean_and_deviation};
use meganeura::nn::trainer::{Evaluation, TrainConfig, TrainError, Trainer};

use super::interrupt::Interrupt;
use crate::output::line;
use crate::signals;

/// Number of training examples from which on one validation part is large enough.
pub(super) const MANY: usize = 2000;
/// Maximum number of epochs of a larger table, whose validation examples stop the run.
pub(super) const LARGE_EPOCHS: usize = 80;
/// Minimum number of examples of a fold.
const MIN_FOLD: usize = 4;
/// Minimum relative decrease of the loss for which more or fewer epochs are tried further.
const MIN_GAIN: f64 = 0.03;
/// Maximum factor between the default number of epochs and the chosen one.
const MAX_FACTOR: usize = 16;

/// A network to compare.
#[derive(Clone, Debug)]
pub(super) struct Network {
    /// Name in reports.
    pub(super) name: &'static str,
    pub(super) architecture: Architecture,
    /// Peak learning rate.
    pub(super) rate: f32,
}

/// A measured network and number of epochs.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) network: Network,
    pub(super) epochs: usize,
    /// Mean loss on the examples that a fold holds out.
    pub(super) loss: f64,
    /// Accuracy, or R² of regression, of each fold.
    scores: Vec<f64>,
}

impl Candidate {
    /// Returns mean and standard deviation of the scores.
    pub(super) fn score(&self) -> (f64, f64) {
        mean_and_deviation(&self.scores)
    }
}

/// Result of a cross-validation.
pub(super) struct Folds {
    pub(super) folds: usize,
    pub(super) candidates: Vec<Candidate>,
}

impl Folds {
    /// Returns the candidate with the lowest loss, the first of equals.
    pub(super) fn best(&self) -> Option<&Candidate> {
        self.candidates.iter().min_by(|a, b| a.loss.total_cmp(&b.loss))
    }
}

/// Runs of a cross-validation.
pub(super) struct FoldRuns<'a> {
    pub(super) folds: usize,
    pub(super) train: &'a Dataset,
    /// Networks to compare.
    pub(super) networks: Vec<Network>,
    pub(super) loss: Loss,
    /// Settings with the default number of epochs.
    pub(super) config: &'a TrainConfig,
    /// True if the result of each candidate is printed.
    pub(super) prints: bool,
    /// The CPU device, whose threads train the folds at the same time; `None` on other devices.
    pub(super) cpu: Option<&'a CpuDevice>,
}

impl FoldRuns<'_> {
    /// For each network, doubles the number of epochs while the loss falls; if it does not fall at once, halves it while the loss
    /// falls. Returns `None` if a signal ended the runs, or there are too few examples.
    pub(super) fn choose(&self) -> Result<Option<Folds>, Box<dyn Error>> {
        let default = self.config.epochs;
        if self.train.len() < self.folds * MIN_FOLD || default == 0 {
            return Ok(None);
        }
        let parts = assigned(self.train, self.folds);
        let mut candidates = Vec::new();
        for network in &self.networks {
            let mut measure = |epochs: usize| {
                let candidate = self.candidate(network, &parts, epochs)?;
                let loss = candidate.as_ref().map(|candidate| candidate.loss);
                candidates.extend(candidate);
                Ok::<_, Box<dyn Error>>(loss)
            };
            let Some(loss) = measure(default)? else {
                return Ok(None);
            };
            let mut best = (default, loss);
            for doubles in [true, false] {
                loop {
                    let epochs = if doubles { best.0 * 2 } else { best.0 / 2 };
                    if epochs == 0 || epochs > default * MAX_FACTOR || epochs * MAX_FACTOR < default {
                        break;
                    }
                    match measure(epochs)? {
                        None => return Ok(None),
                        Some(loss) if loss < best.1 * (1.0 - MIN_GAIN) => best = (epochs, loss),
                        Some(_) => break,
                    }
                }
                if best.0 > default {
                    break;
                }
            }
        }
        Ok(Some(Folds {
            folds: self.folds,
            candidates,
        }))
    }

    /// Holds out each fold, trains on the other folds, and evaluates on the held-out fold.
    fn candidate(
        &self,
        network: &Network,
        parts: &[usize],
        epochs: usize,
    ) -> Result<Option<Candidate>, Box<dyn Error>> {
        let results = Mutex::new(Vec::with_capacity(self.folds));
        let failed = AtomicBool::new(false);
        let run = |held_out: usize| {
            if !signals::happened() && !failed.load(Ordering::Relaxed) {
                let evaluation = self
                    .evaluate(network, parts, epochs, held_out)
                    .map_err(|e| e.to_string());
                failed.fetch_or(evaluation.is_err(), Ordering::Relaxed);
                results
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push((held_out, evaluation));
            }
        };
        match self.cpu {
            Some(cpu) => cpu.run(self.folds, &run),
            None => (0..self.folds).for_each(run),
        }
        if signals::happened() {
            return Ok(None);
        }
        let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        // Sums do not depend on which thread was faster.
        results.sort_by_key(|(held_out, _)| *held_out);
        let mut evaluations = Vec::with_capacity(self.folds);
        for (_, evaluation) in results {
            evaluations.push(evaluation?);
        }
        // Without an evaluation, the loss was not finite.
        let losses = evaluations
            .iter()
            .map(|evaluation| evaluation.map_or(f64::INFINITY, |e| e.loss));
        let found = Candidate {
            network: network.clone(),
            epochs,
            loss: losses.sum::<f64>() / self.folds as f64,
            scores: evaluations.iter().flatten().map(score).collect(),
        };
        if self.prints {
            let (mean, deviation) = found.score();
            let score = if self.train.is_regression() {
                format!("R² {mean:.4} ± {deviation:.4}")
            } else {
                format!("accuracy {:.2} ± {:.2} %", 100.0 * mean, 100.0 * deviation)
            };
            line(format_args!(
                "cross-validation with {} folds: {}, {epochs} epochs, loss {:.4}, {score}",
                self.folds, network.name, found.loss
            ))?;
        }
        Ok(Some(found))
    }

    /// Trains on all folds but one, and evaluates on this one. Returns `None` if the loss is not finite.
    fn evaluate(
        &self,
        network: &Network,
        parts: &[usize],
        epochs: usize,
        held_out: usize,
    ) -> Result<Option<Evaluation>, Box<dyn Error>> {
        let rows = |is_held_out: bool| -> Vec<usize> {
            let chosen = |row: &usize| (parts[*row] == held_out) == is_held_out;
            (0..self.train.len()).filter(chosen).collect()
        };
        let (seen, unseen) = (self.train.subset(&rows(false))?, self.train.subset(&rows(true))?);
        let config = TrainConfig {
            epochs,
            batch_size: self.config.batch_size.min(seen.len()),
            learning_rate: network.rate,
            remainder: Remainder::Keep,
            // Only the last evaluation counts.
            evaluate_every: 0,
            ..self.config.clone()
        };
        let graph = network.architecture.training_graph(config.batch_size, self.loss)?;
        let mut trainer = Trainer::from_graph(&graph, config)?;
        match trainer.fit(&seen, Some(&unseen), &mut Interrupt) {
            Ok(report) => Ok(report.evaluation),
            // Another network or number of epochs may be trainable with this learning rate.
            Err(TrainError::NonFiniteLoss { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the accuracy, or R² of regression.
fn score(evaluation: &Evaluation) -> f64 {
    match &evaluation.regression {
        Some(regression) => regression.r2,
        None => evaluation.accuracy(),
    }
}

/// Returns the fold of each example. Examples of a class are spread over the folds.
fn assigned(train: &Dataset, folds: usize) -> Vec<usize> {
    let mut next: HashMap<u32, usize> = HashMap::new();
    // Examples are in random order.
    (0..train.len())
        .map(|row| {
            let label = train.labels().get(row).copied().unwrap_or_default();
            let count = next.entry(label).or_insert(label as usize);
            *count += 1;
            *count % folds
        })
        .collect()
}
