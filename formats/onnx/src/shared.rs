//! Models that several threads run, with inputs of any size.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use meganeura_compiler::Builder;
use meganeura_compiler::model::{Contexts, Running, Workers, default_contexts};
use meganeura_core::SharedWeights;

use crate::error::{Error, Result};
use crate::model::Model;
use crate::runner::{Runner, Template};
use crate::tensor::Tensor;

/// A model that any number of threads run at the same time, with inputs of any size. Clones are the same model.
///
/// The first run with new shapes imports the model and compiles a plan; later runs use both again. All runs share the
/// weights on the device, unless the device does not share memory between sessions, or the model runs in stages.
///
/// ```no_run
/// use meganeura_compiler::Builder;
/// use meganeura_onnx::{Model, SharedRunner, Tensor};
///
/// # fn main() -> meganeura_onnx::Result<()> {
/// let runner = SharedRunner::new(&Model::open("model.onnx")?, &Builder::new())?;
/// std::thread::scope(|scope| {
///     for batch in 1..=8 {
///         let runner = runner.clone();
///         scope.spawn(move || runner.run(&[Tensor::f32(&[batch, 4], vec![0.5; batch * 4])]));
///     }
/// });
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SharedRunner {
    inner: Arc<Inner>,
}

struct Inner {
    model: Model,
    constants: HashMap<String, Tensor>,
    builder: Builder,
    weights: OnceLock<SharedWeights>,
    /// Inputs whose values decide shapes, by position. Known after the first runner was made.
    deciding: OnceLock<Vec<usize>>,
    contexts: Contexts<Key, Runner>,
    /// Compiled models. The lock is held while the model is imported, which takes memory for all weights.
    templates: Mutex<Templates>,
    workers: Workers,
}

type Templates = HashMap<Key, Arc<Template>>;

/// Maximum number of templates. If there are more, all are made again when they are needed.
const MAX_TEMPLATES: usize = 64;

/// The properties of inputs that a runner is made for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    dims: Vec<Vec<usize>>,
    /// Integers of the inputs that decide shapes; their bits if they are not integers.
    values: Vec<Vec<u64>>,
}

impl SharedRunner {
    /// Creates a runner of a model. The builder selects the device and the options, as for [`Runner::new`].
    ///
    /// # Errors
    /// Errors of opening the device.
    pub fn new(model: &Model, builder: &Builder) -> Result<Self> {
        SharedRunner::with_constants(model, HashMap::new(), builder)
    }

    /// Creates a runner with constants for some inputs, as [`Runner::with_constants`] does. `run` then takes the remaining inputs.
    ///
    /// # Errors
    /// Errors of opening the device.
    pub fn with_constants(model: &Model, constants: HashMap<String, Tensor>, builder: &Builder) -> Result<Self> {
        let (builder, _) = builder.clone().inference().opened()?;
        let contexts = default_contexts();
        Ok(SharedRunner {
            inner: Arc::new(Inner {
                model: model.clone(),
                constants,
                builder,
                weights: OnceLock::new(),
                deciding: OnceLock::new(),
                contexts: Contexts::new(contexts),
                templates: Mutex::default(),
                workers: Workers::new(contexts),
            }),
        })
    }

    /// Returns the model.
    pub fn model(&self) -> &Model {
        &self.inner.model
    }

    /// Returns the number of bytes of weights that all runs share: 0 before the first run, and if runs cannot share them.
    pub fn shared_bytes(&self) -> usize {
        self.inner.weights.get().map_or(0, SharedWeights::bytes)
    }

    /// Runs the model on the calling thread, on inputs in the order of [`Model::inputs`], without constants.
    ///
    /// # Errors
    /// Those of [`Runner::for_inputs`] for new shapes, and of [`Runner::run`].
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let inner = &*self.inner;
        if inner.deciding.get().is_none() {
            // One thread makes the first runner. Meanwhile, other threads wait for its weights.
            let mut templates = inner.templates();
            if inner.deciding.get().is_none() {
                let runner = inner.first_runner(inputs, &mut templates)?;
                inner.contexts.add(inner.key(inputs), runner);
            }
        }
        let key = inner.key(inputs);
        let mut runner = inner.contexts.get(&key, || inner.runner(inputs, &key))?;
        runner.run(inputs)
    }

    /// Runs the model on another thread, and returns a future of its outputs. Any executor can await it. Runs begin in
    /// the order of the calls. If the future is dropped before its run begins, it is not run.
    pub fn run_async(&self, inputs: Vec<Tensor>) -> Running<Vec<Tensor>, Error> {
        let runner = self.clone();
        self.inner.workers.run(move || runner.run(&inputs))
    }
}

impl Inner {
    /// Makes the first runner and shares its weights.
    fn first_runner(&self, inputs: &[Tensor], templates: &mut Templates) -> Result<Runner> {
        let made = Runner::with_template(&self.model, inputs, &self.constants, &self.builder);
        let (mut runner, template) = made?;
        if let Some(weights) = runner.share_weights()? {
            let _ = self.weights.set(weights);
        }
        let _ = self.deciding.set(runner.deciding_inputs());
        keep(templates, self.key(inputs), template);
        Ok(runner)
    }

    fn runner(&self, inputs: &[Tensor], key: &Key) -> Result<Runner> {
        let weights = self.weights.get();
        let mut templates = self.templates();
        if let (Some(template), Some(weights)) = (templates.get(key).cloned(), weights) {
            drop(templates);
            if let Some(runner) = template.runner(&self.builder, weights)? {
                return Ok(runner);
            }
            templates = self.templates();
        }
        let builder = match weights {
            Some(weights) => self.builder.clone().weights(weights),
            None => self.builder.clone(),
        };
        let (runner, template) = Runner::with_template(&self.model, inputs, &self.constants, &builder)?;
        keep(&mut templates, key.clone(), template);
        Ok(runner)
    }

    fn templates(&self) -> MutexGuard<'_, Templates> {
        self.templates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key(&self, inputs: &[Tensor]) -> Key {
        let deciding = self.deciding.get().into_iter().flatten();
        let values = deciding.filter_map(|&at| inputs.get(at)).map(bits);
        Key {
            dims: inputs.iter().map(|tensor| tensor.dims().to_vec()).collect(),
            values: values.collect(),
        }
    }
}

/// Adds a template.
fn keep(templates: &mut Templates, key: Key, template: Option<Template>) {
    if templates.len() >= MAX_TEMPLATES {
        templates.clear();
    }
    templates.extend(template.map(|template| (key, Arc::new(template))));
}

fn bits(tensor: &Tensor) -> Vec<u64> {
    match tensor.ints() {
        Some(ints) => ints.iter().map(|&value| value as u64).collect(),
        None => tensor.to_f64().iter().map(|value| value.to_bits()).collect(),
    }
}

impl fmt::Debug for SharedRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRunner")
            .field("contexts", &self.inner.contexts.len())
            .field("shared_bytes", &self.shared_bytes())
            .finish_non_exhaustive()
    }
}
