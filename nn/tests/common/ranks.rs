//! Runs that must give equal results on any number of ranks: their models, data and settings. The tests over MPI use
//! them, too.

use std::ops::ControlFlow;
use std::sync::Arc;

use meganeura_core::distributed::Communicator;
use meganeura_core::{GradientClip, Graph};
// Links the backend, which registers itself.
use meganeura_cpu as _;
use meganeura_nn::data::{Dataset, Remainder, digits_split};
use meganeura_nn::layers::{Conv2dConfig, Linear};
use meganeura_nn::models::{LlamaConfig, MlpConfig, TARGETS, TOKENS, classifier, language_model};
use meganeura_nn::trainer::{Observer, OptimizerChoice, Schedule, StepInfo, TrainConfig};

/// Batch size that is divisible by 1, 2, 3 and 4.
pub(crate) const BATCH: usize = 12;

/// An observer that records the loss of each step, and ends the run after a number of steps.
pub(crate) struct Losses {
    pub(crate) losses: Vec<f32>,
    pub(crate) stop_after: usize,
}

impl Losses {
    pub(crate) fn of_steps(stop_after: usize) -> Self {
        Losses {
            losses: Vec::new(),
            stop_after,
        }
    }
}

impl Observer for Losses {
    fn on_step(&mut self, step: &StepInfo) -> ControlFlow<()> {
        self.losses.extend(step.loss);
        if self.losses.len() >= self.stop_after {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// Returns AdamW with clipping and accumulation.
pub(crate) fn config(ranks: Option<Arc<dyn Communicator>>) -> TrainConfig {
    TrainConfig {
        epochs: 100,
        batch_size: BATCH,
        optimizer: OptimizerChoice::AdamW { weight_decay: 0.05 },
        learning_rate: 1e-3,
        schedule: Schedule::Constant,
        clip: Some(GradientClip::Norm(1.0)),
        accumulate: 2,
        device: Some("cpu".into()),
        loss_every: 1,
        remainder: Remainder::Wrap,
        distributed: ranks,
        ..TrainConfig::default()
    }
}

/// A model with its training and test data.
#[derive(Clone)]
pub(crate) struct Task {
    pub(crate) model: fn(usize) -> Graph,
    pub(crate) train: Dataset,
    pub(crate) test: Dataset,
    is_text: bool,
}

impl Task {
    /// Returns the task `mlp`, `cnn` or `llama`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let (train, test) = digits_split().expect("they ship");
        let head = |data: &Dataset, n: usize| data.subset(&(0..n).collect::<Vec<_>>()).expect("in range");
        let flat = |data: Dataset| data.with_feature_shape(vec![64]).expect("64 pixels");
        Some(match name {
            // 50 examples are more than a batch and not a multiple of the ranks.
            "mlp" => Task {
                model: |batch| mlp(batch, 10),
                train: flat(head(&train, 301)),
                test: flat(head(&test, 50)),
                is_text: false,
            },
            "cnn" => Task {
                model: cnn,
                train: head(&train, 120),
                test: head(&test, 30),
                is_text: false,
            },
            "llama" => Task {
                model: llama,
                train: text(1200),
                test: text(200),
                is_text: true,
            },
            _ => return None,
        })
    }

    /// Returns the settings of its runs.
    pub(crate) fn config(&self, ranks: Option<Arc<dyn Communicator>>) -> TrainConfig {
        let mut config = config(ranks);
        if self.is_text {
            (config.features, config.labels) = (TOKENS.into(), TARGETS.into());
        }
        config
    }
}

/// Builds a perceptron without dropout, because dropout masks differ between ranks.
pub(crate) fn mlp(batch: usize, classes: usize) -> Graph {
    let model = MlpConfig::new(64, classes).dropout(0.0);
    classifier(batch, &[64], |g, x| model.build(g, "").forward(g, x))
}

/// Builds a convolutional network without batch norms, because their statistics depend on a rank's examples.
fn cnn(batch: usize) -> Graph {
    classifier(batch, &[1, 8, 8], |g, x| {
        let first = Conv2dConfig::new(1, 8, [3, 3]).padding([1, 1]).build(g, "conv1");
        let second = Conv2dConfig::new(8, 16, [3, 3]).stride([2, 2]).build(g, "conv2");
        let y = first.forward(g, x);
        let y = g.relu(y);
        let y = second.forward(g, y);
        let y = g.relu(y);
        let y = g.flatten(y);
        Linear::new(g, "fc", 16 * 3 * 3, 10).forward(g, y)
    })
}

/// Builds a language model of two small blocks.
fn llama(batch: usize) -> Graph {
    let config = LlamaConfig {
        dim: 32,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        hidden: 48,
        ..LlamaConfig::small(40)
    };
    language_model(batch, 8, |g, tokens| config.build(g, "").forward(g, tokens))
}

fn text(tokens: usize) -> Dataset {
    let mut state = 1_u32;
    let token = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Some tokens are more frequent, so that the model can learn something.
        ((state >> 16) % 40).min((state >> 8) % 40)
    };
    let tokens: Vec<u32> = (0..tokens).map(token).collect();
    Dataset::from_tokens("text", &tokens, 8, 8, 40).expect("valid")
}
