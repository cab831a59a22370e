//! Selection between two operands, element by element.

use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, Call, Cost, Doc, FusionRole, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::reference::{broadcast_offset, for_each_index};
use crate::shape::{Shape, TensorType};

pub(super) struct Select;

impl Operator for Select {
    fn name(&self) -> &'static str {
        "core.select"
    }

    fn signature(&self) -> String {
        "g.select(condition, a, b)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "condition, a, b: shapes that broadcast -> the broadcast shape",
            formula: "a where the condition is not 0, else b",
            source: "NumPy `where`, with broadcasting",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(3)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let [condition, a, b] = call.inputs else {
            return Err("takes a condition and two operands".into());
        };
        if condition.dtype != DType::U32 {
            return Err(format!(
                "the condition must be u32, as comparisons yield it, not {condition}"
            ));
        }
        if a.dtype != b.dtype {
            return Err(format!(
                "the operands {a} and {b} have different element types; use `cast`"
            ));
        }
        let shape = Shape::broadcast(&a.shape, &b.shape)?;
        let shape = Shape::broadcast(&condition.shape, &shape)?;
        Ok(vec![TensorType::new(a.dtype, shape)])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let (condition, a, b) = (cx.operand(0), cx.operand(1), cx.operand(2));
            let dy = cx.grad(0);
            let dtype = cx.dtype(dy);
            let zero = cx.scalar_of(dtype, 0.0);
            let mut grads = vec![None; 3];
            if cx.needs(1) {
                let d = cx.select(condition, dy, zero).into();
                grads[1] = Some(cx.unbroadcast(d, a));
            }
            if cx.needs(2) {
                let d = cx.select(condition, zero, dy).into();
                grads[2] = Some(cx.unbroadcast(d, b));
            }
            Ok(grads)
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            let at = |i: usize, index: &[usize]| {
                let t = call.inputs[i];
                t.data[broadcast_offset(t.shape(), index)]
            };
            let mut out = Vec::new();
            for_each_index(&call.outputs[0].shape, |index| {
                out.push(if at(0, index) != 0.0 {
                    at(1, index)
                } else {
                    at(2, index)
                });
            });
            vec![out]
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
            (vec![], vec![], vec![]),
            (vec![6], vec![6], vec![6]),
            (vec![3, 1], vec![4], vec![]),
            (vec![5], vec![2, 1], vec![2, 5]),
            (s.clone(), vec![s[2]], s),
        ];
        cases
            .into_iter()
            .map(|(c, a, b)| {
                let inputs = vec![
                    SampleInput::filled(DType::U32, &c, Fill::Mask),
                    SampleInput::f32(&a),
                    SampleInput::f32(&b),
                ];
                Sample::new(format!("{c:?} {a:?} {b:?}"), inputs, Attrs::new())
            })
            .collect()
    }
}

impl Graph {
    /// Selects `a` where `condition` (`u32`) is not 0, else `b`; all three broadcast. NumPy and
    /// PyTorch call it `where`.
    #[track_caller]
    pub fn select(&mut self, condition: impl Into<Value>, a: impl Into<Value>, b: impl Into<Value>) -> NodeId {
        self.call(
            OpRef::new(&Select),
            Attrs::new(),
            vec![condition.into(), a.into(), b.into()],
        )
    }
}
