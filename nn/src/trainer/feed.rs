//! Transfer of data set batches to the inputs of a session.

use meganeura_core::error::TensorKind;
use meganeura_core::graph::{NodeKind, Value};
use meganeura_core::shape::TensorType;
use meganeura_core::{DType, Error, Graph, Session};

use super::source::BatchBuffer;
use super::{TrainConfig, TrainError};
use crate::data::{Dataset, Remainder, one_hot, token_of};
use crate::models::{ROW_WEIGHTS, TARGET, TARGET_WEIGHTS};

/// The form of the model's label input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LabelForm {
    /// `u32 [batch]`.
    Ids,
    /// `f32 [batch, classes]`.
    OneHot,
    /// `f32 [batch, outputs]`, the targets of regression.
    Targets,
    /// `u32 [batch, rows]`, for tokens `u32 [batch, rows]`: the next token at each position.
    NextTokens,
}

/// The inputs of a model, and memory for one batch that every step reuses.
#[derive(Debug)]
pub(super) struct Feed {
    features_name: String,
    /// Shape of one example.
    feature_shape: Vec<usize>,
    labels_name: String,
    form: LabelForm,
    batch_size: usize,
    classes: usize,
    class_weights: Option<Vec<f32>>,
    label_smoothing: f32,
    /// True if a regression model has an input for weights of rows.
    has_row_weights: bool,
    row_weights: Vec<f32>,
    buffer: BatchBuffer,
    one_hot: Vec<f32>,
    /// Tokens of a batch, and the next token at each position.
    tokens: Vec<u32>,
    next_tokens: Vec<u32>,
    /// True if a language model has an input for weights of tokens.
    has_token_weights: bool,
    /// 1 for each next token that the loss counts, else 0.
    token_weights: Vec<f32>,
}

