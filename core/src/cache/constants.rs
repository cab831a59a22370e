//! Large constants of a cached plan, stored in a separate file next to the plan.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::files::{folder_of, sha256, write_atomically};
use crate::plan::{BufferRef, ExecutionPlan};

/// Maximum bytes of a constant that is stored within the plan.
const INLINE_BYTES: usize = 1024;

const SUFFIX: &str = ".constants";

/// Size and hash of the file with the constants whose data the plan omits. The file contains them concatenated, in
/// little-endian order.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SideFile {
    bytes: usize,
    sha256: String,
}

/// Constants removed from a plan.
pub(super) struct RemovedConstants {
    parts: Vec<Vec<u8>>,
    pub(super) file: SideFile,
}

/// Moves the large constants out of a plan: returns the plan without their data, and the constants. Constants with a
/// NaN count as large, because text would not preserve every NaN.
pub(super) fn take(plan: &ExecutionPlan) -> (ExecutionPlan, Option<RemovedConstants>) {
    let mut plan = plan.clone();
    let mut parts: Vec<Vec<u8>> = Vec::new();
    for (_, data) in &mut plan.constant_buffers {
        if size_of_val(&data[..]) > INLINE_BYTES || data.iter().any(|v| v.is_nan()) {
            parts.push(data.iter().flat_map(|v| v.to_le_bytes()).collect());
            *data = Vec::new();
        }
    }
    for (_, data) in &mut plan.raw_constant_buffers {
        if data.len() > INLINE_BYTES {
            parts.push(std::mem::take(data));
        }
    }
    if parts.is_empty() {
        return (plan, None);
    }
    let file = SideFile {
        bytes: parts.iter().map(Vec::len).sum(),
        sha256: sha256(parts.iter().map(Vec::as_slice)),
    };
    (plan, Some(RemovedConstants { parts, file }))
}

impl SideFile {
    fn path(&self, plan: &Path) -> PathBuf {
        let hash = self.sha256.get(..16).unwrap_or(&self.sha256);
        // A hash from a file must not lead to another folder.
        let hash: String = hash.chars().filter(char::is_ascii_hexdigit).collect();
        let mut name = plan.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{hash}{SUFFIX}"));
        folder_of(plan).join(name)
    }
}

impl RemovedConstants {
    /// Writes the file that belongs to a plan.
    pub(super) fn save(&self, plan: &Path) -> Result<()> {
        let all = |w: &mut dyn Write| self.parts.iter().try_for_each(|part| w.write_all(part));
        write_atomically(&self.file.path(plan), all)
    }
}

/// Removes the side files of earlier plans with this name. A process that has just read such a plan
/// does not find its constants, and rebuilds the plan.
pub(super) fn remove_others(plan: &Path, current: Option<&SideFile>) {
    let keep = current.map(|file| file.path(plan));
    let prefix = format!("{}.", plan.file_name().unwrap_or_default().to_string_lossy());
    for entry in fs::read_dir(folder_of(plan)).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let hash = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(SUFFIX));
        let is_hash = |hash: &str| hash.len() == 16 && hash.chars().all(|c| c.is_ascii_hexdigit());
        if hash.is_some_and(is_hash) && keep.as_deref() != Some(&entry.path()) {
            // A file that cannot be removed does no harm.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Restores the constants of a plan. Returns `false` if their file does not exist.
pub(super) fn put_back(plan: &mut ExecutionPlan, file: &SideFile, path: &Path) -> Result<bool> {
    let side = file.path(path);
    let damaged = |message: String| Error::file(&side, message, "delete it, and the plan is built again");
    let sizes = missing_sizes(plan);
    let total = sizes.iter().try_fold(0usize, |sum, size| sum.checked_add(*size));
    if total != Some(file.bytes) {
        return Err(damaged(format!(
            "should contain {} bytes of constants, but the plan needs {total:?}",
            file.bytes
        )));
    }
    // Check the size before reading, so that no more is read than the plan needs.
    let found = match fs::metadata(&side) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(damaged(format!("could not be read: {error}"))),
    };
    if found != file.bytes as u64 {
        return Err(damaged(format!("has {found} bytes, expected {}", file.bytes)));
    }
    let data = fs::read(&side).map_err(|error| damaged(format!("could not be read: {error}")))?;
    if data.len() != file.bytes || sha256([&data[..]]) != file.sha256 {
        return Err(damaged("is damaged: its hash does not match".to_owned()));
    }
    let mut rest = &data[..];
    let mut next = |bytes: usize| {
        let (part, after) = rest.split_at(bytes);
        rest = after;
        part
    };
    for (buffer, values) in plan.constant_buffers.iter_mut().filter(|(_, v)| v.is_empty()) {
        let words = next(plan.buffers[buffer.index()]).chunks_exact(4);
        *values = words.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    }
    for (buffer, values) in plan.raw_constant_buffers.iter_mut().filter(|(_, v)| v.is_empty()) {
        *values = next(plan.buffers[buffer.index()]).to_vec();
    }
    Ok(true)
}

/// Returns the bytes of each constant that has no data, in order.
fn missing_sizes(plan: &ExecutionPlan) -> Vec<usize> {
    let floats = plan.constant_buffers.iter().map(|(b, v)| (*b, v.is_empty()));
    let raw = plan.raw_constant_buffers.iter().map(|(b, v)| (*b, v.is_empty()));
    let missing = floats.chain(raw).filter(|(_, empty)| *empty);
    // A buffer that does not exist counts as more bytes than any file has.
    let size = |(buffer, _): (BufferRef, bool)| plan.buffers.get(buffer.index()).copied().unwrap_or(usize::MAX);
    missing.map(size).collect()
}
