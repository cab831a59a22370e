//! Tests of `generate` and `chat` with a small checkpoint.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use meganeura::nn::data::read_npy;
use serde_json::Value;

use super::{json_lines, meganeura, run};

fn model() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/transformers/llama")
}

fn expected() -> Value {
    let text = std::fs::read_to_string(model().join("expected.json")).expect("a fixture");
    serde_json::from_str(&text).expect("json")
}

/// Creates a command for the model, with a separate cache folder.
fn on_model(command: &str, caches: &tempfile::TempDir, args: &[&str]) -> Command {
    let mut all = meganeura(&[command, "--device", "cpu", "--model"]);
    all.arg(model()).args(args).env("XDG_CACHE_HOME", caches.path());
    all
}

#[test]
fn text_is_generated_and_plans_are_kept() {
    let caches = tempfile::tempdir().expect("a folder");
    let wanted = expected();
    let prompt = wanted["prompt"].as_str().expect("text");
    let logits = caches.path().join("logits.npy");
    let logits = logits.to_str().expect("a path");
    let args = ["--prompt", prompt, "--max-tokens", "12", "--json", "--logits", logits];
    let mut found = Vec::new();
    for _ in 0..2 {
        let (output, out, err) = run(&mut on_model("generate", &caches, &args));
        assert!(output.status.success(), "{err}");
        found.push(json_lines(&out).pop().expect("a line"));
    }
    let ids = |value: &Value| value.as_array().expect("a list").clone();
    for line in &found {
        assert_eq!(line["prompt_ids"], wanted["prompt_ids"]);
        // The model may end its text earlier.
        let tokens = ids(&line["token_ids"]);
        assert_eq!(tokens[..], ids(&wanted["continuation"])[..tokens.len()]);
        assert!(line["text"].is_string(), "{line}");
        assert_eq!(line["device"], "cpu");
        for speed in ["prefill_tokens_per_second", "decode_tokens_per_second"] {
            assert!(line[speed].as_f64().is_some_and(|s| s > 0.0), "{speed} in {line}");
        }
    }
    let array = read_npy(logits).expect("logits");
    assert_eq!(array.shape(), [ids(&wanted["prompt_ids"]).len(), 320]);
    let plans = caches.path().join("meganeura/plans/llama");
    assert!(std::fs::read_dir(plans).expect("plans").count() >= 2);

    // The same result from tokens, as text.
    let list: Vec<String> = ids(&wanted["prompt_ids"]).iter().map(Value::to_string).collect();
    let list = list.join(",");
    let args = ["--prompt-ids", &list, "--max-tokens", "12", "--no-plan-cache"];
    let (output, out, err) = run(&mut on_model("generate", &caches, &args));
    assert!(output.status.success(), "{err}");
    assert_eq!(out.trim_end(), found[0]["text"].as_str().expect("text").trim_end());
    assert!(err.contains("tokens/s") && err.contains("on cpu"), "{err}");
}

#[test]
fn sampling_repeats_by_seed() {
    let caches = tempfile::tempdir().expect("a folder");
    let text = |seed: &str| {
        let args = [
            "--prompt",
            "Alice",
            "--temperature",
            "1",
            "--top-k",
            "50",
            "--seed",
            seed,
            "--max-tokens",
            "20",
        ];
        let (output, out, err) = run(&mut on_model("generate", &caches, &args));
        assert!(output.status.success(), "{err}");
        assert!(out.starts_with("Alice"), "{out}");
        out
    };
    assert_eq!(text("1"), text("1"));
    assert_ne!(text("1"), text("2"));
}

#[test]
fn a_conversation() {
    let caches = tempfile::tempdir().expect("a folder");
    let mut command = on_model("chat", &caches, &["--max-tokens", "5", "--system", "Be brief."]);
    let piped = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = piped.spawn().expect("the program runs");
    let mut input = child.stdin.take().expect("input");
    input
        .write_all(b"Do cats eat bats?\n\nDo bats eat cats?\n")
        .expect("written");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{err}");
    // An answer for each line that is not empty.
    let ends = output.stdout.iter().filter(|&&b| b == b'\n').count();
    assert!(ends >= 2, "{output:?}");
}

