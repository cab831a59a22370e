//! Repeated loading, use and rejection of plugins: memory, open files and threads do not grow. Code
//! is never unloaded, so loading the same file again must give the existing library.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::common::{Folder, assert_names, compile, compile_hostile, device, repository, set_mode};
use super::held::ProcessResources;
use meganeura_core::config::{Config, PluginSettings};
use meganeura_core::plan::compile_for;
use meganeura_core::{Graph, Session, registry};
use meganeura_plugin_host::{TrialLimits, load, loaded, open_backend, open_data, try_plugin};

/// Compiles the example in C.
fn loops(folder: &Folder, name: &str) -> PathBuf {
    let file = folder.path(name);
    let source = repository("plugins/examples/c-loops/loops.c");
    compile(&source, &repository("plugins/abi/include"), &[], &file);
    file
}

/// Loads the example and computes with it.
fn compute(file: &Path) {
    let backend = open_backend(file, None).expect("it loads");
    let device = device(&backend).expect("it opens");
    let mut g = Graph::new();
    let (x, w) = (g.input("x", &[2, 2]), g.parameter("w", &[2, 2]));
    let y = g.matmul(x, w);
    let y = g.add(y, x);
    g.set_outputs(vec![y]);
    let plan = compile_for(&g, &*device).expect("it has the kernels");
    let mut session = Session::on(device, plan).expect("it compiles");
    session.set_parameter("w", &[1.0, 2.0, 3.0, 4.0]);
    session.set_input("x", &[1.0, 0.0, 0.0, 1.0]);
    session.step();
    assert_eq!(session.read_output(4), [2.0, 2.0, 3.0, 5.0]);
}

/// Returns how many memory mappings and how many open file descriptors a file has.
fn places(file: &Path) -> (usize, usize) {
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    let mapped = maps.lines().filter(|line| line.ends_with(file.to_str().expect("text")));
    let open = fs::read_dir("/proc/self/fd").expect("open files");
    let open = open.filter(|entry| fs::read_link(entry.as_ref().expect("an entry").path()).is_ok_and(|to| to == file));
    (mapped.count(), open.count())
}

#[test]
fn the_same_file_again_is_the_library_that_is_there() {
    let folder = Folder::new();
    let file = loops(&folder, "libagain.so").canonicalize().expect("it is there");
    compute(&file);
    let (mapped, open) = places(&file);
    assert!(mapped > 0 && open == 1, "{mapped} mappings, open {open} times");
    for _ in 0..50 {
        compute(&file);
    }
    // Also through a link.
    let link = folder.path("link.so");
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    compute(&link);
    assert_eq!(places(&file), (mapped, open));
}

/// Returns a manifest with one operator and a file of rules.
fn manifest(name: &str) -> String {
    format!(
        "format = 1\nname = \"{name}\"\nversion = \"0.3\"\nrules = \"a.egg\"\n\n[[op]]\nname = \"twice\"\nformula = \"2 x\"\n\
         inputs = [{{ name = \"x\", shape = [\"...\"] }}]\noutputs = [{{ name = \"y\", shape = [\"...\"] }}]\n\
         let = {{ y = \"(core.mul x 2)\" }}\n"
    )
}

/// Plugins that the soak test loads, uses and rejects again and again.
struct Plugins {
    folder: Folder,
    loops: PathBuf,
    hostile: PathBuf,
    /// Plugins without native code: a valid one and an invalid one.
    fine: PathBuf,
    wrong: PathBuf,
    trial: PathBuf,
    config: Config,
}

impl Plugins {
    fn new() -> Self {
        let folder = Folder::new();
        let data = |name: &str, rules: &str| {
            let place = folder.path(name);
            fs::create_dir(&place).expect("a folder");
            set_mode(&place, 0o755);
            for (file, text) in [("plugin.toml", manifest(name).as_str()), ("a.egg", rules)] {
                fs::write(place.join(file), text).expect("written");
                set_mode(&place.join(file), 0o644);
            }
            place
        };
        let (fine, wrong) = (data("soaked", ""), data("unsound", "(rewrite (unsound.twice x"));
        let trial = folder.path("trial");
        fs::write(&trial, "#!/bin/sh\nexit 0\n").expect("written");
        set_mode(&trial, 0o755);
        // A plugin that is registered, and one that is tried whenever its file changes.
        let (kept, hostile) = (folder.path("libkept.so"), folder.path("libhostile.so"));
        compile_hostile(&["-DCASE=0".into(), "-DNAME=soak_kept".into()], &kept);
        compile_hostile(&["-DCASE=7".into(), "-DNAME=soak_refused".into()], &hostile);
        let config = Config {
            plugins: PluginSettings {
                load: vec![kept, fine.clone(), folder.path("libchanging.so")],
                allow_sha256: None,
            },
            ..Config::default()
        };
        let loops = loops(&folder, "libloops.so");
        Plugins {
            folder,
            loops,
            hostile,
            fine,
            wrong,
            trial,
            config,
        }
    }

    fn round(&self, count: usize) {
        compute(&self.loops);
        let error = open_backend(&self.loops, Some(&["00".repeat(32)]))
            .err()
            .expect("not on the list");
        assert_names(&error.to_string(), "loops", &["is not on the list"]);
        // Its code is loaded, and it then reports an error.
        let error = open_backend(&self.hostile, None).err().expect("it refuses");
        assert_names(&error.to_string(), "soak_refused", &["refuses this host"]);
        // A plugin that is rejected late has already created operators.
        let error = open_data(&self.wrong, None).expect_err("its rules are none");
        assert_names(&error.to_string(), "unsound", &["a parenthesis is not closed"]);
        let changing = &self.config.plugins.load[2];
        fs::write(changing, format!("no plugin, {count}")).expect("written");
        set_mode(changing, 0o755);
        load(&self.config);
        let ours = loaded()
            .into_iter()
            .filter(|r| self.config.plugins.load.contains(&r.path));
        let refused: Vec<bool> = ours.map(|r| r.refused.is_some()).collect();
        assert_eq!(refused, [false, false, true]);
        assert!(registry::op("soaked.twice").is_some());
        let error = open_data(&self.fine, None).expect_err("it is there already");
        assert_names(&error.to_string(), "soaked", &["exist already"]);
        // Trial processes take longer than everything else.
        if count.is_multiple_of(20) {
            let limits = TrialLimits::default();
            try_plugin(&self.trial, &self.folder.path("any"), limits).expect("it is let through");
        }
    }
}

/// Runs for one minute, or for the seconds that `SOAK_SECONDS` sets:
/// `cargo test --release -p meganeura-plugin-host --test plugins soak:: -- --ignored --nocapture --test-threads 1`.
#[test]
#[ignore = "takes a minute"]
fn plugins_leave_nothing_behind() {
    let seconds = std::env::var("SOAK_SECONDS").map_or(60, |text| text.parse().expect("a number"));
    let time = Duration::from_secs(seconds);
    let plugins = Plugins::new();
    let (begun, mut count, mut early) = (Instant::now(), 0, None);
    while begun.elapsed() < time || early.is_none() {
        plugins.round(count);
        count += 1;
        // By then, everything that is created once, and the allocator's reserve, exist.
        if begun.elapsed() > time / 4 {
            early.get_or_insert_with(ProcessResources::now);
        }
    }
    let early = early.expect("a quarter of the time");
    early.assert_kept(ProcessResources::now(), &format!("plugins, {count} rounds"), 0, 0);
}
