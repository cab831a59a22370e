//! What a user names by mistake, or was given by somebody else: it ends soon, with words.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use super::{meganeura, run};

/// What a command says that has to fail within a few seconds.
fn refused(command: &mut Command) -> String {
    let start = Instant::now();
    let (output, _, err) = run(command);
    // 2 where a command tells what is wrong with a file from what is not supported.
    assert!(matches!(output.status.code(), Some(1 | 2)), "{command:?}: {err}");
    assert!(start.elapsed().as_secs() < 20, "{command:?} took {:?}", start.elapsed());
    err
}

/// A pipe that nobody writes into.
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
        // A folder of a model whose files are none.
        for name in ["config.json", "tokenizer.json"] {
            let model = folder.path().join("model");
            let _ = std::fs::remove_dir_all(&model);
            std::fs::create_dir(&model).expect("made");
            let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/transformers/llama");
            for file in ["config.json", "tokenizer.json", "model.safetensors"] {
                let (from, to) = (fixture.join(file), model.join(file));
                match file == name {
                    true => std::os::unix::fs::symlink(special, to).expect("links"),
                    false => drop(std::fs::copy(from, to)),
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
    for megabytes in [100, 150, 200, 300, 500, 800, 1200, 2000, 4000] {
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
fn a_table_of_millions_of_columns_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("wide.csv");
    let line = vec!["1"; 2_000_000].join(",");
    std::fs::write(&path, format!("{line}\n{line}\n")).expect("written");
    let mut command = meganeura(&["train", "--device", "cpu", "--csv"]);
    let err = refused(command.arg(&path));
    assert!(err.contains("has 2000000 fields, more than the 131072"), "{err}");
}
