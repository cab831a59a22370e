//! Models for inference that several threads use, with inputs of any size.

mod contexts;
mod workers;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use meganeura_core::backend::Device;
use meganeura_core::error::{Error, Result};
use meganeura_core::files::sha256;
use meganeura_core::graph::{Graph, NodeKind};
use meganeura_core::plan::ExecutionPlan;
use meganeura_core::session::{Session, SharedWeights, Tensor};

pub use contexts::{Contexts, Lease};
pub use workers::{Running, Workers};

use crate::builder::Builder;

/// Maximum number of plans that a model keeps. Another one replaces the plan that was made first.
const PLANS: usize = 256;

/// Returns the default of [`ModelOptions::contexts`].
pub fn default_contexts() -> usize {
    std::thread::available_parallelism().map_or(16, |n| n.get().max(16))
}

/// Shapes of the inputs of a run, by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InputShapes(Vec<(String, Vec<usize>)>);

impl InputShapes {
    /// Creates the shapes of these inputs.
    pub fn new<'a>(inputs: impl IntoIterator<Item = (&'a str, &'a [usize])>) -> Self {
        let owned = |(name, shape): (&str, &[usize])| (name.to_owned(), shape.to_vec());
        let mut shapes: Vec<_> = inputs.into_iter().map(owned).collect();
        shapes.sort();
        InputShapes(shapes)
    }

    /// Returns the shape of an input.
    ///
    /// # Errors
    /// [`Error::InputNotSet`] if the run has no such input.
    pub fn of(&self, name: &str) -> Result<&[usize]> {
        let found = self.0.iter().find(|(own, _)| own == name);
        found.map(|(_, shape)| &shape[..]).ok_or_else(|| Error::InputNotSet {
            names: vec![name.to_owned()],
        })
    }

    /// Returns one dimension of an input.
    ///
    /// # Errors
    /// [`Error::InputNotSet`] if the run has no such input; [`Error::InvalidUse`] if it has fewer dimensions.
    pub fn dim(&self, name: &str, axis: usize) -> Result<usize> {
        let shape = self.of(name)?;
        shape.get(axis).copied().ok_or_else(|| {
            Error::misuse(
                format!("input '{name}' has the shape {shape:?}, so it has no axis {axis}"),
                "pass an array with more dimensions",
            )
        })
    }

    /// Returns a part of a file name that differs between shapes.
    fn file_part(&self) -> String {
        sha256([self.to_string().as_bytes()])[..16].to_owned()
    }

    /// Iterates over names and shapes, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.0.iter().map(|(name, shape)| (name.as_str(), &shape[..]))
    }
}

impl fmt::Display for InputShapes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, shape)) in self.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{name}{shape:?}")?;
        }
        Ok(())
    }
}

/// Settings of an [`InferenceModel`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelOptions {
    /// Maximum number of execution contexts: of runs at the same time, and of contexts that are kept for later runs with
    /// inputs of the same shapes. Each has memory for intermediate results. 16 by default, or the number of processors
    /// if that is larger.
    pub contexts: usize,
}

impl Default for ModelOptions {
    fn default() -> Self {
        ModelOptions {
            contexts: default_contexts(),
        }
    }
}

type MakeGraph = dyn Fn(&InputShapes) -> Result<Graph> + Send + Sync;

/// A model for inference that any number of threads run at the same time, with inputs of any size.
///
/// A function makes the graph for the shapes of the inputs. The first run with new shapes compiles a plan, which later runs
/// use again. All runs share the weights on the device. Concurrent runs have separate execution contexts, with memory for
/// inputs, intermediate and final results. Clones are the same model.
///
/// ```no_run
/// use meganeura_compiler::{Builder, InferenceModel};
/// use meganeura_core::{Graph, Tensor};
///
/// # fn main() -> meganeura_core::Result<()> {
/// let model = InferenceModel::new(
///     Builder::new().device("cpu"),
///     &[("x", &[1, 3])], // shapes of the session that has the weights
///     |shapes| {
///         let mut g = Graph::new();
///         let x = g.input("x", &[shapes.dim("x", 0)?, 3]);
///         let w = g.parameter("w", &[3, 2]);
///         let y = g.matmul(x, w);
///         g.set_outputs(vec![y]);
///         Ok(g)
///     },
///     |session| session.try_set_parameter("w", &[1.0, 0.0, 0.0, 1.0, 0.0, 0.0]),
/// )?;
/// for batch in [1, 4] {
///     let x = Tensor::f32(&[batch, 3], &vec![0.5; batch * 3])?;
///     let results = model.run(&[("x", &x)])?;
///     assert_eq!(results[0].ty().shape.dims(), [batch, 2]);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct InferenceModel {
    inner: Arc<Inner>,
}

