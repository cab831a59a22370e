//! Tests of `train text`, and of `generate` with the saved model.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{json_lines, meganeura, run};

fn root(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Runs `train text` on the shipped text, or another one.
fn train(data: &Path, model: &str, args: &[&str]) -> (bool, String, String) {
    let mut command = meganeura(&["train", "text", "--device", "cpu", "--model", model, "--data"]);
    let (output, out, err) = run(command.arg(data).args(args));
    (output.status.success(), out, err)
}

fn trained(data: &Path, model: &str, args: &[&str]) -> Value {
    let (success, out, err) = train(data, model, &[args, &["--json"]].concat());
    assert!(success, "{err}");
    json_lines(&out).pop().expect("a summary")
}

/// Returns the continuation that a model generates after some words.
fn generated(model: &str, args: &[&str]) -> Value {
    let caches = tempfile::tempdir().expect("a folder");
    let mut command = meganeura(&["generate", "--device", "cpu", "--json", "--max-tokens", "12"]);
    command.args(["--prompt", "Alice was not", "--model", model]).args(args);
    let (output, out, err) = run(command.env("XDG_CACHE_HOME", caches.path()));
    assert!(output.status.success(), "{err}");
    json_lines(&out).pop().expect("a line")
}

fn loss(summary: &Value) -> f64 {
    summary["train_loss"].as_f64().expect("a loss")
}

/// The result is saved as a checkpoint in Hugging Face's layout for every source model.
#[test]
fn a_gguf_file_is_fine_tuned_to_a_checkpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let fixture = |name: &str| {
        let path = root("tests/fixtures/gguf").join(name);
        path.to_str().expect("text").to_owned()
    };
    let data = root("data/alice/alice.txt");
    let args = ["--seq", "16", "--batch", "2", "--steps", "2"];
    let out = path("model");
    trained(
        &data,
        &fixture("llama_f32.gguf"),
        &[&args[..], &["--out", &out]].concat(),
    );
    generated(&out, &["--temperature", "0"]);
    // A model that this layout cannot describe is refused before the training.
    let (success, _, err) = train(
        &data,
        &fixture("qwen3_q4_0.gguf"),
        &[&args[..], &["--out", &path("other")]].concat(),
    );
    assert!(!success && err.contains("cannot save as type llama"), "{err}");
}

/// Returns all files of a folder, by name.
fn contents(folder: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    let file = |e: std::fs::DirEntry| {
        (
            e.file_name().to_string_lossy().into_owned(),
            std::fs::read(e.path()).expect("a file"),
        )
    };
    entries.map(file).collect()
}

#[test]
fn a_run_that_fails_leaves_the_model_of_before_and_foreign_folders_are_refused() {
    let home = tempfile::tempdir().expect("a folder");
    let models = home.path().join("models");
    let out = models.join("alice");
    let whole = std::fs::read_to_string(root("data/alice/alice.txt")).expect("the text");
    let text = home.path().join("text.txt");
    std::fs::write(&text, &whole[..3000]).expect("written");
    let run = |vocab: &str, steps: &str, more: &[&str]| {
        let usual = [
            "--vocab", vocab, "--seq", "16", "--batch", "4", "--steps", steps, "--out",
        ];
        train(
            &text,
            "tiny",
            &[&usual[..], &[out.to_str().expect("text")], more].concat(),
        )
    };
    let (success, _, err) = run("300", "1", &[]);
    assert!(success, "{err}");
    let before = contents(&out);
    assert_eq!(
        before.keys().collect::<Vec<_>>(),
        ["config.json", "model.safetensors", "tokenizer.json"]
    );
    // This run has another vocabulary, and fails before its end.
    let (success, _, err) = run("270", "40", &["--lr", "1e30", "--clip-norm", "1e30"]);
    assert!(!success && err.contains("the loss is NaN"), "{err}");
    assert!(contents(&out) == before, "the model is of two runs");
    let (success, _, err) = run("270", "1", &[]);
    assert!(success, "{err}");
    let after = contents(&out);
    assert!(
        before.keys().all(|name| before[name] != after[name]),
        "it was not replaced"
    );
    let inside = std::fs::read_dir(&models).expect("a folder").count();
    assert_eq!(inside, 1, "something is left beside it");

    std::fs::write(out.join("thesis.txt"), "years of work").expect("written");
    let (success, _, err) = run("300", "1", &[]);
    assert!(
        !success && err.contains("'thesis.txt'") && err.contains("name another folder"),
        "{err}"
    );
    assert_eq!(
        std::fs::read(out.join("config.json")).expect("it is there"),
        after["config.json"]
    );
}

