//! Plans in files.
//!
//! A file holds a plan as [RON](https://docs.rs/ron), after a comment with the format's version and a checksum:
//!
//! ```text
//! // meganeura plan, format 7, sha256 5c1f…
//! CachedPlan(
//!     graph_hash: "9e02…",
//!     constants: None,
//!     plan: ExecutionPlan(…),
//! )
//! ```
//!
//! It is safe to delete, and can be looked at and kept under version control (line endings may change, nothing else
//! may). Weights, inputs and the state of optimizers are not in it. Large constants stand beside it, in a file whose
//! name ends in the hash of its contents.
//!
//! Files are written under a temporary name and renamed, so processes that use one file at the same time see a whole
//! plan, and the last one to write wins. What is read is checked twice: by the checksum, and as a plan
//! ([`ExecutionPlan::verify`]).

mod constants;
mod file;
mod fingerprint;

use std::path::Path;

pub use crate::plan::BuildKey;
pub use file::MAX_FILE_BYTES;
pub use fingerprint::graph_hash;

use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::plan::ExecutionPlan;

/// What a file gave.
pub enum Loaded {
    /// There is no file.
    Missing,
    /// It is whole, but not for this graph or this program.
    Stale(String),
    /// A plan that was verified.
    Plan(Box<ExecutionPlan>),
}

/// Writes a plan to a file, with the hash of the graph that it was made from (as it was before any pass).
///
/// # Errors
/// [`Error::File`] when the file cannot be written; an earlier one is as it was.
pub fn save_plan(plan: &ExecutionPlan, forward_graph: &Graph, path: impl AsRef<Path>) -> Result<()> {
    file::save(plan, forward_graph, path.as_ref())
}

/// Reads the plan of a graph. `None` when there is no file, or it is of another graph or format; the log says which.
/// Whether the plan's [`BuildKey`] is the one that is wanted is for the caller to see.
///
/// # Errors
/// [`Error::File`] when a file is damaged or cannot be read, and when what it holds is not a plan
/// that this program can run.
pub fn load_plan(forward_graph: &Graph, path: impl AsRef<Path>) -> Result<Option<ExecutionPlan>> {
    match load(forward_graph, path.as_ref())? {
        Loaded::Plan(plan) => Ok(Some(*plan)),
        Loaded::Missing => Ok(None),
        Loaded::Stale(reason) => {
            log_invalidated(&reason);
            Ok(None)
        }
    }
}

/// Reads a plan from its file, whatever graph it was made of.
///
/// # Errors
/// [`Error::File`] when the file is missing, damaged, of another version, or its constants are missing.
pub fn read_plan(path: impl AsRef<Path>) -> Result<ExecutionPlan> {
    let path = path.as_ref();
    let remedy = "`build_session_cached` and `meganeura explain --cache` write such files";
    match file::load(None, path)? {
        Loaded::Plan(plan) => Ok(*plan),
        Loaded::Missing => Err(Error::file(path, "does not exist", remedy)),
        Loaded::Stale(reason) => Err(Error::file(path, format!("cannot be used: {reason}"), remedy)),
    }
}

/// Says in the log why a file is not used.
pub fn log_invalidated(reason: &str) {
    log::info!("cache invalidated: {reason}");
}

/// [`load_plan`] with the reason where there is no plan.
///
/// # Errors
/// As there.
pub fn load(forward_graph: &Graph, path: &Path) -> Result<Loaded> {
    let mut loaded = file::load(Some(&graph_hash(forward_graph)), path)?;
    if let Loaded::Plan(plan) = &mut loaded {
        plan.renew_sources(forward_graph);
    }
    Ok(loaded)
}

/// Whether a file may be overwritten by a plan: it is one, or empty, or does not exist.
pub fn may_replace(path: &Path) -> bool {
    file::may_replace(path)
}
