//! Broadcasting to a given shape.

use super::channels_last::ChannelsLast;
use super::conv2d::ImageLayout;
use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, FusionRole, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::reference::{broadcast_offset, for_each_index};
use crate::shape::{Shape, TensorType};

pub(super) struct Expand;

impl Operator for Expand {
    fn name(&self) -> &'static str {
        "core.expand"
    }

    fn signature(&self) -> String {
        "g.expand(x, shape)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape; shape: one that x broadcasts to -> that shape",
            formula: "x repeated along axes of size 1 and along new leading axes",
            source: "NumPy `broadcast_to`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("shape", AttrKind::Ints)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let x = &call.inputs[0];
        let dims = call.attrs.dims("shape")?;
        let target = Shape::new(&dims)?;
        match Shape::broadcast(&x.shape, &target) {
            Ok(shape) if shape == target => Ok(vec![TensorType::new(x.dtype, target)]),
            _ => Err(format!(
                "{x} does not expand to {target}: only axes of size 1 and new leading axes repeat"
            )),
        }
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let x = cx.operand(0);
            let dy = cx.grad(0);
            Ok(vec![Some(cx.unbroadcast(dy, x))])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            let x = call.inputs[0];
            let mut out = Vec::with_capacity(call.outputs[0].numel());
            for_each_index(&call.outputs[0].shape, |index| {
                out.push(x.data[broadcast_offset(x.shape(), index)]);
            });
            vec![out]
        })
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::View
    }

    fn channels_last(&self) -> ChannelsLast<'_> {
        ChannelsLast::follows(|cx| {
            let Ok([n, c, h, w]) = cx.attrs().sizes::<4>("shape") else {
                return Ok(None);
            };
            let x = cx.nhwc(0);
            Ok(Some(vec![(cx.expand(x, &[n, h, w, c]).into(), ImageLayout::Nhwc)]))
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 0)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let s = sizes.shape(3, 30);
        let cases: Vec<(Vec<usize>, Vec<usize>)> = vec![
            (vec![], vec![5]),
            (vec![3], vec![4, 3]),
            (vec![3, 1], vec![3, 7]),
            (vec![1, 4, 1], vec![2, 4, 3]),
            (vec![s[1], 1], s),
        ];
        cases
            .into_iter()
            .map(|(from, to)| {
                let attrs = Attrs::new().with("shape", to.as_slice());
                Sample::new(format!("{from:?} to {to:?}"), vec![SampleInput::f32(&from)], attrs)
            })
            .collect()
    }
}

impl Graph {
    /// Repeats `x` along axes of size 1 and along new leading axes; the operand itself if it has
    /// that shape. Elementwise operators broadcast implicitly and do not need it.
    #[track_caller]
    pub fn expand(&mut self, x: impl Into<Value>, shape: &[usize]) -> NodeId {
        let x = x.into();
        if x.port == 0 && self.ty(x).is_some_and(|t| t.shape.dims() == shape) {
            return self.current_value(x).node;
        }
        self.call(OpRef::new(&Expand), Attrs::new().with("shape", shape), vec![x])
    }
}