impl Feed {
    /// Finds the inputs of the model and checks that they and its outputs fit together.
    pub(super) fn of(graph: &Graph, config: &TrainConfig) -> Result<Self, TrainError> {
        // In a distributed run, the rank's own part of each batch.
        let batch_size = config.local_batch_size();
        let x = input(graph, &config.features)?;
        let are_tokens = x.dtype == DType::U32 && x.shape.rank() == 2;
        if !are_tokens && (x.dtype != DType::F32 || x.shape.rank() == 0) {
            return Err(TrainError::Model {
                message: format!("input '{}' is {x}", config.features),
                remedy: "features are f32, with the examples along the first axis, or tokens, u32[batch, rows]",
            });
        }
        if x.shape[0] != batch_size {
            return Err(TrainError::BatchSize {
                input: config.features.clone(),
                shape: x.shape.to_vec(),
                batch_size,
            });
        }
        // One prediction for each example, or for each of its tokens.
        let leading = if are_tokens {
            x.shape.dims()
        } else {
            &x.shape.dims()[..1]
        };
        let classes = classes(graph, leading)?;
        let is_input = |name: &str| input(graph, name).is_ok();
        let is_regression = !is_input(&config.labels) && is_input(TARGET);
        let labels_name = if is_regression { TARGET } else { &config.labels };
        let labels = input(graph, labels_name)?;
        let form = match (labels.dtype, labels.shape.dims()) {
            (DType::F32, dims) if is_regression && *dims == [batch_size, classes] => LabelForm::Targets,
            _ if is_regression => {
                return Err(TrainError::Model {
                    message: format!(
                        "input '{TARGET}' is {labels}; with this batch size and the model's prediction it would be f32[{batch_size}, {classes}]"
                    ),
                    remedy: "use targets with the shape of the prediction, the second output",
                });
            }
            (DType::U32, dims) if are_tokens && dims == leading => LabelForm::NextTokens,
            (DType::U32, dims) if !are_tokens && *dims == [batch_size] => LabelForm::Ids,
            (DType::F32, dims) if !are_tokens && *dims == [batch_size, classes] => LabelForm::OneHot,
            _ => {
                return Err(TrainError::Model {
                    message: format!(
                        "input '{}' is {labels}; with this batch size and the model's logits it would be u32[{batch_size}] or f32[{batch_size}, {classes}]",
                        config.labels
                    ),
                    remedy: "use class ids as labels, one per example, or one-hot rows; for tokens, one label per \
                        token",
                });
            }
        };
        let is_weighted = config.class_weights.is_some() || config.label_smoothing != 0.0;
        if is_weighted && form != LabelForm::OneHot {
            return Err(TrainError::Model {
                message: format!(
                    "class weights and label smoothing need rows of class weights; its '{labels_name}' are {labels}"
                ),
                remedy: "build the model with `soft_classifier`",
            });
        }
        if let Some(weights) = config.class_weights.as_ref().filter(|w| w.len() != classes) {
            return Err(TrainError::Config {
                field: "class_weights",
                message: format!("expected {classes} class weights, found {}", weights.len()),
            });
        }
        let has_row_weights = form == LabelForm::Targets && is_input(ROW_WEIGHTS);
        if has_row_weights {
            let weights = input(graph, ROW_WEIGHTS)?;
            if (weights.dtype, weights.shape.dims()) != (DType::F32, &[batch_size, 1]) {
                return Err(TrainError::Model {
                    message: format!("input '{ROW_WEIGHTS}' is {weights}; expected f32[{batch_size}, 1]"),
                    remedy: "build the model with `weighted_regressor`",
                });
            }
        }
        let has_token_weights = form == LabelForm::NextTokens && is_input(TARGET_WEIGHTS);
        if has_token_weights {
            let weights = input(graph, TARGET_WEIGHTS)?;
            if (weights.dtype, weights.shape.dims()) != (DType::F32, leading) {
                return Err(TrainError::Model {
                    message: format!("input '{TARGET_WEIGHTS}' is {weights}; expected f32{}", x.shape),
                    remedy: "build the model with `weighted_language_model`",
                });
            }
        }
        if config.remainder == Remainder::Keep && form != LabelForm::OneHot && !has_row_weights {
            return Err(TrainError::Model {
                message: "it has no row weights, which `Remainder::Keep` needs".into(),
                remedy: "build the model with `soft_classifier` or `weighted_regressor`, or use `Remainder::Drop`",
            });
        }
        Ok(Feed {
            features_name: config.features.clone(),
            feature_shape: x.shape[1..].to_vec(),
            labels_name: labels_name.to_owned(),
            form,
            batch_size,
            classes,
            class_weights: config.class_weights.clone(),
            label_smoothing: config.label_smoothing,
            has_row_weights,
            row_weights: Vec::new(),
            buffer: BatchBuffer::default(),
            one_hot: Vec::new(),
            tokens: Vec::new(),
            next_tokens: Vec::new(),
            has_token_weights,
            token_weights: Vec::new(),
        })
    }

    /// Returns the number of logits of an example.
    pub(super) fn classes(&self) -> usize {
        self.classes
    }

    /// Returns the number of examples in a batch.
    pub(super) fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// Returns the memory for the batch that the other methods upload.
    pub(super) fn buffer(&mut self) -> &mut BatchBuffer {
        &mut self.buffer
    }

    /// Returns the number of predictions of an example: one, or one for each token.
    pub(super) fn predictions(&self) -> usize {
        match self.form {
            LabelForm::NextTokens => self.feature_shape.iter().product(),
            LabelForm::Ids | LabelForm::OneHot | LabelForm::Targets => 1,
        }
    }

    /// Returns the labels of the batch in the buffer, one for each prediction. For tokens, they
    /// belong to the last upload.
    pub(super) fn labels(&self) -> &[u32] {
        match self.form {
            LabelForm::NextTokens => &self.next_tokens,
            LabelForm::Ids | LabelForm::OneHot | LabelForm::Targets => &self.buffer.labels,
        }
    }

    /// Returns 1 for each of the [labels](Feed::labels) of the last upload that the loss counts, else 0; `None` if it counts all.
    pub(super) fn token_weights(&self) -> Option<&[f32]> {
        self.has_token_weights.then_some(&self.token_weights[..])
    }

    /// Returns the targets of the batch in the buffer; none for classification.
    pub(super) fn targets(&self) -> &[f32] {
        &self.buffer.targets
    }

