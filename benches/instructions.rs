//! Instruction counts of the work before a step and around its kernels, measured by valgrind: they do not depend on the load of
//! the machine. They are compared with `benches/instructions.toml`; a phase with an increase of over 5 % fails (a decrease of
//! over 5 % is reported, so that the file can be updated).
//!
//! ```text
//! cargo bench --workspace --bench instructions               # compares
//! cargo bench --workspace --bench instructions -- --write    # rewrites the file
//! ```
//!
//! The program starts itself under callgrind once for each phase, with one thread; only the work within [`counted`] is counted.
//! Without valgrind it prints a note and succeeds, unless `MEGANEURA_REQUIRE_VALGRIND=1`.

use std::collections::BTreeMap;
use std::error::Error;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

use meganeura::backend::Device;
use meganeura::builder::prepare;
use meganeura::compile::compile_at;
use meganeura::cpu::CpuDevice;
use meganeura::nn::models::{LlamaConfig, language_model};
use meganeura::precision::Precision;
use meganeura::rewrite::RewriteConfig;
use meganeura::{Adam, Graph, Mode, Session, builder::Builder};

/// Accepted increase: compilers and seeded hash functions change the count slightly.
const TOLERANCE: f64 = 0.05;
/// Option that makes this program run one phase.
const PHASE: &str = "--phase";

/// Measured phases by name. Each function prepares its data, and passes the counted work to [`counted`].
const PHASES: &[(&str, fn())] = &[
    ("graph", graph_phase),
    ("rewriting", rewriting_phase),
    ("planning", planning_phase),
    ("opening", opening_phase),
    ("replay", replay_phase),
];

/// Runs the work to be counted. Callgrind finds this function by its name.
#[inline(never)]
fn counted<T>(workload: impl FnOnce() -> T) -> T {
    black_box(workload())
}

/// Builds a language model of four blocks.
fn model() -> Graph {
    let config = LlamaConfig::small(1000);
    language_model(1, 32, |g, tokens| config.build(g, "").forward(g, tokens))
}

fn device() -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(1))
}

fn must<T>(result: meganeura::Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

fn graph_phase() {
    counted(model);
}

/// Returns settings of rewriting without a time limit. Under valgrind rewriting is so slow that a limit would stop it
/// early.
fn unhurried() -> RewriteConfig {
    RewriteConfig {
        time_ms: u64::from(u32::MAX),
        ..RewriteConfig::default()
    }
}

/// Counts both rewriting passes and the differentiation between them. The rules are parsed before.
fn rewriting_phase() {
    let (graph, device) = (model(), device());
    let rewrite = || must(prepare(&graph, Mode::Training, &device, &unhurried(), None));
    drop(rewrite());
    counted(rewrite);
}

fn planning_phase() {
    let (graph, device) = (model(), device());
    let (rewritten, _) = must(prepare(&graph, Mode::Training, &device, &unhurried(), None));
    counted(|| {
        let mut plan = must(compile_at(&rewritten, &*device, Precision::F32));
        must(plan.place_buffers(None));
        plan
    });
}

fn opening_phase() {
    let (graph, device) = (model(), device());
    let update = Adam::new(1e-3);
    let (plan, _) = must(
        Builder::on(device.clone())
            .optimizer(update)
            .rewrite(unhurried())
            .plan(&graph),
    );
    let mut session = None;
    counted(|| session = Some(must(Session::on(device, plan))));
}

/// Counts steps of dispatches with almost no computation.
fn replay_phase() {
    const CALLS: usize = 200;
    const STEPS: usize = 20;
    let mut g = Graph::new();
    let x = g.input("x", &[2, 2]);
    let swap = g.constant(vec![0.0, 1.0, 1.0, 0.0], &[2, 2]);
    let y = (0..CALLS).fold(x, |x, _| g.matmul(x, swap));
    g.set_outputs(vec![y]);
    let device = device();
    let (plan, _) = must(Builder::on(device.clone()).inference().plan(&g));
    assert_eq!(plan.dispatches.len(), CALLS, "nothing is joined");
    let mut session = must(Session::on(device, plan));
    session.set_input("x", &[1.0, 2.0, 3.0, 4.0]);
    session.step();
    counted(|| (0..STEPS).for_each(|_| session.step()));
}

/// Returns the number of instructions of a phase.
fn instructions(phase: &str) -> Result<u64, Box<dyn Error>> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=*instructions::counted*")
        .arg(std::env::current_exe()?)
        .args([PHASE, phase])
        .env_remove("MEGANEURA_CONFIG")
        // By default, glibc raises this threshold when memory is freed. Large allocations then come from freed memory, which has to be
        // zeroed, so that a count depends on the work before it.
        .env("MALLOC_MMAP_THRESHOLD_", "131072")
        .output()?;
    let told = String::from_utf8_lossy(&output.stderr);
    let count = told.lines().find_map(|line| line.split_once("Collected : "));
    match count.map(|(_, count)| count.trim().parse::<u64>()) {
        Some(Ok(count)) if output.status.success() && count > 0 => Ok(count),
        _ => Err(format!("valgrind counts nothing of '{phase}':\n{told}").into()),
    }
}

/// Returns true if every phase is within the tolerance.
fn compare(found: &BTreeMap<&str, u64>, golden: &BTreeMap<String, u64>) -> bool {
    let mut fine = true;
    for (phase, count) in found {
        let Some(before) = golden.get(*phase) else {
            println!("{phase:<10} {count:>12}  NEW: write the file anew");
            fine = false;
            continue;
        };
        let change = *count as f64 / *before as f64 - 1.0;
        let verdict = if change > TOLERANCE {
            fine = false;
            "MORE"
        } else if change < -TOLERANCE {
            "less: write the file anew"
        } else {
            ""
        };
        println!("{phase:<10} {count:>12}  {:+.1} %  {verdict}", change * 100.0);
    }
    for phase in golden.keys().filter(|phase| !found.contains_key(phase.as_str())) {
        println!("{phase:<10} is in the file and is counted no more");
        fine = false;
    }
    fine
}

fn run() -> Result<bool, Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    if let Some(at) = args.iter().position(|arg| arg == PHASE) {
        let phase = PHASES
            .iter()
            .find(|(name, _)| args.get(at + 1).is_some_and(|arg| arg == name));
        let (_, run) = phase.ok_or("there is no such phase")?;
        run();
        return Ok(true);
    }
    let is_there = Command::new("valgrind").arg("--version").output();
    if !is_there.is_ok_and(|output| output.status.success()) {
        println!("INSTRUCTIONS-NOT-COUNTED: there is no valgrind; install it (Debian: apt-get install valgrind)");
        return Ok(std::env::var_os("MEGANEURA_REQUIRE_VALGRIND").is_none_or(|v| v != "1"));
    }
    let mut found = BTreeMap::new();
    for (phase, _) in PHASES {
        found.insert(*phase, instructions(phase)?);
    }
    let file: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.toml");
    if args.iter().any(|arg| arg == "--write") {
        let mut text = String::from("# Written by `cargo bench --workspace --bench instructions -- --write`.\n");
        text.extend(found.iter().map(|(phase, count)| format!("{phase} = {count}\n")));
        std::fs::write(&file, text)?;
        println!("{}: written", file.display());
        return Ok(true);
    }
    let golden: BTreeMap<String, u64> = toml::from_str(&std::fs::read_to_string(&file)?)?;
    let fine = compare(&found, &golden);
    if !fine {
        println!(
            "if that is meant: cargo bench --workspace --bench instructions -- --write, and commit {}",
            file.display()
        );
    }
    Ok(fine)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
