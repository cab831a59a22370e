//! Smallest element over any axes.

use super::arg_min::reversed_order;
use super::reduce::{extremum_gradient, fold, infer, samples};
use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, FusionRole, Gradient, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct Min;

impl Operator for Min {
    fn name(&self) -> &'static str {
        "core.min_reduce"
    }

    fn signature(&self) -> String {
        "g.min(x, axes, keep_dims)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape -> x without the reduced axes, or with size 1 there (keep_dims); axes: distinct axes of x, negative ones count from the last, none means all",
            formula: "smallest element over the axes (all if none are named), NaN if there is one; equal smallest elements share the gradient evenly",
            source: "NumPy `min`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("axes", AttrKind::Ints), ("keep_dims", AttrKind::Bool)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let types = infer(call)?;
        if call.inputs[0].numel() == 0 && types[0].numel() > 0 {
            return Err(format!(
                "the smallest of no elements is not defined: {}",
                call.inputs[0]
            ));
        }
        Ok(types)
    }

    fn gradient(&self) -> Gradient<'_> {
        extremum_gradient()
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::both(
            |call| {
                let smallest = |a: f64, b: f64| if a.is_nan() || a < b { a } else { b };
                vec![fold(call, f64::INFINITY, smallest)]
            },
            |cx| {
                let axes: Vec<i32> = cx.attrs.ints("axes")?.iter().map(|&a| a as i32).collect();
                let keep = cx.attrs.bool("keep_dims")?;
                let reversed = reversed_order(cx.graph, cx.inputs[0]);
                let largest = cx.graph.max(reversed, &axes, keep);
                Ok(vec![reversed_order(cx.graph, largest.into()).into()])
            },
        )
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Reduction
    }

    fn cost(&self, call: &Call) -> Cost {
        let flops = call.inputs[0].numel() as u64;
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let mut all = samples(sizes, Some(Fill::Distinct));
        for dtype in [DType::U32, DType::I32] {
            let input = SampleInput::filled(dtype, &[5, 7], Fill::Below(100));
            let attrs = Attrs::new().with("axes", vec![1]).with("keep_dims", false);
            all.push(Sample::new(dtype.name(), vec![input], attrs));
        }
        all
    }
}

impl Graph {
    /// Computes the smallest element over `axes`; see [`Graph::sum`] for the arguments, and
    /// [`Graph::minimum`] for the smaller of two tensors.
    #[track_caller]
    pub fn min(&mut self, x: impl Into<Value>, axes: &[i32], keep_dims: bool) -> NodeId {
        self.reduce(&Min, x.into(), axes, keep_dims)
    }
}
