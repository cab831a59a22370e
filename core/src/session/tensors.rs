//! Lookup of a session's tensors by name.

use std::collections::BTreeMap;

use crate::backend::Executable;
use crate::dtype::DType;
use crate::error::{Error, Result, TensorKind};
use crate::plan::{BufferRef, ExecutionPlan, OWN_SEGMENTS, Part, Segment, TensorView};
use crate::shape::TensorType;

/// A named tensor.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    kind: TensorKind,
    pub(super) name: String,
    pub(super) buffer: BufferRef,
    pub(super) ty: TensorType,
    /// Part of the buffer; `None` if it is the whole buffer.
    part: Option<Part>,
}

/// All named tensors, and the inputs that have no data yet.
#[derive(Debug)]
pub(super) struct Tensors {
    parameters: BTreeMap<String, Tensor>,
    inputs: BTreeMap<String, Tensor>,
    states: BTreeMap<String, Tensor>,
    gradients: BTreeMap<String, Tensor>,
    outputs: Vec<Tensor>,
    /// Names of the tensors in each packed tensor, by its internal name.
    packed: BTreeMap<String, Vec<String>>,
    /// Inputs that have no data yet, by name, with the segments that need them.
    unset: BTreeMap<String, Vec<usize>>,
}

impl Tensors {
    pub(super) fn of(plan: &ExecutionPlan) -> Self {
        let map = |kind, list: Vec<TensorView>| {
            let tensor = |view: TensorView| (view.name.clone(), Tensor::new(kind, view));
            list.into_iter().map(tensor).collect::<BTreeMap<_, _>>()
        };
        let whole = |(name, &buffer): (String, &BufferRef), ty: &TensorType| TensorView {
            name,
            ty: ty.clone(),
            buffer,
            part: None,
        };
        let input = |(name, buffer): &(String, BufferRef)| {
            let ty = &plan.buffer_types[buffer.index()];
            whole((name.clone(), buffer), ty)
        };
        let inputs = map(TensorKind::Input, plan.input_buffers.iter().map(input).collect());
        let outputs = plan.output_buffers.iter().zip(&plan.output_types).enumerate();
        // Unnamed outputs have their index as a name.
        let name = |index: usize| {
            plan.output_names
                .get(index)
                .cloned()
                .unwrap_or_else(|| index.to_string())
        };
        let outputs = outputs.map(|(index, (buffer, ty))| whole((name(index), buffer), ty));
        Tensors {
            outputs: outputs.map(|view| Tensor::new(TensorKind::Output, view)).collect(),
            unset: inputs
                .iter()
                .map(|(name, t)| (name.clone(), users(plan, name, t.buffer)))
                .filter(|(_, users)| !users.is_empty())
                .collect(),
            parameters: map(TensorKind::Parameter, plan.parameters()),
            states: map(TensorKind::State, plan.states()),
            gradients: map(TensorKind::Gradient, plan.gradients()),
            packed: packed_names(plan),
            inputs,
        }
    }

    /// Rebuilds the tensors after the plan was recompiled. Inputs with data keep it.
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
        map.get(name).ok_or_else(|| match self.packed.get(name) {
            Some(sources) if sources.iter().any(|s| map.contains_key(s)) => packed_error(kind, name, sources),
            _ => Error::unknown_tensor(kind, name, map.keys().map(String::as_str)),
        })
    }

    /// Iterates over the states in a buffer.
    pub(super) fn states_in(&self, buffer: BufferRef) -> impl Iterator<Item = &Tensor> {
        self.states.values().filter(move |t| t.buffer == buffer)
    }

    /// Returns output `index` as a tensor.
    pub(super) fn output(&self, index: usize) -> Result<&Tensor> {
        self.outputs.get(index).ok_or_else(|| {
            let known = self.outputs.iter().map(|t| t.name.as_str());
            Error::unknown_tensor(TensorKind::Output, &index.to_string(), known)
        })
    }

    /// Returns the index of the output with this name.
    pub(super) fn output_named(&self, name: &str) -> Result<usize> {
        self.outputs.iter().position(|t| t.name == name).ok_or_else(|| {
            let known = self.outputs.iter().map(|t| t.name.as_str());
            Error::unknown_tensor(TensorKind::Output, name, known)
        })
    }

    pub(super) fn mark_set(&mut self, name: &str) {
        self.unset.remove(name);
    }

    /// Checks that all inputs of these segments have data.
    pub(super) fn check_inputs_set(&self, segments: &[usize]) -> Result<()> {
        if self.unset.is_empty() {
            return Ok(());
        }
        let needed = self
            .unset
            .iter()
            .filter(|(_, users)| users.iter().any(|s| segments.contains(s)));
        let names: Vec<String> = needed.map(|(name, _)| name.clone()).collect();
        if names.is_empty() {
            Ok(())
        } else {
            Err(Error::InputNotSet { names })
        }
    }
}

