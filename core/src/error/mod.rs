//! The error type of the library.
//!
//! Every message describes the problem, names the node, tensor or file, and suggests a remedy (the
//! `help:` line).

mod collective;
mod names;

use std::fmt;
use std::panic::Location;
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use collective::{Collective, CollectiveError, CollectiveFailure};
pub use names::{closest, names_there_are};
use names::{edit_distance, known};

use crate::shape::Shape;

/// Result with the library's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Source location of the builder call that made a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SourceLocation {
    /// File, as the compiler names it.
    pub file: &'static str,
    /// Line, from 1.
    pub line: u32,
}

impl From<&'static Location<'static>> for SourceLocation {
    fn from(l: &'static Location<'static>) -> Self {
        SourceLocation {
            file: l.file(),
            line: l.line(),
        }
    }
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A node as errors name it: operator, name if it has one, and source location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLabel(pub String);

impl fmt::Display for NodeLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Kinds of tensors that a session addresses by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TensorKind {
    /// Data that the caller sets before each step.
    Input,
    /// Trained or loaded weights.
    Parameter,
    /// Persistent, untrained.
    State,
    /// Derivative of the loss.
    Gradient,
    /// A result.
    Output,
    /// A number that is set for each step.
    Scalar,
}

impl TensorKind {
    /// Returns the name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            TensorKind::Input => "input",
            TensorKind::Parameter => "parameter",
            TensorKind::State => "state",
            TensorKind::Gradient => "gradient",
            TensorKind::Output => "output",
            TensorKind::Scalar => "scalar",
        }
    }
}

impl fmt::Display for TensorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One kernel that a device lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingKernel {
    /// Kernel name and operand types.
    pub kernel: String,
    /// Provenance label of the dispatch.
    pub label: String,
    /// Reason that the device reports.
    pub reason: String,
}

