//! Tests of traces of the command.

use std::path::Path;
use std::process::Command;

use crate::tracks::{Slice, tracks};

#[test]
fn the_command_line_writes_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("train.pftrace");
    let command = |trace: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meganeura"));
        command.args(["train", "digits", "--epochs", "1", "--device", "cpu"]);
        command.env("MEGANEURA_TRACE", trace).env_remove("MEGANEURA_DEVICE_ID");
        command.output().expect("the program runs")
    };
    let output = command(&file);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tracks = tracks(&file);
    assert!(
        tracks["main"]
            .iter()
            .flat_map(Slice::all)
            .filter(|s| s.name == "step")
            .count()
            > 10
    );
    let passes = tracks["cpu, session 0"].iter().map(|s| s.within.len()).sum::<usize>();
    assert!(passes > 100, "{passes}");

    let output = command(&folder.path().join("no/such/folder/trace"));
    assert!(!output.status.success());
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.contains("no/such/folder/trace"), "{err}");
    assert!(output.stdout.is_empty(), "before anything is trained");
}
