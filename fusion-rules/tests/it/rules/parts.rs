//! Tests of rules that compute calls only for the needed rows.

use meganeura_compiler::rewrite::Pass::{Forward, Inference};
use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::AttentionOptions;

use super::{of, of_gradients};

/// Returns rows of two sequences.
fn rows(g: &mut Graph) -> Value {
    g.input("x", &[2, 7, 8]).into()
}

#[test]
fn a_part_of_a_feed_forward_layer_is_one_of_its_operands() {
    let r = of(Forward, |g| {
        let x = rows(g);
        let (w, b) = (g.parameter("w", &[8, 8]), g.parameter("b", &[8]));
        let (scale, shift) = (g.parameter("scale", &[8]), g.parameter("shift", &[8]));
        let normed = g.layer_norm(x, scale, shift, 1e-5);
        let y = g.matmul(normed, w);
        let y = g.add(y, b);
        let y = g.gelu_tanh(y);
        let y = g.add(x, y);
        g.narrow(y, 1, 0, 1).into()
    });
    r.fires("Narrow(MatMul)→MatMul(Narrow)")
        .fires("Narrow(LayerNorm)→LayerNorm(Narrow)")
        .gives(&[
            "core.narrow",
            "core.layer_norm",
            "core.matmul",
            "core.add",
            "core.gelu_tanh",
            "core.add",
        ]);
    let narrow = r.after.nodes().iter().find(|n| n.op().is_some()).expect("a call");
    assert_eq!(
        narrow.op().expect("a call").0.get().name(),
        "core.narrow",
        "{}",
        r.after
    );
}

#[test]
fn rows_of_attention_are_rows_of_its_queries() {
    let attention = |causal: bool, start: usize, length: usize| {
        of(Inference, |g| {
            let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, &[2, 7, 8]));
            let options = AttentionOptions {
                causal,
                ..AttentionOptions::new(2, 2, 4)
            };
            let y = g.attention(q, k, v, options);
            g.narrow(y, 1, start, length).into()
        })
    };
    for (causal, start, length, moves) in [
        (false, 0, 1, true),
        (false, 3, 2, true),
        (true, 6, 1, true),
        (true, 4, 3, true),
        // Queries that are not the last ones see keys up to a position that the rule cannot express.
        (true, 0, 1, false),
        (true, 3, 2, false),
    ] {
        let title = if causal {
            "Narrow(CausalAttention)→CausalAttention(Narrow)"
        } else {
            "Narrow(Attention)→Attention(Narrow)"
        };
        let r = attention(causal, start, length);
        if moves {
            r.fires(title);
        } else {
            r.spares(title);
        }
        let first = r.after.nodes().iter().find_map(|n| n.op()).expect("a call");
        let expected = if moves { "core.narrow" } else { "core.attention" };
        assert_eq!(first.0.get().name(), expected, "{}", r.after);
    }
}

#[test]
fn what_is_needed_in_full_is_computed_once() {
    let r = of(Forward, |g| {
        let x = rows(g);
        let w = g.parameter("w", &[8, 8]);
        let y = g.matmul(x, w);
        let first = g.narrow(y, 1, 0, 1);
        let all = g.sum_all(y);
        g.add(first, all).into()
    });
    r.has("core.matmul", 1);
}

#[test]
fn parts_of_the_last_axis_and_of_broadcast_operands_stay() {
    let r = of(Forward, |g| {
        let x = rows(g);
        let y = g.relu(x);
        g.narrow(y, 2, 0, 3).into()
    });
    r.spares("Narrow(Relu)→Relu(Narrow)");
    let r = of(Forward, |g| {
        let (x, b) = (rows(g), g.input("b", &[7, 1]));
        let y = g.add(x, b);
        g.narrow(y, 1, 0, 3).into()
    });
    r.spares("Narrow(Add)→Add(Narrow)");
}

#[test]
fn gradients_are_left_as_they_are() {
    let r = of_gradients(|g| {
        let x = rows(g);
        let w = g.parameter("w", &[8, 8]);
        let y = g.matmul(x, w);
        g.narrow(y, 1, 0, 1).into()
    });
    r.spares("Narrow(MatMul)→MatMul(Narrow)");
}
