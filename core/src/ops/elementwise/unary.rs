//! Unary elementwise operators.

use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::ops::operator::short_name;
use crate::ops::sample::{Sample, SampleInput, Sizes};
use crate::ops::{
    Arity, AttrDecls, AttrKind, Call, Cost, Doc, FusionRole, Gradient, OpRef, Operator, RefCall, Semantics,
    expect_float,
};
use crate::reference::wrap;
use crate::shape::TensorType;

/// Attribute values of a call, in the order of [`Unary::attrs`].
pub(super) type Params<'a> = &'a [f64];

/// Derivative of a unary operator.
pub(super) enum Derivative {
    /// `(graph, x, y, dy, params) -> dx`.
    Vjp(fn(&mut Graph, Value, Value, Value, Params) -> Value),
    /// Zero wherever it exists.
    Zero,
}

/// A unary elementwise operator: a row of the table.
pub(super) struct Unary {
    pub(super) name: &'static str,
    pub(super) formula: &'static str,
    pub(super) source: &'static str,
    /// Names of the attributes, all of them floating-point numbers.
    pub(super) attrs: &'static [&'static str],
    /// Attribute values of the sample cases.
    pub(super) sample_attrs: &'static [f64],
    /// Function that returns an error message for invalid attribute values.
    pub(super) check: fn(Params) -> Option<&'static str>,
    /// The definition.
    pub(super) reference: fn(f64, Params) -> f64,
    pub(super) derivative: Derivative,
    /// Decomposition into other operators; `None` for a primitive.
    pub(super) decompose: Option<fn(&mut Graph, Value, Params) -> Value>,
    /// Range of the operand in sample cases.
    pub(super) domain: (f64, f64),
    /// Number of operations per element, for the cost model.
    pub(super) flops: u64,
    /// `true` if `i32` operands are also accepted.
    pub(super) integers: bool,
}

impl Unary {
    /// Row with the default values of all fields.
    pub(super) const BASE: Unary = Unary {
        name: "",
        formula: "",
        source: "elementary",
        attrs: &[],
        sample_attrs: &[],
        check: |_| None,
        reference: |x, _| x,
        derivative: Derivative::Zero,
        decompose: None,
        domain: (-3.0, 3.0),
        flops: 1,
        integers: false,
    };

    fn params(&self, attrs: &Attrs) -> Result<Vec<f64>, String> {
        self.attrs.iter().map(|name| attrs.float(name)).collect()
    }

    fn decomposed(&self, graph: &mut Graph, x: Value, attrs: &Attrs) -> Result<Vec<Value>, String> {
        let decompose = self.decompose.ok_or("it is a primitive")?;
        Ok(vec![decompose(graph, x, &self.params(attrs)?)])
    }

    fn evaluate(&self, call: &RefCall) -> Vec<Vec<f64>> {
        let params: Vec<f64> = self.attrs.iter().map(|name| call.float(name)).collect();
        let dtype = call.outputs[0].dtype;
        let value = |&x: &f64| {
            if dtype.is_integer() {
                wrap(dtype, (self.reference)(x, &params) as i128)
            } else {
                (self.reference)(x, &params)
            }
        };
        vec![call.inputs[0].data.iter().map(value).collect()]
    }
}

impl Operator for Unary {
    fn name(&self) -> &'static str {
        self.name
    }

    fn signature(&self) -> String {
        let attrs: String = self.attrs.iter().map(|name| format!(", {name}")).collect();
        format!("g.{}(x{attrs})", short_name(self.name))
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape -> the same",
            formula: self.formula,
            source: self.source,
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        self.attrs.iter().map(|name| (*name, AttrKind::Float)).collect()
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let params = self.params(call.attrs)?;
        if let Some(wrong) = (self.check)(&params) {
            return Err(format!("{wrong}: {}", call.attrs));
        }
        let integer = self.integers && call.inputs[0].dtype == DType::I32;
        if !integer {
            expect_float(call, 0, "the operand")?;
        }
        Ok(vec![call.inputs[0].clone()])
    }

    fn gradient(&self) -> Gradient<'_> {
        match self.derivative {
            Derivative::Zero => Gradient::Zero,
            Derivative::Vjp(vjp) => Gradient::rule(move |cx| {
                let params = self.params(cx.attrs())?;
                let (x, y, dy) = (cx.operand(0), cx.result(0), cx.grad(0));
                Ok(vec![Some(vjp(cx, x, y, dy, &params))])
            }),
        }
    }

    fn semantics(&self) -> Semantics<'_> {
        let reference = |call: &RefCall| self.evaluate(call);
        match self.decompose {
            None => Semantics::primitive(reference),
            Some(_) => Semantics::both(reference, |cx| {
                let x = cx.inputs[0];
                self.decomposed(cx.graph, x, cx.attrs)
            }),
        }
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Pointwise
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, self.flops)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let attrs = self
            .attrs
            .iter()
            .zip(self.sample_attrs)
            .fold(Attrs::new(), |a, (name, v)| a.with(name, *v));
        let (low, high) = self.domain;
        let shapes = [vec![], vec![1], vec![3, 5], sizes.shape(3, 40), vec![1031]];
        shapes
            .iter()
            .map(|shape| {
                let input = SampleInput::range(shape, low, high);
                Sample::new(format!("{shape:?}"), vec![input], attrs.clone())
            })
            .collect()
    }
}

/// Adds a call of a unary operator with these attribute values.
#[track_caller]
pub(super) fn call(graph: &mut Graph, row: &'static Unary, x: Value, params: &[f32]) -> crate::NodeId {
    let attrs = row
        .attrs
        .iter()
        .zip(params)
        .fold(Attrs::new(), |a, (name, v)| a.with(name, *v));
    graph.call(OpRef::new(row), attrs, vec![x])
}

/// Defines the builder methods of rows. Each entry contains the method's name, the row, and the names of its
/// attributes.
macro_rules! builders {
    ($($(#[$doc:meta])* $name:ident($row:ident $(, $param:ident)*);)*) => {
        impl $crate::graph::Graph {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name(&mut self, x: impl Into<$crate::graph::Value> $(, $param: f32)*) -> $crate::NodeId {
                static ROW: $crate::ops::elementwise::unary::Unary = $row;
                $crate::ops::elementwise::unary::call(self, &ROW, x.into(), &[$($param),*])
            })*
        }
    };
}
pub(super) use builders;
