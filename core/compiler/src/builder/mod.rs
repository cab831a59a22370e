//! A builder of plans and sessions from a graph, and functions that call it.

mod config;
mod functions;
mod key;
mod prepare;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use meganeura_core::backend::Device;
use meganeura_core::cache::{self, LoadResult};
use meganeura_core::config::{Config, RewriteConfig};
use meganeura_core::debug::DebugOptions;
use meganeura_core::error::{Error, Result};
use meganeura_core::graph::Graph;
use meganeura_core::loss_scaling::LossScaling;
pub use meganeura_core::mode::Mode;
use meganeura_core::plan::memory::fit_to_budget;
use meganeura_core::plan::optimizer::{Update, attach};
use meganeura_core::plan::{BuildKey, ExecutionPlan, MemoryBudget, compile_at};
use meganeura_core::precision::Precision;
use meganeura_core::select;
use meganeura_core::session::{Session, SharedWeights};

pub use config::SessionConfig;
pub use functions::{build, build_inference_session, build_session, build_session_cached, build_session_with_report};
pub use prepare::prepare;

use crate::optimize::OptimizeReport;
use key::build_key;

/// A builder of plans and sessions, for the device that environment and configuration file select ([`Builder::new`]),
/// or for an open one ([`Builder::on`]).
///
/// ```no_run
/// use meganeura_compiler::Builder;
/// use meganeura_core::{Graph, Sgd};
///
/// # fn main() -> meganeura_core::Result<()> {
/// # let graph = Graph::new();
/// let (session, report) = Builder::new()
///     .device("cpu")
///     .optimizer(Sgd::new(0.1))
///     .cache("model.plan")
///     .build(&graph)?;
/// println!("{report}");
/// // On the same device, forward only.
/// let (evaluation, _) = Builder::on(session.device().clone()).inference().build(&graph)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Builder {
    settings: SessionConfig,
    /// An open device, instead of a selector.
    device: Option<Arc<dyn Device>>,
    /// Weights of another session.
    weights: Option<SharedWeights>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.device.as_ref().map(|device| &device.capabilities().name);
        f.debug_struct("Builder")
            .field("settings", &self.settings)
            .field("device", &device)
            .finish()
    }
}

impl From<SessionConfig> for Builder {
    fn from(settings: SessionConfig) -> Self {
        Builder {
            settings,
            ..Builder::default()
        }
    }
}

impl Builder {
    /// Creates a builder for training, on the device that environment and configuration file
    /// select. The configuration file is read when building, unless [`Builder::config`] gives the
    /// settings.
    pub fn new() -> Self {
        Builder::default()
    }

    /// Creates a builder for training, on an open device. No configuration file is read: settings
    /// that [`Builder::config`] and the other methods do not set have their defaults.
    pub fn on(device: Arc<dyn Device>) -> Self {
        Builder {
            device: Some(device),
            ..Builder::default()
        }
    }

    /// Sets the device selector, as in `MEGANEURA_DEVICE_ID`; overrides environment and
    /// configuration file. It is an error when building on an open device.
    #[must_use]
    pub fn device(mut self, selector: impl Into<String>) -> Self {
        self.settings.device = Some(selector.into());
        self
    }

    /// Sets the weights of another session. The new session uses them without a copy ([`Session::share_weights`]), and is
    /// built on their device. A selector has no effect then.
    ///
    /// [`Session::unshared`] lists the parameters that could not be shared. They need values before the first step.
    #[must_use]
    pub fn weights(mut self, weights: &SharedWeights) -> Self {
        self.weights = Some(weights.clone());
        self
    }

