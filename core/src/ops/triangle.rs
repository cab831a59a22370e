//! Triangular parts of matrices.

use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::ops::operator::short_name;
use crate::shape::TensorType;

/// An operator that keeps the part of each matrix on one side of a diagonal, and sets the rest to zero.
pub(super) struct Triangle {
    lower: bool,
}

pub(super) const TRIL: Triangle = Triangle { lower: true };
pub(super) const TRIU: Triangle = Triangle { lower: false };

impl Triangle {
    /// Returns a mask `[rows, columns]` that is 1 in the kept part and 0 outside.
    fn mask(&self, g: &mut Graph, [rows, columns]: [usize; 2], diagonal: i64) -> NodeId {
        // c <= r + diagonal, with the diagonal added to the side on which it is positive. No number
        // of rows or columns in memory reaches the limit of u32, and beyond all of them the exact
        // diagonal does not matter.
        let limit = 1 << 31;
        let (up, down) = (diagonal.clamp(0, limit), (-diagonal).clamp(0, limit));
        let word = |i: usize, by: i64| u32::try_from(i as i64 + by).unwrap_or(u32::MAX);
        let r = (0..rows).map(|r| word(r, up)).collect();
        let r = g.constant_u32(r, &[rows, 1]);
        let c = (0..columns).map(|c| word(c, down)).collect();
        let c = g.constant_u32(c, &[1, columns]);
        if self.lower {
            g.less_equal(c, r)
        } else {
            g.less_equal(r, c)
        }
    }
}

impl Operator for Triangle {
    fn name(&self) -> &'static str {
        if self.lower { "core.tril" } else { "core.triu" }
    }

    fn signature(&self) -> String {
        format!("g.{}(x, diagonal)", short_name(self.name()))
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [..., rows, columns] -> the same",
            formula: if self.lower {
                "x where column <= row + diagonal, else 0"
            } else {
                "x where column >= row + diagonal, else 0"
            },
            source: "NumPy `tril` and `triu`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("diagonal", AttrKind::Int)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let x = &call.inputs[0];
        let diagonal = call.attrs.int("diagonal")?;
        if i32::try_from(diagonal).is_err() {
            return Err(format!("the diagonal {diagonal} is out of range"));
        }
        let [.., rows, columns] = x.shape[..] else {
            return Err(format!("{x} is no matrix: it has less than two axes"));
        };
        if rows.max(columns) > 1 << 31 {
            return Err(format!("the matrix {x} is too large"));
        }
        Ok(vec![x.clone()])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let attrs = cx.attrs().clone();
            let dy = cx.grad(0);
            let op: &'static Triangle = if self.lower { &TRIL } else { &TRIU };
            Ok(vec![Some(cx.call(OpRef::new(op), attrs, vec![dy]).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::both(
            |call| {
                let x = call.inputs[0];
                let diagonal = call.int("diagonal");
                let [.., rows, columns] = x.shape()[..] else {
                    return vec![x.data.clone()];
                };
                let element = |(at, &v): (usize, &f64)| {
                    let (r, c) = ((at / columns % rows) as i64, (at % columns) as i64);
                    let inside = if self.lower {
                        c <= r + diagonal
                    } else {
                        c >= r + diagonal
                    };
                    if inside { v } else { 0.0 }
                };
                vec![x.data.iter().enumerate().map(element).collect()]
            },
            |cx| {
                let [.., rows, columns] = cx.outputs[0].shape[..] else {
                    return Err("it has less than two axes".into());
                };
                let mask = self.mask(cx.graph, [rows, columns], cx.attrs.int("diagonal")?);
                let zero = cx.graph.scalar_of(cx.outputs[0].dtype, 0.0);
                Ok(vec![cx.graph.select(mask, cx.inputs[0], zero).into()])
            },
        )
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 0)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let s = sizes.shape(3, 20);
        let cases = [
            (vec![1, 1], 0),
            (vec![4, 4], 0),
            (vec![3, 7], 2),
            (vec![7, 3], -2),
            (vec![5, 5], 9),
            (vec![5, 5], -9),
            (s, 1),
        ];
        cases
            .into_iter()
            .map(|(shape, diagonal)| {
                let label = format!("{shape:?} from diagonal {diagonal}");
                let attrs = Attrs::new().with("diagonal", diagonal);
                Sample::new(label, vec![SampleInput::f32(&shape)], attrs)
            })
            .collect()
    }
}

impl Graph {
    /// Returns each matrix of the last two axes with zeros above its `diagonal` (0 is the main one,
    /// 1 the next above).
    #[track_caller]
    pub fn tril(&mut self, x: impl Into<Value>, diagonal: i32) -> NodeId {
        let attrs = Attrs::new().with("diagonal", diagonal);
        self.call(OpRef::new(&TRIL), attrs, vec![x.into()])
    }

    /// Returns each matrix of the last two axes with zeros below its `diagonal` (0 is the main one,
    /// 1 the next above).
    #[track_caller]
    pub fn triu(&mut self, x: impl Into<Value>, diagonal: i32) -> NodeId {
        let attrs = Attrs::new().with("diagonal", diagonal);
        self.call(OpRef::new(&TRIU), attrs, vec![x.into()])
    }
}
