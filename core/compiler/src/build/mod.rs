//! From a graph to a session in one call.

mod builder;
mod key;

use std::path::{Path, PathBuf};

use meganeura_core::autodiff::{try_differentiate, try_differentiate_scaled};
use meganeura_core::config::Config;
use meganeura_core::debug::DebugOptions;
use meganeura_core::error::{Result, unwrap_report};
use meganeura_core::graph::Graph;
use meganeura_core::loss_scaling::LossScaling;
pub use meganeura_core::mode::Mode;
use meganeura_core::plan::MemoryBudget;
use meganeura_core::plan::optimizer::Update;
use meganeura_core::precision::Precision;
use meganeura_core::session::Session;

pub use builder::Builder;

use crate::optimize::{OptimizeReport, for_inference, optimize_for};
use crate::rewrite::{Pass, Request, RewriteConfig, Target};

/// Choices of [`build`] as a value; [`Builder`] has them as methods. `SessionConfig::default()` trains on the device that
/// environment and configuration file select.
#[derive(Clone, Debug, Default)]
pub struct SessionConfig {
    /// Device selector; overrides environment and configuration file.
    pub device: Option<String>,
    /// Training or inference.
    pub mode: Mode,
    /// Updates to compile in from the start (they can be set later too); an optimizer converts to one.
    pub optimizer: Option<Update>,
    /// File that keeps the plan from one build to the next; see [`meganeura_core::cache`].
    pub cache: Option<PathBuf>,
    /// Settings of rewriting instead of those of the configuration file.
    pub rewrite: Option<RewriteConfig>,
    /// Memory limit of the plan, instead of [`RewriteConfig::memory_budget`]: activations are recomputed to stay within it.
    pub memory_budget: Option<MemoryBudget>,
    /// Precision of matmuls and convolutions, instead of [`RewriteConfig::precision`].
    pub precision: Option<Precision>,
    /// The scale of gradients in training in mixed precision, instead of [`RewriteConfig::loss_scale`].
    pub loss_scale: Option<LossScaling>,
    /// Settings instead of those of the configuration file.
    pub config: Option<Config>,
    /// Debug options instead of those of the environment.
    pub debug: Option<DebugOptions>,
}

/// Builds a training session: optimize, differentiate, optimize, compile, open the device.
///
/// # Panics
/// With the full report of [`build`]'s error.
#[must_use]
#[track_caller]
pub fn build_session(graph: &Graph) -> Session {
    unwrap_report(build(graph, SessionConfig::default())).0
}

/// [`build_session`], with the report of the optimizer.
///
/// # Panics
/// With the full report of [`build`]'s error.
#[must_use]
#[track_caller]
pub fn build_session_with_report(graph: &Graph) -> (Session, OptimizeReport) {
    unwrap_report(build(graph, SessionConfig::default()))
}

/// Builds a forward-only session.
///
/// # Panics
/// With the full report of [`build`]'s error.
#[must_use]
#[track_caller]
pub fn build_inference_session(graph: &Graph) -> Session {
    let config = SessionConfig {
        mode: Mode::Inference,
        ..SessionConfig::default()
    };
    unwrap_report(build(graph, config)).0
}

/// Builds a training session whose plan is kept in a file: the first time it is made and saved, later it is read and
/// goes straight to the device. Where the file is of another graph, program, device or setting, the log says
/// `cache invalidated: ...`, and the plan is made anew and replaces it.
///
/// # Panics
/// With the full report of [`build`]'s error.
#[must_use]
#[track_caller]
pub fn build_session_cached(graph: &Graph, path: impl AsRef<Path>) -> Session {
    let config = SessionConfig {
        cache: Some(path.as_ref().to_owned()),
        ..SessionConfig::default()
    };
    unwrap_report(build(graph, config)).0
}

/// Builds a session by a configuration: short for [`Builder::build`] of `Builder::from(config)`.
///
/// # Errors
/// As there.
pub fn build(graph: &Graph, config: SessionConfig) -> Result<(Session, OptimizeReport)> {
    Builder::from(config).build(graph)
}

/// All graph passes before compilation, for a device or a model of one.
///
/// # Errors
/// What the passes find in the graph; settings and rules that cannot be used.
pub fn prepare(
    graph: &Graph,
    mode: Mode,
    target: &dyn Target,
    config: &RewriteConfig,
    optimizer: Option<&Update>,
) -> Result<(Graph, OptimizeReport)> {
    let group_of = |name: &str| optimizer.map_or(0, |update| update.group_of(name) as u64);
    let request = |pass| Request {
        pass,
        target,
        config,
        group_of: &group_of,
    };
    match mode {
        Mode::Inference => optimize_for(&for_inference(graph)?, &request(Pass::Inference)),
        Mode::Training => {
            let (forward, mut report) = optimize_for(graph, &request(Pass::Forward))?;
            let differentiate = tracing::debug_span!("differentiate").entered();
            let sorted = forward.try_toposort()?;
            let full = match config.loss_scaling(mode) {
                None => try_differentiate(&sorted)?,
                Some(scaling) => try_differentiate_scaled(&sorted, scaling)?,
            };
            drop(differentiate);
            let (optimized, second) = optimize_for(&full, &request(Pass::Backward))?;
            report.merge(second);
            report.find_places(&optimized);
            Ok((optimized, report))
        }
    }
}
