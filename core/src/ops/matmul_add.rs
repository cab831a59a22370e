//! Matrix product plus an addend, in one pass over the result.

use super::matmul::{MatMulDims, product_gradients};
use super::sample::{Sample, SampleInput, Sizes};
use super::{
    Arity, AttrDecls, AttrKind, Call, Cost, Doc, FusionRole, Gradient, OpRef, Operator, Semantics, expect_float,
    expect_same_dtype,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct MatMulAdd;

impl Operator for MatMulAdd {
    fn name(&self) -> &'static str {
        "core.matmul_add"
    }

    fn signature(&self) -> String {
        "g.matmul_add(a, b, d)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "A, B as in core.matmul, which gives [..., m, n]; d: a shape that broadcasts to that ([n] for a bias, [..., m, n] for a residual) -> [..., m, n]",
            formula: "core.matmul of A and B, plus d",
            source: "BLAS `gemm` with beta = 1; PyTorch `addmm`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(3)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("transpose_a", AttrKind::Bool), ("transpose_b", AttrKind::Bool)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        expect_same_dtype(call)?;
        expect_float(call, 0, "the operands")?;
        let dims = MatMulDims::of(call)?;
        let mut shape = dims.batch;
        shape.extend([dims.m, dims.n]);
        let product = TensorType::new(call.inputs[0].dtype, Shape::new(&shape)?);
        let d = &call.inputs[2];
        match Shape::broadcast(&product.shape, &d.shape) {
            Ok(shape) if shape == product.shape => Ok(vec![product]),
            _ => Err(format!(
                "the addend {d} does not broadcast to the matmul's result {product}"
            )),
        }
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let [da, db] = product_gradients(cx)?;
            let (d, dy) = (cx.operand(2), cx.grad(0));
            let dd = cx.needs(2).then(|| cx.unbroadcast(dy, d));
            Ok(vec![da, db, dd])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let &[a, b, d] = cx.inputs else {
                return Err("takes three operands".into());
            };
            let (ta, tb) = (cx.attrs.bool("transpose_a")?, cx.attrs.bool("transpose_b")?);
            let product = cx.graph.matmul_with(a, b, ta, tb);
            Ok(vec![cx.graph.add(product, d).into()])
        })
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Contraction
    }

    fn cost(&self, call: &Call) -> Cost {
        let k = MatMulDims::of(call).map_or(0, |d| d.k as u64);
        Cost::streaming(call, 2 * k + 1)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let mut samples = Vec::new();
        for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
            let shapes = [
                (1, 1, 1),
                (1, 67, 33),
                (65, 1, 9),
                (5, 3, 1),
                (130, 70, 300),
                (40, 50, 600),
                (sizes.dim(80), sizes.dim(80), sizes.dim(80)),
            ];
            for (m, n, k) in shapes {
                for d in [vec![n], vec![m, n]] {
                    samples.push(sample(&[], &[], [m, n, k], &d, (ta, tb)));
                }
            }
            let mnk @ [m, n, _] = [sizes.dim(9), sizes.dim(9), sizes.dim(9)];
            // Products of a batch, which may share a right operand, with every kind of addend.
            for d in [
                vec![n],
                vec![m, 1],
                vec![],
                vec![2, 3, m, n],
                vec![3, 1, n],
                vec![1, m, n],
            ] {
                samples.push(sample(&[2, 3], &[3], mnk, &d, (ta, tb)));
                samples.push(sample(&[2, 3], &[], mnk, &d, (ta, tb)));
            }
        }
        samples
    }
}

/// Returns a sample call; `a` and `b` are the leading axes of the matrices, `d` is the shape of the addend.
fn sample(a: &[usize], b: &[usize], [m, n, k]: [usize; 3], d: &[usize], (ta, tb): (bool, bool)) -> Sample {
    let a = [a, &if ta { [k, m] } else { [m, k] }].concat();
    let b = [b, &if tb { [n, k] } else { [k, n] }].concat();
    let t = |flag| if flag { "T" } else { "" };
    let attrs = Attrs::new().with("transpose_a", ta).with("transpose_b", tb);
    let label = format!("{a:?}{} {b:?}{} plus {d:?}", t(ta), t(tb));
    Sample::new(
        label,
        [&a, &b, d].map(|s: &[usize]| SampleInput::f32(s)).to_vec(),
        attrs,
    )
}

impl Graph {
    /// Multiplies `a [..., m, k]` by `b [..., k, n]` and adds `d`, which broadcasts to the product:
    /// a bias `[n]` or a residual `[..., m, n]`. The same as [`Graph::matmul`] and [`Graph::add`],
    /// in one pass.
    #[track_caller]
    pub fn matmul_add(&mut self, a: impl Into<Value>, b: impl Into<Value>, d: impl Into<Value>) -> NodeId {
        let attrs = Attrs::new().with("transpose_a", false).with("transpose_b", false);
        self.call(OpRef::new(&MatMulAdd), attrs, vec![a.into(), b.into(), d.into()])
    }
}
