//! Tests of plan cache files: a plan is built once and read later, and its contents are always verified.
// A separate binary: it sets the logger of the process.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use common::files;
use meganeura::backend::Device;
use meganeura::builder::Builder;
use meganeura::cache::{load_plan, save_plan};
use meganeura::cpu::CpuDevice;
use meganeura::nn::models::{cnn_classifier, mlp_classifier, preset};
use meganeura::plan::MemoryBudget;
use meganeura::rewrite::RewriteConfig;
use meganeura::{
    Adam, Error, ExecutionPlan, Graph, Mode, ParameterGroup, Session, SessionConfig, Sgd, Update, build,
    build_session_cached,
};

/// Logger that stores the lines of each thread, because tests run at the same time.
struct LogLines;

static LINES: Mutex<Vec<(std::thread::ThreadId, String)>> = Mutex::new(Vec::new());

impl log::Log for LogLines {
    fn enabled(&self, _: &log::Metadata) -> bool {
        true
    }
    fn log(&self, record: &log::Record) {
        let line = (std::thread::current().id(), record.args().to_string());
        LINES.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }
    fn flush(&self) {}
}

/// Returns the lines that this thread has logged since the last call.
fn logged() -> String {
    static START: std::sync::Once = std::sync::Once::new();
    START.call_once(|| {
        log::set_logger(&LogLines).expect("the first one");
        log::set_max_level(log::LevelFilter::Info);
    });
    let me = std::thread::current().id();
    let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    let own: Vec<String> = lines.iter().filter(|(t, _)| *t == me).map(|(_, l)| l.clone()).collect();
    lines.retain(|(t, _)| *t != me);
    own.join("\n")
}

fn device(threads: usize) -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(threads))
}

fn cached(graph: &Graph, path: &Path) -> (Session, bool) {
    let (session, report) = Builder::on(device(2))
        .optimizer(Adam::new(1e-3))
        .cache(path)
        .build(graph)
        .expect("builds");
    (session, report.from_cache)
}

/// Builds a model with packed parameters, fused programs, states, a large constant, and a constant that contains a NaN.
fn rich_graph(rows: usize) -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[rows, 32]);
    let w: Vec<_> = ["gate", "up"].iter().map(|n| g.parameter(n, &[32, 32])).collect();
    let (gate, up) = (g.matmul(x, w[0]), g.matmul(x, w[1]));
    let h = g.swiglu(gate, up);
    let table: Vec<f32> = (0..rows * 32).map(|i| (i as f32 * 0.37).sin()).collect();
    let table = g.constant(table, &[rows, 32]);
    let h = g.add(h, table);
    let odd = g.constant(vec![f32::from_bits(0xffc0_1234)], &[1]);
    let odd = g.mul(odd, odd);
    let h = g.silu(h);
    let running = g.state_filled("running", &[], 0.5);
    let sum = g.mean_all(h);
    let next = g.add(running, sum);
    g.assign(running, next);
    let loss = g.mul(h, h);
    let loss = g.mean_all(loss);
    g.set_outputs(vec![loss, odd]);
    g
}

fn plan_of(graph: &Graph) -> ExecutionPlan {
    let update = Update::new(Adam::adamw(1e-3, 0.1)).group(ParameterGroup::new(["*"]).weight_decay(0.0));
    let mode = Mode::Training;
    let (plan, _) = Builder::on(device(2))
        .mode(mode)
        .optimizer(update.clone())
        .plan(graph)
        .expect("builds");
    plan
}

#[test]
fn the_second_start_is_from_the_file_and_a_changed_shape_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plan.ron");
    logged();
    let run = |rows: usize| {
        let mut session = build_session_cached(&mlp_classifier(rows, 20, 3), &path);
        session.initialize_parameters(1);
        session.set_input("x", &vec![0.25; rows * 20]);
        session.set_input_u32("labels", &vec![1; rows]);
        session.set_learning_rate(0.1);
        let losses = (0..3).map(|_| {
            session.step();
            session.read_loss()
        });
        losses.map(f32::to_bits).collect::<Vec<_>>()
    };
    let first = run(4);
    let log = logged();
    assert!(
        log.contains("plan saved") && !log.contains("invalidated"),
        "a missing file is silent: {log}"
    );
    let text = fs::read_to_string(&path).expect("it was saved");
    assert!(
        text.contains("\nCachedPlan(\n  graph_hash: \"") && text.contains("plan: ExecutionPlan("),
        "{text}"
    );
    assert_eq!(run(4), first);
    let log = logged();
    assert!(log.contains("plan read") && !log.contains("saved"), "{log}");
    run(6);
    let log = logged();
    assert!(
        log.contains("cache invalidated: graph hash mismatch") && log.contains("plan saved"),
        "{log}"
    );
    run(6);
    assert!(logged().contains("plan read"));
    assert_eq!(files(folder.path()), ["plan.ron"]);
}

