//! Tests of clustering: graphs keep their values, and calls that can be fused are fused.

use crate::dag::dag;
use meganeura_compiler::cluster::{ClusterReport, cluster};
use meganeura_compiler::rewrite::{SimulatedDevice, Target};
use meganeura_core::autodiff::try_differentiate;
use meganeura_core::backend::KernelDesc;
use meganeura_core::graph::{Graph, NodeKind};
use meganeura_core::ops::FUSED;
use meganeura_core::program::{Program, Slot, Step};
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::evaluate;
use meganeura_core::{DType, Shape, TensorType, registry};

fn gpu() -> SimulatedDevice {
    SimulatedDevice::discrete_gpu()
}

fn clustered(graph: &Graph) -> (Graph, ClusterReport) {
    cluster(graph, &gpu()).expect("it clusters")
}

fn calls(graph: &Graph) -> Vec<String> {
    let ops = graph.nodes().iter().filter_map(|n| match &n.kind {
        NodeKind::Op { op, attrs } if *op == FUSED => Some(attrs.program("program").expect("a program").to_string()),
        NodeKind::Op { op, .. } => Some(op.name().to_owned()),
        _ => None,
    });
    ops.collect()
}

#[test]
fn random_graphs_mean_what_they_meant() {
    let mut rng = SplitMix64::new(11);
    let (mut fused, mut several) = (0, 0);
    for case in 0..300 {
        let dag = dag(&mut rng);
        dag.graph.verify().expect("a graph");
        let (new, report) = clustered(&dag.graph);
        let (again, _) = clustered(&dag.graph);
        assert_eq!(calls(&new), calls(&again), "case {case}");
        assert!(new.nodes().len() <= dag.graph.nodes().len());
        fused += report.clusters.len();
        let want = evaluate(&dag.graph, &dag.feeds).expect("an evaluation");
        let got = evaluate(&new, &dag.feeds).expect("an evaluation");
        for (&a, &b) in dag.graph.outputs().iter().zip(new.outputs()) {
            let (a, b) = (want.get(a).expect("a value"), got.get(b).expect("a value"));
            assert_eq!(a.ty, b.ty, "case {case}");
            assert!(
                a.data
                    .iter()
                    .zip(&b.data)
                    .all(|(x, y)| (x - y).abs() <= 1e-9 * x.abs().max(1.0)),
                "case {case}: {report}"
            );
        }
        several += new.nodes().iter().filter(|n| n.is_op() && n.outputs.len() > 1).count();
    }
    assert!(
        fused > 300 && several > 30,
        "{fused} clusters, {several} with several results"
    );
}

/// Returns a graph of a layer with its gradients.
fn layer() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[6, 5]);
    let w = g.parameter("w", &[5, 4]);
    let b = g.parameter("b", &[4]);
    let product = g.matmul(x, w);
    let sum = g.add(product, b);
    let y = g.relu(sum);
    let dropped = g.dropout(y, 0.5);
    let loss = g.mean_all(dropped);
    g.set_outputs(vec![loss]);
    try_differentiate(&g.try_toposort().expect("sorted")).expect("differentiable")
}

#[test]
fn gradients_and_random_numbers_stay() {
    let graph = layer();
    let (new, report) = clustered(&graph);
    assert!(!report.clusters.is_empty());
    let mut feeds = std::collections::HashMap::new();
    let mut rng = SplitMix64::new(5);
    for node in graph.nodes().iter().filter(|n| !n.is_op()) {
        if let Some(name) = node.name.as_deref() {
            let len = node.outputs[0].numel();
            let value = |rng: &mut SplitMix64| match node.outputs[0].dtype {
                DType::F32 => rng.unit() - 0.5,
                _ => rng.below(1000) as f64,
            };
            feeds.insert(name.to_owned(), (0..len).map(|_| value(&mut rng)).collect());
        }
    }
    let want = evaluate(&graph, &feeds).expect("an evaluation");
    let got = evaluate(&new, &feeds).expect("an evaluation");
    assert_eq!(graph.gradients().len(), 2);
    assert_eq!(new.gradients().len(), 2);
    for ((leaf, a), (new_leaf, b)) in graph.gradients().iter().zip(new.gradients()) {
        let name = |g: &Graph, id: meganeura_core::NodeId| g.nodes()[id.index()].name.clone();
        assert_eq!(name(&graph, *leaf), name(&new, *new_leaf));
        assert_eq!(want.get(*a).expect("a value").data, got.get(*b).expect("a value").data);
    }
}

