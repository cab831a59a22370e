//! Settings of checkpoints.

use std::path::PathBuf;

/// Name of the file that identifies a folder with a checkpoint.
pub(super) const MANIFEST: &str = "checkpoint.json";

/// The folder and interval of a run's checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoints {
    /// Folder of the run. It is created if it does not exist, and must not be used for anything
    /// else.
    pub folder: PathBuf,
    /// Interval of checkpoints in steps, at least 1. The run is also saved when it begins and ends.
    pub every: usize,
    /// Resumes from the checkpoint in the folder, if there is one. If false, the folder must not
    /// contain one.
    pub resume: bool,
    /// Names of the settings in which the resumed run may differ from the saved one; none by default. The error of a
    /// run with changed settings lists the names; write `-` instead of a space.
    pub allow_changes: Vec<String>,
}

impl Checkpoints {
    /// Returns true if a run resumes from the folder: resuming is enabled, and there is a
    /// checkpoint.
    pub fn resumes(&self) -> bool {
        self.resume && self.folder.join(MANIFEST).is_file()
    }
}
