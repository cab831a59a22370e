//! Tests that every command refuses files of unsupported kinds, and damaged and missing ones.

use std::fs;
use std::path::{Path, PathBuf};

use super::pictures::{bmp, photos};
use super::{meganeura, run};

fn root(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Writes a file of every kind, and returns their names. The last one is missing.
fn files(folder: &Path) -> Vec<&'static str> {
    let copy = |from: &str, to: &str| fs::copy(root(from), folder.join(to)).expect("copied");
    let cut = |from: &str, to: &str| {
        let bytes = fs::read(root(from)).expect("a fixture");
        fs::write(folder.join(to), &bytes[..bytes.len() / 3]).expect("written");
    };
    let (gguf, onnx) = (
        "tests/fixtures/gguf/llama_q8_0.gguf",
        "formats/onnx/tests/data/convnet/model.onnx",
    );
    let rows = "1,2,low\n3,4,high\n".repeat(20);
    fs::write(folder.join("table.csv"), format!("a,b,kind\n{rows}")).expect("written");
    copy("formats/onnx/tests/data/convnet/input_0.npy", "array.npy");
    copy(
        "tests/fixtures/transformers/llama/model.safetensors",
        "weights.safetensors",
    );
    copy(gguf, "model.gguf");
    cut(gguf, "cut.gguf");
    copy(onnx, "model.onnx");
    cut(onnx, "cut.onnx");
    fs::write(folder.join("empty.bin"), "").expect("written");
    fs::create_dir(folder.join("folder")).expect("made");
    vec![
        "table.csv",
        "array.npy",
        "weights.safetensors",
        "model.gguf",
        "cut.gguf",
        "model.onnx",
        "cut.onnx",
        "empty.bin",
        "folder",
        "missing.file",
    ]
}

#[test]
fn files_of_other_kinds_are_refused_by_every_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = files(folder.path());
    let llama = root("tests/fixtures/transformers/llama");
    let llama = llama.to_str().expect("text");
    // Words of a command, with FILE for the file, and the files that it accepts.
    let commands: [(&str, &[&str]); 22] = [
        ("explain FILE", &["model.onnx", "model.gguf"]),
        ("bench FILE --device cpu", &["model.onnx", "model.gguf"]),
        ("check FILE", &["model.onnx"]),
        ("run FILE --device cpu", &["model.onnx"]),
        ("run model.onnx --device cpu --input x=FILE", &["array.npy"]),
        ("export FILE --out out.onnx", &["model.onnx"]),
        ("train --csv FILE --device cpu", &["table.csv"]),
        ("train --npz FILE --device cpu", &[]),
        ("train --images FILE --device cpu", &[]),
        (
            "train --csv table.csv --onnx FILE --out out.onnx --device cpu",
            &["model.onnx"],
        ),
        ("train --csv table.csv --config FILE --device cpu", &["empty.bin"]),
        ("train text --model FILE --data table.csv --device cpu", &["model.gguf"]),
        (
            "train text --model tiny --data FILE --device cpu",
            &["table.csv", "empty.bin"],
        ),
        ("predict --model FILE --csv table.csv --device cpu", &[]),
        ("evaluate --model FILE --csv table.csv --device cpu", &[]),
        ("generate --model FILE --prompt a --device cpu", &["model.gguf"]),
        ("generate --model LLAMA --lora FILE --prompt a --device cpu", &[]),
        ("chat --model FILE --device cpu", &["model.gguf"]),
        ("embed a --model FILE --device cpu", &[]),
        ("serve --model FILE --port 0 --device cpu", &["model.gguf"]),
        (
            "serve --model LLAMA --draft-model FILE --port 0 --device cpu",
            &["model.gguf"],
        ),
        ("diff --plan FILE --device cpu --device cpu", &[]),
    ];
    for (command, read) in commands {
        let command = command.replace("LLAMA", llama);
        for file in files.iter().filter(|file| !read.contains(file)) {
            assert_refused(folder.path(), &command.replace("FILE", file), file);
        }
    }
    assert!(!folder.path().join("out.onnx").exists());
}

