//! Tests that buffers share memory, and that this does not change results.

use std::collections::HashSet;
use std::sync::Arc;

use crate::plans::{LimitedCpu, cpu, lower_bound, trained_bits};
use meganeura::backend::Device;
use meganeura::builder::Builder;
use meganeura::cpu::CpuDevice;
use meganeura::nn::models::{
    LlamaConfig, VitConfig, classifier, cnn_classifier, language_model, mlp_classifier, preset,
};
use meganeura::ops::FusionRole;
use meganeura::plan::{Dispatch, MemoryBudget, Operand};
use meganeura::rewrite::RewriteConfig;
use meganeura::{Adam, Error, ExecutionPlan, GradientClip, Graph, Mode, Sgd, Update, registry};

fn plan(graph: &Graph, mode: Mode, update: Option<&Update>, device: &Arc<dyn Device>) -> ExecutionPlan {
    let (plan, _) = Builder::on(device.clone())
        .mode(mode)
        .maybe_optimizer(update.cloned())
        .plan(graph)
        .expect("builds");
    plan
}

#[test]
fn large_models_take_what_they_must() {
    for (name, rows, least) in [("smollm2-135m", 512, 1.4), ("resnet50", 8, 2.0)] {
        let graph = preset(name).expect("known").graph(rows);
        let device: Arc<dyn Device> = Arc::new(CpuDevice::new(2));
        let plan = plan(&graph, Mode::Training, None, &device);
        let forecast = plan.memory_forecast();
        let bound = lower_bound(&plan);
        let saved = forecast.unplanned as f64 / forecast.planned as f64;
        let over = forecast.planned as f64 / bound as f64;
        println!("{name}: {forecast}; {over:.3} of the bound, {saved:.2} times less");
        assert_eq!(bound, forecast.lower_bound, "{name}");
        assert!(over <= 1.1, "{name}: {over}");
        assert!(saved >= least, "{name}: {saved}");
    }
}

/// Returns true if a dispatch computes each element of its results from the elements at the same index.
fn is_elementwise(d: &Dispatch) -> bool {
    let fusing = |name: &str| registry::op(name).map_or(FusionRole::Opaque, |op| op.fusing());
    match d.attrs.program("program") {
        Ok(program) => program
            .steps()
            .iter()
            .all(|step| step.op.fusing() == FusionRole::Pointwise),
        Err(_) => fusing(&d.kernel.name) == FusionRole::Pointwise,
    }
}

/// Returns the minimum memory of a plan, assuming that elementwise results reuse the memory of an operand of their size
/// that is not needed later.
fn bound_in_place(plan: &ExecutionPlan) -> usize {
    let lives = plan.lifetimes();
    let persistent: usize = (0..lives.len())
        .filter(|&b| lives[b].is_none())
        .map(|b| plan.buffers[b])
        .sum();
    let (mut start, mut most) = (0, 0);
    for segment in &plan.segments {
        for level in 0..plan.levels(segment) {
            let at = start + level;
            let is_live = |b: &usize| lives[*b].is_some_and(|l| (l.first..=l.last).contains(&at));
            let bytes: usize = (0..lives.len()).filter(is_live).map(|b| plan.buffers[b]).sum();
            let now = |d: &&Dispatch| d.level as usize == level;
            let dispatches: Vec<&Dispatch> = plan.dispatches[segment.range()].iter().filter(now).collect();
            let mut taken = HashSet::new();
            for d in dispatches.iter().filter(|d| is_elementwise(d)) {
                for output in d.outputs.iter().filter(|o| lives[o.buffer.index()].is_some()) {
                    let free = |i: &&Operand| {
                        let reads = |d: &&&Dispatch| d.inputs.iter().any(|o| o.buffer == i.buffer);
                        lives[i.buffer.index()].is_some_and(|l| l.last == at)
                            && i.ty.bytes() == output.ty.bytes()
                            && i.ty.shape == output.ty.shape
                            && dispatches.iter().filter(reads).count() == 1
                    };
                    if let Some(operand) = d.inputs.iter().filter(free).find(|i| !taken.contains(&i.buffer)) {
                        taken.insert(operand.buffer);
                    }
                }
            }
            let saved: usize = taken.iter().map(|b| plan.buffers[b.index()]).sum();
            most = most.max(bytes - saved);
        }
        start += plan.levels(segment);
    }
    persistent + most
}

