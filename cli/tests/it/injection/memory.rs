//! Tests of failing allocations: an allocation returns null, once or from then on, while commands read, train and save. Failures
//! of small allocations and of libraries may abort the process, as Rust does; failures of large allocations of this project are
//! errors. No existing file is lost or mixed, a command reports success only for complete results, and the same command works
//! afterwards.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use super::{Faults, WRITERS, Writer, contents, copy, must, path, strings, text};
use crate::meganeura;

/// Number of allocations that return null for each command, kind and mode, one in each run; `MEGANEURA_ALLOCATION_FAULTS`
/// overrides it.
const SAMPLED: usize = 1;
/// Minimum size of an allocation of this project's code whose failure must be an error: such allocations grow with models,
/// batches and files. Allocations of options, messages and buffers of fixed size are smaller.
const LARGE: usize = 1 << 17;
/// Time limit, longer than any command takes.
const LIMIT: Duration = Duration::from_secs(120);

/// Allocations that are counted.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    All,
    /// Allocations after the first call that changes files.
    Saving,
    /// Allocations of at least [`LARGE`] bytes.
    Large,
}

/// Failure modes, as named in `allocations.c`.
const MODES: [&str; 2] = ["one", "all"];

fn samples() -> usize {
    let given = std::env::var("MEGANEURA_ALLOCATION_FAULTS").ok();
    given.map_or(SAMPLED, |text| text.parse().expect("a number of allocations"))
}

/// A command with its output under memory shortage.
struct Run {
    output: Output,
    /// Bytes of the first allocation that returned null; `None` if it was not reached.
    null: Option<usize>,
    fails_for_good: bool,
}

impl Run {
    fn out(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    /// Returns true for success. Checks that the end is a success, an error, or an abort by Rust for lack of memory.
    fn succeeded(&self, what: &str) -> bool {
        let (status, err) = (self.output.status, String::from_utf8_lossy(&self.output.stderr));
        let is_aborted = status.signal() == Some(libc::SIGABRT) && err.contains("memory allocation of");
        // A growing list requests more each time.
        let may_abort = aborted_at(&err).is_some_and(|bytes| bytes < LARGE);
        // If all allocations fail, there is no memory to determine the caller.
        let may_abort = may_abort || self.fails_for_good || is_of_library(&err);
        let is_error = matches!(status.code(), Some(1 | 2)) && err.contains("error");
        assert!(
            status.success() || is_error || is_aborted && may_abort,
            "{what}, an allocation of {:?} bytes: {status}: {err}",
            self.null
        );
        status.success()
    }
}

/// Returns the size of the allocation that aborted a process.
fn aborted_at(err: &str) -> Option<usize> {
    let (_, rest) = err.split_once("memory allocation of ")?;
    rest.split_once(' ')?.0.parse().ok()
}

/// Returns true if the caller of the allocation, below the frames of the standard library, belongs to another library.
fn is_of_library(err: &str) -> bool {
    let mut lines = err.lines().map(str::trim).peekable();
    while let Some(line) = lines.next() {
        let Some((number, name)) = line.split_once(": ") else {
            continue;
        };
        if number.parse::<usize>().is_err() {
            continue;
        }
        let place = lines.next_if(|next| next.starts_with("at ")).unwrap_or_default();
        let is_standard = ["/rustc/", "/library/"].iter().any(|part| place.contains(part))
            || ["std::", "core::", "alloc::", "__rust", "<alloc", "<core"]
                .iter()
                .any(|begin| name.starts_with(begin));
        if !is_standard {
            // Libraries are built without line numbers, except for generic code.
            return place.is_empty() && !name.contains("meganeura") || place.contains("/registry/");
        }
    }
    false
}

impl Faults {
    fn short_of_memory(&self, folder: &Path, args: &[String], kind: Kind, (mode, nth): (&str, usize)) -> Run {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut command = meganeura(&args);
        self.preload(&mut command, folder);
        let told = self.folder.path().join("told");
        let _ = fs::remove_file(&told);
        command
            .env("FAULTS_MEMORY", mode)
            .env("FAULTS_NTH", nth.to_string())
            .env("FAULTS_TOLD", &told)
            .env("RUST_BACKTRACE", "1")
            // GPU drivers are not under test, and some of them crash.
            .env("VK_DRIVER_FILES", self.folder.path().join("none"));
        match kind {
            Kind::All => &mut command,
            Kind::Saving => command.env("FAULTS_SAVING", "1"),
            Kind::Large => command.env("FAULTS_LEAST", LARGE.to_string()),
        };
        let output = self.within_limit(&mut command);
        let told = fs::read_to_string(told).unwrap_or_default();
        let null = told
            .strip_prefix("null ")
            .map(|text| text.trim().parse().expect("bytes"));
        Run {
            output,
            null,
            fails_for_good: mode == "all",
        }
    }

