//! Tests of steps that are split between two devices (halves): their times, and their errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use meganeura_conformance::ReferenceBackend;
use meganeura_core::backend::{
    Capabilities, Device, Executable, KernelDesc, PassTiming, StepArgs, StepStats, Support, Ticket,
};
use meganeura_core::error::{Error, Result};
use meganeura_core::fallback::WithFallback;
use meganeura_core::plan::{BufferRef, ExecutionPlan, compile_for};
use meganeura_core::{Graph, Session};

/// Device wrapper that measures every dispatch, lacks a kernel, and fails on demand.
struct FailingDevice {
    inner: Arc<dyn Device>,
    lacks: &'static str,
    faults: Arc<Faults>,
}

/// Faults that the device injects.
#[derive(Default)]
struct Faults {
    /// Makes the wait for a step fail.
    wait: AtomicBool,
    /// Makes everything else fail.
    everything: AtomicBool,
    /// True if a failed wait also makes all later calls fail.
    dies: AtomicBool,
}

struct WrappedRun {
    inner: Box<dyn Executable>,
    plan: ExecutionPlan,
    faults: Arc<Faults>,
    measures: bool,
    passes: Vec<PassTiming>,
    submitted: u64,
}

impl Device for FailingDevice {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn supports(&self, kernel: &KernelDesc) -> Support {
        if kernel.name == self.lacks {
            Support::No("it was taken away".into())
        } else {
            self.inner.supports(kernel)
        }
    }

    fn compile(&self, plan: &ExecutionPlan) -> Result<Box<dyn Executable>> {
        Ok(Box::new(WrappedRun {
            inner: self.inner.compile(plan)?,
            plan: plan.clone(),
            faults: self.faults.clone(),
            measures: false,
            passes: Vec::new(),
            submitted: 0,
        }))
    }
}

impl WrappedRun {
    fn check(&self) -> Result<()> {
        if self.faults.everything.load(Ordering::Relaxed) {
            Err(Error::backend("wrapped", "it is gone"))
        } else {
            Ok(())
        }
    }
}

impl Executable for WrappedRun {
    fn write(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check()?;
        self.inner.write(buffer, offset, bytes)
    }

    fn read(&mut self, buffer: BufferRef, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.check()?;
        self.inner.read(buffer, offset, bytes)
    }