/// No plan would become smaller if results reused the memory of operands, so the library does not do it. If this test
/// fails one day, the feature has become useful.
#[test]
fn computing_in_place_would_save_nothing() {
    let vit = VitConfig::new([3, 32, 32], 4, 10);
    let mut graphs = models();
    graphs.push((
        "vit",
        classifier(4, &[3, 32, 32], |g, x| vit.build(g, "").forward(g, x)),
    ));
    graphs.push(("resnet50", preset("resnet50").expect("known").graph(8)));
    graphs.push(("smollm2-135m", preset("smollm2-135m").expect("known").graph(512)));
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(2));
    let mut plans = 0;
    for (name, graph) in graphs {
        for (mode, budget) in [
            (Mode::Training, None),
            (Mode::Training, Some(MemoryBudget::OfStep(0.6))),
            (Mode::Inference, None),
        ] {
            let config = RewriteConfig {
                memory_budget: budget,
                ..RewriteConfig::default()
            };
            // Small models do not reach the budget.
            let Ok((plan, _)) = Builder::on(device.clone())
                .mode(mode)
                .rewrite(config.clone())
                .plan(&graph)
            else {
                continue;
            };
            let (bound, in_place) = (lower_bound(&plan), bound_in_place(&plan));
            assert!(
                in_place <= bound && in_place as f64 >= 0.99 * bound as f64,
                "{name}: {in_place} of {bound}"
            );
            assert!(plan.memory.bytes as f64 <= 1.1 * in_place as f64, "{name}");
            plans += 1;
        }
    }
    assert!(plans > 12, "{plans}");
}

fn models() -> Vec<(&'static str, Graph)> {
    let llama = LlamaConfig {
        layers: 2,
        ..LlamaConfig::small(17)
    };
    vec![
        ("mlp", mlp_classifier(6, 12, 5)),
        ("cnn", cnn_classifier(3, [1, 8, 8], 5)),
        ("llama", language_model(2, 9, |g, t| llama.build(g, "").forward(g, t))),
    ]
}

#[test]
fn results_are_those_of_buffers_apart() {
    let device = cpu();
    let update = Update::new(Adam::adamw(1e-2, 0.1))
        .clip(GradientClip::Norm(1.0))
        .accumulate(2);
    for (name, graph) in models() {
        let shared = {
            let mut plan = plan(&graph, Mode::Training, None, &device);
            meganeura::compile::optimizer::attach(&mut plan, &update, &*device).expect("attaches");
            plan
        };
        let mut apart = shared.clone();
        apart.memory = Default::default();
        assert!(shared.memory.bytes < shared.total_bytes(), "{name}: nothing is shared");
        let run = |plan: ExecutionPlan| trained_bits(&device, plan, &update, 5);
        assert!(run(shared) == run(apart), "{name}");
    }
}

