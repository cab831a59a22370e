//! Cases of the settings around an update rule (clipping, accumulation, parameter groups), compared with plain loops
//! over the device's own gradients.

use std::collections::HashMap;

use meganeura_compiler::builder::Builder;
use meganeura_core::autodiff::try_differentiate;
use meganeura_core::error::Result;
use meganeura_core::graph::Graph;
use meganeura_core::precision::Precision;
use meganeura_core::{Adam, DType, GradientClip, ParameterGroup, Session, Sgd, Update};

use super::models::{self, Model};
use super::rules::Rule;
use super::{UPDATE_LIMIT, persistent};
use crate::case::{Case, CaseRun, Check, SharedDevice, ensure};
use crate::compare::compare;
use crate::harness::feed;
use crate::precision::training;
use crate::storage::wide;

const STEPS: u64 = 7;

/// Settings of an update, and its rule.
struct Setting {
    name: &'static str,
    rule: Rule,
    update: fn(Update) -> Update,
}

fn settings() -> Vec<Setting> {
    let sgd = Rule::Sgd(Sgd {
        momentum: 0.9,
        weight_decay: 0.02,
        ..Sgd::new(0.1)
    });
    let adam = Rule::Adam(Adam::adamw(0.02, 0.1));
    let setting = |name, rule, update| Setting { name, rule, update };
    vec![
        setting("clipped by a small norm", sgd, |u| u.clip(GradientClip::Norm(0.05))),
        setting("clipped by a large norm", sgd, |u| u.clip(GradientClip::Norm(1e6))),
        setting("clipped by value", adam, |u| u.clip(GradientClip::Value(0.01))),
        setting("accumulated over 3 steps", adam, |u| u.accumulate(3)),
        setting("groups", adam, |u| u.group(group())),
        setting("everything", sgd, |u| {
            u.clip(GradientClip::Norm(0.05)).accumulate(2).group(group())
        }),
    ]
}

/// Returns the parameter group of biases: half of the learning rate, and no weight decay.
fn group() -> ParameterGroup {
    ParameterGroup::new(["*b*"]).learning_rate_scale(0.5).weight_decay(0.0)
}

/// Returns the rule of the parameters in [`group`].
fn grouped(rule: Rule) -> Rule {
    match rule {
        Rule::Sgd(r) => Rule::Sgd(Sgd {
            lr: 0.5 * r.lr,
            weight_decay: 0.0,
            ..r
        }),
        Rule::Adam(r) => Rule::Adam(Adam {
            lr: 0.5 * r.lr,
            weight_decay: 0.0,
            ..r
        }),
    }
}

pub(super) fn cases(precision: Precision) -> Vec<Case> {
    let run = |setting: Setting| {
        let id = format!("training/updates/{}", setting.name);
        Case::new(id, move |device| train(device, &setting, precision))
    };
    let mut cases: Vec<Case> = settings().into_iter().map(run).collect();
    cases.push(Case::new("training/updates/changed on the way", changed_on_the_way));
    cases.push(Case::new("training/updates/left out", left_out));
    cases.push(Case::new(
        "training/updates/many parameters under one norm",
        many_parameters,
    ));
    cases
}

fn model() -> Model {
    let named = models::all().into_iter().find(|m| m.name == "mlp with class ids");
    named.map_or_else(|| (models::all()[0].build)(), |m| (m.build)())
}

fn trained(graph: &Graph) -> Vec<String> {
    let name = |&(leaf, _): &(meganeura_core::NodeId, _)| graph.nodes()[leaf.index()].name.as_deref();
    let names = graph.gradients().iter().filter_map(name);
    names.map(str::to_owned).collect()
}

/// Parameter in the plain loops.
struct Parameter {
    value: Vec<f64>,
    moments: Vec<Vec<f64>>,
    average: Vec<f64>,
}

