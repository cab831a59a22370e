//! Labels of classes.

use meganeura_core::DType;
use meganeura_core::graph::Value;

use crate::element::ElementType;
use crate::import::{Call, Operand};
use crate::tensor::Tensor;

/// Labels of the classes of a model.
pub(super) enum ClassLabels {
    Ints(Vec<i64>),
    Strings(Vec<String>),
}

impl ClassLabels {
    /// Reads the labels from the attributes of these names; `None` if both are missing or empty.
    pub(super) fn read(call: &Call, ints: &str, strings: &str) -> Result<Option<Self>, String> {
        let numbers = super::ints(call, ints)?;
        let texts = call.attributes().strings(strings)?.unwrap_or_default();
        match (numbers.is_empty(), texts.is_empty()) {
            (true, true) => Ok(None),
            (false, true) => Ok(Some(ClassLabels::Ints(numbers.to_vec()))),
            (true, false) => Ok(Some(ClassLabels::Strings(
                texts.into_iter().map(str::to_owned).collect(),
            ))),
            (false, false) => Err(format!("expected {ints} or {strings}, found both")),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            ClassLabels::Ints(labels) => labels.len(),
            ClassLabels::Strings(labels) => labels.len(),
        }
    }

    /// Returns the labels as text.
    pub(super) fn texts(&self) -> Vec<String> {
        match self {
            ClassLabels::Ints(labels) => labels.iter().map(i64::to_string).collect(),
            ClassLabels::Strings(labels) => labels.clone(),
        }
    }

    /// Returns the labels of classes `at` (`u32`, any shape), as `int64` or strings of the same shape.
    pub(super) fn select(self, call: &mut Call, at: Value) -> Result<Operand, String> {
        match self {
            ClassLabels::Strings(labels) => {
                let at = call.graph().cast(at, DType::I32);
                Ok(call.string_result(at, labels))
            }
            ClassLabels::Ints(labels) => {
                if labels.iter().copied().eq(0..labels.len() as i64) {
                    let at = call.graph().cast(at, DType::I32);
                    return Ok(call.result(at, ElementType::I64));
                }
                let count = labels.len();
                let table = Tensor::i64(&[count], labels).to_constant()?;
                let graph = call.graph();
                let table = graph.constant_data(table, &[count]);
                let label = graph.gather(table, at);
                Ok(call.result(label, ElementType::I64))
            }
        }
    }
}
