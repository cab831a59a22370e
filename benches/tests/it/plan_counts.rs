//! Tests of the counts of each model's step that do not depend on the machine: dispatches, levels (with a barrier
//! between them), operations, bytes that dispatches move, and bytes of planned memory. They must equal the counts in
//! `benches/tests/plan_counts.toml`, which `MEGANEURA_UPDATE_COUNTS=1` updates: a change is either intended or a
//! regression.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use meganeura::backend::Device;
use meganeura::builder::{Builder, prepare};
use meganeura::cpu::CpuDevice;
use meganeura::nn::layers::WeightStorage;
use meganeura::nn::models::{LlamaConfig, LogitsOf, preset};
use meganeura::plan::try_compile;
use meganeura::rewrite::{RewriteConfig, SimulatedDevice};
use meganeura::{Adam, ExecutionPlan, Graph, Mode, Update};
use meganeura_bench::WorkloadCost;

const FILE: &str = "benches/tests/plan_counts.toml";
const VARIABLE: &str = "MEGANEURA_UPDATE_COUNTS";

/// Counts by name.
type Counts = BTreeMap<&'static str, u64>;

/// Returns models with their modes: small ones, and SmolLM2-135M, whose blocks repeat.
fn models() -> Vec<(&'static str, Graph, Mode)> {
    let of = |name: &str, rows: usize| preset(name).expect("a preset").graph(rows);
    let decode = |weights: WeightStorage| {
        let mut config = LlamaConfig::smollm2_135m();
        config.weights = weights.into();
        config.decode_graph(&[], 1, 128, LogitsOf::AllRows)
    };
    vec![
        ("mlp, training", of("mlp", 32), Mode::Training),
        ("cnn, training", of("cnn", 32), Mode::Training),
        ("resnet50, inference", of("resnet50", 1), Mode::Inference),
        ("resnet50, training", of("resnet50", 8), Mode::Training),
        ("smollm2-135m, inference", of("smollm2-135m", 128), Mode::Inference),
        ("smollm2-135m, training", of("smollm2-135m", 128), Mode::Training),
        (
            "smollm2-135m, a token, f32",
            decode(WeightStorage::F32),
            Mode::Inference,
        ),
        ("smollm2-135m, a token, q8", decode(WeightStorage::Q8), Mode::Inference),
    ]
}

fn update(mode: Mode) -> Option<Update> {
    (mode == Mode::Training).then(|| Adam::adamw(1e-3, 0.01).into())
}

/// Returns the plan for the CPU with two threads; the number of threads determines the estimated costs.
fn cpu_plan(device: &Arc<dyn Device>, graph: &Graph, mode: Mode) -> ExecutionPlan {
    let update = update(mode);
    let (mut plan, _) = Builder::on(device.clone())
        .mode(mode)
        .maybe_optimizer(update.clone())
        .plan(graph)
        .expect("a plan");
    if plan.memory.offsets.is_empty() {
        plan.place_buffers(None).expect("memory");
    }
    plan
}

/// Returns the plan for a simulated GPU: forward and backward pass.
fn gpu_plan(graph: &Graph, mode: Mode) -> ExecutionPlan {
    let rates = SimulatedDevice::discrete_gpu();
    let (graph, _) = prepare(graph, mode, &rates, &RewriteConfig::default(), None).expect("a graph");
    let mut plan = try_compile(&graph).expect("a plan");
    plan.place_buffers(None).expect("memory");
    plan
}

fn counts(plan: &ExecutionPlan, device: &dyn Device) -> Counts {
    let cost = WorkloadCost::of(plan, device);
    let stepped = plan.segments.iter().filter(|s| !s.once);
    let levels: usize = stepped.map(|segment| plan.levels(segment)).sum();
    BTreeMap::from([
        ("dispatches", cost.dispatches),
        ("levels", levels as u64),
        ("operations", cost.flops),
        ("bytes", cost.bytes),
        ("memory", plan.memory.bytes as u64),
    ])
}

fn found() -> BTreeMap<String, Counts> {
    let cpu: Arc<dyn Device> = Arc::new(CpuDevice::new(2));
    let mut all = BTreeMap::new();
    for (name, graph, mode) in models() {
        all.insert(format!("{name}, cpu"), counts(&cpu_plan(&cpu, &graph, mode), &*cpu));
        all.insert(format!("{name}, simulated gpu"), counts(&gpu_plan(&graph, mode), &*cpu));
    }
    all
}

fn written(counts: &BTreeMap<String, Counts>) -> String {
    let mut text = String::from("# Written by `MEGANEURA_UPDATE_COUNTS=1 cargo test -p meganeura-bench --test it`.\n");
    for (name, counts) in counts {
        text += &format!("\n[\"{name}\"]\n");
        text.extend(counts.iter().map(|(what, count)| format!("{what} = {count}\n")));
    }
    text
}

#[test]
fn plans_are_as_short_as_they_were() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(FILE);
    let found = found();
    if std::env::var_os(VARIABLE).is_some() {
        std::fs::write(&path, written(&found)).expect("written");
        return;
    }
    let text = std::fs::read_to_string(&path).expect("the file is there");
    let golden: BTreeMap<String, BTreeMap<String, u64>> = toml::from_str(&text).expect("tables of numbers");
    let mut differences = Vec::new();
    for (name, counts) in &found {
        let before = golden.get(name);
        for (what, count) in counts {
            let was = before.and_then(|before| before.get(*what));
            if was != Some(count) {
                let was = was.map_or("absent".to_owned(), ToString::to_string);
                differences.push(format!("  {name}: {what} was {was}, is {count}"));
            }
        }
    }
    differences.extend(
        golden
            .keys()
            .filter(|name| !found.contains_key(*name))
            .map(|name| format!("  {name} is gone")),
    );
    assert!(
        differences.is_empty(),
        "plans have changed:\n{}\nif that is meant: {VARIABLE}=1 cargo test -p meganeura-bench --test it, and commit {FILE}",
        differences.join("\n")
    );
}

/// Two runs, also on machines with different CPUs, give plans with the same counts.
#[test]
fn plans_do_not_depend_on_chance() {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(2));
    let graph = || preset("cnn").expect("a preset").graph(32);
    let [first, second] = [(); 2].map(|()| cpu_plan(&device, &graph(), Mode::Training));
    assert_eq!(first, second);
}
