//! Operators and training runs against numbers that PyTorch computed in `f64`.
//!
//! The fixtures are written by `scripts/verify-external/make_torch_fixtures.py`. Every case runs through the
//! oracle, which must agree to rounding errors of `f64`, and through a session on the CPU, to those of `f32`.
//!
//! Definitions differ in three places. The fixture leaves out the derivative of `pow` by the exponent where the
//! base is negative (0 here, NaN there) and that of `clamp` exactly at a limit (1 here; there 1 in release 2.12,
//! 0 in 2.15). It converts the offsets of `max_pool2d`, which count from the start of the tensor here and of the
//! plane there.

mod fixtures;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use meganeura::autodiff::try_differentiate;
use meganeura::backend::Device;
use meganeura::build::build_on;
use meganeura::cpu::CpuDevice;
use meganeura::graph::{NodeKind, Value};
use meganeura::nn::layers::{BatchNorm, Conv2dConfig, Linear};
use meganeura::ops::Pool2dOptions;
use meganeura::optimize::for_inference;
use meganeura::reference::evaluate;
use meganeura::registry;
use meganeura::{DType, Graph, Mode, NodeId, Update};

use fixtures::{Attrs, Case, Model, Named, Run, Tensor, cases, dtype, models, text};

/// Cases in the fixture: one that vanishes is noticed.
const CASES: usize = 165;
/// Operators without a counterpart in the fixture: random numbers are Meganeura's own, an assignment has
/// nothing to compute.
const NOT_COVERED: [&str; 3] = ["core.assign", "core.dropout", "core.random_bits"];
/// Operators that appear in gradients only, and have no builder method.
const IN_GRADIENTS: [&str; 1] = ["core.avg_pool2d_grad"];

/// Updates of a training run.
const STEPS: u64 = 20;

const ORACLE_LIMIT: f64 = 1e-9;
/// For the operators of `ROUNDED`.
const CONSTANT_LIMIT: f64 = 1e-7;
/// Operators whose definition or derivative contains a constant that is not exact in binary32. Constants of a
/// graph have the dtype of the operands, so `ln 2` or a mean's `1 / n` are rounded in the oracle too.
const ROUNDED: &[&str] = &[
    "log2",
    "exp2",
    "sin",
    "erf",
    "gelu_tanh",
    "gelu_erf",
    "mean",
    "mean_all",
    "mse_loss",
    "cross_entropy_loss",
    "layer_norm",
    "batch_norm",
];
const SESSION_LIMIT: f64 = 1e-5;
const TRAINING_LIMIT: f64 = 1e-4;

type Feeds = HashMap<String, Vec<f64>>;

// ---- from a case to a graph ---------------------------------------------------------------------------

/// Calls the method of that name, if it is one of the list, with the arguments in parentheses.
macro_rules! dispatch {
    ($graph:ident, $name:ident, $args:tt, [$($method:ident)*]) => {
        match $name {
            $(stringify!($method) => return Some(dispatch!(@call $graph, $method, $args)),)*
            _ => {}
        }
    };
    (@call $graph:ident, $method:ident, ($($arg:expr),*)) => { $graph.$method($($arg),*) };
}

/// Operators that take operands alone.
fn plain(g: &mut Graph, op: &str, x: &[NodeId]) -> Option<NodeId> {
    match *x {
        [a] => dispatch!(g, op, (a), [
            log2 exp2 sin reciprocal sqrt neg abs exp log rsqrt square tanh sigmoid relu softplus silu erf gelu_tanh
            gelu_erf sum_all mean_all flatten transpose
        ]),
        [a, b] => dispatch!(g, op, (a, b), [
            add sub mul div modulo pow max min less_than less_equal greater_than greater_equal equal not_equal embedding
            gather matmul matmul_at matmul_bt bias_add cross_entropy_loss mse_loss
        ]),
        [a, b, c] => dispatch!(g, op, (a, b, c), [select]),
        _ => {}
    }
    None
}

