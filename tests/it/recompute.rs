//! Tests of recomputation: a step runs some dispatches twice to need less memory, and gives identical bits.

use std::collections::HashMap;
use std::sync::Arc;

use crate::plans::{LimitedCpu, cpu, lower_bound, trained_bits};
use meganeura::backend::Device;
use meganeura::builder::Builder;
use meganeura::cpu::CpuDevice;
use meganeura::graph::Value;
use meganeura::init::Init;
use meganeura::nn::models::{LlamaConfig, VitConfig, classifier, cnn_classifier, language_model, preset};
use meganeura::plan::memory::fit_to_budget;
use meganeura::plan::{BufferRef, FORWARD_BACKWARD, MemoryBudget};
use meganeura::random::SplitMix64;
use meganeura::rewrite::{RewriteConfig, SimulatedDevice};
use meganeura::{Adam, Error, ExecutionPlan, GradientClip, Graph, Result, SessionConfig, Sgd, Update};

fn budgeted(
    graph: &Graph,
    device: &Arc<dyn Device>,
    update: Option<&Update>,
    budget: Option<MemoryBudget>,
) -> Result<ExecutionPlan> {
    let config = RewriteConfig {
        memory_budget: budget,
        ..RewriteConfig::default()
    };
    Ok(Builder::on(device.clone())
        .maybe_optimizer(update.cloned())
        .rewrite(config.clone())
        .plan(graph)?
        .0)
}

/// Returns the plan that needs the least memory, and its memory in bytes.
fn least(graph: &Graph, device: &Arc<dyn Device>, update: Option<&Update>) -> (ExecutionPlan, usize) {
    match budgeted(graph, device, update, Some(MemoryBudget::Bytes(1))) {
        Err(Error::MemoryBudget { budget, least, without }) => {
            assert!(budget == 1 && least <= without, "{least} of {without}");
            let plan = budgeted(graph, device, update, Some(MemoryBudget::Bytes(least as u64)));
            (plan.expect("the error promises it"), least)
        }
        other => panic!("{:?}", other.map(|_| "a plan in one byte")),
    }
}

/// Checks the properties of every plan with recomputation.
fn check(plan: &ExecutionPlan, plain: &ExecutionPlan) {
    plan.verify().expect("consistent");
    let what = plan.recomputation.as_ref().expect("a budget was given");
    assert_eq!(what.peak_without, plain.memory_forecast().planned);
    assert_eq!(what.peak, plan.memory_forecast().planned);
    assert!(what.peak <= what.budget.max(what.peak_without));
    assert_eq!(lower_bound(plan), plan.memory_forecast().lower_bound);
    assert_eq!(plan.dispatches.len(), plain.dispatches.len() + what.repeated.len());
    assert!(what.repeated.is_empty() == (what.extra_ps == 0) && what.slow_down() >= 1.0);
    // There are no additional levels, and persistent data are not written more often.
    for (a, b) in plan.segments.iter().zip(&plain.segments) {
        assert!(plan.levels(a) <= plain.levels(b), "{}", a.name);
    }
    let lives = plain.lifetimes();
    let writes = |plan: &ExecutionPlan| {
        let mut writes: HashMap<BufferRef, usize> = HashMap::new();
        let outputs = plan.dispatches.iter().flat_map(|d| &d.outputs);
        let persistent = outputs.filter(|o| lives.get(o.buffer.index()).is_some_and(Option::is_none));
        persistent.for_each(|o| *writes.entry(o.buffer).or_default() += 1);
        writes
    };
    if plan.segments.len() == 1 {
        assert_eq!(writes(plan), writes(plain));
    }
    // Repeated dispatches run late: right before their first reader, or slightly earlier for several readers.
    let segment = plan.segment(FORWARD_BACKWARD).expect("there is one");
    for &i in &what.repeated {
        let copy = &plan.dispatches[i as usize];
        assert!(
            segment.range().contains(&(i as usize)) && copy.label.ends_with(" again"),
            "{}",
            copy.label
        );
        let reads = |d: &&meganeura::plan::Dispatch| {
            d.inputs
                .iter()
                .any(|o| copy.outputs.iter().any(|c| c.buffer == o.buffer))
        };
        let first = plan.dispatches[segment.range()]
            .iter()
            .find(reads)
            .expect("somebody needs it");
        assert!(
            (1..=8).contains(&(first.level - copy.level)),
            "{} for {}",
            copy.label,
            first.label
        );
    }
}

