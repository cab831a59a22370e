//! Training runs of small networks.

use std::sync::Arc;

use meganeura::autodiff::try_differentiate;
use meganeura::backend::Device;
use meganeura::build::build_on;
use meganeura::graph::NodeKind;
use meganeura::nn::layers::{BatchNorm, Conv2dConfig, Linear};
use meganeura::ops::Pool2dOptions;
use meganeura::reference::evaluate;
use meganeura::{Graph, Mode, NodeId, Update};

use super::fixtures::{Model, Named, Run, models};
use super::{CONSTANT_LIMIT, Feeds, ORACLE_LIMIT, device, differences, narrow, report, wide};

/// Updates of a training run.
const STEPS: u64 = 20;

const TRAINING_LIMIT: f64 = 1e-4;

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

fn train_by_oracle(graph: &Graph, model: &Model, run: &Run) -> meganeura::Result<Named> {
    let mut g = try_differentiate(graph)?;
    let update = Update::from(run.optimizer.clone());
    let name = |leaf: NodeId| g.nodes()[leaf.index()].name.clone().unwrap_or_default();
    let named: Vec<_> = g.gradients().iter().map(|&(leaf, v)| (name(leaf), leaf, v)).collect();
    let parameters: Vec<_> = named.iter().map(|(name, leaf, v)| (&**name, *leaf, *v)).collect();
    update.build(&mut g, &parameters);
    let mut feeds: Feeds = model.initial.iter().cloned().collect();
    feeds.insert("x".into(), model.x.clone());
    feeds.insert("labels".into(), model.labels.clone());
    let mut losses = Vec::new();
    for step in 1..=STEPS {
        update.scalars(step, &mut |name, value| {
            drop(feeds.insert(name.to_owned(), vec![value]))
        });
        let values = evaluate(&g, &feeds)?;
        losses.extend(&values.get(g.outputs()[0]).expect("evaluated").data);
        feeds.extend(values.written);
    }
    let mut named = vec![("loss".to_owned(), losses)];
    named.extend(
        model
            .initial
            .iter()
            .map(|(name, _)| (name.clone(), feeds[name].clone())),
    );
    Ok(named)
}

fn is_parameter(graph: &Graph, name: &str) -> bool {
    let leaf = graph
        .leaf_named(name)
        .unwrap_or_else(|| panic!("no {name} in the graph"));
    matches!(graph.nodes()[leaf.index()].kind, NodeKind::Parameter { .. })
}

fn train_by_session(graph: &Graph, model: &Model, run: &Run, device: &Arc<dyn Device>) -> meganeura::Result<Named> {
    let optimizer = Some(run.optimizer.clone().into());
    let (mut session, _) = build_on(graph, device.clone(), Mode::Training, optimizer)?;
    for (name, data) in &model.initial {
        if is_parameter(graph, name) {
            session.try_set_parameter(name, &narrow(data))?;
        } else {
            session.try_set_state(name, &narrow(data))?;
        }
    }
    session.try_set_input("x", &narrow(&model.x))?;
    if model.name == "mlp" {
        session.try_set_input("labels", &narrow(&model.labels))?;
    } else {
        let ids: Vec<u32> = model.labels.iter().map(|&v| v as u32).collect();
        session.try_set_input_u32("labels", &ids)?;
    }
    let mut losses = Vec::new();
    for _ in 0..STEPS {
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

/// Runs all models with all optimizers and reports where the results of `train` are beyond the limits.
fn check_training(
    train: impl Fn(&Graph, &Model, &Run) -> meganeura::Result<Named>,
    limit: impl Fn(&str) -> f64 + Copy,
) {
    let mut covered = Vec::new();
    let mut failures = Vec::new();
    for model in models() {
        let graph = if model.name == "mlp" { mlp() } else { cnn() };
        for run in &model.runs {
            let name = format!("{} {}", model.name, run.name);
            assert_eq!(run.optimizer.kind(), run.name, "{name}: the settings make another rule");
            match train(&graph, &model, run) {
                Ok(found) => failures.extend(differences(&name, &found, &run.expected, limit)),
                Err(error) => failures.push(format!("{name}: {error}")),
            }
            covered.push(name);
        }
    }
    let rules = ["sgd", "momentum", "nesterov", "adam", "adamw"];
    let wanted = ["mlp", "cnn"].iter().flat_map(|m| rules.map(|r| format!("{m} {r}")));
    assert_eq!(covered, wanted.collect::<Vec<_>>());
    report(&failures);
}

#[test]
fn training_agrees_in_the_oracle() {
    // Only the running statistics depend on a rounded constant, once in each step.
    let limit = |name: &str| {
        if name.contains("running") {
            STEPS as f64 * CONSTANT_LIMIT
        } else {
            ORACLE_LIMIT
        }
    };
    check_training(train_by_oracle, limit);
}

#[test]
fn training_agrees_on_the_cpu() {
    let device = device();
    check_training(
        |g, model, run| train_by_session(g, model, run, &device),
        |_| TRAINING_LIMIT,
    );
}
