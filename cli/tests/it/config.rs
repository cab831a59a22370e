//! Tests of options of `train` from a file.

use std::fs;
use std::path::Path;

use super::{meganeura, run};

fn run_in(folder: &Path, args: &str) -> (Option<i32>, String, String) {
    let args: Vec<&str> = args.split(' ').collect();
    let (output, out, err) = run(meganeura(&args).current_dir(folder));
    (output.status.code(), out, err)
}

#[test]
fn options_are_printed_and_read_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let train = "train digits --hidden 24,12 --lr 1e-2 --epochs 2 --no-decay *.bias --seed 3 --device cpu";
    let (code, printed, err) = run_in(path, &format!("{train} --print-config"));
    assert_eq!(code, Some(0), "{err}");
    for line in [
        "data-set = \"digits\"",
        "hidden = [24, 12]",
        "lr = 1e-2",
        "no-decay = [\"*.bias\"]",
        "balance = false",
    ] {
        assert!(printed.lines().any(|l| l == line), "{line} in {printed}");
    }
    // Options without a value are listed, too.
    for option in [
        "# batch is not set",
        "# patience is not set",
        "# dropout is not set; default: depends on the network",
    ] {
        assert!(printed.lines().any(|l| l.starts_with(option)), "{option} in {printed}");
    }
    assert!(!printed.contains("delimiter"), "what the digits do not have: {printed}");
    fs::write(path.join("run.toml"), &printed).expect("writable");
    let (_, again, err) = run_in(path, "train --config run.toml --print-config");
    assert_eq!(again, printed, "{err}");

    let summary = |args: &str| {
        let (code, out, err) = run_in(path, &format!("{args} --json"));
        assert_eq!(code, Some(0), "{err}");
        let last = out.lines().last().expect("a summary");
        let summary: serde_json::Value = serde_json::from_str(last).expect("an object");
        (summary["test_loss"].clone(), summary["epochs"].clone())
    };
    let direct = summary(train);
    assert_eq!(summary("train --config run.toml"), direct);
    // Options of the command line have priority; the file's data set does not conflict with another one.
    assert_eq!(summary("train digits --config run.toml --epochs 1").1, 1);
    let (_, _, err) = run_in(path, "train --csv no.csv --config run.toml");
    assert!(err.contains("no.csv") && !err.contains("cannot be used"), "{err}");

    // The folder of a model contains them too, except the destinations of results.
    let (code, _, err) = run_in(path, "train --config run.toml --out m --log-dir logs");
    assert_eq!(code, Some(0), "{err}");
    let (_, recorded, err) = run_in(path, "train --config m --print-config");
    let lines = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(&recorded), lines(&printed), "{err}");
    assert_eq!(summary("train --config m"), direct);
}

#[test]
fn options_that_exclude_those_of_the_file_override_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let file = "clip-norm = 1.5\nlabel = \"kind\"\ncsv = \"f.csv\"\ndelimiter = \"tab\"\njson = true\n";
    fs::write(path.join("run.toml"), file).expect("writable");
    let (_, out, err) = run_in(path, "train --config run.toml --clip-value=2 --print-config");
    for line in [
        "clip-value = 2",
        "target = \"kind\"",
        "delimiter = \"tab\"",
        "json = true",
    ] {
        assert!(out.lines().any(|l| l == line), "{line} in {out}{err}");
    }
    assert!(!out.contains("clip-norm"), "{out}");
    // A file of arrays has no columns.
    let (code, out, err) = run_in(path, "train --npz a.npz --config run.toml --print-config");
    assert!(
        code == Some(0) && out.contains("npz = \"a.npz\"") && !out.contains("kind"),
        "{out}{err}"
    );
}

#[test]
fn language_models_have_files_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    fs::write(
        path.join("run.toml"),
        "data = \"letters.txt\"\nmodel = \"tiny\"\nsteps = 7\n",
    )
    .expect("writable");
    let (code, out, err) = run_in(path, "train text --config run.toml --print-config");
    assert!(
        code == Some(0) && out.contains("steps = 7") && out.contains("vocab = 512"),
        "{out}{err}"
    );
    let (_, _, err) = run_in(path, "train text --config run.toml");
    assert!(err.contains("letters.txt"), "{err}");
}

#[test]
fn mistakes_in_a_file_are_named_with_their_lines() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    for (file, parts) in [
        (
            "# A run.\nbatch = 64\nepohcs = 3\n",
            &["line 3", "'epohcs'", "'epochs'"][..],
        ),
        ("batch_size = 64\n", &["line 1", "'batch_size'", "'batch"]),
        ("[run]\nbatch = 64\n", &["line 1", "'run'"]),
        ("batch = 64\n\nseed = \"many\"\n", &["'--seed", "run.toml, line 3"]),
        ("batch = [1, 2]\n", &["line 1", "'batch' expects a number"]),
        ("seed = 1\njson = 3\n", &["line 2", "'json' expects true or false"]),
        ("hidden = [1, [2]]\n", &["line 1", "'hidden' expects a number"]),
        ("seed = 0x10\n", &["line 1", "'seed'"]),
        ("config = \"other.toml\"\n", &["there is no setting 'config'"]),
        ("batch = = 3\n", &["line 1"]),
        ("seed = 1\nseed = 2\n", &["line 2", "duplicate"]),
        ("every = 7\n", &["--checkpoint"]),
    ] {
        fs::write(path.join("run.toml"), file).expect("writable");
        let (code, _, err) = run_in(path, "train digits --config run.toml --device cpu");
        assert_ne!(code, Some(0), "{file}");
        assert!(parts.iter().all(|part| err.contains(part)), "{file}: {err}");
    }
    let (code, _, err) = run_in(path, "train digits --config none.toml");
    assert!(code == Some(1) && err.contains("none.toml"), "{err}");
    fs::create_dir(path.join("empty")).expect("makes");
    let (code, _, err) = run_in(path, "train digits --config empty");
    assert!(
        code == Some(1) && err.contains("empty") && err.contains("model.json"),
        "{err}"
    );
}
