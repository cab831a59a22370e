//! Tests of printed graphs and plans: the complete output of each stage for a small graph.

use meganeura_compiler::optimize;
use meganeura_core::{Graph, autodiff, plan};

fn forward() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 3]);
    let w = g.parameter("w", &[3, 1]);
    let y = g.matmul(x, w);
    g.named(y, "prediction");
    let loss = g.mean_all(y);
    g.set_outputs(vec![loss]);
    g
}

fn assert_text(found: &str, expected: &str) {
    let lines = |t: &str| t.trim().lines().map(|l| l.trim_end().to_owned()).collect::<Vec<_>>();
    assert_eq!(lines(found), lines(expected), "\n{found}");
}

#[test]
fn a_graph_reads_as_one_line_a_node() {
    let expected = "
%0 = input x : f32[2, 3]
%1 = parameter w : f32[3, 1]
%2 = core.matmul(%0, %1) {transpose_a=false, transpose_b=false} : f32[2, 1]  # prediction
%3 = core.mean(%2) {axes=[], keep_dims=false} : f32[]
outputs: %3";
    assert_text(&forward().to_string(), expected);
}

#[test]
fn gradients_carry_the_names_of_what_they_differentiate() {
    let full = optimize::optimize(&autodiff::differentiate(&forward()));
    let expected = "
%0 = input x : f32[2, 3]
%1 = parameter w : f32[3, 1]
%2 = core.matmul(%0, %1) {transpose_a=false, transpose_b=false} : f32[2, 1]  # prediction
%3 = core.mean(%2) {axes=[], keep_dims=false} : f32[]
%4 = constant 1 : f32[]
%5 = constant 0.5 : f32[]
%6 = core.mul(%4, %5) : f32[]  # core.mean.grad
%7 = core.reshape(%6) {shape=[1, 1]} : f32[1, 1]  # core.mean.grad
%8 = core.expand(%7) {shape=[2, 1]} : f32[2, 1]  # core.mean.grad
%9 = core.matmul(%0, %8) {transpose_a=true, transpose_b=false} : f32[3, 1]  # prediction.grad
outputs: %3
gradient of %1: %9";
    assert_text(&full.to_string(), expected);
}

#[test]
fn a_plan_reads_as_one_line_a_dispatch() {
    let plan = plan::compile(&forward());
    let expected = "
plan: 4 buffers, 48 bytes, 2 dispatches
segment forward_backward: 2 levels
    0  b2:f32[2, 1] = core.matmul(b0:f32[2, 3], b1:f32[3, 1]) {transpose_a=false, transpose_b=false}  # prediction (core.matmul)
    1  b3:f32[] = core.mean(b2:f32[2, 1]) {axes=[], keep_dims=false}  # %3 (core.mean)";
    assert_text(&plan.to_string(), expected);
}

#[test]
fn dot_is_well_formed_whatever_the_names() {
    let mut g = forward();
    let x = g.input("a \"quoted\\name\"", &[2]);
    let y = g.relu(x);
    let pooled = g.input("image", &[1, 1, 2, 2]);
    let pooled = g.max_pool2d(pooled, meganeura_core::ops::Pool2dOptions::square(2));
    let indices = g.port(pooled, 1);
    g.set_outputs(vec![y.into(), indices]);
    let dot = g.to_dot();
    assert!(dot.starts_with("digraph meganeura {") && dot.ends_with("}\n"), "{dot}");
    assert!(dot.contains("n0 -> n2;") && dot.contains("prediction"), "{dot}");
    assert!(dot.contains(r#"a \"quoted\\name\""#), "{dot}");
    let quotes = dot.replace("\\\\", "").replace("\\\"", "").matches('"').count();
    assert_eq!(quotes % 2, 0, "{dot}");
}