/// Builds a perceptron of many narrow layers with dropout, for a large batch. Its activations are larger than its
/// parameters.
fn deep() -> Graph {
    let mut g = Graph::new();
    let mut x: Value = g.input("x", &[96, 16]).into();
    for i in 0..9 {
        let bound = Init::Uniform { bound: 0.4 };
        let w = g.parameter_with(&format!("w{i}"), &[16, 16], bound);
        let y = g.matmul(x, w);
        let y = g.gelu_tanh(y);
        x = g.dropout(y, 0.2).into();
    }
    let square = g.square(x);
    let loss = g.mean_all(square);
    g.set_outputs(vec![loss]);
    g
}

fn models() -> Vec<(&'static str, Graph)> {
    let llama = LlamaConfig {
        layers: 4,
        dim: 16,
        hidden: 24,
        ..LlamaConfig::small(17)
    };
    let vit = VitConfig::new([3, 8, 8], 4, 5).size(16, 4, 2, 32);
    vec![
        ("mlp with dropout", deep()),
        ("cnn", cnn_classifier(24, [1, 8, 8], 5)),
        ("vit", classifier(3, &[3, 8, 8], |g, x| vit.build(g, "").forward(g, x))),
        ("llama", language_model(3, 40, |g, t| llama.build(g, "").forward(g, t))),
    ]
}

#[test]
fn results_are_the_same_bits() {
    let device = cpu();
    let update = Update::new(Adam::adamw(1e-2, 0.1))
        .clip(GradientClip::Norm(1.0))
        .accumulate(2);
    for (name, graph) in models() {
        let plain = budgeted(&graph, &device, Some(&update), None).expect("builds");
        let expected = trained_bits(&device, plain.clone(), &update, 5);
        let (small, bytes) = least(&graph, &device, Some(&update));
        let without = plain.memory_forecast();
        println!(
            "{name}: {bytes} of {without}: {}",
            small.recomputation.as_ref().expect("asked")
        );
        assert!(bytes < without.planned, "{name}: nothing is gained");
        let mut plans = vec![small];
        for share in 1..4 {
            let budget = MemoryBudget::Bytes((bytes + (without.planned - bytes) * share / 4) as u64);
            plans.push(budgeted(&graph, &device, Some(&update), Some(budget)).expect("it is above the least"));
        }
        let one: Arc<dyn Device> = Arc::new(CpuDevice::new(1));
        for plan in plans {
            check(&plan, &plain);
            let what = plan.recomputation.as_ref().expect("asked");
            assert!(what.peak <= what.budget, "{name}");
            assert!(
                trained_bits(&device, plan.clone(), &update, 5) == expected,
                "{name}: {what}"
            );
            assert!(trained_bits(&one, plan, &update, 5) == expected, "{name}, one thread");
        }
    }
}

/// A training step that does not fit into the memory of the device recomputes activations without a budget.
#[test]
fn steps_that_do_not_fit_into_the_device_are_recomputed() {
    let update = Update::new(Sgd::new(0.1));
    for (name, graph) in models() {
        let plain = budgeted(&graph, &cpu(), Some(&update), None).expect("builds");
        let (_, least) = least(&graph, &cpu(), Some(&update));
        let without = plain.memory_forecast().planned;
        assert!(plain.recomputation.is_none(), "{name}");
        // Nine tenths are for the step.
        let memory = (least + (without - least) / 2) * 10 / 9;
        let small = LimitedCpu::device(Some(memory as u64), None);
        let plan = budgeted(&graph, &small, Some(&update), None).expect("builds");
        if memory >= without {
            assert!(plan.recomputation.is_none(), "{name}");
            continue;
        }
        check(&plan, &plain);
        let peak = plan.recomputation.as_ref().expect("it does not fit otherwise").peak;
        assert!(
            peak <= memory && peak < without,
            "{name}: {peak} of {memory}, {without}"
        );
        let expected = trained_bits(&cpu(), plain, &update, 3);
        assert!(trained_bits(&cpu(), plan, &update, 3) == expected, "{name}");
        // No plan fits into a hundredth of the memory. The plan is the usual one, and the device refuses it.
        let tiny = LimitedCpu::device(Some(least as u64 / 100), None);
        let plan = budgeted(&graph, &tiny, Some(&update), None).expect("plans");
        assert!(plan.recomputation.is_none(), "{name}");
    }
}

