//! The largest elements along an axis, in order.

use std::cmp::Ordering;

use super::arg_reduce::Argmax;
use super::gather::around_axis;
use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct TopK;

/// Compares numbers for descending order, with NaN first.
fn descending(a: f64, b: f64) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (false, false) => b.partial_cmp(&a).unwrap_or(Ordering::Equal),
        (a, b) => b.cmp(&a),
    }
}

impl Operator for TopK {
    fn name(&self) -> &'static str {
        "core.top_k"
    }

    fn signature(&self) -> String {
        "g.top_k(x, axis, k)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape with at least one axis -> values, indices (u32): x with size k at the axis",
            formula: "the k largest elements along the axis, largest first, and their positions; of equal ones the first comes first; NaN counts as largest",
            source: "PyTorch `topk` with sorted results",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("k", AttrKind::Int), ("axis", AttrKind::Int)]
    }

    fn ports(&self) -> &'static [&'static str] {
        &["values", "indices"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let x = &call.inputs[0];
        let axis = x.shape.axis(call.attrs.int("axis")?)?;
        let k = call.attrs.size("k")?;
        if k > x.shape[axis] {
            return Err(format!(
                "k = {k} is more than the {} elements of axis {axis} of {x}",
                x.shape[axis]
            ));
        }
        let mut dims = x.shape.to_vec();
        dims[axis] = k;
        let shape = Shape::new(&dims)?;
        Ok(vec![
            TensorType::new(x.dtype, shape.clone()),
            TensorType::new(DType::U32, shape),
        ])
    }

    fn index_result(&self, call: &Call) -> Option<(usize, usize)> {
        let (_, bound) = Argmax.index_result(call)?;
        Some((1, bound))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let shape = Shape::new(cx.shape(cx.operand(0)))?;
            let axis = shape.axis(cx.attrs().int("axis")?)?;
            let indices = cx.result(1);
            let dy = cx.grad(0);
            let dx = cx.put_along_axis(dy, indices, axis as i32, shape[axis]);
            Ok(vec![Some(dx.into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            let x = call.inputs[0];
            let [outer, len, inner] = around_axis(&x.ty.shape, call.int("axis"));
            let k = call.int("k") as usize;
            let mut values = vec![0.0; outer * k * inner];
            let mut indices = values.clone();
            for o in 0..outer {
                for i in 0..inner {
                    let at = |p: usize| x.data[(o * len + p) * inner + i];
                    let mut order: Vec<usize> = (0..len).collect();
                    // A stable sort keeps the first of equal elements first.
                    order.sort_by(|&p, &q| descending(at(p), at(q)));
                    for (rank, &p) in order.iter().take(k).enumerate() {
                        values[(o * k + rank) * inner + i] = at(p);
                        indices[(o * k + rank) * inner + i] = p as f64;
                    }
                }
            }
            vec![values, indices]
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        let flops = 2 * call.inputs[0].numel() as u64;
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let s = sizes.shape(3, 40);
        let cases: Vec<(Vec<usize>, i64, usize, Fill, DType)> = vec![
            (vec![1], 0, 1, Fill::Distinct, DType::F32),
            (vec![9], 0, 4, Fill::Distinct, DType::F32),
            (vec![3, 10], 1, 10, Fill::Distinct, DType::F32),
            (vec![10, 3], 0, 3, Fill::Distinct, DType::F32),
            (vec![4, 5], 1, 0, Fill::Distinct, DType::F32),
            (s.clone(), 1, s[1].div_ceil(3), Fill::Distinct, DType::F32),
            (s.clone(), -1, s[2].min(2), Fill::Distinct, DType::F32),
            (vec![2, 1009], 1, 5, Fill::Distinct, DType::F32),
            (vec![2, 1009], 1, 700, Fill::Distinct, DType::F32),
            (vec![4, 11], 1, 6, Fill::Below(9), DType::U32),
            (vec![4, 11], 1, 6, Fill::Below(9), DType::I32),
        ];
        cases
            .into_iter()
            .map(|(shape, axis, k, fill, dtype)| {
                let label = format!("{k} of {dtype} {shape:?} along {axis}");
                let attrs = Attrs::new().with("k", k).with("axis", axis);
                Sample::new(label, vec![SampleInput::filled(dtype, &shape, fill)], attrs)
            })
            .collect()
    }
}

impl Graph {
    /// Finds the `k` largest elements along an axis, largest first: port 0 holds the values, port 1 their positions
    /// (`u32`). Equal elements keep their order; NaN counts as largest.
    #[track_caller]
    pub fn top_k(&mut self, x: impl Into<Value>, axis: i32, k: usize) -> NodeId {
        let attrs = Attrs::new().with("k", k).with("axis", axis);
        self.call(OpRef::new(&TopK), attrs, vec![x.into()])
    }
}
