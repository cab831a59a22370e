//! Names of suites, and sizes of their workloads.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use meganeura::Error;
use meganeura::backend::DeviceKind;

/// Group of workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Suite {
    /// Matmuls: sizes, layouts, few rows, both precisions.
    Matmul,
    /// Attention forward and backward, and of one token with a KV cache.
    Attention,
    /// Elementwise calls, reductions, and calls that move elements.
    Pointwise,
    /// Normalisations, softmax and cross-entropy.
    Norm,
    /// Convolutions forward and backward, and pooling.
    Conv,
    /// Updates of parameters by optimizers.
    Optimizer,
    /// Steps of whole models.
    Models,
    /// Overhead of sessions: building, opening, replay and transfers.
    Session,
}

impl Suite {
    /// All suites, in the order of execution.
    pub const ALL: [Suite; 8] = [
        Suite::Matmul,
        Suite::Attention,
        Suite::Pointwise,
        Suite::Norm,
        Suite::Conv,
        Suite::Optimizer,
        Suite::Models,
        Suite::Session,
    ];

    /// Returns the name of the suite in commands and files.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Matmul => "matmul",
            Suite::Attention => "attention",
            Suite::Pointwise => "pointwise",
            Suite::Norm => "norm",
            Suite::Conv => "conv",
            Suite::Optimizer => "optimizer",
            Suite::Models => "models",
            Suite::Session => "session",
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Suite {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Suite::ALL.into_iter().find(|suite| suite.name() == text);
        found.ok_or_else(|| {
            let known: Vec<&str> = Suite::ALL.iter().map(|suite| suite.name()).collect();
            Error::misuse(
                format!("there is no suite '{text}'"),
                format!("the suites are: {}; 'all' stands for all of them", known.join(", ")),
            )
        })
    }
}

/// Size of the workloads. All compared devices run workloads of the same size, which suits the slowest class of device
/// among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sizes {
    /// Size for devices emulated in software, and for tests: a suite takes at most a minute.
    Small,
    /// Size for CPUs.
    Medium,
    /// Size for GPUs and other accelerators.
    Large,
}

impl Sizes {
    /// Returns the size for a class of devices.
    pub fn of(kind: DeviceKind) -> Self {
        match kind {
            DeviceKind::Software => Sizes::Small,
            DeviceKind::Cpu | DeviceKind::IntegratedGpu => Sizes::Medium,
            _ => Sizes::Large,
        }
    }

    /// Returns the name of the size.
    pub fn name(self) -> &'static str {
        match self {
            Sizes::Small => "small",
            Sizes::Medium => "medium",
            Sizes::Large => "large",
        }
    }

    /// Returns the argument for this size.
    pub(super) fn pick<T>(self, small: T, medium: T, large: T) -> T {
        match self {
            Sizes::Small => small,
            Sizes::Medium => medium,
            Sizes::Large => large,
        }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Sizes {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let all = [Sizes::Small, Sizes::Medium, Sizes::Large];
        let found = all.into_iter().find(|sizes| sizes.name() == text);
        found.ok_or_else(|| {
            Error::misuse(
                format!("'{text}' is no size of workloads"),
                "say small, medium or large",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for suite in Suite::ALL {
            assert_eq!(suite.name().parse::<Suite>().ok(), Some(suite));
            assert_eq!(serde_json::to_value(suite).ok(), Some(suite.name().into()));
        }
        let error = "matmuls".parse::<Suite>().expect_err("no suite").to_string();
        assert!(
            error.contains("'matmuls'") && error.contains("matmul, attention"),
            "{error}"
        );
        assert!("huge".parse::<Sizes>().is_err());
        assert_eq!("large".parse::<Sizes>().ok(), Some(Sizes::Large));
    }
}
