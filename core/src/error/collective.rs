//! What can go wrong between ranks.

use std::fmt;
use std::time::Duration;

/// An operation in which all ranks take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Collective {
    /// Sum over all ranks, on every rank.
    AllReduce,
    /// Sum over all ranks, on one rank.
    Reduce,
    /// Sum over all ranks, a part of it on each.
    ReduceScatter,
    /// What all ranks have, on every rank.
    AllGather,
    /// What one rank has, on every rank.
    Broadcast,
    /// Nothing but waiting for each other.
    Barrier,
    /// Finding out whether all ranks train the same.
    Agreement,
    /// A step whose gradients are averaged.
    Step,
}

impl Collective {
    /// Its name.
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

/// Why a collective failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CollectiveFailure {
    /// Another rank ended, or told that it ends.
    PeerLost {
        /// That rank.
        peer: usize,
        /// What it said, if it did.
        reason: String,
    },
    /// Other ranks did not come in time.
    TimedOut {
        /// Those that did not come, as far as is known.
        missing: Vec<usize>,
        /// How long this rank waited.
        limit: Duration,
    },
    /// Another rank does something else: another operation, tensor or size, or it trains something else.
    Mismatch {
        /// The first rank that differs from this one.
        peer: usize,
        /// What differs, with both values.
        what: String,
    },
    /// The arguments make no sense on this rank.
    Invalid(String),
    /// The transport failed.
    Transport(String),
}

/// A collective that failed, as one rank saw it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} of {size}: {operation} of {tensor} failed: {}\n  help: {}", self.what(), self.remedy())]
pub struct CollectiveError {
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub size: usize,
    /// What was being done.
    pub operation: Collective,
    /// With which tensor, bucket of gradients or other data.
    pub tensor: String,
    /// Why it failed.
    pub failure: CollectiveFailure,
}

impl CollectiveError {
    fn what(&self) -> String {
        match &self.failure {
            CollectiveFailure::PeerLost { peer, reason } if reason.is_empty() => format!("rank {peer} is gone"),
            CollectiveFailure::PeerLost { peer, reason } => format!("rank {peer} ended: {reason}"),
            CollectiveFailure::TimedOut { missing, limit } => {
                let seconds = limit.as_secs_f64();
                match &missing[..] {
                    [] => format!("other ranks did not come within {seconds} s"),
                    [one] => format!("rank {one} did not come within {seconds} s"),
                    more => {
                        let list: Vec<String> = more.iter().map(ToString::to_string).collect();
                        format!("ranks {} did not come within {seconds} s", list.join(", "))
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
                "see what that rank printed; a run with checkpoints goes on from the last one with `--resume`"
            }
            CollectiveFailure::TimedOut { .. } => {
                "see whether that rank still runs, and the network; a longer time limit if it is only slow"
            }
            CollectiveFailure::Mismatch { .. } => {
                "start every rank with the same program, model, data, options and kind of device"
            }
            CollectiveFailure::Invalid(_) => "give data of sizes that fit together",
            CollectiveFailure::Transport(_) => "see the messages of the transport above",
        }
    }
}
