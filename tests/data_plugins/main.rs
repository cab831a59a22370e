//! Tests of plugins without native code: in builds, on devices, and as a user installs them.
// A separate binary: plugins stay loaded in the process, for all of its tests.
#![cfg(unix)]

mod files;
mod guides;
#[cfg(feature = "blade")]
mod kernels;
mod models;

use std::path::{Path, PathBuf};

/// Writes files to a folder, with permissions that allow only their owner to change them.
fn write(folder: &Path, files: &[(&str, &str)]) -> PathBuf {
    for (name, text) in files {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("written");
        set_mode(&path, 0o644);
    }
    folder.to_owned()
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    set_mode(folder.path(), 0o755);
    folder
}
