//! Tests of fusing projections with rotations and cache writes: its conditions, and that values do not change.

use std::collections::HashMap;

use meganeura_compiler::optimize::{OptimizeReport, optimize_for};
use meganeura_compiler::rewrite::{Pass, Request, RewriteConfig, SimulatedDevice, Target};
use meganeura_core::backend::{CostModel, KernelDesc};
use meganeura_core::graph::{Graph, NodeId, Value};
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::evaluate;

const WRITE: &str = "core.fused_cache_write";
const FUSED: &str = "core.fused";
const ROPE: &str = "core.rope_dynamic_offset";

/// A GPU that supports projections of few rows with an epilogue: it runs every program with at most one product.
struct Gpu;

impl Target for Gpu {
    fn cost_model(&self) -> CostModel {
        SimulatedDevice::discrete_gpu().0
    }

    fn launches(&self, kernel: &KernelDesc) -> Option<u32> {
        let products = kernel.attrs.program("program").map_or(1, |program| {
            let is_product = |name: &str| name.contains("matmul");
            program.steps().iter().filter(|step| is_product(step.op.name())).count()
        });
        (products <= 1).then_some(1)
    }
}

fn optimized(graph: &Graph, target: &dyn Target) -> (Graph, OptimizeReport) {
    let config = RewriteConfig {
        // Rules would pack the projections of one row into one product.
        enabled: false,
        ..RewriteConfig::default()
    };
    let request = Request {
        pass: Pass::Inference,
        target,
        config: &config,
        group_of: &|_| 0,
    };
    optimize_for(graph, &request).expect("it optimizes")
}

fn count(graph: &Graph, name: &str) -> usize {
    let ops = graph.nodes().iter().filter_map(|n| n.op());
    ops.filter(|(op, _)| op.name() == name).count()
}

/// A graph with the row and the position of a decode step, to which projections are added.
struct Block {
    graph: Graph,
    x: Value,
    position: Value,
}

impl Block {
    fn new(rows: &[usize]) -> Self {
        let mut graph = Graph::new();
        let x = graph.input("x", &[rows, &[6]].concat()).into();
        let batch = &rows[..rows.len() - 1];
        let position = graph.input_u32("position", if batch.is_empty() { &[1] } else { batch });
        Block {
            graph,
            x,
            position: position.into(),
        }
    }

    fn projection(&mut self, name: &str) -> NodeId {
        let weight = self.graph.parameter(name, &[8, 6]);
        self.graph.matmul_bt(self.x, weight)
    }

    fn rotated(&mut self, x: NodeId) -> NodeId {
        self.graph.rope_dynamic_offset(x, 100.0, self.position, 4)
    }
}

/// Returns a block that rotates and writes keys, writes values, and rotates queries.
fn block() -> Block {
    let mut b = Block::new(&[2, 1]);
    let [k_cache, v_cache] = ["cache.k", "cache.v"].map(|name| b.graph.parameter(name, &[2, 7, 8]));
    let k = b.projection("k");
    let turned = b.rotated(k);
    let keys = b.graph.cache_write(turned, k_cache, b.position);
    b.graph.named(keys, "layer.0.keys");
    let v = b.projection("v");
    let values = b.graph.cache_write(v, v_cache, b.position);
    let q = b.projection("q");
    let q = b.rotated(q);
    let out = b.graph.cached_attention(q, keys, values, b.position, 2, 2, 4);
    b.graph.set_outputs(vec![out, keys, values]);
    b
}

fn assert_same(graph: &Graph, new: &Graph) {
    let mut rng = SplitMix64::new(3);
    let mut feeds: HashMap<String, Vec<f64>> = HashMap::new();
    for node in graph.nodes().iter().filter(|node| node.is_named_leaf()) {
        let name = node.name.as_deref().expect("a name");
        let values = (0..node.outputs[0].numel()).map(|i| match name {
            "position" => [3.0, 1.0][i % 2],
            "slots" => [5.0, 2.0, 5.0, 6.0][i % 4],
            _ => rng.unit() - 0.5,
        });
        feeds.insert(name.to_owned(), values.collect());
    }
    let [want, got] = [graph, new].map(|g| {
        let values = evaluate(g, &feeds).expect("an evaluation");
        let outputs = g
            .outputs()
            .iter()
            .flat_map(|&v| values.get(v).expect("a value").data.clone());
        outputs.collect::<Vec<f64>>()
    });
    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-6;
    assert!(
        want.len() == got.len() && want.iter().zip(&got).all(close),
        "{want:?}\n{got:?}"
    );
}

