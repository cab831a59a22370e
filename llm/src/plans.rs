//! Plans of sessions that make steps of several shapes, made once each.

use std::collections::HashMap;
use std::hash::Hash;
use std::path::PathBuf;
use std::sync::Arc;

use meganeura_compiler::build::Builder;
use meganeura_compiler::rewrite::RewriteConfig;
use meganeura_core::backend::Device;
use meganeura_core::{Error, ExecutionPlan, Graph, Result, Session};
use meganeura_nn::models::{CacheType, LlamaConfig};

/// What a step computes: a plan of its own.
pub(crate) trait StepShape: Copy + Eq + Hash + std::fmt::Debug {
    /// The network whose steps have such shapes.
    type Network;

    /// Name of the segment of a joined plan.
    fn name(&self) -> String;

    /// Name of the file of a plan that is kept, without its ending.
    fn file(&self, network: &Self::Network) -> String;

    /// What the step computes.
    fn graph(&self, network: &Self::Network) -> Graph;
}

/// Name of the file of a step of decoding.
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

/// A session that makes steps of some shapes, which share weights and caches.
pub(crate) struct Joined<S> {
    pub(crate) session: Session,
    pub(crate) steps: Vec<Step<S>>,
}

/// How a session makes the steps of a shape.
#[derive(Clone, Debug)]
pub(crate) struct Step<S> {
    pub(crate) shape: S,
    /// Segment of a plan that was joined to the first one's.
    segment: Option<String>,
    /// Number of its first output.
    output: usize,
}

impl<S> Step<S> {
    /// Name of an input.
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

    /// The first numbers of an output.
    pub(crate) fn read(&self, session: &mut Session, output: usize, len: usize) -> Result<Vec<f32>> {
        let mut numbers = vec![0.0; len];
        session.try_read_output_start(self.output + output, &mut numbers)?;
        Ok(numbers)
    }
}

/// A device with plans for it.
pub(crate) struct Plans<S> {
    device: Arc<dyn Device>,
    pub(crate) rewrite: RewriteConfig,
    folder: Option<PathBuf>,
    made: HashMap<S, ExecutionPlan>,
}

/// The rule set that stores parameters joined.
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

    /// A session for these shapes, at least one.
    ///
    /// Where rewriting packs other weights for one shape than for another, they could not share them; then none are
    /// packed.
    pub(crate) fn session(&mut self, network: &S::Network, shapes: &[S]) -> Result<Joined<S>> {
        let (plan, steps) = match self.joined(network, shapes) {
            Err(Error::ParametersDiffer { differences }) if !self.rewrite.disable.iter().any(|d| d == PACKING) => {
                log::info!("weights are not packed: {}", differences.join("; "));
                self.rewrite.disable.push(PACKING.to_owned());
                self.made.clear();
                self.joined(network, shapes)?
            }
            other => other?,
        };
        let session = Session::on(self.device.clone(), plan)?;
        Ok(Joined { session, steps })
    }

    /// One plan for several shapes.
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

    /// The plan of a shape.
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
