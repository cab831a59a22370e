//! From a graph to a session in one call.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::autodiff::{try_differentiate, try_differentiate_scaled};
use crate::backend::Device;
use crate::cache::{self, BuildKey, Loaded};
use crate::config::Config;
use crate::debug::DebugOptions;
use crate::error::{Result, unwrap_report};
use crate::graph::Graph;
use crate::loss_scaling::LossScaling;
pub use crate::mode::Mode;
use crate::optimize::{OptimizeReport, for_inference, optimize_for};
use crate::plan::memory::fit_to_budget;
use crate::plan::optimizer::{Update, attach};
use crate::plan::{ExecutionPlan, MemoryBudget, compile_at};
use crate::precision::Precision;
use crate::rewrite::{Pass, Request, RewriteConfig, Target};
use crate::select;
use crate::session::Session;

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
    /// File that keeps the plan from one build to the next; see [`crate::cache`].
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

/// Builds a session; every other build function calls this.
///
/// Where a plan comes from a file ([`SessionConfig::cache`]), nothing is optimized, and the report says so. A plan that
/// cannot be saved is a warning in the log; so is a file of a plan that is damaged, which is replaced.
///
/// # Errors
/// Whatever any stage finds: a wrong graph, a loss that is not scalar, a device that cannot be selected or
/// lacks kernels, not enough memory; a memory budget that cannot be reached; a loss scale that is no power of two; a path for
/// the plan that names a file of something else.
pub fn build(graph: &Graph, config: SessionConfig) -> Result<(Session, OptimizeReport)> {
    let _span = tracing::debug_span!("build").entered();
    // The graph first: its errors should not need a device to show.
    graph.verify()?;
    let settings = match config.config {
        Some(settings) => settings,
        None => Config::load()?,
    };
    let selected = select::select(config.device.as_deref(), &settings)?;
    let device = selected.open(&settings)?;
    let mut rewrite = config.rewrite.unwrap_or(settings.rewrite);
    rewrite.memory_budget = config.memory_budget.or(rewrite.memory_budget);
    rewrite.precision = config.precision.or(rewrite.precision);
    rewrite.loss_scale = config.loss_scale.or(rewrite.loss_scale);
    let debug = config.debug.map_or_else(DebugOptions::from_environment, Ok)?;
    let optimizer = config.optimizer;
    let (plan, report) = match &config.cache {
        None => plan_for(graph, &device, config.mode, optimizer.as_ref(), &rewrite)?,
        Some(path) => plan_cached(graph, &device, config.mode, optimizer.as_ref(), &rewrite, path)?,
    };
    Ok((session_on(device, plan, optimizer, debug)?, report))
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
    let _span = tracing::debug_span!("build").entered();
    let (plan, report) = plan_for(graph, &device, mode, optimizer.as_ref(), rewrite)?;
    let debug = DebugOptions::from_environment()?;
    Ok((session_on(device, plan, optimizer, debug)?, report))
}

/// [`build_rewritten`] with the plan in a file; see [`build_session_cached`].
///
/// # Errors
/// See [`build`].
pub fn build_cached(
    graph: &Graph,
    device: Arc<dyn Device>,
    mode: Mode,
    optimizer: Option<Update>,
    rewrite: &RewriteConfig,
    path: &Path,
) -> Result<(Session, OptimizeReport)> {
    let _span = tracing::debug_span!("build").entered();
    let (plan, report) = plan_cached(graph, &device, mode, optimizer.as_ref(), rewrite, path)?;
    let debug = DebugOptions::from_environment()?;
    Ok((session_on(device, plan, optimizer, debug)?, report))
}