/// All errors of the library, from a wrong builder call to a lost device.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A builder call was given operands or attributes that the operator rejects.
    #[error("{node}: {message}{}", help(remedy))]
    InvalidOp {
        /// The rejected call.
        node: NodeLabel,
        /// Description of the problem, by the operator.
        message: String,
        /// Suggested remedy.
        remedy: String,
    },
    /// The graph as a whole is not usable.
    #[error("invalid graph: {message}{}", help(remedy))]
    InvalidGraph {
        /// Description of the problem.
        message: String,
        /// Suggested remedy.
        remedy: String,
    },
    /// The nodes depend on each other in a circle.
    #[error("the graph has a cycle: {}{}", path.join(" -> "), help("break it by feeding one of these nodes from an earlier value; graphs have no loops"))]
    Cycle {
        /// Nodes on the cycle, in order of the edges.
        path: Vec<String>,
    },
    /// The graph has nothing to compute.
    #[error(
        "the graph has no outputs{}",
        help("call `set_outputs(vec![loss])` before building; the first output is the loss when training")
    )]
    NoOutputs,
    /// Training needs one number to minimise.
    #[error(
        "the loss {node} has shape {shape}, but a loss is one number{}",
        help("reduce it, for example with `mean_all`")
    )]
    NonScalarLoss {
        /// The first output.
        node: NodeLabel,
        /// Shape of the first output.
        shape: Shape,
    },
    /// A required gradient cannot be computed: an operator on the path to the loss is not differentiable.
    #[error(
        "cannot differentiate through {node}: {reason}{}",
        help("wrap it in `stop_gradient` if no gradient should flow, or use a differentiable form")
    )]
    NotDifferentiable {
        /// The node at which the gradient stops.
        node: NodeLabel,
        /// The operator's reason.
        reason: String,
    },
    /// The session has no tensor with this name.
    #[error("there is no {kind} named '{name}'{}", known(name, candidates))]
    UnknownTensor {
        /// Kind of the tensor that was requested.
        kind: TensorKind,
        /// The name given.
        name: String,
        /// Names that exist, the closest first.
        candidates: Vec<String>,
    },
    /// Data of the wrong number of elements.
    #[error("{kind} '{name}' has shape {shape}, that is {} elements, but {found} were {}", shape.numel(), length_help(*kind, shape.numel()))]
    WrongLength {
        /// Kind of tensor.
        kind: TensorKind,
        /// Name of the tensor.
        name: String,
        /// Shape of the tensor.
        shape: Shape,
        /// Number of elements that were given or requested.
        found: usize,
    },
    /// An array of another shape than the tensor's.
    #[error("{kind} '{name}' has shape {shape}, but an array of shape {found:?} was given{}", shape_help(shape.dims(), found))]
    WrongShape {
        /// Kind of tensor.
        kind: TensorKind,
        /// Name of the tensor.
        name: String,
        /// Shape of the tensor.
        shape: Shape,
        /// Shape of the array.
        found: Vec<usize>,
    },
    /// Data of the wrong element type.
    #[error("{kind} '{name}' holds {expected}, but {found} was given{}", help(remedy))]
    WrongDType {
        /// Kind of tensor.
        kind: TensorKind,
        /// Name of the tensor.
        name: String,
        /// Element type of the tensor.
        expected: String,
        /// Element type given.
        found: String,
        /// Suggested remedy.
        remedy: String,
    },
    /// `step` was called before every input had data.
    #[error("input{} {} {} never set{}", if names.len() == 1 { "" } else { "s" }, quoted(names), if names.len() == 1 { "was" } else { "were" }, help("call `set_input`, `set_input_u32` or `set_scalar` for each of them before `step`"))]
    InputNotSet {
        /// The inputs without data.
        names: Vec<String>,
    },
    /// A kernel found an index outside of the table that it reads.
    #[error(
        "{label}: index {index} is out of range, the table has {rows} rows{}",
        help("check the ids that you feed against the vocabulary or the number of classes")
    )]
    IndexOutOfRange {
        /// Provenance label of the dispatch.
        label: String,
        /// The offending index.
        index: u32,
        /// Number of rows of the table.
        rows: usize,
    },
    /// A device selector that cannot be parsed, matches nothing, or matches several devices.
    #[error("cannot select the device '{selector}' (from {source_name}): {reason}\n{listing}")]
    DeviceSelection {
        /// The selector as given.
        selector: String,
        /// Origin of the selector: the API, an environment variable, a configuration file.
        source_name: String,
        /// Description of the problem.
        reason: String,
        /// The candidates, with selectors to copy.
        listing: String,
    },
    /// The device lacks kernels that the plan needs.
    #[error("device '{device}' lacks {} of the plan's kernels:\n{}{}", missing.len(), list_missing(missing), help("build the plan for this device with `build`, which decomposes unsupported operators"))]
    MissingKernels {
        /// The device.
        device: String,
        /// The missing kernels.
        missing: Vec<MissingKernel>,
    },
    /// A plan that is not consistent.
    #[error("invalid plan: {message}")]
    InvalidPlan {
        /// Description of the problem.
        message: String,
    },
    /// Plans that share tensors store them with different layouts.
    #[error("the plans store {} of their tensors with different layouts:\n  {}{}", differences.len(), differences.join("\n  "), help("build both from graphs with the same parameters; if their packing differs, disable the packing rules (`disable = [\"packing\"]`)"))]
    ParametersDiffer {
        /// Description of each such tensor: its name and both layouts.
        differences: Vec<String>,
    },
    /// Not enough memory.
    #[error("device '{device}' cannot provide {} for this plan{}{}", megabytes(*requested), shortage(*requested, *available), help(remedy))]
    OutOfMemory {
        /// The device.
        device: String,
        /// Number of bytes that the plan needs.
        requested: usize,
        /// Bytes that the device has, if it reports them.
        available: Option<u64>,
        /// Suggested remedy.
        remedy: String,
    },
    /// The host has not enough memory for a copy of device data, or for data that is read or
    /// written.
    #[error("not enough memory for {what}, which needs {}{}", megabytes(*bytes), help("close other programs, raise the limit of the address space (`ulimit -v`), or use a smaller model or batch"))]
    HostMemory {
        /// Purpose of the memory.
        what: String,
        /// Bytes requested.
        bytes: usize,
    },
    /// A tensor that is larger than any buffer of the device.
    #[error(
        "{tensor} has {bytes} bytes, but the device binds at most {limit} at once{}",
        help("use a smaller batch or model, or split the tensor")
    )]
    BufferTooLarge {
        /// The tensor: the name of a parameter or input, or the result of a call.
        tensor: String,
        /// Size of the tensor.
        bytes: u64,
        /// Maximum size of a buffer of the device, in bytes.
        limit: u64,
    },
    /// A memory budget that no recomputation reaches.
    #[error("the memory budget of {} cannot be reached: the minimum possible is {}, and {} without recomputation{}", megabytes(*budget), megabytes(*least), megabytes(*without), help("give a larger budget, a smaller batch, or an optimizer with less state; recomputation does not reduce parameters, gradients and the optimizer's state"))]
    MemoryBudget {
        /// The memory budget, in bytes.
        budget: usize,
        /// Smallest budget in bytes that recomputation can meet.
        least: usize,
        /// Bytes of the plan without recomputation.
        without: usize,
    },
    /// A backend failed.
    #[error("backend '{backend}': {message}")]
    Backend {
        /// Name of the backend.
        backend: String,
        /// Message of the backend.
        message: String,
    },
    /// A plugin is missing, duplicated or broken.
    #[error("plugin '{plugin}': {message}{}", help(remedy))]
    Plugin {
        /// Name of the plugin.
        plugin: String,
        /// Description of the problem.
        message: String,
        /// Suggested remedy.
        remedy: String,
    },
    /// A rule set that cannot be used.
    #[error("rule set '{set}'{}{}: {message}", rule.as_ref().map(|r| format!(", rule '{r}'")).unwrap_or_default(), span.as_ref().map(|s| format!(" ({s})")).unwrap_or_default())]
    RuleSet {
        /// Namespace of the rule set.
        set: String,
        /// The rule, where one is at fault.
        rule: Option<String>,
        /// Position of the error in the text of the rule set, and the text there.
        span: Option<String>,
        /// Description of the problem, and the failing case if there is one.
        message: String,
    },
    /// A configuration file or environment variable that cannot be used.
    #[error("configuration {origin}: {message}")]
    Config {
        /// File or variable.
        origin: String,
        /// Description of the problem.
        message: String,
    },
    /// A file that cannot be read or written, or that has unexpected contents.
    #[error("'{path}' {message}{}", help(remedy))]
    File {
        /// The file.
        path: String,
        /// Description of the problem, with the file as the subject.
        message: String,
        /// Suggested remedy.
        remedy: String,
    },
    /// A collective of a distributed run failed.
    #[error(transparent)]
    Collective(Box<CollectiveError>),
    /// Invalid hyper-parameters or an invalid order of calls.
    #[error("{message}{}", help(remedy))]
    InvalidUse {
        /// Description of the problem.
        message: String,
        /// Suggested remedy.
        remedy: String,
    },
}

