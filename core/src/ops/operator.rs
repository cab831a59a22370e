//! What an operator is: the trait, and the types that its methods speak in.

use std::fmt;
use std::ops::Deref;

pub use super::channels_last::{ChannelsLast, ChannelsLastCx, ChannelsLastResults, OperandOrder};
pub use super::gradient::GradCx;
use super::sample::{Sample, Sizes};
pub use crate::attrs::AttrKind;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
pub use crate::reference::{RefCall, RefTensor};
use crate::shape::TensorType;

/// Number of operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// Exactly so many.
    Exactly(usize),
    /// So many or more.
    AtLeast(usize),
    /// From the first to the second, both included.
    Between(usize, usize),
}

impl Arity {
    /// Whether `count` operands are right.
    ///
    /// # Errors
    /// A message with both numbers.
    pub fn check(self, count: usize) -> Result<(), String> {
        let (ok, wanted) = match self {
            Arity::Exactly(n) => (count == n, format!("{n}")),
            Arity::AtLeast(n) => (count >= n, format!("at least {n}")),
            Arity::Between(a, b) => ((a..=b).contains(&count), format!("{a} to {b}")),
        };
        if ok {
            Ok(())
        } else {
            Err(format!("takes {wanted} operands, got {count}"))
        }
    }
}

/// Declared attributes: name and kind of each.
pub type AttrDecls = Vec<(&'static str, AttrKind)>;

/// One call as shape rules, costs and kernels see it.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Attributes.
    pub attrs: &'a Attrs,
    /// Operand types.
    pub inputs: &'a [TensorType],
    /// Result types; empty while they are being inferred.
    pub outputs: &'a [TensorType],
}

/// Work of one call, for cost models and benchmarks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Floating-point (or integer) operations.
    pub flops: u64,
    /// Bytes read and written at least once.
    pub bytes: u64,
}

impl Cost {
    /// Reads every operand and writes every result once, with some operations per result element. What is more than a
    /// number holds is the largest one: files name any sizes.
    pub fn streaming(call: &Call, flops_per_element: u64) -> Self {
        let types = call.inputs.iter().chain(call.outputs);
        let results = call.outputs.iter().map(|t| t.numel() as u64);
        Cost {
            flops: results.fold(0, u64::saturating_add).saturating_mul(flops_per_element),
            bytes: types.map(|t| t.bytes() as u64).fold(0, u64::saturating_add),
        }
    }
}

/// Results of a gradient rule: one derivative per operand, `None` where none flows.
pub type Gradients = Result<Vec<Option<Value>>, String>;

type GradRule<'a> = Box<dyn Fn(&mut GradCx) -> Gradients + 'a>;
type ReferenceRule<'a> = Box<dyn Fn(&RefCall) -> Vec<Vec<f64>> + 'a>;
type DecomposeRule<'a> = Box<dyn Fn(&mut Expansion) -> Result<Vec<Value>, String> + 'a>;

/// How gradients flow through an operator. There is no default, so an approximation cannot hide.
pub enum Gradient<'a> {
    /// By this rule, which is the exact derivative.
    Rule(GradRule<'a>),
    /// By differentiating the decomposition.
    Decomposed,
    /// The derivative is zero wherever it exists (comparisons, integer results).
    Zero,
    /// There is none, for this reason.
    NotDifferentiable(&'static str),
}

impl<'a> Gradient<'a> {
    /// A [`Gradient::Rule`].
    pub fn rule(rule: impl Fn(&mut GradCx) -> Gradients + 'a) -> Self {
        Gradient::Rule(Box::new(rule))
    }
}

/// What an operator computes.
pub enum Semantics<'a> {
    /// A primitive: an obviously right loop in `f64` is its definition.
    Primitive(ReferenceRule<'a>),
    /// A composite: its definition is a graph of other operators.
    Composite(DecomposeRule<'a>),
    /// Both: the loop defines it, and a backend without a kernel for it can use the graph. A test
    /// holds the two together.
    Both(ReferenceRule<'a>, DecomposeRule<'a>),
}

impl<'a> Semantics<'a> {
    /// A [`Semantics::Primitive`].
    pub fn primitive(reference: impl Fn(&RefCall) -> Vec<Vec<f64>> + 'a) -> Self {
        Semantics::Primitive(Box::new(reference))
    }

    /// A [`Semantics::Composite`].
    pub fn composite(decompose: impl Fn(&mut Expansion) -> Result<Vec<Value>, String> + 'a) -> Self {
        Semantics::Composite(Box::new(decompose))
    }

    /// A [`Semantics::Both`].
    pub fn both(
        reference: impl Fn(&RefCall) -> Vec<Vec<f64>> + 'a,
        decompose: impl Fn(&mut Expansion) -> Result<Vec<Value>, String> + 'a,
    ) -> Self {
        Semantics::Both(Box::new(reference), Box::new(decompose))
    }

    /// The graph form, if there is one.
    pub fn decomposition(self) -> Option<DecomposeRule<'a>> {
        match self {
            Semantics::Primitive(_) => None,
            Semantics::Composite(d) | Semantics::Both(_, d) => Some(d),
        }
    }

    /// The loop, if there is one.
    pub fn reference(self) -> Option<ReferenceRule<'a>> {
        match self {
            Semantics::Primitive(r) | Semantics::Both(r, _) => Some(r),
            Semantics::Composite(_) => None,
        }
    }
}