#[test]
fn a_plan_is_the_same_after_the_round_trip() {
    let folder = tempfile::tempdir().expect("a folder");
    let rich = rich_graph(24);
    let graphs = [
        rich,
        cnn_classifier(2, [1, 8, 8], 3),
        preset("mlp").expect("known").graph(3),
    ];
    for (i, graph) in graphs.iter().enumerate() {
        let path = folder.path().join(format!("{i}.ron"));
        let plan = plan_of(graph);
        save_plan(&plan, graph, &path).expect("saves");
        let loaded = load_plan(graph, &path).expect("reads").expect("it is there");
        // Compared by bits: NaN is not equal to itself.
        assert!(loaded.constants().eq(plan.constants()), "{i}");
        let without = |plan: &ExecutionPlan| ExecutionPlan {
            constant_buffers: Vec::new(),
            ..plan.clone()
        };
        assert_eq!(without(&loaded), without(&plan), "{i}");
    }
    let rich = plan_of(&graphs[0]);
    assert!(!rich.derived_params.is_empty() && !rich.state_buffers.is_empty());
    assert!(
        fs::read_to_string(folder.path().join("0.ron"))
            .expect("text")
            .contains("Program(")
    );
    let side = files(folder.path())
        .iter()
        .filter(|n| n.starts_with("0.ron.") && n.ends_with(".constants"))
        .count();
    assert_eq!(side, 1, "{:?}", files(folder.path()));
}

#[test]
fn everything_that_changes_a_plan_invalidates_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plan.ron");
    let graph = mlp_classifier(4, 20, 3);
    type Build = (usize, Mode, Option<Update>, RewriteConfig);
    let base: Build = (2, Mode::Training, None, RewriteConfig::default());
    let rewrite = |change: fn(&mut RewriteConfig)| {
        let mut config = RewriteConfig::default();
        change(&mut config);
        (2, Mode::Training, None, config)
    };
    let group = Update::new(Sgd::new(0.1)).group(ParameterGroup::new(["*bias"]).weight_decay(0.0));
    let changes: Vec<(&str, Build)> = vec![
        ("device", (3, Mode::Training, None, RewriteConfig::default())),
        ("mode", (2, Mode::Inference, None, RewriteConfig::default())),
        (
            "optimizer",
            (2, Mode::Training, Some(Sgd::new(0.1).into()), RewriteConfig::default()),
        ),
        ("optimizer", (2, Mode::Training, Some(group), RewriteConfig::default())),
        ("rewrite settings", rewrite(|c| c.cluster = false)),
        (
            "rewrite settings",
            rewrite(|c| c.memory_budget = Some(MemoryBudget::OfPeak(1.0))),
        ),
        ("rule sets", rewrite(|c| c.enabled = false)),
        ("rule sets", rewrite(|c| c.disable = vec!["packing".into()])),
    ];
    let start = |(threads, mode, update, rewrite): &Build| {
        let built = Builder::on(device(*threads))
            .mode(*mode)
            .maybe_optimizer(update.clone())
            .rewrite(rewrite.clone())
            .cache(&path)
            .build(&graph)
            .expect("builds");
        (built.1.from_cache, logged())
    };
    for (what, change) in &changes {
        start(&base);
        assert!(start(&base).0, "nothing changed");
        let (from_cache, log) = start(change);
        assert!(!from_cache, "{what}");
        assert!(
            log.contains("cache invalidated: build key mismatch (") && log.contains(what),
            "{what}: {log}"
        );
        assert!(start(change).0, "{what}");
    }
    // Values of the optimizer are not part of the plan, but are also validated.
    let adam = |lr| {
        (
            2,
            Mode::Training,
            Some(Update::new(Adam::new(lr))),
            RewriteConfig::default(),
        )
    };
    start(&adam(0.1));
    assert!(start(&adam(0.2)).0);
    let wrong = Builder::on(device(2))
        .optimizer(Adam::new(f32::NAN))
        .rewrite(base.3.clone())
        .cache(&path)
        .build(&graph);
    assert!(matches!(wrong, Err(Error::InvalidUse { .. })));
}