#[test]
fn a_small_model_learns_the_text_that_ships_and_goes_on_with_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    // A few paragraphs, repeated: enough to memorize them in little time.
    let whole = std::fs::read_to_string(root("data/alice/alice.txt")).expect("the text");
    let text = folder.path().join("text.txt");
    std::fs::write(&text, &whole[..1500]).expect("written");
    let out = path("model");
    let args = ["--vocab", "300", "--seq", "32", "--batch", "4", "--test-fraction", "0"];
    let args = [&args[..], &["--steps", "300", "--out", &out]].concat();
    let summary = trained(&text, "tiny", &args);
    assert!(loss(&summary) < 0.5, "{summary}");
    assert!(summary["test_loss"].is_null(), "{summary}");
    assert!(summary["steps"].as_u64().is_some_and(|steps| steps >= 300), "{summary}");

    // It was saved in the layout of other programs, too.
    let config = std::fs::read_to_string(Path::new(&out).join("config.json")).expect("a configuration");
    let config: Value = serde_json::from_str(&config).expect("json");
    assert_eq!(
        (&config["model_type"], &config["vocab_size"]),
        (&"llama".into(), &300.into())
    );
    let text_of = |line: &Value| line["text"].as_str().expect("text").to_owned();
    let before = generated(&out, &[]);
    assert!(text_of(&before).chars().any(char::is_alphabetic), "{before}");

    // Adapters learn another text; the model is unchanged, and is merged with them on request.
    let other = folder.path().join("other.txt");
    std::fs::write(&other, "The Queen said no. ".repeat(60)).expect("written");
    let lora = path("lora");
    let args = ["--seq", "16", "--lora", "4", "--lora-targets", "all", "--lr", "0.01"];
    let args = [&args[..], &["--steps", "30", "--seed", "3"]].concat();
    let summary = trained(&other, &out, &[&args[..], &["--out", &lora]].concat());
    let merged = path("merged");
    let again = trained(&other, &out, &[&args[..], &["--out", &merged, "--merge"]].concat());
    assert_eq!(loss(&summary), loss(&again));
    assert!(!Path::new(&lora).join("model.safetensors").exists());
    assert_eq!(generated(&out, &[])["token_ids"], before["token_ids"]);
    let adapted = generated(&out, &["--lora", &lora]);
    assert_ne!(adapted["token_ids"], before["token_ids"]);
    assert_eq!(generated(&merged, &[])["token_ids"], adapted["token_ids"]);
}

/// Adapters on packed weights are saved like others, resume from a checkpoint, and change the output of a model with any storage
/// type.
#[test]
fn adapters_are_trained_on_packed_weights() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let other = folder.path().join("other.txt");
    std::fs::write(&other, "The Queen said no. ".repeat(60)).expect("written");
    for (model, weights) in [
        ("tests/fixtures/transformers/llama", "q4"),
        ("tests/fixtures/transformers/qwen3", "q8"),
        ("tests/fixtures/gguf/llama3_q8_0.gguf", "q8"),
    ] {
        let model = root(model);
        let model = model.to_str().expect("text");
        let args = [
            "--seq",
            "16",
            "--batch",
            "4",
            "--lora",
            "4",
            "--lora-targets",
            "all",
            "--lr",
            "0.02",
            "--weights",
        ];
        let args = [&args[..], &[weights, "--schedule", "constant"]].concat();
        let (run, lora) = (path("run"), path("lora"));
        let saving = ["--checkpoint", &run, "--every", "3"];
        let through = trained(&other, model, &[&args[..], &["--epochs", "4", "--out", &lora]].concat());
        assert!(through["last_loss"].is_null() || loss(&through) < 5.5, "{through}");
        trained(&other, model, &[&args[..], &saving, &["--epochs", "2"]].concat());
        let resumed = trained(
            &other,
            model,
            &[&args[..], &saving, &["--epochs", "4", "--resume"]].concat(),
        );
        assert_eq!(loss(&resumed), loss(&through), "{model}");
        let before = generated(model, &["--weights", "f32"]);
        let adapted = generated(model, &["--lora", &lora, "--weights", "f32"]);
        assert_ne!(adapted["token_ids"], before["token_ids"], "{model}");
        // Packed weights use the adapters, too.
        for weights in ["q4", "q8", "f16"] {
            let before = generated(model, &["--weights", weights]);
            let adapted = generated(model, &["--lora", &lora, "--weights", weights]);
            assert_ne!(adapted["token_ids"], before["token_ids"], "{model} in {weights}");
        }
        for made in [run, lora] {
            std::fs::remove_dir_all(made).expect("it was made");
        }
    }
}