#[test]
fn a_plan_that_does_not_fit_says_what_would() {
    let graph = mlp_classifier(512, 64, 10);
    let adam = || Some(Update::new(Adam::new(1e-3)));
    let needed = plan(&graph, Mode::Training, adam().as_ref(), &cpu()).memory_forecast();
    let start = |memory: usize, update| {
        let device = LimitedCpu::device(Some(memory as u64), None);
        Builder::on(device).maybe_optimizer(update).build(&graph).map(drop)
    };
    start(needed.planned, adam()).expect("it fits exactly");
    let persistent = needed.planned - needed.transient;
    let error = start(needed.planned - 1_000_000, adam()).expect_err("it does not fit");
    assert!(
        matches!(error, Error::OutOfMemory { available: Some(_), .. }),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains("1.0 MB are missing") && text.contains("% of these rows would fit"),
        "{text}"
    );
    assert!(text.contains("parameters take") && text.contains("optimizer"), "{text}");
    let text = start(persistent - needed.optimizer + 1, adam())
        .expect_err("too small")
        .to_string();
    assert!(text.contains("`Sgd` without momentum"), "{text}");
    let text = start(1000, adam()).expect_err("too small").to_string();
    assert!(text.contains("use a smaller model"), "{text}");
    // An optimizer that is set later has the same limit, and the session continues without it.
    let without = plan(&graph, Mode::Training, None, &cpu()).memory_forecast();
    // Memory for the scalars of an update.
    let device = LimitedCpu::device(Some(without.planned as u64 + 4096), None);
    let (mut session, _) = Builder::on(device).build(&graph).expect("it fits");
    let error = session
        .try_set_optimizer(Adam::new(1e-3))
        .expect_err("moments do not fit");
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    session.try_set_optimizer(Sgd::new(1e-3)).expect("needs no moments");
}

#[test]
fn no_buffer_lies_in_two_slabs() {
    let graph = cnn_classifier(3, [1, 8, 8], 5);
    let whole = plan(&graph, Mode::Training, None, &cpu());
    let largest = whole.buffers.iter().copied().max().expect("some").next_multiple_of(256);
    let device = LimitedCpu::device(None, Some(largest as u64 + 7));
    let slabs = plan(&graph, Mode::Training, None, &device);
    assert_eq!(slabs.memory.slab, Some(largest));
    assert!(slabs.memory.bytes > largest);
    for (offset, bytes) in slabs.memory.offsets.iter().zip(&slabs.buffers) {
        assert_eq!(offset / largest, (offset + bytes.saturating_sub(1)) / largest);
    }
    let small = LimitedCpu::device(None, Some(largest as u64 - 1));
    let error = Builder::on(small.clone()).plan(&graph).expect_err("too small");
    assert!(error.to_string().contains("the device binds at most"), "{error}");
}

#[test]
fn layouts_that_are_wrong_are_refused() {
    let good = plan(&mlp_classifier(6, 12, 5), Mode::Training, None, &cpu());
    good.verify().expect("as it was made");
    let refused = |change: &dyn Fn(&mut ExecutionPlan), why: &str| {
        let mut plan = good.clone();
        change(&mut plan);
        let error = plan.verify().expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
        assert!(cpu().compile(&plan).is_err());
    };
    let x = good.input_buffers[0].1.index();
    let weight = good.param_buffers[0].1.index();
    let inside = "does not lie within the memory";
    refused(&|p| p.memory.offsets.truncate(3), "another number of buffers");
    refused(&|p| p.memory.offsets[x] = p.memory.bytes.next_multiple_of(256), inside);
    refused(&|p| p.memory.offsets[x] = usize::MAX - 255, inside);
    refused(&|p| p.memory.offsets[x] += 4, inside);
    refused(&|p| p.memory.bytes = 64, inside);
    refused(&|p| p.memory.slab = Some(0), inside);
    refused(
        &|p| p.memory.offsets[weight] = p.memory.offsets[x],
        "in the same memory at the same time",
    );
    // Two values of one step that are both needed for the last level.
    let lives = good.lifetimes();
    let overlapping = |a: usize, b: usize| match (lives[a], lives[b]) {
        (Some(a), Some(b)) => a.first <= b.last && b.first <= a.last,
        _ => false,
    };
    let pairs = (0..lives.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
    let (a, b) = pairs
        .into_iter()
        .find(|&(a, b)| overlapping(a, b))
        .expect("there are some");
    refused(
        &|p| p.memory.offsets[a] = p.memory.offsets[b],
        "in the same memory at the same time",
    );
}