#[test]
fn a_product_takes_its_bias_and_activation_along() {
    let mut g = Graph::new();
    let (x, w, b) = (g.input("x", &[6, 5]), g.parameter("w", &[5, 4]), g.parameter("b", &[4]));
    let product = g.matmul(x, w);
    let sum = g.add(product, b);
    let y = g.relu(sum);
    let y = g.named(y, "activation");
    g.set_outputs(vec![y]);
    let (new, report) = clustered(&g);
    assert_eq!(
        calls(&new),
        ["matmul(0, 1, transpose_a=false, transpose_b=false); add(%0, 2); relu(%1) -> %2"]
    );
    assert_eq!(report.clusters.len(), 1);
    assert_eq!(report.clusters[0].calls, 3);
    assert!(report.clusters[0].saving_ps > 0);
    assert!(report.clusters[0].label.contains("activation"), "{report}");
}

/// A product may compute its first operand in its prologue, also through views.
#[test]
fn a_product_takes_a_gate_along() {
    let mut g = Graph::new();
    let packed = g.input("packed", &[1, 2, 8]);
    let (w, other) = (g.parameter("w", &[8, 3]), g.input("other", &[3, 3]));
    let gated = g.swiglu_concat(packed);
    let row = g.reshape(gated, &[1, 8]);
    let y = g.matmul(row, w);
    let right = g.exp(other);
    let z = g.matmul(y, right);
    g.set_outputs(vec![z]);
    let (new, report) = clustered(&g);
    let mut calls = calls(&new);
    calls.sort();
    assert_eq!(
        calls,
        [
            "core.exp",
            "core.matmul",
            "swiglu_concat(0); reshape(%0, shape=[1, 8]); matmul(%1, 1, transpose_a=false, transpose_b=false) -> %2"
        ],
        "{report}"
    );
}

/// A product widens operands that are half-precision data in memory when it reads them, unless the widened values have
/// other users. It does not widen operands of other types, or computed operands.
#[test]
fn a_product_widens_its_operands() {
    for (dtype, shared, expected) in [
        (DType::F16, false, 0),
        (DType::BF16, false, 0),
        (DType::F16, true, 1),
        (DType::U32, false, 1),
    ] {
        let mut g = Graph::new();
        let (a, b) = (
            g.input_typed("a", &[8, 64], dtype),
            g.input_typed("b", &[64, 16], dtype),
        );
        let [a, b] = [a, b].map(|x| g.cast(x, DType::F32));
        let product = g.matmul(a, b);
        g.set_outputs(if shared { vec![product, b] } else { vec![product] });
        let (new, report) = clustered(&g);
        let casts = calls(&new).iter().filter(|call| *call == "core.cast").count();
        assert_eq!(casts, expected, "{dtype}, {shared}: {report}");
    }
}

/// An operand of a product stays a separate call if it has other users. It is fused if both operands of the product are
/// computed from it.
#[test]
fn what_is_multiplied_may_be_read_twice() {
    for both in [false, true] {
        let mut g = Graph::new();
        let (x, w) = (g.input("x", &[4, 4]), g.parameter("w", &[4, 4]));
        let t = g.exp(x);
        let y = if both {
            let turned = g.permute(t, &[1, 0]);
            g.matmul(t, turned)
        } else {
            let y = g.matmul(t, w);
            g.matmul(t, y)
        };
        g.set_outputs(vec![y]);
        let (new, report) = clustered(&g);
        let programs = calls(&new).iter().filter(|c| c.contains("matmul(%")).count();
        assert_eq!(programs, usize::from(both), "{report}");
    }
}

