//! The operator for the index of the largest element along an axis.

use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct Argmax;

impl Operator for Argmax {
    fn name(&self) -> &'static str {
        "core.argmax"
    }

    fn signature(&self) -> String {
        "g.argmax(x, axis)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape with at least one axis -> x without the axis",
            formula: "u32 index of the first largest element along an axis, which is removed; a NaN counts as largest",
            source: "NumPy `argmax`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("axis", AttrKind::Int)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let x = &call.inputs[0];
        let axis = x.shape.axis(call.attrs.int("axis")?)?;
        if x.shape[axis] == 0 {
            return Err(format!("axis {axis} of {x} has no elements"));
        }
        let mut dims = x.shape.to_vec();
        dims.remove(axis);
        Ok(vec![TensorType::new(DType::U32, Shape::new(&dims)?)])
    }

    fn index_result(&self, call: &Call) -> Option<(usize, usize)> {
        let shape = &call.inputs.first()?.shape;
        let axis = shape.axis(call.attrs.int("axis").ok()?).ok()?;
        Some((0, shape[axis]))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Zero
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            let x = call.inputs[0];
            let rank = x.shape().len() as i64;
            let axis = call.int("axis");
            let axis = if axis < 0 { axis + rank } else { axis } as usize;
            let len = x.shape()[axis];
            let inner: usize = x.shape()[axis + 1..].iter().product();
            let outer: usize = x.shape()[..axis].iter().product();
            let mut out = Vec::new();
            for o in 0..outer {
                for i in 0..inner {
                    let at = |k: usize| x.data[(o * len + k) * inner + i];
                    let mut best = 0;
                    for k in 1..len {
                        if at(k) > at(best) || (at(k).is_nan() && !at(best).is_nan()) {
                            best = k;
                        }
                    }
                    out.push(best as f64);
                }
            }
            vec![out]
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        let flops = call.inputs[0].numel() as u64;
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let s = sizes.shape(3, 40);
        let mut samples: Vec<Sample> = [
            (vec![9], 0),
            (vec![4, 10], 1),
            (vec![4, 10], 0),
            (s.clone(), 1),
            (s, -1),
        ]
        .into_iter()
        .map(|(shape, axis): (Vec<usize>, i64)| {
            let input = SampleInput::filled(DType::F32, &shape, Fill::Distinct);
            Sample::new(
                format!("{shape:?} along {axis}"),
                vec![input],
                Attrs::new().with("axis", axis),
            )
        })
        .collect();
        let ties = SampleInput::filled(DType::F32, &[6, 11], Fill::Below(3));
        samples.push(Sample::new("ties", vec![ties], Attrs::new().with("axis", 1i64)));
        samples
    }
}

impl Graph {
    /// Returns the index (`u32`) of the first largest element along an axis; the axis is removed.
    #[track_caller]
    pub fn argmax(&mut self, x: impl Into<Value>, axis: i32) -> NodeId {
        self.call(OpRef::new(&Argmax), Attrs::new().with("axis", axis), vec![x.into()])
    }
}
