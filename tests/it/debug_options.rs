//! Tests of debugging options: whether a backend receives them, and their effects.

use std::fs;
use std::sync::{Arc, Mutex};

use meganeura::backend::{Capabilities, Device, Executable, KernelDesc, KernelSource, Support};
use meganeura::builder::Builder;
use meganeura::cpu::CpuDevice;
use meganeura::plan::ExecutionPlan;
use meganeura::rewrite::RewriteConfig;
use meganeura::{Adam, DebugOptions, Graph, Result, Session};

/// CPU device that records the plans that it compiles, and returns a source text for each kernel.
struct Spy {
    cpu: CpuDevice,
    seen: Mutex<Vec<ExecutionPlan>>,
}

impl Device for Spy {
    fn capabilities(&self) -> &Capabilities {
        self.cpu.capabilities()
    }
    fn supports(&self, kernel: &KernelDesc) -> Support {
        self.cpu.supports(kernel)
    }
    fn kernel_sources(&self, plan: &ExecutionPlan) -> Result<Vec<KernelSource>> {
        let sources = (0..plan.dispatches.len()).map(|dispatch| KernelSource {
            dispatch,
            part: 1,
            language: "c",
            text: format!("kernel of {dispatch}"),
            variant: None,
            why: None,
        });
        Ok(sources.collect())
    }
    fn compile(&self, plan: &ExecutionPlan) -> Result<Box<dyn Executable>> {
        self.seen.lock().expect("no panic").push(plan.clone());
        self.cpu.compile(plan)
    }
}

/// Returns the bits of some losses, and the plans that the device compiled: without an update, and with one.
fn train(options: &DebugOptions) -> (Vec<u32>, Vec<ExecutionPlan>) {
    let mut g = Graph::new();
    let x = g.input("x", &[4, 6]);
    let sides = ["a", "b"].map(|name| {
        let w = g.parameter(name, &[6, 6]);
        let y = g.matmul(x, w);
        g.tanh(y)
    });
    let y = g.mul(sides[0], sides[1]);
    let loss = g.mean_all(y);
    g.set_outputs(vec![loss]);
    let spy = Arc::new(Spy {
        cpu: CpuDevice::new(1),
        seen: Mutex::default(),
    });
    let device: Arc<dyn Device> = spy.clone();
    let (plan, _) = Builder::on(device.clone())
        .rewrite(RewriteConfig::off())
        .plan(&g)
        .expect("a plan");
    let mut session = Session::debugged(device, plan.clone(), options.clone()).expect("a session");
    assert_eq!(session.plan(), &plan, "the session's plan stays what it was");
    session.set_optimizer(Adam::new(0.01));
    for name in ["a", "b"] {
        session.set_parameter(name, &(0..36).map(|i| (i % 7) as f32 / 7.0 - 0.4).collect::<Vec<f32>>());
    }
    session.set_input("x", &(0..24).map(|i| (i % 5) as f32 / 5.0).collect::<Vec<f32>>());
    let step = |_| {
        session.step();
        session.read_loss().to_bits()
    };
    let losses = (0..4).map(step).collect();
    drop(session);
    let seen = Arc::into_inner(spy).expect("the session is gone").seen;
    (losses, seen.into_inner().expect("no panic"))
}

fn most_in_a_level(plan: &ExecutionPlan) -> usize {
    let levels = plan
        .segments
        .iter()
        .flat_map(|s| plan.dispatches[s.range()].chunk_by(|a, b| a.level == b.level));
    levels.map(<[_]>::len).max().unwrap_or(0)
}

#[test]
fn options_change_what_devices_compile_and_no_result() {
    let options = |text: &str| DebugOptions::parse(text).expect("options");
    let (losses, plans) = train(&options(""));
    assert_ne!(losses[0], losses[3], "it learns something");
    assert_eq!(plans.len(), 2);
    for plan in &plans {
        assert!(most_in_a_level(plan) > 1 && !plan.memory.offsets.is_empty());
    }
    let (same, plans) = train(&options("serial"));
    assert_eq!(same, losses);
    for plan in &plans {
        plan.verify().expect("still a plan");
        assert!(most_in_a_level(plan) == 1 && !plan.memory.offsets.is_empty());
    }
    let (same, plans) = train(&options("no-aliasing"));
    assert_eq!(same, losses);
    assert!(
        plans
            .iter()
            .all(|p| most_in_a_level(p) > 1 && p.memory.offsets.is_empty())
    );
}

#[test]
fn sources_are_written_by_dispatch() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = DebugOptions {
        dump: Some(folder.path().join("kernels")),
        ..DebugOptions::default()
    };
    let (_, plans) = train(&options);
    let mut found = 0;
    for entry in fs::read_dir(folder.path().join("kernels")).expect("made") {
        let path = entry.expect("readable").path();
        let text = fs::read_to_string(path.join("plan.txt")).expect("a plan");
        let plan = plans.iter().find(|p| p.to_string() == text).expect("one of them");
        assert_eq!(
            fs::read_dir(&path).expect("readable").count(),
            plan.dispatches.len() + 2
        );
        let name = plan.dispatches[0].kernel.name.replace('.', "_");
        let source = fs::read_to_string(path.join(format!("0000-1-{name}.c"))).expect("a source");
        assert_eq!(source, "kernel of 0");
        found += 1;
    }
    assert_eq!(found, plans.len());
}
