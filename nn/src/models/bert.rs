//! Encoders of the BERT family, whose results are embeddings of texts.

use meganeura_core::ops::AttentionOptions;
use meganeura_core::{Error, Graph, Init, NodeId};

use super::TOKENS;
use crate::layers::{
    Activation, Embedding, EmbeddingConfig, Fault, LayerNorm, LayerNormConfig, Linear, LinearConfig, check_eps,
    check_heads, check_sizes, reject, scoped,
};

/// Name of the input of [`BertConfig::embedding_graph`] that marks tokens and padding,
/// `u32 [texts, rows]`.
pub const ATTENTION_MASK: &str = "attention_mask";
/// Name of the input of [`BertConfig::embedding_graph`] with the weights of the rows in the sum, `f32 [texts, rows]`.
pub const POOLING_WEIGHTS: &str = "pooling_weights";

/// Options of a [`Bert`] encoder (Devlin et al., 2018), including RoBERTa (Liu et al., 2019) and
/// DistilBERT (Sanh et al., 2019).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BertConfig {
    /// Number of tokens in the vocabulary.
    pub vocab: usize,
    /// Number of rows of the table of positions.
    pub positions: usize,
    /// Row of a text's first token in the table of positions: 0, or for RoBERTa one more than the
    /// padding token.
    pub first_position: usize,
    /// Number of rows of the table of token types, whose first row is added to every token; 0 for no table
    /// (DistilBERT).
    pub token_types: usize,
    /// Number of features of a token.
    pub dim: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Number of heads, a divisor of `dim`.
    pub heads: usize,
    /// Number of features inside the feed-forward layers.
    pub hidden: usize,
    /// Non-linearity between the feed-forward layers.
    pub activation: Activation,
    /// Number added to the variances in the norms.
    pub eps: f32,
}

impl BertConfig {
    /// Returns BERT-base: 12 blocks of 768 features with 12 heads, 512 positions.
    pub fn base(vocab: usize) -> Self {
        BertConfig {
            vocab,
            positions: 512,
            first_position: 0,
            token_types: 2,
            dim: 768,
            layers: 12,
            heads: 12,
            hidden: 3072,
            activation: Activation::Gelu,
            eps: 1e-12,
        }
    }

    /// Returns the maximum number of tokens of a text.
    pub fn context(&self) -> usize {
        self.positions.saturating_sub(self.first_position)
    }

    /// Checks the same as [`build`](BertConfig::build).
    ///
    /// # Errors
    /// [`Error::InvalidUse`] with the invalid field, its value and the valid ones.
    pub fn check(&self) -> Result<(), Error> {
        self.find_fault()
            .map_err(|(message, remedy)| Error::misuse(format!("BertConfig: {message}"), remedy))
    }

    fn find_fault(&self) -> Result<(), Fault> {
        check_sizes(&[("vocab", self.vocab), ("hidden", self.hidden)])?;
        check_heads([self.dim, self.heads, self.heads], None, false)?;
        check_eps(self.eps)?;
        if self.first_position < self.positions {
            Ok(())
        } else {
            Err((
                format!(
                    "first_position is {} of {} positions",
                    self.first_position, self.positions
                ),
                "a text has one position at least",
            ))
        }
    }

    /// Registers the parameters by the names in Hugging Face's checkpoints:
    /// `embeddings.word_embeddings [vocab, dim]`,
    /// `embeddings.position_embeddings [positions, dim]`, `embeddings.token_type_embeddings`,
    /// `embeddings.LayerNorm`, and of each block `encoder.layer.I.attention.self.query`, `key`,
    /// `value`, `attention.output.dense`, `attention.output.LayerNorm`, `intermediate.dense`,
    /// `output.dense` and `output.LayerNorm`. All names are prefixed by `name`, if that is not
    /// empty.
    #[track_caller]
    pub fn build(self, g: &mut Graph, name: &str) -> Bert {
        reject(g, &format!("bert '{name}'"), self.find_fault());
        g.at_caller(|g| {
            let embeddings = scoped(name, "embeddings");
            let table =
                |g: &mut Graph, child, rows| EmbeddingConfig::new(rows, self.dim).build(g, &scoped(&embeddings, child));
            Bert {
                words: table(g, "word_embeddings", self.vocab),
                positions: table(g, "position_embeddings", self.positions),
                types: (self.token_types > 0).then(|| table(g, "token_type_embeddings", self.token_types)),
                norm: self.norm(g, &scoped(&embeddings, "LayerNorm")),
                blocks: (0..self.layers)
                    .map(|layer| self.block(g, &scoped(name, &format!("encoder.layer.{layer}"))))
                    .collect(),
                config: self,
            }
        })
    }