#[test]
fn what_cannot_be_is_one_clear_error() {
    let caches = tempfile::tempdir().expect("a folder");
    for (args, said) in [
        (
            &["--prompt", "a", "--max-tokens", "500"][..],
            "do not fit into a cache of 128 rows",
        ),
        (&["--prompt", "a", "--cache", "1000"], "1 to 128 rows"),
        (&["--prompt", "a", "--cache-type", "q4"], "there are f32, f16, q8"),
        (
            &["--prompt", "a", "--cache-type", "q8"],
            "a cache of q8 needs a multiple of 64",
        ),
        (
            &["--prompt-ids", "5,999"],
            "token 999 is not in the model's vocabulary of 320",
        ),
        (&["--prompt", "a", "--temperature=-1"], "temperature"),
        (&["--prompt", ""], "no tokens"),
    ] {
        let (output, out, err) = run(&mut on_model("generate", &caches, args));
        assert!(!output.status.success() && out.is_empty(), "{out}");
        assert!(err.contains(said) && err.matches("error:").count() == 1, "{err}");
    }
    let (output, _, err) = run(&mut meganeura(&["generate", "--model", "/no/such", "--prompt", "a"]));
    assert!(!output.status.success() && err.contains("config.json"), "{err}");
}

#[test]
fn weights_of_fewer_bits_and_gguf_files() {
    let caches = tempfile::tempdir().expect("a folder");
    let ids = ["--prompt-ids", "41,75,260,9", "--max-tokens", "3", "--json"];
    for weights in ["f16", "q8", "q4"] {
        let args = [&ids[..], &["--weights", weights]].concat();
        let (output, out, err) = run(&mut on_model("generate", &caches, &args));
        assert!(output.status.success(), "{err}");
        assert!(json_lines(&out).pop().expect("a line")["text"].is_string());
    }
    let plans = std::fs::read_dir(caches.path().join("meganeura/plans/llama")).expect("plans");
    let names: Vec<String> = plans
        .map(|e| e.expect("a file").file_name().to_string_lossy().into_owned())
        .collect();
    assert!(names.iter().any(|name| name.ends_with("-q8.ron")), "{names:?}");
    let (output, _, err) = run(&mut on_model(
        "generate",
        &caches,
        &["--prompt", "a", "--weights", "q5"],
    ));
    assert!(
        !output.status.success() && err.contains("f32, f16, q8, q6, q5_1, q5_0, q4_1, q4"),
        "{err}"
    );

    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/gguf/llama_q8_0.gguf");
    let mut command = meganeura(&[
        "generate",
        "--device",
        "cpu",
        "--prompt",
        "Alice was",
        "--json",
        "--max-tokens",
        "3",
    ]);
    let (output, out, err) = run(command.arg("--model").arg(file).env("XDG_CACHE_HOME", caches.path()));
    assert!(output.status.success(), "{err}");
    let line = json_lines(&out).pop().expect("a line");
    assert!(
        line["text"].is_string() && line["prompt_ids"].as_array().is_some_and(|ids| !ids.is_empty()),
        "{line}"
    );
}

#[test]
fn a_model_that_is_not_there_comes_with_where_to_get_it() {
    let folder = tempfile::tempdir().expect("a folder");
    for (model, parts) in [
        (
            "SmolLM2-135M-Instruct",
            [
                "hf download HuggingFaceTB/SmolLM2-135M-Instruct",
                "--local-dir SmolLM2-135M-Instruct",
            ],
        ),
        (
            "./models/mine",
            ["no model at './models/mine'", "hf download HuggingFaceTB/SmolLM2-135M "],
        ),
        (
            "smollm2.gguf",
            ["no model at 'smollm2.gguf'", "hf download HuggingFaceTB/SmolLM2-135M "],
        ),
    ] {
        for command in [
            &["generate", "--prompt", "hi"][..],
            &["chat"],
            &["train", "text", "--data", "t.txt"],
        ] {
            std::fs::write(folder.path().join("t.txt"), "some text").expect("writable");
            let args = [command, &["--model", model]].concat();
            let (output, _, err) = run(meganeura(&args).current_dir(folder.path()));
            assert!(!output.status.success(), "{args:?}");
            assert!(parts.iter().all(|part| err.contains(part)), "{args:?}: {err}");
        }
    }
    #[cfg(not(feature = "hub"))]
    {
        let args = ["generate", "--prompt", "hi", "--model", "org/own"];
        let (_, _, err) = run(meganeura(&args).current_dir(folder.path()));
        assert!(
            err.contains("--features hub") && err.contains("hf download org/own"),
            "{err}"
        );
    }
}