/// What a decomposition rule (or an inference form) works with: it builds on `graph` and returns one
/// value per port of the operator.
pub struct Expansion<'a> {
    /// The graph to build on.
    pub graph: &'a mut Graph,
    /// Attributes of the call.
    pub attrs: &'a Attrs,
    /// Operands.
    pub inputs: &'a [Value],
    /// Types of the results.
    pub outputs: &'a [TensorType],
}

impl Expansion<'_> {
    /// What `read` makes of the call, which it sees as shape rules do.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn with_call<T>(&self, read: impl FnOnce(&Call) -> Result<T, String>) -> Result<T, String> {
        let inputs: Vec<TensorType> = self.inputs.iter().filter_map(|&v| self.graph.ty(v).cloned()).collect();
        read(&Call {
            attrs: self.attrs,
            inputs: &inputs,
            outputs: self.outputs,
        })
    }
}

/// What an operator becomes when a graph is built for inference.
pub enum InferenceForm<'a> {
    /// Itself.
    Same,
    /// Something else (dropout: its operand; batch norm: the form with running statistics).
    Rewrite(DecomposeRule<'a>),
}

/// An operator that fuses a call with the call that computes its operand: see [`Operator::fused_write`].
#[derive(Clone, Copy, Debug)]
pub struct FusedWrite {
    /// Name of the operator that makes operand 0.
    pub producer: &'static str,
    /// Operands that both must have, as `(of the producer, of the call)`; the producer has no others but its first.
    pub same: &'static [(usize, usize)],
    /// What does both, with the attributes of the producer, the producer's operand 0 and the call's other operands.
    pub op: OpRef,
}

/// An operator that writes what a program computes: see [`Operator::program_write`].
#[derive(Clone, Copy, Debug)]
pub struct ProgramWrite {
    /// Takes this call's operands but the first, then what else the program reads; its attribute `program` computes operand 0 of
    /// this call.
    pub op: OpRef,
    /// Its attribute `paged`.
    pub paged: bool,
    /// What this call does with operand 0 before it writes it, with its own attributes and its last operand.
    pub before: Option<OpRef>,
}

/// How a call may become part of a larger one, [`core.fused`](crate::program): what clustering goes by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fusing {
    /// Not at all.
    #[default]
    Opaque,
    /// Element by element, with broadcasting: an element of the result depends on the elements of the operands
    /// at its place, and at most on the number of the place.
    Pointwise,
    /// The elements of operand 0 at other places, and nothing else.
    View,
    /// Some entries of operand 0, and nothing else: what is [`Fusing::OfPart`] may read them where they are.
    Part,
    /// Each element from a few elements of operand 0, at other places too, which may be a [`Fusing::Part`] of a larger
    /// value. It is merged with nothing else.
    OfPart,
    /// Folds operand 0 over axes; it may have a prologue.
    Reduction,
    /// Computes each element from a few elements of the operands, also at other indices: it may be the prologue of a
    /// contraction that reads few rows, together with the elementwise calls after it.
    Prologue,
    /// A contraction that is long compared with its result; it may have an epilogue, and a prologue for operand 0 where
    /// that is faster on a device.
    Contraction,
    /// Computes a value of operand 0's shape from whole rows of it, as softmax and the norms do; it may have a prologue
    /// for operand 0 and an epilogue for port 0.
    Rows,
}

/// What the reference documentation says of an operator beyond what can be derived from it.
#[derive(Clone, Copy, Debug)]
pub struct Doc {
    /// Shapes of operands and results, and what must fit together.
    pub shapes: &'static str,
    /// The formula, in plain text.
    pub formula: &'static str,
    /// Where it comes from, or how it is commonly known.
    pub source: &'static str,
}

