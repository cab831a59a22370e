//! Trained classifiers as folders: architecture, preprocessing, class names and weights, ready to predict.
//!
//! A folder has two files. `model.json` describes the model ([`Description`]) and names the file of the weights
//! (safetensors) with its hash. [`Model::save`] writes the weights under a new name first and replaces `model.json` last, so
//! that whoever opens the folder sees the old model or the new one, also when the process is killed at any moment.
//!
//! ```no_run
//! use meganeura_nn::model::{Architecture, Description, Input, Model, PredictorOptions};
//! use meganeura_nn::trainer::{Silent, TrainConfig, Trainer};
//! use meganeura_nn::data::digits_split;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (train, test) = digits_split()?;
//! let classes = (0..10).map(|digit| digit.to_string()).collect();
//! let description = Description::new(Architecture::cnn(), Input::of(&train), classes);
//! let mut trainer = Trainer::new(|batch| description.graph(batch), TrainConfig::default())?;
//! trainer.fit(&train, Some(&test), &mut Silent)?;
//! Model::trained(description, &mut trainer)?.save("digits")?;
//!
//! let mut predictor = Model::load("digits")?.predictor(&PredictorOptions::default())?;
//! for prediction in predictor.predict(test.features())? {
//!     let (class, probability) = prediction.best();
//!     println!("{class} {probability}");
//! }
//! # Ok(())
//! # }
//! ```

mod architecture;
mod folder;
mod metrics;
mod predictor;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use meganeura_core::graph::NodeKind;
use meganeura_core::{Error, Graph, Result, Weights};
use serde::{Deserialize, Serialize};

pub use architecture::Architecture;
pub use metrics::{ClassMetrics, ClassificationReport};
pub use predictor::{Prediction, Predictor, PredictorOptions};

use crate::data::{Dataset, Standardiser};
use crate::trainer::Trainer;

/// What a model computes and from what: all of a model but its weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Version of the program that trained it.
    pub program: String,
    /// The network.
    pub architecture: Architecture,
    /// What an example is.
    pub input: Input,
    /// Names of the classes, in the order of the logits.
    pub classes: Vec<String>,
    /// Results on data that were not trained on, by name.
    #[serde(default)]
    pub metrics: BTreeMap<String, f64>,
    /// Settings of the training, for the reader; nothing depends on them.
    #[serde(default)]
    pub training: BTreeMap<String, serde_json::Value>,
}

/// What an example is, and how it is scaled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Shape of an example.
    pub shape: Vec<usize>,
    /// Names of the columns of a table, one for each feature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<Columns>,
    /// Features are `(x - mean) / std`; as they are without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
}

/// The columns of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Columns {
    /// The features, in order.
    pub features: Vec<String>,
    /// The column of the label.
    pub label: String,
    /// Columns that were left out.
    #[serde(default)]
    pub ignored: Vec<String>,
}

/// A mean and a standard deviation of all features, or of each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scaling {
    /// Means.
    pub mean: Vec<f32>,
    /// Standard deviations, none of them 0.
    pub std: Vec<f32>,
}

impl From<&Standardiser> for Scaling {
    fn from(standardiser: &Standardiser) -> Self {
        Scaling {
            mean: standardiser.mean().to_vec(),
            std: standardiser.std().to_vec(),
        }
    }
}

impl Input {
    /// Examples like those of a data set, as they are.
    pub fn of(data: &Dataset) -> Self {
        Input {
            shape: data.feature_shape().to_vec(),
            columns: None,
            scaling: None,
        }
    }

    /// Features of an example.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether an example has no features, which no model takes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn check(&self) -> std::result::Result<(), String> {
        let len = self.shape.iter().try_fold(1usize, |len, &size| len.checked_mul(size));
        let len = len.filter(|&len| len > 0 && len <= u32::MAX as usize);
        let Some(len) = len.filter(|_| !self.shape.is_empty()) else {
            return Err(format!("input.shape is {:?}; examples have features", self.shape));
        };
        if let Some(columns) = self.columns.as_ref().filter(|c| c.features.len() != len) {
            let count = columns.features.len();
            return Err(format!("input.columns has {count} features, the shape {len}"));
        }
        let Some(Scaling { mean, std }) = &self.scaling else {
            return Ok(());
        };
        if mean.len() != std.len() || ![1, len].contains(&mean.len()) {
            let (means, deviations) = (mean.len(), std.len());
            return Err(format!(
                "input.scaling has {means} means and {deviations} deviations; it takes one, or {len}, of each"
            ));
        }
        if !mean.iter().all(|m| m.is_finite()) || !std.iter().all(|&s| s.is_finite() && s > 0.0) {
            return Err("input.scaling has a mean that is not finite, or a deviation that is not above 0".into());
        }
        Ok(())
    }
}