/// Runs a command in a folder, which must end with one error that names the file.
fn assert_refused(folder: &Path, command: &str, file: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    let (output, out, err) = run(meganeura(&words)
        .current_dir(folder)
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .stdin(std::process::Stdio::null()));
    assert!(
        !output.status.success() && output.status.code().is_some(),
        "{words:?}: {out}{err}"
    );
    assert_eq!(err.matches("error:").count(), 1, "{words:?}: {err}");
    assert!(err.contains(file) && !err.contains("panicked"), "{words:?}: {err}");
}

fn train(folder: &Path, options: &str) {
    let command = format!("train {options} --epochs 1 --batch 4 --device cpu");
    let words: Vec<&str> = command.split(' ').collect();
    let (output, out, err) = run(meganeura(&words).current_dir(folder));
    assert!(output.status.success(), "{words:?}: {out}{err}");
}

/// Models of tables and of images refuse files with examples of other kinds.
#[test]
fn examples_of_other_kinds_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let mut files = files(path);
    photos(path, 10);
    train(path, "--csv table.csv --label kind --out table");
    train(path, "--images photos --image-size 8 --model mlp --out images");
    bmp(&path.join("one.bmp"), [200, 30, 40], 1);
    files.push("one.bmp");
    for (options, read) in [
        ("--model table --csv FILE", &["table.csv"][..]),
        ("--model table --npz FILE", &[]),
        ("--model table --images FILE", &[]),
        ("--model table --image FILE", &[]),
        ("--model images --csv FILE", &[]),
        ("--model images --npz FILE", &[]),
        ("--model images --images FILE", &[]),
        ("--model images --image FILE", &["one.bmp"]),
    ] {
        for command in ["predict", "evaluate"] {
            // Single images have no labels, so they are only for `predict`.
            if command == "evaluate" && options.contains("--image ") {
                continue;
            }
            for file in files.iter().filter(|file| !read.contains(file)) {
                let command = format!("{command} {options} --device cpu");
                assert_refused(path, &command.replace("FILE", file), file);
            }
        }
    }
}

/// `tune` opens its device first, so this test needs Vulkan.
#[test]
#[cfg(feature = "blade")]
fn tune_refuses_files_of_other_kinds() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = files(folder.path());
    let (output, _, _) = run(&mut meganeura(&["tune", "4x4x4", "--device", "blade", "--dry-run"]));
    if !super::ran_on_vulkan(&output, "files of `tune`") {
        return;
    }
    let is_refused = |file: &&&str| !["model.onnx", "model.gguf"].contains(*file);
    for file in files.iter().filter(is_refused) {
        assert_refused(folder.path(), &format!("tune {file} --device blade"), file);
    }
}

#[test]
fn a_folder_of_inputs_that_is_missing_is_said_to_be() {
    let folder = tempfile::tempdir().expect("a folder");
    files(folder.path());
    for inputs in ["missing", "table.csv"] {
        for command in ["run model.onnx --inputs-dir", "check model.onnx --against"] {
            let words: Vec<&str> = command.split(' ').chain([inputs, "--device", "cpu"]).collect();
            let (output, _, err) = run(meganeura(&words).current_dir(folder.path()));
            assert!(!output.status.success(), "{words:?}");
            let said = format!("{inputs}: the folder of inputs does not exist");
            assert!(err.contains(&said), "{words:?}: {err}");
        }
    }
}

#[test]
fn a_gguf_file_instead_of_an_onnx_file_is_recognized() {
    let folder = tempfile::tempdir().expect("a folder");
    files(folder.path());
    for command in ["check model.gguf", "run model.gguf", "export model.gguf --out out.onnx"] {
        let words: Vec<&str> = command.split(' ').collect();
        let (output, _, err) = run(meganeura(&words).current_dir(folder.path()));
        assert!(!output.status.success(), "{words:?}");
        assert!(
            err.contains("found a GGUF file; use it with `generate`"),
            "{words:?}: {err}"
        );
    }
}