#[test]
fn models_and_adapters_stop_early_and_learn_in_mixed_precision() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("text.txt");
    std::fs::write(&text, "The Queen said no. ".repeat(60)).expect("written");
    let model = root("tests/fixtures/transformers/llama");
    let model = model.to_str().expect("text");
    for kind in [&[][..], &["--lora", "4"], &["--lora", "4", "--weights", "q5_1"]] {
        let args = [kind, &["--seq", "16", "--batch", "4", "--schedule", "constant"]].concat();
        let epochs = |count: &'static str, more: &[&str]| {
            trained(&text, model, &[&args[..], &["--epochs", count], more].concat())
        };
        // No later epoch improves by this much, so the weights of the first one are kept.
        let stopped = epochs("5", &["--patience", "1", "--min-delta", "1000"]);
        assert_eq!(stopped["epochs"], 2, "{kind:?}");
        let first = epochs("1", &[]);
        assert_eq!(stopped["test_loss"], first["test_loss"], "{kind:?}");
        let mixed = epochs("1", &["--precision", "mixed"]);
        assert_eq!(mixed["precision"], "mixed");
        let (found, wanted) = (loss(&mixed), loss(&first));
        assert!((found / wanted - 1.0).abs() < 1e-4, "{kind:?}: {found}, not {wanted}");
    }
}

#[test]
fn a_number_of_steps_is_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("text.txt");
    std::fs::write(&text, "The Queen said no. ".repeat(400)).expect("written");
    let model = root("tests/fixtures/transformers/llama");
    let model = model.to_str().expect("text");
    for steps in ["1", "8", "300"] {
        let summary = trained(&text, model, &["--seq", "16", "--batch", "4", "--steps", steps]);
        assert_eq!(summary["steps"].to_string(), steps);
    }
}

/// Checkpoints of other families keep their configuration and the names of their tensors.
#[test]
fn other_families_are_fine_tuned_whole_and_by_adapters() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let data = root("data/alice/alice.txt");
    let tokenizer = root("tests/fixtures/transformers/llama/tokenizer.json");
    let tokenizer = tokenizer.to_str().expect("text");
    for (family, tensor) in [
        ("gemma3", "model.layers.2.post_feedforward_layernorm.weight"),
        ("phi3", "model.layers.1.self_attn.qkv_proj.weight"),
    ] {
        let model = root("tests/fixtures/transformers").join(family);
        let model = model.to_str().expect("text");
        let args = ["--tokenizer", tokenizer, "--seq", "16", "--batch", "2", "--steps", "3"];
        let [whole, merged] = ["whole", "merged"].map(|name| path(&format!("{family}-{name}")));
        trained(&data, model, &[&args[..], &["--out", &whole]].concat());
        let adapting = ["--lora", "2", "--lora-targets", "all", "--merge", "--out", &merged];
        trained(&data, model, &[&args[..], &adapting].concat());
        for out in [whole, merged] {
            let config = std::fs::read_to_string(Path::new(&out).join("config.json")).expect("written");
            let config: Value = serde_json::from_str(&config).expect("json");
            assert!(
                config["model_type"].as_str().is_some_and(|ty| ty.starts_with(family)),
                "{config}"
            );
            let stored = std::fs::read(Path::new(&out).join("model.safetensors")).expect("written");
            let quoted = format!("\"{tensor}\"");
            assert!(stored.windows(quoted.len()).any(|w| w == quoted.as_bytes()), "{tensor}");
            let text = generated(&out, &["--temperature", "0"]);
            assert_eq!(text["token_ids"].as_array().map(Vec::len), Some(12), "{text}");
        }
    }
}

