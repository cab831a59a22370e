//! Repetition of a whole tensor along its axes.

use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct Tile;

impl Operator for Tile {
    fn name(&self) -> &'static str {
        "core.tile"
    }

    fn signature(&self) -> String {
        "g.tile(x, repeats)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape; repeats: one for each axis -> size * repeats on each axis",
            formula: "y[i] = x[i mod size] on each axis: repeated copies of x",
            source: "NumPy `tile`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("repeats", AttrKind::Ints)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let x = &call.inputs[0];
        let repeats = call.attrs.dims("repeats")?;
        if repeats.len() != x.shape.rank() {
            return Err(format!(
                "the repeats {repeats:?} need one entry for each of the {} axes of {x}",
                x.shape.rank()
            ));
        }
        let times = |(&size, &n): (&usize, &usize)| size.checked_mul(n);
        let dims: Option<Vec<usize>> = x.shape.iter().zip(&repeats).map(times).collect();
        let dims = dims.ok_or_else(|| format!("{x} repeated {repeats:?} times has too many elements"))?;
        // The shape with an additional axis for the repeats must be valid, too.
        let apart: Vec<usize> = repeats.iter().zip(x.shape.iter()).flat_map(|(&n, &d)| [n, d]).collect();
        Shape::new(&apart)?;
        Ok(vec![TensorType::new(x.dtype, Shape::new(&dims)?)])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            // [d...] as [1, d, ...], stretched to [n, d, ...].
            let repeats = cx.attrs.dims("repeats")?;
            let shape = cx.graph.shape(cx.inputs[0]).to_vec();
            let narrow: Vec<usize> = shape.iter().flat_map(|&d| [1, d]).collect();
            let wide: Vec<usize> = repeats.iter().zip(&shape).flat_map(|(&n, &d)| [n, d]).collect();
            let apart = cx.graph.reshape(cx.inputs[0], &narrow);
            let stretched = cx.graph.expand(apart, &wide);
            let to = cx.outputs[0].shape.to_vec();
            Ok(vec![cx.graph.reshape(stretched, &to).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 0)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let s = sizes.shape(3, 9);
        let cases: Vec<(Vec<usize>, Vec<usize>)> = vec![
            (vec![], vec![]),
            (vec![3], vec![4]),
            (vec![2, 3], vec![1, 3]),
            (vec![1, 5], vec![3, 1]),
            (s, vec![2, 3, 2]),
        ];
        cases
            .into_iter()
            .map(|(shape, repeats)| {
                let attrs = Attrs::new().with("repeats", &repeats[..]);
                Sample::new(
                    format!("{shape:?} by {repeats:?}"),
                    vec![SampleInput::f32(&shape)],
                    attrs,
                )
            })
            .collect()
    }
}

impl Graph {
    /// Repeats `x` `repeats[a]` times along axis `a`.
    #[track_caller]
    pub fn tile(&mut self, x: impl Into<Value>, repeats: &[usize]) -> NodeId {
        self.call(OpRef::new(&Tile), Attrs::new().with("repeats", repeats), vec![x.into()])
    }
}
