//! Variance over any axes.

use super::reduce::{infer, keep_dims, samples};
use super::sample::{Sample, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics, expect_float};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct Variance;

/// Returns `1 / (n - correction)`, where `n` is the number of elements per result.
fn factor(graph: &Graph, x: Value, results: usize, attrs: &Attrs) -> Result<f64, String> {
    let count = graph.shape(x).iter().product::<usize>() / results.max(1);
    Ok(1.0 / (count as f64 - attrs.size("correction")? as f64))
}

impl Operator for Variance {
    fn name(&self) -> &'static str {
        "core.variance"
    }

    fn signature(&self) -> String {
        "g.variance(x, axes, correction, keep_dims)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape -> x without the reduced axes, or with size 1 there (keep_dims); axes: distinct axes of x, negative ones count from the last, none means all",
            formula: "sum of (x - mean(x))^2 over the axes, divided by the number of elements summed less the correction",
            source: "two passes; Bessel's correction is 1; PyTorch `var`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![
            ("axes", AttrKind::Ints),
            ("keep_dims", AttrKind::Bool),
            ("correction", AttrKind::Int),
        ]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_float(call, 0, "the operand")?;
        let types = infer(call)?;
        let correction = call.attrs.size("correction")?;
        let x = &call.inputs[0];
        let results = types[0].numel();
        if results > 0 && x.numel() / results <= correction {
            return Err(format!(
                "the variance of {} elements with the correction {correction} is not defined: {x}",
                x.numel() / results
            ));
        }
        Ok(types)
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            // 2 (x - mean) / (n - correction): the derivative of the mean contributes nothing, because `x - mean` sums
            // to zero.
            let x = cx.operand(0);
            let results: usize = cx.shape(cx.result(0)).iter().product();
            let factor = 2.0 * factor(cx, x, results, cx.attrs())?;
            let axes: Vec<i32> = cx.attrs().ints("axes")?.iter().map(|&a| a as i32).collect();
            let dtype = cx.dtype(x);
            let dy = cx.grad(0);
            if cx.shape(x).contains(&0) {
                let shape = cx.shape(x).to_vec();
                return Ok(vec![Some(cx.full(dtype, 0.0, &shape).into())]);
            }
            let factor = cx.scalar_of(dtype, factor);
            let scaled = cx.mul(dy, factor).into();
            let kept = keep_dims(cx, scaled)?;
            let mean = cx.mean(x, &axes, true);
            let centred = cx.sub(x, mean);
            Ok(vec![Some(cx.mul(centred, kept).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let x = cx.inputs[0];
            let dtype = cx.outputs[0].dtype;
            if cx.outputs[0].numel() == 0 {
                let shape = cx.outputs[0].shape.to_vec();
                return Ok(vec![cx.graph.full(dtype, 0.0, &shape).into()]);
            }
            let axes: Vec<i32> = cx.attrs.ints("axes")?.iter().map(|&a| a as i32).collect();
            let keep = cx.attrs.bool("keep_dims")?;
            let factor = factor(cx.graph, x, cx.outputs[0].numel(), cx.attrs)?;
            let mean = cx.graph.mean(x, &axes, true);
            let centred = cx.graph.sub(x, mean);
            let squares = cx.graph.square(centred);
            let sum = cx.graph.sum(squares, &axes, keep);
            let factor = cx.graph.scalar_of(dtype, factor);
            Ok(vec![cx.graph.mul(sum, factor).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        let flops = 4 * call.inputs[0].numel() as u64;
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let mut all = Vec::new();
        for mut sample in samples(sizes, None) {
            let call_shape = &sample.inputs[0].shape;
            let axes = sample.attrs.ints("axes").unwrap_or_default();
            let rank = call_shape.len() as i64;
            let reduced = (0..rank).filter(|a| axes.is_empty() || axes.contains(a) || axes.contains(&(a - rank)));
            let count: usize = reduced.map(|a| call_shape[a as usize]).product();
            // A single element has a variance only without correction.
            let correction = usize::from(count > 1 && all.len() % 3 != 0);
            sample.label = format!("{} correction {correction}", sample.label);
            sample.attrs = sample.attrs.with("correction", correction);
            all.push(sample);
        }
        all
    }
}

impl Graph {
    /// Computes the variance over `axes`, the sum of squares divided by the number of elements less
    /// `correction` (1 for Bessel's); see [`Graph::sum`] for the other arguments.
    #[track_caller]
    pub fn variance(&mut self, x: impl Into<Value>, axes: &[i32], correction: u32, keep_dims: bool) -> NodeId {
        let attrs = Attrs::new()
            .with("axes", axes)
            .with("correction", correction)
            .with("keep_dims", keep_dims);
        self.call(OpRef::new(&Variance), attrs, vec![x.into()])
    }

    /// Computes the standard deviation: the square root of [`Graph::variance`]. Where the variance is 0, its gradient
    /// is that of the square root of 0: infinite or NaN.
    #[track_caller]
    pub fn std_dev(&mut self, x: impl Into<Value>, axes: &[i32], correction: u32, keep_dims: bool) -> NodeId {
        let variance = self.variance(x, axes, correction, keep_dims);
        self.sqrt(variance)
    }
}
