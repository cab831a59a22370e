//! Buffers share memory, and nobody notices but for the bytes.

use std::collections::HashSet;
use std::sync::Arc;

use meganeura::backend::{Capabilities, Device, Executable, KernelDesc, Support};
use meganeura::build::{build_on, plan_for};
use meganeura::cpu::CpuDevice;
use meganeura::nn::models::{LlamaConfig, cnn_classifier, language_model, mlp_classifier, preset};
use meganeura::rewrite::RewriteConfig;
use meganeura::{Adam, Error, ExecutionPlan, GradientClip, Graph, Mode, Result, Session, Sgd, Update};

/// The CPU with other limits.
struct Limited {
    device: CpuDevice,
    capabilities: Capabilities,
}

impl Limited {
    fn device(memory_bytes: Option<u64>, max_buffer_bytes: Option<u64>) -> Arc<dyn Device> {
        let device = CpuDevice::new(2);
        let capabilities = Capabilities {
            memory_bytes,
            max_buffer_bytes,
            ..device.capabilities().clone()
        };
        Arc::new(Limited { device, capabilities })
    }
}

impl Device for Limited {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn supports(&self, kernel: &KernelDesc) -> Support {
        self.device.supports(kernel)
    }
    fn compile(&self, plan: &ExecutionPlan) -> Result<Box<dyn Executable>> {
        self.device.compile(plan)
    }
}

fn cpu() -> Arc<dyn Device> {
    Limited::device(None, None)
}

fn plan(graph: &Graph, mode: Mode, update: Option<&Update>, device: &Arc<dyn Device>) -> ExecutionPlan {
    let (plan, _) = plan_for(graph, device, mode, update, &RewriteConfig::default()).expect("builds");
    plan
}

/// Buffers that hold something at each level, found without the library's own notion of lifetimes: level by level,
/// what somebody fills or reads from outside, and what was written at or before this level and is read at or after it.
fn live(plan: &ExecutionPlan) -> Vec<HashSet<usize>> {
    let mut levels: Vec<(HashSet<usize>, HashSet<usize>)> = Vec::new();
    for segment in &plan.segments {
        let dispatches = &plan.dispatches[segment.first..segment.first + segment.count];
        let first = levels.len();
        for d in dispatches {
            levels.resize(levels.len().max(first + d.level as usize + 1), Default::default());
            let (reads, writes) = &mut levels[first + d.level as usize];
            reads.extend(d.inputs.iter().map(|o| o.buffer.index()));
            writes.extend(d.outputs.iter().map(|o| o.buffer.index()));
        }
    }
    let mut always: HashSet<usize> = HashSet::new();
    always.extend(plan.param_buffers.iter().map(|(_, b)| b.index()));
    always.extend(plan.input_buffers.iter().map(|(_, b)| b.index()));
    always.extend(plan.scalar_buffers.iter().map(|(_, b)| b.index()));
    always.extend(plan.gradient_buffers.iter().map(|(_, b)| b.index()));
    always.extend(plan.constants().map(|(b, _)| b.index()));
    always.extend(plan.state_buffers.iter().map(|s| s.buffer.index()));
    always.extend(plan.output_buffers.iter().map(|b| b.index()));
    // Backwards: what is read later is live if it was written before.
    let mut needed_after: Vec<HashSet<usize>> = vec![HashSet::new(); levels.len()];
    let mut later: HashSet<usize> = HashSet::new();
    for (i, (reads, _)) in levels.iter().enumerate().rev() {
        needed_after[i] = later.clone();
        later.extend(reads);
    }
    let mut written: HashSet<usize> = HashSet::new();
    let mut live = Vec::new();
    for (i, (reads, writes)) in levels.iter().enumerate() {
        let mut now: HashSet<usize> = reads.union(writes).copied().collect();
        now.extend(written.intersection(&needed_after[i]));
        now.extend(&always);
        written.extend(writes);
        live.push(now);
    }
    live
}

