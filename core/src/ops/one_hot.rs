//! One-hot encoding of class ids.

use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct OneHot;

impl Operator for OneHot {
    fn name(&self) -> &'static str {
        "core.one_hot"
    }

    fn signature(&self) -> String {
        "g.one_hot(ids, classes)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "ids [i...] (u32) -> [i..., classes]",
            formula: "y[i..., c] = 1 where ids[i...] = c, else 0; an id >= classes is an error of the step",
            source: "PyTorch `one_hot`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("classes", AttrKind::Int), ("dtype", AttrKind::DType)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let ids = &call.inputs[0];
        if ids.dtype != DType::U32 {
            return Err(format!("the ids must be u32, not {ids}; feed them with `input_u32`"));
        }
        let mut dims = ids.shape.to_vec();
        dims.push(call.attrs.size("classes")?);
        Ok(vec![TensorType::new(call.attrs.dtype("dtype")?, Shape::new(&dims)?)])
    }

    fn index_bound(&self, call: &Call) -> Option<(usize, usize)> {
        Some((0, call.attrs.size("classes").ok()?))
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Zero
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            // `put_along_axis` checks the ids; a comparison with all classes would not.
            let classes = cx.attrs.size("classes")?;
            let dtype = cx.attrs.dtype("dtype")?;
            let mut dims = cx.graph.shape(cx.inputs[0]).to_vec();
            dims.push(1);
            let ids = cx.graph.reshape(cx.inputs[0], &dims);
            let ones = cx.graph.full(dtype, 1.0, &dims);
            Ok(vec![cx.graph.put_along_axis(ones, ids, -1, classes).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 0)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let s = sizes.shape(2, 20);
        let cases = [
            (vec![], 3, DType::F32),
            (vec![5], 1, DType::F32),
            (vec![2, 3], 7, DType::U32),
            (vec![4], 9, DType::F16),
            (s, sizes.dim(40), DType::F32),
        ];
        cases
            .into_iter()
            .map(|(shape, classes, dtype)| {
                let attrs = Attrs::new().with("classes", classes).with("dtype", dtype);
                let label = format!("{shape:?} of {classes} as {dtype}");
                Sample::new(label, vec![SampleInput::below(&shape, classes)], attrs)
            })
            .collect()
    }
}

impl Graph {
    /// Encodes `ids [i...]` (`u32`) as `f32` rows `[i..., classes]`, 1 at the id and 0 elsewhere.
    /// An id that is not below `classes` is an error of the step.
    #[track_caller]
    pub fn one_hot(&mut self, ids: impl Into<Value>, classes: usize) -> NodeId {
        self.one_hot_typed(ids, classes, DType::F32)
    }

    /// Computes [`Graph::one_hot`] with another element type.
    #[track_caller]
    pub fn one_hot_typed(&mut self, ids: impl Into<Value>, classes: usize, dtype: DType) -> NodeId {
        let attrs = Attrs::new().with("classes", classes).with("dtype", dtype);
        self.call(OpRef::new(&OneHot), attrs, vec![ids.into()])
    }
}
