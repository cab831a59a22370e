//! Tests of the files that a plugin consists of, and of their permissions.

use std::path::Path;

use meganeura::config::{Config, PluginSettings};
use meganeura::plugins::{load, loaded, open_data};
use meganeura::{Error, registry};

use super::{folder, set_mode, write};

/// Returns the manifest of a plugin with one operator.
fn manifest(name: &str) -> String {
    format!(
        "format = 1\nname = \"{name}\"\nversion = \"0.3\"\ndescription = \"An example\"\n\n[[op]]\nname = \"twice\"\n\
         formula = \"2 x\"\ninputs = [{{ name = \"x\", shape = [\"...\"] }}]\n\
         outputs = [{{ name = \"y\", shape = [\"...\"] }}]\nlet = {{ y = \"(core.mul x 2)\" }}\n"
    )
}

fn refusal(path: &Path, words: &[&str]) {
    let error = match open_data(path, None) {
        Err(error @ Error::Plugin { .. }) => error.to_string(),
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("{} is loaded", path.display()),
    };
    for word in words {
        assert!(error.contains(word), "'{word}' in: {error}");
    }
}

#[test]
fn a_folder_and_a_file_are_loaded_and_told_of() {
    let place = folder();
    let path = write(place.path(), &[("plugin.toml", &manifest("folded"))]);
    let report = open_data(&path, None).expect("it is fine");
    assert_eq!(report.name.as_deref(), Some("folded"));
    assert_eq!(report.version.as_deref(), Some("0.3"));
    assert_eq!(report.brings.expect("it brings something").ops, ["folded.twice"]);
    assert!(registry::op("folded.twice").is_some());

    write(place.path(), &[("single.toml", &manifest("single"))]);
    let single = place.path().join("single.toml");
    refused_by_sum(&single);
    let sum = sum_of(&single);
    let report = open_data(&single, Some(std::slice::from_ref(&sum))).expect("it is on the list");
    assert_eq!(report.sha256, Some(sum));
}

fn refused_by_sum(path: &Path) {
    let error = open_data(path, Some(&["00".repeat(32)])).expect_err("it is not on the list");
    assert!(error.to_string().contains("is not on the list"), "{error}");
    assert!(registry::op("single.twice").is_none());
}

/// Returns the hash that `sha256sum` prints.
fn sum_of(path: &Path) -> String {
    meganeura::files::sha256([std::fs::read(path).expect("readable").as_slice()])
}

#[test]
fn the_sum_of_a_folder_is_that_of_the_list_of_sums() {
    let place = folder();
    let rules = "(rewrite (core.add (core.exp x) (core.exp x)) (summed.twice (core.exp x)) :ruleset always :name \"Add→Twice\")\n";
    let text = manifest("summed").replace("\n[[op]]", "rules = \"a.egg\"\n\n[[op]]");
    let path = write(place.path(), &[("plugin.toml", &text), ("a.egg", rules)]);
    let list = ["plugin.toml", "a.egg"].map(|name| format!("{}  {name}\n", sum_of(&path.join(name))));
    let report = open_data(&path, None).expect("it is fine");
    assert_eq!(
        report.sha256,
        Some(meganeura::files::sha256([list.concat().as_bytes()]))
    );
    assert_eq!(report.brings.expect("rules").rules, ["Add→Twice"]);
}

#[test]
fn files_that_others_can_write_or_that_lie_elsewhere_are_refused() {
    let place = folder();
    let text = manifest("elsewhere").replace("\n[[op]]", "rules = \"a.egg\"\n\n[[op]]");
    let path = write(place.path(), &[("plugin.toml", &text), ("a.egg", "")]);
    let rules = path.join("a.egg");
    for (name, mode) in [("plugin.toml", 0o666), ("a.egg", 0o662)] {
        set_mode(&path.join(name), mode);
        refusal(&path, &[name, "can be written by others"]);
        set_mode(&path.join(name), 0o644);
    }
    set_mode(&path, 0o777);
    refusal(&path, &["the folder", "can be written by others"]);
    set_mode(&path, 0o755);

    let outside = folder();
    write(outside.path(), &[("real.egg", "")]);
    std::fs::remove_file(&rules).expect("it was there");
    refusal(&path, &["elsewhere", "a.egg", "cannot be read"]);
    std::os::unix::fs::symlink(outside.path().join("real.egg"), &rules).expect("a link");
    refusal(&path, &["elsewhere", "'a.egg' is a link"]);
    std::fs::remove_file(&rules).expect("it was there");
    std::fs::write(&rules, vec![b' '; 1 << 20]).expect("written");
    refusal(&path, &["elsewhere", "a.egg", "1048576 bytes"]);
    std::fs::write(&rules, [0xff, 0xfe]).expect("written");
    refusal(&path, &["elsewhere", "not UTF-8"]);

    // A pipe without a writer.
    std::fs::remove_file(&rules).expect("it was there");
    let made = std::process::Command::new("mkfifo")
        .arg(&rules)
        .status()
        .expect("it runs");
    assert!(made.success());
    refusal(&path, &["elsewhere", "a.egg", "is not a file"]);

    // The names of linked operators and rule sets are reserved.
    for (name, words) in [
        ("core", "operators named 'core.*'"),
        ("matmul", "a rule set named 'matmul'"),
    ] {
        write(outside.path(), &[("taken.toml", &manifest(name))]);
        refusal(&outside.path().join("taken.toml"), &[name, words, "already"]);
    }
    refusal(Path::new("plugins/examples/router"), &["not absolute"]);
    refusal(&outside.path().join("absent.toml"), &["absent.toml", "cannot be read"]);
    refusal(outside.path(), &["plugin.toml", "cannot be read"]);
    write(outside.path(), &[("alone.toml", &text)]);
    refusal(&outside.path().join("alone.toml"), &["is a single file itself"]);
    assert!(registry::op("elsewhere.twice").is_none());
}

/// A plugin that was refused is tried again after one of its files has changed, while the program runs.
#[test]
fn what_was_refused_is_tried_again_when_a_file_of_it_has_changed() {
    let place = folder();
    let text = manifest("again").replace("\n[[op]]", "rules = \"a.egg\"\n\n[[op]]");
    let path = write(place.path(), &[("plugin.toml", &text), ("a.egg", "(rewrite")]);
    let config = Config {
        plugins: PluginSettings {
            load: vec![path.clone()],
            allow_sha256: None,
        },
        ..Config::default()
    };
    let refused = || {
        load(&config);
        let mut reports = loaded().into_iter().filter(|r| r.path == path);
        let report = reports.next().expect("it was tried");
        assert!(reports.next().is_none(), "it is listed once");
        report.refused
    };
    assert!(refused().is_some());
    let rules =
        "(rewrite (core.add (core.exp x) (core.exp x)) (again.twice (core.exp x)) :ruleset always :name \"Twice\")\n";
    write(place.path(), &[("a.egg", rules)]);
    assert_eq!(refused(), None);
    assert!(registry::op("again.twice").is_some());
    let problems = registry::problems().into_iter().map(|p| p.to_string());
    let own: Vec<String> = problems.filter(|p| p.contains(&*path.to_string_lossy())).collect();
    assert_eq!(own, Vec::<String>::new(), "what was said is taken back");
}