/// Returns the internal name of each packed tensor, with the names of the tensors that it contains.
fn packed_names(plan: &ExecutionPlan) -> BTreeMap<String, Vec<String>> {
    let derived = plan.derived_params.iter();
    let parameters = derived.filter_map(|(buffer, sources)| {
        let names = sources.iter().map(|(name, _)| name.clone());
        Some((plan.parameter_name(*buffer)?.to_owned(), names.collect()))
    });
    let mut names: BTreeMap<String, Vec<String>> = parameters.collect();
    let views = plan.states();
    for state in plan.state_buffers.iter().filter(|s| s.packed.is_some()) {
        let own = views.iter().filter(|v| v.buffer == state.buffer);
        names.insert(state.name.clone(), own.map(|v| v.name.clone()).collect());
    }
    names
}

fn packed_error(kind: TensorKind, name: &str, sources: &[String]) -> Error {
    let list = sources.iter().map(|s| format!("'{s}'")).collect::<Vec<_>>().join(", ");
    Error::misuse(
        format!("'{name}' is the common storage of several {kind}s, not one of them"),
        format!("they have names of their own: {list}"),
    )
}

/// Returns the segments that read an input: an unused input needs no data. An input that is also an
/// output belongs to the segment that it was added with.
fn users(plan: &ExecutionPlan, name: &str, buffer: BufferRef) -> Vec<usize> {
    let reads = |s: &Segment| {
        let dispatches = &plan.dispatches[s.range()];
        dispatches.iter().any(|d| d.inputs.iter().any(|o| o.buffer == buffer))
    };
    let is_of = |s: &Segment| {
        !s.once
            && !OWN_SEGMENTS.contains(&s.name.as_str())
            && name.strip_prefix(s.name.as_str()).is_some_and(|n| n.starts_with('.'))
    };
    let own = || plan.segments.iter().position(|s| !s.once);
    let home = plan.segments.iter().position(is_of).or_else(own).unwrap_or(0);
    let is_output = plan.output_buffers.contains(&buffer);
    let segments = plan.segments.iter().enumerate();
    let users = segments.filter(|(i, s)| reads(s) || *i == home && is_output);
    users.map(|(i, _)| i).collect()
}

impl Tensor {
    fn new(kind: TensorKind, view: TensorView) -> Self {
        Tensor {
            kind,
            name: view.name,
            buffer: view.buffer,
            ty: view.ty,
            part: view.part,
        }
    }

    /// Writes all storage bytes of the tensor.
    pub(super) fn write(&self, executable: &mut dyn Executable, bytes: &[u8]) -> Result<()> {
        match &self.part {
            Some(part) => executable.write_part(self.buffer, part, bytes),
            None => executable.write(self.buffer, 0, bytes),
        }
    }

    /// Reads all storage bytes of the tensor.
    pub(super) fn read(&self, executable: &mut dyn Executable, bytes: &mut [u8]) -> Result<()> {
        match &self.part {
            Some(part) => executable.read_part(self.buffer, part, bytes),
            None => executable.read(self.buffer, 0, bytes),
        }
    }

    /// Returns the tensor's buffer if data of this dtype and length fits.
    pub(super) fn checked(&self, dtype: DType, len: usize) -> Result<BufferRef> {
        if self.ty.dtype != dtype {
            let remedy = match (self.kind, self.ty.dtype) {
                (TensorKind::Input, DType::U32) => "use `set_input_u32`",
                (TensorKind::Input, DType::F32) => "use `set_input`",
                (TensorKind::Input, _) => "use `try_set_input_bytes`",
                (TensorKind::Output, DType::U32) => "use `try_read_output_u32`",
                (TensorKind::Output, _) => "use `try_read_output_bytes`",
                (TensorKind::Parameter, _) => "use `try_set_parameter_bytes` or `try_read_parameter_bytes`",
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

    /// Returns the tensor's buffer if this number of storage bytes fits.
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
