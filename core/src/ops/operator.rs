//! The trait of operators, and the types of its methods.

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
    /// Exactly this number.
    Exactly(usize),
    /// This number or more.
    AtLeast(usize),
    /// From the first to the second, both included.
    Between(usize, usize),
}

impl Arity {
    /// Checks the number of operands.
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

/// One call of an operator, in the form that shape rules, costs and kernels use.
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
    /// Minimum bytes read and written.
    pub bytes: u64,
}

impl Cost {
    /// Counts every operand read once and every result written once, with `flops_per_element` operations per result
    /// element. Sums saturate, because files may contain any sizes.
    pub fn streaming(call: &Call, flops_per_element: u64) -> Self {
        let types = call.inputs.iter().chain(call.outputs);
        let results = call.outputs.iter().map(|t| t.numel() as u64);
        Cost {
            flops: results.fold(0, u64::saturating_add).saturating_mul(flops_per_element),
            bytes: types.map(|t| t.bytes() as u64).fold(0, u64::saturating_add),
        }
    }
}

/// Results of a gradient rule: one derivative per operand, `None` if no gradient flows to it.
pub type Gradients = Result<Vec<Option<Value>>, String>;

type GradRule<'a> = Box<dyn Fn(&mut GradCx) -> Gradients + 'a>;
type ReferenceRule<'a> = Box<dyn Fn(&RefCall) -> Vec<Vec<f64>> + 'a>;
type DecomposeRule<'a> = Box<dyn Fn(&mut Expansion) -> Result<Vec<Value>, String> + 'a>;

/// The way in which gradients flow through an operator. There is no default, so each operator must choose one.
pub enum Gradient<'a> {
    /// A rule computes the exact derivative.
    Rule(GradRule<'a>),
    /// The decomposition is differentiated.
    Decomposed,
    /// The derivative is zero wherever it exists (comparisons, integer results).
    Zero,
    /// The operator is not differentiable, for this reason.
    NotDifferentiable(&'static str),
}

impl<'a> Gradient<'a> {
    /// Returns a [`Gradient::Rule`].
    pub fn rule(rule: impl Fn(&mut GradCx) -> Gradients + 'a) -> Self {
        Gradient::Rule(Box::new(rule))
    }
}

/// The definition of an operator.
pub enum Semantics<'a> {
    /// A primitive: a simple reference loop in `f64` is its definition.
    Primitive(ReferenceRule<'a>),
    /// A composite: its definition is a graph of other operators.
    Composite(DecomposeRule<'a>),
    /// Both: the loop defines it, and a backend without a kernel for it can use the graph. A test
    /// compares the two.
    Both(ReferenceRule<'a>, DecomposeRule<'a>),
}

impl<'a> Semantics<'a> {
    /// Returns a [`Semantics::Primitive`].
    pub fn primitive(reference: impl Fn(&RefCall) -> Vec<Vec<f64>> + 'a) -> Self {
        Semantics::Primitive(Box::new(reference))
    }

    /// Returns a [`Semantics::Composite`].
    pub fn composite(decompose: impl Fn(&mut Expansion) -> Result<Vec<Value>, String> + 'a) -> Self {
        Semantics::Composite(Box::new(decompose))
    }

    /// Returns a [`Semantics::Both`].
    pub fn both(
        reference: impl Fn(&RefCall) -> Vec<Vec<f64>> + 'a,
        decompose: impl Fn(&mut Expansion) -> Result<Vec<Value>, String> + 'a,
    ) -> Self {
        Semantics::Both(Box::new(reference), Box::new(decompose))
    }

    /// Returns the decomposition, if there is one.
    pub fn decomposition(self) -> Option<DecomposeRule<'a>> {
        match self {
            Semantics::Primitive(_) => None,
            Semantics::Composite(d) | Semantics::Both(_, d) => Some(d),
        }
    }

    /// Returns the reference loop, if there is one.
    pub fn reference(self) -> Option<ReferenceRule<'a>> {
        match self {
            Semantics::Primitive(r) | Semantics::Both(r, _) => Some(r),
            Semantics::Composite(_) => None,
        }
    }
}