#[test]
fn a_reduction_gets_what_it_alone_reads() {
    let build = |needed: bool| {
        let mut g = Graph::new();
        let (a, b) = (g.input("a", &[6, 5]), g.input("b", &[5, 8]));
        let weights = g.input("weights", &[6, 8]);
        let product = g.matmul(a, b);
        let weighted = g.mul(product, weights);
        let split = g.reshape(weighted, &[6, 2, 4]);
        let sums = g.sum(split, &[-1], false);
        g.set_outputs(if needed { vec![sums, product] } else { vec![sums] });
        g
    };
    // The product is written in any case, so the weighted one need not be.
    let (new, report) = clustered(&build(true));
    let found = calls(&new);
    assert_eq!(found.len(), 2, "{found:?}\n{report}");
    assert_eq!(found[0], "core.matmul");
    assert!(found[1].contains("mul") && found[1].contains("sum"), "{found:?}");
    // Either of the two is written.
    let (new, _) = clustered(&build(false));
    let found = calls(&new);
    assert_eq!(found.last().map(String::as_str), Some("core.sum"), "{found:?}");
    assert!(found[0].contains("matmul") && found[0].contains("mul("), "{found:?}");
}

#[test]
fn norms_take_along_what_stands_around_them() {
    let mut g = Graph::new();
    let (x, r) = (g.input("x", &[6, 5]), g.input("r", &[6, 5]));
    let weight = g.parameter("weight", &[5]);
    let sum = g.add(x, r);
    let norm = g.rms_norm(sum, weight, 1e-5);
    let y = g.silu(norm);
    let y = g.sum_all(y);
    g.set_outputs(vec![y]);
    let one_call = "add(0, 1); rms_norm(%0, 2, eps=0.000009999999747378752); silu(%1) -> %2";
    assert_eq!(calls(&clustered(&g).0)[0], one_call);
    // Its statistics are a result where the gradient needs them, and so is the sum.
    let graph = try_differentiate(&g.try_toposort().expect("sorted")).expect("differentiable");
    let all = calls(&clustered(&graph).0);
    assert!(all[1].ends_with("-> %0, %1.1, %2, %8"), "{all:?}");
}

#[test]
fn views_inside_a_cluster_moved_with_it() {
    let mut g = Graph::new();
    let (x, y) = (g.input("x", &[6, 5]), g.input("y", &[5, 6]));
    let a = g.relu(x);
    let turned = g.permute(a, &[1, 0]);
    let sum = g.add(turned, y);
    g.set_outputs(vec![sum]);
    let (new, report) = clustered(&g);
    assert_eq!(report.clusters.len(), 1);
    for id in [a, turned, sum] {
        assert_eq!(report.moved.get(&id), Some(&report.clusters[0].node), "{id}");
    }
    assert_eq!(new.outputs()[0].node, report.clusters[0].node);
}

#[test]
fn rows_are_turned_where_they_are_a_part_of_others() {
    let build = |shared: bool| {
        let mut g = Graph::new();
        let x = g.input("x", &[5, 24]);
        let part = g.narrow(x, -1, 8, 12);
        let turned = g.rope(part, 100.0, 6);
        let y = g.relu(turned);
        g.set_outputs(if shared { vec![y, part] } else { vec![y] });
        g
    };
    let graph = build(false);
    let (new, report) = clustered(&graph);
    let found = calls(&new);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0].starts_with("narrow(0, axis=-1, start=8, length=12); rope(%0"),
        "{found:?}"
    );
    assert_eq!(found[1], "core.relu");
    assert_eq!((report.clusters.len(), report.clusters[0].calls), (1, 2));
    let values: Vec<f64> = (0..5 * 24).map(|i| f64::from(i) / 7.0 - 8.0).collect();
    let feeds = [("x", &values[..])]
        .map(|(name, data)| (name.to_owned(), data.to_vec()))
        .into();
    let [want, got] = [&graph, &new].map(|g| {
        let all = evaluate(g, &feeds).expect("an evaluation");
        all.get(g.outputs()[0]).expect("a value").data.clone()
    });
    assert_eq!(want, got);
    // Values with other users are in memory in any case.
    let (new, _) = clustered(&build(true));
    assert_eq!(calls(&new), ["core.narrow", "core.rope", "core.relu"]);
}