#[test]
fn a_run_that_was_ended_goes_on_and_a_checkpoint_learns_as_a_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run").to_str().expect("text").to_owned();
    let model = root("tests/fixtures/transformers/llama");
    let model = model.to_str().expect("text");
    let data = root("data/alice/alice.txt");
    let text = folder.path().join("text.txt");
    let whole = std::fs::read_to_string(data).expect("the text");
    std::fs::write(&text, &whole[..1200]).expect("written");
    let args = ["--seq", "16", "--batch", "4", "--lr", "0.01", "--schedule", "constant"];
    let through = trained(&text, model, &[&args[..], &["--epochs", "3"]].concat());
    let saving = ["--checkpoint", &run, "--every", "3"];
    trained(&text, model, &[&args[..], &saving, &["--epochs", "2"]].concat());
    let rest = ["--epochs", "3", "--resume"];
    let resumed = trained(&text, model, &[&args[..], &saving, &rest].concat());
    assert_eq!(resumed["train_loss"], through["train_loss"]);
    assert_eq!(resumed["test_loss"], through["test_loss"]);
    // The weights are random, so the logits are large.
    assert!(loss(&through) < 6.0, "{through}");
}

#[test]
fn what_cannot_be_is_one_clear_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, contents: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, contents).expect("written");
        path
    };
    let long = file("long.txt", "Down the rabbit hole. ".repeat(40).as_bytes());
    let short = file("short.txt", b"Alice");
    let empty = file("empty.txt", b"");
    let binary = file("binary.txt", &[0xff, 0xfe, 0x00]);
    let absent = folder.path().join("absent.txt");
    let llama = root("tests/fixtures/transformers/llama");
    let linear = root("tests/fixtures/transformers/llama_linear");
    let (llama, linear) = (llama.to_str().expect("text"), linear.to_str().expect("text"));
    let nowhere = folder.path().join("nowhere");
    let nowhere = nowhere.to_str().expect("text");
    let taken = short.join("model");
    let taken = taken.to_str().expect("text");
    let large = folder.path().join("large");
    // A configuration with more layers than fit into memory.
    let deep = folder.path().join("deep");
    std::fs::create_dir(&deep).expect("made");
    for name in ["model.safetensors", "tokenizer.json"] {
        std::fs::copy(Path::new(llama).join(name), deep.join(name)).expect("copied");
    }
    let config = std::fs::read_to_string(Path::new(llama).join("config.json")).expect("a configuration");
    let config = config.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 2000000000");
    std::fs::write(deep.join("config.json"), config).expect("written");
    let deep = deep.to_str().expect("text");
    // A tokenizer with more tokens than the model has.
    let text = whole_tokenizer(&long, &large);
    for (data, model, args, said) in [
        (&absent, "tiny", &[][..], "absent.txt: the text cannot be read"),
        (&binary, "tiny", &[], "not UTF-8"),
        (&short, "tiny", &[], "tokens, but an example of 64"),
        (&empty, "tiny", &[], "0 tokens"),
        (&long, "tiny", &["--seq", "0"], "--seq: expected at least 1"),
        (&long, "tiny", &["--batch", "1000"], "larger than the data set"),
        (&long, "tiny", &["--batch", "0"], "batch"),
        (&long, "tiny", &["--vocab", "100"], "no room for every byte"),
        (&long, "tiny", &["--test-fraction", "1"], "--test-fraction"),
        (&long, "tiny", &["--lora", "4"], "--lora needs a trained model"),
        (&long, "tiny", &["--tokenizer", "no.json"], "no.json"),
        (&long, "tiny", &["--out", taken], "could not be made"),
        (&long, nowhere, &[], "config.json"),
        (&long, "no-such-org/model", &[], "--features hub"),
        (&long, linear, &[], "tokenizer.json"),
        (&long, llama, &["--seq", "200"], "128 positions"),
        (&long, llama, &["--tokenizer", &text], "the model only 320"),
        (&long, deep, &[], "too few for the 2000000000 layers"),
        (&long, llama, &["--lora", "0"], "--lora: expected a rank of at least 1"),
        (&long, llama, &["--lora", "2", "--lora-alpha", "inf"], "finite"),
        (&long, llama, &["--lora", "2", "--lora-targets", "q,norm"], "'norm'"),
        (&long, llama, &["--merge"], "--lora"),
        (&long, llama, &["--weights", "q4"], "--lora"),
        (
            &long,
            llama,
            &["--lora", "2", "--weights", "q4", "--merge"],
            "cannot be used with",
        ),
        (
            &long,
            llama,
            &["--lora", "2", "--weights", "q5"],
            "there are f32, f16, q8, q6, q5_1, q5_0, q4_1, q4",
        ),
        (&long, llama, &["--steps", "1", "--epochs", "1"], "cannot be used with"),
    ] {
        let (success, _, err) = train(data, model, args);
        assert!(!success && err.contains(said), "{args:?}: {err}");
        assert_eq!(err.matches("error:").count(), 1, "{args:?}: {err}");
    }
    let (output, _, err) = run(&mut meganeura(&[
        "generate", "--model", llama, "--prompt", "a", "--lora", nowhere,
    ]));
    assert!(!output.status.success() && err.contains("adapter_config.json"), "{err}");
}

