//! The one way from a graph to a plan or a session; the functions beside it are short forms.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use meganeura_core::backend::Device;
use meganeura_core::cache::{self, Loaded};
use meganeura_core::config::{Config, RewriteConfig};
use meganeura_core::debug::DebugOptions;
use meganeura_core::error::{Error, Result};
use meganeura_core::graph::Graph;
use meganeura_core::loss_scaling::LossScaling;
use meganeura_core::mode::Mode;
use meganeura_core::plan::memory::fit_to_budget;
use meganeura_core::plan::optimizer::{Update, attach};
use meganeura_core::plan::{BuildKey, ExecutionPlan, MemoryBudget, compile_at};
use meganeura_core::precision::Precision;
use meganeura_core::select;
use meganeura_core::session::Session;

use super::key::build_key;
use super::{SessionConfig, prepare};
use crate::optimize::OptimizeReport;

/// Builds plans and sessions: for the device that environment and configuration file select ([`Builder::new`]), or for one
/// that is open ([`Builder::on`]).
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
    /// A device that is open, instead of a selector.
    device: Option<Arc<dyn Device>>,
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
        Builder { settings, device: None }
    }
}

impl Builder {
    /// For training, on the device that environment and configuration file select. The configuration file is read when
    /// building, unless [`Builder::config`] gives the settings.
    pub fn new() -> Self {
        Builder::default()
    }

    /// For training, on a device that is open. No configuration file is read: what [`Builder::config`] and the other
    /// methods do not set has its default.
    pub fn on(device: Arc<dyn Device>) -> Self {
        Builder {
            device: Some(device),
            ..Builder::default()
        }
    }

    /// Device selector, as in `MEGANEURA_DEVICE_ID`; overrides environment and configuration file. An error
    /// when building on a device that is open.
    #[must_use]
    pub fn device(mut self, selector: impl Into<String>) -> Self {
        self.settings.device = Some(selector.into());
        self
    }