#[test]
fn no_path_leaves_a_cluster_and_comes_back() {
    let mut g = Graph::new();
    let x = g.input("x", &[4, 4]);
    let a = g.relu(x);
    let middle = g.cumsum(a, -1, false, false);
    let b = g.tanh(middle);
    let y = g.add(a, b);
    g.set_outputs(vec![y]);
    let (new, _) = clustered(&g);
    assert_eq!(calls(&new), ["core.relu", "core.cumsum", "tanh(0); add(1, %0) -> %1"]);
}

#[test]
fn clusters_do_not_wait_for_each_other() {
    let mut g = Graph::new();
    let (x, y) = (g.input("x", &[64, 64]), g.input("y", &[64, 64]));
    let v1 = g.relu(x);
    // Before `a`, but after it once `v1` and `v2`, which waits for `a`, are fused.
    let u = g.cumsum(v1, -1, false, false);
    let a = g.tanh(y);
    let o = g.cumsum(a, -1, false, false);
    let v2 = g.mul(v1, o);
    let b = g.add(a, u);
    g.set_outputs(vec![u, v2, b]);
    let (new, report) = clustered(&g);
    assert_eq!(report.clusters.len(), 1, "{report}");
    new.verify().expect("no cycle");
}

#[test]
fn a_value_that_is_used_elsewhere_is_a_second_result() {
    let mut g = Graph::new();
    let x = g.input("x", &[64, 64]);
    let a = g.tanh(x);
    let b = g.square(a);
    let other = g.cumsum(a, -1, false, false);
    g.set_outputs(vec![b, other]);
    let (new, _) = clustered(&g);
    assert_eq!(calls(&new), ["tanh(0); square(%0) -> %0, %1", "core.cumsum"]);
}

#[test]
fn calls_join_across_views() {
    let mut g = Graph::new();
    let x = g.input("x", &[6, 4]);
    let a = g.tanh(x);
    let turned = g.permute(a, &[1, 0]);
    let flat = g.reshape(turned, &[2, 12]);
    let bias = g.input("bias", &[12]);
    let y = g.add(flat, bias);
    g.set_outputs(vec![y]);
    let (new, _) = clustered(&g);
    assert_eq!(calls(&new).len(), 1, "{:?}", calls(&new));
}

/// A device whose only fused kernels have two steps.
struct TwoStepDevice;

impl Target for TwoStepDevice {
    fn cost_model(&self) -> meganeura_core::backend::CostModel {
        gpu().0
    }

    fn launches(&self, kernel: &KernelDesc) -> Option<u32> {
        let fits = kernel.attrs.program("program").is_ok_and(|p| p.steps().len() <= 2);
        fits.then_some(1)
    }
}

#[test]
fn the_device_decides_what_it_can_run() {
    let mut g = Graph::new();
    let mut y = g.input("x", &[8]);
    for _ in 0..6 {
        y = g.tanh(y);
    }
    g.set_outputs(vec![y]);
    let (new, _) = cluster(&g, &TwoStepDevice).expect("it clusters");
    assert_eq!(calls(&new).len(), 3);
}

fn step(name: &str, inputs: &[Slot]) -> Step {
    Step {
        op: registry::op(name).expect("an operator"),
        attrs: meganeura_core::attrs::Attrs::new(),
        inputs: inputs.to_vec(),
    }
}

