//! Trained models in folders, and predictions from them.
//!
//! A [`Model`] contains everything that is needed to use a trained model elsewhere: its
//! [`Architecture`], its weights, its [`Task`] and the [`Preprocessing`] of its input data.
//! [`Model::save`] writes it as a folder, [`Model::load`] reads it, [`Model::predictor`] makes
//! predictions.
//!
//! ```no_run
//! use meganeura_nn::data::{Standardiser, digits_split};
//! use meganeura_nn::model::{Architecture, Features, Loss, Model, PredictorOptions, Preprocessing, Task};
//! use meganeura_nn::trainer::{SilentObserver, TrainConfig, Trainer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (train, test) = digits_split()?;
//! let scale = Standardiser::fit_global(&train);
//! let architecture = Architecture::mlp([1, 8, 8], 10);
//! let config = TrainConfig::default();
//! let graph = architecture.training_graph(config.batch_size, Loss::Classes)?;
//! let mut trainer = Trainer::from_graph(&graph, config)?;
//! trainer.fit(&train.standardised(&scale)?, None, &mut SilentObserver)?;
//!
//! let task = Task::Classification {
//!     target: "digit".into(),
//!     classes: (0..10).map(|digit| digit.to_string()).collect(),
//! };
//! let preprocessing = Preprocessing::Array { scale: Some(scale) };
//! Model::from_trainer(&mut trainer, architecture, task, preprocessing)?.save("digits.model")?;
//!
//! let mut predictor = Model::load("digits.model")?.predictor(&PredictorOptions::default())?;
//! let predictions = predictor.predict(&Features::from(&test))?;
//! println!("{:?}", predictions[0]);
//! # Ok(())
//! # }
//! ```
//!
//! A table, from the file to predictions for another one:
//!
//! ```no_run
//! use meganeura_nn::data::{SplitOptions, Standardiser, TableOptions, TableReadOptions, read_table_parts};
//! use meganeura_nn::model::{Architecture, Features, Model, PredictorOptions, Preprocessing, Task};
//! use meganeura_nn::trainer::{EarlyStopping, SilentObserver, TrainConfig, Trainer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let split = SplitOptions { validation: 0.1, test: 0.2, ..SplitOptions::default() };
//! let table = read_table_parts("houses.csv", &TableOptions::default(), split)?;
//! let scale = table.schema.standardiser(&table.parts.train);
//! let mut parts = table.parts.clone().standardised(&scale)?;
//! let target = table.schema.target.clone();
//! let task = if parts.train.is_regression() {
//!     let scale = Standardiser::fit_targets(&parts.train);
//!     parts = parts.standardised_targets(&scale)?;
//!     Task::Regression { targets: vec![target], scale }
//! } else {
//!     Task::Classification { target, classes: table.class_names.clone() }
//! };
//!
//! let architecture = Architecture::mlp([table.schema.width()], task.outputs());
//! let config = TrainConfig { early_stopping: Some(EarlyStopping::default()), ..TrainConfig::default() };
//! let graph = architecture.training_graph(config.batch_size, task.loss())?;
//! let mut trainer = Trainer::from_graph(&graph, config)?;
//! let report = trainer.fit_parts(&parts, &mut SilentObserver)?;
//!
//! let preprocessing = Preprocessing::Table { schema: table.schema, scale: Some(scale) };
//! let mut model = Model::from_trainer(&mut trainer, architecture, task, preprocessing)?;
//! model.metrics = serde_json::to_value(report.test)?;
//! model.save("houses.model")?;
//!
//! let rows = model.read_table("new-houses.csv", TableReadOptions::default())?;
//! let mut predictor = model.predictor(&PredictorOptions::default())?;
//! for (line, prediction) in rows.lines.iter().zip(predictor.predict(&Features::from(&rows))?) {
//!     println!("line {line}: {prediction:?}");
//! }
//! // If the file has the target, too: how good the model is.
//! if let Some(data) = rows.dataset(model.task().classes().len())? {
//!     println!("{}", predictor.evaluate(&data)?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # The folder
//!
//! | File | Contents |
//! |---|---|
//! | `model.json` | version of the format, architecture, task, preprocessing, metrics, training settings, and the length and SHA-256 of the other file |
//! | `model.safetensors` | parameters and states (such as the running statistics of batch norms) by name, `f32` |
//!
//! A folder is written completely or not at all: it is created under a temporary name in the same
//! parent folder, and then replaces the old one, in a single step on systems that support it
//! (Linux). On other systems the old folder is first renamed to `.NAME.old`. If the process is
//! killed at that moment, [`Model::load`] reads the renamed folder, and the next save first
//! restores its name.