/// Context of a decomposition rule or an inference form: the rule builds on `graph` and returns one
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
    /// Calls `read` with the call in the form that shape rules use.
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

/// The form of an operator in graphs for inference.
pub enum InferenceForm<'a> {
    /// The operator does not change.
    Same,
    /// It is replaced by another computation: dropout by its operand, batch norm by the form with running statistics.
    Rewrite(DecomposeRule<'a>),
}

/// An operator that fuses a call with the call that computes its operand: see [`Operator::fused_write`].
#[derive(Clone, Copy, Debug)]
pub struct FusedWrite {
    /// Name of the operator that computes operand 0.
    pub producer: &'static str,
    /// Pairs of operands that must be equal, as `(index in the producer, index in the call)`. The producer has no
    /// further operands, except its first.
    pub same: &'static [(usize, usize)],
    /// The fused operator. It is called with the attributes of the producer, operand 0 of the producer, and all
    /// operands of the call except the first.
    pub op: OpRef,
}

/// An operator that writes the result of a program: see [`Operator::program_write`].
#[derive(Clone, Copy, Debug)]
pub struct ProgramWrite {
    /// The fused operator. Its operands are the operands of this call except the first, then the other operands of the
    /// program. Its attribute `program` computes operand 0 of this call.
    pub op: OpRef,
    /// Value of the fused operator's attribute `paged`.
    pub paged: bool,
    /// Operator that this call applies to operand 0 before it writes it, with its own attributes
    /// and its last operand.
    pub before: Option<OpRef>,
}

/// The way in which clustering (the fusion of neighbouring calls) may fuse a call into [`core.fused`](crate::program).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FusionRole {
    /// The call is never fused.
    #[default]
    Opaque,
    /// Computes element by element, with broadcasting: an element of the result depends only on the elements of the
    /// operands at the same index, and possibly on the index.
    Pointwise,
    /// Only moves elements of operand 0 to other indices.
    View,
    /// Selects entries of operand 0: a [`FusionRole::OfPart`] may read them in place.
    Part,
    /// Computes each element from a few elements of operand 0, also at other indices. Operand 0 may
    /// be a [`FusionRole::Part`] of a larger value; no other calls are fused.
    OfPart,
    /// Reduces operand 0 over axes; it may have a prologue.
    Reduction,
    /// Computes each element from a few elements of the operands, also at other indices: it may be the prologue of a
    /// contraction that reads few rows, together with the elementwise calls after it. If it reads fewer bytes than it
    /// writes, it may be the prologue of any operand.
    Prologue,
    /// A contraction (sums of products, as in matmuls and convolutions) with sums that are long compared with the
    /// result. It may have an epilogue, and, if that is faster on a device, a prologue for operand 0.
    Contraction,
    /// Computes a value of operand 0's shape from whole rows of it, as softmax and the norms do; it may have a prologue
    /// for operand 0 and an epilogue for port 0.
    Rows,
}

/// Documentation of an operator that cannot be derived from its definition.
#[derive(Clone, Copy, Debug)]
pub struct Doc {
    /// Shapes of operands and results, and constraints between them.
    pub shapes: &'static str,
    /// The formula, in plain text.
    pub formula: &'static str,
    /// Source of the formula, or its common name.
    pub source: &'static str,
}

