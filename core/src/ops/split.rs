//! Splitting of a tensor into parts along an axis.

use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct Split;

impl Operator for Split {
    fn name(&self) -> &'static str {
        "core.split"
    }

    fn signature(&self) -> String {
        "g.split(x, axis, sizes)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape with at least one axis; sizes: they add up to the size of the axis -> a result for each size, with that size at the axis",
            formula: "the parts of x one after the other along an axis",
            source: "PyTorch `split`; the inverse of concat",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("sizes", AttrKind::Ints), ("axis", AttrKind::Int)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let x = &call.inputs[0];
        let axis = x.shape.axis(call.attrs.int("axis")?)?;
        let sizes = call.attrs.dims("sizes")?;
        if sizes.is_empty() {
            return Err("the list of sizes is empty; name at least one part".into());
        }
        let total = sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
        if total != Some(x.shape[axis]) {
            let sum = total.map_or_else(|| "more than can be counted".to_owned(), |t| t.to_string());
            return Err(format!(
                "the sizes {sizes:?} add up to {sum}, but axis {axis} of {x} has {} elements",
                x.shape[axis]
            ));
        }
        let part = |&size: &usize| {
            let mut dims = x.shape.to_vec();
            dims[axis] = size;
            Ok(TensorType::new(x.dtype, Shape::new(&dims)?))
        };
        sizes.iter().map(part).collect()
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let axis = cx.attrs().int("axis")? as i32;
            let count = cx.attrs().ints("sizes")?.len();
            let parts: Vec<Value> = (0..count).map(|port| cx.grad(port)).collect();
            Ok(vec![Some(cx.concat(&parts, axis).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let axis = cx.attrs.int("axis")? as i32;
            let mut start = 0;
            let mut parts = Vec::new();
            for size in cx.attrs.dims("sizes")? {
                let end = start + size;
                parts.push(cx.graph.slice_axis(cx.inputs[0], axis, start, end).into());
                start = end;
            }
            Ok(parts)
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 0)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let s = sizes.shape(3, 20);
        let cases: Vec<(Vec<usize>, Vec<usize>, i64)> = vec![
            (vec![3], vec![3], 0),
            (vec![9], vec![3, 1, 5], 0),
            (vec![2, 7], vec![3, 4], 1),
            (vec![4, 3], vec![0, 3, 1], 0),
            (vec![s[0], s[1] + 5, s[2]], vec![2, s[1], 3], -2),
        ];
        cases
            .into_iter()
            .map(|(shape, sizes, axis)| {
                let label = format!("{shape:?} into {sizes:?} along {axis}");
                let attrs = Attrs::new().with("sizes", &sizes[..]).with("axis", axis);
                Sample::new(label, vec![SampleInput::f32(&shape)], attrs)
            })
            .collect()
    }
}

impl Graph {
    /// Splits `x` along an axis (negative axes count from the last) into parts of the given sizes. The sizes add up to
    /// that of the axis.
    #[track_caller]
    pub fn split(&mut self, x: impl Into<Value>, axis: i32, sizes: &[usize]) -> Vec<Value> {
        let attrs = Attrs::new().with("sizes", sizes).with("axis", axis);
        let node = self.call(OpRef::new(&Split), attrs, vec![x.into()]);
        (0..sizes.len() as u32).map(|port| self.port(node, port)).collect()
    }

    /// Splits `x` along an axis into `n` parts of equal size; the last one is smaller if `n` does not divide the axis.
    /// There may be fewer than `n` parts, as in PyTorch's `chunk`.
    #[track_caller]
    pub fn chunk(&mut self, x: impl Into<Value>, axis: i32, n: usize) -> Vec<Value> {
        let x = x.into();
        let Some(ty) = self.ty(x) else {
            // Poisoned or foreign: the call reports the error.
            return self.split(x, axis, &[0]);
        };
        let len = match ty.shape.axis(axis.into()) {
            Ok(axis) => ty.shape[axis],
            Err(message) => return vec![self.report("core.split", message, "").into()],
        };
        if n == 0 {
            let message = "a tensor cannot be cut into no parts";
            return vec![self.report("core.split", message, "ask for at least one part").into()];
        }
        let size = len.div_ceil(n).max(1);
        let mut sizes = vec![size; len / size];
        if len % size != 0 || len == 0 {
            sizes.push(len % size);
        }
        self.split(x, axis, &sizes)
    }
}
