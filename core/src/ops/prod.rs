//! Product over any axes.

use super::reduce::{fold, infer, samples};
use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::reference::wrap;
use crate::shape::{Shape, TensorType};

pub(super) struct Prod;

/// Computes the product along an axis, which keeps size 1, as a tree: multiplies the two halves until one element
/// remains. The gradient of a tree multiplies by the siblings instead of dividing, so zeros need no special case.
fn tree(g: &mut Graph, mut x: Value, axis: usize) -> Value {
    let mut len = g.shape(x)[axis];
    let at = axis as i32;
    if len == 0 {
        let mut shape = g.shape(x).to_vec();
        shape[axis] = 1;
        let dtype = g.dtype(x);
        return g.full(dtype, 1.0, &shape).into();
    }
    while len > 1 {
        let half = len / 2;
        let low = g.slice_axis(x, at, 0, half);
        let high = g.slice_axis(x, at, half, 2 * half);
        let product = g.mul(low, high);
        // An element without a partner is kept for the next round.
        x = if len % 2 == 1 {
            let rest = g.slice_axis(x, at, len - 1, len);
            g.concat(&[product, rest], at).into()
        } else {
            product.into()
        };
        len = len.div_ceil(2);
    }
    x
}

impl Operator for Prod {
    fn name(&self) -> &'static str {
        "core.prod"
    }

    fn signature(&self) -> String {
        "g.prod(x, axes, keep_dims)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape -> x without the reduced axes, or with size 1 there (keep_dims); axes: distinct axes of x, negative ones count from the last, none means all",
            formula: "product of x over the axes (all if none are named); integers wrap; the gradient of an element is the product of the others, also where some are 0",
            source: "NumPy `prod`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("axes", AttrKind::Ints), ("keep_dims", AttrKind::Bool)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        infer(call)
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::both(
            |call| {
                let dtype = call.outputs[0].dtype;
                let times = |a: f64, b: f64| {
                    if dtype.is_integer() {
                        wrap(dtype, a as i128 * b as i128)
                    } else {
                        a * b
                    }
                };
                vec![fold(call, 1.0, times)]
            },
            |cx| {
                let mut x = cx.inputs[0];
                let shape = Shape::new(cx.graph.shape(x))?;
                for axis in shape.axes(cx.attrs.ints("axes")?)? {
                    x = tree(cx.graph, x, axis);
                }
                let shape = cx.outputs[0].shape.to_vec();
                Ok(vec![cx.graph.reshape(x, &shape).into()])
            },
        )
    }

    fn cost(&self, call: &Call) -> Cost {
        let flops = call.inputs[0].numel() as u64;
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        // Long products of numbers that are not close to 1 leave the range of f32.
        let mut all = samples(sizes, Some(Fill::Range(0.97, 1.03)));
        let attrs = || Attrs::new().with("axes", vec![1]).with("keep_dims", false);
        for (label, fill) in [
            ("of any sign", Fill::Range(-2.0, 2.0)),
            ("with zeros", Fill::Below(3)),
            ("of zeros", Fill::Constant(0.0)),
        ] {
            let input = SampleInput::filled(DType::F32, &[6, 7], fill);
            all.push(Sample::new(label, vec![input], attrs()));
        }
        for dtype in [DType::U32, DType::I32] {
            let input = SampleInput::filled(dtype, &[5, 7], Fill::Below(1000));
            all.push(Sample::new(dtype.name(), vec![input], attrs()));
        }
        all
    }
}

impl Graph {
    /// Computes the product over `axes`; see [`Graph::sum`] for the arguments. The product of no
    /// elements is 1.
    #[track_caller]
    pub fn prod(&mut self, x: impl Into<Value>, axes: &[i32], keep_dims: bool) -> NodeId {
        self.reduce(&Prod, x.into(), axes, keep_dims)
    }
}