    /// Checks that the examples and labels of a data set fit the model.
    pub(super) fn check(&self, data: &Dataset) -> Result<(), TrainError> {
        if data.feature_shape() != self.feature_shape {
            return Err(TrainError::FeatureShape {
                data: data.name().to_owned(),
                input: self.features_name.clone(),
                expected: self.feature_shape.clone(),
                found: data.feature_shape().to_vec(),
            });
        }
        let wants_targets = self.form == LabelForm::Targets;
        let refuse = |message: &str| {
            Err(TrainError::Targets {
                data: data.name().to_owned(),
                message: message.to_owned(),
            })
        };
        if self.form == LabelForm::NextTokens && !self.has_token_weights && data.has_uncounted_tokens() {
            return Err(TrainError::Model {
                message: format!(
                    "it counts all tokens in the loss, but '{}' has tokens that do not count",
                    data.name()
                ),
                remedy: "build the model with `weighted_language_model`",
            });
        }
        match (wants_targets, data.is_regression()) {
            (true, false) => return refuse("the model is for regression, but the data have classes"),
            (false, true) => return refuse("the model is for classification, but the data have regression targets"),
            (true, true) if data.outputs() != self.classes => {
                return refuse(&format!(
                    "the model has {} outputs, the data have {}",
                    self.classes,
                    data.outputs()
                ));
            }
            _ => {}
        }
        if data.classes() > self.classes {
            return Err(TrainError::Classes {
                data: data.name().to_owned(),
                expected: self.classes,
                found: data.classes(),
            });
        }
        Ok(())
    }

    /// Writes the features of the batch into a session.
    pub(super) fn upload(&mut self, session: &mut Session) -> Result<(), TrainError> {
        if self.form != LabelForm::NextTokens {
            return Ok(session.try_set_input(&self.features_name, &self.buffer.features)?);
        }
        self.tokens.clear();
        self.next_tokens.clear();
        self.token_weights.clear();
        let rows = self.predictions();
        for (example, &last) in self.buffer.features.chunks_exact(rows).zip(&self.buffer.labels) {
            let positions = example.iter().map(|&feature| token_of(feature));
            self.tokens.extend(positions.clone().map(|(token, _)| token));
            self.next_tokens
                .extend(positions.clone().skip(1).map(|(token, _)| token));
            self.next_tokens.push(last);
            self.token_weights
                .extend(positions.map(|(_, is_counted)| f32::from(is_counted)));
        }
        Ok(session.try_set_input_u32(&self.features_name, &self.tokens)?)
    }

    /// Writes the labels of the batch into a session.
    pub(super) fn upload_labels(&mut self, session: &mut Session) -> Result<(), TrainError> {
        let labels = &self.buffer.labels;
        match self.form {
            LabelForm::Ids => session.try_set_input_u32(&self.labels_name, labels)?,
            LabelForm::NextTokens => {
                session.try_set_input_u32(&self.labels_name, &self.next_tokens)?;
                if self.has_token_weights {
                    session.try_set_input(TARGET_WEIGHTS, &self.token_weights)?;
                }
            }
            LabelForm::Targets => {
                session.try_set_input(&self.labels_name, &self.buffer.targets)?;
                if self.has_row_weights {
                    let BatchBuffer { weighted, weight, .. } = self.buffer;
                    self.row_weights.clear();
                    self.row_weights.resize(weighted, weight);
                    self.row_weights.resize(self.batch_size, 0.0);
                    session.try_set_input(ROW_WEIGHTS, &self.row_weights)?;
                }
            }
            LabelForm::OneHot => {
                one_hot(labels, self.classes, &mut self.one_hot)?;
                soften(
                    labels,
                    self.class_weights.as_deref(),
                    self.label_smoothing,
                    &mut self.one_hot,
                );
                let BatchBuffer { weighted, weight, .. } = self.buffer;
                weigh(&mut self.one_hot, self.classes, weighted, weight);
                session.try_set_input(&self.labels_name, &self.one_hot)?;
            }
        }
        Ok(())
    }

