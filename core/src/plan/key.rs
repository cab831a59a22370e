//! Build keys of plans.

use serde::{Deserialize, Serialize};

use crate::mode::Mode;

/// Settings and environment of a plan's build. A plan from a file is used only if all of it matches. All fields are
/// texts, so that files are readable and logs can name the differences.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildKey {
    /// Version of this library. Empty if the plan was compiled outside of a build.
    pub program: String,
    /// Training or inference.
    pub mode: Mode,
    /// Form of the update in the plan; empty if there is none.
    pub update: String,
    /// Settings of rewriting.
    pub rewrite: String,
    /// Rule sets in use: name, version, and the beginning of their text's hash.
    pub rule_sets: Vec<String>,
    /// Hash of the names and versions of all operators.
    pub operators: String,
    /// The device's capabilities and rates.
    pub device: String,
    /// Identifier of the device's kernels.
    pub kernels: String,
}

impl BuildKey {
    /// Returns the names of the fields in which another key differs.
    pub fn differences(&self, other: &BuildKey) -> Vec<&'static str> {
        let parts = [
            ("program version", self.program != other.program),
            ("mode", self.mode != other.mode),
            ("optimizer", self.update != other.update),
            ("rewrite settings", self.rewrite != other.rewrite),
            ("rule sets", self.rule_sets != other.rule_sets),
            ("operators", self.operators != other.operators),
            ("device", self.device != other.device),
            ("kernels", self.kernels != other.kernels),
        ];
        let differing = parts.into_iter().filter(|(_, differs)| *differs);
        differing.map(|(name, _)| name).collect()
    }
}
