//! Tests that a rejected plugin is tried again after it was fixed.

use std::fs;
use std::path::Path;

use super::common::{Folder, assert_names, compile_hostile, set_mode};
use meganeura_core::config::{Config, PluginSettings};
use meganeura_core::registry;
use meganeura_plugin_host::{Report, load, loaded, open_backend};

fn config(plugin: &Path, allow: Option<Vec<String>>) -> Config {
    Config {
        plugins: PluginSettings {
            load: vec![plugin.to_owned()],
            allow_sha256: allow,
        },
        ..Config::default()
    }
}

/// Tries a plugin, and returns its report.
fn tried(plugin: &Path) -> Report {
    load(&config(plugin, None));
    report(plugin)
}

fn report(plugin: &Path) -> Report {
    let mut reports: Vec<Report> = loaded().into_iter().filter(|r| r.path == plugin).collect();
    assert_eq!(reports.len(), 1, "it is listed once");
    reports.remove(0)
}

fn refused(plugin: &Path, words: &str) {
    let why = tried(plugin).refused.expect("it is refused");
    assert_names(&why, words, &[]);
    assert_eq!(problems(plugin).len(), 1, "it is said once");
}

fn accepted(plugin: &Path) {
    assert_eq!(tried(plugin).refused, None);
    assert_eq!(problems(plugin), Vec::<String>::new(), "what was said is taken back");
}

/// Returns the problems of a plugin in the registry.
fn problems(plugin: &Path) -> Vec<String> {
    let all = registry::problems().into_iter().map(|p| p.to_string());
    all.filter(|p| p.contains(&*plugin.to_string_lossy())).collect()
}

/// Replaces a plugin by another case, by renaming.
fn replace(folder: &Folder, case: u32, name: &str, plugin: &Path) {
    let new = folder.path("new.so");
    compile_hostile(&[format!("-DCASE={case}"), format!("-DNAME={name}")], &new);
    fs::rename(new, plugin).expect("renamed");
}

#[test]
fn it_loads_when_its_file_or_its_rights_were_mended() {
    let folder = Folder::new();
    let plugin = folder.path("libmended.so");
    refused(&plugin, "cannot be read");
    refused(&plugin, "cannot be read");
    fs::write(&plugin, "not yet").expect("written");
    set_mode(&plugin, 0o755);
    refused(&plugin, "not a shared object");
    // Its code ran, and returned null.
    replace(&folder, 7, "mended", &plugin);
    refused(&plugin, "refuses this host");
    refused(&plugin, "refuses this host");
    replace(&folder, 0, "mended", &plugin);
    set_mode(&plugin, 0o777);
    refused(&plugin, "can be written by others");
    set_mode(&plugin, 0o755);
    accepted(&plugin);
    // From then on, it stays loaded.
    replace(&folder, 7, "mended", &plugin);
    accepted(&plugin);
}

#[test]
fn it_loads_when_the_list_of_sums_was_mended() {
    let folder = Folder::new();
    let plugin = folder.build(0, "listed", &[]);
    let with = |sums: &[&str]| {
        load(&config(&plugin, Some(sums.iter().map(|s| (*s).to_owned()).collect())));
        report(&plugin)
    };
    let refused = with(&["00"]);
    assert!(refused.refused.is_some_and(|why| why.contains("is not on the list")));
    let sum = refused.sha256.expect("it was read");
    assert_eq!(with(&["00", &sum]).refused, None);
}

/// A plugin file that was overwritten in place is refused, because the loader would return the old code for the new
/// file.
#[test]
fn a_file_that_was_written_over_asks_for_a_restart() {
    let folder = Folder::new();
    let plugin = folder.path("libover.so");
    compile_hostile(&["-DCASE=0".into(), "-DNAME=over".into()], &plugin);
    open_backend(&plugin, None).expect("it loads");
    // Append after all loaded parts, so that the code in use does not change.
    let file = fs::OpenOptions::new().append(true).open(&plugin);
    std::io::Write::write_all(&mut file.expect("it is ours"), b"changed").expect("written");
    let error = open_backend(&plugin, None).err().expect("it has changed").to_string();
    assert_names(&error, "over", &["an earlier version", "start the program again"]);
}
