//! Tests of `models` and `pull`, and of names instead of paths.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{json_lines, meganeura, run};

fn fixtures(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures")
        .join(name)
}

/// Creates a cache of the Hub with one model, two GGUF files of this project, and a damaged one.
fn machine(home: &Path) {
    let snapshot = home.join("hub/models--org--small/snapshots/1234567");
    fs::create_dir_all(&snapshot).expect("a folder");
    for entry in fs::read_dir(fixtures("transformers/llama")).expect("readable") {
        let path = entry.expect("readable").path();
        fs::copy(&path, snapshot.join(path.file_name().expect("a name"))).expect("copied");
    }
    let own = home.join("meganeura/models/other");
    fs::create_dir_all(&own).expect("a folder");
    for name in ["tiny-a.gguf", "tiny-b.gguf"] {
        fs::copy(fixtures("gguf/llama_q8_0.gguf"), own.join(name)).expect("copied");
    }
    fs::write(own.join("cut\u{1b}.gguf"), "GGUF").expect("written");
}

/// Creates a command that finds only the models of a folder.
pub(super) fn on(home: &Path, args: &[&str]) -> Command {
    let mut command = meganeura(args);
    for name in ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "MEGANEURA_MODELS", "HF_TOKEN"] {
        command.env_remove(name);
    }
    command
        .current_dir(home)
        .env("HF_HOME", home)
        .env("XDG_CACHE_HOME", home);
    command
}

#[test]
fn models_are_listed_and_found_by_their_names() {
    let home = tempfile::tempdir().expect("a folder");
    machine(home.path());
    let (output, out, err) = run(&mut on(home.path(), &["models", "--json", "--device", "cpu"]));
    assert!(output.status.success(), "{err}");
    let listed = json_lines(&out);
    let names: Vec<&str> = listed.iter().filter_map(|model| model["name"].as_str()).collect();
    assert_eq!(names, ["org/small", "other/cut\u{1b}", "other/tiny-a", "other/tiny-b"]);
    assert_eq!(listed[0]["fits"]["cpu"], true);
    assert_eq!(
        (&listed[0]["kind"], &listed[1]["kind"]),
        (&"text".into(), &"broken".into())
    );
    let (_, out, err) = run(&mut on(
        home.path(),
        &["models", "--json", "--device", "cpu", "--cache-type", "f16"],
    ));
    let halved = &json_lines(&out)[0];
    let bytes = |model: &serde_json::Value, of: &str| model[of].as_u64().expect("a number");
    assert_eq!(
        2 * bytes(halved, "cache_bytes"),
        bytes(&listed[0], "cache_bytes"),
        "{err}"
    );
    assert_eq!(bytes(halved, "weights_bytes"), bytes(&listed[0], "weights_bytes"));
    let (output, out, err) = run(&mut on(home.path(), &["models", "--device", "cpu", "--weights", "q4"]));
    assert!(output.status.success(), "{err}");
    assert!(
        out.contains("org/small") && out.contains("no: is damaged or of another format"),
        "{out}"
    );
    assert!(!out.contains('\u{1b}'), "{out:?}");

    let generate = |model: &str| {
        let args = [
            "generate",
            "--device",
            "cpu",
            "--prompt",
            "Alice",
            "--max-tokens",
            "2",
            "--model",
            model,
        ];
        run(&mut on(home.path(), &args))
    };
    for name in ["org/small", "small", "tiny-a", "tiny-b.gguf"] {
        let (output, _, err) = generate(name);
        assert!(output.status.success(), "{name}: {err}");
    }
    let (output, _, err) = generate("other");
    assert!(
        !output.status.success() && err.contains("any of 2 models") && err.contains("other/tiny-b"),
        "{err}"
    );
    let (output, _, err) = generate("smal");
    assert!(
        !output.status.success() && err.contains("closest names are org/small"),
        "{err}"
    );
    assert!(
        err.contains("meganeura models") && err.contains("meganeura pull"),
        "{err}"
    );
    // An existing path has priority.
    fs::create_dir(home.path().join("small")).expect("a folder");
    let (output, _, err) = generate("small");
    assert!(!output.status.success() && err.contains("small/config.json"), "{err}");
}

#[test]
fn what_cannot_be_downloaded_is_one_clear_error() {
    let home = tempfile::tempdir().expect("a folder");
    // A port that was just released has no listener.
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address").port()
    };
    let endpoint = format!("http://127.0.0.1:{port}");
    let (output, _, err) = run(on(home.path(), &["pull", "org/model"]).env("HF_ENDPOINT", &endpoint));
    let said = if cfg!(feature = "hub") {
        "cannot be reached"
    } else {
        "--features hub"
    };
    assert!(!output.status.success() && err.contains(said), "{err}");
    let (output, _, err) = run(&mut on(home.path(), &["pull", "../model"]));
    assert!(!output.status.success() && err.contains("cannot be the name"), "{err}");
}
