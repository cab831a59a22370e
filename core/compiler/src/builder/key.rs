//! Construction of a plan's build key: it contains everything that the plan depends on except the graph.

use meganeura_core::backend::{Capabilities, Device};
use meganeura_core::config::RewriteConfig;
use meganeura_core::files::sha256;
use meganeura_core::mode::Mode;
use meganeura_core::plan::optimizer::Update;
use meganeura_core::plan::{BuildKey, MemoryBudget};
use meganeura_core::precision::Precision;
use meganeura_core::registry;

use crate::rewrite::rule_sets;

/// Returns the key of a build.
pub(super) fn build_key(mode: Mode, device: &dyn Device, rewrite: &RewriteConfig, update: Option<&Update>) -> BuildKey {
    let used = |namespace: &str| rewrite.enabled && !rewrite.disable.iter().any(|d| d == namespace);
    let sets = rule_sets();
    let sets = sets.iter().map(|s| &s.set).filter(|set| used(&set.namespace));
    let operators: Vec<String> = registry::ops()
        .iter()
        .map(|op| format!("{} {}\n", op.name(), op.version()))
        .collect();
    // Settings that only affect reports do not change the plan.
    let rewrite = RewriteConfig {
        baseline: false,
        precision: Some(Precision::resolve(rewrite.precision, mode, device)),
        loss_scale: rewrite.loss_scaling(mode),
        ..rewrite.clone()
    };
    // The amount of memory determines whether a plan runs, but not the plan, unless the budget is a
    // share of it.
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
        // The derived format lists every field, including those of later versions.
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
