//! Replacement of masked elements by the elements of a list, in order.

use super::masked_fill::check_mask;
use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct MaskedScatter;

impl Operator for MaskedScatter {
    fn name(&self) -> &'static str {
        "core.masked_scatter"
    }

    fn signature(&self) -> String {
        "g.masked_scatter(x, mask, source)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape, mask (u32): a shape that broadcasts to it, source: any shape with elements if x has any -> the shape of x",
            formula: "where the mask is not 0 the elements of source, one after the other, else x; a source with fewer elements than the mask asks for is an error of the step",
            source: "PyTorch `masked_scatter`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(3)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let [x, mask, source] = call.inputs else {
            return Err("takes a tensor, a mask and a source".into());
        };
        check_mask(x, mask)?;
        if x.dtype != source.dtype {
            return Err(format!(
                "the source {source} has another element type than {x}; use `cast` to convert one"
            ));
        }
        if source.numel() == 0 && x.numel() > 0 {
            return Err(format!("the source {source} has no elements to put into {x}"));
        }
        if u32::try_from(x.numel()).is_err() {
            return Err(format!("{x} has more elements than a u32 counts"));
        }
        Ok(vec![x.clone()])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let g = &mut *cx.graph;
            let (x, mask, source) = (cx.inputs[0], cx.inputs[1], cx.inputs[2]);
            let shape = cx.outputs[0].shape.to_vec();
            let count = cx.outputs[0].numel();
            if count == 0 {
                return Ok(vec![x]);
            }
            let elements: usize = g.shape(source).iter().product();
            let zero = g.scalar_of(DType::U32, 0.0);
            let mask = g.not_equal(mask, zero);
            let whole = g.expand(mask, &shape);
            let flat = g.reshape(whole, &[count]);
            // The index in the source is the number of masked elements before. For unmasked
            // elements it is 0, and the value is not used.
            let before = g.cumsum(flat, 0, true, false);
            let place = g.select(flat, before, zero);
            let source = g.reshape(source, &[elements]);
            let taken = g.gather(source, place);
            let taken = g.reshape(taken, &shape);
            Ok(vec![g.select(whole, taken, x).into()])
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 2)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let s = sizes.shape(3, 16);
        let total = s.iter().product();
        let cases = [
            (vec![], vec![], vec![1]),
            (vec![6], vec![6], vec![2, 3]),
            (vec![3, 4], vec![4], vec![20]),
            (s.clone(), s, vec![total]),
        ];
        cases
            .into_iter()
            .map(|(x, mask, source)| {
                let label = format!("{source:?} into {x:?} by {mask:?}");
                let inputs = vec![
                    SampleInput::f32(&x),
                    SampleInput::filled(DType::U32, &mask, Fill::Mask),
                    SampleInput::f32(&source),
                ];
                Sample::new(label, inputs, Attrs::new())
            })
            .collect()
    }
}

impl Graph {
    /// Selects the elements of `source`, in order, where `mask` (`u32`, of a shape that broadcasts
    /// to that of `x`) is nonzero, else `x`. A mask with more nonzero elements than `source` has
    /// elements is an error of the step.
    #[track_caller]
    pub fn masked_scatter(&mut self, x: impl Into<Value>, mask: impl Into<Value>, source: impl Into<Value>) -> NodeId {
        let operands = vec![x.into(), mask.into(), source.into()];
        self.call(OpRef::new(&MaskedScatter), Attrs::new(), operands)
    }
}
