//! Tests of training runs of small networks.

use std::sync::Arc;

use meganeura::attrs::Attrs;
use meganeura::autodiff::try_differentiate;
use meganeura::backend::Device;
use meganeura::builder::Builder;
use meganeura::graph::NodeKind;
use meganeura::nn::layers::{BatchNorm, Conv2dConfig, Linear};
use meganeura::ops::Pool2dOptions;
use meganeura::plan::optimizer::Update;
use meganeura::reference::evaluate;
use meganeura::{Graph, NodeId, Session, registry};

use super::fixtures::{Model, NamedNumbers, Run, model};
use super::{CONSTANT_LIMIT, Feeds, ORACLE_LIMIT, bytes, device, differences, narrow, report, wide};

/// Number of steps of a training run. With accumulation there are fewer updates.
const STEPS: usize = 20;

/// Optimizers that every network is trained with.
const RUNS: [&str; 10] = [
    "sgd",
    "momentum",
    "nesterov",
    "adam",
    "adamw",
    "clip by norm",
    "clip by value",
    "accumulate",
    "groups",
    "everything",
];

const LOSS_LIMIT: f64 = 1e-4;
const VALUE_LIMIT: f64 = 1e-5;

// ---- the networks -------------------------------------------------------------------------------------

fn mlp() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[8, 8]);
    let labels = g.input("labels", &[8, 4]);
    let h = Linear::new(&mut g, "fc1", 8, 16).forward(&mut g, x);
    let h = g.relu(h);
    let logits = Linear::new(&mut g, "fc2", 16, 4).forward(&mut g, h);
    let loss = g.cross_entropy_loss(logits, labels);
    g.set_outputs(vec![loss]);
    g
}

fn cnn() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[4, 1, 8, 8]);
    let labels = g.input_u32("labels", &[4]);
    let conv = Conv2dConfig::new(1, 3, [3, 3]).padding([1, 1]).bias(false);
    let h = conv.build(&mut g, "conv").forward(&mut g, x);
    let h = BatchNorm::new(&mut g, "bn", 3).forward(&mut g, h);
    let h = g.relu(h);
    let h = g.max_pool2d(h, Pool2dOptions::square(2));
    let h = g.flatten(h);
    let logits = Linear::new(&mut g, "fc", 48, 3).forward(&mut g, h);
    let loss = g.cross_entropy_loss(logits, labels);
    g.set_outputs(vec![loss]);
    g
}

/// Calls a registered operator.
fn op<const N: usize>(g: &mut Graph, name: &str, attrs: Attrs, inputs: [NodeId; N]) -> NodeId {
    let op = registry::op(name).unwrap_or_else(|| panic!("no operator {name} is registered"));
    g.call(op, attrs, inputs.map(Into::into).to_vec())
}

/// Returns `x` times the weight with this name.
fn project(g: &mut Graph, x: NodeId, name: &str, shape: [usize; 2]) -> NodeId {
    let w = g.parameter(name, &shape);
    g.matmul(x, w)
}

fn rms_norm(g: &mut Graph, x: NodeId, name: &str) -> NodeId {
    let w = g.parameter(name, &[16]);
    op(g, "core.rms_norm", Attrs::new().with("eps", 1e-5f32), [x, w])
}

fn attention(g: &mut Graph, x: NodeId, layer: &str) -> NodeId {
    let turn = |g: &mut Graph, x| {
        let attrs = Attrs::new()
            .with("theta", 10_000.0)
            .with("offset", 0)
            .with("head_dim", 8);
        op(g, "core.rope", attrs.with("inverse", false), [x])
    };
    let q = project(g, x, &format!("{layer}.q"), [16, 16]);
    let k = project(g, x, &format!("{layer}.k"), [16, 8]);
    let v = project(g, x, &format!("{layer}.v"), [16, 8]);
    let (q, k) = (turn(g, q), turn(g, k));
    let attrs = Attrs::new()
        .with("num_heads", 2)
        .with("num_kv_heads", 1)
        .with("head_dim", 8)
        .with("causal", true)
        .with("window", 0)
        .with("scale", 0.375);
    let a = op(g, "core.attention", attrs, [q, k, v]);
    project(g, a, &format!("{layer}.o"), [16, 16])
}

