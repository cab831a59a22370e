//! Tensors of a session by name.

use std::collections::{BTreeMap, BTreeSet};

use crate::dtype::DType;
use crate::error::{Error, Result, TensorKind};
use crate::plan::{BufferRef, ExecutionPlan};
use crate::shape::TensorType;

/// A named tensor.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    kind: TensorKind,
    name: String,
    pub(super) buffer: BufferRef,
    pub(super) ty: TensorType,
}

/// All named tensors, and which inputs have data.
#[derive(Debug)]
pub(super) struct Tensors {
    parameters: BTreeMap<String, Tensor>,
    inputs: BTreeMap<String, Tensor>,
    states: BTreeMap<String, Tensor>,
    gradients: BTreeMap<String, Tensor>,
    outputs: Vec<Tensor>,
    unset: BTreeSet<String>,
}

impl Tensors {
    pub(super) fn of(plan: &ExecutionPlan) -> Self {
        let map = |kind, list: &mut dyn Iterator<Item = (&String, BufferRef)>| {
            list.map(|(name, buffer)| {
                let tensor = Tensor {
                    kind,
                    name: name.clone(),
                    buffer,
                    ty: plan.buffer_types[buffer.index()].clone(),
                };
                (name.clone(), tensor)
            })
            .collect::<BTreeMap<_, _>>()
        };
        let inputs = map(TensorKind::Input, &mut plan.input_buffers.iter().map(|(n, b)| (n, *b)));
        let parameters = map(
            TensorKind::Parameter,
            &mut plan.param_buffers.iter().map(|(n, b)| (n, *b)),
        );
        let mut gradients = map(
            TensorKind::Gradient,
            &mut plan.gradient_buffers.iter().map(|(n, b)| (n, *b)),
        );
        // A gradient may be an alias of a buffer of another shape; its own shape is the leaf's.
        for (name, gradient) in &mut gradients {
            if let Some(leaf) = parameters.get(name).or_else(|| inputs.get(name)) {
                gradient.ty = leaf.ty.clone();
            }
        }
        let outputs = plan.output_buffers.iter().zip(&plan.output_types).enumerate();
        Tensors {
            outputs: outputs
                .map(|(index, (&buffer, ty))| Tensor {
                    kind: TensorKind::Output,
                    name: index.to_string(),
                    buffer,
                    ty: ty.clone(),
                })
                .collect(),
            unset: inputs
                .iter()
                .filter(|(_, t)| is_used(plan, t.buffer))
                .map(|(name, _)| name.clone())
                .collect(),
            states: map(
                TensorKind::State,
                &mut plan.state_buffers.iter().map(|s| (&s.name, s.buffer)),
            ),
            parameters,
            inputs,
            gradients,
        }
    }

    /// After the plan was compiled anew: the same inputs remain set.
    pub(super) fn renew(&mut self, plan: &ExecutionPlan) {
        let unset = std::mem::take(&mut self.unset);
        *self = Tensors {
            unset,
            ..Tensors::of(plan)
        };
    }

    pub(super) fn find(&self, kind: TensorKind, name: &str) -> Result<&Tensor> {
        let map = match kind {
            TensorKind::Parameter => &self.parameters,
            TensorKind::State => &self.states,
            TensorKind::Gradient => &self.gradients,
            TensorKind::Input | TensorKind::Output | TensorKind::Scalar => &self.inputs,
        };
        map.get(name)
            .ok_or_else(|| Error::unknown_tensor(kind, name, map.keys().map(String::as_str)))
    }

    /// Output `index` as a tensor.
    pub(super) fn output(&self, index: usize) -> Result<&Tensor> {
        self.outputs.get(index).ok_or_else(|| {
            let known = self.outputs.iter().map(|t| t.name.as_str());
            Error::unknown_tensor(TensorKind::Output, &index.to_string(), known)
        })
    }

    pub(super) fn mark_set(&mut self, name: &str) {
        self.unset.remove(name);
    }

    pub(super) fn check_inputs_set(&self) -> Result<()> {
        if self.unset.is_empty() {
            return Ok(());
        }
        Err(Error::InputNotSet {
            names: self.unset.iter().cloned().collect(),
        })
    }
}

/// Whether a step reads a buffer: an input that nothing reads needs no data.
fn is_used(plan: &ExecutionPlan, buffer: BufferRef) -> bool {
    plan.dispatches
        .iter()
        .any(|d| d.inputs.iter().any(|o| o.buffer == buffer))
        || plan.output_buffers.contains(&buffer)
}

impl Tensor {
    /// The buffer, if data of this dtype and length is right for it.
    pub(super) fn checked(&self, dtype: DType, len: usize) -> Result<BufferRef> {
        if self.ty.dtype != dtype {
            let remedy = match (self.kind, self.ty.dtype) {
                (TensorKind::Input, DType::U32) => "use `set_input_u32`",
                (TensorKind::Input, DType::F32) => "use `set_input`",
                (TensorKind::Input, _) => "use `try_set_input_bytes`",
                (TensorKind::Output, DType::U32) => "use `try_read_output_u32`",
                (TensorKind::Output, _) => "use `try_read_output_bytes`",
                _ => "",
            };
            return Err(Error::WrongDType {
                kind: self.kind,
                name: self.name.clone(),
                expected: self.ty.dtype.to_string(),
                found: dtype.to_string(),
                remedy: remedy.to_owned(),
            });
        }
        if self.ty.numel() != len {
            return Err(Error::WrongLength {
                kind: self.kind,
                name: self.name.clone(),
                shape: self.ty.shape.clone(),
                found: len,
            });
        }
        Ok(self.buffer)
    }

    /// The buffer, if so many storage bytes are right for it.
    pub(super) fn checked_bytes(&self, bytes: usize) -> Result<BufferRef> {
        if self.ty.bytes() == bytes {
            return Ok(self.buffer);
        }
        let block = self.ty.dtype.block();
        Err(Error::WrongLength {
            kind: self.kind,
            name: self.name.clone(),
            shape: self.ty.shape.clone(),
            found: bytes / block.bytes * block.elements,
        })
    }
}
