//! What a plan depends on beside its graph.

use crate::backend::{Capabilities, Device};
use crate::files::sha256;
use crate::mode::Mode;
use crate::plan::optimizer::Update;
use crate::plan::{BuildKey, MemoryBudget};
use crate::precision::Precision;
use crate::registry;
use crate::rewrite::RewriteConfig;

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
