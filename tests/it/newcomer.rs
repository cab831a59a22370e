//! The guide to backends, followed as it stands: its files make a crate that builds and conforms.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files of a page: blocks whose first line names one behind the language.
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

/// What a newcomer has after following the guide, in an empty folder. The only thing that is changed is what the guide
/// says to change: where the copy of Meganeura is.
fn follow(folder: &Path) -> usize {
    let files = files("write-a-backend.md");
    let mut lines = 0;
    for (path, text) in &files {
        lines += text.lines().filter(|line| !line.trim().is_empty()).count();
        let copy = root().to_str().expect("a path in UTF-8");
        let text = match path.as_str() {
            "Cargo.toml" => text.replace("\"../meganeura", &format!("\"{copy}")),
            _ => text.clone(),
        };
        let path = folder.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }
    lines
}

#[test]
fn the_guide_has_all_files_of_a_crate() {
    let files = files("write-a-backend.md");
    let names: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        names,
        ["Cargo.toml", "src/lib.rs", "tests/sum.rs", "tests/conformance.rs"]
    );
    for (path, text) in &files {
        // Pages show such lines as they are.
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

/// With the release build of the examples, which has the same dependencies, it takes less than two minutes.
#[test]
#[ignore = "builds the library once more; .ci/run runs it"]
fn a_newcomer_gets_a_green_report() {
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path().join("my-backend");
    let lines = follow(&folder);
    // Nothing is downloaded: the versions are those that are here.
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).expect("copied");
    let target = std::env::var_os("MEGANEURA_GUIDE_TARGET").map_or_else(|| root().join("target"), PathBuf::from);
    let begin = Instant::now();
    let output = Command::new(env!("CARGO"))
        .args(["test", "--release", "--offline", "--target-dir"])
        .arg(target)
        .current_dir(&folder)
        .env_remove("MEGANEURA_DEVICE_ID")
        .env_remove("MEGANEURA_CONFIG")
        .env_remove("MEGANEURA_PLUGINS")
        .output()
        .expect("cargo runs");
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
    eprintln!(
        "{lines} lines, {:.0} s to build and to test",
        begin.elapsed().as_secs_f64()
    );
}
