//! Tests of traces, decoded in the same way as Perfetto does it.
// A separate binary: it sets the subscriber of the process, which stores all of its spans.

use std::collections::BTreeMap;
use std::path::Path;

use meganeura::{Graph, Init, Session, SessionConfig, Sgd, build, profiler};

#[path = "common/tracks.rs"]
mod tracks;

use tracks::{Slice, tracks};

const STEPS: usize = 3;

fn train(device: &str) -> Session {
    let mut g = Graph::new();
    let x = g.input("x", &[16, 32]);
    let w = g.parameter_with("w", &[32, 8], Init::kaiming_uniform(32));
    let y = g.matmul(x, w);
    let y = g.tanh(y);
    let loss = g.mean_all(y);
    g.set_outputs(vec![loss]);
    let config = SessionConfig {
        device: Some(device.into()),
        optimizer: Some(Sgd::new(0.1).into()),
        ..SessionConfig::default()
    };
    let (mut session, _) = build(&g, config).expect("builds");
    session.initialize_parameters(1);
    session.set_input("x", &[0.25; 16 * 32]);
    for _ in 0..STEPS {
        session.step();
    }
    session.wait();
    session
}

/// Checks the steps of a device's track: each contains its passes, and is between its submission and the end of the
/// wait for it.
fn check_device(steps: &[Slice], host: &[&Slice], within_call: bool) {
    assert_eq!(steps.len(), STEPS);
    let wait = host.iter().filter(|s| s.name == "wait").map(|s| s.end).max();
    for step in steps {
        assert_eq!(step.name, "step");
        let number = step.submission();
        let submitted = |s: &&&Slice| s.name == "submit" && s.submission() == number && s.start <= step.start;
        let submit = host.iter().rfind(submitted).expect("a submission of that number");
        assert!(Some(step.end) <= wait, "{step:?} ends after {wait:?}");
        if within_call {
            assert!(submit.covers(step), "{submit:?} and {step:?}");
        }
        assert!(!step.within.is_empty());
        assert!(step.within.iter().all(|pass| step.covers(pass)), "{step:?}");
        let dispatched: Vec<&Slice> = step
            .within
            .iter()
            .filter(|p| !p.text("dispatches").is_empty())
            .collect();
        assert!(dispatched.iter().any(|p| p.name.contains("matmul")), "{step:?}");
        assert!(
            dispatched
                .iter()
                .any(|p| p.name.contains("optim.sgd") || p.text("calls").contains("optim.sgd"))
        );
        let sourced = dispatched
            .iter()
            .filter(|p| p.text("sources").contains("tests/trace.rs:"));
        assert!(sourced.count() >= 2, "{step:?}");
    }
    let busy = steps.iter().flat_map(|s| &s.within).map(|p| p.end - p.start);
    assert!(busy.sum::<u64>() > 0, "the passes take time");
}

// A single test, because a process has one trace.
#[test]
fn a_trace_has_host_and_devices_in_tracks_of_nested_slices() {
    let before = train("cpu");
    profiler::init().expect("the first subscriber");
    profiler::init().expect("no second one");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.pftrace");
    let cpu = train("cpu");
    let listing = meganeura::select::list(&meganeura::config::Config::default());
    let blade = listing
        .iter()
        .find(|b| b.name == "blade")
        .and_then(|b| b.devices.as_ref().ok());
    let blade = blade.is_some_and(|d| d.iter().any(|d| d.rejected.is_none()));
    assert!(
        blade || std::env::var("MEGANEURA_REQUIRE_VULKAN").as_deref() != Ok("1"),
        "no Vulkan device"
    );
    let gpu = blade.then(|| train("blade"));
    profiler::save(&file).expect("saved");

    let tracks = tracks(&file);
    let thread = std::thread::current().name().expect("tests have names").to_owned();
    let host: Vec<&Slice> = tracks[&thread].iter().flat_map(Slice::all).collect();
    let build = tracks[&thread].iter().find(|s| s.name == "build").expect("a build");
    let optimize = build.find("optimize");
    assert!(optimize.text("pass").contains("Forward"), "{optimize:?}");
    for (outer, name) in [
        (optimize, "saturate"),
        (optimize, "extract"),
        (build, "compile"),
        (build, "prepare"),
    ] {
        assert!(outer.covers(outer.find(name)));
    }
    build.find("differentiate");
    build.find("attach update");
    let steps = host.iter().filter(|s| s.name == "step");
    assert_eq!(steps.clone().count(), if blade { 2 * STEPS } else { STEPS });
    assert!(steps.clone().all(|s| s.covers(s.find("submit"))));

    check_device(&tracks["cpu, session 0"], &host, true);
    if blade {
        check_device(&tracks["blade:0, session 1"], &host, false);
    }
    assert_eq!(tracks.len(), if blade { 4 } else { 3 }, "{:?}", tracks.keys());

    // Existing sessions are recorded from now on, and so are steps that are only submitted.
    let mut before = before;
    before.step();
    drop(before);
    drop((cpu, gpu));
    profiler::save(&file).expect("saved again");
    let more = tracks::tracks(&file);
    assert_eq!(more.len(), tracks.len() + 1);
    let error = profiler::save(folder.path().join("no/such/folder")).expect_err("no folder");
    assert!(error.to_string().contains("no/such/folder"), "{error}");
}

/// Our decoder finds the same contents in a trace as Perfetto. `scripts/verify-external/perfetto_opens.py` recorded the
/// latter.
#[test]
fn a_trace_is_read_here_as_perfetto_reads_it() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/perfetto");
    let found = std::fs::read_to_string(folder.join("found.json")).expect("a fixture");
    let found: serde_json::Value = serde_json::from_str(&found).expect("JSON");
    let tracks = tracks(&folder.join("trace.pftrace"));
    let (devices, host): (Vec<_>, Vec<_>) = tracks.iter().partition(|(name, _)| name.contains(", session "));
    let names: Vec<&String> = devices.iter().map(|(name, _)| *name).collect();
    assert_eq!(serde_json::json!(names), found["devices"]);
    let mut spans: BTreeMap<&str, usize> = BTreeMap::new();
    for slice in host.iter().flat_map(|(_, slices)| *slices).flat_map(Slice::all) {
        *spans.entry(&slice.name).or_default() += 1;
    }
    assert_eq!(serde_json::json!(spans), found["host"]);
    let passes = || devices.iter().flat_map(|(_, steps)| *steps).flat_map(|s| &s.within);
    assert_eq!(serde_json::json!(passes().count()), found["passes"]);
    let kinds: std::collections::BTreeSet<&str> = passes().map(|p| p.name.as_str()).collect();
    assert_eq!(serde_json::json!(kinds), found["kinds_of_passes"]);
}
