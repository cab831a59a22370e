//! What a model predicts, and from what.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Architecture, Loss};
use crate::data::{Standardiser, TableSchema};

/// What a model predicts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Task {
    /// One of several classes.
    Classification {
        /// What the classes are of, such as the name of a column.
        target: String,
        /// Names of the classes, by id; at least 2.
        classes: Vec<String>,
    },
    /// Numbers.
    Regression {
        /// What the numbers are, such as names of columns; one for each output of the model.
        targets: Vec<String>,
        /// What the targets were standardised with for training, one mean and deviation for each; outputs are converted
        /// back by it. With means of 0 and deviations of 1 they stay as they are.
        scale: Standardiser,
    },
}

impl Task {
    /// Outputs that the model has.
    pub fn outputs(&self) -> usize {
        match self {
            Task::Classification { classes, .. } => classes.len(),
            Task::Regression { targets, .. } => targets.len(),
        }
    }

    /// The loss that a model for this task is trained with.
    pub fn loss(&self) -> Loss {
        match self {
            Task::Classification { .. } => Loss::Classes,
            Task::Regression { .. } => Loss::Regression,
        }
    }

    /// Names of the classes, by id; none for regression.
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
                        "the scale is of {} targets, and there are {}",
                        scale.mean().len(),
                        targets.len()
                    ));
                }
            }
        }
        let (own, model) = (self.outputs(), architecture.outputs());
        if own != model {
            return Err(format!("it has {own} outputs, the architecture {model}"));
        }
        Ok(())
    }
}

fn different(names: &[String]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    match names.iter().find(|name| !seen.insert(*name)) {
        None => Ok(()),
        Some(name) => Err(format!("'{name}' is there twice")),
    }
}

/// What becomes of data before the model takes them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Preprocessing {
    /// Arrays of the shape that the model takes.
    Array {
        /// What they are standardised with; they stay as they are without.
        scale: Option<Standardiser>,
    },
    /// Columns of a table.
    Table {
        /// The columns.
        schema: TableSchema,
        /// What the features are standardised with; they stay as they are without.
        scale: Option<Standardiser>,
    },
    /// Files of images, which are resized to what the model takes, with values from 0 to 1.
    Images {
        /// Channels (1 for grey, 3 for red, green and blue), height and width.
        size: [usize; 3],
        /// What the values are standardised with; they stay as they are without.
        scale: Option<Standardiser>,
    },
}

impl Preprocessing {
    /// What features are standardised with.
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
                        "the columns are {} features, the architecture takes {width}",
                        schema.width()
                    ));
                }
            }
            Preprocessing::Images { size, .. } => {
                if architecture.feature_shape() != size {
                    return Err(format!(
                        "images are {size:?}, the architecture takes {:?}",
                        architecture.feature_shape()
                    ));
                }
                if !matches!(size[0], 1 | 3) {
                    return Err(format!("images have {} channels; it can be 1 or 3", size[0]));
                }
            }
        }
        match self.scale() {
            Some(scale) if !scale.accepts(width) => Err(format!(
                "the standardiser is of {} features, the architecture takes {width}",
                scale.mean().len()
            )),
            _ => Ok(()),
        }
    }
}
