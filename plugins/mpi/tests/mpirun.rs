//! Tests of collectives and their failures, with processes that `mpirun` starts.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

mod common;

use common::{errors, output};

/// Returns a command that tests collectives on `ranks` processes.
fn command(ranks: usize, word: &str) -> Command {
    let words = [word];
    let words = if word.is_empty() { &words[..0] } else { &words };
    common::command(ranks, Path::new(env!("CARGO_BIN_EXE_meganeura-mpi-check")), words)
}

/// Runs the command and returns its output; `None` without `mpirun`.
fn mpirun(ranks: usize, word: &str) -> Option<Output> {
    output(command(ranks, word))
}

#[test]
fn every_collective_gives_what_it_should() {
    for ranks in 1..=4 {
        let Some(output) = mpirun(ranks, "") else { return };
        assert!(output.status.success(), "{ranks} ranks: {}", errors(&output));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(&format!("{ranks} ranks: every")), "{text}");
    }
}

#[test]
fn sizes_that_differ_are_an_error_on_every_rank() {
    let Some(output) = mpirun(3, "mismatch") else { return };
    let text = errors(&output);
    assert!(!output.status.success());
    for rank in 0..3 {
        let peer = if rank == 2 { 0 } else { 2 };
        let expected = format!("rank {rank} of 3: all-reduce of weights failed: rank {peer} differs");
        assert!(text.contains(&expected), "no '{expected}' in {text}");
    }
}

#[test]
fn a_rank_that_ends_is_named_by_the_others() {
    let start = Instant::now();
    let Some(output) = mpirun(3, "exit") else { return };
    let text = errors(&output);
    assert!(!output.status.success());
    for rank in 0..2 {
        let expected = format!("rank {rank} of 3: all-reduce of bucket 0 failed");
        assert!(text.contains(&expected), "no '{expected}' in {text}");
    }
    assert!(text.contains("rank 2 ended: it was told to"), "{text}");
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_rank_that_does_not_come_is_named_within_the_time_limit() {
    let Some(output) = mpirun(3, "stall") else { return };
    let text = errors(&output);
    assert!(!output.status.success());
    assert!(text.contains("all-reduce of bucket 0 failed"), "{text}");
    assert!(text.contains("rank 2 did not arrive within 2 s"), "{text}");
}

/// Kills one of three ranks at different moments, `times` times: all ranks end in time, and the
/// other ranks report the collective.
fn kill_ranks(times: u64) {
    for round in 0..times {
        let started = command(3, "loop").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let Ok(mut run) = started else {
            // Prints the reason, or fails if MPI is required.
            assert!(mpirun(1, "").is_none());
            return;
        };
        let mut lines = BufReader::new(run.stdout.take().expect("piped")).lines();
        let mut stderr = run.stderr.take().expect("piped");
        let errors = thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).map(|_| text)
        });
        let pids: Vec<(String, String)> = lines
            .by_ref()
            .map(|line| line.expect("text"))
            .filter_map(|line| {
                let mut words = line.strip_prefix("pid ")?.split(' ').map(str::to_owned);
                words.next().zip(words.next())
            })
            .take(3)
            .collect();
        let victim = (round % 3).to_string();
        let (_, pid) = pids
            .iter()
            .find(|(rank, _)| *rank == victim)
            .expect("every rank tells its number");
        thread::sleep(Duration::from_millis(17 * round % 90));
        let killed = Command::new("kill").args(["-9", pid]).status().expect("kill runs");
        assert!(killed.success());
        let start = Instant::now();
        let status = run.wait().expect("it ends");
        let took = start.elapsed();
        let text = errors.join().expect("no panic").expect("text");
        assert!(!status.success());
        assert!(took < Duration::from_secs(20), "round {round}: ended after {took:?}");
        // Open MPI itself ends a process that was reading from the killed one's memory, so not all
        // ranks may report.
        let others = (0..3).filter(|rank| *rank != round % 3);
        let expected = |rank: u64| format!("error: rank {rank} of 3: all-reduce of bucket 0 failed");
        let said = others.filter(|rank| text.contains(&expected(*rank))).count();
        assert!(said >= 1, "round {round}: {text}");
    }
}

#[test]
fn killed_ranks_end_the_others() {
    kill_ranks(3);
}

#[test]
#[ignore = "minutes"]
fn a_hundred_killed_ranks_end_the_others() {
    kill_ranks(100);
}
