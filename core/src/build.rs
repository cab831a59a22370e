//! From a graph to a session in one call.

use std::sync::Arc;

use crate::autodiff::try_differentiate;
use crate::backend::Device;
use crate::config::Config;
use crate::error::{Result, unwrap_report};
use crate::graph::Graph;
use crate::optimize::{OptimizeReport, for_inference, optimize_for};
use crate::plan::compile_for;
use crate::plan::optimizer::Update;
use crate::rewrite::{Pass, Request, RewriteConfig, Target};
use crate::select;
use crate::session::Session;

/// Whether a session trains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Forward, backward and parameter updates.
    #[default]
    Training,
    /// Forward only, in every operator's inference form.
    Inference,
}

/// Choices of [`build`]; `SessionConfig::default()` trains on the device that environment and configuration
/// file select.
#[derive(Clone, Debug, Default)]
pub struct SessionConfig {
    /// Device selector; overrides environment and configuration file.
    pub device: Option<String>,
    /// Training or inference.
    pub mode: Mode,
    /// Updates to compile in from the start (they can be set later too); an optimizer converts to one.
    pub optimizer: Option<Update>,
    /// Settings of rewriting instead of those of the configuration file.
    pub rewrite: Option<RewriteConfig>,
    /// Settings instead of those of the configuration file.
    pub config: Option<Config>,
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

/// Builds a session; every other build function calls this.
///
/// # Errors
/// Whatever any stage finds: a wrong graph, a loss that is not scalar, a device that cannot be selected or
/// lacks kernels, not enough memory.
pub fn build(graph: &Graph, config: SessionConfig) -> Result<(Session, OptimizeReport)> {
    // The graph first: its errors should not need a device to show.
    graph.verify()?;
    let settings = match config.config {
        Some(settings) => settings,
        None => Config::load()?,
    };
    let selected = select::select(config.device.as_deref(), &settings)?;
    let device = selected.open(&settings)?;
    let rewrite = config.rewrite.unwrap_or(settings.rewrite);
    let (optimized, report) = prepare(graph, config.mode, &device, &rewrite, config.optimizer.as_ref())?;
    let session = compile_on(&optimized, device, config.optimizer)?;
    Ok((session, report))
}

/// Builds a session on a device that is already open.
///
/// # Errors
/// See [`build`].
pub fn build_on(
    graph: &Graph,
    device: Arc<dyn Device>,
    mode: Mode,
    optimizer: Option<Update>,
) -> Result<(Session, OptimizeReport)> {
    build_rewritten(graph, device, mode, optimizer, &RewriteConfig::default())
}

/// [`build_on`] with settings of rewriting.
///
/// # Errors
/// See [`build`].
pub fn build_rewritten(
    graph: &Graph,
    device: Arc<dyn Device>,
    mode: Mode,
    optimizer: Option<Update>,
    rewrite: &RewriteConfig,
) -> Result<(Session, OptimizeReport)> {
    let (optimized, report) = prepare(graph, mode, &device, rewrite, optimizer.as_ref())?;
    Ok((compile_on(&optimized, device, optimizer)?, report))
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
            let full = try_differentiate(&forward.try_toposort()?)?;
            let (optimized, second) = optimize_for(&full, &request(Pass::Backward))?;
            report.merge(second);
            Ok((optimized, report))
        }
    }
}

fn compile_on(graph: &Graph, device: Arc<dyn Device>, optimizer: Option<Update>) -> Result<Session> {
    let mut plan = compile_for(graph, &*device)?;
    if let Some(optimizer) = &optimizer {
        crate::plan::optimizer::attach(&mut plan, optimizer, &*device)?;
    }
    let mut session = Session::on(device, plan)?;
    if let Some(optimizer) = optimizer {
        session.adopt_optimizer(optimizer);
    }
    Ok(session)
}
