//! Tasks of models, and the preprocessing of their input data.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Architecture, Loss};
use crate::data::{Standardiser, TableSchema};

/// The task of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Task {
    /// One of several classes.
    Classification {
        /// Name of the classified quantity, such as the name of a column.
        target: String,
        /// Names of the classes, by id; at least 2.
        classes: Vec<String>,
    },
    /// Prediction of numbers.
    Regression {
        /// Names of the numbers, such as names of columns; one for each output of the model.
        targets: Vec<String>,
        /// Standardiser of the targets in training, with a mean and deviation for each; it converts
        /// outputs back. With means of 0 and deviations of 1 outputs are not changed.
        scale: Standardiser,
    },
}

impl Task {
    /// Returns the number of outputs of the model.
    pub fn outputs(&self) -> usize {
        match self {
            Task::Classification { classes, .. } => classes.len(),
            Task::Regression { targets, .. } => targets.len(),
        }
    }

    /// Returns the loss for training a model for this task.
    pub fn loss(&self) -> Loss {
        match self {
            Task::Classification { .. } => Loss::Classes,
            Task::Regression { .. } => Loss::Regression,
        }
    }

    /// Returns the names of the classes, by id; none for regression.
    pub fn classes(&self) -> &[String] {
        match self {
            Task::Classification { classes, .. } => classes,
            Task::Regression { .. } => &[],
        }
    }

    pub(super) fn check(&self, architecture: &Architecture) -> Result<(), String> {
        match self {
            Task::Classification { classes, .. } => {
                if classes.len() < 2 {
                    return Err(format!("there are {} classes; at least 2 are needed", classes.len()));
                }
                different(classes)?;
            }
            Task::Regression { targets, scale } => {
                if targets.is_empty() {
                    return Err("there are no targets".into());
                }
                different(targets)?;
                if !scale.accepts(targets.len()) {
                    return Err(format!(
                        "the scale has {} targets, expected {}",
                        scale.mean().len(),
                        targets.len()
                    ));
                }
            }
        }
        let (own, model) = (self.outputs(), architecture.outputs());
        if own != model {
            return Err(format!("it has {own} outputs, but the architecture has {model}"));
        }
        Ok(())
    }
}

fn different(names: &[String]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    match names.iter().find(|name| !seen.insert(*name)) {
        None => Ok(()),
        Some(name) => Err(format!("'{name}' is repeated")),
    }
}

/// The preprocessing of a model's input data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Preprocessing {
    /// Arrays of the shape of the model's input.
    Array {
        /// Standardiser of the arrays; without it, they are not changed.
        scale: Option<Standardiser>,
    },
    /// Columns of a table.
    Table {
        /// The columns.
        schema: TableSchema,
        /// Standardiser of the features; without it, they are not changed.
        scale: Option<Standardiser>,
    },
    /// Image files, which are resized to the model's input, with values from 0 to 1.
    Images {
        /// Channels (1 for grey, 3 for red, green and blue), height and width.
        size: [usize; 3],
        /// Standardiser of the values; without it, they are not changed.
        scale: Option<Standardiser>,
    },
}

impl Preprocessing {
    /// Returns the standardiser of the features.
    pub fn scale(&self) -> Option<&Standardiser> {
        match self {
            Preprocessing::Array { scale }
            | Preprocessing::Table { scale, .. }
            | Preprocessing::Images { scale, .. } => scale.as_ref(),
        }
    }

    pub(super) fn check(&self, architecture: &Architecture) -> Result<(), String> {
        let width = architecture.feature_len();
        match self {
            Preprocessing::Array { .. } => {}
            Preprocessing::Table { schema, .. } => {
                schema.check()?;
                if schema.width() != width {
                    return Err(format!(
                        "the columns have {} features, but the architecture expects {width}",
                        schema.width()
                    ));
                }
            }
            Preprocessing::Images { size, .. } => {
                if architecture.feature_shape() != size {
                    return Err(format!(
                        "the image size is {size:?}, but the architecture expects {:?}",
                        architecture.feature_shape()
                    ));
                }
                if !matches!(size[0], 1 | 3) {
                    return Err(format!("expected images with 1 or 3 channels, found {}", size[0]));
                }
            }
        }
        match self.scale() {
            Some(scale) if !scale.accepts(width) => Err(format!(
                "the standardiser has {} features, but the architecture expects {width}",
                scale.mean().len()
            )),
            _ => Ok(()),
        }
    }
}