impl fmt::Debug for InferenceModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InferenceModel")
            .field("device", &self.inner.device.capabilities().name)
            .field("contexts", &self.contexts())
            .finish_non_exhaustive()
    }
}

struct Inner {
    planner: Planner,
    device: Arc<dyn Device>,
    /// `None` if the device does not share memory between sessions: each session then has a copy of the weights.
    shared: Option<SharedWeights>,
    /// The session that has the weights. It does not run.
    owner: Mutex<Session>,
    contexts: Contexts<InputShapes, Session>,
    workers: Workers,
}

/// The plans of a model.
struct Planner {
    /// Settings of all builds, on the open device.
    builder: Builder,
    make: Box<MakeGraph>,
    plans: Mutex<Plans>,
}

/// Plans by the shapes of the inputs, and the shapes in the order of the plans. A plan is locked while it is made.
#[derive(Default)]
struct Plans {
    made: HashMap<InputShapes, Arc<OnceLock<Result<ExecutionPlan>>>>,
    order: Vec<InputShapes>,
}

impl InferenceModel {
    /// Creates a model, and builds a session for inputs of these shapes, which has the weights: small shapes save memory.
    /// `make` returns the graph for the shapes of a run; graphs of different shapes have the same parameters. `set` sets or
    /// loads the parameters of the session.
    ///
    /// # Errors
    /// Errors of `make`, of building the first session, and of `set`; [`Error::InvalidUse`] if a step of the graph changes
    /// parameters or states.
    pub fn new(
        builder: Builder,
        shapes: &[(&str, &[usize])],
        make: impl Fn(&InputShapes) -> Result<Graph> + Send + Sync + 'static,
        set: impl FnOnce(&mut Session) -> Result<()>,
    ) -> Result<Self> {
        InferenceModel::with_options(builder, shapes, make, set, &ModelOptions::default())
    }

    /// Creates a model like [`InferenceModel::new`], with settings.
    ///
    /// # Errors
    /// As [`InferenceModel::new`].
    pub fn with_options(
        builder: Builder,
        shapes: &[(&str, &[usize])],
        make: impl Fn(&InputShapes) -> Result<Graph> + Send + Sync + 'static,
        set: impl FnOnce(&mut Session) -> Result<()>,
        options: &ModelOptions,
    ) -> Result<Self> {
        let shapes = InputShapes::new(shapes.iter().copied());
        let (builder, device) = builder.inference().opened()?;
        let planner = Planner {
            builder,
            make: Box::new(make),
            plans: Mutex::default(),
        };
        let mut owner = planner.builder.open_session(planner.plan(&shapes)?)?;
        set(&mut owner)?;
        Ok(InferenceModel {
            inner: Arc::new(Inner {
                planner,
                device,
                shared: owner.share_weights_if_supported()?,
                owner: Mutex::new(owner),
                contexts: Contexts::new(options.contexts),
                workers: Workers::new(options.contexts),
            }),
        })
    }

    /// Creates a model of a graph whose inputs have one shape.
    ///
    /// # Errors
    /// As [`InferenceModel::new`].
    pub fn of_graph(builder: Builder, graph: &Graph, set: impl FnOnce(&mut Session) -> Result<()>) -> Result<Self> {
        let inputs = graph.nodes().iter().filter(|node| matches!(node.kind, NodeKind::Input));
        let shapes: Vec<(&str, &[usize])> = inputs
            .filter_map(|node| Some((node.name.as_deref()?, node.outputs.first()?.shape.dims())))
            .collect();
        let own = graph.clone();
        InferenceModel::new(builder, &shapes, move |_| Ok(own.clone()), set)
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.inner.device
    }

    /// Returns the number of execution contexts that exist.
    pub fn contexts(&self) -> usize {
        self.inner.contexts.len()
    }