#[test]
fn programs_are_checked_where_they_are_made() {
    let relu = |slot| vec![step("core.relu", &[slot])];
    let refused = [
        Program::new(1, relu(Slot::Step(0)), vec![Slot::Step(0)]),
        Program::new(1, relu(Slot::Operand(1)), vec![Slot::Step(0)]),
        Program::new(1, relu(Slot::Operand(0)), vec![Slot::Step(1)]),
        Program::new(1, relu(Slot::Operand(0)), vec![Slot::Port { step: 0, port: 0 }]),
        Program::new(1, relu(Slot::Operand(0)), vec![Slot::Port { step: 0, port: 1 }]),
        Program::new(1, relu(Slot::Operand(0)), vec![Slot::Port { step: 1, port: 1 }]),
        Program::new(1, relu(Slot::Operand(0)), vec![Slot::Operand(0)]),
        Program::new(1, relu(Slot::Operand(0)), vec![Slot::Step(0), Slot::Step(0)]),
        Program::new(1, relu(Slot::Operand(0)), vec![]),
        Program::new(1, vec![], vec![Slot::Step(0)]),
        Program::new(0, relu(Slot::Operand(0)), vec![Slot::Step(0)]),
        Program::new(1, vec![step("core.add", &[Slot::Operand(0)])], vec![Slot::Step(0)]),
        Program::new(
            2,
            vec![step("core.assign", &[Slot::Operand(0), Slot::Operand(1)])],
            vec![Slot::Step(0)],
        ),
    ];
    for (i, program) in refused.into_iter().enumerate() {
        assert!(program.is_err(), "{i}");
    }
    let inner = Program::new(1, relu(Slot::Operand(0)), vec![Slot::Step(0)]).expect("a program");
    let mut nested = step("core.fused", &[Slot::Operand(0)]);
    nested.attrs = nested.attrs.with("program", inner);
    let error = Program::new(1, vec![nested], vec![Slot::Step(0)]).expect_err("nested");
    assert!(error.contains("another"), "{error}");
}

#[test]
fn programs_name_further_results_that_exist() {
    let norm = |port| {
        let mut norm = step("core.rms_norm", &[Slot::Operand(0), Slot::Operand(1)]);
        norm.attrs = norm.attrs.with("eps", 0.5);
        Program::new(2, vec![norm], vec![Slot::Step(0), Slot::Port { step: 0, port }])
    };
    let operands = [[4, 3].as_slice(), &[3]].map(|s| TensorType::f32(Shape::new(s).expect("a shape")));
    let types = norm(1).expect("a program").infer(&operands).expect("types");
    assert_eq!(
        types,
        [[[4, 3].as_slice(), &[4, 1]].map(|s| TensorType::f32(Shape::new(s).expect("a shape")))]
    );
    let error = norm(2)
        .expect("a program")
        .infer(&operands)
        .expect_err("no such result");
    assert!(error.contains("2 results"), "{error}");
    let text = serde_json::to_string(&norm(1).expect("a program")).expect("text");
    assert_eq!(
        serde_json::from_str::<Program>(&text).expect("a program"),
        norm(1).expect("a program")
    );
}

#[test]
fn programs_survive_storage_and_bad_ones_are_refused() {
    let steps = vec![
        step("core.add", &[Slot::Operand(0), Slot::Operand(1)]),
        step("core.relu", &[Slot::Step(0)]),
    ];
    let program = Program::new(2, steps, vec![Slot::Step(1)]).expect("a program");
    let text = serde_json::to_string(&program).expect("text");
    assert_eq!(serde_json::from_str::<Program>(&text).expect("a program"), program);
    for (from, to) in [
        ("core.relu", "core.nothing"),
        ("{\"Step\":0}", "{\"Step\":7}"),
        ("\"operands\":2", "\"operands\":1"),
    ] {
        let bad = text.replace(from, to);
        assert_ne!(bad, text);
        assert!(serde_json::from_str::<Program>(&bad).is_err(), "{bad}");
    }
}
