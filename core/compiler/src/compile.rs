//! Compilation of an optimized graph to a plan: the last stage before a session.
//!
//! The module re-exports [`meganeura_core::plan`], whose types describe plans.

use meganeura_core::config::Config;
use meganeura_core::error::{Result, unwrap_report};
use meganeura_core::graph::Graph;
pub use meganeura_core::plan::*;
use meganeura_core::{plan, select};

/// Compiles a graph for the device that environment and configuration file select, so that
/// [`Session::new`](meganeura_core::Session::new) can run the plan: calls without a kernel on the
/// device are widened or decomposed.
///
/// # Panics
/// Panics with the text of the error if [`try_compile`] fails.
#[must_use]
#[track_caller]
pub fn compile(graph: &Graph) -> ExecutionPlan {
    unwrap_report(try_compile(graph))
}

/// Compiles like [`compile`], but returns errors instead of panicking. If no device can be opened, the plan is for a
/// device with a kernel for every operator.
///
/// # Errors
/// All errors of [`Graph::verify`]; a configuration that cannot be read;
/// [`MissingKernels`](meganeura_core::Error::MissingKernels) if the device lacks primitives that
/// the graph needs.
pub fn try_compile(graph: &Graph) -> Result<ExecutionPlan> {
    graph.verify()?;
    let config = Config::load()?;
    match select::select(None, &config).and_then(|selected| selected.open(&config)) {
        Ok(device) => {
            let mut plan = compile_for(graph, &*device)?;
            plan.place_buffers(device.capabilities().max_buffer_bytes)?;
            Ok(plan)
        }
        Err(_) => plan::try_compile(graph),
    }
}