impl Description {
    /// A description without metrics and settings of the training.
    pub fn new(architecture: Architecture, input: Input, classes: Vec<String>) -> Self {
        Description {
            program: env!("CARGO_PKG_VERSION").to_owned(),
            architecture,
            input,
            classes,
            metrics: BTreeMap::new(),
            training: BTreeMap::new(),
        }
    }

    /// The classifier for a batch of examples: what the trainer takes. Wrong sizes reject the graph.
    #[track_caller]
    pub fn graph(&self, batch: usize) -> Graph {
        self.architecture.graph(batch, &self.input.shape, self.classes.len())
    }

    /// Checks everything that can be checked without weights.
    ///
    /// # Errors
    /// What is wrong, and in which field.
    pub fn check(&self) -> std::result::Result<(), String> {
        if self.classes.is_empty() || self.classes.len() > u32::MAX as usize {
            return Err("classes is empty; a classifier has at least one class".into());
        }
        self.input.check()?;
        self.architecture.check(&self.input.shape)
    }
}

/// A trained model: description and weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    description: Description,
    weights: Weights,
}

impl Model {
    /// A model of weights by the names of the description's graph.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] for a description that makes no sense; weights are compared with it when they are used.
    pub fn new(description: Description, weights: Weights) -> Result<Self> {
        let remedy = "correct the description";
        description.check().map_err(|message| Error::misuse(message, remedy))?;
        Ok(Model { description, weights })
    }

    /// The model that a trainer has at present.
    ///
    /// # Errors
    /// Those of [`Model::new`]; a graph of the trainer that is not the description's; errors of the device.
    pub fn trained(description: Description, trainer: &mut Trainer) -> Result<Self> {
        let names = weight_names(&description.graph(1));
        let mut weights = trainer.session_mut().try_weights()?;
        weights.retain(|name| names.contains(name));
        if weights.len() != names.len() {
            return Err(Error::misuse(
                "the trainer's model is not the one of the description",
                "build the trainer by `Trainer::new(|batch| description.graph(batch), ..)`",
            ));
        }
        Model::new(description, weights)
    }

    /// All but the weights.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// All but the weights, to add metrics or settings of the training.
    pub fn description_mut(&mut self) -> &mut Description {
        &mut self.description
    }

    /// The weights.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Writes the model into a folder, which is made if it is not there. An earlier model in it is replaced as a whole.
    ///
    /// # Errors
    /// [`Error::File`] for a folder that cannot be written, or has files but no model; an earlier model is as it was.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        folder::save(self, folder.as_ref())
    }

    /// Checks that [`Model::save`] can write into a folder, and makes it.
    ///
    /// # Errors
    /// As there.
    pub fn prepare(folder: impl AsRef<Path>) -> Result<()> {
        folder::prepare(folder.as_ref())
    }

    /// Reads what [`Model::save`] wrote.
    ///
    /// # Errors
    /// [`Error::File`] for a folder without a model, a file that is missing, damaged or of another version, a description
    /// that makes no sense.
    pub fn load(folder: impl AsRef<Path>) -> Result<Self> {
        folder::load(folder.as_ref())
    }

    /// Builds the model for inference.
    ///
    /// # Errors
    /// A device that cannot be selected; weights that do not fit the description.
    pub fn predictor(&self, options: &PredictorOptions) -> Result<Predictor> {
        Predictor::new(self, options)
    }
}

/// Names of the parameters and states of a model's graph.
fn weight_names(graph: &Graph) -> BTreeSet<String> {
    let is_weight = |kind: &NodeKind| matches!(kind, NodeKind::Parameter { .. } | NodeKind::State { .. });
    let leaves = graph.nodes().iter().filter(|n| is_weight(&n.kind));
    leaves.filter_map(|n| n.name.as_deref().map(str::to_owned)).collect()
}