    /// Sets the labels of a session that computes no loss to arbitrary values: a step needs all
    /// inputs to be set.
    pub(super) fn load_no_labels(&self, session: &mut Session) -> Result<(), TrainError> {
        let plan = session.plan();
        let unused = [self.labels_name.as_str(), ROW_WEIGHTS, TARGET_WEIGHTS];
        let buffers = plan
            .input_buffers
            .iter()
            .filter(|(name, _)| unused.contains(&name.as_str()));
        let zeros: Vec<(String, Vec<u8>)> = buffers
            .map(|(name, buffer)| (name.clone(), vec![0; plan.buffers[buffer.index()]]))
            .collect();
        for (name, zeros) in zeros {
            session.try_set_input_bytes(&name, &zeros)?;
        }
        Ok(())
    }
}

/// Spreads a share of each label over all classes, and multiplies each row of `[labels.len(), classes]` by the weight
/// of its class.
fn soften(labels: &[u32], weights: Option<&[f32]>, smoothing: f32, rows: &mut [f32]) {
    if labels.is_empty() || weights.is_none() && smoothing == 0.0 {
        return;
    }
    let classes = rows.len() / labels.len();
    let spread = smoothing / classes as f32;
    for (row, &label) in rows.chunks_exact_mut(classes).zip(labels) {
        let weight = weights.and_then(|w| w.get(label as usize)).copied().unwrap_or(1.0);
        row.iter_mut()
            .for_each(|value| *value = weight * ((1.0 - smoothing) * *value + spread));
    }
}

/// Multiplies the leading rows, `[_, classes]`, by their weight, and all further rows by 0.
fn weigh(rows: &mut [f32], classes: usize, weighted: usize, weight: f32) {
    let (leading, others) = rows.split_at_mut((weighted * classes).min(rows.len()));
    if weight != 1.0 {
        leading.iter_mut().for_each(|value| *value *= weight);
    }
    others.fill(0.0);
}

/// Returns the type of the input of this name.
fn input<'g>(graph: &'g Graph, name: &str) -> Result<&'g TensorType, TrainError> {
    let is_input = |kind: &NodeKind| matches!(kind, NodeKind::Input);
    let found = graph
        .leaf_named(name)
        .filter(|id| is_input(&graph.nodes()[id.index()].kind));
    let ty = found.and_then(|id| graph.ty(id));
    ty.ok_or_else(|| {
        let inputs = graph.nodes().iter().filter(|n| is_input(&n.kind));
        Error::unknown_tensor(TensorKind::Input, name, inputs.filter_map(|n| n.name.as_deref())).into()
    })
}

/// Returns the value of the logits, the second output.
pub(super) fn logits(graph: &Graph) -> Result<Value, TrainError> {
    graph.outputs().get(1).copied().ok_or_else(|| TrainError::Model {
        message: format!("it has {} outputs", graph.outputs().len()),
        remedy: "set the outputs to the loss, f32[], and the logits, f32[batch, classes]",
    })
}

/// Returns the number of classes, from the shape of the logits: the last axis, after the leading
/// ones.
fn classes(graph: &Graph, leading: &[usize]) -> Result<usize, TrainError> {
    let ty = graph.ty(logits(graph)?);
    match ty.map(|ty| (ty.dtype, ty.shape.dims().split_last())) {
        Some((DType::F32, Some((&classes, rows)))) if rows == leading && classes > 0 => Ok(classes),
        _ => Err(TrainError::Model {
            message: match ty {
                Some(ty) => format!("the second output is {ty}"),
                None => "the second output is not valid".to_owned(),
            },
            remedy: "the second output is the logits, f32[batch, classes], or f32[batch, rows, vocab] of tokens",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_softened_as_by_hand() {
        let soft = |weights: Option<&[f32]>, smoothing| {
            let mut rows = vec![0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0];
            soften(&[1, 0], weights, smoothing, &mut rows);
            rows
        };
        assert_eq!(soft(None, 0.0), [0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
        // A tenth is spread over four classes.
        let row = [0.025, 0.925, 0.025, 0.025];
        let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(close(&soft(None, 0.1)[..4], &row));
        let weights = Some(&[0.5, 2.0, 1.0, 1.0][..]);
        assert_eq!(soft(weights, 0.0), [0.0, 2.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0]);
        assert!(close(&soft(weights, 0.1)[..4], &row.map(|v| 2.0 * v)));
    }
}
