//! Joining tensors along an axis.

use super::channels_last::{ChannelsLast, axis_channels_last};
use super::conv2d::ImageLayout;
use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics, expect_same_dtype};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct Concat;

impl Operator for Concat {
    fn name(&self) -> &'static str {
        "core.concat"
    }

    fn signature(&self) -> String {
        "g.concat(parts, axis)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "operands equal in all axes but one -> their sizes added up along it",
            formula: "the operands one after the other along an axis",
            source: "NumPy `concatenate`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::AtLeast(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("axis", AttrKind::Int)]
    }

    fn packs(&self, attrs: &Attrs) -> Option<i64> {
        attrs.int("axis").ok()
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_same_dtype(call)?;
        let first = &call.inputs[0];
        let axis = first.shape.axis(call.attrs.int("axis")?)?;
        let mut dims = first.shape.to_vec();
        for ty in &call.inputs[1..] {
            let same =
                ty.shape.rank() == dims.len() && (0..dims.len()).all(|i| i == axis || ty.shape[i] == first.shape[i]);
            if !same {
                return Err(format!(
                    "{first} and {ty} differ on another axis than {axis}, along which they are joined"
                ));
            }
            dims[axis] += ty.shape[axis];
        }
        Ok(vec![TensorType::new(first.dtype, Shape::new(&dims)?)])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let dy = cx.grad(0);
            let shape = cx.shape(dy).to_vec();
            let axis = Shape::new(&shape)?.axis(cx.attrs().int("axis")?)?;
            let mut start = 0;
            let mut grads = Vec::new();
            for i in 0..cx.arity() {
                let end = start + cx.shape(cx.operand(i))[axis];
                let part = cx.needs(i).then(|| cx.slice_axis(dy, axis as i32, start, end).into());
                grads.push(part);
                start = end;
            }
            Ok(grads)
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            let rank = call.outputs[0].shape.rank() as i64;
            let axis = call.int("axis");
            let axis = if axis < 0 { axis + rank } else { axis } as usize;
            let outer: usize = call.outputs[0].shape[..axis].iter().product();
            let mut out = Vec::new();
            for o in 0..outer {
                for x in call.inputs {
                    let block: usize = x.shape()[axis..].iter().product();
                    out.extend_from_slice(&x.data[o * block..(o + 1) * block]);
                }
            }
            vec![out]
        })
    }

    fn channels_last(&self) -> ChannelsLast<'_> {
        ChannelsLast::follows(|cx| {
            if cx.inputs()[0].shape.rank() != 4 {
                return Ok(None);
            }
            let axis = axis_channels_last(cx.attrs().int("axis")?)?;
            let parts = (0..cx.inputs().len()).map(|i| cx.nhwc(i)).collect();
            let all = cx.call(OpRef::new(&Concat), Attrs::new().with("axis", axis), parts);
            Ok(Some(vec![(all.into(), ImageLayout::Nhwc)]))
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 0)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let s = sizes.shape(3, 20);
        let cases: Vec<(Vec<Vec<usize>>, i64)> = vec![
            (vec![vec![3]], 0),
            (vec![vec![3], vec![1], vec![5]], 0),
            (vec![vec![2, 3], vec![2, 4]], 1),
            (vec![vec![2, 3], vec![2, 4]], -1),
            (vec![s.clone(), vec![s[0], 2, s[2]], s], 1),
        ];
        cases
            .into_iter()
            .map(|(shapes, axis)| {
                let inputs = shapes.iter().map(|s| SampleInput::f32(s)).collect();
                Sample::new(
                    format!("{shapes:?} along {axis}"),
                    inputs,
                    Attrs::new().with("axis", axis),
                )
            })
            .collect()
    }
}

impl Graph {
    /// Joins tensors along an axis (negative axes count from the last).
    #[track_caller]
    pub fn concat<V: Into<Value> + Copy>(&mut self, parts: &[V], axis: i32) -> NodeId {
        let parts = parts.iter().map(|&v| v.into()).collect();
        self.call(OpRef::new(&Concat), Attrs::new().with("axis", axis), parts)
    }
}