/// Returns a graph of random calls on `[rows, 4]`, some with dropout, batch norms and states, with many stored activations.
fn random_graph(rng: &mut SplitMix64) -> Graph {
    let mut g = Graph::new();
    let rows = 40 + rng.below(40);
    let x = g.input("x", &[rows, 4]);
    let mut values: Vec<Value> = vec![x.into()];
    for i in 0..40 + rng.below(60) {
        let pick = |rng: &mut SplitMix64| {
            let recent = values.len().min(5);
            match rng.below(4) {
                0 => values[rng.below(values.len())],
                _ => values[values.len() - 1 - rng.below(recent)],
            }
        };
        let (a, b) = (pick(rng), pick(rng));
        let weight = |g: &mut Graph, shape: &[usize]| {
            g.parameter_with(&format!("w{i}.{}", shape.len()), shape, Init::Uniform { bound: 0.7 })
        };
        let value: Value = match rng.below(11) {
            0 => g.add(a, b).into(),
            1 => g.mul(a, b).into(),
            2 => g.relu(a).into(),
            3 => g.tanh(a).into(),
            4 => g.dropout(a, 0.3).into(),
            5 => g.softmax(a, -1).into(),
            6 => {
                let (bias, scale) = (
                    weight(&mut g, &[4]),
                    g.parameter_with(&format!("s{i}"), &[4], Init::Ones),
                );
                let mean = g.state(&format!("mean{i}"), &[4]);
                let var = g.state_filled(&format!("var{i}"), &[4], 1.0);
                g.batch_norm(a, scale, bias, mean, var, 1e-5, 0.1).into()
            }
            7 => {
                let state = g.state(&format!("state{i}"), &[rows, 4]);
                let old = g.add(state, a);
                g.assign(state, a);
                old.into()
            }
            8 => {
                let flat = g.reshape(a, &[rows * 4]);
                let square = g.mul(flat, flat);
                g.reshape(square, &[rows, 4]).into()
            }
            _ => {
                let w = weight(&mut g, &[4, 4]);
                g.matmul(a, w).into()
            }
        };
        values.push(value);
    }
    let mut sum = values[values.len() - 1];
    for _ in 0..2 {
        let other = values[rng.below(values.len())];
        sum = g.add(sum, other).into();
    }
    let squashed = g.tanh(sum);
    let loss = g.mean_all(squashed);
    g.set_outputs(vec![loss]);
    g
}

#[test]
fn random_graphs_give_the_same_bits() {
    let device = cpu();
    let update: Update = Sgd::new(0.1).into();
    // MEGANEURA_RECOMPUTE_RUNS sets the number of runs.
    let runs = std::env::var("MEGANEURA_RECOMPUTE_RUNS")
        .ok()
        .and_then(|n| n.parse().ok());
    let (mut again, mut norms, mut smaller) = (0, 0, 0);
    for seed in 0..runs.unwrap_or(40) {
        let graph = random_graph(&mut SplitMix64::new(seed));
        if graph.nodes().iter().all(|n| !n.kind.noun().starts_with("parameter")) {
            continue;
        }
        let plain = budgeted(&graph, &device, Some(&update), None).expect("builds");
        let (plan, bytes) = least(&graph, &device, Some(&update));
        check(&plan, &plain);
        let repeated = &plan.recomputation.as_ref().expect("asked").repeated;
        again += repeated.len();
        let is_norm = |i: &&u32| plan.dispatches[**i as usize].kernel.name == "core.batch_norm";
        norms += repeated.iter().filter(is_norm).count();
        smaller += usize::from(bytes < plain.memory_forecast().planned);
        let same = trained_bits(&device, plan, &update, 3) == trained_bits(&device, plain, &update, 3);
        assert!(same, "graph {seed}");
    }
    println!("{again} second runs, {norms} of batch norms, {smaller} plans take less");
    assert!(again > 100 && norms > 0 && smaller > 20, "{again}, {norms}, {smaller}");
}

#[test]
fn plans_are_the_same_each_time() {
    let graph = deep();
    let budget = Some(MemoryBudget::OfStep(0.7));
    let make = || budgeted(&graph, &cpu(), None, budget).expect("reached");
    let (a, b) = (make(), make());
    assert!(a == b && a.recomputation.is_some_and(|r| !r.repeated.is_empty()));
}

#[test]
fn half_of_a_residual_network_costs_little() {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(2));
    for (name, rows, budget, slow_down) in [("resnet50", 8, "50%", 1.1), ("smollm2-135m", 512, "50%:step", 1.2)] {
        let graph = preset(name).expect("known").graph(rows);
        let plain = budgeted(&graph, &device, None, None).expect("builds");
        let plan = budgeted(&graph, &device, None, budget.parse().ok()).expect("reached");
        check(&plan, &plain);
        let what = plan.recomputation.as_ref().expect("asked");
        println!("{name} at {budget}: {what}");
        assert!(
            what.peak <= what.budget && what.slow_down() < slow_down,
            "{name}: {what}"
        );
    }
    // Persistent data are more than half of the memory: the error contains this and the reachable minimum.
    let graph = cnn_classifier(8, [1, 8, 8], 5);
    let error = budgeted(&graph, &device, None, Some(MemoryBudget::OfPeak(0.3))).expect_err("too little");
    let Error::MemoryBudget { budget, least, without } = error else {
        panic!("{error}");
    };
    assert!(budget < least && least <= without);
    assert!(
        error
            .to_string()
            .contains(&format!("the minimum possible is {:.1} MB", least as f64 / 1e6)),
        "{error}"
    );
}

