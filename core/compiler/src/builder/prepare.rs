//! The passes over a graph before it is compiled to a plan.

use meganeura_core::autodiff::{try_differentiate, try_differentiate_scaled};
use meganeura_core::error::Result;
use meganeura_core::graph::Graph;
use meganeura_core::mode::Mode;
use meganeura_core::plan::optimizer::Update;

use crate::optimize::{OptimizeReport, expand_unsupported, for_inference, optimize_for};
use crate::rewrite::{Pass, Request, RewriteConfig, Target};

/// Runs all graph passes before compilation, for a device or a simulated one.
///
/// # Errors
/// Errors of the passes; invalid settings and rules.
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
        Mode::Inference => {
            let graph = expand_unsupported(for_inference(graph)?, target)?;
            optimize_for(&graph, &request(Pass::Inference))
        }
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
