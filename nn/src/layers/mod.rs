//! Layers: parameters with names and initial values, and the graph nodes that use them.
//!
//! Building a layer registers its parameters on a graph; `forward` adds its computation and names the
//! nodes after the layer, so that the name shows in errors and profiles. A layer may be applied several
//! times, which shares its weights, but only on the graph that it was built on.
//!
//! ```
//! use meganeura_core::Graph;
//! use meganeura_nn::layers::{Activation, Linear};
//!
//! let mut g = Graph::new();
//! let x = g.input("x", &[32, 64]);
//! let hidden = Linear::new(&mut g, "fc1", 64, 128).forward(&mut g, x);
//! let hidden = Activation::Relu.forward(&mut g, hidden);
//! let logits = Linear::new(&mut g, "fc2", 128, 10).forward(&mut g, hidden);
//! assert_eq!(g.shape(logits), [32, 10]);
//! assert!(g.leaf_named("fc1.weight").is_some());
//! ```
//!
//! # Names
//!
//! A layer `fc1` has the parameters `fc1.weight` and `fc1.bias`; a batch norm `bn1` the states
//! `bn1.running_mean` and `bn1.running_var` as well. Names are unique in a graph.
//!
//! # Initial values
//!
//! Weights get the distribution that keeps the variance of activations in a ReLU network (Kaiming
//! uniform), embeddings the standard normal one, recurrent layers the uniform one within
//! `1 / sqrt(hidden)`, biases 0, the scales of norms 1. `Session::initialize_parameters` draws
//! them; until then parameters are 0.
//!
//! # Errors
//!
//! Nothing here panics. Invalid sizes or operands are errors of the graph: `Graph::verify` and `build` report them,
//! with the layer's name and sizes and the line of your program that built or applied it. A layer of your own does the
//! same with [`Graph::within`](meganeura_core::Graph::within).

mod activation;
mod batch_norm;
mod conv2d;
mod conv_norm;
mod dropout;
mod embedding;
mod encoder_block;
mod expert_linear;
mod kv_cache;
mod layer_norm;
mod linear;
mod longrope;
mod lora;
mod position_embedding;
mod query_growth;
mod recurrent;
mod rms_norm;
mod self_attention;
mod short_conv;
mod stored;

pub use activation::Activation;
pub use batch_norm::{BatchNorm, BatchNormConfig};
pub use conv_norm::ConvNorm;
pub use conv2d::{Conv2d, Conv2dConfig};
pub use dropout::Dropout;
pub use embedding::{Embedding, EmbeddingConfig};
pub use encoder_block::{EncoderBlock, EncoderBlockConfig};
pub(crate) use expert_linear::ExpertLinear;
pub use kv_cache::KvCache;
pub use layer_norm::{LayerNorm, LayerNormConfig};
pub use linear::{Linear, LinearConfig};
pub use longrope::LongRope;
pub(crate) use lora::{ADAPTER_SCALES_INPUT, LORA_PART};
pub use lora::{LORA_LAYERS, LORA_MAGNITUDE, LoraConfig, LoraTargets};
pub use position_embedding::PositionEmbedding;
pub use query_growth::QueryGrowth;
pub use recurrent::{Gru, GruStates, Lstm, LstmStates, RecurrentConfig, Rnn, RnnActivation, RnnStates};
pub use rms_norm::RmsNorm;
pub use self_attention::{PagedRows, QkNorm, SelfAttention, SelfAttentionConfig, WithKv};
pub use short_conv::{EarlierRows, ShortConv, ShortConvConfig};
pub use stored::WeightStorage;

use meganeura_core::{Graph, NodeId};

/// Returns `parent.child`, or only `child` under a parent without a name.
pub(crate) fn scoped(parent: &str, child: &str) -> String {
    if parent.is_empty() {
        child.to_owned()
    } else {
        format!("{parent}.{child}")
    }
}

/// An error of a configuration: a description with the field, and the valid values.
pub(crate) type Fault = (String, &'static str);

/// Rejects the graph if a configuration is invalid.
#[track_caller]
pub(crate) fn reject(g: &mut Graph, layer: &str, check: Result<(), Fault>) -> Option<NodeId> {
    let (message, remedy) = check.err()?;
    Some(g.report(layer, message, remedy))
}

/// Checks the number that is added to a variance or a mean square, under a root.
pub(crate) fn check_eps(eps: f32) -> Result<(), Fault> {
    if eps.is_finite() && eps >= 0.0 {
        Ok(())
    } else {
        Err((format!("eps is {eps}"), "eps is finite and at least 0, usually 1e-5"))
    }
}

/// Checks that none of these sizes is 0.
pub(crate) fn check_sizes(sizes: &[(&str, usize)]) -> Result<(), Fault> {
    match sizes.iter().find(|(_, size)| *size == 0) {
        Some((field, _)) => Err((format!("{field} is 0"), "every size is at least 1")),
        None => Ok(()),
    }
}

/// Checks the base of a rotary embedding.
pub(crate) fn check_theta(theta: f32) -> Result<(), Fault> {
    if theta.is_finite() && theta > 0.0 {
        Ok(())
    } else {
        Err((
            format!("the base of the rotary embedding (rope_theta) is {theta}"),
            "it is finite and above 0, usually 10000",
        ))
    }
}

/// Checks the heads of an attention; `head_dim` is `None` for an equal part of `dim`.
pub(crate) fn check_heads(
    [dim, heads, kv_heads]: [usize; 3],
    head_dim: Option<usize>,
    rotated: bool,
) -> Result<(), Fault> {
    check_sizes(&[("dim", dim), ("heads", heads), ("kv_heads", kv_heads)])?;
    if !heads.is_multiple_of(kv_heads) {
        return Err((
            format!("kv_heads is {kv_heads}, which does not divide heads = {heads}"),
            "every key-value head serves the same number of query heads: choose a divisor of heads",
        ));
    }
    if head_dim.is_none() && !dim.is_multiple_of(heads) {
        return Err((
            format!("dim is {dim}, which is not a multiple of heads = {heads}"),
            "a head has dim / heads features: choose a multiple, or give head_dim",
        ));
    }
    let size = head_dim.unwrap_or(dim / heads);
    check_sizes(&[("head_dim", size)])?;
    if rotated && !size.is_multiple_of(2) {
        let message = match head_dim {
            Some(_) => format!("head_dim is {size}"),
            None => format!("dim is {dim} and heads is {heads}, so a head has {size} features"),
        };
        return Err((
            message,
            "the rotary embedding rotates pairs of features: use an even head size",
        ));
    }
    Ok(())
}

/// Checks the number of rotated features of a head.
pub(crate) fn check_rotary_dim(rotated: usize, head_dim: usize) -> Result<(), Fault> {
    if rotated > 0 && rotated <= head_dim && rotated.is_multiple_of(2) {
        Ok(())
    } else {
        Err((
            format!("rotary_dim is {rotated} of {head_dim} features of a head"),
            "the rotary embedding rotates pairs of features: use an even number from 2 to the size of a head",
        ))
    }
}

/// Rejects the graph if one of a layer's sizes is 0, because the layer would compute nothing.
/// Returns the poisoned node that replaces the layer's parameters.
#[track_caller]
fn reject_zero_sizes(g: &mut Graph, layer: &str, sizes: &[(&str, usize)]) -> Option<NodeId> {
    let (what, _) = sizes.iter().find(|(_, size)| *size == 0)?;
    Some(g.report(
        layer,
        format!("the number of {what} is 0"),
        "every size of a layer is at least 1",
    ))
}