#[test]
fn budgets_that_are_large_enough_change_nothing() {
    let graph = cnn_classifier(3, [1, 8, 8], 5);
    let device = cpu();
    let plain = budgeted(&graph, &device, None, None).expect("builds");
    for budget in [MemoryBudget::OfPeak(1.0), MemoryBudget::Bytes(1 << 40)] {
        let mut plan = budgeted(&graph, &device, None, Some(budget)).expect("it fits");
        let what = plan.recomputation.take().expect("a budget was given");
        assert!(what.repeated.is_empty() && what.slow_down() == 1.0, "{what}");
        plan.build_key = plain.build_key.clone();
        assert!(plan == plain);
    }
}

#[test]
fn budgets_that_make_no_sense_are_errors() {
    let graph = deep();
    let refused = |device: &Arc<dyn Device>, budget, why: &str| {
        let error = budgeted(&graph, device, None, Some(budget)).expect_err(why);
        assert!(
            matches!(error, Error::InvalidUse { .. }) && error.to_string().contains(why),
            "{error}"
        );
    };
    for share in [0.0, -0.5, 1.01, f64::NAN, f64::INFINITY] {
        refused(&cpu(), MemoryBudget::OfPeak(share), "is out of range");
        refused(&cpu(), MemoryBudget::OfStep(share), "is out of range");
    }
    refused(&cpu(), MemoryBudget::OfDevice(0.5), "its size is not known");
    // A percentage of the device refers to its memory.
    let whole = budgeted(&graph, &cpu(), None, None)
        .expect("builds")
        .memory_forecast()
        .planned;
    let device = LimitedCpu::device(Some(2 * whole as u64), None);
    let plan = budgeted(&graph, &device, None, Some(MemoryBudget::OfDevice(0.45))).expect("reached");
    let what = plan.recomputation.expect("asked");
    assert!(what.peak <= what.budget && what.budget < whole, "{what}");
    // Slabs have gaps, which count as memory.
    let largest = plan.buffers.iter().max().expect("some").next_multiple_of(256);
    let slabs = LimitedCpu::device(None, Some(2 * largest as u64));
    let (plan, bytes) = least(&graph, &slabs, None);
    assert!(plan.memory.slab.is_some() && plan.memory.bytes <= bytes);
    // The update is added afterwards.
    let update: Update = Sgd::new(0.1).into();
    let plan = budgeted(&graph, &cpu(), Some(&update), None).expect("builds");
    let rates = SimulatedDevice::discrete_gpu();
    let error = fit_to_budget(&plan, &MemoryBudget::OfPeak(0.5), &rates, None, &|_| Ok(())).expect_err("an update");
    assert!(error.to_string().contains("a plan without an update"), "{error}");
}

#[test]
fn forged_lists_of_second_runs_are_refused() {
    let graph = deep();
    let mut plan = budgeted(&graph, &cpu(), None, Some(MemoryBudget::OfPeak(0.9))).expect("reached");
    let count = plan.dispatches.len() as u32;
    plan.recomputation.as_mut().expect("asked").repeated.push(count);
    let error = plan.verify().expect_err("there is none").to_string();
    assert!(error.contains("which is marked as recomputed"), "{error}");
}

#[test]
fn sessions_take_a_budget_and_other_optimizers_later() {
    let graph = deep();
    let config = |memory_budget| SessionConfig {
        device: Some("cpu".into()),
        memory_budget,
        config: Some(Default::default()),
        ..SessionConfig::default()
    };
    let (mut session, _) = meganeura::builder::build(&graph, config(Some(MemoryBudget::OfStep(0.7)))).expect("builds");
    let (plain, _) = meganeura::builder::build(&graph, config(None)).expect("builds");
    let repeated = session.plan().recomputation.as_ref().map_or(0, |r| r.repeated.len());
    assert!(repeated > 0);
    assert!(session.plan().memory_forecast().planned < plain.plan().memory_forecast().planned);
    // An update that is added later comes after the repeated dispatches.
    let update = Update::new(Adam::new(1e-2));
    session.set_optimizer(update.clone());
    session.set_optimizer(Sgd::new(1e-2));
    session.plan().verify().expect("consistent");
    let device = cpu();
    let a = trained_bits(&device, session.plan().clone(), &update, 3);
    assert!(a == trained_bits(&device, plain.plan().clone(), &update, 3));
}
