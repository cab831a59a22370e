//! Tests of faulty plugins: each is rejected or contained, with a message that names the plugin and the cause.

use std::path::Path;
use std::sync::Arc;

use super::common::{Folder, assert_names, device, refusal, set_mode};
use meganeura_core::backend::{Backend, Device};
use meganeura_core::config::Config;
use meganeura_core::plan::compile_for;
use meganeura_core::{Graph, Result, Session, registry, select};
use meganeura_plugin_host::{load, loaded, open_backend};

fn graph() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[3]);
    let y = g.neg(x);
    g.set_outputs(vec![y]);
    g
}

fn session(device: &Arc<dyn Device>) -> Result<Session> {
    let mut session = Session::on(device.clone(), compile_for(&graph(), &**device)?)?;
    session.try_set_input("x", &[1.0; 3])?;
    Ok(session)
}

#[test]
fn what_cannot_be_loaded_is_refused() {
    let folder = Folder::new();
    let cases: &[(u32, &[&str])] = &[
        (1, &["not a plugin", "meganeura_plugin_manifest"]),
        (2, &["h2", "version '2.0' of the interface"]),
        (3, &["manifest cannot be read"]),
        (4, &["no terminating zero within 4096 bytes"]),
        (5, &["'../evil' cannot be used in a selector"]),
        (6, &["h6", "does not export the function meganeura_plugin_entry"]),
        (7, &["h7", "refuses this host"]),
        (8, &["h8", "says to have 0 bytes"]),
        (9, &["h9", "says to have 4294967295 bytes"]),
        (10, &["h10", "version 9 of the interface"]),
        (11, &["h11", "plans of the versions 7 to 9"]),
        (12, &["h12", "no function executable_run"]),
        (13, &["h13", "chain of extensions"]),
        (27, &["h27", "the system cannot load it", "nowhere"]),
        (29, &["cannot be printed"]),
    ];
    for (case, words) in cases {
        let file = folder.build(*case, &format!("h{case}"), &[]);
        assert_names(&refusal(&file), &file.to_string_lossy(), words);
    }
}

#[test]
fn no_code_runs_before_the_manifest_was_read() {
    let folder = Folder::new();
    let mark = folder.path("ran");
    let mark_option = [format!("-DMARK={}", mark.display())];
    for case in [1, 2, 3, 4, 5] {
        refusal(&folder.build(case, "early", &mark_option));
        assert!(!mark.exists(), "code of case {case} ran");
    }
    // Also if its sum is not on the list, or a backend with its name exists.
    let good = folder.build(0, "marked", &mark_option);
    let error = open_backend(&good, Some(&["00".repeat(32)]))
        .err()
        .expect("it is not on the list");
    assert_names(&error.to_string(), "marked", &["is not on the list", "allow_sha256"]);
    assert!(!mark.exists());
    open_backend(&good, None).expect("it is fine");
    assert!(mark.exists(), "the mark is seen when code runs");
}

#[test]
fn files_that_are_no_plugins_of_this_machine_are_refused() {
    let folder = Folder::new();
    let text = folder.path("text.so");
    std::fs::write(&text, "#!/bin/sh\nexit 1\n").expect("written");
    set_mode(&text, 0o755);
    assert_names(&refusal(&text), "text.so", &["not a shared object"]);
    std::fs::write(&text, "").expect("written");
    assert_names(&refusal(&text), "text.so", &["not a shared object"]);

    let good = std::fs::read(folder.build(0, "machine", &[])).expect("readable");
    let other = folder.path("other.so");
    // The machine of an ELF file.
    let mut bytes = good.clone();
    bytes[18..20].copy_from_slice(&if cfg!(target_arch = "x86_64") {
        [0xb7, 0]
    } else {
        [0x3e, 0]
    });
    std::fs::write(&other, bytes).expect("written");
    assert_names(&refusal(&other), "other.so", &["another architecture"]);
    // Truncated, or with any byte changed, it may be rejected or not; nothing panics before code
    // runs.
    for len in (0..good.len()).step_by(97) {
        std::fs::write(&other, &good[..len]).expect("written");
        let error = open_backend(&other, Some(&[])).err().expect("no sum is on the list");
        assert!(error.to_string().contains("not on the list"), "{error}");
    }

    assert_names(&refusal(&folder.path("absent.so")), "absent.so", &["cannot be read"]);
    assert_names(
        &refusal(folder.0.path()),
        &folder.0.path().to_string_lossy(),
        &["not a file"],
    );
    assert_names(&refusal(Path::new("relative.so")), "relative.so", &["not absolute"]);
}

#[test]
fn files_that_others_can_write_are_refused() {
    let folder = Folder::new();
    let file = folder.build(0, "open", &[]);
    for mode in [0o757, 0o775, 0o777] {
        set_mode(&file, mode);
        assert_names(
            &refusal(&file),
            "libopen-0.so",
            &["can be written by others", "chmod go-w"],
        );
    }
    set_mode(&file, 0o755);
    // A link to it is treated like the file.
    let link = folder.path("link.so");
    std::os::unix::fs::symlink(&file, &link).expect("linked");
    set_mode(folder.0.path(), 0o777);
    assert_names(&refusal(&link), "link.so", &["the folder", "can be written by others"]);
    set_mode(folder.0.path(), 0o755);
    open_backend(&link, None).expect("it is fine");
}

