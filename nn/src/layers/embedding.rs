//! Table of learned vectors.

use meganeura_core::graph::Value;
use meganeura_core::{Graph, Init, NodeId};

use super::{reject_zero_sizes, scoped};

/// Options of an [`Embedding`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbeddingConfig {
    rows: usize,
    dim: usize,
    init: Init,
}

impl EmbeddingConfig {
    /// A table of `rows` vectors of `dim` elements, drawn from the standard normal distribution.
    pub fn new(rows: usize, dim: usize) -> Self {
        EmbeddingConfig {
            rows,
            dim,
            init: Init::Normal { std: 1.0 },
        }
    }

    /// Another initial distribution; language models often use `Init::Normal { std: 0.02 }`.
    #[must_use]
    pub fn init(mut self, init: Init) -> Self {
        self.init = init;
        self
    }

    /// Registers `{name}.weight [rows, dim]`.
    #[track_caller]
    pub fn build(self, g: &mut Graph, name: &str) -> Embedding {
        let sizes = [("rows", self.rows), ("elements of a row", self.dim)];
        let poison = reject_zero_sizes(g, &format!("embedding '{name}'"), &sizes);
        let weight = match poison {
            Some(poison) => poison,
            None => g.parameter_with(&scoped(name, "weight"), &[self.rows, self.dim], self.init),
        };
        Embedding {
            name: name.to_owned(),
            weight,
        }
    }
}

/// Table of learned vectors, looked up by id.
#[derive(Clone, Debug)]
pub struct Embedding {
    name: String,
    /// `f32 [rows, dim]`.
    pub weight: NodeId,
}

impl Embedding {
    /// A table with the defaults of [`EmbeddingConfig`].
    #[track_caller]
    pub fn new(g: &mut Graph, name: &str, rows: usize, dim: usize) -> Self {
        EmbeddingConfig::new(rows, dim).build(g, name)
    }

    /// `u32` ids `[...] -> [..., dim]`. An id that is not below the number of rows is an error of the step.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, ids: impl Into<Value>) -> NodeId {
        let y = g.embedding(ids, self.weight);
        g.named(y, &self.name)
    }
}