fn train(device: &SharedDevice, setting: &Setting, precision: Precision) -> CaseRun {
    let model = model();
    let update = (setting.update)(setting.rule.optimizer().into());
    let names = trained(&try_differentiate(&model.graph)?);
    let (mut session, _) = Builder::on(device.clone())
        .optimizer(update.clone())
        .rewrite(training(precision))
        .build(&model.graph)?;
    feed(&mut session, &model.graph, &model.initial)?;
    let mut parameters = HashMap::new();
    for name in &names {
        let value = wide(&session.try_read_parameter(name)?);
        let moments = vec![vec![0.0; value.len()]; setting.rule.states(name).len()];
        let average = vec![0.0; value.len()];
        parameters.insert(
            name.clone(),
            Parameter {
                value,
                moments,
                average,
            },
        );
    }
    let every = u64::from(update.accumulate);
    let mut check = Check::default();
    for step in 0..STEPS {
        let before = persistent(&mut session, &model.graph)?;
        feed(&mut session, &model.graph, &(model.inputs)(step))?;
        session.try_step()?;
        for (name, p) in &mut parameters {
            let gradient = wide(&session.try_read_grad(name)?);
            for (average, g) in p.average.iter_mut().zip(gradient) {
                let kept = if step % every == 0 { 0.0 } else { *average };
                *average = kept + g / every as f64;
            }
        }
        if (step + 1) % every != 0 {
            let after = persistent(&mut session, &model.graph)?;
            ensure!(
                names.iter().all(|n| after[n] == before[n]),
                "step {step} changed parameters before its update was due"
            );
            continue;
        }
        check = check.worse(apply(
            &mut session,
            setting.rule,
            &update,
            (step + 1) / every,
            &mut parameters,
        )?);
    }
    Ok(check)
}

/// Computes update `t` with the plain loops, and compares it with the device's.
fn apply(
    session: &mut Session,
    rule: Rule,
    update: &Update,
    t: u64,
    parameters: &mut HashMap<String, Parameter>,
) -> CaseRun {
    let mut check = Check::default();
    let squares = parameters.values().flat_map(|p| &p.average).map(|g| g * g);
    let norm = squares.sum::<f64>().sqrt();
    let limited = |g: f64| match update.clip {
        None => g,
        Some(GradientClip::Value(limit)) => g.clamp(-f64::from(limit), limit.into()),
        Some(GradientClip::Norm(limit)) => g * (f64::from(limit) / (norm + 1e-6)).min(1.0),
    };
    if let Some(GradientClip::Norm(_)) = update.clip {
        let found = wide(&session.try_read_state(GradientClip::NORM_STATE)?);
        check = check.worse(compare("the norm", DType::F32, &found, &[norm], UPDATE_LIMIT)?);
    }
    for (name, p) in parameters {
        let gradient: Vec<f64> = p.average.iter().map(|&g| limited(g)).collect();
        let in_group = update.groups.iter().any(|group| group.contains(name));
        let rule = if in_group { grouped(rule) } else { rule };
        rule.apply(t, &mut p.value, &gradient, &mut p.moments);
        let found = wide(&session.try_read_parameter(name)?);
        let what = format!("{name} after update {t}");
        // Rounding errors accumulate, because the loops continue from their own values.
        let limit = UPDATE_LIMIT * t as f64 * 2.0;
        check = check.worse(compare(&what, DType::F32, &found, &p.value, limit)?);
    }
    Ok(check)
}

