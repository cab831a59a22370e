//! Tests of invalid or malicious input: the command ends soon, with a message.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use super::{meganeura, run};

/// Returns the error of a command that must fail within a few seconds.
fn refused(command: &mut Command) -> String {
    let start = Instant::now();
    let (output, _, err) = run(command);
    // The exit code is 2 for commands that distinguish broken files from unsupported ones.
    assert!(matches!(output.status.code(), Some(1 | 2)), "{command:?}: {err}");
    assert!(start.elapsed().as_secs() < 20, "{command:?} took {:?}", start.elapsed());
    err
}

/// Creates a pipe without a writer.
fn pipe(folder: &Path) -> String {
    let path = folder.join("pipe");
    let made = Command::new("mkfifo").arg(&path).status();
    assert!(made.is_ok_and(|status| status.success()));
    path.to_str().expect("text").to_owned()
}

#[test]
fn devices_and_pipes_are_refused_wherever_a_file_is_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = pipe(folder.path());
    let alice = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/alice/alice.txt");
    let alice = alice.to_str().expect("text");
    let table = folder.path().join("table.csv");
    std::fs::write(&table, "a,label\n1,x\n2,y\n3,x\n4,y\n").expect("written");
    let table = table.to_str().expect("text");
    for special in ["/dev/zero", &pipe] {
        for args in [
            &["train", "--device", "cpu", "--csv", special][..],
            &["train", "--device", "cpu", "--npz", special],
            &["train", "--config", special],
            &[
                "train", "--device", "cpu", "--csv", table, "--onnx", special, "--out", "m.onnx",
            ],
            &["train", "text", "--device", "cpu", "--model", "tiny", "--data", special],
            &[
                "train",
                "text",
                "--device",
                "cpu",
                "--model",
                "tiny",
                "--data",
                alice,
                "--tokenizer",
                special,
            ],
            &["check", special],
            &[
                "conformance",
                "--device",
                "cpu",
                "--filter",
                "core.relu",
                "--expected",
                special,
            ],
        ] {
            let err = refused(&mut meganeura(args));
            assert!(err.contains("not a regular file"), "{args:?}: {err}");
        }
        let err = refused(meganeura(&["devices"]).env("MEGANEURA_CONFIG", special));
        assert!(err.contains("not a regular file"), "{err}");
        // A model folder with invalid files.
        for name in ["config.json", "tokenizer.json"] {
            let model = folder.path().join("model");
            let _ = std::fs::remove_dir_all(&model);
            std::fs::create_dir(&model).expect("made");
            let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/transformers/llama");
            for file in ["config.json", "tokenizer.json", "model.safetensors"] {
                let (from, to) = (fixture.join(file), model.join(file));
                if file == name {
                    std::os::unix::fs::symlink(special, to).expect("links")
                } else {
                    drop(std::fs::copy(from, to))
                }
            }
            let mut command = meganeura(&["generate", "--device", "cpu", "--prompt", "a", "--model"]);
            let err = refused(command.arg(&model));
            assert!(err.contains("not a regular file") && err.contains(name), "{err}");
        }
    }
}

#[test]
fn no_limit_of_the_address_space_ends_a_training_without_words() {
    let folder = tempfile::tempdir().expect("a folder");
    // The code of a development build takes 85 MB.
    for megabytes in [130, 150, 200, 300, 500, 800, 1200, 2000, 4000] {
        let script = format!("ulimit -v {}; exec \"$0\" \"$@\"", megabytes * 1024);
        let mut shell = Command::new("sh");
        shell.args([
            "-c",
            &script,
            env!("CARGO_BIN_EXE_meganeura"),
            "train",
            "digits",
            "--device",
            "cpu",
        ]);
        shell.args(["--hidden", "4096,4096", "--epochs", "0", "--out", "model"]);
        let (output, out, err) = run(shell.env("MEGANEURA_THREADS", "2").current_dir(folder.path()));
        let said = output.status.success() || output.status.code() == Some(1) && err.contains("error: ");
        assert!(said, "{megabytes} MB: {:?}: {out}{err}", output.status);
    }
}

#[test]
fn a_server_without_address_space_for_requests_does_not_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/transformers/llama");
    let model = model.to_str().expect("UTF-8");
    let args = ["serve", "--device", "cpu", "--port", "0", "--model", model];
    let (code, out, err) = limited(folder.path(), "-v 1200000", &args);
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(
        err.contains("of address space for requests") && err.contains("ulimit -v"),
        "{err}"
    );
}

#[test]
fn a_table_of_millions_of_columns_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("wide.csv");
    let line = vec!["1"; 2_000_000].join(",");
    std::fs::write(&path, format!("{line}\n{line}\n")).expect("written");
    let mut command = meganeura(&["train", "--device", "cpu", "--csv"]);
    let err = refused(command.arg(&path));
    assert!(err.contains("has 2000000 fields, expected at most 131072"), "{err}");
}

/// Runs the command in a shell with a limit.
fn limited(folder: &Path, limit: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit {limit}; exec \"$0\" \"$@\"")]);
    shell.arg(env!("CARGO_BIN_EXE_meganeura")).args(args);
    shell
        .env("MEGANEURA_THREADS", "2")
        .env("HOME", folder)
        .env_remove("XDG_CACHE_HOME");
    let (output, out, err) = run(shell.current_dir(folder));
    (output.status.code(), out, err)
}

fn files_of(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("readable");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn files_that_exceed_the_limit_of_the_shell_are_errors_that_name_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let train = ["train", "digits", "--device", "cpu", "--epochs", "1"];
    let commands: [(&str, Vec<&str>); 4] = [
        ("model", [&train[..], &["--out", "model"]].concat()),
        (
            "run.jsonl",
            [&train[..], &["--log", "run.jsonl", "--statistics", "1"]].concat(),
        ),
        (
            "page.html",
            vec![
                "conformance",
                "--device",
                "cpu",
                "--seeds",
                "1",
                "--filter",
                "core.relu",
                "--html",
                "page.html",
            ],
        ),
        (
            "plan.html",
            vec!["explain", "mlp", "--device", "cpu", "--html", "plan.html"],
        ),
    ];
    for (file, args) in commands {
        // A block has 512 or 1024 bytes.
        let (code, out, err) = limited(folder.path(), "-f 1", &args);
        assert_eq!(code, Some(1), "{args:?}: {out}{err}");
        assert!(err.contains("error: ") && err.contains(file), "{args:?}: {err}");
        // A log is written during the run; all other files are complete or missing.
        let left: Vec<String> = files_of(folder.path())
            .into_iter()
            .filter(|name| name != "run.jsonl")
            .collect();
        assert!(left.is_empty(), "{args:?}: {left:?}");
    }
}

#[test]
fn too_few_open_files_are_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut last = None;
    for files in 3..16 {
        let args = ["train", "digits", "--device", "cpu", "--epochs", "1", "--out", "model"];
        let (code, out, err) = limited(folder.path(), &format!("-n {files}"), &args);
        let is_clear = match code {
            Some(0) => folder.path().join("model/model.json").is_file(),
            Some(1) => err.contains("error: "),
            // The system's loader cannot open the libraries.
            Some(127) => err.contains("error while loading shared libraries"),
            _ => false,
        };
        assert!(is_clear, "{files}: {code:?}: {out}{err}");
        let left = files_of(folder.path());
        assert!(left.iter().all(|name| name == "model"), "{files}: {left:?}");
        last = code;
    }
    assert_eq!(last, Some(0), "the limit is enough in the end");
}
