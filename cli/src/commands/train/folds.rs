//! Choice of the number of epochs for small tables, by cross-validation.

use std::collections::HashMap;
use std::error::Error;

use meganeura::nn::data::{Dataset, Remainder};
use meganeura::nn::model::{Architecture, Loss};
use meganeura::nn::trainer::{TrainConfig, Trainer};

use super::interrupt::Interrupt;
use crate::output::line;
use crate::signals;

/// Number of training examples from which on one validation part is large enough.
pub(super) const MANY: usize = 2000;
/// Minimum number of examples of a fold.
const MIN_FOLD: usize = 4;
/// Maximum factor between the default number of epochs and the chosen one.
const MAX_FACTOR: usize = 16;

/// Result of a cross-validation.
pub(super) struct Folds {
    pub(super) folds: usize,
    /// Candidates for the number of epochs, with the mean loss on the examples that a fold holds out.
    pub(super) losses: Vec<(usize, f64)>,
    /// The candidate with the lowest loss.
    pub(super) epochs: usize,
}

/// Runs of a cross-validation.
pub(super) struct FoldRuns<'a> {
    pub(super) folds: usize,
    pub(super) train: &'a Dataset,
    pub(super) architecture: &'a Architecture,
    pub(super) loss: Loss,
    /// Settings with the default number of epochs.
    pub(super) config: &'a TrainConfig,
    /// True if the result of each number of epochs is printed.
    pub(super) prints: bool,
}

impl FoldRuns<'_> {
    /// Doubles the number of epochs while the loss falls; if it does not fall at once, halves it while the loss falls. Returns `None`
    /// if a signal ended the runs, or there are too few examples.
    pub(super) fn choose(&self) -> Result<Option<Folds>, Box<dyn Error>> {
        let default = self.config.epochs;
        if self.train.len() < self.folds * MIN_FOLD || default == 0 {
            return Ok(None);
        }
        let parts = assigned(self.train, self.folds);
        let mut losses = Vec::new();
        let mut measure = |epochs: usize| {
            let loss = self.mean_loss(&parts, epochs)?;
            losses.extend(loss.map(|loss| (epochs, loss)));
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
                    Some(loss) if loss < best.1 => best = (epochs, loss),
                    Some(_) => break,
                }
            }
            if best.0 > default {
                break;
            }
        }
        Ok(Some(Folds {
            folds: self.folds,
            losses,
            epochs: best.0,
        }))
    }

    /// Holds out each fold in turn, trains on the other folds, and returns the mean loss on the held-out folds.
    fn mean_loss(&self, parts: &[usize], epochs: usize) -> Result<Option<f64>, Box<dyn Error>> {
        let mut sum = 0.0;
        for held_out in 0..self.folds {
            let rows = |is_held_out: bool| -> Vec<usize> {
                let chosen = |row: &usize| (parts[*row] == held_out) == is_held_out;
                (0..self.train.len()).filter(chosen).collect()
            };
            let (seen, unseen) = (self.train.subset(&rows(false))?, self.train.subset(&rows(true))?);
            let config = TrainConfig {
                epochs,
                batch_size: self.config.batch_size.min(seen.len()),
                remainder: Remainder::Keep,
                // Only the last evaluation counts.
                evaluate_every: 0,
                ..self.config.clone()
            };
            let graph = self.architecture.training_graph(config.batch_size, self.loss)?;
            let mut trainer = Trainer::from_graph(&graph, config)?;
            let report = trainer.fit(&seen, Some(&unseen), &mut Interrupt)?;
            if signals::happened() {
                return Ok(None);
            }
            sum += report.evaluation.map_or(f64::INFINITY, |evaluation| evaluation.loss);
        }
        let mean = sum / self.folds as f64;
        if self.prints {
            line(format_args!(
                "cross-validation with {} folds: {epochs} epochs, loss {mean:.4}",
                self.folds
            ))?;
        }
        Ok(Some(mean))
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
