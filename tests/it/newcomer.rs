//! Test of the backend guide: its files form a crate that builds and passes the conformance suite.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the files of a page: code blocks whose first line contains a file name after the language.
fn files(page: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(root().join("docs").join(page)).expect("the page is there");
    let blocks = text.split("```").skip(1).step_by(2);
    blocks
        .filter_map(|block| {
            let (info, text) = block.split_once('\n')?;
            let (_, path) = info.split_once(' ')?;
            Some((path.to_owned(), text.to_owned()))
        })
        .collect()
}

/// Returns the folder of the crate that readers of the guide copy.
fn template() -> PathBuf {
    root().join("examples/backend-template")
}

/// Copies the crate of the guide to an empty folder, with the one change that the guide requires: the path of the copy of
/// Meganeura. Returns the number of lines of Rust and TOML.
fn follow(folder: &Path) -> usize {
    let mut lines = 0;
    for (path, _) in files("write-a-backend.md") {
        let text = fs::read_to_string(template().join(&path)).expect("a file of the template");
        lines += text.lines().filter(|line| !line.trim().is_empty()).count();
        let copy = root().to_str().expect("a path in UTF-8");
        let text = match path.as_str() {
            "Cargo.toml" => text.replace("\"../..", &format!("\"{copy}")),
            _ => text,
        };
        let path = folder.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }
    lines
}

#[test]
fn the_guide_shows_the_files_of_the_template() {
    for (path, shown) in files("write-a-backend.md") {
        let text = fs::read_to_string(template().join(&path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        let text = match path.as_str() {
            "Cargo.toml" => text.replace("\"../..", "\"../meganeura"),
            _ => text,
        };
        assert!(
            text == shown,
            "{path} of the template differs from docs/write-a-backend.md"
        );
    }
}

#[test]
fn the_guide_has_all_files_of_a_crate() {
    let files = files("write-a-backend.md");
    let names: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        names,
        [
            "Cargo.toml",
            "src/lib.rs",
            "tests/sum.rs",
            "tests/conformance.rs",
            "benches/devices.rs"
        ]
    );
    for (path, text) in &files {
        // Pages show such lines unchanged.
        assert!(
            !text.lines().any(|line| line == "#" || line.starts_with("# ")),
            "{path} has hidden lines"
        );
        assert!(!text.trim().is_empty(), "{path}");
    }
    let manifest: toml::Table = toml::from_str(&files[0].1).expect("TOML");
    let dependencies = ["dependencies", "dev-dependencies"].map(|table| &manifest[table]);
    for (name, dependency) in dependencies.into_iter().flat_map(|t| t.as_table().expect("a table")) {
        let path = dependency["path"].as_str().expect("a path");
        let below = path.strip_prefix("../meganeura").expect("the copy");
        let own = root().join(below.trim_start_matches('/')).join("Cargo.toml");
        let own = fs::read_to_string(&own).unwrap_or_else(|e| panic!("{}: {e}", own.display()));
        assert!(own.contains(&format!("name = \"{name}\"")), "{path} is not {name}");
    }
}

/// A reader who follows the guide gets a passing report. With the release build of the examples, which has the same
/// dependencies, the test takes less than two minutes.
#[test]
#[ignore = "builds the library once more; .ci/long runs it"]
fn a_newcomer_gets_a_green_report() {
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path().join("my-backend");
    let lines = follow(&folder);
    // Nothing is downloaded: the versions are those of this workspace.
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).expect("copied");
    let target = std::env::var_os("MEGANEURA_GUIDE_TARGET").map_or_else(|| root().join("target"), PathBuf::from);
    let begin = Instant::now();
    let cargo = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO"))
            .args(arguments)
            .current_dir(&folder)
            .env("CARGO_TARGET_DIR", &target)
            .env("CRITERION_HOME", place.path().join("criterion"))
            .env_remove("MEGANEURA_DEVICE_ID")
            .env_remove("MEGANEURA_CONFIG")
            .env_remove("MEGANEURA_PLUGINS")
            .output();
        output.expect("cargo runs")
    };
    let output = cargo(&["test", "--release", "--offline"]);
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}\n{err}");
    for test in [
        "a_sum_and_a_product",
        "conformance_operators",
        "conformance_training",
        "conformance_semantics",
        "conformance_errors",
    ] {
        assert!(out.contains(&format!("test {test} ... ok")), "{test}: {out}");
    }
    assert!(!err.contains("warning"), "{err}");
    let output = cargo(&["bench", "--offline", "--bench", "devices", "--", "--test", "pointwise"]);
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}\n{err}");
    let has = |workload: &str, text: &str| out.lines().any(|l| l.starts_with(workload) && l.contains(text));
    assert!(has("relu", "cpu") && has("relu", "is skipped"), "{out}");
    assert!(place.path().join("criterion/meganeura.html").is_file());
    eprintln!(
        "{lines} lines, {:.0} s to build and to test",
        begin.elapsed().as_secs_f64()
    );
}
