//! Errors of collectives.

use std::fmt;
use std::time::Duration;

/// An operation in which all ranks participate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Collective {
    /// Sum over all ranks, on every rank.
    AllReduce,
    /// Sum over all ranks, on one rank.
    Reduce,
    /// Sum over all ranks, one part on each rank.
    ReduceScatter,
    /// Data of all ranks, on every rank.
    AllGather,
    /// Data of one rank, on every rank.
    Broadcast,
    /// Synchronization without data.
    Barrier,
    /// Check whether all ranks train the same.
    Agreement,
    /// A step whose gradients are averaged.
    Step,
}

impl Collective {
    /// Returns the name of the operation.
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all-reduce",
            Collective::Reduce => "reduce",
            Collective::ReduceScatter => "reduce-scatter",
            Collective::AllGather => "all-gather",
            Collective::Broadcast => "broadcast",
            Collective::Barrier => "barrier",
            Collective::Agreement => "agreement",
            Collective::Step => "step",
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Cause of a failed collective.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CollectiveFailure {
    /// Another rank ended, or announced that it ends.
    PeerLost {
        /// The rank that ended.
        peer: usize,
        /// The reason that it gave, or an empty text.
        reason: String,
    },
    /// Other ranks did not arrive in time.
    TimedOut {
        /// The ranks that did not arrive, if they can be determined.
        missing: Vec<usize>,
        /// Time that this rank waited.
        limit: Duration,
    },
    /// Another rank calls something different: another operation, tensor or size, or other training.
    Mismatch {
        /// The first rank that differs from this one.
        peer: usize,
        /// The difference, with both values.
        what: String,
    },
    /// The arguments are invalid on this rank.
    Invalid(String),
    /// The transport failed.
    Transport(String),
}

/// A failed collective, as observed by one rank.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} of {size}: {operation} of {tensor} failed: {}\n  help: {}", self.what(), self.remedy())]
pub struct CollectiveError {
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub size: usize,
    /// Operation that failed.
    pub operation: Collective,
    /// Tensor, bucket of gradients or other data of the operation.
    pub tensor: String,
    /// Cause of the failure.
    pub failure: CollectiveFailure,
}

impl CollectiveError {
    fn what(&self) -> String {
        match &self.failure {
            CollectiveFailure::PeerLost { peer, reason } if reason.is_empty() => format!("rank {peer} disconnected"),
            CollectiveFailure::PeerLost { peer, reason } => format!("rank {peer} ended: {reason}"),
            CollectiveFailure::TimedOut { missing, limit } => {
                let seconds = limit.as_secs_f64();
                match &missing[..] {
                    [] => format!("other ranks did not arrive within {seconds} s"),
                    [one] => format!("rank {one} did not arrive within {seconds} s"),
                    more => {
                        let list: Vec<String> = more.iter().map(ToString::to_string).collect();
                        format!("ranks {} did not arrive within {seconds} s", list.join(", "))
                    }
                }
            }
            CollectiveFailure::Mismatch { peer, what } => format!("rank {peer} differs: {what}"),
            CollectiveFailure::Invalid(message) | CollectiveFailure::Transport(message) => message.clone(),
        }
    }

    fn remedy(&self) -> &'static str {
        match self.failure {
            CollectiveFailure::PeerLost { .. } => {
                "see the output of that rank; a run with checkpoints continues from the last one with `--resume`"
            }
            CollectiveFailure::TimedOut { .. } => {
                "check that rank and the network; if the rank is only slow, raise the time limit"
            }
            CollectiveFailure::Mismatch { .. } => {
                "start every rank with the same program, model, data, options and kind of device"
            }
            CollectiveFailure::Invalid(_) => "pass data of matching sizes",
            CollectiveFailure::Transport(_) => "see the messages of the transport above",
        }
    }
}