    /// Sets the mode: training, the default, or inference.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.settings.mode = mode;
        self
    }

    /// Sets [`Mode::Inference`]: forward only.
    #[must_use]
    pub fn inference(self) -> Self {
        self.mode(Mode::Inference)
    }

    /// Sets the update at the end of a training step: an optimizer, or an [`Update`] with clipping,
    /// accumulation and parameter groups. It can also be set later, which replans its segments.
    #[must_use]
    pub fn optimizer(mut self, update: impl Into<Update>) -> Self {
        self.settings.optimizer = Some(update.into());
        self
    }

    /// Sets the optimizer like [`Builder::optimizer`], if there is one.
    #[must_use]
    pub fn maybe_optimizer(mut self, update: Option<Update>) -> Self {
        self.settings.optimizer = update;
        self
    }

    /// Sets the file that caches the plan between builds; see [`cache`].
    #[must_use]
    pub fn cache(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.cache = Some(path.into());
        self
    }

    /// Compiles without the file that [`Builder::cache`] has set.
    #[must_use]
    pub fn uncached(mut self) -> Self {
        self.settings.cache = None;
        self
    }

    /// Sets the settings of rewriting, instead of the configuration.
    #[must_use]
    pub fn rewrite(mut self, settings: RewriteConfig) -> Self {
        self.settings.rewrite = Some(settings);
        self
    }

    /// Sets the memory limit of the plan, instead of [`RewriteConfig::memory_budget`]: activations
    /// are recomputed to stay within it.
    #[must_use]
    pub fn memory_budget(mut self, budget: MemoryBudget) -> Self {
        self.settings.memory_budget = Some(budget);
        self
    }

    /// Sets the precision of matmuls and convolutions, instead of [`RewriteConfig::precision`].
    #[must_use]
    pub fn precision(mut self, precision: Precision) -> Self {
        self.settings.precision = Some(precision);
        self
    }

    /// Sets the loss scaling of training in mixed precision, instead of
    /// [`RewriteConfig::loss_scale`].
    #[must_use]
    pub fn loss_scaling(mut self, scaling: LossScaling) -> Self {
        self.settings.loss_scale = Some(scaling);
        self
    }

    /// Sets all settings, instead of reading the configuration file.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.settings.config = Some(config);
        self
    }

    /// Sets the debug options, instead of the environment.
    #[must_use]
    pub fn debug(mut self, options: DebugOptions) -> Self {
        self.settings.debug = Some(options);
        self
    }

    /// Builds a session.
    ///
    /// If the plan comes from a file ([`Builder::cache`]), nothing is optimized, and the report contains only this
    /// fact. A plan that cannot be saved is a warning in the log; so is a damaged plan file, which is replaced.
    ///
    /// # Errors
    /// Errors of all stages: a wrong graph, a loss that is not scalar, a device that cannot be
    /// selected or lacks kernels, not enough memory; a memory budget that cannot be reached; a loss
    /// scale that is not a power of two; a path for the plan that names another kind of file.
    pub fn build(self, graph: &Graph) -> Result<(Session, OptimizeReport)> {
        let _span = tracing::debug_span!("build").entered();
        if self.weights.is_some() && self.settings.mode != Mode::Inference {
            return Err(Error::misuse(
                "a session with shared weights cannot train",
                "build it for inference, with `Builder::inference`",
            ));
        }
        let debug = self.debug_options()?;
        let start = Instant::now();
        let opened = self.clone().open(graph)?;
        let (opening, planned) = (start.elapsed(), Instant::now());
        let (plan, report) = opened.plan(graph)?;
        let (planning, prepared, dispatches) = (planned.elapsed(), Instant::now(), plan.dispatches.len());
        let mut session = self.session(plan, opened.device, debug)?;
        log::info!(
            "built: device {:.1} ms, plan of {dispatches} dispatches {:.1} ms, kernels and memory {:.1} ms",
            1e3 * opening.as_secs_f64(),
            1e3 * planning.as_secs_f64(),
            1e3 * prepared.elapsed().as_secs_f64()
        );
        if let Some(optimizer) = self.settings.optimizer {
            session.adopt_optimizer(optimizer);
        }
        Ok((session, report))
    }

    /// Compiles the plan of a graph, with the segments of the update; [`Builder::build`] then
    /// passes it to the device.
    ///
    /// # Errors
    /// As [`Builder::build`], except for memory: nothing is allocated.
    pub fn plan(self, graph: &Graph) -> Result<(ExecutionPlan, OptimizeReport)> {
        self.open(graph)?.plan(graph)
    }

    /// Creates another session from a plan that this builder has made ([`Builder::plan`]).
    ///
    /// # Errors
    /// Errors of opening the device; as [`Session::on`].
    pub fn open_session(&self, plan: ExecutionPlan) -> Result<Session> {
        let debug = self.debug_options()?;
        let (device, _) = self.device_and_config()?;
        self.session(plan, device, debug)
    }

    fn session(&self, plan: ExecutionPlan, device: Arc<dyn Device>, debug: DebugOptions) -> Result<Session> {
        match &self.weights {
            Some(weights) => Session::debugged_with(plan, weights, debug),
            None => Session::debugged(device, plan, debug),
        }
    }

    fn debug_options(&self) -> Result<DebugOptions> {
        let debug = self.settings.debug.clone();
        debug.map_or_else(DebugOptions::from_environment, Ok)
    }

    /// Opens the device and reads the configuration, so that all sessions of the builder are on the same open device.
    /// Also returns the device.
    ///
    /// # Errors
    /// A device that cannot be selected or opened; a wrong configuration file.
    pub fn opened(self) -> Result<(Self, Arc<dyn Device>)> {
        let (device, config) = self.device_and_config()?;
        let opened = Builder {
            settings: SessionConfig {
                device: None,
                config: Some(config),
                ..self.settings
            },
            device: Some(device.clone()),
            weights: self.weights,
        };
        Ok((opened, device))
    }

    /// Sets another file for the plan, with a name that also contains `part`, if there is one.
    pub(crate) fn cache_part(mut self, part: &str) -> Self {
        if let Some(path) = &mut self.settings.cache {
            let mut name = path.file_stem().unwrap_or_default().to_owned();
            name.push(format!("-{part}"));
            if let Some(extension) = path.extension() {
                name.push(".");
                name.push(extension);
            }
            path.set_file_name(name);
        }
        self
    }

    fn device_and_config(&self) -> Result<(Arc<dyn Device>, Config)> {
        let config = match (&self.settings.config, &self.device) {
            (Some(config), _) => config.clone(),
            (None, Some(_)) => Config::default(),
            (None, None) => Config::load()?,
        };
        let device = match (&self.device, &self.settings.device, &self.weights) {
            (Some(_), Some(selector), _) => {
                return Err(Error::misuse(
                    format!("the builder has both an open device and the selector '{selector}'"),
                    "use `Builder::on(device)` without `.device(..)`, or `Builder::new().device(..)`",
                ));
            }
            (Some(device), None, Some(weights)) if !Arc::ptr_eq(weights.device(), device) => {
                return Err(Error::misuse(
                    "the builder has an open device, and weights of a session on another device",
                    "build the session on the device of the weights, `weights.device()`",
                ));
            }
            (Some(device), None, _) => device.clone(),
            (None, _, Some(weights)) => weights.device().clone(),
            (None, selector, None) => select::select(selector.as_deref(), &config)?.open(&config)?,
        };
        Ok((device, config))
    }

    /// Opens the device, and combines the settings.
    fn open(self, graph: &Graph) -> Result<ResolvedBuild> {
        // Verify the graph first: its errors should not need a device.
        graph.verify()?;
        let (device, config) = self.device_and_config()?;
        let settings = self.settings;
        let mut rewrite = settings.rewrite.unwrap_or(config.rewrite);
        rewrite.memory_budget = settings.memory_budget.or(rewrite.memory_budget);
        rewrite.precision = settings.precision.or(rewrite.precision);
        rewrite.loss_scale = settings.loss_scale.or(rewrite.loss_scale);
        Ok(ResolvedBuild {
            device,
            mode: settings.mode,
            optimizer: settings.optimizer,
            rewrite,
            cache: settings.cache,
        })
    }
}

