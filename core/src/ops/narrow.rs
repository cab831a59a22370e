//! Selection of a contiguous range of one axis.

use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, FusionRole, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct Narrow;

/// Returns the axis, and the start and the length of the range.
fn part(x: &TensorType, attrs: &Attrs) -> Result<(usize, usize, usize), String> {
    let axis = x.shape.axis(attrs.int("axis")?)?;
    let (start, length) = (attrs.size("start")?, attrs.size("length")?);
    let size = x.shape[axis];
    match start.checked_add(length) {
        Some(end) if end <= size => Ok((axis, start, length)),
        _ => Err(format!(
            "{length} entries from {start} on do not lie in axis {axis} of {x}, which has {size}"
        )),
    }
}

impl Operator for Narrow {
    fn name(&self) -> &'static str {
        "core.narrow"
    }

    fn signature(&self) -> String {
        "g.narrow(x, axis, start, length)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape with at least one axis; start + length at most the size of the axis -> x with length at the axis",
            formula: "the entries start to start + length - 1 of an axis",
            source: "PyTorch `narrow`; rewrite rules use it for the parts of a packed result",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![
            ("axis", AttrKind::Int),
            ("start", AttrKind::Int),
            ("length", AttrKind::Int),
        ]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let x = &call.inputs[0];
        let (axis, _, length) = part(x, call.attrs)?;
        let mut dims = x.shape.to_vec();
        dims[axis] = length;
        Ok(vec![TensorType::new(x.dtype, Shape::new(&dims)?)])
    }

    fn entries(&self, call: &Call) -> Option<(usize, usize)> {
        let (axis, start, _) = part(&call.inputs[0], call.attrs).ok()?;
        Some((axis, start))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let x = TensorType::new(DType::F32, Shape::new(cx.shape(cx.operand(0)))?);
            let (axis, start, length) = part(&x, cx.attrs())?;
            let (mut low, mut high) = (vec![0; x.shape.rank()], vec![0; x.shape.rank()]);
            low[axis] = start;
            high[axis] = x.shape[axis] - start - length;
            let dy = cx.grad(0);
            Ok(vec![Some(cx.pad(dy, &low, &high, 0.0).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let ty = cx.graph.ty(cx.inputs[0]).ok_or("the operand has no type")?;
            let (axis, start, length) = part(ty, cx.attrs)?;
            let part = cx.graph.slice_axis(cx.inputs[0], axis as i32, start, start + length);
            Ok(vec![part.into()])
        })
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Part
    }

    fn cost(&self, call: &Call) -> Cost {
        let bytes = call.outputs.iter().map(|t| 2 * t.bytes() as u64).sum();
        Cost { flops: 0, bytes }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let s = sizes.shape(3, 40);
        let start = sizes.below(s[2]);
        let cases: Vec<(Vec<usize>, i64, usize, usize)> = vec![
            (vec![7], 0, 2, 3),
            (vec![5, 4], 0, 1, 4),
            (vec![5, 67], 1, 33, 34),
            (vec![3, 1, 6], -1, 5, 1),
            (vec![2, 9, 3], 1, 0, 9),
            (vec![4, 3], 1, 3, 0),
            (s.clone(), -1, start, s[2] - start),
        ];
        let sample = |(shape, axis, start, length): (Vec<usize>, i64, usize, usize), dtype, fill| {
            let attrs = Attrs::new()
                .with("axis", axis)
                .with("start", start)
                .with("length", length);
            let label = format!("{dtype} {shape:?}, {length} of axis {axis} from {start} on");
            Sample::new(label, vec![SampleInput::filled(dtype, &shape, fill)], attrs)
        };
        let mut samples = vec![sample((vec![3, 8], 1, 2, 5), DType::U32, Fill::Below(100))];
        samples.extend(cases.into_iter().map(|c| sample(c, DType::F32, Fill::Range(-2.0, 2.0))));
        samples
    }
}

impl Graph {
    /// Takes the entries `start` to `start + length - 1` of an axis (negative axes count from the
    /// last).
    #[track_caller]
    pub fn narrow(&mut self, x: impl Into<Value>, axis: i32, start: usize, length: usize) -> NodeId {
        let attrs = Attrs::new()
            .with("axis", axis)
            .with("start", start)
            .with("length", length);
        self.call(OpRef::new(&Narrow), attrs, vec![x.into()])
    }
}
