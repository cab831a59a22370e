//! Settings of a build.

use std::path::PathBuf;

use meganeura_core::config::Config;
use meganeura_core::debug::DebugOptions;
use meganeura_core::loss_scaling::LossScaling;
use meganeura_core::mode::Mode;
use meganeura_core::plan::MemoryBudget;
use meganeura_core::plan::optimizer::Update;
use meganeura_core::precision::Precision;

use crate::rewrite::RewriteConfig;

/// Settings of [`build`](super::build); [`Builder`](super::Builder) has them as methods. `SessionConfig::default()` trains on the
/// device that environment and configuration file select.
#[derive(Clone, Debug, Default)]
pub struct SessionConfig {
    /// Device selector; overrides environment and configuration file.
    pub device: Option<String>,
    /// Training or inference.
    pub mode: Mode,
    /// Update that the plan contains from the start (it can also be set later). An optimizer converts to an update.
    pub optimizer: Option<Update>,
    /// File that caches the plan between builds; see [`meganeura_core::cache`].
    pub cache: Option<PathBuf>,
    /// Settings of rewriting, instead of the configuration file.
    pub rewrite: Option<RewriteConfig>,
    /// Memory limit of the plan, instead of [`RewriteConfig::memory_budget`]: activations are
    /// recomputed to stay within it.
    pub memory_budget: Option<MemoryBudget>,
    /// Precision of matmuls and convolutions, instead of [`RewriteConfig::precision`].
    pub precision: Option<Precision>,
    /// Scale of gradients when training in mixed precision, instead of
    /// [`RewriteConfig::loss_scale`].
    pub loss_scale: Option<LossScaling>,
    /// All settings, instead of the configuration file.
    pub config: Option<Config>,
    /// Debug options, instead of the environment.
    pub debug: Option<DebugOptions>,
}
