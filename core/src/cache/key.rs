//! What a plan depends on beside its graph.

use serde::{Deserialize, Serialize};

use crate::backend::{Capabilities, Device};
use crate::build::Mode;
use crate::files::sha256;
use crate::plan::MemoryBudget;
use crate::plan::optimizer::Update;
use crate::precision::Precision;
use crate::registry;
use crate::rewrite::RewriteConfig;

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
    /// The key of a build.
    pub fn new(mode: Mode, device: &dyn Device, rewrite: &RewriteConfig, update: Option<&Update>) -> Self {
        let used = |namespace: &str| rewrite.enabled && !rewrite.disable.iter().any(|d| d == namespace);
        let sets = registry::rule_sets();
        let sets = sets.iter().map(|s| &s.set).filter(|set| used(&set.namespace));
        let operators: Vec<String> = registry::ops()
            .iter()
            .map(|op| format!("{} {}\n", op.name(), op.version()))
            .collect();
        // What is only reported changes no plan.
        let rewrite = RewriteConfig {
            baseline: false,
            precision: Some(Precision::resolve(rewrite.precision, mode, device)),
            loss_scale: rewrite.loss_scaling(mode),
            ..rewrite.clone()
        };
        // How much memory there is decides whether a plan runs, not what it is, unless it is to take a share of it.
        let memory = match rewrite.memory_budget {
            Some(MemoryBudget::OfDevice(_)) => device.capabilities().memory_bytes,
            _ => None,
        };
        let capabilities = Capabilities {
            memory_bytes: memory,
            ..device.capabilities().clone()
        };
        BuildKey {
            program: env!("CARGO_PKG_VERSION").to_owned(),
            mode,
            update: update.map(Update::form).unwrap_or_default(),
            // The derived form lists every field, also those that a later version adds.
            rewrite: format!("{rewrite:?}"),
            rule_sets: sets
                .map(|set| {
                    let text = sha256([set.rules.as_bytes()]);
                    format!("{} {} {}", set.namespace, set.version, &text[..16])
                })
                .collect(),
            operators: sha256(operators.iter().map(String::as_bytes)),
            device: format!("{capabilities:?}"),
            kernels: device.kernels(),
        }
    }

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
