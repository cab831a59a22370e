//! The file of a cached plan.

use std::io::{self, Read};
use std::path::Path;

use ron::ser::PrettyConfig;
use serde::{Deserialize, Serialize};

use super::LoadResult;
use super::constants::{self, SideFile};
use super::fingerprint::graph_hash;
use crate::error::{Error, Result};
use crate::files::{SealLine, clean_partial_files, folder_of, open_regular, seal, unseal, write_atomically};
use crate::graph::Graph;
use crate::plan::{ExecutionPlan, PLAN_VERSION};

/// Maximum size of a file; larger files are not read.
pub const MAX_FILE_BYTES: u64 = 1 << 29;

/// First words of every file.
const MAGIC: &str = "// meganeura plan, format ";

/// Contents of a file.
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
    // The name also distinguishes the file of constants.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    clean_partial_files(&folder_of(path), &name);
    Ok(())
}

/// Returns the text after the first line. Type names are written only at the outer levels, for human readers. At all
/// levels, they would double the size of the file, and the parser does not need them.
fn encode(plan: &ExecutionPlan, graph_hash: &str, side: Option<&SideFile>) -> Result<String, String> {
    // One entry of a list per line, so that versions can be compared.
    let pretty = PrettyConfig::new().depth_limit(2).new_line("\n").indentor("  ");
    let fail = |e: ron::Error| format!("cannot be written as text: {e}");
    let plan = ron::ser::to_string_pretty(plan, pretty).map_err(fail)?;
    let side = ron::to_string(&side).map_err(fail)?;
    Ok(format!(
        "CachedPlan(\n  graph_hash: \"{graph_hash}\",\n  constants: {side},\n  plan: ExecutionPlan{plan},\n)\n"
    ))
}

/// Reads a plan. If a hash is given, a plan of another graph is stale.
pub(super) fn load(graph_hash: Option<&str>, path: &Path) -> Result<LoadResult> {
    let Some(text) = read(path)? else {
        return Ok(LoadResult::Missing);
    };
    let damaged = |message: &str| Error::file(path, message, "delete it, and the plan is built again");
    let body = match unseal(MAGIC, PLAN_VERSION, &text) {
        SealLine::Foreign => {
            return Err(Error::file(
                path,
                "is not a file of a plan",
                "name another file, or delete this one if it is not needed",
            ));
        }
        SealLine::Damaged => {
            return Err(damaged("is damaged or was edited: its checksum does not match"));
        }
        SealLine::OtherVersion(version) => {
            let reason = format!("format version mismatch ({version}, this program has {PLAN_VERSION})");
            return Ok(LoadResult::Stale(reason));
        }
        SealLine::Whole(body) => body,
    };
    let cached: CachedPlan = ron::from_str(body).map_err(|e| damaged(&format!("does not contain a plan: {e}")))?;
    if graph_hash.is_some_and(|hash| cached.graph_hash != hash) {
        return Ok(LoadResult::Stale("graph hash mismatch".into()));
    }
    let mut plan = cached.plan;
    if let Some(side) = &cached.constants
        && !constants::put_back(&mut plan, side, path)?
    {
        return Ok(LoadResult::Stale("its constants are missing".into()));
    }
    plan.verify()
        .map_err(|e| damaged(&format!("contains a plan that cannot be used: {e}")))?;
    Ok(LoadResult::Plan(Box::new(plan)))
}

fn read(path: &Path) -> Result<Option<String>> {
    let fail = |e: io::Error| {
        Error::file(
            path,
            format!("could not be read: {e}"),
            "check that it is a readable file, or name another file",
        )
    };
    let file = match open_regular(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail(error)),
    };
    let mut bytes = Vec::new();
    // A device file has no size, so limit the bytes that are read.
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let most = format!("has more than {MAX_FILE_BYTES} bytes, so it is not a file of a plan");
        return Err(Error::file(path, most, "name another file"));
    }
    // A file that is not UTF-8 cannot have the right checksum either.
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
    // A file that was truncated within its first words is also a plan.
    read.is_ok() && MAGIC.as_bytes().starts_with(&start)
}