fn with_attrs(g: &mut Graph, op: &str, x: &[NodeId], attrs: &Attrs) -> NodeId {
    let shape = || attrs.ints::<usize>("shape");
    let reduced = || (attrs.ints::<i32>("axes"), attrs.0["keep_dims"] == true);
    let limits = || (attrs.ints::<usize>("starts"), attrs.ints::<usize>("ends"));
    match op {
        "leaky_relu" => g.leaky_relu(x[0], attrs.float("negative_slope")),
        "clamp" => g.clamp(x[0], attrs.float("low"), attrs.float("high")),
        "cast" => g.cast(x[0], dtype(&text(&attrs.0["to"]))),
        "stop_gradient" => {
            let fixed = g.stop_gradient(x[0]);
            g.mul(x[0], fixed)
        }
        "sum" => g.sum(x[0], &reduced().0, reduced().1),
        "mean" => g.mean(x[0], &reduced().0, reduced().1),
        "max_reduce" => g.max_reduce(x[0], &reduced().0, reduced().1),
        "argmax" => g.argmax(x[0], attrs.axis()),
        "softmax" => g.softmax(x[0], attrs.axis()),
        "log_softmax" => g.log_softmax(x[0], attrs.axis()),
        "reshape" => g.reshape(x[0], &shape()),
        "expand" => g.expand(x[0], &shape()),
        "permute" => g.permute(x[0], &attrs.ints::<u32>("axes")),
        "slice" => g.slice(x[0], &limits().0, &limits().1),
        "slice_strided" => g.slice_strided(x[0], &limits().0, &limits().1, &attrs.ints::<usize>("steps")),
        "concat" => g.concat(x, attrs.axis()),
        "pad" => {
            let widths = |name| attrs.ints::<usize>(name);
            g.pad(x[0], &widths("low"), &widths("high"), attrs.float("value"))
        }
        "scatter_add" => g.scatter_add(x[0], x[1], attrs.float("rows") as usize),
        "conv2d" => g.conv2d(x[0], x[1], attrs.conv()),
        "conv2d_input_grad" => g.conv2d_input_grad(x[0], x[1], attrs.pair("input_size"), attrs.conv()),
        "conv2d_weight_grad" => g.conv2d_weight_grad(x[0], x[1], attrs.pair("kernel_size"), attrs.conv()),
        "max_pool2d" => g.max_pool2d(x[0], attrs.pool()),
        "avg_pool2d" => g.avg_pool2d(x[0], attrs.pool()),
        "layer_norm" => g.layer_norm(x[0], x[1], x[2], attrs.float("eps")),
        "batch_norm" => {
            let (momentum, eps) = (attrs.float("momentum"), attrs.float("eps"));
            g.batch_norm(x[0], x[1], x[2], x[3], x[4], momentum, eps)
        }
        "batch_norm_inference" => g.batch_norm_inference(x[0], x[1], x[2], x[3], x[4], attrs.float("eps")),
        _ => panic!("the test does not know the operator {op}"),
    }
}

/// The running statistics, which the operator writes, are states; all other operands are inputs.
fn is_state(case: &Case, input: usize) -> bool {
    case.op == "batch_norm" && input >= 3
}

/// Weights of the sum whose gradient is taken, as the script computes them.
fn weights(len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| (2.0 * ((37 * i + 11) % 64) as f32 - 63.0) / 64.0)
        .collect()
}

fn has_gradients(case: &Case) -> bool {
    case.grads.iter().any(Option::is_some)
}

/// The call with its results as outputs, after the weighted sum where there are gradients.
fn graph_of(case: &Case) -> Graph {
    let mut g = Graph::new();
    let mut x = Vec::new();
    for (i, t) in case.inputs.iter().enumerate() {
        let name = format!("x{i}");
        x.push(if is_state(case, i) {
            g.state(&name, &t.shape)
        } else {
            g.input_typed(&name, &t.shape, t.dtype)
        });
        if case.grads[i].is_some() {
            g.require_grad(x[i]);
        }
    }
    let y = plain(&mut g, &case.op, &x).unwrap_or_else(|| with_attrs(&mut g, &case.op, &x, &Attrs(&case.attrs)));
    let mut outputs: Vec<Value> = (0..case.outputs.len() as u32).map(|port| g.port(y, port)).collect();
    if has_gradients(case) {
        let first = &case.outputs[0];
        let weights = g.constant(weights(first.data.len()), &first.shape);
        let product = g.mul(y, weights);
        let loss = g.sum_all(product);
        outputs.insert(0, loss.into());
    }
    g.set_outputs(outputs);
    for (output, t) in g.outputs().iter().rev().zip(case.outputs.iter().rev()) {
        let found = (g.dtype(*output), g.shape(*output));
        assert_eq!(found, (t.dtype, &t.shape[..]), "{}: type of a result", case.name);
    }
    g
}