#[test]
fn devices_that_cannot_be_are_refused() {
    let folder = Folder::new();
    let cases: &[(u32, &str)] = &[
        (14, "4000000000 devices"),
        (15, "a status that says to have 7 bytes"),
        (16, "reports NaN as bytes_per_second"),
        (17, "unknown class 77"),
        (18, "a name without terminating zero"),
        (19, "null pointer"),
        (26, "does not support f32"),
        (28, "invalid address"),
    ];
    for (case, words) in cases {
        let name = format!("d{case}");
        let backend = open_backend(&folder.build(*case, &name, &[]), None).expect("it loads");
        let error = device(&backend).err().expect("it is refused").to_string();
        assert_names(&error, &name, &[words]);
    }
}

#[test]
fn wrong_steps_are_errors_of_the_session() {
    let folder = Folder::new();
    let cases: &[(u32, &[&str])] = &[
        (20, &["I said so, but I have none", "core.neg"]),
        (21, &["null pointer"]),
        (22, &["panicked: at the disco"]),
        (23, &["the cable was pulled"]),
        (24, &["code 12345"]),
        (25, &["18446744073709551615 rows"]),
        (30, &["\u{fffd}"]),
        (32, &["it makes no sense to me"]),
        (33, &["not on Sundays"]),
    ];
    for (case, words) in cases {
        let name = format!("s{case}");
        let backend = open_backend(&folder.build(*case, &name, &[]), None).expect("it loads");
        let device = device(&backend).expect("it opens");
        let step = |s: &mut Session| s.try_step().and_then(|()| s.try_wait().map(|_| ()));
        let error = session(&device).and_then(|mut s| {
            let first = step(&mut s);
            if [22, 23].contains(case) {
                // It is not used any more, and other sessions are not affected.
                let second = step(&mut s).expect_err("it cannot be used any more").to_string();
                assert_names(&second, &name, &["cannot be used any more", words[0]]);
                assert!(session(&device).is_ok());
            }
            first
        });
        let error = error.expect_err("something is wrong").to_string();
        assert_names(&error, &name, words);
        assert!(error.len() < 20_000 && !error.contains('\u{1b}'), "{error}");
        // The error names a dispatch only if the plugin names one.
        assert_eq!(error.contains("core.neg"), *case == 20, "{error}");
    }
}

#[test]
fn steps_that_are_never_settled_are_waited_for() {
    let folder = Folder::new();
    let backend = open_backend(&folder.build(31, "s31", &[]), None).expect("it loads");
    let device = device(&backend).expect("it opens");
    let mut s = session(&device).expect("it compiles");
    // More steps than are kept: memory does not grow, and no step without a report is rolled back.
    for _ in 0..3000 {
        s.step();
    }
    s.wait();
    assert!(s.progress().steps <= 3000);
}

#[test]
fn devices_that_are_not_there_are_not_opened() {
    let folder = Folder::new();
    let file = folder.build(0, "single", &[]);
    let backend = open_backend(&file, None).expect("it loads");
    let config = Config::default();
    for index in [1, 2, usize::MAX] {
        let error = backend.open(index, &config).err().expect("there is one").to_string();
        assert_names(&error, "single", &[&format!("no device {index}"), "only single:0"]);
    }
    let listed = Config {
        plugins: meganeura_core::config::PluginSettings {
            load: vec![file],
            allow_sha256: None,
        },
        ..config
    };
    let error = select::select(Some("single:1"), &listed)
        .err()
        .expect("there is one")
        .to_string();
    assert_names(&error, "'single' has no index 1; available: single:0", &["devices:"]);
}

#[test]
fn others_are_unharmed_by_what_is_refused() {
    let folder = Folder::new();
    let (first, second) = (folder.build(0, "twin", &[]), folder.path("libtwin-copy.so"));
    std::fs::copy(&first, &second).expect("copied");
    let config = Config {
        plugins: meganeura_core::config::PluginSettings {
            load: vec![
                folder.build(7, "grudge", &[]),
                first.clone(),
                second.clone(),
                folder.build(0, "after", &[]),
            ],
            allow_sha256: None,
        },
        ..Config::default()
    };
    load(&config);
    load(&config);
    let reports = loaded();
    let outcome = |path: &Path| reports.iter().filter(|r| r.path == path).collect::<Vec<_>>();
    assert_eq!(outcome(&first).len(), 1, "each is tried once");
    assert_eq!(outcome(&first)[0].refused, None);
    assert_eq!(outcome(&first)[0].abi.as_deref(), Some("1.0"));
    let refused = outcome(&second)[0]
        .refused
        .clone()
        .expect("it has the name of the other");
    assert_names(&refused, "twin", &["is already registered", &first.to_string_lossy()]);

    let selected = select::select(Some("after"), &config).expect("it is there");
    assert_eq!(selected.selector, "after:0");
    assert!(selected.open(&config).is_ok());
    let error = select::select(Some("grudge"), &config)
        .err()
        .expect("it was refused")
        .to_string();
    assert_names(&error, "grudge", &["was not loaded", "refuses this host", "after:0"]);
    let problems: Vec<String> = registry::problems().iter().map(ToString::to_string).collect();
    assert!(problems.iter().any(|p| p.contains("grudge")), "{problems:?}");
}

#[test]
fn settings_are_lines() {
    let folder = Folder::new();
    let backend: Arc<dyn Backend> = open_backend(&folder.build(0, "settled", &[]), None).expect("it loads");
    let config = |value: &str| -> Config {
        let file = folder.path("config.toml");
        std::fs::write(&file, format!("[backend.settled]\nkey = {value}\n")).expect("written");
        Config::read(&file).expect("valid")
    };
    assert!(backend.devices(&config("3")).is_ok());
    let error = backend
        .devices(&config("[1]"))
        .expect_err("a list is no line")
        .to_string();
    assert!(error.contains("backend.settled.key"), "{error}");
}
