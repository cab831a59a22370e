//! The execution plan: a fully static description of a step, as plain data.
//!
//! Every value of the graph owns one logical buffer (reshapes share their operand's); leaves are
//! filled before the dispatches begin. Backends replay the dispatches of the requested segments,
//! level by level: dispatches of one level are independent of each other.

mod compile;
mod faults;
mod join;
mod key;
mod levels;
pub mod memory;
pub mod optimizer;
mod packed;
mod prepare;
mod source;
mod stored;
mod verify;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use compile::{compile, compile_at, compile_for, try_compile};
pub use faults::HostIndices;
pub use key::BuildKey;
pub use memory::{Lifetime, MemoryBudget, MemoryForecast, MemoryLayout, Recomputation, check_fit};
pub use packed::{DerivedInfo, Part, TensorView};
pub use source::SourceLine;

use crate::attrs::{Attr, Attrs};
use crate::cost::{Target, call_cost};
use crate::error::TensorKind;
use crate::graph::NodeId;
use crate::init::Init;
use crate::kernel::KernelDesc;
use crate::loss_scaling::LossScaling;
use crate::ops::registered;
use crate::precision::Precision;
use crate::shape::TensorType;

/// Version of the plan's data model; increased with every incompatible change.
pub const PLAN_VERSION: u32 = 8;

/// Index of a logical buffer in [`ExecutionPlan::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BufferRef(pub u32);

impl BufferRef {
    /// Returns the id as a list index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for BufferRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}", self.0)
    }
}

/// Kernel that a dispatch runs: an operator's name and its version.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelRef {
    /// Namespaced operator name.
    pub name: String,
    /// Version of the operator's meaning.
    pub version: u32,
}

/// A buffer that a dispatch reads or writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operand {
    /// The buffer.
    pub buffer: BufferRef,
    /// Dtype and shape as the dispatch uses them. For an alias, they may differ from the buffer's own.
    pub ty: TensorType,
}

/// One entry of a plan: a call of a kernel, which a backend runs with one or several launches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dispatch {
    /// Kernel to run.
    pub kernel: KernelRef,
    /// Attributes of the call.
    pub attrs: Attrs,
    /// Operands that the kernel reads.
    pub inputs: Vec<Operand>,
    /// Operands that the kernel writes. An output that shares its buffer with an input is computed in place.
    pub outputs: Vec<Operand>,
    /// Dependency level within the segment, from 0: dispatches of one level are independent of each other.
    pub level: u32,
    /// Provenance: name or number of the node it came from, and the operator.
    pub label: String,
    /// The line that the call came from, as an index into the list of source lines of the plan.
    pub source: Option<u32>,
    /// `true` if a cooperative-matrix variant was chosen (GPU backends).
    pub use_coop: bool,
    /// Name of the kernel's variant (its schedule) that the backend chose, if it recorded one. Only that backend
    /// interprets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

impl Dispatch {
    /// Returns the title for listings: the kernel's name, and for a program its calls, as in
    /// `core.fused[add, relu]`.
    pub fn title(&self) -> String {
        call_title(&self.kernel.name, &self.attrs)
    }

    /// Returns the total size of all operands in bytes; a buffer that is read and written counts once.
    pub fn operand_bytes(&self) -> u64 {
        let mut seen: Vec<BufferRef> = Vec::new();
        let mut bytes = 0;
        for operand in self.inputs.iter().chain(&self.outputs) {
            if !seen.contains(&operand.buffer) {
                seen.push(operand.buffer);
                bytes += operand.ty.bytes() as u64;
            }
        }
        bytes
    }

    /// Returns the types of its inputs and of its outputs.
    pub fn types(&self) -> [Vec<TensorType>; 2] {
        [&self.inputs, &self.outputs].map(|operands| operands.iter().map(|o| o.ty.clone()).collect())
    }

    /// Returns the description of the kernel for devices and operators; `types` are the dispatch's own
    /// [types](Self::types).
    pub fn kernel_desc<'a>(&'a self, [inputs, outputs]: &'a [Vec<TensorType>; 2]) -> KernelDesc<'a> {
        KernelDesc {
            name: &self.kernel.name,
            version: self.kernel.version,
            attrs: &self.attrs,
            inputs,
            outputs,
        }
    }

    /// Returns the cost on a device in picoseconds, as that of its [call](call_cost); 0 if the kernel belongs to no
    /// operator.
    pub fn cost(&self, target: &dyn Target) -> u64 {
        let types = self.types();
        let kernel = self.kernel_desc(&types);
        registered::op(&self.kernel.name).map_or(0, |op| call_cost(target, op, &kernel.call()))
    }
}