/// [`plan_for`] with the plan in a file; see [`build_session_cached`].
///
/// # Errors
/// See [`build`].
pub fn plan_cached(
    graph: &Graph,
    device: &Arc<dyn Device>,
    mode: Mode,
    optimizer: Option<&Update>,
    rewrite: &RewriteConfig,
    path: &Path,
) -> Result<(ExecutionPlan, OptimizeReport)> {
    graph.verify()?;
    if let Some(update) = optimizer {
        // Its numbers are not in the plan, so a plan from a file says nothing of them.
        update.checked()?;
    }
    let key = BuildKey::new(mode, &**device, rewrite, optimizer);
    if let Some(plan) = cached_plan(graph, &key, path)? {
        log::info!("plan read from {}", path.display());
        let report = OptimizeReport {
            from_cache: true,
            ..OptimizeReport::default()
        };
        return Ok((plan, report));
    }
    let (plan, report) = plan_for(graph, device, mode, optimizer, rewrite)?;
    match cache::save_plan(&plan, graph, path) {
        Ok(()) => log::info!("plan saved to {}", path.display()),
        Err(error) => log::warn!("the plan is not kept for the next time: {error}"),
    }
    Ok((plan, report))
}

/// The plan in a file, if it is the one that a build would make.
fn cached_plan(graph: &Graph, key: &BuildKey, path: &Path) -> Result<Option<ExecutionPlan>> {
    let _span = tracing::debug_span!("load plan").entered();
    let reason = match cache::load(graph, path) {
        Ok(Loaded::Missing) => return Ok(None),
        Ok(Loaded::Plan(plan)) => match plan.build_key.differences(key)[..] {
            [] => return Ok(Some(*plan)),
            ref parts => format!("build key mismatch ({})", parts.join(", ")),
        },
        Ok(Loaded::Stale(reason)) => reason,
        // Overwriting it would destroy something that is not ours.
        Err(error) if !cache::may_replace(path) => return Err(error),
        Err(error) => {
            log::warn!("the plan is made anew: {error}");
            return Ok(None);
        }
    };
    cache::log_invalidated(&reason);
    Ok(None)
}

/// Makes the plan of a graph for a device, with the segments of an update.
///
/// # Errors
/// See [`build`].
pub fn plan_for(
    graph: &Graph,
    device: &Arc<dyn Device>,
    mode: Mode,
    optimizer: Option<&Update>,
    rewrite: &RewriteConfig,
) -> Result<(ExecutionPlan, OptimizeReport)> {
    let precision = Precision::resolve(rewrite.precision, mode, &**device);
    let (optimized, mut report) = prepare(graph, mode, device, rewrite, optimizer)?;
    let lower = tracing::debug_span!("compile").entered();
    let mut plan = compile_at(&optimized, &**device, precision)?;
    plan.loss_scaling = rewrite.loss_scaling(mode);
    drop(lower);
    let capabilities = device.capabilities();
    let finish = |plan: &mut ExecutionPlan| match optimizer {
        Some(optimizer) => attach(plan, optimizer, &**device),
        None => plan.place_buffers(capabilities.max_buffer_bytes),
    };
    if let Some(budget) = &rewrite.memory_budget {
        plan = fit_to_budget(&plan, budget, device, capabilities.memory_bytes, &finish)?;
    } else if let Some(optimizer) = optimizer {
        let _attach = tracing::debug_span!("attach update").entered();
        attach(&mut plan, optimizer, &**device)?;
    }
    plan.build_key = BuildKey::new(mode, &**device, rewrite, optimizer);
    let elsewhere = device.elsewhere(&plan).into_iter();
    report.elsewhere = elsewhere
        .map(|(i, name)| (plan.dispatches[i].label.clone(), name))
        .collect();
    Ok((plan, report))
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

fn session_on(
    device: Arc<dyn Device>,
    plan: ExecutionPlan,
    optimizer: Option<Update>,
    debug: DebugOptions,
) -> Result<Session> {
    let mut session = Session::debugged(device, plan, debug)?;
    if let Some(optimizer) = optimizer {
        session.adopt_optimizer(optimizer);
    }
    Ok(session)
}
