//! The execution plan: a fully static description of a step, as plain data.
//!
//! Every value of the graph owns one logical buffer (reshapes share theirs); leaves are filled before the
//! dispatches begin. Backends replay the dispatches of the segments that a step asks for, level by level:
//! dispatches of one level are independent of each other.

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

/// Version of the plan's data model; raised with every incompatible change.
pub const PLAN_VERSION: u32 = 8;

/// Index of a logical buffer in [`ExecutionPlan::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BufferRef(pub u32);

impl BufferRef {
    /// As a list index.
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
    /// Version of its meaning.
    pub version: u32,
}

/// A buffer as a dispatch sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operand {
    /// The buffer.
    pub buffer: BufferRef,
    /// Dtype and shape in which it is seen (aliases may differ in shape).
    pub ty: TensorType,
}

/// One kernel launch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dispatch {
    /// What runs.
    pub kernel: KernelRef,
    /// Attributes of the call.
    pub attrs: Attrs,
    /// Read operands.
    pub inputs: Vec<Operand>,
    /// Written operands. One that shares its buffer with an input is computed in place.
    pub outputs: Vec<Operand>,
    /// Position in the dependency order of its segment, from 0.
    pub level: u32,
    /// Provenance: name or number of the node it came from, and the operator.
    pub label: String,
    /// The line that the call came from, as an index into the list of source lines of the plan.
    pub source: Option<u32>,
    /// Whether a cooperative-matrix variant was chosen (GPU backends).
    pub use_coop: bool,
    /// Name of the kernel's variant (its schedule) that the backend chose, if it recorded one. Only that backend interprets
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

impl Dispatch {
    /// What runs, for listings: the kernel's name, and of a program its calls, as in `core.fused[add, relu]`.
    pub fn title(&self) -> String {
        call_title(&self.kernel.name, &self.attrs)
    }

    /// Size of all operands in bytes. A buffer that is read and written counts once.
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

    /// Types of what it reads, and of what it writes.
    pub fn types(&self) -> [Vec<TensorType>; 2] {
        [&self.inputs, &self.outputs].map(|operands| operands.iter().map(|o| o.ty.clone()).collect())
    }

    /// Its kernel as devices and operators see it, with its own [types](Self::types).
    pub fn kernel_desc<'a>(&'a self, [inputs, outputs]: &'a [Vec<TensorType>; 2]) -> KernelDesc<'a> {
        KernelDesc {
            name: &self.kernel.name,
            version: self.kernel.version,
            attrs: &self.attrs,
            inputs,
            outputs,
        }
    }

    /// Its price on a device, as of its [call](call_cost), in picoseconds; 0 for a kernel that is no operator's.
    pub fn cost(&self, target: &dyn Target) -> u64 {
        let types = self.types();
        let kernel = self.kernel_desc(&types);
        registered::op(&self.kernel.name).map_or(0, |op| call_cost(target, op, &kernel.call()))
    }
}

/// An operator's name, and of a program the calls.
fn call_title(name: &str, attrs: &Attrs) -> String {
    let programs = attrs.iter().filter_map(|(_, attr)| match attr {
        Attr::Program(program) => Some(format!("[{}]", program.title())),
        _ => None,
    });
    std::iter::once(name.to_owned()).chain(programs).collect()
}

/// A consecutive range of dispatches that a step may include or leave out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Name; see [`PREPARE`], [`FORWARD_BACKWARD`], [`ACCUMULATE`], [`LOSS_SCALE`] and [`UPDATE`].
    pub name: String,
    /// First dispatch.
    pub first: usize,
    /// Number of dispatches.
    pub count: usize,
    /// An `f32` of the plan; where it is not 0 when the segment begins, no parameter and no state is written by it.
    pub skip_if: Option<BufferRef>,
    /// Whether its results stay the same until a parameter or a state that it reads is written from outside. Such a segment
    /// runs before the one that follows it, if one of them was.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub once: bool,
}

/// Segment that computes what depends on parameters, states and constants alone, for the forward pass behind it.
pub const PREPARE: &str = "prepare";

/// Segment that computes outputs and gradients.
pub const FORWARD_BACKWARD: &str = "forward_backward";
/// Segment that adds the gradients to their averages, where several steps make one update.
pub const ACCUMULATE: &str = "accumulate";
/// Segment that looks for gradients that are not finite, and changes the loss scale; see [`crate::loss_scaling`].
pub const LOSS_SCALE: &str = "loss_scale";
/// Segment that updates the parameters from the gradients, or from their averages.
pub const UPDATE: &str = "update";
/// Segments that a step may have; others are those of joined plans.
pub(crate) const OWN_SEGMENTS: [&str; 5] = [PREPARE, FORWARD_BACKWARD, ACCUMULATE, LOSS_SCALE, UPDATE];