mod architecture;
mod curves;
mod error;
mod features;
mod file;
mod images;
mod influence;
mod predictor;
mod task;

use std::path::{Path, PathBuf};

use serde_json::Value;

pub use architecture::{Architecture, Loss};
pub use curves::{Calibration, ClassCurves, calibration, class_curves};
pub use error::ModelError;
pub use features::Features;
pub use images::ImagePredictor;
pub use influence::{FeatureGroup, Importance, PartialDependence, mean_and_deviation};
pub use predictor::{Prediction, PredictionReport, Predictor, PredictorOptions, softmax};
pub use task::{Preprocessing, Task};

use crate::data::{RawTable, TableFormat, TableReadOptions, TableRows, TableSchema, TextEncoding, read_images};
use crate::models::FEATURES;
use crate::trainer::Trainer;
use architecture::Leaf;
use meganeura_compiler::{Builder, InferenceModel, InputShapes};
use meganeura_core::files::prepare_folder;
use meganeura_core::{Graph, Session};

/// A trained model; see the [module documentation](self).
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    architecture: Architecture,
    task: Task,
    preprocessing: Preprocessing,
    tensors: Vec<Tensor>,
    /// Results of evaluations: any JSON, for people and programs.
    pub metrics: Value,
    /// Settings of the training: any JSON, for people and programs.
    pub training: Value,
    program: String,
}

/// A parameter or state with its values.
#[derive(Clone, Debug, PartialEq)]
struct Tensor {
    leaf: Leaf,
    values: Vec<f32>,
}

impl Model {
    /// Creates a model with the current weights of a trainer, which trained the graph of the architecture
    /// ([`Architecture::training_graph`]), and its settings ([`TrainConfig::to_json`](crate::TrainConfig::to_json)).
    ///
    /// # Errors
    /// [`ModelError::Invalid`] for parts that do not fit together, or weights that are not finite;
    /// [`ModelError::Core`] when the trainer trained another model, or its device fails.
    pub fn from_trainer(
        trainer: &mut Trainer,
        architecture: Architecture,
        task: Task,
        preprocessing: Preprocessing,
    ) -> Result<Self, ModelError> {
        let training = trainer.config().to_json();
        let model = Model::from_session(trainer.session_mut(), architecture, task, preprocessing)?;
        Ok(Model { training, ..model })
    }

    /// Creates a model with the current weights of a session, which has the parameters and states of the architecture.
    ///
    /// # Errors
    /// As for [`from_trainer`](Self::from_trainer).
    pub fn from_session(
        session: &mut Session,
        architecture: Architecture,
        task: Task,
        preprocessing: Preprocessing,
    ) -> Result<Self, ModelError> {
        check(&architecture, &task, &preprocessing)
            .map_err(|(field, message)| ModelError::Invalid { field, message })?;
        let mut tensors = Vec::new();
        for leaf in architecture.leaves()? {
            let values = if leaf.is_state {
                session.try_read_state(&leaf.name)?
            } else {
                session.try_read_parameter(&leaf.name)?
            };
            let message = match leaf.shape.iter().product::<usize>() {
                len if len != values.len() => {
                    format!(
                        "'{}' has {} values, which do not match {:?}",
                        leaf.name,
                        values.len(),
                        leaf.shape
                    )
                }
                _ if values.iter().any(|v| !v.is_finite()) => {
                    format!("'{}' has values that are not finite; training diverged", leaf.name)
                }
                _ => {
                    tensors.push(Tensor { leaf, values });
                    continue;
                }
            };
            return Err(ModelError::Invalid {
                field: "weights",
                message,
            });
        }
        Ok(Model {
            architecture,
            task,
            preprocessing,
            tensors,
            metrics: Value::Null,
            training: Value::Null,
            program: program(),
        })
    }

