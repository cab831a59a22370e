//! Gradients of attention, computed from the log-sum-exp that the forward pass saved.

use super::{AttentionDims, cases, dims_of, empty_results, join_heads, per_query, scores, split_heads};
use crate::graph::{Graph, Value};
use crate::ops::sample::{Sample, SampleInput, Sizes};
use crate::ops::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Expansion, Gradient, Operator, Semantics};
use crate::shape::TensorType;

pub(in crate::ops) struct AttentionGrad;

/// Reshapes a tensor with one number for each query of each head as `[batch, kv_heads, group, rows_q, 1]`.
fn split_rows(g: &mut Graph, x: Value, dims: &AttentionDims) -> Value {
    let shape = [dims.batch, dims.kv_heads, dims.group(), dims.rows_q, 1];
    g.reshape(x, &shape).into()
}

fn decompose(cx: &mut Expansion) -> Result<Vec<Value>, String> {
    let dims = dims_of(cx)?;
    if dims.batch == 0 {
        return Ok(empty_results(cx));
    }
    let (g, group, dtype) = (&mut *cx.graph, dims.group(), cx.outputs[0].dtype);
    let q = split_heads(g, cx.inputs[0], dims.rows_q, &dims, group);
    let k = split_heads(g, cx.inputs[1], dims.rows_k, &dims, 1);
    let v = split_heads(g, cx.inputs[2], dims.rows_k, &dims, 1);
    let lse = split_rows(g, cx.inputs[3], &dims);
    let delta = split_rows(g, cx.inputs[4], &dims);
    let dout = split_heads(g, cx.inputs[5], dims.rows_q, &dims, group);
    let scores = scores(g, q, k, &dims, None);
    let shifted = g.sub(scores, lse);
    let p = g.exp(shifted);
    let dp = g.matmul_bt(dout, v);
    let centred = g.sub(dp, delta);
    let ds = g.mul(p, centred);
    let scale = g.scalar_of(dtype, dims.scale);
    let ds = g.mul(ds, scale);
    let dq = g.matmul(ds, k);
    let dq = join_heads(g, dq, &cx.outputs[0].shape);
    let dk = g.matmul_at(ds, q);
    let dv = g.matmul_at(p, dout);
    // Sum the gradients of the query heads of a group, which share a KV head.
    let [dk, dv] = [(dk, 1), (dv, 2)].map(|(parts, port)| {
        let sum = g.sum(parts, &[2], true);
        join_heads(g, sum, &cx.outputs[port].shape)
    });
    Ok(vec![dq, dk, dv])
}

/// Returns an error that names both types unless the operand has this type.
fn expect_type(what: &str, found: &TensorType, wanted: &TensorType) -> Result<(), String> {
    if found == wanted {
        Ok(())
    } else {
        Err(format!("{what} is {found}, but must be {wanted}"))
    }
}

impl Operator for AttentionGrad {
    fn name(&self) -> &'static str {
        "core.attention_grad"
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "q, k, v as for core.attention, lse, delta [batch..., num_heads, rows_q], dout as q -> dq, dk, dv as q, k, v",
            formula: "with p = e^(scale q k^T + mask - lse) and ds = p (dout v^T - delta): dq = scale ds k, dk = scale ds^T q, dv = p^T dout, where delta is the sum over a head of dout out, minus the gradient of lse; query heads that share a key-value head add up",
            source: "derivative of softmax and matmul; recomputed from lse as in Dao et al., 2022",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(6)
    }

    fn attributes(&self) -> AttrDecls {
        vec![
            ("num_heads", AttrKind::Int),
            ("num_kv_heads", AttrKind::Int),
            ("head_dim", AttrKind::Int),
            ("causal", AttrKind::Bool),
            ("window", AttrKind::Int),
            ("scale", AttrKind::Float),
        ]
    }

    fn ports(&self) -> &'static [&'static str] {
        &["dq", "dk", "dv"]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let dims = AttentionDims::of(call)?;
        let [q, k, v, lse, delta, dout] = call.inputs else {
            return Err("takes six operands".into());
        };
        let rows = per_query(q, dims.heads)?;
        expect_type("lse", lse, &rows)?;
        expect_type("delta", delta, &rows)?;
        expect_type("the gradient of the result", dout, q)?;
        Ok(vec![q.clone(), k.clone(), v.clone()])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(decompose)
    }

    fn cost(&self, call: &Call) -> Cost {
        // Five products, and some fifteen operations for each exponential.
        let flops = AttentionDims::of(call).map_or(0, |d| {
            let exponentials = d.multiplications() / d.head_dim as u64;
            d.multiplications()
                .saturating_mul(10)
                .saturating_add(exponentials.saturating_mul(15))
        });
        Cost {
            flops,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let mut samples = cases(sizes);
        for sample in &mut samples {
            let q = sample.inputs[0].shape.clone();
            let heads = sample.attrs.size("num_heads").unwrap_or(1);
            let mut rows = q.clone();
            if let [.., count, last] = rows.as_mut_slice() {
                (*count, *last) = (heads, *count);
            }
            // Any log-sum-exp is accepted. With a magnitude as scores give, `p` is close to probabilities.
            sample.inputs.extend([
                SampleInput::range(&rows, 1.0, 5.0),
                SampleInput::f32(&rows),
                SampleInput::f32(&q),
            ]);
        }
        samples
    }
}
