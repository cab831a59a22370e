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
    /// Whether rules are applied at all. Equal computations are merged and unused ones removed in any case.
    pub enabled: bool,
    /// Whether elementwise calls are clustered into fused ones.
    pub cluster: bool,
    /// Whether projections of few rows (up to four) may take the rotation of their rows and the write into a cache along.
    pub projections: bool,
    /// Whether inference computes what depends on parameters, states and constants alone once for many steps (folded
    /// batch norms, transposed weights), not in each step. It takes memory for the results.
    pub prepare: bool,
    /// Whether convolutions and what is between them may be computed from images that are stored channels last, where the
    /// device says that this is faster.
    pub channels_last: bool,
    /// Rule sets to leave out, by namespace.
    pub disable: Vec<String>,
    /// Most rounds of saturation.
    pub iterations: usize,
    /// Most rows of the e-graph's tables.
    pub tuples: usize,
    /// Most milliseconds of saturation, and again of extraction.
    pub time_ms: u64,
    /// Most steps of the exact search.
    pub steps: u64,
    /// Whether to compute the cost that greedy rewriting reaches, too, for comparison.
    pub baseline: bool,
    /// Memory limit of the plan; activations are recomputed to stay within it. No limit by default.
    pub memory_budget: Option<MemoryBudget>,
    /// Precision of matmuls and convolutions; [`Precision::default_for`] the device unless it is given.
    pub precision: Option<Precision>,
    /// The scale of gradients in training in mixed precision; [`LossScaling::default`] unless it is given.
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
    /// The scale of gradients in training, if they have one: in mixed precision, which training is only on request.
    pub fn loss_scaling(&self, mode: Mode) -> Option<LossScaling> {
        let scales = mode == Mode::Training && self.precision == Some(Precision::Mixed);
        scales.then(|| self.loss_scale.unwrap_or_default())
    }

    /// No rewriting, no clustering, and everything computed in each step.
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
