//! Composite operators, each defined by a name, a formula and a decomposition.
//!
//! The decomposition determines the rest: the types of results, the gradient, the definition and
//! the arithmetic cost. This is the short way to define a custom operator; for a custom gradient or
//! cost, implement [`Operator`].

use std::cell::Cell;

use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, Operator, Semantics};
use crate::attrs::Attrs;
use crate::graph::{Graph, NodeKind, Value};
use crate::reference::call_operands;
use crate::shape::TensorType;

/// Function that builds the decomposition of a call on a graph, from operands and attributes: it returns one value for
/// each port.
pub type Decompose = fn(&mut Graph, &[Value], &Attrs) -> Result<Vec<Value>, String>;

/// An operator that its decomposition defines.
///
/// ```
/// use meganeura_core::Graph;
/// use meganeura_core::attrs::Attrs;
/// use meganeura_core::ops::{Composite, OpRef};
///
/// static SQUARED_RELU: Composite = Composite::new("mine.squared_relu", 1, "max(x, 0)^2", |g, x, _| {
///     let positive = g.relu(x[0]);
///     Ok(vec![g.square(positive).into()])
/// });
///
/// let mut g = Graph::new();
/// let x = g.input("x", &[2, 3]);
/// let y = g.call(OpRef::new(&SQUARED_RELU), Attrs::new(), vec![x.into()]);
/// assert_eq!(g.shape(y), vec![2, 3]);
/// ```
///
/// Register it with [`register_op!`](crate::register_op), or as an operator of a
/// [`RuleSet`](crate::rule_set::RuleSet). On devices without a kernel for it the decomposition runs.
#[derive(Clone, Copy, Debug)]
pub struct Composite {
    name: &'static str,
    operands: usize,
    signature: &'static str,
    doc: Doc,
    decompose: Decompose,
    attributes: &'static [(&'static str, AttrKind)],
    ports: &'static [&'static str],
    samples: Option<fn(&mut Sizes) -> Vec<Sample>>,
    version: u32,
}

impl Composite {
    /// Creates an operator with this number of operands, without attributes and with one result.
    /// `name` has a namespace, `mine.squared_relu`; `formula` is plain text. Tests run it on `f32`
    /// operands of one shape, see [`Composite::with_samples`].
    pub const fn new(name: &'static str, operands: usize, formula: &'static str, decompose: Decompose) -> Self {
        Composite {
            name,
            operands,
            signature: "",
            doc: Doc {
                shapes: "those that its decomposition accepts",
                formula,
                source: "a decomposition",
            },
            decompose,
            attributes: &[],
            ports: &["out"],
            samples: None,
            version: 1,
        }
    }

    /// Sets shapes and origin for the reference documentation.
    #[must_use]
    pub const fn with_doc(mut self, shapes: &'static str, source: &'static str) -> Self {
        self.doc.shapes = shapes;
        self.doc.source = source;
        self
    }

    /// Sets the method of [`Graph`] that calls it, for the reference documentation: see
    /// [`Operator::signature`].
    #[must_use]
    pub const fn with_signature(mut self, signature: &'static str) -> Self {
        self.signature = signature;
        self
    }