// ---- three ways to the same numbers -------------------------------------------------------------------

/// What the fixture says: outputs, gradients, and running statistics after the step.
fn expected(case: &Case) -> Named {
    let outputs = case.outputs.iter().enumerate();
    let mut named: Named = outputs.map(|(i, t)| (format!("output {i}"), t.data.clone())).collect();
    for (i, grad) in case.grads.iter().enumerate() {
        named.extend(grad.clone().map(|g| (format!("gradient of x{i}"), g)));
    }
    for (i, t) in case.inputs.iter().enumerate().filter(|(i, _)| is_state(case, *i)) {
        // A training step returns the new statistics as ports 1 and 2; inference leaves them alone.
        let after = if case.inference { t } else { &case.outputs[i - 2] };
        named.push((format!("state x{i}"), after.data.clone()));
    }
    named
}

fn by_oracle(case: &Case) -> meganeura::Result<Named> {
    let g = graph_of(case);
    let inputs = case.inputs.iter().enumerate();
    let feeds: Feeds = inputs.map(|(i, t)| (format!("x{i}"), t.data.clone())).collect();
    let full = if has_gradients(case) {
        try_differentiate(&g)?
    } else {
        for_inference(&g)?
    };
    let values = evaluate(&full, &feeds)?;
    let read = |v: Value| values.get(v).expect("evaluated").data.clone();
    let skip = full.outputs().len() - case.outputs.len();
    let outputs = full.outputs()[skip..].iter().enumerate();
    let mut named: Named = outputs.map(|(i, &v)| (format!("output {i}"), read(v))).collect();
    for &(leaf, gradient) in full.gradients() {
        let name = full.nodes()[leaf.index()].name.as_deref().unwrap_or_default();
        named.push((format!("gradient of {name}"), read(gradient)));
    }
    for i in (0..case.inputs.len()).filter(|&i| is_state(case, i)) {
        let name = format!("x{i}");
        let after = values.written.get(&name).unwrap_or(&feeds[&name]).clone();
        named.push((format!("state {name}"), after));
    }
    Ok(named)
}

fn bytes(t: &Tensor) -> Vec<u8> {
    let word = |&v: &f64| match t.dtype {
        DType::U32 => (v as u32).to_le_bytes(),
        DType::I32 => (v as i32).to_le_bytes(),
        _ => (v as f32).to_le_bytes(),
    };
    t.data.iter().flat_map(word).collect()
}

fn from_bytes(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let words = bytes.chunks_exact(4).map(|c| [c[0], c[1], c[2], c[3]]);
    let number = |word| match dtype {
        DType::U32 => f64::from(u32::from_le_bytes(word)),
        DType::I32 => f64::from(i32::from_le_bytes(word)),
        _ => f64::from(f32::from_le_bytes(word)),
    };
    words.map(number).collect()
}

fn narrow(data: &[f64]) -> Vec<f32> {
    data.iter().map(|&v| v as f32).collect()
}

fn wide(data: &[f32]) -> Vec<f64> {
    data.iter().map(|&v| v.into()).collect()
}