fn transformer() -> Graph {
    let mut g = Graph::new();
    let ids = g.input_u32("x", &[3, 5]);
    let labels = g.input_u32("labels", &[3, 5]);
    let table = g.parameter("embedding", &[13, 16]);
    let mut x = g.embedding(ids, table);
    for layer in ["layer0", "layer1"] {
        let h = rms_norm(&mut g, x, &format!("{layer}.norm1"));
        let h = attention(&mut g, h, layer);
        x = g.add(x, h);
        let h = rms_norm(&mut g, x, &format!("{layer}.norm2"));
        let gate = project(&mut g, h, &format!("{layer}.gate"), [16, 20]);
        let up = project(&mut g, h, &format!("{layer}.up"), [16, 20]);
        let h = op(&mut g, "core.swiglu", Attrs::new(), [gate, up]);
        let h = project(&mut g, h, &format!("{layer}.down"), [20, 16]);
        x = g.add(x, h);
    }
    let x = rms_norm(&mut g, x, "norm");
    let logits = Linear::new(&mut g, "head", 16, 13).forward(&mut g, x);
    let loss = g.cross_entropy_loss(logits, labels);
    g.set_outputs(vec![loss]);
    g
}

// ---- two ways to train --------------------------------------------------------------------------------

/// Returns the update of all parameters as a graph, whose inputs are the parameters' gradients.
fn update_graph(update: &Update, trained: &Graph) -> Graph {
    let mut g = Graph::new();
    let mut parameters = Vec::new();
    for &(leaf, _) in trained.gradients() {
        let name = trained.nodes()[leaf.index()].name.as_deref().expect("a name");
        let shape = trained.shape(leaf);
        let gradient = g.input(&gradient_of(name), shape);
        parameters.push((name, g.parameter(name, shape), gradient.into()));
    }
    update.build(&mut g, &parameters);
    g
}

fn gradient_of(name: &str) -> String {
    format!("gradient of {name}")
}

fn train_by_oracle(graph: &Graph, model: &Model, run: &Run) -> meganeura::Result<NamedNumbers> {
    let full = try_differentiate(graph)?;
    let updates = update_graph(&run.update, &full);
    let every = run.update.accumulate as usize;
    let mut feeds: Feeds = model.initial.iter().cloned().collect();
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let [x, labels] = model.batches[step % every].clone();
        feeds.extend([("x".to_owned(), x), ("labels".to_owned(), labels)]);
        let values = evaluate(&full, &feeds)?;
        losses.extend(&values.get(full.outputs()[0]).expect("evaluated").data);
        for &(leaf, gradient) in full.gradients() {
            let name = gradient_of(full.nodes()[leaf.index()].name.as_deref().expect("a name"));
            let new = &values.get(gradient).expect("evaluated").data;
            let average = feeds.entry(name).or_default();
            if step % every == 0 {
                *average = vec![0.0; new.len()];
            }
            average.iter_mut().zip(new).for_each(|(a, g)| *a += g / every as f64);
        }
        feeds.extend(values.written);
        if (step + 1) % every == 0 {
            let mut set = |name: &str, value| drop(feeds.insert(name.to_owned(), vec![value]));
            run.update.scalars(((step + 1) / every) as u64, &mut set);
            feeds.extend(evaluate(&updates, &feeds)?.written);
        }
    }
    let mut named = vec![("loss".to_owned(), losses)];
    let initial = model.initial.iter();
    named.extend(initial.map(|(name, _)| (name.clone(), feeds[name].clone())));
    Ok(named)
}

