//! `--distributed` of `meganeura train` and `meganeura evaluate`: this process as one rank of several.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use meganeura::Graph;
use meganeura::distributed::{self, Communicator, CommunicatorOptions};
use meganeura::graph::NodeKind;

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

/// The parts of a model that depend on the number of ranks.
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

    /// Prints the number of ranks, and which parts of the model differ from a run of one process.
    pub(super) fn introduce(&self, batch: usize, graph: &Graph) -> std::io::Result<()> {
        let Some(communicator) = self.0.as_ref().filter(|c| c.size() > 1) else {
            return Ok(());
        };
        let size = communicator.size();
        output::line(format_args!(
            "{size} ranks ({}), each with {} of the {batch} examples of a batch",
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

    /// Tells the other ranks where this one ends with an error; gives the outcome back.
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
