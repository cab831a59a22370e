//! Descriptions of operators, and their lookup by name.

use crate::import::{Call, Operand};
use crate::tensor::Tensor;

/// Function that builds a node's results in the graph.
pub type Build = for<'c, 'm> fn(&mut Call<'c, 'm>) -> Result<Vec<Operand>, String>;

/// Function that computes a node's results from operands that are known at import; `Ok(None)` builds the node in the graph
/// instead.
pub type Fold = for<'a, 'c, 'm> fn(&'a Call<'c, 'm>, &[Option<&'a Tensor>]) -> Result<Option<Vec<Tensor>>, String>;

/// Support level of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// The operator is completely supported, for the element types of graphs.
    Whole,
    /// The operator is supported except for the described cases.
    Partly(&'static str),
}

/// Check of 64-bit integer results. The lists contain the operands of the arithmetic; an empty list means all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overflow {
    /// Overflow is impossible, or the operator adds its own guards.
    None,
    /// Results are compared with the same computation in `f32`, whose relative error is small: for products, and for
    /// sums without cancellation or of two terms.
    Products(&'static [usize]),
    /// The sums are computed exactly, byte by byte.
    Sums(&'static [usize]),
    /// The attribute `reduction` determines the check.
    Scatter,
}

/// An ONNX operator and the functions that import it.
#[derive(Clone, Copy, Debug)]
pub struct OnnxOp {
    /// Domain of the operator; empty for `ai.onnx`.
    pub domain: &'static str,
    /// Name of the operator.
    pub name: &'static str,
    /// First supported version of the domain's operators.
    pub since: i64,
    /// Support level.
    pub support: Support,
    /// Function that builds the operator in the graph.
    pub build: Build,
    /// Function that computes the operator at import, if there is one.
    pub fold: Option<Fold>,
    pub(crate) overflow: Overflow,
    /// True if the operator accepts sequences, or passes its operands through.
    pub(crate) takes_sequences: bool,
    /// True if the operator accepts one operand of strings. Results of strings have the same list of strings.
    pub(crate) takes_strings: bool,
}

/// Operators that another crate adds, found at startup. They have priority over this crate's operators of the same name and
/// domain.
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

/// The tables of this crate, one for each family.
pub(super) struct BuiltinOps(pub(super) &'static [&'static [OnnxOp]]);

inventory::collect!(Registration);
inventory::collect!(BuiltinOps);

impl OnnxOp {
    /// Creates the description of an operator that is completely supported.
    pub const fn new(domain: &'static str, name: &'static str, since: i64, build: Build) -> Self {
        OnnxOp {
            domain,
            name,
            since,
            support: Support::Whole,
            build,
            fold: None,
            overflow: Overflow::None,
            takes_sequences: false,
            takes_strings: false,
        }
    }

    /// Sets the unsupported cases.
    #[must_use]
    pub const fn partly(mut self, but: &'static str) -> Self {
        self.support = Support::Partly(but);
        self
    }

    /// Sets the check of 64-bit results.
    #[must_use]
    pub(crate) const fn checked(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    /// Marks the operator as one that accepts sequences as operands.
    #[must_use]
    pub(crate) const fn taking_sequences(mut self) -> Self {
        self.takes_sequences = true;
        self
    }

    /// Marks the operator as one that accepts strings as an operand.
    #[must_use]
    pub(crate) const fn taking_strings(mut self) -> Self {
        self.takes_strings = true;
        self
    }

    /// Sets the function that computes the operator at import.
    #[must_use]
    pub const fn folding(mut self, fold: Fold) -> Self {
        self.fold = Some(fold);
        self
    }
}

/// Creates an operator of `ai.onnx`.
pub(super) const fn op(name: &'static str, since: i64, build: Build) -> OnnxOp {
    OnnxOp::new("", name, since, build)
}

/// Creates an operator of `com.microsoft`.
pub(super) const fn ms(name: &'static str, build: Build) -> OnnxOp {
    OnnxOp::new("com.microsoft", name, 1, build)
}

/// Returns all operators; those registered by other crates come first.
pub fn operators() -> impl Iterator<Item = &'static OnnxOp> {
    let registered = inventory::iter::<Registration>.into_iter().flat_map(|r| r.0);
    let builtin = inventory::iter::<BuiltinOps>
        .into_iter()
        .flat_map(|b| b.0.iter().copied().flatten());
    registered.chain(builtin)
}

/// Returns the operator with this domain and name.
pub(crate) fn find(domain: &str, name: &str) -> Option<&'static OnnxOp> {
    operators().find(|op| op.name == name && op.domain == domain)
}
