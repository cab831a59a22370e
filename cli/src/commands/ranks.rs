//! Option `--distributed` of `meganeura train` and `meganeura evaluate`: this process as one rank of several.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use meganeura::Graph;
use meganeura::distributed::{self, Communicator, CommunicatorOptions};
use meganeura::graph::NodeKind;

use crate::output;

/// Options of a run that is distributed over several processes.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct RankOptions {
    /// Run as one of several processes that communicate through NAME: `nccl` (one NVIDIA GPU per process; start with
    /// torchrun, mpirun or Slurm) or `mpi` (needs a build with `--features mpi`; start with mpirun). Each process
    /// computes a share of the examples, in training a share of each batch. All processes need the same options.
    #[arg(long, value_name = "NAME")]
    distributed: Option<String>,

    /// With --distributed: maximum time to wait for the other processes, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0)]
    time_limit: f64,
}

impl RankOptions {
    /// Returns true if several processes are requested.
    pub(super) fn is_asked_for(&self) -> bool {
        self.distributed.is_some()
    }
}

/// Returns the names of the communicators that features of the command add.
#[cfg(feature = "mpi")]
fn linked() -> &'static str {
    // The reference makes the linker keep the registration.
    meganeura_mpi::NAME
}

/// Returns the parts of a model whose results depend on the number of ranks.
fn differences(graph: &Graph) -> &'static str {
    let calls = |name: &str| {
        let mut nodes = graph.nodes().iter();
        nodes.any(|node| matches!(&node.kind, NodeKind::Op { op, .. } if op.name() == name))
    };
    match (calls("core.dropout"), calls("core.batch_norm")) {
        (true, true) => "dropout masks and batch norm statistics",
        (true, false) => "dropout masks",
        (false, true) => "batch norm statistics",
        (false, false) => "",
    }
}

/// Connection to the other ranks; `None` for a single process.
#[derive(Debug)]
pub(super) struct Ranks(Option<Arc<dyn Communicator>>);

impl Ranks {
    /// Joins the group of this process, if requested. Afterwards only the first rank prints.
    pub(super) fn join(options: &RankOptions) -> Result<Self, Box<dyn Error>> {
        let Some(name) = &options.distributed else {
            return Ok(Ranks(None));
        };
        #[cfg(feature = "mpi")]
        log::debug!("linked communicators: {}", linked());
        let limit = options.time_limit;
        if !limit.is_finite() || limit <= 0.0 || limit > 1e9 {
            return Err(format!("--time-limit: expected a number of seconds above 0, found {limit}").into());
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

    /// Returns true for the first or only rank, which prints and writes files.
    pub(super) fn is_first(&self) -> bool {
        self.0.as_ref().is_none_or(|communicator| communicator.rank() == 0)
    }

    /// Returns the connection, for the trainer.
    pub(super) fn communicator(&self) -> Option<Arc<dyn Communicator>> {
        self.0.clone()
    }

    /// Returns the connection, if there are other ranks.
    pub(super) fn others(&self) -> Option<&dyn Communicator> {
        self.0.as_deref().filter(|communicator| communicator.size() > 1)
    }

    /// Prints the number of ranks, and the parts of the model that differ from a run of one process.
    pub(super) fn introduce(&self, batch: usize, graph: &Graph) -> std::io::Result<()> {
        let Some(communicator) = self.0.as_ref().filter(|c| c.size() > 1) else {
            return Ok(());
        };
        let size = communicator.size();
        output::line(format_args!(
            "{size} ranks ({}), each with {} of {batch} examples per batch",
            communicator.name(),
            batch / size
        ))?;
        match differences(graph) {
            "" => Ok(()),
            different => output::line(format_args!(
                "each rank has its own {different}, so losses differ from those of one process"
            )),
        }
    }

    /// Aborts the other ranks if the outcome is an error; returns the outcome.
    pub(super) fn end<T>(&self, outcome: Result<T, Box<dyn Error>>) -> Result<T, Box<dyn Error>> {
        if let (Some(communicator), Err(error)) = (&self.0, &outcome) {
            communicator.abort(&error.to_string());
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use meganeura::nn::model::{Architecture, Loss};

    use super::*;

    #[test]
    fn models_that_depend_on_the_number_of_ranks_are_known() {
        let differences = |architecture: Architecture| {
            let graph = architecture.training_graph(4, Loss::Classes).expect("builds");
            differences(&graph)
        };
        let mut plain = Architecture::mlp([8], 3);
        assert_eq!(differences(plain.clone()), "dropout masks");
        if let Architecture::Mlp { dropout, .. } = &mut plain {
            *dropout = 0.0;
        }
        assert_eq!(differences(plain), "");
        assert_eq!(
            differences(Architecture::resnet18([1, 8, 8], true, 3)),
            "batch norm statistics"
        );
    }
}
