//! Plans for sessions with steps of several shapes, compiled once each.

use std::collections::HashMap;
use std::hash::Hash;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use meganeura_compiler::builder::Builder;
use meganeura_compiler::rewrite::RewriteConfig;
use meganeura_core::backend::Device;
use meganeura_core::{Error, ExecutionPlan, Graph, Result, Session};
use meganeura_nn::models::{CacheType, LlamaConfig};

/// Default number of rows of a prefill chunk.
pub(crate) const PREFILL_ROWS: usize = 64;

/// Returns the maximum number of rows of a prefill chunk on a device, unless it is set. A device with its own memory is a GPU, which
/// computes 512 rows nearly as fast as 64.
pub(crate) fn max_prefill_rows(device: &dyn Device) -> usize {
    const OWN_MEMORY: usize = 512;
    if device.capabilities().unified_memory {
        PREFILL_ROWS
    } else {
        OWN_MEMORY
    }
}

/// Shape of a step; each shape has a separate plan.
pub(crate) trait StepShape: Copy + Eq + Hash + std::fmt::Debug {
    /// The network whose steps have such shapes.
    type Network;

    /// Returns the name of the segment in a joined plan.
    fn name(&self) -> String;

    /// Returns the name of the file of a cached plan, without its extension.
    fn file(&self, network: &Self::Network) -> String;

    /// Returns the graph of the step.
    fn graph(&self, network: &Self::Network) -> Graph;
}

/// Returns the name of the plan file of a decode step.
pub(crate) fn decoding_file(step: &str, network: &LlamaConfig) -> String {
    let mut file = format!("decode-{step}-{}", network.weights.name());
    if network.cache_type != CacheType::F32 {
        file += &format!("-cache-{}", network.cache_type.name());
    }
    if let Some(lora) = network.lora {
        let rows = if network.lora_per_row { "-rows" } else { "" };
        file += &format!("-lora-{}-{}{rows}", lora.rank, lora.targets);
    }
    file
}

/// A session that runs steps of several shapes, which share weights and caches.
pub(crate) struct SharedSession<S> {
    pub(crate) session: Session,
    pub(crate) steps: Vec<Step<S>>,
}

/// A segment of a session that runs the steps of one shape.
#[derive(Clone, Debug)]
pub(crate) struct Step<S> {
    pub(crate) shape: S,
    /// Name of the segment in the joined plan; `None` for the first plan.
    segment: Option<String>,
    /// Index of the segment's first output.
    output: usize,
}

impl<S> Step<S> {
    /// Returns the name of an input in the joined plan.
    pub(crate) fn input(&self, name: &str) -> String {
        match &self.segment {
            None => name.to_owned(),
            Some(segment) => format!("{segment}.{name}"),
        }
    }

    pub(crate) fn run(&self, session: &mut Session) -> Result<()> {
        match &self.segment {
            None => session.try_step(),
            Some(segment) => session.try_step_of(segment),
        }
    }

    /// Reads the first `len` numbers of an output.
    pub(crate) fn read(&self, session: &mut Session, output: usize, len: usize) -> Result<Vec<f32>> {
        let mut numbers = vec![0.0; len];
        session.try_read_output_start(self.output + output, &mut numbers)?;
        Ok(numbers)
    }
}

/// Runs work, and logs its duration.
///
/// # Errors
/// The error of the work.
pub(crate) fn timed<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let begun = Instant::now();
    let done = work()?;
    log::info!("{what} took {:.2} s", begun.elapsed().as_secs_f64());
    Ok(done)
}

/// A device, and the plans that were compiled for it.
pub(crate) struct Plans<S> {
    device: Arc<dyn Device>,
    pub(crate) rewrite: RewriteConfig,
    folder: Option<PathBuf>,
    made: HashMap<S, ExecutionPlan>,
}

/// Name of the rule set that concatenates parameters.
const PACKING: &str = "packing";

impl<S: StepShape> Plans<S> {
    pub(crate) fn new(device: Arc<dyn Device>, folder: Option<PathBuf>) -> Self {
        Plans {
            device,
            rewrite: RewriteConfig::default(),
            folder,
            made: HashMap::new(),
        }
    }

    pub(crate) fn with_rewrite(device: Arc<dyn Device>, folder: Option<PathBuf>, rewrite: RewriteConfig) -> Self {
        Plans {
            rewrite,
            ..Plans::new(device, folder)
        }
    }

    pub(crate) fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Builds a session for these shapes, at least one.
    ///
    /// If rewriting packs different weights for different shapes, the shapes could not share them;
    /// in this case none are packed.
    pub(crate) fn session(&mut self, network: &S::Network, shapes: &[S]) -> Result<SharedSession<S>> {
        let (plan, steps) = match timed("planning", || self.joined(network, shapes)) {
            Err(Error::ParametersDiffer { differences }) if !self.rewrite.disable.iter().any(|d| d == PACKING) => {
                log::info!("weights are not packed: {}", differences.join("; "));
                self.rewrite.disable.push(PACKING.to_owned());
                self.made.clear();
                self.joined(network, shapes)?
            }
            other => other?,
        };
        let open = || Session::on(self.device.clone(), plan);
        let session = timed("compiling the kernels and allocating memory", open)?;
        Ok(SharedSession { session, steps })
    }

    /// Joins the plans of several shapes.
    fn joined(&mut self, network: &S::Network, shapes: &[S]) -> Result<(ExecutionPlan, Vec<Step<S>>)> {
        let limit = self.device.capabilities().max_buffer_bytes;
        let mut joined: Option<ExecutionPlan> = None;
        let mut steps = Vec::new();
        for &shape in shapes {
            let plan = self.plan(network, shape)?;
            let segment = joined.is_some().then(|| shape.name());
            let output = match (&mut joined, &segment) {
                (Some(all), Some(segment)) => all.join(plan, segment, limit)?,
                _ => {
                    joined = Some(plan.clone());
                    0
                }
            };
            steps.push(Step { shape, segment, output });
        }
        let plan = joined.ok_or_else(|| Error::misuse("a session of no shapes", "give one"))?;
        Ok((plan, steps))
    }

    /// Returns the plan of a shape.
    fn plan(&mut self, network: &S::Network, shape: S) -> Result<&ExecutionPlan> {
        if !self.made.contains_key(&shape) {
            let graph = shape.graph(network);
            let packed = if self.rewrite.disable.is_empty() {
                ""
            } else {
                "-with-fewer-rules"
            };
            let file = |folder: &PathBuf| folder.join(format!("{}{packed}.ron", shape.file(network)));
            let path = self.folder.as_ref().map(file);
            let (plan, _) = match &path {
                Some(path) => Builder::on(self.device.clone())
                    .inference()
                    .rewrite(self.rewrite.clone())
                    .cache(path)
                    .plan(&graph)?,
                None => Builder::on(self.device.clone())
                    .inference()
                    .rewrite(self.rewrite.clone())
                    .plan(&graph)?,
            };
            self.made.insert(shape, plan);
        }
        Ok(&self.made[&shape])
    }
}
