//! Binary elementwise operators with NumPy broadcasting.

use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::ops::operator::short_name;
use crate::ops::sample::{Fill, Sample, SampleInput, Sizes};
use crate::ops::{
    Arity, Call, Cost, Doc, FusionRole, Gradient, OpRef, Operator, RefCall, Semantics, expect_same_dtype,
};
use crate::reference::{broadcast_offset, for_each_index, wrap};
use crate::shape::{Shape, TensorType};

/// Function that builds the derivatives, before they are summed over broadcast axes:
/// `(graph, a, b, y, dy) -> [da, db]`.
pub(super) type Vjp = fn(&mut Graph, Value, Value, Value, Value) -> [Option<Value>; 2];

/// A binary elementwise operator: a row of the table.
pub(super) struct Binary {
    pub(super) name: &'static str,
    pub(super) formula: &'static str,
    /// The definition on floats.
    pub(super) reference: fn(f64, f64) -> f64,
    /// The definition on integers, before wrapping to 32 bits; `None` if only floats are accepted.
    pub(super) integers: Option<fn(i128, i128) -> i128>,
    pub(super) vjp: Vjp,
    /// Decomposition into other operators; `None` for a primitive.
    pub(super) decompose: Option<fn(&mut Graph, Value, Value) -> Value>,
    /// Ranges of the operands in sample cases.
    pub(super) domain: [(f64, f64); 2],
    pub(super) flops: u64,
}

/// Broadcasts two operands and applies a scalar function.
pub(super) fn broadcast(call: &RefCall, f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    let (a, b) = (call.inputs[0], call.inputs[1]);
    let mut out = Vec::with_capacity(call.outputs[0].numel());
    for_each_index(&call.outputs[0].shape, |index| {
        let x = a.data[broadcast_offset(a.shape(), index)];
        let y = b.data[broadcast_offset(b.shape(), index)];
        out.push(f(x, y));
    });
    out
}

/// Returns pairs of shapes that broadcast; `sizes` varies the last two pairs.
pub(super) fn shape_pairs(sizes: &mut Sizes) -> Vec<(Vec<usize>, Vec<usize>)> {
    let s = sizes.shape(3, 40);
    vec![
        (vec![], vec![]),
        (vec![7], vec![7]),
        (vec![3, 5], vec![5]),
        (vec![3, 1], vec![1, 4]),
        (vec![2, 3, 4], vec![]),
        (vec![4, 1, 3], vec![2, 1]),
        (vec![1], vec![6, 1]),
        (s.clone(), vec![s[0], 1, s[2]]),
        (vec![s[1], s[2]], s),
    ]
}

impl Operator for Binary {
    fn name(&self) -> &'static str {
        self.name
    }

    fn signature(&self) -> String {
        let method = match short_name(self.name) {
            // `mod` is a keyword in Rust; `modulo` is also clearer.
            "mod" => "modulo",
            // `max` and `min` are the names of reductions, as in NumPy.
            "max" => "maximum",
            "min" => "minimum",
            name => name,
        };
        format!("g.{method}(a, b)")
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
        expect_same_dtype(call)?;
        let dtype = call.inputs[0].dtype;
        if dtype.is_integer() && self.integers.is_none() {
            return Err(format!("is not defined on {dtype}; use `cast` to convert the operands"));
        }
        let shape = Shape::broadcast(&call.inputs[0].shape, &call.inputs[1].shape)?;
        Ok(vec![TensorType::new(dtype, shape)])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let (a, b, y, dy) = (cx.operand(0), cx.operand(1), cx.result(0), cx.grad(0));
            let [da, db] = (self.vjp)(cx, a, b, y, dy);
            let da = da.filter(|_| cx.needs(0)).map(|d| cx.unbroadcast(d, a));
            let db = db.filter(|_| cx.needs(1)).map(|d| cx.unbroadcast(d, b));
            Ok(vec![da, db])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        let reference = |call: &RefCall| {
            let dtype = call.outputs[0].dtype;
            vec![match self.integers {
                Some(f) if dtype.is_integer() => broadcast(call, |a, b| wrap(dtype, f(a as i128, b as i128))),
                _ => broadcast(call, self.reference),
            }]
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
        Cost::streaming(call, self.flops)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let [(al, ah), (bl, bh)] = self.domain;
        let mut samples: Vec<Sample> = shape_pairs(sizes)
            .into_iter()
            .map(|(a, b)| {
                let inputs = vec![SampleInput::range(&a, al, ah), SampleInput::range(&b, bl, bh)];
                Sample::new(format!("{a:?} {b:?}"), inputs, Attrs::new())
            })
            .collect();
        // Decompositions of rows without an integer form are float graphs.
        if self.integers.is_some() {
            let operand = |dtype, shape: &[usize]| SampleInput::filled(dtype, shape, Fill::Below(40));
            for dtype in [DType::U32, DType::I32] {
                let inputs = vec![operand(dtype, &[5, 3]), operand(dtype, &[3])];
                samples.push(Sample::new(dtype.name(), inputs, Attrs::new()));
            }
        }
        samples
    }
}

/// Adds a call of a binary operator.
#[track_caller]
pub(super) fn call(graph: &mut Graph, row: &'static dyn Operator, a: Value, b: Value) -> crate::NodeId {
    graph.call(OpRef::new(row), Attrs::new(), vec![a, b])
}
