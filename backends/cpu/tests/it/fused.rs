//! Tests of fused programs: samples, random clusters, and sizes that are cut into runs and tasks.

use std::sync::Arc;

use crate::common;
use crate::common::{check, op};
use crate::dag::{Dag, dag};
use meganeura_compiler::cluster::cluster;
use meganeura_core::backend::Device;
use meganeura_core::graph::Graph;
use meganeura_core::ops::FUSED;
use meganeura_core::ops::sample::Sizes;
use meganeura_core::plan::compile_for;
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::evaluate;
use meganeura_core::{DType, Session};
use meganeura_cpu::CpuDevice;

fn device(threads: usize) -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(threads))
}

#[test]
fn samples_agree_with_the_definition() {
    for seed in 0..6 {
        let samples = op("core.fused").samples(&mut Sizes::new(seed));
        // On this device, separate calls compute the operands of products.
        for sample in samples.iter().filter(|s| !s.label.contains("product of a gate")) {
            check("core.fused", sample, seed);
        }
    }
}

/// Returns the outputs of a graph after a step, and the number of dispatches that run fused programs.
fn outputs(
    graph: &Graph,
    feeds: &std::collections::HashMap<String, Vec<f64>>,
    threads: usize,
) -> (Vec<Vec<f32>>, usize) {
    let device = device(threads);
    let plan = compile_for(graph, &*device).expect("a plan");
    let programs = plan.dispatches.iter().filter(|d| d.kernel.name == FUSED.name()).count();
    let mut session = Session::on(device, plan).expect("a session");
    for node in graph.nodes().iter().filter(|n| !n.is_op()) {
        let Some(name) = node.name.as_deref() else { continue };
        let values = &feeds[name];
        if node.outputs[0].dtype == DType::F32 {
            session.set_input(name, &values.iter().map(|&v| v as f32).collect::<Vec<_>>());
        }
    }
    session.step();
    let read = |i| {
        let bytes = session.try_read_output_bytes(i).expect("an output");
        common::numbers(&bytes, DType::F32).iter().map(|&v| v as f32).collect()
    };
    ((0..graph.outputs().len()).map(read).collect(), programs)
}

fn compare(what: &str, Dag { graph, feeds }: &Dag) -> usize {
    let (clustered, report) = cluster(graph, &device(2)).expect("it clusters");
    let want = evaluate(graph, feeds).expect("an evaluation");
    let (got, programs) = outputs(&clustered, feeds, 2);
    assert_eq!(programs, report.clusters.len(), "{what}: a cluster was taken apart");
    assert_eq!(got, outputs(&clustered, feeds, 1).0, "{what}: threads matter");
    let (plain, _) = outputs(graph, feeds, 2);
    for (port, (value, got)) in graph.outputs().iter().zip(&got).enumerate() {
        let want = &want.get(*value).expect("a value").data;
        assert_eq!(want.len(), got.len());
        let scale = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
        for (i, (&w, &g)) in want.iter().zip(got).enumerate() {
            let own = f64::from(plain[port][i]);
            let error = (w - f64::from(g)).abs();
            // A comparison may have another result than the definition, if this also happens in the graph without
            // clusters.
            let close = error <= 2e-5 * scale || (f64::from(g) - own).abs() <= 2e-5 * scale;
            assert!(
                close,
                "{what} output {port} [{i}]: {g}, not {w} (unclustered {own})\n{report}"
            );
        }
    }
    programs
}

#[test]
fn random_graphs_compute_the_same_in_clusters() {
    let mut rng = SplitMix64::new(23);
    let programs: usize = (0..120)
        .map(|case| compare(&format!("case {case}"), &dag(&mut rng)))
        .sum();
    assert!(programs > 120, "{programs}");
}

