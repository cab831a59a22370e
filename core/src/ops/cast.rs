//! Conversion between element types.

use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, FusionRole, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct Cast;

impl Operator for Cast {
    fn name(&self) -> &'static str {
        "core.cast"
    }

    fn signature(&self) -> String {
        "g.cast(x, to)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape -> the same",
            formula: "x in another element type: floats round to nearest even, floats to integers truncate and saturate (NaN to 0), integers to integers wrap",
            source: "IEEE 754 and Rust's `as`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("to", AttrKind::DType)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let dtype = call.attrs.dtype("to")?;
        Ok(vec![TensorType::new(dtype, call.inputs[0].shape.clone())])
    }

    fn gradient(&self) -> Gradient<'_> {
        // The gradient treats rounding as the identity. No gradient flows through integers;
        // differentiation detects them by their dtype.
        Gradient::rule(|cx| {
            let (x, y) = (cx.operand(0), cx.result(0));
            let (from, to) = (cx.dtype(x), cx.dtype(y));
            if to.is_integer() {
                return Ok(vec![None]);
            }
            let dy = cx.grad(0);
            Ok(vec![Some(cx.cast(dy, from).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            let (from, to) = (call.inputs[0].ty.dtype, call.outputs[0].dtype);
            let convert = |&x: &f64| match (from.is_float(), to) {
                (true, DType::U32) => f64::from(x as u32),
                (true, DType::I32) => f64::from(x as i32),
                // Rounding to a narrower float is left to the tolerance: the oracle is exact.
                (true, _) => x,
                (false, to) => crate::reference::wrap(to, x as i128),
            };
            vec![call.inputs[0].data.iter().map(convert).collect()]
        })
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Pointwise
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 1)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let mut samples = Vec::new();
        for from in DType::ALL {
            for to in DType::ALL {
                let fill = if from.is_float() && to != DType::U32 {
                    Fill::Range(-100.0, 100.0)
                } else if from.is_float() {
                    Fill::Range(0.0, 100.0)
                } else {
                    Fill::Below(200)
                };
                let shape = sizes.shape(2, 40);
                let input = SampleInput::filled(from, &shape, fill);
                let attrs = Attrs::new().with("to", to);
                let mut sample = Sample::new(format!("{from} to {to}"), vec![input], attrs);
                sample.tolerance = match (from, to) {
                    (DType::BF16, _) | (_, DType::BF16) => 4e-3,
                    (DType::F16, _) | (_, DType::F16) => 5e-4,
                    _ => 1e-6,
                };
                samples.push(sample);
            }
        }
        samples
    }
}

impl Graph {
    /// Converts `x` to another element type; the operand itself if it has that type.
    #[track_caller]
    pub fn cast(&mut self, x: impl Into<Value>, to: DType) -> NodeId {
        let x = x.into();
        if x.port == 0 && self.ty(x).is_some_and(|t| t.dtype == to) {
            return self.current_value(x).node;
        }
        self.call(OpRef::new(&Cast), Attrs::new().with("to", to), vec![x])
    }
}
