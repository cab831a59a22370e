//! What a plan was built with.

use serde::{Deserialize, Serialize};

use crate::mode::Mode;

/// What a plan was built with. A plan from a file is used only where every part of this is the same; the parts are
/// words, so that a file shows them and a log can say what differs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildKey {
    /// Version of this library, whose passes made it. Empty where the plan was compiled outside of a build.
    pub program: String,
    /// Training or inference.
    pub mode: Mode,
    /// The update that the plan holds; empty if it holds none.
    pub update: String,
    /// Settings of rewriting.
    pub rewrite: String,
    /// Rule sets in use: name, version, and the beginning of their text's hash.
    pub rule_sets: Vec<String>,
    /// Hash of the names and versions of all operators.
    pub operators: String,
    /// The device's capabilities and rates.
    pub device: String,
    /// Which kernels the device has.
    pub kernels: String,
}

impl BuildKey {
    /// Names of the parts in which another key differs.
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