fn large(name: &str, shape: &[usize], build: impl Fn(&mut Graph, &[usize]) -> Vec<meganeura_core::NodeId>) -> usize {
    let mut graph = Graph::new();
    let outputs = build(&mut graph, shape);
    graph.set_outputs(outputs);
    let mut rng = SplitMix64::new(3);
    let mut feeds = std::collections::HashMap::new();
    for node in graph.nodes().iter().filter(|n| !n.is_op()) {
        if let Some(name) = node.name.as_deref() {
            let len = node.outputs[0].numel();
            feeds.insert(
                name.to_owned(),
                (0..len).map(|_| f64::from((rng.unit() - 0.5) as f32)).collect(),
            );
        }
    }
    compare(&format!("{name} {shape:?}"), &Dag { graph, feeds })
}

#[test]
fn sizes_beyond_runs_and_tasks() {
    for shape in [
        [3, 1025],
        [1030, 3],
        [129, 257],
        [1, 70_000],
        [70_000, 1],
        [20_000, 3],
        [17, 4099],
    ] {
        let elementwise = large("elementwise", &shape, |g, s| {
            let (x, row, column) = (g.input("x", s), g.input("row", &[s[1]]), g.input("column", &[s[0], 1]));
            let a = g.add(x, row);
            let b = g.mul(a, column);
            let t = g.tanh(b);
            vec![t]
        });
        assert_eq!(elementwise, 1);
        for axes in [&[0][..], &[1], &[0, 1]] {
            large("fold", &shape, |g, s| {
                let (x, y) = (g.input("x", s), g.input("y", s));
                let product = g.mul(x, y);
                let (sum, top) = (g.sum(product, axes, false), g.tanh(x));
                let top = g.max(top, axes, true);
                vec![sum, top]
            });
        }
        let around = large("norms", &shape, |g, s| {
            let (x, r) = (g.input("x", s), g.input("r", s));
            let [weight, bias] = ["weight", "bias"].map(|name| g.input(name, &[s[1]]));
            let (sum, difference) = (g.add(x, r), g.sub(r, x));
            let norm = g.layer_norm(sum, weight, bias, 1e-2);
            let y = g.silu(norm);
            let root = g.rms_norm(difference, weight, 1e-2);
            let (mean, rstd) = (g.port(norm, 1), g.port(root, 1));
            let root = g.relu(root);
            let log = g.log_softmax(r, 1);
            let scaled = g.mul(log, x);
            let values = [sum, y, root, scaled].map(meganeura_core::Value::from);
            let all = [&values[..], &[mean, rstd]].concat();
            // A port can only be a graph output through a call.
            all.into_iter().map(|v| g.stop_gradient(v)).collect()
        });
        assert!(around >= 3, "{around}");
        large("turned", &shape, |g, s| {
            let (x, y) = (g.input("x", s), g.input("y", &[s[1], s[0]]));
            let turned = g.permute(y, &[1, 0]);
            let sum = g.add(x, turned);
            vec![sum]
        });
    }
}

#[test]
fn products_of_many_shapes_go_on_with_their_results() {
    for [m, k, n] in [
        [1, 40, 300],
        [300, 40, 1],
        [33, 7, 130],
        [200, 600, 300],
        [64, 64, 1030],
        [500, 9, 64],
    ] {
        for batch in [&[][..], &[3]] {
            let shape = [batch, &[m, k]].concat();
            let programs = large("product", &shape, |g, s| {
                let (x, w, bias) = (g.input("x", s), g.input("w", &[k, n]), g.input("bias", &[n]));
                let product = g.matmul(x, w);
                let sum = g.add(product, bias);
                let y = g.tanh(sum);
                let rest = g.input("rest", &[batch, &[m, n]].concat());
                let z = g.add(y, rest);
                vec![sum, z]
            });
            assert_eq!(programs, 1, "{shape:?}");
            // Each product has its own right operand, and the product is also a result.
            large("products", &shape, |g, s| {
                let (x, w) = (g.input("x", s), g.input("w", &[batch, &[n, k]].concat()));
                let product = g.matmul_bt(x, w);
                let y = g.relu(product);
                vec![y, product]
            });
        }
    }
}
