//! Tests of products with a matrix for each expert: refused calls, and products of rows with the matrices of their
//! experts.

use std::collections::HashMap;

use meganeura_core::reference::evaluate;
use meganeura_core::{DType, Graph};

/// Returns the error of a product of operands with these shapes.
fn refused(x: &[usize], experts: &[usize], weight: &[usize]) -> String {
    let mut g = Graph::new();
    let x = g.input("x", x);
    let experts = g.input_u32("experts", experts);
    let weight = g.parameter("weight", weight);
    g.expert_matmul(x, experts, weight);
    g.errors().iter().map(ToString::to_string).collect()
}

#[test]
fn operands_that_do_not_fit() {
    for (x, experts, weight, said) in [
        (&[4, 8][..], &[3][..], &[2, 5, 8][..], "need one expert each"),
        (&[4, 8], &[4, 1], &[2, 5, 8], "need one expert each"),
        (
            &[4, 8],
            &[4],
            &[2, 8, 5],
            "have 8 columns, the matrices of f32[2, 8, 5] take 5",
        ),
        (&[4, 8], &[4], &[5, 8], "a matrix for each expert"),
        (&[], &[], &[2, 5, 8], "need an axis"),
    ] {
        let text = refused(x, experts, weight);
        assert!(text.contains(said) && text.contains("core.expert_matmul"), "{text}");
    }
    let mut g = Graph::new();
    let x = g.input("x", &[4, 8]);
    let halves = g.input_typed("halves", &[4, 8], DType::F16);
    let weight = g.parameter("weight", &[2, 5, 8]);
    let words = g.parameter_typed("words", &[2, 5, 16], DType::U32);
    let experts = g.input_u32("experts", &[4]);
    g.expert_matmul(x, x, weight);
    g.expert_matmul(halves, experts, weight);
    g.quantized_expert_matmul(halves, experts, weight, None);
    g.quantized_expert_matmul(x, experts, words, None);
    let wide = g.input("wide", &[4, 16]);
    g.quantized_expert_matmul(wide, experts, words, None);
    let said: Vec<String> = g.errors().iter().map(ToString::to_string).collect();
    for (text, part) in said.iter().zip([
        "must be u32",
        "different element types",
        "must be f32",
        "have 8 columns",
        "must be floating point",
    ]) {
        assert!(text.contains(part), "{text} lacks {part:?}");
    }
    assert_eq!(said.len(), 5);
}

/// Each row is multiplied by the matrix of its expert: one doubles the row, the other swaps its elements. A row whose
/// expert does not exist is NaN.
#[test]
fn rows_have_the_products_of_their_experts() {
    let mut g = Graph::new();
    let x = g.input("x", &[3, 2]);
    let experts = g.input_u32("experts", &[3]);
    let weight = g.input("weight", &[2, 2, 2]);
    let y = g.expert_matmul(x, experts, weight);
    g.set_outputs(vec![y]);
    let feeds = HashMap::from([
        ("x".to_owned(), vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        ("experts".to_owned(), vec![1.0, 0.0, 2.0]),
        ("weight".to_owned(), vec![2.0, 0.0, 0.0, 2.0, 0.0, 1.0, 1.0, 0.0]),
    ]);
    let values = evaluate(&g, &feeds).expect("it evaluates");
    let found = &values.get(y).expect("a result").data;
    assert_eq!(found[..4], [2.0, 1.0, 6.0, 8.0]);
    assert!(found[4].is_nan() && found[5].is_nan());
}
