//! Gated linear units: an activation of one operand times another.

use super::sample::{Sample, SampleInput, Sizes};
use super::{
    Arity, Call, Cost, Doc, FusionRole, Gradient, OpRef, Operator, Semantics, expect_float, expect_same_dtype,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::ops::operator::short_name;
use crate::shape::{Shape, TensorType};

pub(super) struct SwigluConcat;
pub(super) struct SwigluConcatGrad;

/// Returns the type of gate, up and any gradient, which must be one float type.
fn one_type(call: &Call) -> Result<TensorType, String> {
    expect_same_dtype(call)?;
    expect_float(call, 0, "the operands")?;
    let gate = &call.inputs[0];
    match call.inputs.iter().find(|t| t.shape != gate.shape) {
        None => Ok(gate.clone()),
        Some(other) => Err(format!(
            "the gate is {gate}, but another operand {other}; their shapes must be equal"
        )),
    }
}

/// Returns the type of the result for a packed gate and up: the last axis has half the size.
fn unpacked(packed: &TensorType) -> Result<TensorType, String> {
    let mut dims = packed.shape.to_vec();
    match dims.last_mut() {
        Some(width) if width.is_multiple_of(2) => *width /= 2,
        Some(width) => {
            return Err(format!(
                "the last axis of {packed} holds a gate and an up part of equal widths, so {width} must be even"
            ));
        }
        None => return Err(format!("{packed} has no axis that could hold a gate and an up part")),
    }
    Ok(TensorType::new(packed.dtype, Shape::new(&dims)?))
}

/// Splits a packed value into gate and up.
fn halves(g: &mut Graph, packed: Value) -> [NodeId; 2] {
    let width = g.shape(packed).last().copied().unwrap_or(0);
    let half = width / 2;
    [g.slice_axis(packed, -1, 0, half), g.slice_axis(packed, -1, half, width)]
}

fn swiglu(g: &mut Graph, gate: Value, up: Value) -> NodeId {
    let activated = g.silu(gate);
    g.mul(activated, up)
}

fn geglu(g: &mut Graph, gate: Value, up: Value) -> NodeId {
    let activated = g.gelu_erf(gate);
    g.mul(activated, up)
}

/// Returns the gradients of gate and up.
fn swiglu_grad(g: &mut Graph, gate: Value, up: Value, dy: Value) -> [NodeId; 2] {
    let dtype = g.dtype(gate);
    let one = g.scalar_of(dtype, 1.0);
    let s = g.sigmoid(gate);
    let y = g.mul(gate, s);
    let dup = g.mul(dy, y);
    // s + y (1 - s)
    let rest = g.sub(one, s);
    let slope = g.mul(y, rest);
    let slope = g.add(s, slope);
    let dactivated = g.mul(dy, up);
    [g.mul(dactivated, slope), dup]
}

/// Returns the gradients of gate and up, with the derivative of GELU: cdf(x) + x pdf(x) of the
/// standard normal.
fn geglu_grad(g: &mut Graph, gate: Value, up: Value, dy: Value) -> [NodeId; 2] {
    let dtype = g.dtype(gate);
    let mut number = |v: f64| g.scalar_of(dtype, v);
    let [root, one, half, minus, factor] =
        [0.5f64.sqrt(), 1.0, 0.5, -0.5, 1.0 / (2.0 * std::f64::consts::PI).sqrt()].map(&mut number);
    let scaled = g.mul(gate, root);
    let erf = g.erf(scaled);
    let cdf = g.add(erf, one);
    let cdf = g.mul(cdf, half);
    let square = g.square(gate);
    let exponent = g.mul(square, minus);
    let bell = g.exp(exponent);
    let pdf = g.mul(bell, factor);
    let along = g.mul(gate, pdf);
    let slope = g.add(cdf, along);
    let y = g.gelu_erf(gate);
    let dup = g.mul(dy, y);
    let dactivated = g.mul(dy, up);
    [g.mul(dactivated, slope), dup]
}

/// Returns a gradient rule that calls the operator's own backward operator for the gradients of gate and up.
fn fused(backward: &'static dyn Operator) -> Gradient<'static> {
    Gradient::rule(move |cx| {
        let mut inputs: Vec<Value> = (0..cx.arity()).map(|i| cx.operand(i)).collect();
        inputs.push(cx.grad(0));
        let grads = cx.call(OpRef::new(backward), Attrs::new(), inputs);
        let ports = 0..cx.arity() as u32;
        Ok(ports.map(|port| Some(cx.port(grads, port))).collect())
    })
}

/// Returns samples of operators with `operands` operands of one shape.
fn same_shapes(sizes: &mut Sizes, operands: usize) -> Vec<Sample> {
    [
        vec![],
        vec![1],
        vec![7],
        vec![3, 33],
        vec![2, 1, 64],
        sizes.shape(3, 40),
    ]
    .iter()
    .map(|s| {
        let inputs = vec![SampleInput::range(s, -6.0, 6.0); operands];
        Sample::new(format!("{s:?}"), inputs, Attrs::new())
    })
    .collect()
}

/// Returns samples with a packed operand, and with a gradient of half its width if `with_gradient`.
fn packed_shapes(sizes: &mut Sizes, with_gradient: bool) -> Vec<Sample> {
    let (rows, width) = (sizes.dim(40), sizes.dim(60));
    [vec![1], vec![7], vec![3, 33], vec![2, 3, 64], vec![rows, width]]
        .iter()
        .map(|s| {
            let mut packed = s.clone();
            packed.iter_mut().next_back().into_iter().for_each(|d| *d *= 2);
            let mut inputs = vec![SampleInput::range(&packed, -6.0, 6.0)];
            if with_gradient {
                inputs.push(SampleInput::f32(s));
            }
            Sample::new(format!("{packed:?}"), inputs, Attrs::new())
        })
        .collect()
}

/// Source of all gated units, for the reference.
const SOURCE: &str = "Shazeer, 2020";

/// `activation(gate) * up`.
pub(super) struct Gated {
    name: &'static str,
    formula: &'static str,
    flops: u64,
    forward: fn(&mut Graph, Value, Value) -> NodeId,
    backward: &'static GatedGrad,
}

/// The derivative of a [`Gated`] unit in one pass.
pub(super) struct GatedGrad {
    name: &'static str,
    formula: &'static str,
    source: &'static str,
    flops: u64,
    backward: fn(&mut Graph, Value, Value, Value) -> [NodeId; 2],
}

pub(super) static SWIGLU: Gated = Gated {
    name: "core.swiglu",
    formula: "silu(gate) * up, silu(x) = x / (1 + e^-x)",
    flops: 14,
    forward: swiglu,
    backward: &SWIGLU_GRAD,
};

pub(super) static SWIGLU_GRAD: GatedGrad = GatedGrad {
    name: "core.swiglu_grad",
    formula: "with s = sigmoid(gate): dgate = dy up (s + gate s (1 - s)), dup = dy gate s",
    source: "derivative of core.swiglu",
    flops: 10,
    backward: swiglu_grad,
};

pub(super) static GEGLU: Gated = Gated {
    name: "core.geglu",
    formula: "gelu(gate) * up, gelu(x) = x/2 (1 + erf(x / sqrt(2)))",
    flops: 25,
    forward: geglu,
    backward: &GEGLU_GRAD,
};

pub(super) static GEGLU_GRAD: GatedGrad = GatedGrad {
    name: "core.geglu_grad",
    formula: "dgate = dy up (cdf(gate) + gate pdf(gate)) with those of the standard normal, dup = dy gelu(gate)",
    source: "derivative of core.geglu",
    flops: 24,
    backward: geglu_grad,
};

impl Operator for Gated {
    fn name(&self) -> &'static str {
        self.name
    }

    fn signature(&self) -> String {
        format!("g.{}(gate, up)", short_name(self.name()))
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "gate, up: one shape -> the same",
            formula: self.formula,
            source: SOURCE,
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        Ok(vec![one_type(call)?])
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Pointwise
    }

    fn gradient(&self) -> Gradient<'_> {
        fused(self.backward)
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| Ok(vec![(self.forward)(cx.graph, cx.inputs[0], cx.inputs[1]).into()]))
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, self.flops)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        same_shapes(sizes, 2)
    }
}

