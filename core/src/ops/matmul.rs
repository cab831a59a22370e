//! Matrix product: batched, and with either operand transposed.

use super::sample::{Sample, SampleInput, Sizes};
use super::{
    Arity, AttrDecls, AttrKind, Call, Cost, Doc, FusionRole, GradCx, Gradient, OpRef, Operator, RefCall, Semantics,
    expect_float, expect_same_dtype,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::reference::{broadcast_offset, for_each_index};
use crate::shape::{Shape, TensorType};

pub(super) struct MatMul;

/// Sizes of a call: `[batch..., m, k] x [batch..., k, n]` after transposition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatMulDims {
    /// Sizes of the leading (batch) axes after broadcasting.
    pub batch: Vec<usize>,
    /// Number of rows of the result.
    pub m: usize,
    /// Number of columns of the result.
    pub n: usize,
    /// Size of the summed dimension.
    pub k: usize,
    /// `true` if `a` is stored `[k, m]`.
    pub transpose_a: bool,
    /// `true` if `b` is stored `[n, k]`.
    pub transpose_b: bool,
}

impl MatMulDims {
    /// Reads the dimensions of a `core.matmul` or `core.matmul_add` call.
    ///
    /// # Errors
    /// Operands that do not match.
    pub fn of(call: &Call) -> Result<Self, String> {
        let [a, b, ..] = call.inputs else {
            return Err("takes two matrices".into());
        };
        let transpose_a = call.attrs.bool("transpose_a")?;
        let transpose_b = call.attrs.bool("transpose_b")?;
        let split = |t: &TensorType, transpose: bool, which: &str| {
            let rank = t.shape.rank();
            if rank < 2 {
                return Err(format!(
                    "{which} is {t}, but a matrix has at least two axes; use `reshape` to add one"
                ));
            }
            let (rows, columns) = (t.shape[rank - 2], t.shape[rank - 1]);
            let dims = if transpose { (columns, rows) } else { (rows, columns) };
            Ok((t.shape[..rank - 2].to_vec(), dims))
        };
        let (batch_a, (m, ka)) = split(a, transpose_a, "the left operand")?;
        let (batch_b, (kb, n)) = split(b, transpose_b, "the right operand")?;
        if ka != kb {
            let t = |flag| if flag { " transposed" } else { "" };
            return Err(format!(
                "the inner dimensions differ: {a}{} has {ka} columns, {b}{} has {kb} rows",
                t(transpose_a),
                t(transpose_b)
            ));
        }
        let batch = Shape::broadcast(&batch_a, &batch_b)?.to_vec();
        Ok(MatMulDims {
            batch,
            m,
            n,
            k: ka,
            transpose_a,
            transpose_b,
        })
    }
}

/// Reshapes a batch of matrices to one matrix with the rows of all.
fn rows(g: &mut Graph, x: Value) -> Value {
    let shape = g.shape(x).to_vec();
    let (columns, batch) = shape.split_last().map_or((1, &[][..]), |(c, batch)| (*c, batch));
    g.reshape(x, &[batch.iter().product(), columns]).into()
}

fn reference(call: &RefCall) -> Vec<Vec<f64>> {
    let (a, b) = (call.inputs[0], call.inputs[1]);
    let (ta, tb) = (call.bool("transpose_a"), call.bool("transpose_b"));
    let rank = |s: &[usize]| s.len() - 2;
    let (ba, bb) = (&a.shape()[..rank(a.shape())], &b.shape()[..rank(b.shape())]);
    let out_shape = call.outputs[0].shape.to_vec();
    let (m, n) = (out_shape[out_shape.len() - 2], out_shape[out_shape.len() - 1]);
    let k = a.shape()[if ta { ba.len() } else { ba.len() + 1 }];
    let mut out = Vec::with_capacity(call.outputs[0].numel());
    for_each_index(&out_shape, |index| {
        let batch = &index[..index.len() - 2];
        let (i, j) = (index[index.len() - 2], index[index.len() - 1]);
        let (oa, ob) = (broadcast_offset(ba, batch) * m * k, broadcast_offset(bb, batch) * k * n);
        let sum = (0..k).map(|p| {
            let x = a.data[oa + if ta { p * m + i } else { i * k + p }];
            let y = b.data[ob + if tb { j * k + p } else { p * n + j }];
            x * y
        });
        out.push(sum.sum());
    });
    vec![out]
}

/// Returns the gradients of the two matrices of a call whose result is their product, possibly plus
/// another term. The matrices are its first operands.
pub(super) fn product_gradients(cx: &mut GradCx) -> Result<[Option<Value>; 2], String> {
    let (ta, tb) = (cx.attrs().bool("transpose_a")?, cx.attrs().bool("transpose_b")?);
    let (a, b) = (cx.operand(0), cx.operand(1));
    let dy = cx.grad(0);
    let mut grads = [None, None];
    if cx.needs(0) {
        // dA = dC op(B)^T, and its transpose when A is stored transposed
        let da = if ta {
            cx.matmul_with(b, dy, tb, true)
        } else {
            cx.matmul_with(dy, b, false, !tb)
        };
        grads[0] = Some(cx.unbroadcast(da.into(), a));
    }
    if cx.needs(1) {
        // With one right operand for the whole batch, its gradient is one sum over all rows of the
        // batch, instead of a sum of one product per matrix.
        let (a, dy) = match (cx.shape(a).len() > 2, cx.shape(b).len() == 2 && !ta) {
            (true, true) => (rows(cx, a), rows(cx, dy)),
            _ => (a, dy),
        };
        let db = if tb {
            cx.matmul_with(dy, a, true, ta)
        } else {
            cx.matmul_with(a, dy, !ta, false)
        };
        grads[1] = Some(cx.unbroadcast(db.into(), b));
    }
    Ok(grads)
}

