//! The gradient of max pooling, from the offsets of the chosen elements.

use super::pool2d::{MaxPool2d, Pool2dDims};
use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, Operator, Semantics};
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::shape::{Shape, TensorType};

pub(super) struct MaxPool2dGrad;

/// Returns the shape of the operand of the max pooling; offsets and gradients must have the same planes.
fn x_shape(call: &Call) -> Result<Shape, String> {
    let [indices, dy] = call.inputs else {
        return Err("takes offsets and gradients".into());
    };
    let shape = call.attrs.sizes::<4>("shape")?;
    if indices.dtype != DType::U32 {
        return Err(format!("the offsets must be u32, not {indices}"));
    }
    if indices.shape != dy.shape || dy.shape.rank() != 4 {
        return Err(format!(
            "the offsets {indices} and the gradient {dy} must have the four axes of the pooled tensor"
        ));
    }
    if dy.shape[..2] != shape[..2] {
        return Err(format!("the gradient {dy} has other planes than {shape:?}"));
    }
    Shape::new(&shape)
}

impl Operator for MaxPool2dGrad {
    fn name(&self) -> &'static str {
        "core.max_pool2d_grad"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "offsets (u32), dy [batch, channels, out height, out width] -> shape [batch, channels, height, width]",
            formula: "y[r] = sum of dy[i] over all i with offsets[i] = r, r counting the elements of the whole result; an offset beyond it is an error of the step",
            source: "the derivative of max pooling: core.scatter_add of dy, whose offsets are known to stay in the planes that they come from",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("shape", AttrKind::Ints)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let shape = x_shape(call)?;
        Ok(vec![TensorType::new(call.inputs[1].dtype, shape)])
    }

    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        Some((0, x_shape(call).ok()?.numel()))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let &[indices, dy] = cx.inputs else {
                return Err("takes offsets and gradients".into());
            };
            let shape = cx.outputs[0].shape.clone();
            let flat = cx.graph.scatter_add(dy, indices, shape.numel());
            Ok(vec![cx.graph.reshape(flat, &shape).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost {
            flops: call.inputs[1].numel() as u64,
            ..Cost::streaming(call, 0)
        }
    }

    /// Returns the gradients of the samples of max pooling, with random offsets.
    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let of = |pooling: Sample| {
            let x = &pooling.inputs[0].shape;
            let dims = Pool2dDims::of(x, &pooling.attrs).ok()?;
            let dy = [x[0], x[1], dims.output[0], dims.output[1]];
            let offsets = SampleInput::below(&dy, x.iter().product());
            let attrs = Attrs::new().with("shape", x.as_slice());
            Some(Sample::new(pooling.label, vec![offsets, SampleInput::f32(&dy)], attrs))
        };
        MaxPool2d.samples(sizes).into_iter().filter_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_calls_say_why() {
        let ty = |dtype, shape: &[usize]| TensorType::new(dtype, Shape::new(shape).expect("a shape"));
        let (ids, dy) = (ty(DType::U32, &[2, 3, 4, 4]), ty(DType::F32, &[2, 3, 4, 4]));
        let cases = [
            ([dy.clone(), dy.clone()], vec![2usize, 3, 8, 8], "must be u32"),
            (
                [ids.clone(), ty(DType::F32, &[2, 3, 4, 5])],
                vec![2, 3, 8, 8],
                "four axes",
            ),
            (
                [ty(DType::U32, &[24]), ty(DType::F32, &[24])],
                vec![2, 3, 8, 8],
                "four axes",
            ),
            ([ids.clone(), dy.clone()], vec![3, 2, 8, 8], "other planes"),
            ([ids.clone(), dy.clone()], vec![2, 3, 8], "shape"),
        ];
        for (inputs, shape, expected) in cases {
            let attrs = Attrs::new().with("shape", shape.as_slice());
            let call = Call {
                attrs: &attrs,
                inputs: &inputs,
                outputs: &[],
            };
            let message = MaxPool2dGrad.infer(&call).expect_err(expected);
            assert!(message.contains(expected), "{message}");
        }
    }
}
