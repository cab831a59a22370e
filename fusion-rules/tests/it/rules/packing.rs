//! Tests of packed projections, forward and backward.

use meganeura_compiler::rewrite::Pass::{Forward, Inference};
use meganeura_core::graph::{Graph, Value};

use super::{of, of_gradients};

/// Builds projections of one input to these widths, with or without biases.
fn projections(g: &mut Graph, widths: &[usize], bias: bool) -> Vec<Value> {
    let x = g.parameter("x", &[9, 8]);
    let x = g.tanh(x);
    let project = |(i, &width): (usize, &usize)| {
        let w = g.parameter(&format!("w{i}"), &[8, width]);
        let y = g.matmul(x, w);
        if !bias {
            return y.into();
        }
        let b = g.parameter(&format!("b{i}"), &[width]);
        g.add(y, b).into()
    };
    widths.iter().enumerate().map(project).collect()
}

/// Returns a sum of squares of each value, so that each value is needed separately.
fn needed(g: &mut Graph, values: &[Value]) -> Value {
    let mut total: Option<Value> = None;
    for &v in values {
        let s = g.square(v);
        let s: Value = g.sum_all(s).into();
        total = Some(total.map_or(s, |t| g.add(t, s).into()));
    }
    total.expect("at least one value")
}

#[test]
fn projections_of_one_input_are_one_product() {
    for widths in [vec![4, 6], vec![4, 6, 3]] {
        for bias in [false, true] {
            let r = of(Inference, |g| {
                let parts = projections(g, &widths, bias);
                needed(g, &parts)
            });
            let product = if bias { "core.matmul_add" } else { "core.matmul" };
            r.has("core.matmul", usize::from(!bias))
                .has(product, 1)
                .has("core.narrow", widths.len());
        }
    }
}

#[test]
fn gate_and_up_are_one_product() {
    let build = |g: &mut Graph| {
        let parts = projections(g, &[6, 6], false);
        g.swiglu(parts[0], parts[1]).into()
    };
    let r = of(Forward, build);
    r.fires("SwiGLU(MatMul,MatMul)→SwiGLUConcat(MatMul)")
        .gives(&["core.tanh", "core.matmul", "core.swiglu_concat"]);
    let r = of_gradients(build);
    r.fires("MatMul,MatMul→PackedMatMul")
        .fires("SwiGLUGrad→SwiGLUConcatGrad")
        .has("core.swiglu_concat_grad", 1);
}

#[test]
fn gradients_of_packed_projections() {
    for widths in [vec![4, 6], vec![4, 6, 3]] {
        let r = of_gradients(|g| {
            let parts = projections(g, &widths, false);
            needed(g, &parts)
        });
        r.fires("MatMulBT+MatMulBT→PackedMatMulBT");
        if widths.len() == 3 {
            r.fires("PackedMatMulBT+MatMulBT→PackedMatMulBT");
            r.fires("MatMulAT,MatMulAT,MatMulAT→PackedMatMulAT");
        }
    }
}

#[test]
fn one_weight_used_twice_is_not_packed_with_itself() {
    let r = of(Forward, |g| {
        let (x, w) = (g.input("x", &[3, 5]), g.parameter("w", &[5, 4]));
        let y = g.matmul(x, w);
        g.swiglu(y, y).into()
    });
    r.spares("SwiGLU(MatMul,MatMul)→SwiGLUConcat(MatMul)");
}

#[test]
fn neighbouring_parts_are_a_part() {
    let r = of(Inference, |g| {
        let x = g.input("x", &[3, 9]);
        let whole = g.tanh(x);
        let parts = [(0, 4), (4, 2), (6, 3)].map(|(start, length)| g.narrow(whole, 1, start, length));
        let two = g.concat(&parts[1..], 1);
        let three = g.concat(&parts, 1);
        let a = g.sum_all(two);
        let b = g.sum_all(three);
        g.mul(a, b).into()
    });
    r.fires("Concat(Narrow,Narrow)→Narrow")
        .fires("Concat(Narrow,Narrow,Narrow)→Narrow")
        .has("core.concat", 0);
}
