//! Tests of the commands' help.

use crate::plain_language_markers::Finder;
use crate::{meganeura, run};

const COMMANDS: [&[&str]; 26] = [
    &[],
    &["train"],
    &["train", "text"],
    &["predict"],
    &["evaluate"],
    &["completions"],
    &["generate"],
    &["chat"],
    &["embed"],
    &["models"],
    &["pull"],
    &["serve"],
    &["check"],
    &["run"],
    &["export"],
    &["devices"],
    &["doctor"],
    &["plugins"],
    &["plugins", "verify"],
    &["plugins", "check"],
    &["ops"],
    &["explain"],
    &["bench"],
    &["tune"],
    &["conformance"],
    &["diff"],
];

#[test]
fn command_help_is_plain() {
    let finder = Finder::new(&[]);
    let (mut words, mut marked) = (0, Vec::new());
    for command in COMMANDS {
        let (output, help, _) = run(&mut meganeura(&[command, &["--help"]].concat()));
        assert!(output.status.success(), "{command:?}");
        words += help.split_whitespace().count();
        for line in help.lines() {
            marked.extend(
                finder
                    .reasons(line)
                    .iter()
                    .map(|why| format!("{command:?}: {why}: {line}")),
            );
        }
    }
    assert!(
        500 * marked.len() < words,
        "more than 2 per 1,000 words:\n{}",
        marked.join("\n")
    );
}

#[test]
fn help_fits_into_eighty_columns() {
    for command in COMMANDS {
        for option in ["--help", "-h"] {
            let args = [command, &[option]].concat();
            let (_, out, _) = run(meganeura(&args).env_remove("COLUMNS"));
            // The parser does not wrap the usage line.
            let long = |line: &&str| line.chars().count() > 80 && !line.starts_with("Usage: ");
            let found: Vec<&str> = out.lines().filter(long).collect();
            assert!(found.is_empty(), "{args:?}: {found:#?}");
        }
    }
}

#[test]
fn completions_and_the_manual_know_every_command() {
    for what in ["bash", "zsh", "fish", "powershell", "elvish", "man"] {
        let (output, out, err) = run(&mut meganeura(&["completions", what]));
        assert!(output.status.success(), "{what}: {err}");
        for word in ["train", "predict", "evaluate", "completions", "models", "pull"] {
            assert!(out.to_lowercase().contains(word), "{word} for {what}");
        }
    }
    let (output, _, err) = run(&mut meganeura(&["completions", "cmd.exe"]));
    assert!(!output.status.success() && err.contains("possible values"), "{err}");
}

#[test]
fn files_in_the_place_of_a_data_set_name_their_option() {
    for (file, option) in [
        ("churn.csv", "--csv churn.csv"),
        ("x.JSONL", "--csv x.JSONL"),
        ("a/x.npz", "--npz a/x.npz"),
        ("m.onnx", "--onnx m.onnx"),
    ] {
        let (output, _, err) = run(&mut meganeura(&["train", file]));
        assert!(!output.status.success() && err.contains(option), "{err}");
    }
    let (_, _, err) = run(&mut meganeura(&["train", "cifar"]));
    assert!(err.contains("possible values: digits, mnist"), "{err}");
}

#[test]
fn verbose_shows_device_and_times_and_not_the_rules() {
    let args = ["-v", "train", "digits", "--epochs", "0", "--device", "cpu"];
    let (output, _, err) = run(meganeura(&args).env_remove("MEGANEURA_LOG"));
    assert!(output.status.success(), "{err}");
    assert!(
        err.contains("device cpu") && err.contains("chosen by --device"),
        "{err}"
    );
    assert!(err.contains("built: device") && err.contains("dispatches"), "{err}");
    assert!(err.lines().count() < 20, "{err}");
}

#[test]
fn a_device_that_does_not_exist_is_blamed_on_the_option() {
    let (output, _, err) = run(&mut meganeura(&["train", "digits", "--device", "cuda9"]));
    assert!(!output.status.success() && err.contains("(from --device)"), "{err}");
}
