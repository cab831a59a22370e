//! Tests of fusions that are applied by name, without a cost model.

use std::collections::HashMap;

use meganeura_compiler::optimize::{apply_group_norm_silu_fusions, apply_rms_norm_matmul_fusions};
use meganeura_compiler::rewrite::apply_rules;
use meganeura_core::Graph;
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::evaluate;

/// Returns the number of calls of an operator in a graph.
fn calls(graph: &Graph, name: &str) -> usize {
    let named = |n: &&meganeura_core::graph::Node| n.op().is_some_and(|(op, _)| op.name() == name);
    graph.nodes().iter().filter(named).count()
}

/// Evaluates a graph with random inputs and parameters, the same for graphs with equal names. Returns the outputs.
fn outputs(graph: &Graph) -> Vec<Vec<f64>> {
    let mut feeds = HashMap::new();
    let mut names: Vec<(String, usize)> = graph
        .nodes()
        .iter()
        .filter(|n| n.op().is_none())
        .filter_map(|n| Some((n.name.as_deref()?.to_owned(), n.outputs[0].shape.numel())))
        .collect();
    names.sort();
    let mut rng = SplitMix64::new(7);
    for (name, len) in names {
        feeds.insert(name, (0..len).map(|_| rng.normal()).collect());
    }
    let evaluation = evaluate(graph, &feeds).expect("evaluates");
    graph
        .outputs()
        .iter()
        .map(|v| evaluation.get(*v).expect("computed").data.clone())
        .collect()
}

fn assert_same(before: &Graph, after: &Graph) {
    for (a, b) in outputs(before).iter().zip(&outputs(after)) {
        for (a, b) in a.iter().zip(b) {
            assert!((a - b).abs() <= 1e-12 * a.abs().max(1.0), "{a} and {b}");
        }
    }
}

#[test]
fn a_norm_with_one_reader_becomes_part_of_the_matmul() {
    assert_eq!(meganeura_rules::rule_sets().len(), 9, "the rules are linked");
    let mut g = Graph::new();
    let x = g.input("x", &[3, 8]);
    let weight = g.parameter("norm", &[8]);
    let w = g.parameter("w", &[8, 5]);
    let normalised = g.rms_norm(x, weight, 1e-5);
    let y = g.matmul(normalised, w);
    g.set_outputs(vec![y]);
    let before = g.clone();
    assert_eq!(apply_rms_norm_matmul_fusions(&mut g), 1);
    assert_eq!(calls(&g, "core.rms_norm_matmul"), 1);
    assert_eq!(calls(&g, "core.matmul"), 0);
    assert_same(&before, &g);
    // Nothing is left to do.
    assert_eq!(apply_rms_norm_matmul_fusions(&mut g), 0);
}

#[test]
fn a_norm_that_is_read_twice_is_computed_once() {
    let mut g = Graph::new();
    let x = g.input("x", &[3, 8]);
    let weight = g.parameter("norm", &[8]);
    let w = g.parameter("w", &[8, 5]);
    let normalised = g.rms_norm(x, weight, 1e-5);
    let y = g.matmul(normalised, w);
    g.set_outputs(vec![y, normalised]);
    assert_eq!(apply_rms_norm_matmul_fusions(&mut g), 0);
    assert_eq!(calls(&g, "core.rms_norm"), 1);
}

#[test]
fn group_norm_and_silu_become_one_call() {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 4, 3, 3]);
    let weight = g.parameter("weight", &[4]);
    let bias = g.parameter("bias", &[4]);
    let normalised = g.group_norm(x, weight, bias, 2, 1e-5);
    let y = g.silu(normalised);
    g.set_outputs(vec![y]);
    let before = g.clone();
    assert_eq!(apply_group_norm_silu_fusions(&mut g), 1);
    assert_eq!(calls(&g, "core.group_norm_silu"), 1);
    assert_same(&before, &g);
}

#[test]
fn a_title_that_no_rule_has_is_an_error_that_names_it() {
    let mut g = Graph::new();
    let x = g.input("x", &[2]);
    g.set_outputs(vec![x]);
    let error = apply_rules(&mut g, &["Nothing→Something"]).unwrap_err().to_string();
    assert!(error.contains("'Nothing→Something'"), "{error}");
}