    /// Returns the number of allocations of a kind, and the output of an undisturbed run.
    fn count(&self, folder: &Path, args: &[String], kind: Kind) -> (usize, String) {
        let run = self.short_of_memory(folder, args, kind, ("count", 0));
        assert!(run.succeeded("undisturbed"), "{args:?}: {:?}", run.output);
        let told = fs::read_to_string(self.folder.path().join("told")).expect("a count");
        let count = told.strip_prefix("allocations ").map(|text| text.trim().parse());
        (count.expect("a count").expect("a number"), run.out())
    }

    /// Runs a command with a time limit, because a hanging command is a failure, too.
    fn within_limit(&self, command: &mut Command) -> Output {
        let [out, err] = ["out", "err"].map(|name| self.folder.path().join(name));
        command.stdout(File::create(&out).expect("a file"));
        command.stderr(File::create(&err).expect("a file"));
        let mut child = command.spawn().expect("the program runs");
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("a child") {
                break status;
            }
            if start.elapsed() > LIMIT {
                child.kill().and_then(|()| child.wait()).expect("ended");
                panic!(
                    "{command:?} did not end: {}",
                    fs::read_to_string(err).unwrap_or_default()
                );
            }
            thread::sleep(Duration::from_millis(5));
        };
        let [stdout, stderr] = [out, err].map(|file| fs::read(file).expect("written"));
        Output { status, stdout, stderr }
    }
}

/// Returns `samples` evenly spaced indices of `count`, different for each kind and mode.
fn chosen(count: usize, samples: usize, kind: Kind, mode: &str) -> Vec<usize> {
    const SHIFTS: usize = 7;
    let samples = samples.min(count);
    let shift = 1 + 2 * kind as usize + usize::from(mode == "all");
    let nth = |i: usize| 1 + ((SHIFTS * i + shift) * count / (SHIFTS * samples)).min(count - 1);
    (0..samples).map(nth).collect()
}

/// Faults of a command: the number of attempts, and of attempts in which an allocation returned null.
#[derive(Default)]
struct Tally {
    tried: usize,
    met: usize,
    aborted: usize,
}

impl Tally {
    fn add(&mut self, run: &Run) {
        self.tried += 1;
        self.met += usize::from(run.null.is_some());
        self.aborted += usize::from(run.output.status.signal().is_some());
    }

    /// Checks that most faults occurred. Threads change the number of allocations slightly.
    fn report(&self, name: &str) {
        let Tally { tried, met, aborted } = self;
        println!("{name}: {tried} faults, {met} met, {aborted} ended the process");
        assert!(
            *met > 0 && met * 4 >= tried * 3,
            "{name}: {met} of {tried} faults were met"
        );
    }
}

