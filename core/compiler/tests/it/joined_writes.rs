//! Tests of fusing writes with the call that computes their operand: its conditions, and that values do not change.

use std::collections::HashMap;

use meganeura_compiler::optimize::{OptimizeReport, optimize_for};
use meganeura_compiler::rewrite::{Pass, Request, RewriteConfig, SimulatedDevice, Target};
use meganeura_core::backend::{CostModel, KernelDesc};
use meganeura_core::graph::{Graph, NodeId};
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::evaluate;

const JOINED: &str = "core.rope_cache_write";
const ROPE: &str = "core.rope_dynamic_offset";

/// A graph that rotates keys of two sequences and writes them into their caches, and writes values unchanged.
struct Keys {
    graph: Graph,
    turned: NodeId,
    written: NodeId,
}

fn keys() -> Keys {
    let mut graph = Graph::new();
    let position = graph.input_u32("position", &[2]);
    let k = graph.input("k", &[2, 3, 8]);
    let v = graph.input("v", &[2, 3, 8]);
    let [k_cache, v_cache] = ["cache.k", "cache.v"].map(|name| graph.parameter(name, &[2, 7, 8]));
    let turned = graph.rope_dynamic_offset(k, 100.0, position, 4);
    let written = graph.cache_write(turned, k_cache, position);
    graph.named(written, "layer.0");
    let values = graph.cache_write(v, v_cache, position);
    let sum = graph.add(written, values);
    graph.set_outputs(vec![sum]);
    Keys { graph, turned, written }
}

fn optimized(graph: &Graph, target: &dyn Target, config: &RewriteConfig) -> (Graph, OptimizeReport) {
    let request = Request {
        pass: Pass::Inference,
        target,
        config,
        group_of: &|_| 0,
    };
    optimize_for(graph, &request).expect("it optimizes")
}

fn count(graph: &Graph, name: &str) -> usize {
    let ops = graph.nodes().iter().filter_map(|n| n.op());
    ops.filter(|(op, _)| op.name() == name).count()
}

/// Returns `true` if any calls are joined.
fn joins(graph: &Graph) -> bool {
    let (new, report) = optimized(graph, &SimulatedDevice::discrete_gpu(), &RewriteConfig::default());
    let joined = count(&new, JOINED) > 0;
    assert_eq!(report.fusions.iter().any(|f| f.rule == JOINED), joined, "{report}");
    joined
}

#[test]
fn a_pair_becomes_one_call_that_means_the_same() {
    let Keys { graph, .. } = keys();
    let (new, report) = optimized(&graph, &SimulatedDevice::discrete_gpu(), &RewriteConfig::default());
    assert_eq!((count(&new, JOINED), count(&new, ROPE)), (1, 0));
    assert_eq!(count(&new, "core.cache_write"), 1);
    let fusion = report
        .fusions
        .iter()
        .find(|f| f.rule == JOINED)
        .expect("it is reported");
    assert_eq!(fusion.node_name, "layer.0");
    assert!(
        fusion.saving_ps > 0 && report.cost_before_ps > report.cost_after_ps,
        "{report}"
    );
    let place = fusion.node.expect("a place");
    let (op, _) = new.nodes()[place.index()].op().expect("a call");
    assert_eq!(op.name(), JOINED);

    let mut rng = SplitMix64::new(3);
    let mut numbers = |n: usize| (0..n).map(|_| rng.unit() - 0.5).collect::<Vec<f64>>();
    let mut feeds: HashMap<String, Vec<f64>> = HashMap::new();
    for (name, n) in [("k", 48), ("v", 48), ("cache.k", 112), ("cache.v", 112)] {
        feeds.insert(name.to_owned(), numbers(n));
    }
    for positions in [[0.0, 4.0], [3.0, 1.0]] {
        feeds.insert("position".to_owned(), positions.to_vec());
        let [want, got] = [&graph, &new].map(|g| {
            let values = evaluate(g, &feeds).expect("an evaluation");
            values.get(g.outputs()[0]).expect("a value").data.clone()
        });
        let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-6;
        assert!(
            want.len() == got.len() && want.iter().zip(&got).all(close),
            "{want:?}\n{got:?}"
        );
    }
}

#[test]
fn pairs_stay_apart_where_they_must() {
    assert!(joins(&keys().graph));
    // The intermediate value is a result, or has another user.
    let Keys {
        mut graph,
        turned,
        written,
    } = keys();
    graph.set_outputs(vec![written, turned]);
    assert!(!joins(&graph));
    let Keys {
        mut graph,
        turned,
        written,
    } = keys();
    let other = graph.neg(turned);
    graph.set_outputs(vec![written, other]);
    assert!(!joins(&graph));
    // The positions of the rotation differ from those of the write.
    let mut graph = Graph::new();
    let [at, by] = ["at", "by"].map(|name| graph.input_u32(name, &[1]));
    let k = graph.input("k", &[3, 8]);
    let cache = graph.parameter("cache", &[7, 8]);
    let turned = graph.rope_dynamic_offset(k, 100.0, by, 4);
    let written = graph.cache_write(turned, cache, at);
    graph.set_outputs(vec![written]);
    assert!(!joins(&graph));
    // The fused call would read the buffer that it writes.
    let mut graph = Graph::new();
    let position = graph.input_u32("position", &[1]);
    let cache = graph.parameter("cache", &[7, 8]);
    let same = graph.reshape(cache, &[7, 8]);
    let turned = graph.rope_dynamic_offset(same, 100.0, position, 4);
    let written = graph.cache_write(turned, cache, position);
    graph.set_outputs(vec![written]);
    assert!(!joins(&graph));
}

/// A device without a kernel for the joined call.
struct NoPairKernel;

impl Target for NoPairKernel {
    fn cost_model(&self) -> CostModel {
        SimulatedDevice::discrete_gpu().0
    }

    fn launches(&self, kernel: &KernelDesc) -> Option<u32> {
        (kernel.name != JOINED).then_some(1)
    }
}

#[test]
fn devices_and_settings_have_their_say() {
    let Keys { graph, .. } = keys();
    let (new, report) = optimized(&graph, &NoPairKernel, &RewriteConfig::default());
    assert_eq!((count(&new, JOINED), count(&new, ROPE)), (0, 1), "{report}");
    let off = RewriteConfig {
        enabled: false,
        ..RewriteConfig::default()
    };
    let (new, _) = optimized(&graph, &SimulatedDevice::discrete_gpu(), &off);
    assert_eq!(count(&new, JOINED), 0);
}
