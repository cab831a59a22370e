//! Compiler of plugins in C; the tests of the command use it, too.

use std::path::Path;
use std::process::Command;

/// Compiles a source to a shared object that only its owner can write.
pub(crate) fn compile(source: &Path, include: &Path, options: &[String], to: &Path) {
    let mut command = Command::new("cc");
    command
        .args(["-std=gnu11", "-O1", "-shared", "-fPIC", "-I"])
        .arg(include);
    command.args(options).arg(source).arg("-lm").arg("-o").arg(to);
    let output = command.output().expect("there is a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    set_mode(to, 0o755);
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
}
