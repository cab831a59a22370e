//! A workload: a graph, its inputs, and the task that is timed.

use std::time::Instant;

use super::{BenchDevice, Suite, WorkloadCost, feed, noise};
use meganeura::backend::Device;
use meganeura::build::Builder;
use meganeura::plan::optimizer::Update;
use meganeura::precision::Precision;
use meganeura::rewrite::RewriteConfig;
use meganeura::{DType, Graph, Mode, NodeId, Result, Session};

/// Numbers of a result, from its beginning, that are compared between devices.
const COMPARED: usize = 1 << 20;

/// The task of a workload that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// A step.
    Step,
    /// Building the plan of the graph.
    Build,
    /// Reading the plan from its file.
    CachedBuild,
    /// Opening a session for the plan: kernels are compiled, memory is allocated.
    Open,
    /// Setting the input `x`, and a step that reads a little of it.
    Upload,
    /// A step that writes the first output, which is as large as the input `x`, and reading all of it.
    ReadBack,
}

/// Workloads that differ only in their size.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Series {
    /// What they have in common.
    pub name: String,
    /// What the size counts.
    pub unit: String,
    /// Size.
    pub size: u64,
}

/// A graph with a name, a mode and a task.
pub struct Workload {
    /// The suite that it belongs to.
    pub suite: Suite,
    /// Name, with all sizes; unique within the suite.
    pub name: String,
    /// The series that it belongs to, if there is one.
    pub series: Option<Series>,
    /// The task that is timed.
    pub task: Task,
    /// Whether it trains.
    pub mode: Mode,
    /// The update of parameters, if steps have one.
    pub update: Option<Update>,
    /// Whether it is measured in both precisions on devices that have two; else only in the device's default.
    pub both_precisions: bool,
    /// Ids that are fed are below this.
    classes: u32,
    /// Integer inputs that all have one value, by name.
    fixed: Vec<(&'static str, u32)>,
    graph: Box<dyn Fn() -> Graph>,
}

impl Workload {
    /// Runs forward: `build` gives the result.
    pub fn inference(suite: Suite, name: impl Into<String>, build: impl Fn(&mut Graph) -> NodeId + 'static) -> Self {
        Workload::of(suite, name, Mode::Inference, move || {
            let mut graph = Graph::new();
            let result = build(&mut graph);
            graph.set_outputs(vec![result]);
            graph
        })
    }

    /// Runs forward and backward: the gradient of the sum of what `build` gives by every parameter.
    pub fn gradient(suite: Suite, name: impl Into<String>, build: impl Fn(&mut Graph) -> NodeId + 'static) -> Self {
        Workload::of(suite, name, Mode::Training, move || {
            let mut graph = Graph::new();
            let result = build(&mut graph);
            let loss = graph.sum_all(result);
            graph.set_outputs(vec![loss]);
            graph
        })
    }

    /// Any graph, in any mode.
    pub fn of(suite: Suite, name: impl Into<String>, mode: Mode, graph: impl Fn() -> Graph + 'static) -> Self {
        Workload {
            suite,
            name: name.into(),
            series: None,
            task: Task::Step,
            mode,
            update: None,
            both_precisions: false,
            classes: 2,
            fixed: Vec::new(),
            graph: Box::new(graph),
        }
    }

    /// Adds it to a series.
    pub fn in_series(mut self, name: &str, unit: &str, size: usize) -> Self {
        self.series = Some(Series {
            name: name.to_owned(),
            unit: unit.to_owned(),
            size: size as u64,
        });
        self
    }

    /// Sets the task that is timed; the default is a step.
    pub fn timing(mut self, task: Task) -> Self {
        self.task = task;
        self
    }

    /// Updates parameters with every step.
    pub fn updating(mut self, update: impl Into<Update>) -> Self {
        self.update = Some(update.into());
        self
    }

    /// Measures both precisions.
    pub fn in_both_precisions(mut self) -> Self {
        self.both_precisions = true;
        self
    }

    /// Feeds ids below `classes`, instead of 0 and 1.
    pub fn with_classes(mut self, classes: u32) -> Self {
        self.classes = classes;
        self
    }

    /// Feeds one value to every element of an integer input.
    pub fn with_fixed(mut self, input: &'static str, value: u32) -> Self {
        self.fixed.push((input, value));
        self
    }

    /// Builds its graph.
    pub fn graph(&self) -> Graph {
        (self.graph)()
    }

    /// The precisions in which a device is measured: the one asked for, else both where the workload says so and the device has
    /// two.
    pub fn precisions(&self, wanted: Option<Precision>, device: &dyn Device) -> Vec<Precision> {
        if wanted.is_none() && self.both_precisions && device.has_mixed_precision() {
            return vec![Precision::F32, Precision::Mixed];
        }
        vec![Precision::resolve(wanted, self.mode, device)]
    }

    /// A session of its graph with data in all inputs and parameters, before its first step.
    ///
    /// # Errors
    /// Errors of the build.
    pub fn session(&self, on: &BenchDevice, precision: Precision) -> Result<Session> {
        self.open(&self.graph(), on, &rewriting(on, precision))
    }

    fn open(&self, graph: &Graph, on: &BenchDevice, rewrite: &RewriteConfig) -> Result<Session> {
        let (plan, _) = Builder::on(on.device.clone())
            .mode(self.mode)
            .maybe_optimizer(self.update.clone())
            .rewrite(rewrite.clone())
            .plan(graph)?;
        let mut session = Session::on(on.device.clone(), plan)?;
        if let Some(update) = &self.update {
            session.try_set_optimizer(update.clone())?;
        }
        feed(&mut session, self.classes, &self.fixed)?;
        Ok(session)
    }

