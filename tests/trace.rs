//! Traces, decoded as Perfetto would.
// A binary of its own: it sets the subscriber of the process, which keeps all of its spans.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use meganeura::{Graph, Init, Session, SessionConfig, Sgd, build, profiler};
use prost::Message;

#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<Packet>,
}

#[derive(Clone, PartialEq, Message)]
struct Packet {
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    interned_data: Option<InternedData>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    debug_annotations: Vec<Annotation>,
    #[prost(int32, tag = "9")]
    kind: i32,
    #[prost(uint64, optional, tag = "10")]
    name_iid: Option<u64>,
    #[prost(uint64, tag = "11")]
    track_uuid: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Annotation {
    #[prost(uint64, optional, tag = "3")]
    unsigned: Option<u64>,
    #[prost(string, optional, tag = "6")]
    text: Option<String>,
    #[prost(string, tag = "10")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct InternedData {
    #[prost(message, repeated, tag = "2")]
    event_names: Vec<EventName>,
}

#[derive(Clone, PartialEq, Message)]
struct EventName {
    #[prost(uint64, tag = "1")]
    iid: u64,
    #[prost(string, tag = "2")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct TrackDescriptor {
    #[prost(uint64, tag = "1")]
    uuid: u64,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
    #[prost(message, optional, tag = "4")]
    thread: Option<Thread>,
}

#[derive(Clone, PartialEq, Message)]
struct Thread {
    #[prost(string, tag = "5")]
    name: String,
}

/// A slice with those in it.
#[derive(Debug)]
struct Slice {
    name: String,
    start: u64,
    end: u64,
    annotations: Vec<Annotation>,
    within: Vec<Slice>,
}

impl Slice {
    fn submission(&self) -> Option<u64> {
        self.annotations.iter().find(|a| a.name == "submission")?.unsigned
    }

    fn text(&self, name: &str) -> &str {
        let found = self.annotations.iter().find(|a| a.name == name);
        found.and_then(|a| a.text.as_deref()).unwrap_or_default()
    }

    fn covers(&self, other: &Slice) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// It and all within it.
    fn all(&self) -> Vec<&Slice> {
        let inner = self.within.iter().flat_map(Slice::all);
        std::iter::once(self).chain(inner).collect()
    }

    fn find(&self, name: &str) -> &Slice {
        let found = self.within.iter().find(|s| s.name == name);
        found.unwrap_or_else(|| panic!("{name} in {self:?}"))
    }
}

/// The slices of each track, by its name. Checks that every slice ends, that they are nested and time goes on.
fn tracks(file: &Path) -> BTreeMap<String, Vec<Slice>> {
    let bytes = std::fs::read(file).expect("a file");
    let trace = Trace::decode(&bytes[..]).expect("a trace");
    let mut names: BTreeMap<u64, String> = BTreeMap::new();
    let mut events: BTreeMap<u64, String> = BTreeMap::new();
    let mut open: BTreeMap<u64, (u64, Vec<Slice>)> = BTreeMap::new();
    let mut tracks: BTreeMap<String, Vec<Slice>> = BTreeMap::new();
    for packet in trace.packet {
        if let Some(track) = packet.track_descriptor {
            let name = track.name.or(track.thread.map(|t| t.name)).unwrap_or_default();
            assert!(!tracks.contains_key(&name), "{name} is there twice");
            tracks.insert(name.clone(), Vec::new());
            assert!(names.insert(track.uuid, name).is_none(), "one descriptor a track");
        }
        for name in packet.interned_data.map(|d| d.event_names).unwrap_or_default() {
            assert!(events.insert(name.iid, name.name).is_none(), "a name has one number");
        }
        let Some(event) = packet.track_event else { continue };
        let now = packet.timestamp.expect("an event has a time");
        let track = &names[&event.track_uuid];
        let (last, stack) = open.entry(event.track_uuid).or_default();
        assert!(*last <= now, "time goes on: {last} then {now} on {track}");
        *last = now;
        match event.kind {
            1 => stack.push(Slice {
                name: events[&event.name_iid.expect("a name")].clone(),
                start: now,
                end: now,
                annotations: event.debug_annotations,
                within: Vec::new(),
            }),
            2 => {
                let mut slice = stack.pop().expect("what ends has begun");
                slice.end = now;
                let list = stack.last_mut().map(|s| &mut s.within);
                list.unwrap_or_else(|| tracks.get_mut(track).expect("a track"))
                    .push(slice);
            }
            kind => panic!("no event of kind {kind} is expected"),
        }
    }
    assert!(open.values().all(|(_, stack)| stack.is_empty()), "all that began ended");
    tracks
}

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

/// The steps of a device's track: each holds its passes, and lies between its submission and the end of the wait for it.
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

// One test, since a process has one trace.
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

    // Sessions that were there before are recorded from now on; so are steps that are only submitted.
    let mut before = before;
    before.step();
    drop(before);
    drop((cpu, gpu));
    profiler::save(&file).expect("saved again");
    let more = self::tracks(&file);
    assert_eq!(more.len(), tracks.len() + 1);
    let error = profiler::save(folder.path().join("no/such/folder")).expect_err("no folder");
    assert!(error.to_string().contains("no/such/folder"), "{error}");
}

#[test]
fn the_command_line_writes_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("train.pftrace");
    let command = |trace: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meganeura"));
        command.args(["train", "digits", "--epochs", "1", "--device", "cpu"]);
        command.env("MEGANEURA_TRACE", trace).env_remove("MEGANEURA_DEVICE_ID");
        command.output().expect("the program runs")
    };
    let output = command(&file);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tracks = tracks(&file);
    assert!(
        tracks["main"]
            .iter()
            .flat_map(Slice::all)
            .filter(|s| s.name == "step")
            .count()
            > 10
    );
    let passes = tracks["cpu, session 0"].iter().map(|s| s.within.len()).sum::<usize>();
    assert!(passes > 100, "{passes}");

    let output = command(&folder.path().join("no/such/folder/trace"));
    assert!(!output.status.success());
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.contains("no/such/folder/trace"), "{err}");
    assert!(output.stdout.is_empty(), "before anything is trained");
}

/// `scripts/verify-external/perfetto_opens.py` wrote what Perfetto's software finds in the trace beside it.
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
