//! Source texts of kernels. A page contains equal texts, for example of repeated layers, only once.

use serde_json::{Value as Json, json};

use super::Texts;
use meganeura::ExecutionPlan;
use meganeura::backend::KernelSource;

/// Returns the texts, and for each dispatch its kernels, which refer to their texts by index.
pub(super) fn data(plan: &ExecutionPlan, sources: &[KernelSource]) -> (Vec<String>, Vec<Vec<Json>>) {
    let mut texts = Texts::default();
    let mut kernels = vec![Vec::new(); plan.dispatches.len()];
    for source in sources {
        let (Some(own), Some(dispatch)) = (kernels.get_mut(source.dispatch), plan.dispatches.get(source.dispatch))
        else {
            continue;
        };
        own.push(json!({
            "language": source.language,
            // The plan may contain the variant if the backend does not report it with the text.
            "variant": source.variant.as_ref().or(dispatch.variant.as_ref()),
            "why": source.why,
            "text": texts.number(&source.text),
        }));
    }
    (texts.list, kernels)
}
