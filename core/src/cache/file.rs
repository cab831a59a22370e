//! The file of a cached plan.

use std::io::{self, Read};
use std::path::Path;

use ron::ser::PrettyConfig;
use serde::{Deserialize, Serialize};

use super::Loaded;
use super::constants::{self, SideFile};
use super::fingerprint::graph_hash;
use crate::error::{Error, Result};
use crate::files::{Sealed, clean_partial_files, folder_of, open_regular, seal, unseal, write_atomically};
use crate::graph::Graph;
use crate::plan::{ExecutionPlan, PLAN_VERSION};

/// Files that are larger are not read.
pub const MAX_FILE_BYTES: u64 = 1 << 29;

/// First words of every file.
const MAGIC: &str = "// meganeura plan, format ";

/// What a file holds.
#[derive(Serialize, Deserialize)]
struct CachedPlan {
    graph_hash: String,
    constants: Option<SideFile>,
    plan: ExecutionPlan,
}

pub(super) fn save(plan: &ExecutionPlan, graph: &Graph, path: &Path) -> Result<()> {
    let (mut plan, taken) = constants::take(plan);
    plan.tie_sources(graph);
    if let Some(taken) = &taken {
        taken.save(path)?;
    }
    let side = taken.map(|t| t.file);
    let body =
        encode(&plan, &graph_hash(graph), side.as_ref()).map_err(|e| Error::file(path, e, "please report this"))?;
    let text = seal(MAGIC, PLAN_VERSION, &body);
    write_atomically(path, |w| w.write_all(text.as_bytes()))?;
    constants::remove_others(path, side.as_ref());
    // Of constants as well, whose files have other names.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    clean_partial_files(&folder_of(path), &name);
    Ok(())
}

/// The text after the first line. Names of types only where people look first: they would double the file, and
/// reading does not need them.
fn encode(plan: &ExecutionPlan, graph_hash: &str, side: Option<&SideFile>) -> Result<String, String> {
    // The lists of the plan have an entry a line, so that versions can be compared.
    let pretty = PrettyConfig::new().depth_limit(2).new_line("\n").indentor("  ");
    let fail = |e: ron::Error| format!("cannot be written as text: {e}");
    let plan = ron::ser::to_string_pretty(plan, pretty).map_err(fail)?;
    let side = ron::to_string(&side).map_err(fail)?;
    Ok(format!(
        "CachedPlan(\n  graph_hash: \"{graph_hash}\",\n  constants: {side},\n  plan: ExecutionPlan{plan},\n)\n"
    ))
}

/// With a hash, what is of another graph is stale.
pub(super) fn load(graph_hash: Option<&str>, path: &Path) -> Result<Loaded> {
    let Some(text) = read(path)? else {
        return Ok(Loaded::Missing);
    };
    let damaged = |message: &str| Error::file(path, message, "delete it, and the plan is built again");
    let body = match unseal(MAGIC, PLAN_VERSION, &text) {
        Sealed::Foreign => {
            return Err(Error::file(
                path,
                "is not a file of a plan",
                "name another file, or delete this one if it is not needed",
            ));
        }
        Sealed::Damaged => {
            return Err(damaged(
                "is damaged: its contents do not have its checksum, or were edited",
            ));
        }
        Sealed::OtherVersion(version) => {
            let reason = format!("format version mismatch ({version}, this program has {PLAN_VERSION})");
            return Ok(Loaded::Stale(reason));
        }
        Sealed::Whole(body) => body,
    };
    let cached: CachedPlan = ron::from_str(body).map_err(|e| damaged(&format!("does not hold a plan: {e}")))?;
    if graph_hash.is_some_and(|hash| cached.graph_hash != hash) {
        return Ok(Loaded::Stale("graph hash mismatch".into()));
    }
    let mut plan = cached.plan;
    if let Some(side) = &cached.constants
        && !constants::put_back(&mut plan, side, path)?
    {
        return Ok(Loaded::Stale("its constants are missing".into()));
    }
    plan.verify()
        .map_err(|e| damaged(&format!("holds a plan that cannot be used: {e}")))?;
    Ok(Loaded::Plan(Box::new(plan)))
}

fn read(path: &Path) -> Result<Option<String>> {
    let fail = |e: io::Error| {
        Error::file(
            path,
            format!("could not be read: {e}"),
            "check what it is and who may read it, or name another file",
        )
    };
    let file = match open_regular(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail(error)),
    };
    let mut bytes = Vec::new();
    // A device has no size, but an end comes after this many bytes.
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let most = format!("has more than {MAX_FILE_BYTES} bytes, so it is not a file of a plan");
        return Err(Error::file(path, most, "name another file"));
    }
    // What is no text does not have its checksum either.
    Ok(Some(match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    }))
}

pub(super) fn may_replace(path: &Path) -> bool {
    let Ok(file) = open_regular(path) else {
        return !path.exists();
    };
    let mut start = Vec::new();
    let read = file.take(MAGIC.len() as u64).read_to_end(&mut start);
    // A file that was cut short within its first words is ours too.
    read.is_ok() && MAGIC.as_bytes().starts_with(&start)
}
