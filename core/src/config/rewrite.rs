//! Settings of rewriting: `[rewrite]` in `meganeura.toml`, or in code.

use serde::Deserialize;

use crate::loss_scaling::LossScaling;
use crate::memory_budget::MemoryBudget;
use crate::mode::Mode;
use crate::precision::Precision;

/// Settings of rewriting and planning.
///
/// ```toml
/// [rewrite]
/// disable = ["swiglu"]
/// time_ms = 500
/// memory_budget = "4GB"
/// precision = "mixed"
/// loss_scale = "dynamic"
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RewriteConfig {
    /// Enables rewrite rules. Equal computations are merged and unused ones removed in any case.
    pub enabled: bool,
    /// Enables clustering of elementwise calls into fused ones.
    pub cluster: bool,
    /// Enables fusing the projections to queries, keys and values with the rotary embedding and the write into the KV
    /// cache, for up to four rows.
    pub projections: bool,
    /// Enables computing values that depend only on parameters, states and constants (folded batch
    /// norms, transposed weights) once for many inference steps instead of in every step. It takes
    /// memory for the results.
    pub prepare: bool,
    /// Enables computing convolutions and the calls between them on images in channels-last layout,
    /// if the device reports that as faster.
    pub channels_last: bool,
    /// Rule sets that are not used, by namespace.
    pub disable: Vec<String>,
    /// Maximum number of rounds of equality saturation (the repeated application of all rules).
    pub iterations: usize,
    /// Maximum number of rows of the e-graph's tables.
    pub tuples: usize,
    /// Maximum milliseconds of saturation; extraction has the same limit.
    pub time_ms: u64,
    /// Maximum number of steps of the exact search for the cheapest graph.
    pub steps: u64,
    /// Also computes the cost that greedy rewriting reaches, for comparison.
    pub baseline: bool,
    /// Memory limit of the plan; activations are recomputed to stay within it. No limit by default.
    pub memory_budget: Option<MemoryBudget>,
    /// Precision of matmuls and convolutions; by default [`Precision::default_for`] the device.
    pub precision: Option<Precision>,
    /// Scale of gradients when training in mixed precision; [`LossScaling::default`] by default.
    pub loss_scale: Option<LossScaling>,
}

impl Default for RewriteConfig {
    fn default() -> Self {
        RewriteConfig {
            enabled: true,
            cluster: true,
            projections: true,
            prepare: true,
            channels_last: true,
            disable: Vec::new(),
            iterations: 24,
            tuples: 400_000,
            time_ms: 2000,
            steps: 5_000_000,
            baseline: false,
            memory_budget: None,
            precision: None,
            loss_scale: None,
        }
    }
}

impl RewriteConfig {
    /// Returns the loss scaling of training; `None` without mixed precision, which training uses
    /// only on request.
    pub fn loss_scaling(&self, mode: Mode) -> Option<LossScaling> {
        let scales = mode == Mode::Training && self.precision == Some(Precision::Mixed);
        scales.then(|| self.loss_scale.unwrap_or_default())
    }

    /// Returns settings without rewriting and clustering, with everything computed in each step.
    pub fn off() -> Self {
        RewriteConfig {
            enabled: false,
            cluster: false,
            projections: false,
            prepare: false,
            channels_last: false,
            ..RewriteConfig::default()
        }
    }
}