impl Error {
    /// Returns an [`Error::InvalidGraph`].
    pub fn graph(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Error::InvalidGraph {
            message: message.into(),
            remedy: remedy.into(),
        }
    }

    /// Returns an [`Error::InvalidPlan`].
    pub fn plan(message: impl Into<String>) -> Self {
        Error::InvalidPlan {
            message: message.into(),
        }
    }

    /// Returns an [`Error::Backend`].
    pub fn backend(backend: impl Into<String>, message: impl Into<String>) -> Self {
        Error::Backend {
            backend: backend.into(),
            message: message.into(),
        }
    }

    /// Returns an [`Error::File`].
    pub fn file(path: &Path, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Error::File {
            path: path.display().to_string(),
            message: message.into(),
            remedy: remedy.into(),
        }
    }

    /// Returns an [`Error::Collective`].
    pub fn collective(error: CollectiveError) -> Self {
        Error::Collective(Box::new(error))
    }

    /// Returns an [`Error::InvalidUse`].
    pub fn misuse(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Error::InvalidUse {
            message: message.into(),
            remedy: remedy.into(),
        }
    }

    /// Creates an [`Error::UnknownTensor`] with the existing names, ordered by similarity to the
    /// given one.
    pub fn unknown_tensor<'a>(kind: TensorKind, name: &str, known: impl Iterator<Item = &'a str>) -> Self {
        let mut candidates: Vec<String> = known.map(str::to_owned).collect();
        candidates.sort_by_key(|c| (edit_distance(c, name), c.clone()));
        Error::UnknownTensor {
            kind,
            name: name.to_owned(),
            candidates,
        }
    }
}