/// A build whose device and settings are determined.
struct ResolvedBuild {
    device: Arc<dyn Device>,
    mode: Mode,
    optimizer: Option<Update>,
    rewrite: RewriteConfig,
    cache: Option<PathBuf>,
}

impl ResolvedBuild {
    fn plan(&self, graph: &Graph) -> Result<(ExecutionPlan, OptimizeReport)> {
        let Some(path) = &self.cache else {
            return self.make(graph);
        };
        if let Some(update) = &self.optimizer {
            // Hyper-parameters are not in the plan, so a plan from a file does not prove them
            // valid.
            update.checked()?;
        }
        if let Some(plan) = cached_plan(graph, &self.key(), path)? {
            log::info!("plan read from {}", path.display());
            let report = OptimizeReport {
                from_cache: true,
                ..OptimizeReport::default()
            };
            return Ok((plan, report));
        }
        let (plan, report) = self.make(graph)?;
        match cache::save_plan(&plan, graph, path) {
            Ok(()) => log::info!("plan saved to {}", path.display()),
            Err(error) => log::warn!("the plan was not saved for later runs: {error}"),
        }
        Ok((plan, report))
    }

    fn key(&self) -> BuildKey {
        build_key(self.mode, &*self.device, &self.rewrite, self.optimizer.as_ref())
    }

