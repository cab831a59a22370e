//! Small models that together cover training: dense layers, both kinds of labels, convolution,
//! normalisation with running statistics, pooling, dropout, embeddings, residual connections.

use meganeura_core::DType;
use meganeura_core::graph::{Graph, NodeId, NodeKind};
use meganeura_core::ops::sample::{Fill, SampleInput};
use meganeura_core::ops::{Conv2dOptions, Pool2dOptions};
use meganeura_core::random::SplitMix64;

use crate::harness::Feeds;

/// A model whose first output is its loss.
pub(super) struct Model {
    pub(super) graph: Graph,
    /// Parameters and states before the first step.
    pub(super) initial: Feeds,
    /// Inputs of a step.
    pub(super) inputs: fn(u64) -> Feeds,
}

/// A model by name.
#[derive(Clone, Copy)]
pub(super) struct NamedModel {
    pub(super) name: &'static str,
    pub(super) build: fn() -> Model,
}

pub(super) fn all() -> Vec<NamedModel> {
    vec![
        NamedModel {
            name: "mlp",
            build: mlp,
        },
        NamedModel {
            name: "mlp with class ids",
            build: mlp_with_ids,
        },
        NamedModel {
            name: "convolutions",
            build: convolutions,
        },
        NamedModel {
            name: "residual block",
            build: residual_block,
        },
    ]
}

fn values(seed: u64, input: SampleInput) -> Vec<f64> {
    input.values(&mut SplitMix64::new(seed))
}

/// Fills every parameter that has no value yet with different small numbers (norm weights: around one).
fn initial(graph: &Graph) -> Feeds {
    let mut feeds = Feeds::new();
    for (seed, node) in graph.nodes().iter().enumerate() {
        let (NodeKind::Parameter { .. } | NodeKind::State { .. }, Some(name)) = (&node.kind, node.name.as_deref())
        else {
            continue;
        };
        let shape = &node.outputs[0].shape;
        let (low, high) = if name.contains("scale") || name.contains("var") {
            (0.6, 1.4)
        } else {
            (-0.5, 0.5)
        };
        feeds.insert(
            name.to_owned(),
            values(seed as u64, SampleInput::range(shape, low, high)),
        );
    }
    feeds
}

fn dense(g: &mut Graph, name: &str, x: NodeId, from: usize, to: usize) -> NodeId {
    let w = g.parameter(&format!("{name}.weight"), &[from, to]);
    let b = g.parameter(&format!("{name}.bias"), &[to]);
    let y = g.matmul(x, w);
    g.bias_add(y, b)
}

fn finish(mut graph: Graph, loss: NodeId, inputs: fn(u64) -> Feeds) -> Model {
    graph.set_outputs(vec![loss]);
    Model {
        initial: initial(&graph),
        graph,
        inputs,
    }
}

fn mlp() -> Model {
    let mut g = Graph::new();
    let x = g.input("x", &[8, 6]);
    let labels = g.input("labels", &[8, 4]);
    let h = dense(&mut g, "hidden", x, 6, 10);
    let h = g.relu(h);
    let logits = dense(&mut g, "out", h, 10, 4);
    let loss = g.cross_entropy_loss(logits, labels);
    finish(g, loss, |step| {
        let labels = SampleInput::filled(DType::F32, &[8, 4], Fill::Probabilities);
        Feeds::from([
            ("x".to_owned(), values(100 + step, SampleInput::f32(&[8, 6]))),
            ("labels".to_owned(), values(200 + step, labels)),
        ])
    })
}

fn mlp_with_ids() -> Model {
    let mut g = Graph::new();
    let x = g.input("x", &[7, 5]);
    let ids = g.input_u32("ids", &[7]);
    let h = dense(&mut g, "hidden", x, 5, 9);
    let h = g.tanh(h);
    let logits = dense(&mut g, "out", h, 9, 3);
    let loss = g.cross_entropy_loss(logits, ids);
    finish(g, loss, |step| {
        Feeds::from([
            ("x".to_owned(), values(100 + step, SampleInput::f32(&[7, 5]))),
            ("ids".to_owned(), values(200 + step, SampleInput::below(&[7], 3))),
        ])
    })
}

fn convolutions() -> Model {
    let mut g = Graph::new();
    let x = g.input("x", &[4, 2, 8, 8]);
    let ids = g.input_u32("ids", &[4]);
    let kernel = g.parameter("conv.weight", &[4, 2, 3, 3]);
    let options = Conv2dOptions {
        padding: [1, 1],
        ..Conv2dOptions::default()
    };
    let h = g.conv2d(x, kernel, options);
    let scale = g.parameter("norm.scale", &[4]);
    let shift = g.parameter("norm.shift", &[4]);
    let mean = g.state("norm.mean", &[4]);
    let var = g.state_filled("norm.var", &[4], 1.0);
    let h = g.batch_norm(h, scale, shift, mean, var, 0.1, 1e-3);
    let h = g.relu(h);
    let h = g.max_pool2d(h, Pool2dOptions::square(2));
    let h = g.dropout(h, 0.25);
    let h = g.reshape(h, &[4, 64]);
    let logits = dense(&mut g, "out", h, 64, 3);
    let loss = g.cross_entropy_loss(logits, ids);
    finish(g, loss, |step| {
        Feeds::from([
            ("x".to_owned(), values(100 + step, SampleInput::f32(&[4, 2, 8, 8]))),
            ("ids".to_owned(), values(200 + step, SampleInput::below(&[4], 3))),
        ])
    })
}

fn residual_block() -> Model {
    let mut g = Graph::new();
    let ids = g.input_u32("ids", &[2, 5]);
    let target = g.input("target", &[2, 8]);
    let table = g.parameter("embedding", &[11, 8]);
    let x = g.embedding(ids, table);
    let scale = g.parameter("norm.scale", &[8]);
    let shift = g.parameter("norm.shift", &[8]);
    let h = g.layer_norm(x, scale, shift, 1e-5);
    let h = dense(&mut g, "up", h, 8, 16);
    let h = g.gelu_tanh(h);
    let h = dense(&mut g, "down", h, 16, 8);
    let x = g.add(x, h);
    let pooled = g.mean(x, &[1], false);
    let loss = g.mse_loss(pooled, target);
    finish(g, loss, |step| {
        Feeds::from([
            ("ids".to_owned(), values(100 + step, SampleInput::below(&[2, 5], 11))),
            ("target".to_owned(), values(200 + step, SampleInput::f32(&[2, 8]))),
        ])
    })
}
