//! Learned position embedding layer.

use meganeura_core::graph::Value;
use meganeura_core::{Graph, Init, NodeId};

use super::{reject_zero_sizes, scoped};

/// A learned vector for each position of a sequence, which is added to the position's features
/// (Gehring et al., 2017; as in BERT, GPT-2 and vision transformers).
#[derive(Clone, Debug)]
pub struct PositionEmbedding {
    name: String,
    sizes: [usize; 2],
    /// `f32 [rows, dim]`.
    pub weight: NodeId,
}

impl PositionEmbedding {
    /// Creates an embedding for sequences of up to `rows` positions with `dim` features. Registers
    /// `{name}.weight [rows, dim]`, drawn from the normal distribution with standard deviation
    /// 0.02.
    #[track_caller]
    pub fn new(g: &mut Graph, name: &str, rows: usize, dim: usize) -> Self {
        g.at_caller(|g| {
            let layer = format!("position_embedding '{name}'");
            let poison = reject_zero_sizes(g, &layer, &[("positions", rows), ("features", dim)]);
            let init = Init::Normal { std: 0.02 };
            PositionEmbedding {
                name: name.to_owned(),
                sizes: [rows, dim],
                weight: poison.unwrap_or_else(|| g.parameter_with(&scoped(name, "weight"), &[rows, dim], init)),
            }
        })
    }

    /// Adds the vector of its position to each row of `x [..., rows, dim]`; the first row is position 0. `x` may have
    /// fewer rows than there are positions. More rows are an error of the graph.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        let (x, [rows, dim]) = (x.into(), self.sizes);
        let what = format!(
            "position_embedding '{}' ({rows} positions of {dim} features)",
            self.name
        );
        g.within(what, |g| {
            let weight = match *g.shape(x) {
                [.., own, width] if width == dim && own <= rows => g.slice_axis(self.weight, 0, 0, own),
                [.., own, width] => {
                    let message = format!("the operand has {own} rows of {width} features");
                    let remedy = "pass at most the number of positions as rows, with the same number of features";
                    return g.report("forward", message, remedy);
                }
                // An operand without rows is refused by the addition, a poisoned one was refused before.
                _ => self.weight,
            };
            let y = g.add(x, weight);
            g.named(y, &self.name)
        })
    }
}