/// Returns the path of a tokenizer with 400 tokens, saved by `train text`.
fn whole_tokenizer(data: &Path, folder: &Path) -> String {
    let whole = root("data/alice/alice.txt");
    let out = folder.to_str().expect("text");
    let args = ["--vocab", "400", "--seq", "16", "--epochs", "0", "--out", out];
    let (success, _, err) = train(if whole.exists() { &whole } else { data }, "tiny", &args);
    assert!(success, "{err}");
    folder.join("tokenizer.json").to_str().expect("text").to_owned()
}

/// Trains on conversations, and evaluates the result with the loss of all tokens.
#[test]
fn conversations_train_the_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let chat = |name: &str, number: usize| {
        serde_json::json!({"id": number, "messages": [
            {"role": "user", "content": format!("{name}, what is number {number}?")},
            {"role": "assistant", "content": "It is a white rabbit."},
        ]})
        .to_string()
    };
    let lines: Vec<String> = (0..20).map(|number| chat("Alice", number)).collect();
    let data = path("chats.jsonl");
    std::fs::write(&data, lines.join("\n")).expect("written");
    let model = root("tests/fixtures/transformers/llama");
    let model = model.to_str().expect("text");
    let args = ["--batch", "3", "--lr", "1e-2", "--lora", "4", "--lora-targets", "all"];
    let summary = trained(&data, model, &[&args[..], &["--steps", "60"]].concat());
    let number = |name: &str| summary[name].as_f64().unwrap_or_else(|| panic!("{name}: {summary}"));
    assert!(number("counted_tokens") * 2.0 < number("tokens"), "{summary}");
    // All answers are equal, so that the model learns them by heart. The questions still have other numbers.
    assert!(number("test_loss") < 0.2, "{summary}");
    assert!(
        (number("test_perplexity") - number("test_loss").exp()).abs() < 1e-6,
        "{summary}"
    );
    let all = [&args[..], &["--epochs", "0", "--loss-on", "all"]].concat();
    let (success, out, err) = train(&data, model, &all);
    assert!(success, "{err}");
    assert!(out.contains("20 objects with messages: "), "{out}");
    assert!(out.contains("not used: id"), "{out}");
    // Joined to sequences, the 18 examples for training take few steps.
    let packed = ["--pack", "--seq", "128", "--batch", "1", "--epochs", "1", "--lora", "4"];
    let (success, out, err) = train(&data, model, &packed);
    assert!(success, "{err}");
    assert!(
        out.contains("packed into ") && out.contains(" sequences of 128, "),
        "{out}"
    );
    // Examples that do not fit are cut off; without any answer left, there is nothing to train.
    let (success, _, err) = train(&data, model, &[&args[..], &["--seq", "4", "--steps", "1"]].concat());
    assert!(!success && err.contains("chats.jsonl"), "{err}");
    std::fs::write(&data, "{\"messages\": []}\n").expect("written");
    let (success, _, err) = train(&data, model, &args);
    assert!(
        !success && err.contains("line 1: expected a list in 'messages'"),
        "{err}"
    );
    // A new model has no chat template, but learns completions.
    std::fs::write(
        &data,
        "{\"prompt\": \"One, two\", \"completion\": \", three\"}\n".repeat(9),
    )
    .expect("written");
    let summary = trained(
        &data,
        "tiny",
        &["--vocab", "260", "--steps", "2", "--test-fraction", "0"],
    );
    assert!(loss(&summary).is_finite(), "{summary}");
}