    fn norm(&self, g: &mut Graph, name: &str) -> LayerNorm {
        LayerNormConfig::new(self.dim).eps(self.eps).build(g, name)
    }

    fn block(&self, g: &mut Graph, name: &str) -> Block {
        let linear = |g: &mut Graph, child: &str, [inputs, outputs]: [usize; 2]| {
            LinearConfig::new(inputs, outputs)
                .init(Init::xavier_uniform(inputs, outputs))
                .build(g, &scoped(name, child))
        };
        let square = [self.dim, self.dim];
        Block {
            heads: ["query", "key", "value"].map(|which| linear(g, &format!("attention.self.{which}"), square)),
            attended: linear(g, "attention.output.dense", square),
            norm1: self.norm(g, &scoped(name, "attention.output.LayerNorm")),
            inner: linear(g, "intermediate.dense", [self.dim, self.hidden]),
            outer: linear(g, "output.dense", [self.hidden, self.dim]),
            norm2: self.norm(g, &scoped(name, "output.LayerNorm")),
        }
    }

    /// Returns a graph for embeddings of texts. Its inputs are [`TOKENS`] `u32 [texts, rows]`, [`ATTENTION_MASK`]
    /// `u32 [texts, rows]` (1 for tokens and 0 for padding), and [`POOLING_WEIGHTS`] `f32 [texts, rows]`. Its
    /// output `f32 [texts, dim]` is the sum of the rows of the last block times the weights. With weights of one over
    /// the number of tokens, it is the mean of the rows; with a weight of 1 followed by zeros, it is the first row.
    #[track_caller]
    pub fn embedding_graph(&self, texts: usize, rows: usize) -> Graph {
        let mut g = Graph::new();
        let model = self.build(&mut g, "");
        let tokens = g.input_u32(TOKENS, &[texts, rows]);
        let mask = g.input_u32(ATTENTION_MASK, &[texts, rows]);
        let weights = g.input(POOLING_WEIGHTS, &[texts, rows]);
        let x = model.forward(&mut g, tokens, mask);
        let weights = g.reshape(weights, &[texts, 1, rows]);
        let pooled = g.matmul(weights, x);
        let pooled = g.reshape(pooled, &[texts, self.dim]);
        g.named(pooled, "embeddings");
        g.set_outputs(vec![pooled]);
        g
    }
}

#[derive(Clone, Debug)]
struct Block {
    /// Projections to queries, keys and values.
    heads: [Linear; 3],
    attended: Linear,
    norm1: LayerNorm,
    inner: Linear,
    outer: Linear,
    norm2: LayerNorm,
}

/// A transformer encoder with learned positions and norms after the additions.
#[derive(Clone, Debug)]
pub struct Bert {
    config: BertConfig,
    words: Embedding,
    positions: Embedding,
    types: Option<Embedding>,
    norm: LayerNorm,
    blocks: Vec<Block>,
}

impl Bert {
    /// Returns the last block's rows `f32 [texts, rows, dim]` for `tokens`, `u32 [texts, rows]`, of the first token
    /// type. `mask`, `u32 [texts, rows]`, is not 0 for tokens and 0 for padding. The results of padding rows are
    /// meaningless, and no other row sees them. More rows than positions are rejected.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, tokens: NodeId, mask: NodeId) -> NodeId {
        let config = self.config;
        g.at_caller(|g| {
            let rows = g.shape(tokens).last().copied().unwrap_or_default();
            let positions = g.slice(
                self.positions.weight,
                &[config.first_position, 0],
                &[config.first_position + rows, config.dim],
            );
            let x = self.words.forward(g, tokens);
            let mut x = g.add(x, positions);
            if let Some(types) = &self.types {
                let first = g.slice(types.weight, &[0, 0], &[1, config.dim]);
                x = g.add(x, first);
            }
            let mut x = self.norm.forward(g, x);
            let seen = g.key_padding_mask(mask);
            let narrow = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
            let heads = narrow(config.heads);
            let options = AttentionOptions::new(heads, heads, narrow(config.dim / config.heads.max(1)));
            for block in &self.blocks {
                let [q, k, v] = [0, 1, 2].map(|i| block.heads[i].forward(g, x));
                let y = g.masked_attention(q, k, v, seen, options);
                let y = block.attended.forward(g, y);
                let y = g.add(x, y);
                x = block.norm1.forward(g, y);
                let y = block.inner.forward(g, x);
                let y = config.activation.forward(g, y);
                let y = block.outer.forward(g, y);
                let y = g.add(x, y);
                x = block.norm2.forward(g, y);
            }
            x
        })
    }
}