/// An operator. Types that implement it have no state; attributes belong to each call.
///
/// The required methods have no default, because the author must decide on each of them.
pub trait Operator: Send + Sync + 'static {
    /// Returns the namespaced name, `core.matmul`.
    fn name(&self) -> &'static str;
    /// Returns the Rust call: the method of [`Graph`] with the names of its parameters,
    /// `g.softmax(x, axis)`. Empty if there is no method: the operator is then created by rules,
    /// derivatives or [`Graph::call`].
    fn signature(&self) -> String {
        String::new()
    }
    /// Returns formula and source.
    fn doc(&self) -> Doc;
    /// Returns the number of operands.
    fn arity(&self) -> Arity;
    /// Infers the types of the results; returns an error message for users if the call is wrong.
    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String>;
    /// Returns the gradient rule.
    fn gradient(&self) -> Gradient<'_>;
    /// Returns the definition.
    fn semantics(&self) -> Semantics<'_>;
    /// Returns the work of a call.
    fn cost(&self, call: &Call) -> Cost;
    /// Returns cases that tests run on every backend; `sizes` varies the shapes from run to run.
    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample>;

    /// Returns the names and kinds of the attributes that every call has. Rewrite rules list them in this order before
    /// the operands.
    fn attributes(&self) -> AttrDecls {
        Vec::new()
    }
    /// Returns the names of the results. If their number depends on the call, only the first ones
    /// have names.
    fn ports(&self) -> &'static [&'static str] {
        &["out"]
    }
    /// Returns the axis along which the operands are concatenated, for the concatenation operator:
    /// parameters that it concatenates may be stored packed.
    fn packs(&self, attrs: &Attrs) -> Option<i64> {
        let _ = attrs;
        None
    }
    /// Returns the axis and the first index, for operators whose port 0 is a contiguous slice of
    /// operand 0 along an axis. The optimizer uses it to recognise adjacent slices.
    fn entries(&self, call: &Call) -> Option<(usize, usize)> {
        let _ = call;
        None
    }
    /// Returns the operand whose bytes port 0 shares, for operators that do not change its elements.
    fn alias(&self) -> Option<usize> {
        None
    }
    /// Returns the operands that are persistent data overwritten by a port: `(operand, port)`.
    fn writes(&self) -> &'static [(usize, usize)] {
        &[]
    }
    /// Returns an operator that fuses this call with the call that computes its operand 0, for
    /// operators that write in place: rules cannot rewrite such operators.
    fn fused_write(&self) -> Option<FusedWrite> {
        None
    }
    /// Returns an operator that fuses this call with the program that computes its operand 0.
    fn program_write(&self) -> Option<ProgramWrite> {
        None
    }
    /// Returns the operand that contains indices or class ids, and their exclusive upper bound: an index that is not
    /// below it is an error of the step.
    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        let _ = call;
        None
    }
    /// Returns the port with indices, and their exclusive upper bound for any operands.
    fn index_result(&self, call: &Call) -> Option<(usize, usize)> {
        let _ = call;
        None
    }
    /// Returns the form to use in inference graphs.
    fn inference(&self) -> InferenceForm<'_> {
        InferenceForm::Same
    }
    /// Returns the role of a call in fusion.
    fn fusing(&self) -> FusionRole {
        FusionRole::Opaque
    }
    /// Returns the form of a call on images in channels-last layout,
    /// `[batch, height, width, channels]`.
    fn channels_last(&self) -> ChannelsLast<'_> {
        match self.fusing() {
            FusionRole::Pointwise => ChannelsLast::Pointwise,
            _ => ChannelsLast::No,
        }
    }
    /// Returns `true` if a graph for inference is to be rewritten with the decomposition on devices without a kernel.
    /// Otherwise the plan decomposes such calls after rewriting.
    fn expands_before_rewriting(&self) -> bool {
        false
    }

    /// Returns the version of the operator's meaning. Increase it with each change, so that cached plans are rejected.
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

    /// Returns the operator, which lives as long as the program.
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

/// Checks that an operand is a float; `what` names it in the error.
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

/// Checks that all operands have one dtype; otherwise, the error names two that differ.
pub fn expect_same_dtype(call: &Call) -> Result<(), String> {
    match call.inputs.iter().find(|t| t.dtype != call.inputs[0].dtype) {
        None => Ok(()),
        Some(other) => Err(format!(
            "the operands {} and {other} have different element types; use `cast` to convert one",
            call.inputs[0]
        )),
    }
}

/// Checks that rows can be stored in a KV cache of this type: the same type, or `f16` for rows of
/// `f32`, which are rounded. Rows of `f16` must have an even number of elements, as backends write
/// whole words.
///
/// # Errors
/// A message for users.
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

/// Casts a value to the element type of another one.
pub(super) fn cast_as(g: &mut Graph, x: Value, other: Value) -> Value {
    match g.dtype(other) {
        dtype if dtype == g.dtype(x) => x,
        dtype => g.cast(x, dtype).into(),
    }
}

/// Returns the name without its namespace.
pub(super) fn short_name(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}