impl Segment {
    /// Indices of its dispatches.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.count
    }
}

/// Persistent data that is not a parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StateBuffer {
    /// Name.
    pub name: String,
    /// Where it lives.
    pub buffer: BufferRef,
    /// Every element's value in a fresh session.
    pub fill: f32,
    /// Whether it belongs to the optimizer (moments).
    pub optimizer: bool,
    /// The packed parameter whose layout it has: its name ends in that of the parameter, and with that of a source
    /// instead it names the part that belongs to the source.
    pub packed: Option<BufferRef>,
}

/// Facts about a parameter beyond its buffer, in the order of [`ExecutionPlan::param_buffers`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParamInfo {
    /// Whether training changes it.
    pub trainable: bool,
    /// How a fresh session may fill it; a packed one is filled source by source.
    pub init: Init,
}

/// A step as data: buffers, who fills them, and the dispatches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecutionPlan {
    /// [`PLAN_VERSION`] at the time of compilation.
    pub version: u32,
    /// Everything but the graph that it was built from.
    pub build_key: BuildKey,
    /// Precision of matmuls and convolutions.
    pub precision: Precision,
    /// The loss scale of the gradients during backpropagation, if they have one.
    pub loss_scaling: Option<LossScaling>,
    /// Bytes of each logical buffer.
    pub buffers: Vec<usize>,
    /// Dtype and shape in which each buffer was made.
    #[serde(with = "stored::buffer_types")]
    pub buffer_types: Vec<TensorType>,
    /// Parameters by name. A packed one has an internal name here; users refer to those that
    /// [`ExecutionPlan::parameters`] lists.
    pub param_buffers: Vec<(String, BufferRef)>,
    /// Facts about each parameter, in the same order.
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
    /// All launches, segment after segment, sorted by level within each.
    #[serde(with = "stored::dispatches")]
    pub dispatches: Vec<Dispatch>,
    /// Parts of a step.
    pub segments: Vec<Segment>,
    /// The first graph output.
    pub loss_buffer: Option<BufferRef>,
    /// All graph outputs.
    pub output_buffers: Vec<BufferRef>,
    /// Types of the graph outputs.
    pub output_types: Vec<TensorType>,
    /// Names of the graph outputs, as many as there are, or none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output_names: Vec<String>,
    /// Trainable parameter and its gradient.
    pub param_grad_pairs: Vec<(BufferRef, BufferRef)>,
    /// Every gradient by the name of its leaf (parameters and inputs).
    pub gradient_buffers: Vec<(String, BufferRef)>,
    /// Log-sum-exp results (ports named `lse`) by node.
    pub lse_buffers: Vec<(NodeId, BufferRef)>,
    /// Packed parameters: buffer, and names of the sources with their sizes along the axis.
    pub derived_params: Vec<(BufferRef, Vec<(String, usize)>)>,
    /// Facts about each packed parameter, in the same order.
    pub derived_info: Vec<DerivedInfo>,
    /// Offsets of the buffers.
    pub memory: MemoryLayout,
    /// The dispatches that are recomputed to need less memory, if a budget was given.
    pub recomputation: Option<Recomputation>,
    /// Lines of source that dispatches came from.
    pub sources: Vec<SourceLine>,
}

impl ExecutionPlan {
    /// Number of levels of a segment.
    pub fn levels(&self, segment: &Segment) -> usize {
        self.dispatches[segment.range()]
            .last()
            .map_or(0, |d| d.level as usize + 1)
    }

    /// The segment of that name.
    pub fn segment(&self, name: &str) -> Option<&Segment> {
        self.segments.iter().find(|s| s.name == name)
    }

    /// Bytes of all buffers together, as if none shared memory with another.
    pub fn total_bytes(&self) -> usize {
        self.buffers.iter().sum()
    }

    /// Contents of a constant buffer.
    pub fn constants(&self) -> impl Iterator<Item = (BufferRef, Vec<u8>)> + '_ {
        let floats = self
            .constant_buffers
            .iter()
            .map(|(b, v)| (*b, v.iter().flat_map(|x| x.to_le_bytes()).collect()));
        floats.chain(self.raw_constant_buffers.iter().map(|(b, v)| (*b, v.clone())))
    }

    /// What a buffer is, for messages: a leaf by its name, or the result of a call; with its type.
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
    /// One line a dispatch, by segment and level.
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