/// Returns an operator's name, and for a program its calls.
fn call_title(name: &str, attrs: &Attrs) -> String {
    let programs = attrs.iter().filter_map(|(_, attr)| match attr {
        Attr::Program(program) => Some(format!("[{}]", program.title())),
        _ => None,
    });
    std::iter::once(name.to_owned()).chain(programs).collect()
}

/// A consecutive range of dispatches that a step may run or skip.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Name; see [`PREPARE`], [`FORWARD_BACKWARD`], [`ACCUMULATE`], [`LOSS_SCALE`] and [`UPDATE`].
    pub name: String,
    /// Index of the first dispatch.
    pub first: usize,
    /// Number of dispatches.
    pub count: usize,
    /// An `f32` buffer: if it is not 0 when the segment begins, the segment writes no parameter and no state.
    pub skip_if: Option<BufferRef>,
    /// `true` if its results stay valid until a parameter or a state that it reads is written from
    /// outside. Such a segment then runs again before the segment that follows it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub once: bool,
}

/// Segment that computes prepared values, which depend only on parameters, states and constants,
/// for the forward pass after it.
pub const PREPARE: &str = "prepare";

/// Segment that computes outputs and gradients.
pub const FORWARD_BACKWARD: &str = "forward_backward";
/// Segment that adds the gradients to their averages, if several steps make one update.
pub const ACCUMULATE: &str = "accumulate";
/// Segment that counts gradients that are not finite, and changes the loss scale; see
/// [`crate::loss_scaling`].
pub const LOSS_SCALE: &str = "loss_scale";
/// Segment that updates the parameters from the gradients, or from their averages.
pub const UPDATE: &str = "update";
/// Built-in segments; all other segments belong to joined plans.
pub(crate) const OWN_SEGMENTS: [&str; 5] = [PREPARE, FORWARD_BACKWARD, ACCUMULATE, LOSS_SCALE, UPDATE];

impl Segment {
    /// Returns the indices of the segment's dispatches.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.count
    }
}

/// Persistent data that is not a parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateBuffer {
    /// Name of the state.
    pub name: String,
    /// Buffer of the data.
    pub buffer: BufferRef,
    /// Every element's value in a fresh session.
    pub fill: f32,
    /// `true` if it belongs to the optimizer (moments).
    pub optimizer: bool,
    /// The packed parameter whose layout this state has. The name of the state then ends in the name of that parameter.
    /// With the name of a source as its ending instead, it is the name of the source's part of the state.
    pub packed: Option<BufferRef>,
}

/// Properties of a parameter, in the order of [`ExecutionPlan::param_buffers`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParamInfo {
    /// `true` if training changes it.
    pub trainable: bool,
    /// Initializer for fresh sessions; a packed parameter is filled source by source.
    pub init: Init,
}

/// A step as data: buffers, the contents of leaves, and dispatches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecutionPlan {
    /// [`PLAN_VERSION`] at the time of compilation.
    pub version: u32,
    /// All settings and properties of the environment that determine the plan, in addition to the graph.
    pub build_key: BuildKey,
    /// Precision of matmuls and convolutions.
    pub precision: Precision,
    /// Settings of the loss scale during backpropagation, if gradients are scaled.
    pub loss_scaling: Option<LossScaling>,
    /// Bytes of each logical buffer.
    pub buffers: Vec<usize>,
    /// Dtype and shape with which each buffer was created.
    #[serde(with = "stored::buffer_types")]
    pub buffer_types: Vec<TensorType>,
    /// Parameters by name. A packed parameter has an internal name here; users refer to the
    /// parameters that [`ExecutionPlan::parameters`] lists.
    pub param_buffers: Vec<(String, BufferRef)>,
    /// Properties of each parameter, in the same order.
    pub param_info: Vec<ParamInfo>,
    /// Inputs by name.
    pub input_buffers: Vec<(String, BufferRef)>,
    /// `f32` constants, uploaded once.
    pub constant_buffers: Vec<(BufferRef, Vec<f32>)>,
    /// Constants of other dtypes, as storage bytes, uploaded once.
    pub raw_constant_buffers: Vec<(BufferRef, Vec<u8>)>,
    /// Persistent data by name.
    pub state_buffers: Vec<StateBuffer>,
    /// Scalars that the session sets at each step, by name.
    pub scalar_buffers: Vec<(String, BufferRef)>,
    /// All dispatches, segment after segment, sorted by level within each.
    #[serde(with = "stored::dispatches")]
    pub dispatches: Vec<Dispatch>,
    /// The segments of a step.
    pub segments: Vec<Segment>,
    /// The first graph output: the loss when training.
    pub loss_buffer: Option<BufferRef>,
    /// All graph outputs.
    pub output_buffers: Vec<BufferRef>,
    /// Types of the graph outputs.
    pub output_types: Vec<TensorType>,
    /// Names of the graph outputs; one for each output, or empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output_names: Vec<String>,
    /// Each trained parameter with its gradient.
    pub param_grad_pairs: Vec<(BufferRef, BufferRef)>,
    /// Every gradient by the name of its leaf (parameters and inputs).
    pub gradient_buffers: Vec<(String, BufferRef)>,
    /// Log-sum-exp results (ports named `lse`) by node.
    pub lse_buffers: Vec<(NodeId, BufferRef)>,
    /// Packed parameters: buffer, and names of the sources with their sizes along the axis.
    pub derived_params: Vec<(BufferRef, Vec<(String, usize)>)>,
    /// Properties of each packed parameter, in the same order.
    pub derived_info: Vec<DerivedInfo>,
    /// Offsets of the buffers.
    pub memory: MemoryLayout,
    /// The dispatches that are recomputed to need less memory, if a budget was given.
    pub recomputation: Option<Recomputation>,
    /// Source lines that dispatches come from.
    pub sources: Vec<SourceLine>,
}