impl Operator for MatMul {
    fn name(&self) -> &'static str {
        "core.matmul"
    }

    fn signature(&self) -> String {
        "g.matmul(a, b)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "A [..., m, k], B [..., k, n] (either with its last axes swapped if transposed); leading axes broadcast -> [..., m, n]",
            formula: "C[..., i, j] = sum over p of A[..., i, p] B[..., p, j]; transpose_a reads A as [p, i], transpose_b reads B as [j, p]; leading axes broadcast",
            source: "BLAS `gemm`, NumPy `matmul`",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
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
        Ok(vec![TensorType::new(call.inputs[0].dtype, Shape::new(&shape)?)])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| Ok(product_gradients(cx)?.to_vec()))
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(reference)
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Contraction
    }

    fn cost(&self, call: &Call) -> Cost {
        let k = MatMulDims::of(call).map_or(0, |d| d.k as u64);
        Cost::streaming(call, 2 * k)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let mut samples = Vec::new();
        for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut shapes = vec![
                (1, 1, 1),
                (1, 67, 33),
                (65, 1, 9),
                (5, 3, 1),
                (sizes.dim(80), sizes.dim(80), sizes.dim(80)),
            ];
            shapes.push((130, 70, 300));
            for (m, n, k) in shapes {
                let a = if ta { [k, m] } else { [m, k] };
                let b = if tb { [n, k] } else { [k, n] };
                samples.push(sample(&a, &b, ta, tb));
            }
            let (m, n, k) = (sizes.dim(9), sizes.dim(9), sizes.dim(9));
            let a = if ta { [2, 3, k, m] } else { [2, 3, m, k] };
            let b = if tb { [3, n, k] } else { [3, k, n] };
            samples.push(sample(&a, &b, ta, tb));
            let b = if tb { [n, k] } else { [k, n] };
            samples.push(sample(&a, &b, ta, tb));
            let mut stretched = a;
            stretched[0] = 1;
            let b = if tb { [4, 1, n, k] } else { [4, 1, k, n] };
            samples.push(sample(&stretched, &b, ta, tb));
        }
        samples
    }
}

fn sample(a: &[usize], b: &[usize], ta: bool, tb: bool) -> Sample {
    let t = |flag| if flag { "T" } else { "" };
    let attrs = Attrs::new().with("transpose_a", ta).with("transpose_b", tb);
    let inputs = vec![SampleInput::f32(a), SampleInput::f32(b)];
    Sample::new(format!("{a:?}{} {b:?}{}", t(ta), t(tb)), inputs, attrs)
}

impl Graph {
    #[track_caller]
    pub(crate) fn matmul_with(&mut self, a: impl Into<Value>, b: impl Into<Value>, ta: bool, tb: bool) -> NodeId {
        let attrs = Attrs::new().with("transpose_a", ta).with("transpose_b", tb);
        self.call(OpRef::new(&MatMul), attrs, vec![a.into(), b.into()])
    }

    /// Multiplies `[..., m, k] x [..., k, n] -> [..., m, n]`; leading axes broadcast.
    #[track_caller]
    pub fn matmul(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> NodeId {
        self.matmul_with(a, b, false, false)
    }

    /// Multiplies `[..., k, m]`, transposed, by `[..., k, n]`, `-> [..., m, n]`.
    #[track_caller]
    pub fn matmul_at(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> NodeId {
        self.matmul_with(a, b, true, false)
    }

    /// Multiplies `[..., m, k]` by `[..., n, k]`, transposed, `-> [..., m, n]`.
    #[track_caller]
    pub fn matmul_bt(&mut self, a: impl Into<Value>, b: impl Into<Value>) -> NodeId {
        self.matmul_with(a, b, false, true)
    }

    /// Adds `bias [n]` to every row of `x [..., n]`.
    #[track_caller]
    pub fn bias_add(&mut self, x: impl Into<Value>, bias: impl Into<Value>) -> NodeId {
        let (x, bias) = (x.into(), bias.into());
        if let (Some(tx), Some(tb)) = (self.ty(x), self.ty(bias))
            && (tb.shape.rank() != 1 || tx.shape.last() != tb.shape.last())
        {
            let message = format!("the bias {tb} does not fit the last axis of {tx}");
            let per_channel = tx.shape.rank() > 2 && tb.shape.rank() == 1 && tx.shape.dims().get(1) == tb.shape.last();
            let remedy = if per_channel {
                "axis 1 has as many elements: `channel_bias_add` adds one to each channel"
            } else {
                "give the bias one element for each column; `channel_bias_add` adds to channels"
            };
            return self.report("bias_add", message, remedy);
        }
        self.add(x, bias)
    }

    /// Adds `bias [channels]` to `x [batch, channels, ...]`, to every element of a channel: the bias of a convolution.
    /// The result has the shape of `x`, and both have one dtype.
    #[track_caller]
    pub fn channel_bias_add(&mut self, x: impl Into<Value>, bias: impl Into<Value>) -> NodeId {
        let (x, bias) = (x.into(), bias.into());
        let (Some(tx), Some(tb)) = (self.ty(x), self.ty(bias)) else {
            return self.add(x, bias);
        };
        if tx.shape.rank() < 2 || tb.shape.rank() != 1 || tx.shape.dims()[1] != tb.shape.dims()[0] {
            let message = format!("the bias {tb} does not fit the channels, axis 1, of {tx}");
            return self.report(
                "channel_bias_add",
                message,
                "give the bias one element for each channel; `bias_add` adds to the last axis",
            );
        }
        let mut shape = vec![1; tx.shape.rank() - 1];
        shape[0] = tb.shape.dims()[0];
        let bias = self.reshape(bias, &shape);
        self.add(x, bias)
    }
}