    /// Training, the default, or inference.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.settings.mode = mode;
        self
    }

    /// [`Mode::Inference`]: forward only.
    #[must_use]
    pub fn inference(self) -> Self {
        self.mode(Mode::Inference)
    }

    /// The update that a training step ends with: an optimizer, with clipping, accumulation and parameter groups if it is an
    /// [`Update`]. It can be set later too, which plans its segments anew.
    #[must_use]
    pub fn optimizer(mut self, update: impl Into<Update>) -> Self {
        self.settings.optimizer = Some(update.into());
        self
    }

    /// [`Builder::optimizer`] where there is one.
    #[must_use]
    pub fn maybe_optimizer(mut self, update: Option<Update>) -> Self {
        self.settings.optimizer = update;
        self
    }

    /// File that keeps the plan from one build to the next; see [`cache`].
    #[must_use]
    pub fn cache(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.cache = Some(path.into());
        self
    }

    /// Settings of rewriting instead of those of the configuration.
    #[must_use]
    pub fn rewrite(mut self, settings: RewriteConfig) -> Self {
        self.settings.rewrite = Some(settings);
        self
    }

    /// Memory limit of the plan, instead of [`RewriteConfig::memory_budget`]: activations are recomputed to stay within it.
    #[must_use]
    pub fn memory_budget(mut self, budget: MemoryBudget) -> Self {
        self.settings.memory_budget = Some(budget);
        self
    }

    /// Precision of matmuls and convolutions, instead of [`RewriteConfig::precision`].
    #[must_use]
    pub fn precision(mut self, precision: Precision) -> Self {
        self.settings.precision = Some(precision);
        self
    }

    /// Loss scaling of training in mixed precision, instead of [`RewriteConfig::loss_scale`].
    #[must_use]
    pub fn loss_scaling(mut self, scaling: LossScaling) -> Self {
        self.settings.loss_scale = Some(scaling);
        self
    }

    /// Settings instead of those of the configuration file.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.settings.config = Some(config);
        self
    }

    /// Debug options instead of those of the environment.
    #[must_use]
    pub fn debug(mut self, options: DebugOptions) -> Self {
        self.settings.debug = Some(options);
        self
    }

    /// Builds a session.
    ///
    /// Where a plan comes from a file ([`Builder::cache`]), nothing is optimized, and the report says so. A plan that cannot
    /// be saved is a warning in the log; so is a file of a plan that is damaged, which is replaced.
    ///
    /// # Errors
    /// Whatever any stage finds: a wrong graph, a loss that is not scalar, a device that cannot be selected or lacks
    /// kernels, not enough memory; a memory budget that cannot be reached; a loss scale that is no power of two; a path for
    /// the plan that names a file of something else.
    pub fn build(self, graph: &Graph) -> Result<(Session, OptimizeReport)> {
        let _span = tracing::debug_span!("build").entered();
        let debug = self.settings.debug.clone();
        let debug = debug.map_or_else(DebugOptions::from_environment, Ok)?;
        let optimizer = self.settings.optimizer.clone();
        let start = Instant::now();
        let opened = self.open(graph)?;
        let (opening, planned) = (start.elapsed(), Instant::now());
        let (plan, report) = opened.plan(graph)?;
        let (planning, prepared, dispatches) = (planned.elapsed(), Instant::now(), plan.dispatches.len());
        let mut session = Session::debugged(opened.device, plan, debug)?;
        log::info!(
            "built: device {:.1} ms, plan of {dispatches} dispatches {:.1} ms, kernels and memory {:.1} ms",
            1e3 * opening.as_secs_f64(),
            1e3 * planning.as_secs_f64(),
            1e3 * prepared.elapsed().as_secs_f64()
        );
        if let Some(optimizer) = optimizer {
            session.adopt_optimizer(optimizer);
        }
        Ok((session, report))
    }

    /// Makes the plan of a graph, with the segments of the update: what [`Builder::build`] gives to the device.
    ///
    /// # Errors
    /// As there, but for memory: nothing is allocated.
    pub fn plan(self, graph: &Graph) -> Result<(ExecutionPlan, OptimizeReport)> {
        self.open(graph)?.plan(graph)
    }

    /// Opens the device, and takes the settings together.
    fn open(self, graph: &Graph) -> Result<Opened> {
        // The graph first: its errors should not need a device to show.
        graph.verify()?;
        let Builder { settings, device } = self;
        let config = match (settings.config, &device) {
            (Some(config), _) => config,
            (None, Some(_)) => Config::default(),
            (None, None) => Config::load()?,
        };
        let device = match (device, &settings.device) {
            (Some(_), Some(selector)) => {
                return Err(Error::misuse(
                    format!("the builder has an open device, and the selector '{selector}' of another one"),
                    "use `Builder::on(device)` without `.device(..)`, or `Builder::new().device(..)`",
                ));
            }
            (Some(device), None) => device,
            (None, _) => select::select(settings.device.as_deref(), &config)?.open(&config)?,
        };
        let mut rewrite = settings.rewrite.unwrap_or(config.rewrite);
        rewrite.memory_budget = settings.memory_budget.or(rewrite.memory_budget);
        rewrite.precision = settings.precision.or(rewrite.precision);
        rewrite.loss_scale = settings.loss_scale.or(rewrite.loss_scale);
        Ok(Opened {
            device,
            mode: settings.mode,
            optimizer: settings.optimizer,
            rewrite,
            cache: settings.cache,
        })
    }
}

/// A build with every choice made.
struct Opened {
    device: Arc<dyn Device>,
    mode: Mode,
    optimizer: Option<Update>,
    rewrite: RewriteConfig,
    cache: Option<PathBuf>,
}

impl Opened {
    fn plan(&self, graph: &Graph) -> Result<(ExecutionPlan, OptimizeReport)> {
        let Some(path) = &self.cache else {
            return self.make(graph);
        };
        if let Some(update) = &self.optimizer {
            // Its numbers are not in the plan, so a plan from a file says nothing of them.
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
            Err(error) => log::warn!("the plan is not kept for the next time: {error}"),
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
        let mut plan = compile_at(&optimized, &**device, precision)?;
        plan.loss_scaling = rewrite.loss_scaling(self.mode);
        drop(lower);
        let capabilities = device.capabilities();
        // What is kept between steps takes memory that a budget may not have.
        if !rewrite.prepare || rewrite.memory_budget.is_some() {
            plan = plan.without_prepare();
            plan.place_buffers(capabilities.max_buffer_bytes)?;
        }
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
        plan.build_key = self.key();
        let fallback_dispatches = device.fallback_dispatches(&plan).into_iter();
        report.fallback_dispatches = fallback_dispatches
            .map(|(i, name)| (plan.dispatches[i].label.clone(), name))
            .collect();
        Ok((plan, report))
    }
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