impl ExecutionPlan {
    /// Returns the number of levels of a segment.
    pub fn levels(&self, segment: &Segment) -> usize {
        self.dispatches[segment.range()]
            .last()
            .map_or(0, |d| d.level as usize + 1)
    }

    /// Returns the segment with that name.
    pub fn segment(&self, name: &str) -> Option<&Segment> {
        self.segments.iter().find(|s| s.name == name)
    }

    /// Returns the total bytes of all buffers if none shared memory.
    pub fn total_bytes(&self) -> usize {
        self.buffers.iter().sum()
    }

    /// Iterates over the constant buffers, with their contents as storage bytes.
    pub fn constants(&self) -> impl Iterator<Item = (BufferRef, Vec<u8>)> + '_ {
        let floats = self
            .constant_buffers
            .iter()
            .map(|(b, v)| (*b, v.iter().flat_map(|x| x.to_le_bytes()).collect()));
        floats.chain(self.raw_constant_buffers.iter().map(|(b, v)| (*b, v.clone())))
    }

    /// Returns a description of a buffer for messages: the name of its leaf or the call that computes it, and its type.
    pub fn describe(&self, buffer: BufferRef) -> String {
        let leaf = |kind: TensorKind, list: &[(String, BufferRef)]| {
            let found = list.iter().find(|(_, b)| *b == buffer);
            found.map(|(name, _)| format!("{kind} '{name}'"))
        };
        let state = || self.state_buffers.iter().find(|s| s.buffer == buffer);
        let writes = |d: &&Dispatch| d.outputs.iter().any(|o| o.buffer == buffer);
        let what = leaf(TensorKind::Parameter, &self.param_buffers)
            .or_else(|| leaf(TensorKind::Input, &self.input_buffers))
            .or_else(|| state().map(|s| format!("{} '{}'", TensorKind::State, s.name)))
            .or_else(|| {
                let made = self.dispatches.iter().find(writes);
                made.map(|d| format!("the result of {}", d.label))
            });
        let ty = self.buffer_types.get(buffer.index());
        let ty = ty.map(|ty| format!(" of type {ty}")).unwrap_or_default();
        format!("{}{ty}", what.unwrap_or_else(|| format!("buffer {buffer}")))
    }

    /// Adds a buffer.
    pub(crate) fn add_buffer(&mut self, ty: &TensorType) -> BufferRef {
        let buffer = BufferRef(self.buffers.len() as u32);
        self.buffers.push(ty.bytes());
        self.buffer_types.push(ty.clone());
        buffer
    }
}

impl fmt::Display for ExecutionPlan {
    /// Writes one line per dispatch, by segment and level.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "plan: {} buffers, {} bytes, {} dispatches",
            self.buffers.len(),
            self.total_bytes(),
            self.dispatches.len()
        )?;
        let list = |operands: &[Operand]| {
            let text: Vec<String> = operands.iter().map(|o| format!("{}:{}", o.buffer, o.ty)).collect();
            text.join(", ")
        };
        for segment in &self.segments {
            let skipped = segment.skip_if.map(|b| format!(", skipped if {b}")).unwrap_or_default();
            writeln!(f, "segment {}: {} levels{skipped}", segment.name, self.levels(segment))?;
            for d in &self.dispatches[segment.range()] {
                let attrs = if d.attrs.is_empty() {
                    String::new()
                } else {
                    format!(" {{{}}}", d.attrs)
                };
                writeln!(
                    f,
                    "  {:>3}  {} = {}({}){attrs}  # {}",
                    d.level,
                    list(&d.outputs),
                    d.kernel.name,
                    list(&d.inputs),
                    d.label
                )?;
            }
        }
        Ok(())
    }
}
