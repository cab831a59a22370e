//! Tests that a panic in a Rust plugin is an error of the call.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use super::common::{repository, set_mode};
use meganeura_core::backend::Backend;
use meganeura_core::config::{Config, PluginSettings};
use meganeura_core::plan::compile_for;
use meganeura_core::{Graph, Result, Session};
use meganeura_plugin_host::{load, loaded, open_backend};

/// Description with all kinds of characters that a `Cargo.toml` allows.
const DESCRIPTION: &str = "Räume for \"tests\",\n  in C:\\new\\u0041 # 🚀\n";

/// Builds the plugin under a name.
fn build(folder: &tempfile::TempDir, name: &str) -> PathBuf {
    let abi = repository("plugins/abi").canonicalize().expect("it is there");
    let manifest = format!(
        "[package]\nname = \"panicking\"\nversion = \"0.3.0\"\nedition = \"2024\"\ndescription = '''{DESCRIPTION}'''\n\
         [lib]\ncrate-type = [\"cdylib\"]\npath = \"lib.rs\"\n\
         [dependencies]\nmeganeura-plugin-abi = {{ path = \"{}\" }}\n[workspace]\n",
        abi.display()
    );
    let place = |name: &str| folder.path().join(name);
    std::fs::write(place("Cargo.toml"), manifest).expect("written");
    let code = include_str!("panicking.rs.txt").replace("name: \"panicking\"", &format!("name: \"{name}\""));
    std::fs::write(place("lib.rs"), code).expect("written");
    let output = Command::new(env!("CARGO"))
        .args(["build", "--offline", "--quiet", "--target-dir"])
        .arg(place("target"))
        .current_dir(folder.path())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The file name of the library depends on the system.
    let (prefix, suffix) = (std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let file = place(&format!("target/debug/{prefix}panicking{suffix}"));
    let copy = place("panicking.so");
    std::fs::copy(&file, &copy).expect("copied");
    set_mode(&copy, 0o755);
    copy
}

/// Runs a step with settings that select where to panic.
fn step(backend: &Arc<dyn Backend>, place: &str) -> Result<Vec<f32>> {
    let text = format!("[backend.panicking]\npanic = \"{place}\"\n");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("config.toml");
    std::fs::write(&file, text).expect("written");
    let config = Config::read(&file)?;
    backend.devices(&config)?;
    let device = backend.open(0, &config)?;
    let mut g = Graph::new();
    let x = g.input("x", &[3]);
    let y = g.neg(x);
    g.set_outputs(vec![y]);
    let mut session = Session::on(device.clone(), compile_for(&g, &*device)?)?;
    session.try_set_input("x", &[1.0; 3])?;
    let mut y = vec![0.0; 3];
    let outcome = session
        .try_step()
        .and_then(|()| session.try_read_output_by_index(0, &mut y));
    if ["run", "read", "bomb in run"].contains(&place) {
        let again = session.try_step().expect_err("it panicked").to_string();
        assert!(
            again.contains("cannot be used any more") && again.contains("panicking"),
            "{again}"
        );
    }
    outcome.map(|()| y)
}

#[test]
fn they_are_contained_wherever_they_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let backend = open_backend(&build(&folder, "panicking"), None).expect("it loads");
    assert_eq!(
        (&*backend.info().name, &*backend.info().version),
        ("panicking", "0.3.0")
    );
    for place in ["devices", "open", "supports", "compile", "write", "run", "read"] {
        let error = step(&backend, place).expect_err("it panics").to_string();
        let words = format!("no {place} today");
        assert!(
            error.contains(&words) && error.contains("panicking"),
            "{place}: {error}"
        );
        // Other sessions are unharmed.
        assert_eq!(
            step(&backend, "nowhere").expect("nothing panics"),
            [0.0; 3],
            "after {place}"
        );
    }
    for place in ["drop", "bomb in drop"] {
        let outcome = step(&backend, place);
        assert!(outcome.is_ok(), "nobody hears of a panic while something is freed");
    }
    for place in ["bomb in open", "bomb in run"] {
        let error = step(&backend, place).expect_err("it panics").to_string();
        assert!(error.contains("panicked: without a message"), "{place}: {error}");
    }
    assert_eq!(step(&backend, "nowhere").expect("nothing panics"), [0.0; 3]);
}

#[test]
fn descriptions_are_shown_as_they_are_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = build(&folder, "described");
    let config = Config {
        plugins: PluginSettings {
            load: vec![file.clone()],
            allow_sha256: None,
        },
        ..Config::default()
    };
    load(&config);
    let report = loaded().into_iter().find(|r| r.path == file).expect("it was tried");
    assert_eq!(report.refused, None);
    let shown = "Räume for \"tests\",   in C:\\new\\u0041 # 🚀";
    assert_eq!(report.description.as_deref(), Some(shown));
    assert_eq!(
        (report.name.as_deref(), report.version.as_deref()),
        (Some("described"), Some("0.3.0"))
    );
}
