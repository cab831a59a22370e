//! Table of learned vectors.

use meganeura_core::graph::Value;
use meganeura_core::{Graph, Init, NodeId};

use super::stored::{StoredMatrix, WeightStorage};
use super::{reject_zero_sizes, scoped};

/// Options of an [`Embedding`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbeddingConfig {
    rows: usize,
    dim: usize,
    init: Init,
    storage: WeightStorage,
}

impl EmbeddingConfig {
    /// Creates options for a table of `rows` vectors of `dim` elements, drawn from the standard
    /// normal distribution.
    pub fn new(rows: usize, dim: usize) -> Self {
        EmbeddingConfig {
            rows,
            dim,
            init: Init::Normal { std: 1.0 },
            storage: WeightStorage::F32,
        }
    }

    /// Sets another initial distribution; language models often use `Init::Normal { std: 0.02 }`.
    #[must_use]
    pub fn init(mut self, init: Init) -> Self {
        self.init = init;
        self
    }

    /// Sets the storage type of the table. With a type other than `F32`, the table is not trained.
    #[must_use]
    pub fn storage(mut self, storage: WeightStorage) -> Self {
        self.storage = storage;
        self
    }

    /// Registers `{name}.weight [rows, dim]`; with a storage type other than `F32`, as
    /// [`LinearConfig::build`](super::LinearConfig::build) does.
    #[track_caller]
    pub fn build(self, g: &mut Graph, name: &str) -> Embedding {
        g.at_caller(|g| {
            let sizes = [("rows", self.rows), ("elements of a row", self.dim)];
            let poison = reject_zero_sizes(g, &format!("embedding '{name}'"), &sizes);
            let stored = match poison {
                Some(_) => None,
                None => StoredMatrix::build(g, name, &[self.rows, self.dim], self.storage),
            };
            let weight = match (poison, &stored) {
                (Some(poison), _) => poison,
                (None, Some(stored)) => stored.weight,
                (None, None) => g.parameter_with(&scoped(name, "weight"), &[self.rows, self.dim], self.init),
            };
            Embedding {
                name: name.to_owned(),
                sizes: [self.rows, self.dim],
                weight,
                stored,
            }
        })
    }
}

/// Table of learned vectors, looked up by id.
#[derive(Clone, Debug)]
pub struct Embedding {
    name: String,
    sizes: [usize; 2],
    /// `f32 [rows, dim]`, or the type of [`EmbeddingConfig::storage`].
    pub weight: NodeId,
    stored: Option<StoredMatrix>,
}

impl Embedding {
    /// Creates a table with the defaults of [`EmbeddingConfig`].
    #[track_caller]
    pub fn new(g: &mut Graph, name: &str, rows: usize, dim: usize) -> Self {
        EmbeddingConfig::new(rows, dim).build(g, name)
    }

    /// Looks up vectors: `u32` ids `[...] -> [..., dim]`. An id that is not below the number of
    /// rows is an error of the step.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, ids: impl Into<Value>) -> NodeId {
        let ids = ids.into();
        g.within(self.description(), |g| {
            let y = match &self.stored {
                Some(stored) => stored.rows(g, ids),
                None => g.embedding(ids, self.weight),
            };
            g.named(y, &self.name)
        })
    }

    /// Multiplies `x [..., m, dim]` by every vector, `-> [..., m, rows]`: the logits of a model
    /// with tied embeddings.
    #[track_caller]
    pub fn scores(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        let x = x.into();
        g.within(self.description(), |g| match &self.stored {
            Some(stored) => stored.product(g, x),
            None => g.matmul_bt(x, self.weight),
        })
    }

    fn description(&self) -> String {
        let [rows, dim] = self.sizes;
        format!("embedding '{}' ({rows} rows of {dim} features)", self.name)
    }
}
