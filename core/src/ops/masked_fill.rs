//! Replacement of masked elements by a number.

use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, FusionRole, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct MaskedFill;

/// Checks that the mask is `u32` and broadcasts to the shape of `x`.
pub(super) fn check_mask(x: &TensorType, mask: &TensorType) -> Result<(), String> {
    if mask.dtype != DType::U32 {
        return Err(format!("the mask must be u32, as comparisons yield it, not {mask}"));
    }
    match Shape::broadcast(&mask.shape, &x.shape) {
        Ok(shape) if shape == x.shape => Ok(()),
        _ => Err(format!("the mask {mask} does not broadcast to the shape of {x}")),
    }
}

/// Checks that the dtype can represent the number.
fn check_value(dtype: DType, value: f64) -> Result<(), String> {
    let range = match dtype {
        DType::U32 => 0.0..=f64::from(u32::MAX),
        DType::I32 => f64::from(i32::MIN)..=f64::from(i32::MAX),
        _ => return Ok(()),
    };
    if range.contains(&value) && value.fract() == 0.0 {
        Ok(())
    } else {
        Err(format!("the value {value} is not a number of the element type {dtype}"))
    }
}

impl Operator for MaskedFill {
    fn name(&self) -> &'static str {
        "core.masked_fill"
    }

    fn signature(&self) -> String {
        "g.masked_fill(x, mask, value)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape, mask (u32): a shape that broadcasts to it -> the shape of x",
            formula: "value where the mask is not 0, else x",
            source: "PyTorch `masked_fill`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("value", AttrKind::Float)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let [x, mask] = call.inputs else {
            return Err("takes a tensor and a mask".into());
        };
        check_mask(x, mask)?;
        check_value(x.dtype, call.attrs.float("value")?)?;
        Ok(vec![x.clone()])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let mask = cx.operand(1);
            let dy = cx.grad(0);
            Ok(vec![Some(cx.masked_fill(dy, mask, 0.0).into()), None])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let value = cx.attrs.float("value")?;
            let value = cx.graph.scalar_of(cx.outputs[0].dtype, value);
            Ok(vec![cx.graph.select(cx.inputs[1], value, cx.inputs[0]).into()])
        })
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Pointwise
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 1)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let s = sizes.shape(3, 30);
        let cases = [
            (vec![], vec![], -1.5),
            (vec![6], vec![6], 0.25),
            (vec![3, 4], vec![3, 1], -100.0),
            (s.clone(), vec![s[1], s[2]], -3.0),
        ];
        let mut samples: Vec<Sample> = cases
            .into_iter()
            .map(|(x, mask, value)| {
                let label = format!("{value} in {x:?} by {mask:?}");
                let mask = SampleInput::filled(DType::U32, &mask, Fill::Mask);
                let inputs = vec![SampleInput::f32(&x), mask];
                Sample::new(label, inputs, Attrs::new().with("value", value))
            })
            .collect();
        let mask = SampleInput::filled(DType::U32, &[5], Fill::Mask);
        let x = SampleInput::filled(DType::I32, &[2, 5], Fill::Below(9));
        samples.push(Sample::new("i32", vec![x, mask], Attrs::new().with("value", -7.0)));
        samples
    }
}

impl Graph {
    /// Selects `value` where `mask` (`u32`, of a shape that broadcasts to that of `x`) is not 0,
    /// else `x`.
    #[track_caller]
    pub fn masked_fill(&mut self, x: impl Into<Value>, mask: impl Into<Value>, value: f32) -> NodeId {
        let attrs = Attrs::new().with("value", value);
        self.call(OpRef::new(&MaskedFill), attrs, vec![x.into(), mask.into()])
    }
}
