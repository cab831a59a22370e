//! Tests of calls of single operators.

use std::collections::BTreeSet;
use std::sync::Arc;

use meganeura::attrs::Attrs;
use meganeura::autodiff::try_differentiate;
use meganeura::backend::Device;
use meganeura::builder::Builder;
use meganeura::graph::Value;
use meganeura::ops::OpRef;
use meganeura::optimize::for_inference;
use meganeura::reference::evaluate;
use meganeura::registry;
use meganeura::{DType, Graph, Mode, NodeId};

use super::builders;
use super::fixtures::{Case, NamedNumbers, cases, without_counterpart};
use super::{CONSTANT_LIMIT, Feeds, ORACLE_LIMIT, bytes, device, differences, narrow, report, wide};

const SESSION_LIMIT: f64 = 1e-5;

// ---- from a case to a graph ---------------------------------------------------------------------------

/// Builds the call of a case: of the registered operator with this name, or of a builder method.
fn call(g: &mut Graph, case: &Case, x: &[NodeId]) -> Result<NodeId, String> {
    if !case.op.contains('.') {
        return Ok(builders::call(g, &case.op, x, &case.attrs));
    }
    let op = registry::op(&case.op).ok_or("no operator of that name is registered")?;
    let attrs: Attrs = serde_json::from_value(case.attrs.clone()).map_err(|e| e.to_string())?;
    Ok(g.call(op, attrs, x.iter().map(|&id| id.into()).collect()))
}

/// Returns the operator of a case, which is the first one in its graph.
fn own_op(graph: &Graph) -> OpRef {
    let mut ops = graph.nodes().iter().filter_map(|node| node.op());
    ops.next().expect("a call").0
}

/// Returns the weights of the sum whose gradient is computed, the same as in the script.
fn weights(len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| (2.0 * ((37 * i + 11) % 64) as f32 - 63.0) / 64.0)
        .collect()
}

fn has_gradients(case: &Case) -> bool {
    case.grads.iter().any(Option::is_some)
}

/// Builds the call with its results as outputs, after the weighted sum if there are gradients.
fn graph_of(case: &Case) -> Result<Graph, String> {
    let mut g = Graph::new();
    let mut x = Vec::new();
    for (i, t) in case.inputs.iter().enumerate() {
        let name = format!("x{i}");
        x.push(if case.states.contains(&i) {
            g.state(&name, &t.shape)
        } else {
            g.input_typed(&name, &t.shape, t.dtype)
        });
        if case.grads[i].is_some() {
            g.require_grad(x[i]);
        }
    }
    let y = call(&mut g, case, &x)?;
    let mut outputs: Vec<Value> = (0..case.outputs.len() as u32).map(|port| g.port(y, port)).collect();
    if has_gradients(case) {
        let first = &case.outputs[0];
        let weights = g.constant(weights(first.data.len()), &first.shape);
        let product = g.mul(y, weights);
        let loss = g.sum_all(product);
        outputs.insert(0, loss.into());
    }
    g.set_outputs(outputs);
    g.verify().map_err(|e| e.to_string())?;
    for (output, t) in g.outputs().iter().rev().zip(case.outputs.iter().rev()) {
        let (dtype, shape) = (g.dtype(*output), g.shape(*output));
        if (dtype, shape) != (t.dtype, &t.shape[..]) {
            return Err(format!("a result is {dtype} {shape:?}, not {} {:?}", t.dtype, t.shape));
        }
    }
    Ok(g)
}

// ---- three ways to the same numbers -------------------------------------------------------------------

/// Returns the values of the fixture: outputs, gradients, and states after the step.
fn expected(case: &Case, op: OpRef) -> NamedNumbers {
    let outputs = case.outputs.iter().enumerate();
    let mut named: NamedNumbers = outputs.map(|(i, t)| (format!("output {i}"), t.data.clone())).collect();
    for (i, grad) in case.grads.iter().enumerate() {
        named.extend(grad.clone().map(|g| (format!("gradient of x{i}"), g)));
    }
    for &i in &case.states {
        let port = op.writes().iter().find(|(operand, _)| *operand == i);
        // Inference does not change running statistics.
        let after = match port.filter(|_| !case.inference) {
            Some(&(_, port)) => &case.outputs[port],
            None => &case.inputs[i],
        };
        named.push((format!("state x{i}"), after.data.clone()));
    }
    named
}

