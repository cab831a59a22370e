//! Number of elements that are not finite.

use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics, expect_float};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct CountNonFinite;

impl Operator for CountNonFinite {
    fn name(&self) -> &'static str {
        "core.count_non_finite"
    }

    fn signature(&self) -> String {
        "g.count_non_finite(x)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape -> [] f32",
            formula: "number of elements that are NaN or infinite; exact to 2^24, and never 0 beyond",
            source: "IEEE 754 `isFinite`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_float(call, 0, "the operand")?;
        Ok(vec![TensorType::f32(Shape::scalar())])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Zero
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let g = &mut *cx.graph;
            // Every half fits into f32, and infinities stay infinite.
            let x = g.cast(cx.inputs[0], DType::F32);
            let size = g.abs(x);
            let largest = g.scalar(f32::MAX);
            let finite = g.less_equal(size, largest);
            let (zero, one) = (g.scalar(0.0), g.scalar(1.0));
            let counted = g.select(finite, zero, one);
            Ok(vec![g.sum_all(counted).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost {
            flops: 2 * call.inputs[0].numel() as u64,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let mut samples: Vec<Sample> = [vec![], vec![1], vec![3, 5], vec![0], sizes.shape(3, 40)]
            .iter()
            .map(|s| Sample::new(format!("{s:?}"), vec![SampleInput::f32(s)], Attrs::new()))
            .collect();
        let fills = [
            ("infinite", f64::INFINITY),
            ("-infinite", f64::NEG_INFINITY),
            ("NaN", f64::NAN),
            ("largest", f64::from(f32::MAX)),
        ];
        samples.extend(fills.map(|(label, value)| {
            let input = SampleInput::filled(DType::F32, &[40_009], Fill::Constant(value));
            Sample::new(label, vec![input], Attrs::new())
        }));
        samples
    }
}

impl Graph {
    /// Returns the number of elements that are NaN or infinite, as `f32 []`.
    #[track_caller]
    pub fn count_non_finite(&mut self, x: impl Into<Value>) -> NodeId {
        self.call(OpRef::new(&CountNonFinite), Attrs::new(), vec![x.into()])
    }
}
