//! From an optimized graph to a plan: the last stage before a session.
//!
//! What plans are made of is [`meganeura_core::plan`], which this module re-exports.

use meganeura_core::config::Config;
use meganeura_core::error::{Result, unwrap_report};
use meganeura_core::graph::Graph;
pub use meganeura_core::plan::*;
use meganeura_core::{plan, select};

/// Compiles a graph for the device that environment and configuration file select, so that
/// [`Session::new`](meganeura_core::Session::new) runs the plan there: calls for which the device has no kernel are widened
/// or decomposed.
///
/// # Panics
/// With the report of [`try_compile`]'s error.
#[must_use]
#[track_caller]
pub fn compile(graph: &Graph) -> ExecutionPlan {
    unwrap_report(try_compile(graph))
}

/// [`compile`] with errors as values. Where no device can be opened, the plan is for one that has a kernel for every
/// operator.
///
/// # Errors
/// What [`Graph::verify`] finds; a configuration that cannot be read; [`MissingKernels`](meganeura_core::Error::MissingKernels)
/// when the device lacks primitives that the graph needs.
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