    /// Runs the model on the calling thread, and returns its outputs in their order. Waits if all contexts are in use.
    ///
    /// # Errors
    /// [`Error::UnknownTensor`] and [`Error::InputNotSet`] if the inputs are not the inputs of the graph;
    /// [`Error::WrongShape`], [`Error::WrongDType`]; errors of `make` and of building for new shapes; errors of the step.
    pub fn run(&self, inputs: &[(&str, &Tensor)]) -> Result<Vec<Tensor>> {
        let shapes = InputShapes::new(inputs.iter().map(|(name, tensor)| (*name, tensor.ty().shape.dims())));
        let mut session = self.inner.contexts.get(&shapes, || self.inner.session(&shapes))?;
        for (name, tensor) in inputs {
            session.try_set_input_tensor(name, tensor)?;
        }
        session.try_step()?;
        session.try_wait()?;
        let types = session.plan().output_types.clone();
        let outputs = types.into_iter().enumerate();
        outputs
            .map(|(index, ty)| Tensor::from_bytes(ty, session.try_read_output_bytes(index)?))
            .collect()
    }

    /// Runs the model on another thread, and returns a future of its outputs. Any executor can await it. Runs begin in
    /// the order of the calls. If the future is dropped before its run begins, it is not run.
    ///
    /// The future returns the errors of [`InferenceModel::run`].
    pub fn run_async(&self, inputs: Vec<(String, Tensor)>) -> Running<Vec<Tensor>> {
        let model = self.clone();
        self.inner.workers.run(move || {
            let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
            model.run(&inputs)
        })
    }

    /// Compiles the plan for inputs of these shapes, so that the first run of these shapes does not have to.
    ///
    /// # Errors
    /// Errors of `make` and of building.
    pub fn prepare(&self, shapes: &[(&str, &[usize])]) -> Result<()> {
        let shapes = InputShapes::new(shapes.iter().copied());
        self.inner.contexts.get(&shapes, || self.inner.session(&shapes))?;
        Ok(())
    }
}

impl Planner {
    /// Returns the plan for these shapes. If several threads ask for the same one, one of them makes it.
    fn plan(&self, shapes: &InputShapes) -> Result<ExecutionPlan> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let cell = match plans.made.get(shapes) {
            Some(cell) => cell.clone(),
            None => {
                if plans.order.len() >= PLANS {
                    let oldest = plans.order.remove(0);
                    plans.made.remove(&oldest);
                }
                plans.order.push(shapes.clone());
                plans.made.entry(shapes.clone()).or_default().clone()
            }
        };
        drop(plans);
        let make = || {
            let graph = (self.make)(shapes)?;
            let builder = self.builder.clone().cache_part(&shapes.file_part());
            let (plan, _) = builder.plan(&graph)?;
            check_stateless(&plan)?;
            Ok(plan)
        };
        let plan = cell.get_or_init(make).clone();
        if plan.is_err() {
            // Later runs try again: the cause may have been a lack of memory.
            let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
            plans.made.remove(shapes);
            plans.order.retain(|other| other != shapes);
        }
        plan
    }
}

impl Inner {
    /// Builds a session for these shapes, with the weights.
    fn session(&self, shapes: &InputShapes) -> Result<Session> {
        let plan = self.planner.plan(shapes)?;
        let builder = self.planner.builder.clone();
        let owner = || self.owner.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(shared) = &self.shared else {
            let mut session = builder.open_session(plan)?;
            session.copy_weights(&mut owner())?;
            return Ok(session);
        };
        let mut session = builder.weights(shared).open_session(plan)?;
        if session.unshared().next().is_some() {
            session.copy_unshared(&mut owner())?;
        }
        Ok(session)
    }
}

/// Checks that a run does not depend on earlier runs, which may have used other contexts.
fn check_stateless(plan: &ExecutionPlan) -> Result<()> {
    let written = plan.written_buffers();
    let state = plan.state_buffers.iter().find(|state| written.contains(&state.buffer));
    match state {
        None => Ok(()),
        Some(state) => Err(Error::misuse(
            format!(
                "a run changes the state '{}', so it would depend on earlier runs of its context",
                state.name
            ),
            "use one session for each sequence of steps, with `Session::share_weights`",
        )),
    }
}