/// The largest live set, in bytes; also checks that nothing in a live set overlaps in memory.
fn lower_bound(plan: &ExecutionPlan) -> usize {
    let mut most = 0;
    for (level, set) in live(plan).into_iter().enumerate() {
        most = most.max(set.iter().map(|&b| plan.buffers[b]).sum());
        let mut places: Vec<(usize, usize)> = set
            .iter()
            .map(|&b| (plan.memory.offsets[b], plan.memory.offsets[b] + plan.buffers[b]))
            .filter(|(start, end)| start < end)
            .collect();
        places.sort_unstable();
        let clash = places.windows(2).find(|w| w[0].1 > w[1].0);
        assert!(clash.is_none(), "level {level}: {clash:?}");
        assert!(places.iter().all(|(_, end)| *end <= plan.memory.bytes));
    }
    most
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

fn fed(device: &Arc<dyn Device>, plan: ExecutionPlan) -> Session {
    let inputs = plan.input_buffers.clone();
    let bytes: Vec<usize> = inputs.iter().map(|(_, b)| plan.buffers[b.index()]).collect();
    let mut session = Session::on(device.clone(), plan).expect("fits");
    session.initialize_parameters(3);
    session.set_seed(5);
    for ((name, _), bytes) in inputs.iter().zip(bytes) {
        let words = bytes / 4;
        match name == "x" {
            true => session.set_input(name, &(0..words).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<_>>()),
            false => session.set_input_u32(name, &(0..words as u32).map(|i| i * 3 % 5).collect::<Vec<_>>()),
        }
    }
    session
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
        let run = |plan: ExecutionPlan| {
            let mut session = fed(&device, plan);
            session.set_optimizer(update.clone());
            let mut bits = Vec::new();
            for _ in 0..5 {
                session.step();
                bits.push(session.read_loss().to_bits());
            }
            for view in session.plan().parameters() {
                bits.extend(session.read_parameter(&view.name).iter().map(|v| v.to_bits()));
                bits.extend(session.read_grad(&view.name).iter().map(|v| v.to_bits()));
            }
            bits
        };
        assert!(run(shared) == run(apart), "{name}");
    }
}

#[test]
fn a_plan_that_does_not_fit_says_what_would() {
    let graph = mlp_classifier(512, 64, 10);
    let adam = || Some(Update::new(Adam::new(1e-3)));
    let needed = plan(&graph, Mode::Training, adam().as_ref(), &cpu()).memory_forecast();
    let start = |memory: usize, update| {
        let device = Limited::device(Some(memory as u64), None);
        build_on(&graph, device, Mode::Training, update).map(drop)
    };
    start(needed.planned, adam()).expect("it fits exactly");
    let lasting = needed.planned - needed.transient;
    let error = start(needed.planned - 1_000_000, adam()).expect_err("it does not fit");
    assert!(
        matches!(error, Error::OutOfMemory { available: Some(_), .. }),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains("1.0 MB too little") && text.contains("% of this one's rows would fit"),
        "{text}"
    );
    assert!(text.contains("parameters take") && text.contains("optimizer"), "{text}");
    let text = start(lasting - needed.optimizer + 1, adam())
        .expect_err("too small")
        .to_string();
    assert!(text.contains("`Sgd` without momentum"), "{text}");
    let text = start(1000, adam()).expect_err("too small").to_string();
    assert!(text.contains("use a smaller model"), "{text}");
    // An optimizer that is set later is held to the same limit, and the session goes on without it.
    let without = plan(&graph, Mode::Training, None, &cpu()).memory_forecast();
    // Room for the scalars of an update.
    let device = Limited::device(Some(without.planned as u64 + 4096), None);
    let (mut session, _) = build_on(&graph, device, Mode::Training, None).expect("it fits");
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
    let device = Limited::device(None, Some(largest as u64 + 7));
    let slabs = plan(&graph, Mode::Training, None, &device);
    assert_eq!(slabs.memory.slab, Some(largest));
    assert!(slabs.memory.bytes > largest);
    for (offset, bytes) in slabs.memory.offsets.iter().zip(&slabs.buffers) {
        assert_eq!(offset / largest, (offset + bytes.saturating_sub(1)) / largest);
    }
    let small = Limited::device(None, Some(largest as u64 - 1));
    let error = plan_for(&graph, &small, Mode::Training, None, &RewriteConfig::default()).expect_err("too small");
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
