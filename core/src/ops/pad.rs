//! Padding around elements and between them.

use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::reference::{for_each_index, offset};
use crate::shape::{Shape, TensorType};

pub(super) struct Pad;

fn widths(attrs: &Attrs, rank: usize) -> Result<[&[i64]; 3], String> {
    let lists = [attrs.ints("low")?, attrs.ints("high")?, attrs.ints("interior")?];
    if lists.iter().any(|l| l.len() != rank) {
        return Err(format!(
            "low, high and interior need one entry for each of the {rank} axes"
        ));
    }
    if let Some(&negative) = lists.iter().flat_map(|l| l.iter()).find(|&&w| w < 0) {
        return Err(format!("the width {negative} is negative; use `slice` to cut"));
    }
    Ok(lists)
}

impl Operator for Pad {
    fn name(&self) -> &'static str {
        "core.pad"
    }

    fn signature(&self) -> String {
        "g.pad(x, low, high, value)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x: any shape; low, high, interior: one for each axis -> size + low + high + interior (size - 1)",
            formula: "x with `low` values before, `high` after and `interior` between its elements on each axis",
            source: "XLA `Pad`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![
            ("low", AttrKind::Ints),
            ("high", AttrKind::Ints),
            ("interior", AttrKind::Ints),
            ("value", AttrKind::Float),
        ]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let x = &call.inputs[0];
        let [low, high, interior] = widths(call.attrs, x.shape.rank())?;
        let value = call.attrs.float("value")?;
        let held = match x.dtype {
            DType::U32 => value as u32 as f64 == value,
            DType::I32 => value as i32 as f64 == value,
            _ => true,
        };
        if !held {
            return Err(format!("the value {value} is not one of {}", x.dtype));
        }
        let mut dims = Vec::new();
        for (axis, &size) in x.shape.iter().enumerate() {
            let gaps = (size.saturating_sub(1) as i64).checked_mul(interior[axis]);
            let total = gaps
                .and_then(|g| g.checked_add(low[axis]))
                .and_then(|g| g.checked_add(high[axis]))
                .and_then(|g| g.checked_add(size as i64))
                .ok_or("the padded size overflows")?;
            dims.push(total as usize);
        }
        Ok(vec![TensorType::new(x.dtype, Shape::new(&dims)?)])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let shape = cx.shape(cx.operand(0)).to_vec();
            let [low, _, interior] = widths(cx.attrs(), shape.len())?;
            let starts: Vec<usize> = low.iter().map(|&l| l as usize).collect();
            // With at most one element, the step has no effect, and `gap + 1` could overflow an `i64`.
            let step = |(&gap, &size): (&i64, &usize)| if size > 1 { gap as usize + 1 } else { 1 };
            let steps: Vec<usize> = interior.iter().zip(&shape).map(step).collect();
            let ends: Vec<usize> = (0..shape.len())
                .map(|a| starts[a] + shape[a].checked_sub(1).map_or(0, |n| n * steps[a] + 1))
                .collect();
            let dy = cx.grad(0);
            Ok(vec![Some(cx.slice_strided(dy, &starts, &ends, &steps).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            let x = call.inputs[0];
            let (low, interior) = (call.ints("low"), call.ints("interior"));
            let shape = &call.outputs[0].shape;
            let mut out = vec![call.float("value"); shape.numel()];
            let mut target = vec![0; shape.len()];
            for_each_index(x.shape(), |index| {
                for axis in 0..target.len() {
                    target[axis] = low[axis] as usize + index[axis] * (interior[axis] as usize + 1);
                }
                out[offset(shape, &target)] = x.data[offset(x.shape(), index)];
            });
            vec![out]
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 0)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let case = |shape: &[usize], low: Vec<i64>, high: Vec<i64>, interior: Vec<i64>, value: f64| {
            let label = format!("{shape:?} low {low:?} high {high:?} interior {interior:?}");
            let attrs = Attrs::new()
                .with("low", low)
                .with("high", high)
                .with("interior", interior)
                .with("value", value);
            Sample::new(label, vec![SampleInput::f32(shape)], attrs)
        };
        let s = sizes.shape(3, 20);
        vec![
            case(&[4], vec![1], vec![2], vec![0], 0.0),
            case(&[1, 3], vec![0, 2], vec![3, 0], vec![2, 1], -1.5),
            case(&s, vec![1, 0, 2], vec![0, 3, 1], vec![0, 1, 0], 0.5),
        ]
    }
}

impl Graph {
    /// Pads every axis with `low` values before and `high` after.
    #[track_caller]
    pub fn pad(&mut self, x: impl Into<Value>, low: &[usize], high: &[usize], value: f32) -> NodeId {
        let attrs = Attrs::new()
            .with("low", low)
            .with("high", high)
            .with("interior", vec![0; low.len()])
            .with("value", value);
        self.call(OpRef::new(&Pad), attrs, vec![x.into()])
    }
}