/// Returns the value, or panics with the full report of the error, as the plain form of a `try_` method does.
#[track_caller]
pub fn unwrap_report<T>(result: Result<T>) -> T {
    match result {
        Ok(v) => v,
        // The plain forms document this panic; each has a `try_` variant that returns the error.
        Err(e) => panic!("{e}"),
    }
}

fn help(remedy: &str) -> String {
    if remedy.is_empty() {
        String::new()
    } else {
        format!("\n  help: {remedy}")
    }
}

fn quoted(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|n| format!("'{n}'")).collect();
    quoted.join(", ")
}

/// Returns the remedy for data of a wrong length: outputs are read, all other tensors are set.
fn length_help(kind: TensorKind, elements: usize) -> String {
    match kind {
        TensorKind::Output => format!(
            "asked for{}",
            help(&format!(
                "read it into a buffer of {elements} elements; `read_output` and `try_read_output_start` read fewer, from the \
                 first on"
            ))
        ),
        _ => format!("given{}", help("give every element, in row-major order")),
    }
}

fn shape_help(shape: &[usize], found: &[usize]) -> String {
    let reversed = found.iter().rev().eq(shape);
    help(match (reversed, found.len()) {
        (true, 2) => {
            "transpose it: the weights of linear layers are [inputs, outputs] here, [outputs, inputs] in PyTorch; \
             `try_load_weights` does that by name"
        }
        _ => {
            "pass an array of that shape; if the elements are in the right order, `set_parameter` accepts them \
             without a shape"
        }
    })
}

fn list_missing(missing: &[MissingKernel]) -> String {
    let lines: Vec<String> = missing
        .iter()
        .map(|m| format!("  {} for {}: {}", m.kernel, m.label, m.reason))
        .collect();
    lines.join("\n")
}

/// Returns a note with the missing bytes, if the available memory is given.
fn shortage(requested: usize, available: Option<u64>) -> String {
    match available {
        None => String::new(),
        Some(available) => {
            let missing = (requested as u64).saturating_sub(available);
            let (has, missing) = (megabytes(available as usize), megabytes(missing as usize));
            format!(": it has {has}, {missing} are missing")
        }
    }
}

fn megabytes(bytes: usize) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_name_comes_first() {
        let e = Error::unknown_tensor(TensorKind::Parameter, "w2", ["bias", "w1", "loss"].into_iter());
        assert!(e.to_string().contains("there are 'w1'"), "{e}");
    }

    #[test]
    fn a_length_that_is_wrong_for_reading_speaks_of_reading() {
        let of = |kind| Error::WrongLength {
            kind,
            name: "0".into(),
            shape: Shape::new(&[4, 3]).expect("small"),
            found: 5,
        };
        let read = of(TensorKind::Output).to_string();
        assert!(read.contains("12 elements, but 5 were asked for"), "{read}");
        assert!(
            read.contains("read it into a buffer of 12 elements") && !read.contains("give"),
            "{read}"
        );
        let write = of(TensorKind::Input).to_string();
        assert!(
            write.contains("5 were given") && write.contains("give every element"),
            "{write}"
        );
    }

    #[test]
    fn messages_carry_their_remedy() {
        let e = Error::InputNotSet {
            names: vec!["x".into()],
        };
        assert!(e.to_string().contains("input 'x' was never set\n  help: "), "{e}");
    }
}
