//! Starts processes with `mpirun`. Without it, tests are skipped, unless `MEGANEURA_REQUIRE_MPI=1`.

use std::path::Path;
use std::process::{Command, Output};

/// Returns a command that runs a program on `ranks` processes, with one kernel thread each.
pub(crate) fn command(ranks: usize, program: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["-n", &ranks.to_string(), "--oversubscribe"]);
    // The first two variables are Open MPI's equivalent of `--allow-run-as-root`; other users and
    // libraries ignore them.
    command
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("MEGANEURA_THREADS", "1");
    command.arg(program).args(words);
    command
}

/// Runs the command and returns its output; `None` without `mpirun`.
pub(crate) fn output(mut command: Command) -> Option<Output> {
    match command.output() {
        Ok(output) => Some(output),
        Err(error) => {
            let required = std::env::var("MEGANEURA_REQUIRE_MPI").is_ok_and(|value| value == "1");
            assert!(!required, "MPI is required, but mpirun cannot be started: {error}");
            println!("MPI-NOT-TESTED: mpirun cannot be started: {error}");
            None
        }
    }
}

pub(crate) fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
