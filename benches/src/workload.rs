//! Workloads: a graph, its inputs, and the measured task.

use std::time::Instant;

use super::{BenchDevice, Suite, WorkloadCost, feed, noise};
use meganeura::backend::Device;
use meganeura::builder::Builder;
use meganeura::plan::optimizer::Update;
use meganeura::precision::Precision;
use meganeura::rewrite::RewriteConfig;
use meganeura::{DType, Graph, Mode, NodeId, Result, Session};

/// Maximum number of leading values of a result that are compared between devices.
const COMPARED: usize = 1 << 20;

/// Measured task of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Running a step.
    Step,
    /// Building the plan of the graph.
    Build,
    /// Reading the plan from its cache file.
    CachedBuild,
    /// Opening a session for the plan: kernels are compiled, memory is allocated.
    Open,
    /// Setting the input `x`, and running a step that reads a small part of it.
    Upload,
    /// Running a step that writes the first output, as large as the input `x`, and reading all of the output.
    ReadBack,
}

/// Series of workloads that differ only in their size, and the position of a workload in it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Series {
    /// Name of the series.
    pub name: String,
    /// Unit of the size, for charts.
    pub unit: String,
    /// Size of the workload.
    pub size: u64,
}

/// Graph with a name, a mode and a measured task.
pub struct Workload {
    /// Suite that the workload belongs to.
    pub suite: Suite,
    /// Name, with all sizes; unique within the suite.
    pub name: String,
    /// Series that the workload belongs to, if any.
    pub series: Option<Series>,
    /// Measured task.
    pub task: Task,
    /// Mode of the graph: training or inference.
    pub mode: Mode,
    /// Update of parameters, if steps have one.
    pub update: Option<Update>,
    /// True to measure both precisions on devices that support both; otherwise, only the device's default is measured.
    pub both_precisions: bool,
    /// Exclusive upper bound of ids in inputs.
    classes: u32,
    /// Integer inputs, by name, whose elements all have one value.
    fixed: Vec<(&'static str, u32)>,
    graph: Box<dyn Fn() -> Graph>,
}

impl Workload {
    /// Creates a workload of a forward pass. `build` returns the result.
    pub fn inference(suite: Suite, name: impl Into<String>, build: impl Fn(&mut Graph) -> NodeId + 'static) -> Self {
        Workload::of(suite, name, Mode::Inference, move || {
            let mut graph = Graph::new();
            let result = build(&mut graph);
            graph.set_outputs(vec![result]);
            graph
        })
    }

    /// Creates a workload of a forward and backward pass: the gradients of the sum of `build`'s result by every
    /// parameter.
    pub fn gradient(suite: Suite, name: impl Into<String>, build: impl Fn(&mut Graph) -> NodeId + 'static) -> Self {
        Workload::of(suite, name, Mode::Training, move || {
            let mut graph = Graph::new();
            let result = build(&mut graph);
            let loss = graph.sum_all(result);
            graph.set_outputs(vec![loss]);
            graph
        })
    }

    /// Creates a workload from any graph, in any mode.
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

    /// Adds the workload to a series.
    pub fn in_series(mut self, name: &str, unit: &str, size: usize) -> Self {
        self.series = Some(Series {
            name: name.to_owned(),
            unit: unit.to_owned(),
            size: size as u64,
        });
        self
    }

    /// Sets the measured task; the default is a step.
    pub fn timing(mut self, task: Task) -> Self {
        self.task = task;
        self
    }

    /// Adds an update of the parameters to every step.
    pub fn updating(mut self, update: impl Into<Update>) -> Self {
        self.update = Some(update.into());
        self
    }

    /// Measures the workload in both precisions.
    pub fn in_both_precisions(mut self) -> Self {
        self.both_precisions = true;
        self
    }

    /// Sets the exclusive upper bound of ids in inputs; the default is 2.
    pub fn with_classes(mut self, classes: u32) -> Self {
        self.classes = classes;
        self
    }

    /// Sets all elements of an integer input to one value.
    pub fn with_fixed(mut self, input: &'static str, value: u32) -> Self {
        self.fixed.push((input, value));
        self
    }

    /// Builds the graph.
    pub fn graph(&self) -> Graph {
        (self.graph)()
    }

    /// Returns the precisions in which a device is measured: the requested one, or both if the workload and the device support
    /// them.
    pub fn precisions(&self, wanted: Option<Precision>, device: &dyn Device) -> Vec<Precision> {
        if wanted.is_none() && self.both_precisions && device.has_mixed_precision() {
            return vec![Precision::F32, Precision::Mixed];
        }
        vec![Precision::resolve(wanted, self.mode, device)]
    }

    /// Creates a session of the graph, before its first step, and fills all inputs and parameters.
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

    /// Prepares the workload for measurements on a device, and runs it once.
    ///
    /// # Errors
    /// Errors of the build and of the step.
    pub fn prepare(&self, on: &BenchDevice, precision: Precision) -> Result<PreparedWorkload> {
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
                    // Keeps the folder as long as files are read from it.
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
        Ok(PreparedWorkload {
            precision,
            cost,
            has_roofline,
            result,
            run,
        })
    }
}

/// Workload that is ready to be measured on a device.
pub struct PreparedWorkload {
    /// Precision of the plan.
    pub precision: Precision,
    /// Cost of a run.
    pub cost: WorkloadCost,
    /// True if the workload has a roofline bound; transfers and builds have none.
    pub has_roofline: bool,
    /// The first output of the first step; only its beginning if it is large.
    pub result: Vec<f32>,
    run: Box<dyn FnMut(u32) -> Result<()>>,
}

impl PreparedWorkload {
    /// Runs the workload `times` times in a row, and synchronizes after the last run.
    ///
    /// # Errors
    /// Errors of the steps.
    pub fn run(&mut self, times: u32) -> Result<()> {
        (self.run)(times)
    }

    /// Runs the workload `times` times in a row, and returns the mean time of a run in seconds.
    ///
    /// # Errors
    /// See [`PreparedWorkload::run`].
    pub fn time(&mut self, times: u32) -> Result<f64> {
        let start = Instant::now();
        self.run(times)?;
        Ok(start.elapsed().as_secs_f64() / f64::from(times.max(1)))
    }
}

/// Returns the settings of a device's plans in a precision.
fn rewriting(on: &BenchDevice, precision: Precision) -> RewriteConfig {
    RewriteConfig {
        precision: Some(precision),
        ..on.rewrite.clone()
    }
}

/// Returns the first values of the first output.
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

/// Returns the number of elements of the largest input.
fn longest_input(session: &Session) -> usize {
    let plan = session.plan();
    let sizes = plan.input_buffers.iter();
    sizes
        .map(|(_, b)| plan.buffer_types[b.index()].numel())
        .max()
        .unwrap_or(0)
}