/// Checks that with a loss scale, a step with gradients that are not finite only changes the scale, and does not count
/// as an update.
fn left_out(device: &SharedDevice) -> CaseRun {
    let model = model();
    let rule = Rule::Adam(Adam::adamw(0.02, 0.1));
    let update = Update::from(rule.optimizer()).accumulate(2);
    let settings = training(Precision::Mixed);
    let (mut session, _) = Builder::on(device.clone())
        .optimizer(update)
        .rewrite(settings.clone())
        .build(&model.graph)?;
    feed(&mut session, &model.graph, &model.initial)?;
    let names = trained(&try_differentiate(&model.graph)?);
    let contents = |session: &mut Session| -> Result<Vec<Vec<f32>>> {
        let mut all = Vec::new();
        for name in &names {
            all.push(session.try_read_parameter(name)?);
            for state in rule.states(name) {
                all.push(session.try_read_state(&state)?);
            }
        }
        Ok(all)
    };
    let step = |session: &mut Session, number: u64, faulty: bool| -> Result<()> {
        let mut inputs = (model.inputs)(number);
        if faulty {
            inputs
                .get_mut("x")
                .into_iter()
                .flatten()
                .for_each(|x| *x *= f64::INFINITY);
        }
        feed(session, &model.graph, &inputs)?;
        session.try_step()
    };
    let scale = session.try_loss_scale()?;
    ensure!(scale == Some(256.0), "the first scale is {scale:?}");
    let before = contents(&mut session)?;
    // Several steps in flight, without waiting in between.
    for number in 0..6 {
        step(&mut session, number, number % 2 == 1)?;
    }
    ensure!(
        contents(&mut session)? == before,
        "an update was made that should be left out"
    );
    let (scale, skipped) = (session.try_loss_scale()?, session.try_skipped_updates()?);
    ensure!(
        (scale, skipped) == (Some(32.0), 3),
        "after 3 updates that were left out the scale is {scale:?}, and {skipped} are counted"
    );
    let mut averages: HashMap<String, Vec<f64>> = HashMap::new();
    for number in 6..8 {
        step(&mut session, number, false)?;
        for name in &names {
            let gradient = wide(&session.try_read_grad(name)?);
            let average = averages
                .entry(name.clone())
                .or_insert_with(|| vec![0.0; gradient.len()]);
            average.iter_mut().zip(gradient).for_each(|(a, g)| *a += g / 2.0);
        }
    }
    let mut check = Check::default();
    let mut before = before.iter().map(|values| wide(values));
    for name in &names {
        let mut value = before.next().unwrap_or_default();
        let mut moments: Vec<Vec<f64>> = rule.states(name).iter().filter_map(|_| before.next()).collect();
        rule.apply(1, &mut value, &averages[name], &mut moments);
        let found = wide(&session.try_read_parameter(name)?);
        let what = format!("{name} after the first update that was made");
        check = check.worse(compare(&what, DType::F32, &found, &value, 2.0 * UPDATE_LIMIT)?);
    }
    Ok(check)
}

/// Tests the norm of gradients, and the detection of NaN and infinity in them, with more gradients than a kernel binds
/// buffers.
fn many_parameters(device: &SharedDevice) -> CaseRun {
    const COUNT: usize = 70;
    let mut g = Graph::new();
    let x = g.input("x", &[3]);
    let name = |i: usize| format!("w{i}");
    let mut y = x;
    for i in 0..COUNT {
        let w = g.parameter(&name(i), &[3]);
        y = g.add(y, w);
    }
    let square = g.square(y);
    let loss = g.mean_all(square);
    g.set_outputs(vec![loss]);
    let update = Update::from(Sgd::new(0.1)).clip(GradientClip::Norm(0.5));
    let settings = training(Precision::Mixed);
    let (mut session, _) = Builder::on(device.clone())
        .optimizer(update)
        .rewrite(settings.clone())
        .build(&g)?;
    session.try_set_input("x", &[1.0, -2.0, 0.5])?;
    session.try_step()?;
    let mut squares = 0.0;
    for i in 0..COUNT {
        let gradient = session.try_read_grad(&name(i))?;
        squares += gradient.iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>();
    }
    let found = wide(&session.try_read_state(GradientClip::NORM_STATE)?);
    let check = compare("the norm", DType::F32, &found, &[squares.sqrt()], UPDATE_LIMIT)?;
    session.try_set_input("x", &[f32::INFINITY, 0.0, 0.0])?;
    session.try_step()?;
    let skipped = session.try_skipped_updates()?;
    ensure!(skipped == 1, "{skipped} updates were left out, not 1");
    Ok(check)
}

/// Checks that moments are kept if the settings of a running session change around the rule, and dropped if the rule
/// changes.
fn changed_on_the_way(device: &SharedDevice) -> CaseRun {
    let model = model();
    let rule = Adam::new(0.02);
    let (mut session, _) = Builder::on(device.clone()).optimizer(rule).build(&model.graph)?;
    feed(&mut session, &model.graph, &model.initial)?;
    feed(&mut session, &model.graph, &(model.inputs)(0))?;
    session.try_step()?;
    let name = trained(&try_differentiate(&model.graph)?).remove(0);
    let state = format!("optimizer.m.{name}");
    let moments = session.try_read_state(&state)?;
    ensure!(moments.iter().any(|&m| m != 0.0), "no moments after a step");
    session.try_set_optimizer(Update::new(rule).clip(GradientClip::Norm(1.0)).accumulate(2))?;
    ensure!(session.try_read_state(&state)? == moments, "clipping lost the moments");
    session.try_set_optimizer(Adam::adamw(0.02, 0.1))?;
    ensure!(
        session.try_read_state(&state)?.iter().all(|&m| m == 0.0),
        "another rule took over the moments"
    );
    Ok(Check::default())
}