fn attack_writer(writer: &Writer) {
    let faults = Faults::new();
    let root = tempfile::tempdir().expect("a folder");
    let (before, work) = (root.path().join("before"), root.path().join("work"));
    fs::create_dir(&work).expect("a folder");
    (writer.prepare)(&work);
    copy(&work, &before);
    let place = work.join(writer.place);
    let old = contents(&place);
    let args = (writer.args)(&work);
    let mut tally = Tally::default();
    for kind in [Kind::All, Kind::Saving, Kind::Large] {
        copy(&before, &work);
        let (count, _) = faults.count(&work, &args, kind);
        let (new, after) = (contents(&place), contents(&work));
        assert!(old != new && !new.is_empty(), "{}", writer.name);
        for mode in MODES {
            for nth in chosen(count, samples(), kind, mode) {
                copy(&before, &work);
                let run = faults.short_of_memory(&work, &args, kind, (mode, nth));
                let what = format!("{}, {mode} from {nth} of {count}, {kind:?}", writer.name);
                let succeeded = run.succeeded(&what);
                let found = contents(&place);
                assert!(
                    found == old || found == new,
                    "{what}: neither the old nor the new files"
                );
                assert!(
                    !succeeded || found == new || writer.is_cache,
                    "{what}: success is claimed"
                );
                // The same command works afterwards, and removes leftovers.
                if !succeeded || contents(&work) != after {
                    must(&args);
                    assert_eq!(contents(&work), after, "{what}, after it was run again");
                }
                tally.add(&run);
            }
        }
    }
    tally.report(writer.name);
}

#[test]
fn files_are_whole_after_allocations_fail() {
    for writer in &WRITERS {
        attack_writer(writer);
    }
}

/// Removes numbers, because some of them are times.
fn shape(text: &str) -> String {
    let mut shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    while shape.contains("00") {
        shape = shape.replace("00", "0");
    }
    shape
}

#[test]
fn what_is_printed_is_complete_or_allocations_failed_with_an_error() {
    let faults = Faults::new();
    let root = tempfile::tempdir().expect("a folder");
    let work = root.path();
    must(&text(work, "1", &super::TINY));
    let (model, before) = (path(work, "model"), contents(work));
    let generate = [
        "generate",
        "--device",
        "cpu",
        "--model",
        &model,
        "--prompt",
        "Alice",
        "--max-tokens",
        "8",
        "--temperature",
        "0",
        "--no-plan-cache",
    ];
    let explain = ["explain", "mlp", "--device", "cpu"];
    for args in [&generate[..], &explain] {
        let args = strings(args);
        let mut tally = Tally::default();
        for kind in [Kind::All, Kind::Large] {
            let (count, undisturbed) = faults.count(work, &args, kind);
            for mode in MODES {
                for nth in chosen(count, 2 * samples(), kind, mode) {
                    let run = faults.short_of_memory(work, &args, kind, (mode, nth));
                    let what = format!("{}, {mode} from {nth} of {count}, {kind:?}", args[0]);
                    let is_whole = shape(&run.out()) == shape(&undisturbed);
                    assert!(!run.succeeded(&what) || is_whole, "{what}: {}", run.out());
                    assert_eq!(contents(work), before, "{what}");
                    tally.add(&run);
                }
            }
        }
        tally.report(&args[0]);
    }
}

/// After any fault, a run resumes from the last checkpoint with the same result.
#[test]
fn runs_go_on_after_allocations_fail() {
    let faults = Faults::new();
    let root = tempfile::tempdir().expect("a folder");
    let work = root.path().join("work");
    fs::create_dir(&work).expect("a folder");
    let args = |rest: &[&str]| super::checkpointed(&work, rest);
    let mut tally = Tally::default();
    for kind in [Kind::All, Kind::Saving, Kind::Large] {
        copy(&root.path().join("nothing"), &work);
        let (count, out) = faults.count(&work, &args(&[]), kind);
        let undisturbed = super::end(&out);
        for mode in MODES {
            for nth in chosen(count, samples(), kind, mode) {
                copy(&root.path().join("nothing"), &work);
                let run = faults.short_of_memory(&work, &args(&[]), kind, (mode, nth));
                let what = format!("checkpoints, {mode} from {nth} of {count}, {kind:?}");
                if run.succeeded(&what) {
                    assert_eq!(super::end(&run.out()), undisturbed, "{what}");
                }
                let resumed = work.join("run/checkpoint.json").exists();
                let again: &[&str] = if resumed { &["--resume"] } else { &[] };
                let (_, out) = faults.count(&work, &args(again), kind);
                assert_eq!(super::end(&out), undisturbed, "{what}, resumed: {resumed}");
                tally.add(&run);
            }
        }
    }
    tally.report("checkpoints");
}
