//! Dropout layer.

use meganeura_core::graph::Value;
use meganeura_core::{Graph, NodeId};

/// Dropout: in training sessions, sets elements to 0 at random and scales the remaining ones by `1 / (1 - p)`; in
/// inference sessions, does nothing.
///
/// The masks depend on the session's seed (`Session::set_seed`), the step, the layer and the element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Probability of dropping an element, in `[0, 1)`.
    pub p: f32,
}

impl Dropout {
    /// Creates dropout with probability `p`.
    pub fn new(p: f32) -> Self {
        Dropout { p }
    }

    /// Applies dropout to `x` of any shape. A probability of 0 adds nothing to the graph; one outside `[0, 1)` is an
    /// error of the graph.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        let x = x.into();
        if self.p == 0.0 && x.port == 0 {
            return x.node;
        }
        g.dropout(x, self.p)
    }
}
