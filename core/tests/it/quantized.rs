//! Tests of quantized weights: refused calls, and parameters of sessions that are not `f32`.

use meganeura_core::{DType, Graph, NodeId};

fn says(g: &Graph, parts: &[&str]) {
    let text: String = g.errors().iter().map(ToString::to_string).collect();
    for part in parts {
        assert!(text.contains(part), "{text} lacks {part:?}");
    }
}

/// Adds words and scales of these shapes.
fn packed(g: &mut Graph, words: &[usize], scales: &[usize]) -> [NodeId; 2] {
    [
        g.parameter_typed("words", words, DType::U32),
        g.parameter_typed("scales", scales, DType::F16),
    ]
}

#[test]
fn words_and_scales_that_do_not_fit() {
    for (words, scales) in [
        (&[3, 16][..], &[3, 3][..]),
        (&[3, 16], &[2, 2]),
        (&[3, 6], &[3, 1]),
        (&[3, 5], &[3, 3]),
        (&[3, 0], &[3, 0]),
        (&[3, 16], &[2]),
    ] {
        let mut g = Graph::new();
        let [w, s] = packed(&mut g, words, scales);
        g.dequantize(w, s);
        says(&g, &["do not fit", "8 and 1 (Q8_0), 6 and 2 (Q6)"]);
    }
    let mut g = Graph::new();
    let [w, s] = packed(&mut g, &[3, 16], &[3, 2]);
    g.dequantize(s, w);
    says(&g, &["u32 words and floating-point scales"]);
}

#[test]
fn products_that_do_not_fit() {
    type Build = fn(&mut Graph, [NodeId; 2]) -> NodeId;
    let cases: [(Build, &str); 5] = [
        (
            |g, [w, s]| {
                let x = g.input("x", &[2, 32]);
                g.quantized_matmul(x, w, Some(s.into()))
            },
            "do not fit the weight [3, 64]",
        ),
        (
            |g, [w, s]| {
                let x = g.input("x", &[64]);
                g.quantized_matmul(x, w, Some(s.into()))
            },
            "[..., m, 64]",
        ),
        (
            |g, [w, s]| {
                let x = g.input_typed("x", &[2, 64], DType::F16);
                g.quantized_matmul(x, w, Some(s.into()))
            },
            "must be f32",
        ),
        (
            |g, [w, _]| {
                let x = g.input("x", &[2, 16]);
                g.quantized_matmul(x, w, None)
            },
            "must be floating point",
        ),
        (
            |g, _| {
                let x = g.input("x", &[2, 16]);
                let weight = g.parameter("weight", &[2, 2, 16]);
                g.quantized_matmul(x, weight, None)
            },
            "must be a matrix",
        ),
    ];
    for (build, said) in cases {
        let mut g = Graph::new();
        let operands = packed(&mut g, &[3, 16], &[3, 2]);
        build(&mut g, operands);
        says(&g, &[said]);
    }
}

#[test]
fn narrow_parameters_are_not_trained() {
    let mut g = Graph::new();
    let weight = g.parameter_typed("weight", &[4, 4], DType::F16);
    g.trainable(weight, false);
    assert!(g.errors().is_empty());
    g.trainable(weight, true);
    says(&g, &["only f32 parameters can be trained"]);
}
