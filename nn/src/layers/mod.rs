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
//! Weights get the distribution that keeps the variance of activations in a ReLU network (Kaiming uniform),
//! embeddings the standard normal one, biases 0, the scales of norms 1. `Session::initialize_parameters`
//! draws them; until then parameters are 0.
//!
//! # Errors
//!
//! Nothing here panics. Sizes or operands that make no sense reject the graph, and `Graph::verify` or
//! `build` tells why, with the layer's name and the line of the call.

mod activation;
mod batch_norm;
mod conv2d;
mod conv_norm;
mod dropout;
mod embedding;
mod layer_norm;
mod linear;
mod lora;
mod rms_norm;
mod self_attention;
mod stored;

pub use activation::Activation;
pub use batch_norm::{BatchNorm, BatchNormConfig};
pub use conv_norm::ConvNorm;
pub use conv2d::{Conv2d, Conv2dConfig};
pub use dropout::Dropout;
pub use embedding::{Embedding, EmbeddingConfig};
pub use layer_norm::{LayerNorm, LayerNormConfig};
pub use linear::{Linear, LinearConfig};
pub(crate) use lora::LORA_PART;
pub use lora::{LORA_LAYERS, LoraConfig, LoraTargets};
pub use rms_norm::RmsNorm;
pub use self_attention::{SelfAttention, SelfAttentionConfig, WithKv};
pub use stored::WeightStorage;

use meganeura_core::{Graph, NodeId};

/// `parent.child`, or `child` alone under a parent without a name.
pub(crate) fn scoped(parent: &str, child: &str) -> String {
    if parent.is_empty() {
        child.to_owned()
    } else {
        format!("{parent}.{child}")
    }
}

/// Rejects the graph when one of a layer's sizes is 0: it would compute nothing. Returns the poisoned node
/// that stands for the layer's parameters then.
#[track_caller]
fn reject_zero_sizes(g: &mut Graph, layer: &str, sizes: &[(&str, usize)]) -> Option<NodeId> {
    let (what, _) = sizes.iter().find(|(_, size)| *size == 0)?;
    Some(g.report(
        layer,
        format!("the number of {what} is 0"),
        "every size of a layer is at least 1",
    ))
}