    fn make(&self, graph: &Graph) -> Result<(ExecutionPlan, OptimizeReport)> {
        let (device, rewrite) = (&self.device, &self.rewrite);
        let precision = Precision::resolve(rewrite.precision, self.mode, &**device);
        let (optimized, mut report) = prepare(graph, self.mode, device, rewrite, self.optimizer.as_ref())?;
        let lower = tracing::debug_span!("compile").entered();
        let capabilities = device.capabilities();
        let compile = |prepares: bool| {
            let mut plan = compile_at(&optimized, &**device, precision)?;
            plan.loss_scaling = rewrite.loss_scaling(self.mode);
            if !prepares {
                plan = plan.without_prepare();
                plan.place_buffers(capabilities.max_buffer_bytes)?;
            }
            Ok::<_, Error>(plan)
        };
        // Prepared values take memory that a budget may not have.
        let mut plan = compile(rewrite.prepare && rewrite.memory_budget.is_none())?;
        drop(lower);
        let finish = |plan: &mut ExecutionPlan| match &self.optimizer {
            Some(optimizer) => attach(plan, optimizer, &**device),
            None => plan.place_buffers(capabilities.max_buffer_bytes),
        };
        if let Some(budget) = &rewrite.memory_budget {
            plan = fit_to_budget(&plan, budget, device, capabilities.memory_bytes, &finish)?;
        } else if let Some(optimizer) = &self.optimizer {
            let _attach = tracing::debug_span!("attach update").entered();
            attach(&mut plan, optimizer, &**device)?;
        }
        if rewrite.memory_budget.is_none()
            && let Some(memory) = capabilities.memory_bytes.filter(|_| self.mode == Mode::Training)
        {
            let room = memory.saturating_sub(device.workspace_bytes(&plan)?);
            if plan.memory_forecast().planned as u64 > room {
                plan = fitted_to_device(plan, &compile(false)?, room, device, &finish)?;
            }
        }
        plan.build_key = self.key();
        let fallback_dispatches = device.fallback_dispatches(&plan).into_iter();
        report.fallback_dispatches = fallback_dispatches
            .map(|(i, name)| (plan.dispatches[i].label.clone(), name))
            .collect();
        Ok((plan, report))
    }
}

/// Returns a plan of a training step that computes activations again to fit into `room` bytes. Returns `large`, the usual plan, if that
/// is not possible: opening it reports the memory that is missing. `plain` has no update, and no prepared values.
fn fitted_to_device(
    large: ExecutionPlan,
    plain: &ExecutionPlan,
    room: u64,
    device: &Arc<dyn Device>,
    finish: &dyn Fn(&mut ExecutionPlan) -> Result<()>,
) -> Result<ExecutionPlan> {
    let budget = MemoryBudget::Bytes((room as f64 * DEVICE_SHARE) as u64);
    match fit_to_budget(plain, &budget, device, None, finish) {
        Ok(fitting) => {
            let planned = large.memory_forecast().planned;
            log::warn!(
                "a training step needs {planned} bytes, and the device has {room}: activations are computed again"
            );
            Ok(fitting)
        }
        Err(Error::MemoryBudget { .. }) => Ok(large),
        Err(error) => Err(error),
    }
}

/// Share of the device's memory for a training step that would not fit without recomputation. The rest is for evaluation.
const DEVICE_SHARE: f64 = 0.9;

/// Reads the plan from a file. Returns `None` if there is none, or if its key does not match that of the build.
fn cached_plan(graph: &Graph, key: &BuildKey, path: &Path) -> Result<Option<ExecutionPlan>> {
    let _span = tracing::debug_span!("load plan").entered();
    let reason = match cache::load(graph, path) {
        Ok(LoadResult::Missing) => return Ok(None),
        Ok(LoadResult::Plan(plan)) => match plan.build_key.differences(key)[..] {
            [] => return Ok(Some(*plan)),
            ref parts => format!("build key mismatch ({})", parts.join(", ")),
        },
        Ok(LoadResult::Stale(reason)) => reason,
        // Overwriting the file would destroy data that is not ours.
        Err(error) if !cache::may_replace(path) => return Err(error),
        Err(error) => {
            log::warn!("the plan is built again: {error}");
            return Ok(None);
        }
    };
    cache::log_invalidated(&reason);
    Ok(None)
}
