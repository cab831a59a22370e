//! The operators of ONNX: one file a family, one function an operator, and the table of all.

mod activation;
mod attention;
mod control;
mod conv;
mod deform;
mod elementwise;
mod features;
mod fold;
mod fourier;
mod group_query;
mod index;
mod known;
mod layout;
mod limits;
mod loss;
mod matmul;
mod microsoft_attention;
mod nbits;
mod norm;
mod pool;
mod preview;
mod qlinear;
mod quantized;
mod recurrent;
mod reduce;
mod resize;
mod sample;
mod sequence;
mod signal;
mod slice;
mod small;
mod softmax;
mod state;
mod unpool;
mod window;

use crate::import::{Call, Operand};
use crate::tensor::Tensor;

/// Builds a node's results in the graph.
pub type Build = for<'c, 'm> fn(&mut Call<'c, 'm>) -> Result<Vec<Operand>, String>;

/// Computes a node's results from operands that are known when importing; `Ok(None)` to build the node after all.
pub type Fold = for<'a, 'c, 'm> fn(&'a Call<'c, 'm>, &[Option<&'a Tensor>]) -> Result<Option<Vec<Tensor>>, String>;

/// How much of an operator is supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// All of it, for the element types that graphs have.
    Whole,
    /// All except for what this says.
    Partly(&'static str),
}

/// An operator of ONNX and how it is built from those of a graph.
#[derive(Clone, Copy, Debug)]
pub struct OnnxOp {
    /// Its domain; empty for `ai.onnx`.
    pub domain: &'static str,
    /// Its name.
    pub name: &'static str,
    /// First version of the domain's operators for which it is right.
    pub since: i64,
    /// How much of it is supported.
    pub support: Support,
    /// Builds it.
    pub build: Build,
    /// Computes it when importing.
    pub fold: Option<Fold>,
}

/// Operators that a crate adds, found at startup. An operator of the same name and domain goes before this crate's own.
///
/// ```
/// use meganeura_onnx::{Call, OnnxOp, Operand, Registration};
///
/// /// `y = 2 x`, of a domain of our own.
/// fn double(call: &mut Call) -> Result<Vec<Operand>, String> {
///     let x = call.value(0)?;
///     let element = call.element(0)?;
///     let y = call.graph().add(x, x);
///     Ok(vec![call.result(y, element)])
/// }
///
/// inventory::submit! {
///     Registration(&[OnnxOp::new("com.example", "Double", 1, double)])
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Registration(pub &'static [OnnxOp]);

inventory::collect!(Registration);

impl OnnxOp {
    /// An operator that is supported as a whole.
    pub const fn new(domain: &'static str, name: &'static str, since: i64, build: Build) -> Self {
        OnnxOp {
            domain,
            name,
            since,
            support: Support::Whole,
            build,
            fold: None,
        }
    }

    /// With what is not supported.
    #[must_use]
    pub const fn partly(mut self, but: &'static str) -> Self {
        self.support = Support::Partly(but);
        self
    }

    /// With a function that computes it when importing.
    #[must_use]
    pub const fn folding(mut self, fold: Fold) -> Self {
        self.fold = Some(fold);
        self
    }
}

/// An operator of `ai.onnx`.
const fn op(name: &'static str, since: i64, build: Build) -> OnnxOp {
    OnnxOp::new("", name, since, build)
}

/// An operator of `com.microsoft`.
const fn ms(name: &'static str, build: Build) -> OnnxOp {
    OnnxOp::new("com.microsoft", name, 1, build)
}

/// This crate's tables.
const FAMILIES: [&[OnnxOp]; 31] = [
    activation::OPS,
    attention::OPS,
    control::OPS,
    conv::OPS,
    deform::OPS,
    elementwise::OPS,
    features::OPS,
    fourier::OPS,
    group_query::OPS,
    index::OPS,
    known::OPS,
    layout::OPS,
    loss::OPS,
    matmul::OPS,
    microsoft_attention::OPS,
    nbits::OPS,
    norm::OPS,
    pool::OPS,
    preview::OPS,
    qlinear::OPS,
    quantized::OPS,
    recurrent::OPS,
    reduce::OPS,
    resize::OPS,
    sample::OPS,
    sequence::OPS,
    signal::OPS,
    slice::OPS,
    softmax::OPS,
    state::OPS,
    unpool::OPS,
];

/// All operators: those that other crates register first.
pub fn operators() -> impl Iterator<Item = &'static OnnxOp> {
    let registered = inventory::iter::<Registration>.into_iter().flat_map(|r| r.0);
    registered.chain(FAMILIES.into_iter().flatten())
}

/// Whether an operator is made for sequences as well, or passes on what it is given.
pub(crate) fn takes_sequences(op: &OnnxOp) -> bool {
    sequence::TAKE_SEQUENCES.contains(&op.name)
}

/// The operator of that domain and name.
pub(crate) fn find(domain: &str, name: &str) -> Option<&'static OnnxOp> {
    operators().find(|op| op.name == name && op.domain == domain)
}
