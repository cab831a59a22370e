//! Cases of whole training steps: forward, backward and update, several times.
//!
//! Each step starts, on the device and in the oracle, from the device's own parameters and states,
//! so that rounding errors do not accumulate. The results of the graph are compared with the
//! oracle's evaluation of the differentiated graph, and the update with an independent form of its
//! rule applied to the device's gradients.

mod around;
mod models;
mod rules;

use meganeura_compiler::builder::Builder;
use meganeura_core::autodiff::try_differentiate;
use meganeura_core::error::Result;
use meganeura_core::graph::{Graph, NodeKind};
use meganeura_core::ops::{SEED_SCALAR, STEP_SCALAR};
use meganeura_core::precision::Precision;
use meganeura_core::reference::evaluate;
use meganeura_core::{DType, Session};

use crate::case::{Case, CaseRun, Check, SharedDevice, ensure, fail};
use crate::compare::{compare, compare_within, widening};
use crate::harness::{Feeds, feed};
use crate::precision::{Deviations, training};
use crate::storage::wide;
use models::Model;
use rules::Rule;

const STEPS: u64 = 3;
const SEED: u64 = 77;
/// Accepted error of the graph's results.
const GRAPH_LIMIT: f64 = 5e-5;
/// Accepted error of an update with given gradients.
const UPDATE_LIMIT: f64 = 3e-6;

pub(crate) fn cases(precision: Precision) -> Vec<Case> {
    let mut cases = Vec::new();
    for model in models::all() {
        for rule in rules::all() {
            let id = format!("training/{}/{}", model.name, rule.name());
            cases.push(Case::new(id, move |device| {
                train(device, &(model.build)(), rule, precision)
            }));
        }
    }
    cases.extend(around::cases(precision));
    cases
}

/// Reads the parameters and graph states of a session, by name.
fn persistent(session: &mut Session, graph: &Graph) -> Result<Feeds> {
    let mut values = Feeds::new();
    for node in graph.nodes() {
        let name = node.name.as_deref().unwrap_or_default();
        let data = match node.kind {
            NodeKind::Parameter { .. } => session.try_read_parameter(name)?,
            NodeKind::State { .. } => session.try_read_state(name)?,
            _ => continue,
        };
        values.insert(name.to_owned(), wide(&data));
    }
    Ok(values)
}

fn train(device: &SharedDevice, model: &Model, rule: Rule, precision: Precision) -> CaseRun {
    let full = try_differentiate(&model.graph)?;
    // Read as outputs, to measure their accepted error.
    let mut seen = full.clone();
    let gradients = full.gradients().iter().map(|&(_, v)| v);
    seen.set_outputs(std::iter::once(full.outputs()[0]).chain(gradients).collect());
    let limit = GRAPH_LIMIT * widening(&full);
    let (mut session, _) = Builder::on(device.clone())
        .optimizer(rule.optimizer())
        .rewrite(training(precision))
        .build(&model.graph)?;
    feed(&mut session, &model.graph, &model.initial)?;
    session.set_seed(SEED);
    let mut check = Check::default();
    for step in 0..STEPS {
        let what = |part: &str| format!("step {step}, {part}");
        let before = persistent(&mut session, &model.graph)?;
        if step == 0 {
            let untouched = model.initial.iter().all(|(name, v)| before.get(name) == Some(v));
            ensure!(untouched, "parameters or states are not what they were set to");
        }
        let moments = moments(&mut session, &full, rule)?;
        let inputs = (model.inputs)(step);
        feed(&mut session, &model.graph, &inputs)?;
        session.try_step()?;

        let mut feeds = before.clone();
        feeds.extend(inputs);
        feeds.insert(SEED_SCALAR.to_owned(), vec![SEED as f64]);
        feeds.insert(STEP_SCALAR.to_owned(), vec![step as f64]);
        let oracle = evaluate(&full, &feeds)?;
        let off = Deviations::of(&session, &seen, &feeds)?;
        let Some(loss) = oracle.get(full.outputs()[0]) else {
            return fail("the oracle has no loss");
        };
        let found = [f64::from(session.try_read_loss()?)];
        let more = off.output(0);
        check = check.worse(compare_within(
            &what("loss"),
            DType::F32,
            &found,
            &loss.data,
            limit,
            more,
        )?);
        for (name, expected) in &oracle.written {
            let found = wide(&session.try_read_state(name)?);
            let more = off.state(name);
            check = check.worse(compare_within(&what(name), DType::F32, &found, expected, limit, more)?);
        }
        for (i, &(leaf, value)) in full.gradients().iter().enumerate() {
            let name = full.nodes()[leaf.index()].name.as_deref().unwrap_or_default();
            let gradient = wide(&session.try_read_grad(name)?);
            let expected = oracle.get(value).map_or(&[][..], |t| &t.data);
            let label = what(&format!("gradient of {name}"));
            let more = off.output(i + 1);
            check = check.worse(compare_within(&label, DType::F32, &gradient, expected, limit, more)?);
            let start = (&before[name], &moments[name]);
            check = check.worse(update(&mut session, rule, step, name, start, &gradient)?);
        }
    }
    Ok(check)
}

/// Reads the optimizer's states of every trained parameter, by the parameter's name.
fn moments(
    session: &mut Session,
    full: &Graph,
    rule: Rule,
) -> Result<std::collections::HashMap<String, Vec<Vec<f64>>>> {
    let mut all = std::collections::HashMap::new();
    for &(leaf, _) in full.gradients() {
        let name = full.nodes()[leaf.index()].name.as_deref().unwrap_or_default();
        let states = rule.states(name).into_iter();
        let states = states.map(|s| Ok(wide(&session.try_read_state(&s)?)));
        all.insert(name.to_owned(), states.collect::<Result<_>>()?);
    }
    Ok(all)
}

/// Compares a parameter and its optimizer states after the step with the rule.
fn update(
    session: &mut Session,
    rule: Rule,
    step: u64,
    name: &str,
    (parameter, moments): (&Vec<f64>, &Vec<Vec<f64>>),
    gradient: &[f64],
) -> CaseRun {
    let (mut parameter, mut moments) = (parameter.clone(), moments.clone());
    rule.apply(step + 1, &mut parameter, gradient, &mut moments);
    let found = wide(&session.try_read_parameter(name)?);
    let what = format!("step {step}, {name} after the update");
    let mut check = compare(&what, DType::F32, &found, &parameter, UPDATE_LIMIT)?;
    for (state, expected) in rule.states(name).iter().zip(&moments) {
        let found = wide(&session.try_read_state(state)?);
        let what = format!("step {step}, {state}");
        check = check.worse(compare(&what, DType::F32, &found, expected, UPDATE_LIMIT)?);
    }
    Ok(check)
}
