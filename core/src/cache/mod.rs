//! Cached plans in files.
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
//! It is safe to delete, readable, and suitable for version control (line endings may change, but
//! nothing else). It does not contain weights, inputs or the state of optimizers. Large constants
//! are stored in a separate file next to it, whose name ends in the hash of its contents.
//!
//! Files are written under a temporary name and renamed: processes that use one file at the same
//! time always see a complete plan, and the last writer wins. A plan is checked twice when it is
//! read: by the checksum, and by [`ExecutionPlan::verify`].

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

/// Result of loading a file.
pub enum LoadResult {
    /// There is no file.
    Missing,
    /// The file is intact, but belongs to another graph or another version of this program.
    Stale(String),
    /// A plan that was verified.
    Plan(Box<ExecutionPlan>),
}

/// Writes a plan to a file, with the hash of the graph that it was compiled from (before any pass).
///
/// # Errors
/// [`Error::File`] when the file cannot be written; an earlier file is then unchanged.
pub fn save_plan(plan: &ExecutionPlan, forward_graph: &Graph, path: impl AsRef<Path>) -> Result<()> {
    file::save(plan, forward_graph, path.as_ref())
}

/// Reads the plan of a graph. Returns `None` if there is no file, or if it belongs to another graph
/// or format; the reason is logged. The caller must compare the plan's [`BuildKey`] with the
/// required one.
///
/// # Errors
/// [`Error::File`] if the file is damaged or cannot be read, or if it does not contain a plan that
/// this program can run.
pub fn load_plan(forward_graph: &Graph, path: impl AsRef<Path>) -> Result<Option<ExecutionPlan>> {
    match load(forward_graph, path.as_ref())? {
        LoadResult::Plan(plan) => Ok(Some(*plan)),
        LoadResult::Missing => Ok(None),
        LoadResult::Stale(reason) => {
            log_invalidated(&reason);
            Ok(None)
        }
    }
}

/// Reads a plan from its file, for any graph.
///
/// # Errors
/// [`Error::File`] when the file is missing, damaged, of another version, or its constants are missing.
pub fn read_plan(path: impl AsRef<Path>) -> Result<ExecutionPlan> {
    let path = path.as_ref();
    let remedy = "`build_session_cached` and `meganeura explain --cache` write such files";
    match file::load(None, path)? {
        LoadResult::Plan(plan) => Ok(*plan),
        LoadResult::Missing => Err(Error::file(path, "does not exist", remedy)),
        LoadResult::Stale(reason) => Err(Error::file(path, format!("cannot be used: {reason}"), remedy)),
    }
}

/// Logs the reason why a file is not used.
pub fn log_invalidated(reason: &str) {
    log::info!("cache invalidated: {reason}");
}

/// Reads a plan like [`load_plan`], but also returns the reason why there is no plan.
///
/// # Errors
/// As [`load_plan`].
pub fn load(forward_graph: &Graph, path: &Path) -> Result<LoadResult> {
    let mut loaded = file::load(Some(&graph_hash(forward_graph)), path)?;
    if let LoadResult::Plan(plan) = &mut loaded {
        plan.renew_sources(forward_graph);
    }
    Ok(loaded)
}

/// Returns `true` if a plan may overwrite the file: it contains a plan, is empty, or does not
/// exist.
pub fn may_replace(path: &Path) -> bool {
    file::may_replace(path)
}