    fn run(&mut self, args: &StepArgs) -> Result<Ticket> {
        self.check()?;
        self.inner.run(args)?;
        self.submitted += 1;
        let dispatches = args.segments.iter().flat_map(|&s| self.plan.segments[s].range());
        for i in dispatches.filter(|_| self.measures) {
            self.passes.push(PassTiming {
                label: self.plan.dispatches[i].kernel.name.as_str().into(),
                dispatches: Arc::new([i as u32]),
                submission: Ticket(self.submitted),
                start: Instant::now(),
                duration: Duration::from_micros(7),
            });
        }
        Ok(Ticket(self.submitted))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepStats> {
        self.check()?;
        assert_eq!(ticket, Ticket(self.submitted));
        if self.faults.wait.swap(false, Ordering::Relaxed) {
            let dies = self.faults.dies.load(Ordering::Relaxed);
            self.faults.everything.store(dies, Ordering::Relaxed);
            return Err(Error::backend("wrapped", "the step went wrong"));
        }
        Ok(StepStats {
            device_time: Some(Duration::from_micros(5)),
        })
    }

    fn set_profiling(&mut self, on: bool) {
        self.measures = on;
    }

    fn take_timings(&mut self) -> Vec<PassTiming> {
        std::mem::take(&mut self.passes)
    }
}

fn pair() -> (Arc<dyn Device>, [Arc<Faults>; 2]) {
    let faults = [(); 2].map(|()| Arc::new(Faults::default()));
    let device = |lacks, faults: &Arc<Faults>| {
        Arc::new(FailingDevice {
            inner: ReferenceBackend::new().primitives_only().device(),
            lacks,
            faults: faults.clone(),
        })
    };
    let both = WithFallback::new(device("core.matmul", &faults[0]), device("nothing", &faults[1]));
    (Arc::new(both), faults)
}

/// Returns a plan with sums, and a product between them that the other device computes. It writes a state before it
/// reads an index.
fn plan(device: &dyn Device) -> ExecutionPlan {
    let mut g = Graph::new();
    let (x, w) = (g.input("x", &[2, 2]), g.parameter("w", &[2, 2]));
    let sum = g.add(x, w);
    let count = g.state("count", &[2, 2]);
    let counted = g.add(count, x);
    g.assign(count, counted);
    let product = g.matmul(sum, w);
    let table = g.add(product, x);
    let ids = g.input_u32("ids", &[1]);
    let row = g.gather(table, ids);
    g.set_outputs(vec![row]);
    compile_for(&g, device).expect("both have the kernels")
}

#[test]
fn times_are_those_of_the_whole_plan() {
    let (device, _) = pair();
    let plan = plan(&*device);
    let mut executable = device.compile(&plan).expect("it compiles");
    let run = |executable: &mut Box<dyn Executable>| {
        let segments: Vec<usize> = (0..plan.segments.len()).collect();
        let args = StepArgs {
            segments: &segments,
            scalars: &[],
        };
        let ticket = executable.run(&args).expect("it runs");
        let stats = executable.wait(ticket).expect("it is over");
        let parts = stats.device_time.expect("both measure").as_micros() / 5;
        assert!((2..=plan.dispatches.len() as u128).contains(&parts), "{parts} parts");
        ticket
    };
    run(&mut executable);
    assert_eq!(executable.take_timings(), [], "nobody asked for times");
    executable.set_profiling(true);
    let tickets = [run(&mut executable), run(&mut executable)];
    assert_ne!(tickets[0], tickets[1]);
    let passes = executable.take_timings();
    for ticket in tickets {
        let of_step = passes.iter().filter(|p| p.submission == ticket);
        let mut seen: Vec<u32> = Vec::new();
        for pass in of_step.clone().filter(|p| !p.dispatches.is_empty()) {
            for &i in pass.dispatches.iter() {
                assert_eq!(plan.dispatches[i as usize].kernel.name, &*pass.label);
                seen.push(i);
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..plan.dispatches.len() as u32).collect::<Vec<_>>());
        let copies = of_step.filter(|p| &*p.label == "copy between devices").count();
        assert!(copies >= 2, "there and back: {copies}");
    }
    assert!(passes.windows(2).all(|w| w[0].start <= w[1].start), "in their order");
    executable.set_profiling(false);
    run(&mut executable);
    assert_eq!(executable.take_timings(), []);
}

fn session() -> (Session, [Arc<Faults>; 2]) {
    let (device, faults) = pair();
    let plan = plan(&*device);
    let mut session = Session::on(device, plan).expect("it compiles");
    session.set_parameter("w", &[1.0, 2.0, 3.0, 4.0]);
    session.set_input("x", &[1.0, 1.0, 1.0, 1.0]);
    session.set_input_u32("ids", &[1]);
    (session, faults)
}

#[test]
fn the_error_of_either_half_is_that_of_the_step() {
    for half in 0..2 {
        let (mut session, faults) = session();
        session.step();
        let count = session.try_read_state("count").expect("readable");
        faults[half].wait.store(true, Ordering::Relaxed);
        let error = session.try_step().expect_err("a half fails").to_string();
        assert!(error.contains("the step went wrong"), "half {half}: {error}");
        assert_eq!(session.try_read_state("count").expect("readable"), count, "half {half}");
        session.try_step().expect("it goes on");
        assert_eq!(
            session.try_read_state("count").expect("readable"),
            [2.0; 4],
            "half {half}"
        );
    }
}

/// A value prepared from a weight, in parts on both devices, is kept for many steps, and computed again after a failed
/// step.
#[test]
fn prepared_values_of_two_devices_last_from_step_to_step() {
    let (device, faults) = pair();
    let mut g = Graph::new();
    let (x, w) = (g.input("x", &[2, 2]), g.parameter("w", &[2, 2]));
    let doubled = g.add(w, w);
    let squared = g.matmul(doubled, w);
    let prepared = g.add(squared, w);
    let y = g.mul(x, prepared);
    g.set_outputs(vec![y]);
    let plan = compile_for(&g, &*device).expect("both have the kernels");
    assert!(plan.segments[0].once && plan.segments[0].count == 3, "{plan}");
    let mut session = Session::on(device, plan).expect("it compiles");
    session.set_input("x", &[1.0; 4]);
    // 2 w w + w, for a multiple of the identity.
    for factor in [1.0, 3.0f32] {
        session.set_parameter("w", &[factor, 0.0, 0.0, factor]);
        for half in &faults {
            half.wait.store(true, Ordering::Relaxed);
            session.try_step().expect_err("a half fails");
        }
        for _ in 0..2 {
            session.step();
            let expected = 2.0 * factor * factor + factor;
            assert_eq!(session.read_output(4), [expected, 0.0, 0.0, expected]);
        }
    }
}

#[test]
fn what_cannot_be_put_back_hides_no_error() {
    for half in 0..2 {
        let (mut session, faults) = session();
        session.step();
        faults[half].dies.store(true, Ordering::Relaxed);
        faults[half].wait.store(true, Ordering::Relaxed);
        let error = session.try_step().expect_err("a half fails").to_string();
        assert!(error.contains("the step went wrong"), "half {half}: {error}");
        // From then on, both causes are reported, even if only the other half is needed.
        for error in [
            session.try_step().expect_err("it is gone").to_string(),
            session
                .try_set_input("x", &[0.0; 4])
                .expect_err("it is gone")
                .to_string(),
        ] {
            for words in ["cannot be used any more", "the step went wrong", "it is gone"] {
                assert!(error.contains(words), "half {half}: '{words}' in {error}");
            }
        }
    }
}

/// A write that one half refuses does not leave different contents of a buffer on the two devices.
#[test]
fn halves_do_not_go_on_with_different_contents() {
    let (mut session, faults) = session();
    faults[1].everything.store(true, Ordering::Relaxed);
    session.try_set_parameter("w", &[5.0; 4]).expect_err("it is told");
    faults[1].everything.store(false, Ordering::Relaxed);
    session.step();
    // (x + w) w + x, with one w.
    let w = session.read_parameter("w");
    let (a, b) = (1.0 + w[2], 1.0 + w[3]);
    assert_eq!(
        session.read_output(2),
        [a * w[0] + b * w[2] + 1.0, a * w[1] + b * w[3] + 1.0]
    );
}