    /// Reads the model in a folder.
    ///
    /// # Errors
    /// [`ModelError::NotFound`] without a model; [`ModelError::Version`], [`ModelError::Field`],
    /// [`ModelError::Tensor`] and [`ModelError::Damaged`] for files whose contents were changed;
    /// [`ModelError::Io`].
    pub fn load(folder: impl AsRef<Path>) -> Result<Self, ModelError> {
        file::load(folder.as_ref())
    }

    /// Writes the model as a folder, replacing an existing model; parent folders are created if
    /// necessary. If the process is killed, the folder has either the old or the new model.
    ///
    /// # Errors
    /// [`ModelError::NotReplaced`] for an existing folder with any other contents;
    /// [`ModelError::Io`], with the folder unchanged.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<(), ModelError> {
        file::save(self, folder.as_ref())
    }

    /// Checks that [`save`](Self::save) can write a folder, so that a long training does not end with an error.
    ///
    /// # Errors
    /// The errors of [`save`](Self::save).
    pub fn prepare(folder: impl AsRef<Path>) -> Result<(), ModelError> {
        Ok(prepare_folder(folder.as_ref(), file::FOLDER)?)
    }

    /// Builds a graph of the whole model. It has one input, `x` (`f32 [batch, feature_shape...]`, not yet
    /// standardised), and one result, probabilities of the classes (`f32 [batch, classes]`) or numbers on the scale of
    /// the targets. Its parameters and states have the names and values of [`Model::tensors`].
    ///
    /// # Errors
    /// As for [`Architecture::inference_graph`].
    pub fn graph(&self, batch: usize) -> Result<Graph, ModelError> {
        self.architecture
            .prediction_graph(batch, self.preprocessing.scale(), &self.task)
    }

    /// Returns the sizes of the model.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Returns the task of the model.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// Returns the preprocessing of the model's input data.
    pub fn preprocessing(&self) -> &Preprocessing {
        &self.preprocessing
    }

    /// Returns name and version of the program that made the model.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// Returns the number of weights, including states such as running statistics.
    pub fn weights(&self) -> usize {
        self.tensors.iter().map(|t| t.values.len()).sum()
    }

    /// Returns parameters and states: name, shape, and values in row-major order.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize], &[f32])> {
        let tensors = self.tensors.iter();
        tensors.map(|t| (t.leaf.name.as_str(), &t.leaf.shape[..], &t.values[..]))
    }

    /// Copies the weights of this model to a session of the architecture's graph, for training or inference.
    ///
    /// # Errors
    /// [`ModelError::Core`] when the session has no such tensors, or its device fails.
    pub fn load_into(&self, session: &mut Session) -> Result<(), ModelError> {
        for Tensor { leaf, values } in &self.tensors {
            if leaf.is_state {
                session.try_set_state(&leaf.name, values)?
            } else {
                session.try_set_parameter(&leaf.name, values)?
            }
        }
        Ok(())
    }

    /// Reads a CSV file with the columns of the table that the model was trained on. [`Features::from`] converts the
    /// rows for [`Predictor::predict`]; [`TableRows::dataset`] returns them with their targets, if the file contains
    /// targets.
    ///
    /// # Errors
    /// [`ModelError::Features`] for a model that takes no tables; [`ModelError::Data`] as for [`TableSchema::read`].
    pub fn read_table(&self, path: impl AsRef<Path>, options: TableReadOptions) -> Result<TableRows, ModelError> {
        self.table_rows(&self.read_cells(path, None)?, options)
    }

    /// Reads the cells of a file in the format of the table that the model was trained on, for [`table_rows`](Self::table_rows).
    /// Without an `encoding`, it is guessed.
    ///
    /// # Errors
    /// [`ModelError::Features`] for a model that takes no tables; [`ModelError::Data`] as for [`RawTable::read`].
    pub fn read_cells(&self, path: impl AsRef<Path>, encoding: Option<TextEncoding>) -> Result<RawTable, ModelError> {
        let path = path.as_ref();
        let Ok(schema) = self.schema() else {
            return Err(self.refuse(path, "tables"));
        };
        let format = TableFormat {
            encoding,
            ..schema.format()
        };
        Ok(RawTable::read(path, &format)?)
    }

    /// Returns the rows of a table in memory, like [`read_table`](Self::read_table).
    ///
    /// # Errors
    /// [`ModelError::Invalid`] for a model that takes no tables; [`ModelError::Data`] as for [`TableSchema::apply`].
    pub fn table_rows(&self, cells: &RawTable, options: TableReadOptions) -> Result<TableRows, ModelError> {
        Ok(self.schema()?.apply(cells, self.task.classes(), options)?)
    }

    /// Reads files of images as the model takes them, for [`Predictor::predict`]. For an evaluation there is
    /// [`image_folder`](crate::data::image_folder).
    ///
    /// # Errors
    /// [`ModelError::Features`] for a model that takes no images; [`ModelError::Data`] as for [`read_images`].
    pub fn read_images(&self, files: &[PathBuf]) -> Result<Features, ModelError> {
        let Preprocessing::Images { size, .. } = self.preprocessing else {
            let first = files.first().map_or(Path::new("images"), PathBuf::as_path);
            return Err(self.refuse(first, "image files"));
        };
        Features::new("images", read_images(files, size)?, size)
    }

    /// Returns the error for a file of a kind that the model does not accept.
    fn refuse(&self, file: &Path, kind: &str) -> ModelError {
        let expected = match &self.preprocessing {
            Preprocessing::Table { .. } => "a table".to_owned(),
            Preprocessing::Images { .. } => "image files".to_owned(),
            _ => format!("arrays of shape {:?}", self.architecture.feature_shape()),
        };
        ModelError::Features {
            name: file.display().to_string(),
            message: format!("the model does not accept {kind}; expected {expected}"),
        }
    }

    /// Returns the columns of the model's tables.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] for a model that takes no tables.
    pub fn schema(&self) -> Result<&TableSchema, ModelError> {
        match &self.preprocessing {
            Preprocessing::Table { schema, .. } => Ok(schema),
            _ => Err(ModelError::Invalid {
                field: "preprocessing",
                message: format!(
                    "it does not accept tables, but examples of shape {:?}",
                    self.architecture.feature_shape()
                ),
            }),
        }
    }

    /// Builds a session for predictions.
    ///
    /// # Errors
    /// [`ModelError::Core`] for a device that cannot be opened or lacks memory; [`ModelError::Invalid`] for a batch of
    /// 0.
    pub fn predictor(&self, options: &PredictorOptions) -> Result<Predictor, ModelError> {
        Predictor::new(self, options)
    }

    /// Builds a session for predictions of image files.
    ///
    /// # Errors
    /// [`ModelError::Features`] for a model of tables or arrays; the errors of [`Model::predictor`].
    pub fn image_predictor(&self, options: &PredictorOptions) -> Result<ImagePredictor, ModelError> {
        ImagePredictor::new(self, options)
    }

    /// Builds a model that any number of threads run at the same time, with batches of any size. It has the input and the
    /// result of [`Model::graph`].
    ///
    /// # Errors
    /// [`ModelError::Core`] for a device that cannot be opened or lacks memory.
    pub fn inference_model(&self, builder: Builder) -> Result<InferenceModel, ModelError> {
        let core = |error: ModelError| match error {
            ModelError::Core(error) => error,
            other => meganeura_core::Error::misuse(other.to_string(), "check the shape of the input"),
        };
        let (architecture, task) = (self.architecture.clone(), self.task.clone());
        let scale = self.preprocessing.scale().cloned();
        let mut one = vec![1];
        one.extend(self.architecture.feature_shape());
        let make = move |shapes: &InputShapes| {
            let batch = shapes.dim(FEATURES, 0)?;
            architecture
                .prediction_graph(batch, scale.as_ref(), &task)
                .map_err(core)
        };
        let set = |session: &mut Session| self.load_into(session).map_err(core);
        Ok(InferenceModel::new(builder, &[(FEATURES, &one)], make, set)?)
    }
}

/// Returns name and version of this program.
fn program() -> String {
    concat!("meganeura ", env!("CARGO_PKG_VERSION")).to_owned()
}

/// Checks that the parts of a model fit together; the error contains the part and the reason.
fn check(
    architecture: &Architecture,
    task: &Task,
    preprocessing: &Preprocessing,
) -> Result<(), (&'static str, String)> {
    architecture.check().map_err(|message| ("architecture", message))?;
    task.check(architecture).map_err(|message| ("task", message))?;
    preprocessing
        .check(architecture)
        .map_err(|message| ("preprocessing", message))
}
