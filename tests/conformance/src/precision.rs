//! Precision of a run: a wrapper of devices that sets it for all plans, and the measurement of the errors that it may
//! cause.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use meganeura_compiler::rewrite::RewriteConfig;
use meganeura_core::backend::{Capabilities, Device, Executable, KernelDesc, KernelSource, Support};
use meganeura_core::error::{Error, Result};
use meganeura_core::graph::Graph;
use meganeura_core::plan::{ExecutionPlan, compile_at};
use meganeura_core::precision::Precision;
use meganeura_core::{LossScaling, Session};

use crate::ReferenceBackend;
use crate::case::SharedDevice;
use crate::harness::{Feeds, run_once};
use crate::storage::wide;

/// Number of random perturbations that measure the effect of rounding.
const PERTURBATIONS: u64 = 4;
/// Accepted error as a multiple of the largest observed deviation.
const FACTOR: f64 = 2.0;

/// Device wrapper that compiles all plans in one precision, and counts dispatches on cooperative matrices.
pub(crate) struct AtPrecision {
    device: SharedDevice,
    precision: Precision,
    on_units: AtomicUsize,
}

impl AtPrecision {
    pub(crate) fn new(device: SharedDevice, precision: Precision) -> Arc<Self> {
        Arc::new(AtPrecision {
            device,
            precision,
            on_units: AtomicUsize::new(0),
        })
    }

    /// Returns the number of dispatches on cooperative matrices, of all plans that were prepared.
    pub(crate) fn on_units(&self) -> usize {
        self.on_units.load(Ordering::Relaxed)
    }
}

impl Device for AtPrecision {
    fn capabilities(&self) -> &Capabilities {
        self.device.capabilities()
    }

    fn supports(&self, kernel: &KernelDesc) -> Support {
        self.device.supports(kernel)
    }

    fn launches(&self, kernel: &KernelDesc) -> u32 {
        self.device.launches(kernel)
    }

    fn efficiency(&self, kernel: &KernelDesc) -> f64 {
        self.device.efficiency(kernel)
    }

    fn workspace_bytes(&self, plan: &ExecutionPlan) -> Result<u64> {
        self.device.workspace_bytes(plan)
    }

    fn kernels(&self) -> String {
        self.device.kernels()
    }

    fn has_mixed_precision(&self) -> bool {
        self.precision == Precision::Mixed && self.device.has_mixed_precision()
    }

    fn refused_kernel(&self, op: &str) -> Option<Error> {
        self.device.refused_kernel(op)
    }

    fn finalize(&self, plan: &mut ExecutionPlan) -> Result<()> {
        plan.precision = self.precision;
        self.device.finalize(plan)
    }

    fn kernel_sources(&self, plan: &ExecutionPlan) -> Result<Vec<KernelSource>> {
        self.device.kernel_sources(plan)
    }

    fn compile(&self, plan: &ExecutionPlan) -> Result<Box<dyn Executable>> {
        self.on_units.fetch_add(on_units(plan), Ordering::Relaxed);
        self.device.compile(plan)
    }
}

/// Returns the number of a plan's dispatches that use cooperative matrices.
pub(crate) fn on_units(plan: &ExecutionPlan) -> usize {
    plan.dispatches.iter().filter(|d| d.use_coop).count()
}

/// Returns the rewriting settings of training sessions. In mixed precision, the loss scale suits small models, and
/// changes often.
pub(crate) fn training(precision: Precision) -> RewriteConfig {
    RewriteConfig {
        precision: Some(precision),
        loss_scale: Some(LossScaling::Dynamic {
            initial: 256.0,
            interval: 2,
        }),
        ..RewriteConfig::default()
    }
}

/// Accepted deviations of results, caused by rounding the operands of matmuls and convolutions ("products").
#[derive(Debug, Default)]
pub(crate) struct Deviations {
    outputs: Vec<f64>,
    states: HashMap<String, f64>,
}

impl Deviations {
    /// Measures the accepted deviations in a step of a graph with these contents of leaves, if the
    /// session's plan uses cooperative matrices.
    ///
    /// The bound of a product is `2^-10 sum |a| |b|`. Its propagation is measured: the oracle's
    /// products are perturbed by their bounds with random signs, several times.
    pub(crate) fn of(session: &Session, graph: &Graph, feeds: &Feeds) -> Result<Self> {
        match on_units(session.plan()) {
            0 => Ok(Deviations::default()),
            _ => Self::tried(graph, feeds),
        }
    }

    /// Measures the accepted deviations in a step on cooperative matrices.
    pub(crate) fn tried(graph: &Graph, feeds: &Feeds) -> Result<Self> {
        let mut found = Deviations::default();
        let backend = || ReferenceBackend::new().primitives_only();
        let (outputs, states) = results(&backend().device(), graph, feeds)?;
        found.outputs = vec![0.0; outputs.len()];
        for seed in 0..PERTURBATIONS {
            let (other_outputs, other_states) = results(&backend().perturbing_products(seed).device(), graph, feeds)?;
            for ((most, a), b) in found.outputs.iter_mut().zip(&outputs).zip(&other_outputs) {
                *most = most.max(FACTOR * largest_difference(a, b));
            }
            for (name, b) in &other_states {
                let most = found.states.entry(name.clone()).or_default();
                *most = most.max(FACTOR * largest_difference(&states[name], b));
            }
        }
        Ok(found)
    }

    /// Returns the accepted deviation of each element of an output.
    pub(crate) fn output(&self, index: usize) -> f64 {
        self.outputs.get(index).copied().unwrap_or(0.0)
    }

    /// Returns the maximum accepted deviation of the outputs.
    pub(crate) fn most(&self) -> f64 {
        self.outputs.iter().copied().fold(0.0, f64::max)
    }

    /// Returns the accepted deviation of each element of a state after the step.
    pub(crate) fn state(&self, name: &str) -> f64 {
        self.states.get(name).copied().unwrap_or(0.0)
    }
}

/// Outputs, and states after the step.
type Results = (Vec<Vec<f64>>, HashMap<String, Vec<f64>>);

fn results(device: &SharedDevice, graph: &Graph, feeds: &Feeds) -> Result<Results> {
    let mut session = Session::on(device.clone(), compile_at(graph, &**device, Precision::Mixed)?)?;
    let outputs = run_once(&mut session, graph, feeds)?;
    let mut states = HashMap::new();
    for state in session.plan().states() {
        let values = session.try_read_state(&state.name)?;
        states.insert(state.name, wide(&values));
    }
    Ok((outputs, states))
}

fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.filter(|d| d.is_finite()).fold(0.0, f64::max)
}