    /// Sets the attributes, which every call has in this order, and sample cases with values for
    /// them: tests run these on every backend.
    #[must_use]
    pub const fn with_attributes(
        mut self,
        attributes: &'static [(&'static str, AttrKind)],
        samples: fn(&mut Sizes) -> Vec<Sample>,
    ) -> Self {
        self.attributes = attributes;
        self.samples = Some(samples);
        self
    }

    /// Sets the names of the results, if there are several.
    #[must_use]
    pub const fn with_ports(mut self, ports: &'static [&'static str]) -> Self {
        self.ports = ports;
        self
    }

    /// Sets custom sample cases, for operands that differ in shape or element type.
    #[must_use]
    pub const fn with_samples(mut self, samples: fn(&mut Sizes) -> Vec<Sample>) -> Self {
        self.samples = Some(samples);
        self
    }

    /// Sets the version, which must increase when the meaning of its kernels changes.
    #[must_use]
    pub const fn with_version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Returns the decomposition on a separate graph, and the values of the ports.
    fn expand(&self, attrs: &Attrs, inputs: &[TensorType]) -> Result<(Graph, Vec<Value>), String> {
        self.arity().check(inputs.len())?;
        for (name, kind) in self.attributes {
            match attrs.get(name) {
                Some(attr) if attr.kind() == *kind => {}
                Some(attr) => return Err(format!("the attribute '{name}' is {attr}, which is not {kind:?}")),
                None => return Err(format!("the attribute '{name}' is absent")),
            }
        }
        let _level = Level::enter(self.name)?;
        let (mut graph, operands) = call_operands(inputs);
        let values = (self.decompose)(&mut graph, &operands, attrs)?;
        if let Some(error) = graph.errors().first() {
            return Err(format!("in its decomposition, {error}"));
        }
        if values.len() != self.ports.len() {
            let (has, wanted) = (values.len(), self.ports.len());
            return Err(format!(
                "its decomposition has {has} results, and {wanted} are declared"
            ));
        }
        let own = &graph.nodes()[operands.len()..];
        let leaf = own
            .iter()
            .find(|n| n.is_named_leaf() || matches!(n.kind, NodeKind::Scalar));
        if leaf.is_some() || !graph.effects().is_empty() {
            return Err("its decomposition makes inputs, parameters or states, or writes one; pass operands".into());
        }
        Ok((graph, values))
    }
}

/// Returns the arithmetic operations of all calls of a graph.
pub fn graph_flops(graph: &Graph) -> u64 {
    let calls = graph.nodes().iter().filter_map(|node| {
        let (op, attrs) = node.op()?;
        let inputs: Option<Vec<TensorType>> = node.inputs.iter().map(|&v| graph.ty(v).cloned()).collect();
        let part = Call {
            attrs,
            inputs: &inputs?,
            outputs: &node.outputs,
        };
        Some(op.cost(&part).flops)
    });
    calls.fold(0, u64::saturating_add)
}

/// Nesting depth of the decompositions that this thread expands. Its limit prevents a stack overflow if a decomposition
/// contains itself.
struct Level;

thread_local! {
    static LEVEL: Cell<usize> = const { Cell::new(0) };
}

impl Level {
    const DEEPEST: usize = 16;

    fn enter(name: &str) -> Result<Self, String> {
        if LEVEL.get() >= Self::DEEPEST {
            return Err(format!(
                "decompositions are nested more than {} deep; does that of '{name}' contain the operator itself?",
                Self::DEEPEST
            ));
        }
        LEVEL.set(LEVEL.get() + 1);
        Ok(Level)
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        LEVEL.set(LEVEL.get().saturating_sub(1));
    }
}

impl Operator for Composite {
    fn name(&self) -> &'static str {
        self.name
    }

    fn signature(&self) -> String {
        self.signature.into()
    }

    fn doc(&self) -> Doc {
        self.doc
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(self.operands)
    }

    fn attributes(&self) -> AttrDecls {
        self.attributes.to_vec()
    }

    fn ports(&self) -> &'static [&'static str] {
        self.ports
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let (graph, values) = self.expand(call.attrs, call.inputs)?;
        let types = values.iter().map(|&v| graph.ty(v).cloned());
        types
            .collect::<Option<_>>()
            .ok_or_else(|| "its decomposition returns values of another graph".into())
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| (self.decompose)(cx.graph, cx.inputs, cx.attrs))
    }

    /// Counts each operand and result as moved once, and the arithmetic operations of the decomposition.
    fn cost(&self, call: &Call) -> Cost {
        let flops = self
            .expand(call.attrs, call.inputs)
            .map_or(0, |(graph, _)| graph_flops(&graph));
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        if let Some(samples) = self.samples {
            return samples(sizes);
        }
        [vec![], vec![1], vec![37], vec![4, 3], sizes.shape(3, 30)]
            .iter()
            .map(|s| {
                let inputs = vec![SampleInput::f32(s); self.operands];
                Sample::new(format!("{s:?}"), inputs, Attrs::new())
            })
            .collect()
    }

    fn version(&self) -> u32 {
        self.version
    }
}