fn by_oracle(case: &Case, g: &Graph) -> meganeura::Result<NamedNumbers> {
    let inputs = case.inputs.iter().enumerate();
    let feeds: Feeds = inputs.map(|(i, t)| (format!("x{i}"), t.data.clone())).collect();
    let full = if has_gradients(case) {
        try_differentiate(g)?
    } else {
        for_inference(g)?
    };
    let values = evaluate(&full, &feeds)?;
    let read = |v: Value| values.get(v).expect("evaluated").data.clone();
    let skip = full.outputs().len() - case.outputs.len();
    let outputs = full.outputs()[skip..].iter().enumerate();
    let mut named: NamedNumbers = outputs.map(|(i, &v)| (format!("output {i}"), read(v))).collect();
    for &(leaf, gradient) in full.gradients() {
        let name = full.nodes()[leaf.index()].name.as_deref().unwrap_or_default();
        named.push((format!("gradient of {name}"), read(gradient)));
    }
    for &i in &case.states {
        let name = format!("x{i}");
        let after = values.written.get(&name).unwrap_or(&feeds[&name]).clone();
        named.push((format!("state {name}"), after));
    }
    Ok(named)
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

fn by_session(case: &Case, g: &Graph, device: &Arc<dyn Device>) -> meganeura::Result<NamedNumbers> {
    let mode = if has_gradients(case) {
        Mode::Training
    } else {
        Mode::Inference
    };
    let (mut session, _) = Builder::on(device.clone()).mode(mode).build(g)?;
    for (i, t) in case.inputs.iter().enumerate() {
        let name = format!("x{i}");
        if case.states.contains(&i) {
            session.try_set_state(&name, &narrow(&t.data))?;
        } else {
            session.try_set_input_bytes(&name, &bytes(t.dtype, &t.data))?;
        }
    }
    session.try_step()?;
    session.try_wait()?;
    let mut named = NamedNumbers::new();
    for (i, t) in case.outputs.iter().enumerate() {
        let raw = session.try_read_output_bytes(i + usize::from(has_gradients(case)))?;
        named.push((format!("output {i}"), from_bytes(t.dtype, &raw)));
    }
    for i in (0..case.inputs.len()).filter(|&i| case.grads[i].is_some()) {
        let gradient = session.try_read_grad(&format!("x{i}"))?;
        named.push((format!("gradient of x{i}"), wide(&gradient)));
    }
    for &i in &case.states {
        let state = session.try_read_state(&format!("x{i}"))?;
        named.push((format!("state x{i}"), wide(&state)));
    }
    Ok(named)
}

// ---- tests --------------------------------------------------------------------------------------------

/// Returns the operators that a case covers: its own, and those of derivatives (`core.conv2d_input_grad`) that compute the
/// gradients.
fn covered_by(case: &Case) -> Vec<&'static str> {
    let Ok(g) = graph_of(case) else {
        return Vec::new();
    };
    let mut covered = vec![own_op(&g).get().name()];
    if has_gradients(case)
        && let Ok(full) = try_differentiate(&g)
    {
        let ops = full.nodes().iter().filter_map(|node| node.op());
        let names = ops.map(|(op, _)| op.get().name());
        covered.extend(names.filter(|name| name.ends_with("_grad")));
    }
    covered
}

#[test]
fn every_operator_is_covered() {
    let covered: BTreeSet<&str> = cases().iter().flat_map(covered_by).collect();
    let excepted = without_counterpart();
    let excepted: BTreeSet<&str> = excepted.keys().map(String::as_str).collect();
    let all = registry::ops().into_iter().map(|op| op.get().name());
    let registered: BTreeSet<&str> = all.filter(|op| op.starts_with("core.")).collect();
    let listed: BTreeSet<&str> = covered.union(&excepted).copied().collect();
    let missing: Vec<_> = registered.difference(&listed).collect();
    assert!(
        missing.is_empty(),
        "{missing:?} have no case in scripts/verify-external/ops, nor a line in its none.json"
    );
    let unknown: Vec<_> = excepted.difference(&registered).collect();
    assert!(
        unknown.is_empty(),
        "none.json has {unknown:?}, which are not registered"
    );
    let both: Vec<_> = excepted.intersection(&covered).collect();
    assert!(both.is_empty(), "none.json has {both:?}, which have cases");
}

/// Runs all cases. Reports cases that cannot run, and cases where a result of `run` exceeds the limit.
fn check(run: impl Fn(&Case, &Graph) -> meganeura::Result<NamedNumbers>, limit: impl Fn(&Case) -> f64) {
    let check = |case: &Case| -> Result<Vec<String>, String> {
        let g = graph_of(case)?;
        let found = run(case, &g).map_err(|e| e.to_string())?;
        Ok(differences(&case.name, &found, &expected(case, own_op(&g)), |_| {
            limit(case)
        }))
    };
    let failures = |case: &Case| check(case).unwrap_or_else(|error| vec![format!("{}: {error}", case.name)]);
    report(&cases().iter().flat_map(failures).collect::<Vec<_>>());
}

#[test]
fn operators_agree_in_the_oracle() {
    let limit = |case: &Case| if case.rounded { CONSTANT_LIMIT } else { ORACLE_LIMIT };
    check(by_oracle, limit);
}

#[test]
fn operators_agree_on_the_cpu() {
    let device = device();
    check(|case, g| by_session(case, g, &device), |_| SESSION_LIMIT);
}