/// An operator. Implementors are stateless; attributes are data of each call.
///
/// The required methods have no default: each is a fact that somebody must have thought about.
pub trait Operator: Send + Sync + 'static {
    /// Namespaced name, `core.matmul`.
    fn name(&self) -> &'static str;
    /// How programs call it: the method of [`Graph`] with the names of its parameters, `g.softmax(x, axis)`. Empty where
    /// there is none: rules, derivatives or [`Graph::call`] make the operator then.
    fn signature(&self) -> String {
        String::new()
    }
    /// Formula and source.
    fn doc(&self) -> Doc;
    /// Number of operands.
    fn arity(&self) -> Arity;
    /// Types of the results, or why the call is wrong (in the words a user needs).
    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String>;
    /// How gradients flow.
    fn gradient(&self) -> Gradient<'_>;
    /// What is computed.
    fn semantics(&self) -> Semantics<'_>;
    /// Work of a call.
    fn cost(&self, call: &Call) -> Cost;
    /// Cases that tests run on every backend; `sizes` varies the shapes from run to run.
    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample>;

    /// Names and kinds of the attributes that every call has, in order: how the rules of a rewrite spell them
    /// before the operands.
    fn attributes(&self) -> AttrDecls {
        Vec::new()
    }
    /// Names of the results. Where their number depends on the call, the first ones have names.
    fn ports(&self) -> &'static [&'static str] {
        &["out"]
    }
    /// The axis along which the operands are concatenated, for the operator that does nothing else: parameters that it
    /// concatenates may be stored packed.
    fn packs(&self, attrs: &Attrs) -> Option<i64> {
        let _ = attrs;
        None
    }
    /// The axis and the first index, for operators whose port 0 is a contiguous slice of operand 0 along an axis: adjacent
    /// slices are recognised by it.
    fn entries(&self, call: &Call) -> Option<(usize, usize)> {
        let _ = call;
        None
    }
    /// The operand whose bytes port 0 shares, for operators that only change the type.
    fn alias(&self) -> Option<usize> {
        None
    }
    /// Operands that are persistent data overwritten by a port: `(operand, port)`.
    fn writes(&self) -> &'static [(usize, usize)] {
        &[]
    }
    /// An operator that fuses this call with the call that computes its operand 0, for operators that write in place: rules
    /// do not rewrite those.
    fn fused_write(&self) -> Option<FusedWrite> {
        None
    }
    /// An operator that writes what a program computes in place of operand 0 of this call, in one call with the program.
    fn program_write(&self) -> Option<ProgramWrite> {
        None
    }
    /// The operand that holds indices or class ids, and the number that they must be below: a larger one is
    /// an error of the step that meets it.
    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        let _ = call;
        None
    }
    /// The form to use in inference graphs.
    fn inference(&self) -> InferenceForm<'_> {
        InferenceForm::Same
    }
    /// How a call may become part of a larger one.
    fn fusing(&self) -> Fusing {
        Fusing::Opaque
    }
    /// How a call is computed if images are stored channels last, `[batch, height, width, channels]`.
    fn channels_last(&self) -> ChannelsLast<'_> {
        match self.fusing() {
            Fusing::Pointwise => ChannelsLast::Pointwise,
            _ => ChannelsLast::No,
        }
    }
    /// Raised when the meaning of the kernel changes, so that cached plans are rejected.
    fn version(&self) -> u32 {
        1
    }
}

/// A registered operator.
#[derive(Clone, Copy)]
pub struct OpRef(&'static dyn Operator);

impl OpRef {
    /// Wraps an operator.
    pub const fn new(op: &'static dyn Operator) -> Self {
        OpRef(op)
    }

    /// The operator, which lives as long as the program.
    pub fn get(self) -> &'static dyn Operator {
        self.0
    }
}

impl Deref for OpRef {
    type Target = dyn Operator;
    fn deref(&self) -> &Self::Target {
        self.0
    }
}

impl PartialEq for OpRef {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for OpRef {}

impl fmt::Debug for OpRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// ---- helpers that shape rules share ----------------------------------------------------------------

/// The operand is a float, or an error that says which one is not.
pub fn expect_float(call: &Call, operand: usize, what: &str) -> Result<(), String> {
    let ty = &call.inputs[operand];
    if ty.dtype.is_float() {
        Ok(())
    } else {
        Err(format!(
            "{what} must be floating point, not {ty}; use `cast` to convert it"
        ))
    }
}

/// All operands have one dtype, or an error that names two that differ.
pub fn expect_same_dtype(call: &Call) -> Result<(), String> {
    match call.inputs.iter().find(|t| t.dtype != call.inputs[0].dtype) {
        None => Ok(()),
        Some(other) => Err(format!(
            "the operands {} and {other} have different element types; use `cast` to convert one",
            call.inputs[0]
        )),
    }
}

/// Whether rows can be kept in a key-value cache of a type: of their own, or of `f16` for rows of `f32`, which are rounded when
/// they are written, and have pairs of elements, as backends write whole words.
///
/// # Errors
/// In words for users.
pub(super) fn expect_cache_dtype(rows: &TensorType, cache: &TensorType) -> Result<(), String> {
    match (rows.dtype, cache.dtype) {
        (DType::F32, DType::F16) => match cache.shape.dims().last() {
            Some(width) if !width.is_multiple_of(2) => Err(format!(
                "the cache {cache} of f16 has rows of {width} elements, but needs an even number"
            )),
            _ => Ok(()),
        },
        (rows, cache) if rows == cache => Ok(()),
        _ => Err(format!(
            "the cache {cache} has another element type than the rows {rows}; a cache is of their type, or of f16 for rows of f32"
        )),
    }
}

/// A value in the element type of another one.
pub(super) fn cast_as(g: &mut Graph, x: Value, other: Value) -> Value {
    match g.dtype(other) {
        dtype if dtype == g.dtype(x) => x,
        dtype => g.cast(x, dtype).into(),
    }
}

/// The name without its namespace.
pub(super) fn short_name(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