impl Operator for GatedGrad {
    fn name(&self) -> &'static str {
        self.name
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "gate, up, dy: one shape -> dgate, dup: the same",
            formula: self.formula,
            source: self.source,
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(3)
    }

    fn ports(&self) -> &'static [&'static str] {
        &["dgate", "dup"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        Ok(vec![one_type(call)?; 2])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let &[gate, up, dy] = cx.inputs else {
                return Err("takes three operands".into());
            };
            Ok((self.backward)(cx.graph, gate, up, dy).map(Value::from).to_vec())
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, self.flops)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        same_shapes(sizes, 3)
    }
}

impl Operator for SwigluConcat {
    fn name(&self) -> &'static str {
        "core.swiglu_concat"
    }

    fn signature(&self) -> String {
        "g.swiglu_concat(packed)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "packed [..., 2d] -> [..., d]",
            formula: "silu(gate) * up, where gate is the first half of the last axis and up the second",
            source: SOURCE,
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_float(call, 0, "the operand")?;
        Ok(vec![unpacked(&call.inputs[0])?])
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Prologue
    }

    fn gradient(&self) -> Gradient<'_> {
        fused(&SwigluConcatGrad)
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let [gate, up] = halves(cx.graph, cx.inputs[0]);
            Ok(vec![swiglu(cx.graph, gate.into(), up.into()).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 14)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        packed_shapes(sizes, false)
    }
}

