//! `--distributed` of `meganeura train` and `meganeura evaluate`: this process as one rank of several.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use meganeura::distributed::{self, Communicator, CommunicatorOptions};

use crate::output;

/// How this process finds the others.
#[derive(Debug, clap::Args)]
pub(super) struct RankOptions {
    /// Work on several processes: NAME is how they communicate, `nccl` (NVIDIA's GPUs, one for each process; start with
    /// torchrun, mpirun or Slurm) or `mpi` (a build with `--features mpi`; start with mpirun). Each takes its part of the
    /// examples (of training, of each batch); every process has the same options.
    #[arg(long, value_name = "NAME")]
    distributed: Option<String>,

    /// Seconds that a process of --distributed waits for the others before it ends with an error.
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0)]
    time_limit: f64,
}

impl RankOptions {
    /// Whether there are to be several processes.
    pub(super) fn is_asked_for(&self) -> bool {
        self.distributed.is_some()
    }
}

/// The communicators that a feature of the command brings.
#[cfg(feature = "mpi")]
fn linked() -> &'static str {
    // Names it, so that the linker keeps what registers itself.
    meganeura_mpi::NAME
}

/// The connection to the other ranks, if there are such.
#[derive(Debug)]
pub(super) struct Ranks(Option<Arc<dyn Communicator>>);

impl Ranks {
    /// Joins the group that this process was started in, if that is asked for. From then on the first rank alone prints.
    pub(super) fn join(options: &RankOptions) -> Result<Self, Box<dyn Error>> {
        let Some(name) = &options.distributed else {
            return Ok(Ranks(None));
        };
        #[cfg(feature = "mpi")]
        log::debug!("linked communicators: {}", linked());
        let limit = options.time_limit;
        if !limit.is_finite() || limit <= 0.0 || limit > 1e9 {
            return Err(format!("--time-limit {limit}: give seconds, above 0").into());
        }
        let options = CommunicatorOptions::with_time_limit(Duration::from_secs_f64(limit));
        let communicator = distributed::open(name, &options)?;
        let (rank, size) = (communicator.rank(), communicator.size());
        log::info!("rank {rank} of {size} ({name})");
        if rank > 0 {
            output::silence();
        }
        Ok(Ranks(Some(communicator)))
    }

    /// Whether this is the first rank, which prints and writes files, or the only one.
    pub(super) fn is_first(&self) -> bool {
        self.0.as_ref().is_none_or(|communicator| communicator.rank() == 0)
    }

    /// The connection, for the trainer.
    pub(super) fn communicator(&self) -> Option<Arc<dyn Communicator>> {
        self.0.clone()
    }

    /// The connection, if there are other ranks.
    pub(super) fn others(&self) -> Option<&dyn Communicator> {
        self.0.as_deref().filter(|communicator| communicator.size() > 1)
    }

    /// Says how many ranks there are.
    pub(super) fn introduce(&self, batch: usize) -> std::io::Result<()> {
        let Some(communicator) = self.0.as_ref().filter(|c| c.size() > 1) else {
            return Ok(());
        };
        let size = communicator.size();
        output::line(format_args!(
            "{size} ranks ({}), each with {} of the {batch} examples of a batch",
            communicator.name(),
            batch / size
        ))
    }

    /// Tells the other ranks where this one ends with an error; gives the outcome back.
    pub(super) fn end<T>(&self, outcome: Result<T, Box<dyn Error>>) -> Result<T, Box<dyn Error>> {
        if let (Some(communicator), Err(error)) = (&self.0, &outcome) {
            communicator.abort(&error.to_string());
        }
        outcome
    }
}
