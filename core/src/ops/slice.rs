//! Rectangular, strided parts of a tensor.

use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::reference::{for_each_index, offset};
use crate::shape::{Shape, TensorType};

pub(super) struct Slice;

impl Operator for Slice {
    fn name(&self) -> &'static str {
        "core.slice"
    }

    fn signature(&self) -> String {
        "g.slice(x, starts, ends)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape; starts, ends, steps: one for each axis -> (ends - starts) / steps rounded up on each axis",
            formula: "y[i] = x[starts + i * steps] on each axis, up to but not including ends",
            source: "NumPy basic slicing with positive steps",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![
            ("starts", AttrKind::Ints),
            ("ends", AttrKind::Ints),
            ("steps", AttrKind::Ints),
        ]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let x = &call.inputs[0];
        let get = |name| call.attrs.ints(name);
        let (starts, ends, steps) = (get("starts")?, get("ends")?, get("steps")?);
        let rank = x.shape.rank();
        if [starts, ends, steps].iter().any(|l| l.len() != rank) {
            return Err(format!(
                "starts, ends and steps need one entry for each of the {rank} axes of {x}"
            ));
        }
        let mut dims = Vec::with_capacity(rank);
        for (axis, &size) in x.shape.iter().enumerate() {
            let (start, end, step) = (starts[axis], ends[axis], steps[axis]);
            if step < 1 {
                return Err(format!("the step {step} of axis {axis} must be at least 1"));
            }
            if start < 0 || end < start || end > size as i64 {
                return Err(format!(
                    "the range {start}..{end} does not lie in axis {axis} of {x}, which is 0..{size}"
                ));
            }
            dims.push((end - start).div_euclid(step) as usize + usize::from((end - start) % step != 0));
        }
        Ok(vec![TensorType::new(x.dtype, Shape::new(&dims)?)])
    }

    fn entries(&self, call: &Call) -> Option<(usize, usize)> {
        let list = |name| call.attrs.ints(name).ok();
        let (starts, ends, steps) = (list("starts")?, list("ends")?, list("steps")?);
        let shape = &call.inputs[0].shape;
        let is_whole = |axis: &usize| starts[*axis] == 0 && ends[*axis] == shape[*axis] as i64;
        let mut cut = (0..shape.rank()).filter(|axis| !is_whole(axis));
        let axis = cut.next().unwrap_or(0);
        let one = cut.next().is_none() && !shape.is_empty() && steps.iter().all(|&step| step == 1);
        one.then(|| (axis, starts[axis] as usize))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let shape = cx.shape(cx.operand(0)).to_vec();
            let starts = cx.attrs().ints("starts")?.to_vec();
            let steps = cx.attrs().ints("steps")?.to_vec();
            let taken = cx.shape(cx.result(0)).to_vec();
            let mut low = Vec::new();
            let mut high = Vec::new();
            let mut interior = Vec::new();
            for axis in 0..shape.len() {
                let count = taken[axis] as i64;
                // Nothing taken: all of the axis is padding.
                let used = if count == 0 { 0 } else { (count - 1) * steps[axis] + 1 };
                low.push(starts[axis]);
                high.push(shape[axis] as i64 - starts[axis] - used);
                interior.push(steps[axis] - 1);
            }
            let dy = cx.grad(0);
            let attrs = Attrs::new()
                .with("low", low)
                .with("high", high)
                .with("interior", interior)
                .with("value", 0.0);
            Ok(vec![Some(
                cx.call(OpRef::new(&super::pad::Pad), attrs, vec![dy]).into(),
            )])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            let x = call.inputs[0];
            let (starts, steps) = (call.ints("starts"), call.ints("steps"));
            let mut out = Vec::new();
            let mut source = vec![0; x.shape().len()];
            for_each_index(&call.outputs[0].shape, |index| {
                for axis in 0..source.len() {
                    source[axis] = starts[axis] as usize + index[axis] * steps[axis] as usize;
                }
                out.push(x.data[offset(x.shape(), &source)]);
            });
            vec![out]
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        let bytes = call.outputs.iter().map(|t| 2 * t.bytes() as u64).sum();
        Cost { flops: 0, bytes }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let case = |shape: &[usize], starts: Vec<i64>, ends: Vec<i64>, steps: Vec<i64>| {
            let label = format!("{shape:?} {starts:?}..{ends:?} by {steps:?}");
            let attrs = Attrs::new()
                .with("starts", starts)
                .with("ends", ends)
                .with("steps", steps);
            Sample::new(label, vec![SampleInput::f32(shape)], attrs)
        };
        let (a, b) = (3 + sizes.dim(30), 2 + sizes.dim(30));
        vec![
            case(&[7], vec![2], vec![5], vec![1]),
            case(&[7], vec![0], vec![7], vec![3]),
            case(&[4, 6], vec![1, 2], vec![4, 6], vec![2, 3]),
            case(&[5, 4], vec![0, 1], vec![5, 3], vec![1, 1]),
            case(
                &[a, b, 3],
                vec![1, 0, 1],
                vec![a as i64, b as i64 - 1, 3],
                vec![2, 1, 1],
            ),
        ]
    }
}

impl Graph {
    /// Takes the part `starts..ends` of every axis.
    #[track_caller]
    pub fn slice(&mut self, x: impl Into<Value>, starts: &[usize], ends: &[usize]) -> NodeId {
        let steps = vec![1; starts.len()];
        self.slice_strided(x, starts, ends, &steps)
    }

    /// Takes every `steps`-th element of the part `starts..ends` of every axis.
    #[track_caller]
    pub fn slice_strided(&mut self, x: impl Into<Value>, starts: &[usize], ends: &[usize], steps: &[usize]) -> NodeId {
        let attrs = Attrs::new()
            .with("starts", starts)
            .with("ends", ends)
            .with("steps", steps);
        self.call(OpRef::new(&Slice), attrs, vec![x.into()])
    }

    /// Takes the part `start..end` of one axis (negative axes count from the last).
    #[track_caller]
    pub fn slice_axis(&mut self, x: impl Into<Value>, axis: i32, start: usize, end: usize) -> NodeId {
        let x = x.into();
        let Some(ty) = self.ty(x) else {
            return self.slice(x, &[], &[]);
        };
        let axis = match ty.shape.axis(axis.into()) {
            Ok(axis) => axis,
            Err(message) => return self.report("core.slice", message, ""),
        };
        let mut starts = vec![0; ty.shape.rank()];
        let mut ends = ty.shape.to_vec();
        starts[axis] = start;
        ends[axis] = end;
        self.slice(x, &starts, &ends)
    }
}
