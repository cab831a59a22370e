//! Joining tensors along an axis.

use super::channels_last::{ChannelsLast, axis_channels_last};
use super::conv2d::ImageLayout;
use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics, expect_same_dtype};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::reference::RefCall;
use crate::shape::{Shape, TensorType};

/// Maximum number of operands of each concatenation in a decomposition, because GPU kernels bind only a few buffers.
const GROUP: usize = 8;

pub(super) struct Concat;

/// Concatenates tensors: up to [`GROUP`] by padding and selection, more by a tree of concatenations of up to [`GROUP`]
/// operands.
fn join(g: &mut Graph, parts: &[Value], axis: usize) -> Value {
    if parts.len() <= GROUP {
        return select_parts(g, parts, axis);
    }
    let mut level = parts.to_vec();
    while level.len() > 1 {
        let groups = level.chunks(GROUP).map(|group| match group {
            [one] => *one,
            several => g.concat(several, axis as i32).into(),
        });
        level = groups.collect();
    }
    level[0]
}

/// Concatenates by selection: pads each part to the size of the result, and selects its elements at its own indices
/// along the axis.
fn select_parts(g: &mut Graph, parts: &[Value], axis: usize) -> Value {
    let sizes: Vec<usize> = parts.iter().map(|&part| g.shape(part)[axis]).collect();
    let total: usize = sizes.iter().sum();
    let rank = g.shape(parts[0]).len();
    let mut joined: Option<Value> = None;
    let mut start = 0;
    for (&part, size) in parts.iter().zip(sizes) {
        let end = start + size;
        let (mut low, mut high) = (vec![0; rank], vec![0; rank]);
        (low[axis], high[axis]) = (start, total - end);
        let padded: Value = g.pad(part, &low, &high, 0.0).into();
        joined = Some(match joined {
            None => padded,
            Some(before) => {
                let mut dims = vec![1; rank];
                dims[axis] = total;
                let own = (0..total).map(|i| u32::from(i >= start)).collect();
                let own = g.constant_u32(own, &dims);
                g.select(own, padded, before).into()
            }
        });
        start = end;
    }
    joined.unwrap_or(parts[0])
}

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
        let reference = |call: &RefCall| {
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
        };
        Semantics::both(reference, |x| {
            let axis = x.outputs[0].shape.axis(x.attrs.int("axis")?)?;
            Ok(vec![join(x.graph, x.inputs, axis)])
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
            // More operands than a kernel of a GPU binds, some of them empty.
            ((0..9).map(|i| vec![2, 1 + i % 2]).collect(), 1),
            ((0..60).map(|i| vec![i % 3, 2]).collect(), 0),
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