fn by_session(case: &Case, device: &Arc<dyn Device>) -> meganeura::Result<Named> {
    let mode = if has_gradients(case) {
        Mode::Training
    } else {
        Mode::Inference
    };
    let (mut session, _) = build_on(&graph_of(case), device.clone(), mode, None)?;
    for (i, t) in case.inputs.iter().enumerate() {
        let name = format!("x{i}");
        if is_state(case, i) {
            session.try_set_state(&name, &narrow(&t.data))?;
        } else {
            session.try_set_input_bytes(&name, &bytes(t))?;
        }
    }
    session.try_step()?;
    session.try_wait()?;
    let mut named = Named::new();
    for (i, t) in case.outputs.iter().enumerate() {
        let raw = session.try_read_output_bytes(i + usize::from(has_gradients(case)))?;
        named.push((format!("output {i}"), from_bytes(t.dtype, &raw)));
    }
    for i in (0..case.inputs.len()).filter(|&i| case.grads[i].is_some()) {
        let gradient = session.try_read_grad(&format!("x{i}"))?;
        named.push((format!("gradient of x{i}"), wide(&gradient)));
    }
    for i in (0..case.inputs.len()).filter(|&i| is_state(case, i)) {
        let state = session.try_read_state(&format!("x{i}"))?;
        named.push((format!("state x{i}"), wide(&state)));
    }
    Ok(named)
}

// ---- comparison ---------------------------------------------------------------------------------------

/// Differences beyond the limit, relative to the largest expected magnitude of each list.
fn differences(case: &str, found: &Named, expected: &Named, limit: impl Fn(&str) -> f64) -> Vec<String> {
    let names = |n: &Named| {
        n.iter()
            .map(|(name, data)| (name.clone(), data.len()))
            .collect::<Vec<_>>()
    };
    if names(found) != names(expected) {
        return vec![format!("{case}: has {:?}, not {:?}", names(found), names(expected))];
    }
    let mut failures = Vec::new();
    for ((name, ours), (_, theirs)) in found.iter().zip(expected) {
        let limit = limit(name);
        let largest = theirs.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
        let scale = if largest == 0.0 { 1.0 } else { largest };
        let errors = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs() / scale);
        // Not `<=` alone, which a NaN would pass.
        let wrong = errors.enumerate().find(|(_, e)| e.is_nan() || *e > limit);
        if let Some((i, error)) = wrong {
            failures.push(format!(
                "{case}: {name}[{i}] is {}, not {} ({error:.1e} of the largest, limit {limit:.0e})",
                ours[i], theirs[i]
            ));
        }
    }
    failures
}

fn report(failures: &[String]) {
    assert!(
        failures.is_empty(),
        "{} differences:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

fn device() -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(2))
}

fn names_of_ops(graph: &Graph) -> impl Iterator<Item = &'static str> + '_ {
    graph.nodes().iter().filter_map(|n| n.op()).map(|(op, _)| op.name())
}

#[test]
fn the_fixture_covers_every_operator() {
    let cases = cases();
    assert_eq!(cases.len(), CASES, "cases appeared or vanished: correct the number");
    let mut covered = BTreeSet::new();
    let mut differentiated = BTreeSet::new();
    for case in &cases {
        let g = graph_of(case);
        // The first operator is the case's own; the weighted sum follows it.
        covered.extend(names_of_ops(&g).take(1));
        if has_gradients(case) {
            let full = try_differentiate(&g).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            differentiated.extend(names_of_ops(&full));
        }
    }
    covered.extend(IN_GRADIENTS.iter().filter(|op| differentiated.contains(*op)));
    let all = registry::ops().into_iter().map(|op| op.name());
    let wanted: BTreeSet<&str> = all
        .filter(|op| op.starts_with("core.") && !NOT_COVERED.contains(op))
        .collect();
    assert_eq!(covered, wanted);
}

/// Runs all cases and reports where the results of `run` are beyond the limits.
fn check_operators(run: impl Fn(&Case) -> meganeura::Result<Named>, limit: impl Fn(&Case) -> f64) {
    let check = |case: &Case| match run(case) {
        Ok(found) => differences(&case.name, &found, &expected(case), |_| limit(case)),
        Err(error) => vec![format!("{}: {error}", case.name)],
    };
    report(&cases().iter().flat_map(check).collect::<Vec<_>>());
}

#[test]
fn operators_agree_in_the_oracle() {
    check_operators(by_oracle, |case| {
        if ROUNDED.contains(&case.op.as_str()) {
            CONSTANT_LIMIT
        } else {
            ORACLE_LIMIT
        }
    });
}

#[test]
fn operators_agree_on_the_cpu() {
    let device = device();
    check_operators(|case| by_session(case, &device), |_| SESSION_LIMIT);
}

// ---- training -----------------------------------------------------------------------------------------

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