fn is_parameter(graph: &Graph, name: &str) -> bool {
    let leaf = graph
        .leaf_named(name)
        .unwrap_or_else(|| panic!("no {name} in the graph"));
    matches!(graph.nodes()[leaf.index()].kind, NodeKind::Parameter { .. })
}

fn set_input(session: &mut Session, graph: &Graph, name: &str, data: &[f64]) -> meganeura::Result<()> {
    let leaf = graph.leaf_named(name).expect("an input");
    session.try_set_input_bytes(name, &bytes(graph.dtype(leaf), data))
}

fn train_by_session(
    graph: &Graph,
    model: &Model,
    run: &Run,
    device: &Arc<dyn Device>,
) -> meganeura::Result<NamedNumbers> {
    let (mut session, _) = Builder::on(device.clone()).build(graph)?;
    session.try_set_optimizer(run.update.clone())?;
    for (name, data) in &model.initial {
        if is_parameter(graph, name) {
            session.try_set_parameter(name, &narrow(data))?;
        } else {
            session.try_set_state(name, &narrow(data))?;
        }
    }
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let [x, labels] = &model.batches[step % run.update.accumulate as usize];
        set_input(&mut session, graph, "x", x)?;
        set_input(&mut session, graph, "labels", labels)?;
        session.try_step()?;
        losses.push(session.try_read_loss()?);
    }
    let mut named = vec![("loss".to_owned(), wide(&losses))];
    for (name, _) in &model.initial {
        let data = if is_parameter(graph, name) {
            session.try_read_parameter(name)?
        } else {
            session.try_read_state(name)?
        };
        named.push((name.clone(), wide(&data)));
    }
    Ok(named)
}

// ---- tests --------------------------------------------------------------------------------------------

/// Trains a network with every optimizer, and reports results of `train` that exceed the limits.
fn check(
    name: &str,
    graph: &Graph,
    train: impl Fn(&Graph, &Model, &Run) -> meganeura::Result<NamedNumbers>,
    limit: impl Fn(&str) -> f64 + Copy,
) {
    let model = model(name);
    let found: Vec<&str> = model.runs.iter().map(|run| run.name.as_str()).collect();
    assert_eq!(found, RUNS, "runs of {name}");
    let mut failures = Vec::new();
    for run in &model.runs {
        let name = format!("{} {}", model.name, run.name);
        match train(graph, &model, run) {
            Ok(found) => failures.extend(differences(&name, &found, &run.expected, limit)),
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    report(&failures);
}

fn check_by_oracle(name: &str, graph: &Graph) {
    // Only the running statistics depend on a rounded constant, once in each step.
    let limit = |name: &str| {
        if name.contains("running") {
            STEPS as f64 * CONSTANT_LIMIT
        } else {
            ORACLE_LIMIT
        }
    };
    check(name, graph, train_by_oracle, limit);
}

fn check_on_the_cpu(name: &str, graph: &Graph) {
    let device = device();
    let train = |g: &Graph, model: &Model, run: &Run| train_by_session(g, model, run, &device);
    check(name, graph, train, |name| {
        if name == "loss" { LOSS_LIMIT } else { VALUE_LIMIT }
    });
}

#[test]
fn rules_are_those_of_their_runs() {
    for run in &model("mlp").runs[..5] {
        assert_eq!(run.update.rule.kind(), run.name);
    }
}

#[test]
fn an_mlp_agrees_in_the_oracle() {
    check_by_oracle("mlp", &mlp());
}

#[test]
fn an_mlp_agrees_on_the_cpu() {
    check_on_the_cpu("mlp", &mlp());
}

#[test]
fn a_cnn_agrees_in_the_oracle() {
    check_by_oracle("cnn", &cnn());
}

#[test]
fn a_cnn_agrees_on_the_cpu() {
    check_on_the_cpu("cnn", &cnn());
}

#[test]
fn a_transformer_agrees_in_the_oracle() {
    check_by_oracle("transformer", &transformer());
}

#[test]
fn a_transformer_agrees_on_the_cpu() {
    check_on_the_cpu("transformer", &transformer());
}
