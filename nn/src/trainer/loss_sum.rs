//! The sum of the losses of an epoch, which the device keeps.

use meganeura_core::Graph;

/// State in which the device sums up the losses of an epoch, so that their mean is exact without waiting
/// for every step.
pub(super) const LOSS_SUM: &str = "trainer.loss_sum";

/// Returns the model with the sum of its losses as a state.
pub(super) fn training_graph(model: &Graph) -> Graph {
    let mut graph = model.clone();
    let loss = model.outputs().first().copied();
    // Any other loss is refused by the differentiation, with a better message than that of `add`.
    if let Some(loss) = loss.filter(|&loss| model.shape(loss).is_empty()) {
        let sum = graph.state(LOSS_SUM, &[]);
        let next = graph.add(sum, loss);
        graph.assign(sum, next);
        graph.named(next, LOSS_SUM);
    }
    graph
}