#[test]
fn damaged_files_are_errors_of_loading_and_replaced_by_building() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plan.ron");
    let graph = mlp_classifier(2, 6, 3);
    cached(&graph, &path);
    let good = fs::read(&path).expect("it was saved");
    let text = String::from_utf8(good.clone()).expect("text");
    let flipped = {
        let mut bytes = good.clone();
        let at = bytes.len() / 2;
        bytes[at] ^= 0x08;
        bytes
    };
    let not_text = {
        let mut bytes = good.clone();
        let at = bytes.len() - 9;
        bytes[at] = 0xff;
        bytes
    };
    let edited = text.replacen("level: 1", "level: 7", 1);
    assert!(edited != text);
    let cases = [
        good[..good.len() - 2].to_vec(),
        good[..good.len() / 3].to_vec(),
        good[..30].to_vec(),
        good[..5].to_vec(),
        Vec::new(),
        flipped,
        not_text,
        edited.into_bytes(),
    ];
    for (i, case) in cases.iter().enumerate() {
        fs::write(&path, case).expect("writes");
        let error = load_plan(&graph, &path).expect_err("it is damaged").to_string();
        let foreign = (1..10).contains(&case.len());
        assert!(
            foreign || error.contains("delete it, and the plan is built again"),
            "{i}: {error}"
        );
        assert!(!cached(&graph, &path).1, "{i}");
        assert!(cached(&graph, &path).1, "{i}: it was replaced");
    }
    // Version control may change only line ends.
    fs::write(&path, text.replace('\n', "\r\n")).expect("writes");
    assert!(load_plan(&graph, &path).expect("reads").is_some());
    // Files of other versions are not parsed.
    let version = format!("format {},", meganeura::compile::PLAN_VERSION);
    let other = text.replacen(&version, "format 99,", 1);
    fs::write(&path, other).expect("writes");
    logged();
    assert!(load_plan(&graph, &path).expect("reads").is_none());
    let log = logged();
    assert!(log.contains("cache invalidated: format version mismatch (99"), "{log}");
}

#[test]
fn constants_beside_the_plan_are_checked_and_cleared() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plan.ron");
    let side = || {
        let names = files(folder.path());
        assert_eq!(names.len(), 2, "{names:?}");
        folder.path().join(&names[1])
    };
    let graph = rich_graph(24);
    cached(&graph, &path);
    let first = side();
    let good = fs::read(&first).expect("it was saved");
    let mut flipped = good.clone();
    flipped[17] ^= 1;
    for bad in [flipped, good[..good.len() - 1].to_vec()] {
        fs::write(&first, bad).expect("writes");
        let error = load_plan(&graph, &path).expect_err("they are damaged").to_string();
        assert!(error.contains(".constants'") && error.contains("delete it"), "{error}");
        assert!(!cached(&graph, &path).1);
        assert!(cached(&graph, &path).1, "it was replaced");
    }
    fs::remove_file(&first).expect("it is there");
    logged();
    assert!(load_plan(&graph, &path).expect("reads").is_none());
    assert!(logged().contains("its constants are missing"));
    cached(&rich_graph(25), &path);
    assert_ne!(side(), first, "those of the earlier plan are gone");
}

#[test]
fn files_of_others_are_not_overwritten() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("weights.bin");
    fs::write(&path, b"hours of training").expect("writes");
    let config = |cache: &Path| SessionConfig {
        device: Some("cpu".into()),
        cache: Some(cache.to_owned()),
        ..SessionConfig::default()
    };
    let graph = mlp_classifier(2, 6, 3);
    let error = build(&graph, config(&path)).expect_err("it is no plan").to_string();
    assert!(
        error.contains("is not a file of a plan") && error.contains("name another file"),
        "{error}"
    );
    assert_eq!(fs::read(&path).expect("it is there"), b"hours of training");
    let error = build(&graph, config(folder.path()))
        .expect_err("it is a folder")
        .to_string();
    assert!(error.contains("could not be read"), "{error}");
    // With a missing folder, no file is written, but the session works.
    logged();
    let missing = folder.path().join("missing/plan.ron");
    assert!(!build(&graph, config(&missing)).expect("builds").1.from_cache);
    let log = logged();
    assert!(
        log.contains("the plan was not saved") && log.contains("create the folder first"),
        "{log}"
    );
}

/// Environment variable that makes the test below run as one of several processes.
const CHILD: &str = "MEGANEURA_TEST_PLAN_CACHE";

#[test]
fn processes_share_a_file() {
    let graph = |rows| mlp_classifier(rows, 12, 3);
    if let Some(path) = std::env::var_os(CHILD) {
        // Two graphs take turns, so that every process reads and writes.
        for i in 0..8 {
            cached(&graph(2 + i % 2), Path::new(&path));
        }
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plan.ron");
    let start = || {
        let exe = std::env::current_exe().expect("this test");
        Command::new(exe)
            .args(["--exact", "processes_share_a_file"])
            .env(CHILD, &path)
            .spawn()
            .expect("starts")
    };
    let children: Vec<_> = (0..3).map(|_| start()).collect();
    let mut seen = 0;
    for mut child in children {
        // At any time, the file is a complete plan of one of the graphs.
        while child.try_wait().expect("a child").is_none() {
            for rows in [2, 3] {
                seen += usize::from(load_plan(&graph(rows), &path).expect("never damaged").is_some());
            }
        }
        assert!(child.wait().expect("a child").success());
    }
    assert!(seen > 0);
    assert_eq!(files(folder.path()), [PathBuf::from("plan.ron").to_string_lossy()]);
}
