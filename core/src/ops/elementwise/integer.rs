//! Elementwise operators on integers: bitwise and logical ones.

use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::ops::operator::short_name;
use crate::ops::sample::{Fill, Sample, SampleInput, Sizes};
use crate::ops::{Arity, Call, Cost, Doc, FusionRole, Gradient, Operator, RefCall, Semantics, expect_same_dtype};
use crate::reference::wrap;
use crate::shape::{Shape, TensorType};

use super::binary::{broadcast, shape_pairs};

/// An integer operator with two operands: a row of the table.
pub(super) struct IntBinary {
    pub(super) name: &'static str,
    pub(super) formula: &'static str,
    /// The definition, on the 32 bits.
    pub(super) reference: fn(u32, u32) -> u32,
    /// `true` if `i32` operands are also accepted.
    pub(super) signed: bool,
    /// Decomposition into other operators; `None` for a primitive.
    pub(super) decompose: Option<fn(&mut Graph, Value, Value) -> Value>,
    /// Exclusive upper bound of the second operand in sample cases.
    pub(super) second_below: u32,
}

/// An integer operator with one operand: a row of the table.
pub(super) struct IntUnary {
    pub(super) name: &'static str,
    pub(super) formula: &'static str,
    /// The definition, on the 32 bits.
    pub(super) reference: fn(u32) -> u32,
    /// `true` if `i32` operands are also accepted.
    pub(super) signed: bool,
    /// Decomposition into other operators.
    pub(super) decompose: fn(&mut Graph, Value) -> Value,
}

/// Returns the bits of an integer that the oracle stores as `f64`.
fn bits(v: f64) -> u32 {
    v as i64 as u32
}

/// Returns an integer of this dtype from its bits.
fn number(dtype: DType, bits: u32) -> f64 {
    wrap(dtype, i128::from(bits))
}

fn expect_integer(call: &Call, signed: bool) -> Result<DType, String> {
    expect_same_dtype(call)?;
    let dtype = call.inputs[0].dtype;
    if dtype == DType::U32 || (signed && dtype == DType::I32) {
        return Ok(dtype);
    }
    let accepted = if signed { "u32 or i32" } else { "u32" };
    Err(format!(
        "is defined on {accepted}, not on {dtype}; comparisons yield u32, and `cast` converts"
    ))
}

/// Returns a sample with random integers below these bounds, one bound for each operand.
fn samples_of(dtype: DType, shapes: &[&[usize]], bounds: &[u32]) -> Sample {
    let input = |(shape, bound): (&&[usize], &u32)| SampleInput::filled(dtype, shape, Fill::Below(*bound));
    let inputs = shapes.iter().zip(bounds).map(input).collect();
    Sample::new(format!("{dtype} {shapes:?} below {bounds:?}"), inputs, Attrs::new())
}

impl Operator for IntBinary {
    fn name(&self) -> &'static str {
        self.name
    }

    fn signature(&self) -> String {
        format!("g.{}(a, b)", short_name(self.name()))
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "a, b: shapes that broadcast -> the broadcast shape",
            formula: self.formula,
            source: "elementary; NumPy broadcasting",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let dtype = expect_integer(call, self.signed)?;
        let shape = Shape::broadcast(&call.inputs[0].shape, &call.inputs[1].shape)?;
        Ok(vec![TensorType::new(dtype, shape)])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Zero
    }

    fn semantics(&self) -> Semantics<'_> {
        let reference = |call: &RefCall| {
            let dtype = call.outputs[0].dtype;
            let f = |a, b| number(dtype, (self.reference)(bits(a), bits(b)));
            vec![broadcast(call, f)]
        };
        match self.decompose {
            None => Semantics::primitive(reference),
            Some(decompose) => Semantics::both(reference, move |cx| {
                let (a, b) = (cx.inputs[0], cx.inputs[1]);
                Ok(vec![decompose(cx.graph, a, b)])
            }),
        }
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Pointwise
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 1)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let mut samples = Vec::new();
        for (a, b) in shape_pairs(sizes) {
            samples.push(samples_of(DType::U32, &[&a, &b], &[u32::MAX, self.second_below]));
        }
        samples.push(samples_of(DType::U32, &[&[9, 4], &[4]], &[3, 2]));
        if self.signed {
            samples.push(samples_of(DType::I32, &[&[5, 3], &[3]], &[1 << 31, 1 << 31]));
        }
        samples
    }
}

impl Operator for IntUnary {
    fn name(&self) -> &'static str {
        self.name
    }

    fn signature(&self) -> String {
        format!("g.{}(x)", short_name(self.name))
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape -> the same",
            formula: self.formula,
            source: "elementary",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_integer(call, self.signed)?;
        Ok(vec![call.inputs[0].clone()])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Zero
    }

    fn semantics(&self) -> Semantics<'_> {
        let reference = |call: &RefCall| {
            let dtype = call.outputs[0].dtype;
            let f = |&x: &f64| number(dtype, (self.reference)(bits(x)));
            vec![call.inputs[0].data.iter().map(f).collect()]
        };
        Semantics::both(reference, |cx| {
            let x = cx.inputs[0];
            Ok(vec![(self.decompose)(cx.graph, x)])
        })
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Pointwise
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 1)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let varied = sizes.shape(3, 40);
        let shapes = [vec![], vec![3, 5], varied, vec![1031]];
        let mut samples: Vec<Sample> = shapes
            .iter()
            .map(|shape| samples_of(DType::U32, &[shape], &[u32::MAX]))
            .collect();
        samples.push(samples_of(DType::U32, &[&[37]], &[2]));
        if self.signed {
            samples.push(samples_of(DType::I32, &[&[5, 3]], &[1 << 31]));
        }
        samples
    }
}