    /// Prepares it to be timed on a device, and runs it once.
    ///
    /// # Errors
    /// Errors of the build and of the step.
    pub fn prepare(&self, on: &BenchDevice, precision: Precision) -> Result<Prepared> {
        let graph = self.graph();
        let rewrite = rewriting(on, precision);
        let mut session = self.open(&graph, on, &rewrite)?;
        let kept = session.plan().clone();
        let cost = WorkloadCost::of(&kept, &*on.device);
        session.try_step()?;
        session.try_wait()?;
        let result = beginning(&mut session)?;
        let (device, update, mode) = (on.device.clone(), self.update.clone(), self.mode);
        let transferred = longest_input(&session);
        let run: Box<dyn FnMut(u32) -> Result<()>> = match self.task {
            Task::Step => Box::new(move |steps| {
                (0..steps).try_for_each(|_| session.try_step())?;
                session.try_wait().map(drop)
            }),
            Task::Build => Box::new(move |times| {
                (0..times).try_for_each(|_| {
                    Builder::on(device.clone())
                        .mode(mode)
                        .maybe_optimizer(update.clone())
                        .rewrite(rewrite.clone())
                        .plan(&graph)
                        .map(drop)
                })
            }),
            Task::CachedBuild => {
                let folder = tempfile::tempdir().map_err(|e| {
                    meganeura::Error::misuse(
                        format!("no folder for a plan can be made: {e}"),
                        "check that the folder for temporary files can be written",
                    )
                })?;
                let path = folder.path().join("plan.ron");
                Builder::on(device.clone())
                    .mode(mode)
                    .maybe_optimizer(update.clone())
                    .rewrite(rewrite.clone())
                    .cache(&path)
                    .plan(&graph)?;
                Box::new(move |times| {
                    // Kept as long as it is read from.
                    let _folder = &folder;
                    (0..times).try_for_each(|_| {
                        Builder::on(device.clone())
                            .mode(mode)
                            .maybe_optimizer(update.clone())
                            .rewrite(rewrite.clone())
                            .cache(&path)
                            .plan(&graph)
                            .map(drop)
                    })
                })
            }
            Task::Open => {
                Box::new(move |times| (0..times).try_for_each(|_| Session::on(device.clone(), kept.clone()).map(drop)))
            }
            Task::Upload => {
                let data = noise(transferred);
                Box::new(move |times| {
                    for _ in 0..times {
                        session.try_set_input("x", &data)?;
                        session.try_step()?;
                        session.try_wait()?;
                    }
                    Ok(())
                })
            }
            Task::ReadBack => {
                let mut data = vec![0.0; transferred];
                Box::new(move |times| {
                    for _ in 0..times {
                        session.try_step()?;
                        session.try_read_output_by_index(0, &mut data)?;
                    }
                    Ok(())
                })
            }
        };
        let has_roofline = self.task == Task::Step;
        let cost = match self.task {
            Task::Step => cost,
            Task::Upload | Task::ReadBack => WorkloadCost {
                bytes: 4 * transferred as u64,
                ..WorkloadCost::default()
            },
            _ => WorkloadCost::default(),
        };
        Ok(Prepared {
            precision,
            cost,
            has_roofline,
            result,
            run,
        })
    }
}

/// A workload on a device, ready to be timed.
pub struct Prepared {
    /// Precision of its plan.
    pub precision: Precision,
    /// Cost of a run.
    pub cost: WorkloadCost,
    /// Whether the cost gives a roofline bound; transfers and builds have none.
    pub has_roofline: bool,
    /// The first output of the first step; only its beginning if it is large.
    pub result: Vec<f32>,
    run: Box<dyn FnMut(u32) -> Result<()>>,
}

impl Prepared {
    /// Runs it a number of times back to back, and synchronizes after the last.
    ///
    /// # Errors
    /// Errors of the steps.
    pub fn run(&mut self, times: u32) -> Result<()> {
        (self.run)(times)
    }

    /// Mean seconds of a run, of a number of runs back to back.
    ///
    /// # Errors
    /// See [`Prepared::run`].
    pub fn time(&mut self, times: u32) -> Result<f64> {
        let start = Instant::now();
        self.run(times)?;
        Ok(start.elapsed().as_secs_f64() / f64::from(times.max(1)))
    }
}

/// The settings of a device's plans in a precision.
fn rewriting(on: &BenchDevice, precision: Precision) -> RewriteConfig {
    RewriteConfig {
        precision: Some(precision),
        ..on.rewrite.clone()
    }
}

/// The beginning of the first output.
fn beginning(session: &mut Session) -> Result<Vec<f32>> {
    let Some(ty) = session.plan().output_types.first().cloned() else {
        return Ok(Vec::new());
    };
    if ty.dtype != DType::F32 {
        return Ok(Vec::new());
    }
    let mut data = vec![0.0; ty.numel().min(COMPARED)];
    session.try_read_output_start(0, &mut data)?;
    Ok(data)
}

/// Elements of the largest input.
fn longest_input(session: &Session) -> usize {
    let plan = session.plan();
    let sizes = plan.input_buffers.iter();
    sizes
        .map(|(_, b)| plan.buffer_types[b.index()].numel())
        .max()
        .unwrap_or(0)
}