impl Operator for SwigluConcatGrad {
    fn name(&self) -> &'static str {
        "core.swiglu_concat_grad"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "packed [..., 2d], dy [..., d] -> dpacked [..., 2d]",
            formula: "the results of core.swiglu_grad for the gate and up parts of packed, concatenated",
            source: "derivative of core.swiglu_concat",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_same_dtype(call)?;
        expect_float(call, 0, "the operands")?;
        let (packed, dy) = (&call.inputs[0], &call.inputs[1]);
        let half = unpacked(packed)?;
        if *dy != half {
            return Err(format!("the gradient of the result is {dy}, but must be {half}"));
        }
        Ok(vec![packed.clone()])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let [gate, up] = halves(cx.graph, cx.inputs[0]);
            let grads = swiglu_grad(cx.graph, gate.into(), up.into(), cx.inputs[1]);
            Ok(vec![cx.graph.concat(&grads, -1).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 10)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        packed_shapes(sizes, true)
    }
}

impl Graph {
    /// Computes `silu(gate) * up` (Shazeer, 2020), of two operands of one float type, element by
    /// element.
    #[track_caller]
    pub fn swiglu(&mut self, gate: impl Into<Value>, up: impl Into<Value>) -> NodeId {
        self.call(OpRef::new(&SWIGLU), Attrs::new(), vec![gate.into(), up.into()])
    }

    /// Computes [`Graph::swiglu`] of the halves of the last axis: `packed [..., 2d]`, gate first,
    /// gives `[..., d]`. The axis must be even.
    #[track_caller]
    pub fn swiglu_concat(&mut self, packed: impl Into<Value>) -> NodeId {
        self.call(OpRef::new(&SwigluConcat), Attrs::new(), vec![packed.into()])
    }

    /// Computes `gelu(gate) * up` with the exact GELU (Shazeer, 2020), of two operands of one float
    /// type, element by element.
    #[track_caller]
    pub fn geglu(&mut self, gate: impl Into<Value>, up: impl Into<Value>) -> NodeId {
        self.call(OpRef::new(&GEGLU), Attrs::new(), vec![gate.into(), up.into()])
    }
}