#[test]
fn keys_values_and_queries_are_one_call_each() {
    let Block { graph, .. } = block();
    let (new, report) = optimized(&graph, &Gpu);
    assert_eq!((count(&new, WRITE), count(&new, FUSED)), (2, 1), "{report}");
    let apart = [ROPE, "core.cache_write", "core.matmul", "core.rope_cache_write"];
    assert!(apart.iter().all(|name| count(&new, name) == 0));
    let keys = report.clusters.iter().find(|c| c.label.contains("layer.0.keys"));
    let keys = keys.expect("it is reported");
    assert!(keys.program.starts_with("matmul(2, 3"), "{}", keys.program);
    assert!(keys.saving_ps > 0 && keys.calls == 3, "{keys:?}");
    assert_eq!(new.nodes()[keys.node.index()].op().expect("a call").0.name(), WRITE);
    assert_same(&graph, &new);
}

#[test]
fn rows_of_blocks_are_rotated_behind_views() {
    let mut b = Block::new(&[4, 1]);
    let slots = b.graph.input_u32("slots", &[4]);
    let cache = b.graph.parameter("cache", &[3, 2, 8]);
    let k = b.projection("k");
    let turned = b.rotated(k);
    let rows = b.graph.reshape(turned, &[4, 8]);
    let written = b.graph.paged_cache_write(rows, cache, slots);
    b.graph.set_outputs(vec![written]);
    let (new, report) = optimized(&b.graph, &Gpu);
    assert_eq!((count(&new, WRITE), count(&new, ROPE)), (1, 0), "{report}");
    assert_same(&b.graph, &new);
}

#[test]
fn they_stay_apart_where_they_must() {
    let writes = |b: &Block, target: &dyn Target| count(&optimized(&b.graph, target).0, WRITE);
    let written = |b: &mut Block, rows: NodeId| {
        let cache = b.graph.parameter("cache", &[2, 7, 8]);
        b.graph.cache_write(rows, cache, b.position)
    };
    let mut b = Block::new(&[2, 1]);
    let k = b.projection("k");
    let one = written(&mut b, k);
    b.graph.set_outputs(vec![one]);
    assert_eq!(writes(&b, &Gpu), 1);
    // The device has no such kernel.
    struct NoProjectionKernel;
    impl Target for NoProjectionKernel {
        fn cost_model(&self) -> CostModel {
            SimulatedDevice::discrete_gpu().0
        }
        fn launches(&self, kernel: &KernelDesc) -> Option<u32> {
            (kernel.name != WRITE).then_some(1)
        }
    }
    assert_eq!(writes(&b, &NoProjectionKernel), 0);
    // The projection is a result as well.
    b.graph.set_outputs(vec![one, k]);
    assert_eq!(writes(&b, &Gpu), 0);
    // The written value is not a projection.
    let mut b = Block::new(&[2, 1]);
    let rows = b.graph.input("rows", &[2, 1, 8]);
    let negated = b.graph.neg(rows);
    let one = written(&mut b, negated);
    b.graph.set_outputs(vec![one]);
    assert_eq!(writes(&b, &Gpu), 0);
    // The program would read the buffer that it writes.
    let mut b = Block::new(&[1]);
    let cache = b.graph.parameter("cache", &[6, 6]);
    let rows = b.graph.matmul_bt(b.x, cache);
    let one = b.graph.cache_write(rows, cache, b.position);
    b.graph.set_outputs(vec![one]);
    assert_eq!(writes(&b, &Gpu), 0);
    // The weight changes in the same step.
    let mut b = Block::new(&[2, 1]);
    let k = b.projection("k");
    let weight = b.graph.nodes()[k.index()].inputs[1];
    let other = b.graph.input("other", &[8, 6]);
    b.graph.assign(weight, other);
    let one = written(&mut b, k);
    b.graph.set_outputs(vec![one]);
    assert_eq!(writes(&b, &Gpu), 0);
}
