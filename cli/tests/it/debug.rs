//! Tests of debugging options in the environment.

use std::fs;
use std::process::Command;

use super::{meganeura, run};

#[test]
fn the_environment_sets_them_for_every_session() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |value: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meganeura"));
        command.args(["train", "digits", "--epochs", "1", "--device", "cpu", "--json"]);
        command.env("MEGANEURA_DEBUG", value).env_remove("MEGANEURA_DEVICE_ID");
        command.output().expect("the program runs")
    };
    let output = run(&format!("serial,dump={}", folder.path().display()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let plan = fs::read_to_string(folder.path().join("plan-0/plan.txt")).expect("a plan");
    assert!(plan.contains("segment forward_backward"), "{plan}");
    // The dumped plan can be compared.
    let plan = folder.path().join("plan-0/plan.ron");
    let mut diff = meganeura(&["diff", "--device", "cpu", "--device", "cpu", "--plan"]);
    let (output, out, err) = super::run(diff.arg(&plan));
    assert!(output.status.success() && out.contains("agree on all"), "{out}{err}");
    let output = run("parallel");
    assert!(!output.status.success());
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.contains("MEGANEURA_DEBUG") && err.contains("no-aliasing"), "{err}");
}

#[test]
fn folders_and_filters_that_cannot_be_used_are_errors_of_every_command() {
    for (name, value, said) in [
        ("MEGANEURA_DEBUG", "dump=/dev/null/kernels", "/dev/null/kernels"),
        ("MEGANEURA_DEBUG", "seriel", "'seriel'"),
        ("MEGANEURA_LOG", "!!!", "'!!!' is not a filter"),
    ] {
        let (output, _, err) = run(meganeura(&["ops", "core.relu"]).env(name, value));
        assert!(
            output.status.code() == Some(1) && err.contains(said),
            "{name}={value}: {err}"
        );
    }
}
