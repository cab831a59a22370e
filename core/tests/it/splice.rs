//! Tests of inserting a graph into another one.

use std::collections::HashMap;

use meganeura_core::reference::evaluate;
use meganeura_core::{DType, Graph};

/// Builds `y = x w + 1` with `x [2, 3]`, in a separate graph.
fn inner() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 3]);
    let w = g.parameter("w", &[3, 2]);
    let one = g.scalar(1.0);
    let product = g.matmul(x, w);
    let y = g.add(product, one);
    g.set_outputs(vec![y, product]);
    g
}

#[test]
fn the_spliced_graph_computes_the_same() {
    let mut g = Graph::new();
    let features = g.input("features", &[2, 3]);
    let doubled = g.add(features, features);
    let results = g.splice(&inner(), &[("x", doubled.into())]).expect("it fits");
    let y = g.square(results[0]);
    g.set_outputs(vec![y.into(), results[1]]);
    let feeds: HashMap<String, Vec<f64>> = [
        ("features".to_owned(), vec![1.0, 2.0, 3.0, -1.0, 0.5, 0.0]),
        ("w".to_owned(), vec![1.0, 0.0, 0.0, 1.0, 2.0, -1.0]),
    ]
    .into();
    let values = evaluate(&g, &feeds).expect("it evaluates");
    let of = |i: usize| values.get(g.outputs()[i]).expect("a result").data.clone();
    // 2 x w = [14, -2, -2, 1]
    assert_eq!(of(1), [14.0, -2.0, -2.0, 1.0]);
    assert_eq!(of(0), [225.0, 1.0, 1.0, 4.0]);
}

#[test]
fn inputs_that_are_not_fed_stay_inputs() {
    let mut g = Graph::new();
    let results = g.splice(&inner(), &[]).expect("it fits");
    g.set_outputs(results);
    assert!(g.leaf_named("x").is_some() && g.verify().is_ok());
}

#[test]
fn what_does_not_fit_is_an_error_that_changes_no_meaning() {
    let mut g = Graph::new();
    let wrong = g.input("a", &[3, 2]);
    let error = g.splice(&inner(), &[("x", wrong.into())]).expect_err("another shape");
    assert!(error.to_string().contains("input 'x'"), "{error}");
    let ids = g.input_typed("ids", &[2, 3], DType::U32);
    assert!(g.splice(&inner(), &[("x", ids.into())]).is_err());
    let error = g.splice(&inner(), &[("w", wrong.into())]).expect_err("a parameter");
    assert!(error.to_string().contains("no input 'w'"), "{error}");

    let mut g = Graph::new();
    let w = g.parameter("w", &[1]);
    let error = g.splice(&inner(), &[]).expect_err("two parameters of one name");
    assert!(
        error.to_string().contains("both graphs have a") && error.to_string().contains("'w'"),
        "{error}"
    );
    g.set_outputs(vec![w]);
    assert!(g.verify().is_ok());
}
