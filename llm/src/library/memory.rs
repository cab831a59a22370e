//! Estimates of a model's memory on a device.

use meganeura_core::graph::NodeKind;
use meganeura_core::{Graph, Result};
use meganeura_nn::layers::WeightStorage;
use meganeura_nn::models::{BertConfig, CacheType, LlamaConfig, LogitsOf, StorageMap};

/// Prefix of the names of caches among the parameters of a graph.
const CACHES: &str = "kv_cache.";

/// Default number of tokens of a sequence for estimates: for many models, a cache for the full context would exceed the
/// memory of the machine.
pub const USUAL_CONTEXT: usize = 4096;

/// The bytes that a model takes on a device for one sequence, without the intermediate values of a
/// step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// The weights.
    pub weights: u64,
    /// Keys and values of a sequence; encoders have none.
    pub cache: u64,
}

impl MemoryEstimate {
    /// Returns the sum of both.
    pub fn total(self) -> u64 {
        self.weights.saturating_add(self.cache)
    }
}

/// A network that memory can be estimated for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Network {
    /// A language model, with the storage of its weights in the file, and its context.
    Text(Box<LlamaConfig>, usize),
    Encoder(Box<BertConfig>),
}

impl Network {
    pub(super) fn memory(
        &self,
        weights: Option<WeightStorage>,
        context: Option<usize>,
        cache: CacheType,
    ) -> Result<MemoryEstimate> {
        match self {
            Network::Text(network, longest) => {
                let mut network = **network;
                network.weights = weights.map_or(network.weights, StorageMap::all);
                network.cache_type = cache;
                let rows = context.unwrap_or(USUAL_CONTEXT).clamp(1, *longest);
                of_graph(&network.decode_graph(&[], 1, rows, LogitsOf::OneRow))
            }
            Network::Encoder(network) => of_graph(&network.embedding_graph(1, 1)),
        }
    }
}

/// Returns the bytes of a graph's parameters.
fn of_graph(graph: &Graph) -> Result<MemoryEstimate> {
    graph.verify()?;
    let mut estimate = MemoryEstimate::default();
    for node in graph.nodes() {
        let (NodeKind::Parameter { .. }, Some(ty)) = (&node.kind, node.outputs.first()) else {
            continue;
        };
        let is_cache = node.name.as_ref().is_some_and(|name| name.starts_with(CACHES));
        let sum = if is_cache {
            &mut estimate.cache
        } else {
            &mut estimate.weights
        };
        *sum = sum.saturating_add(ty.bytes() as u64);
    }
    Ok(estimate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_and_caches_are_counted() {
        let network = LlamaConfig::smollm2_135m();
        let (layers, width) = (network.layers as u64, network.kv_width() as u64);
        let model = Network::Text(Box::new(network), 8192);
        let of = |weights, context| model.memory(weights, context, CacheType::F32).expect("a model");
        let usual = of(None, None);
        assert_eq!(usual.cache, 2 * 4 * layers * width * USUAL_CONTEXT as u64);
        assert_eq!(usual.weights, 4 * 134_515_008);
        let short = of(Some(WeightStorage::Q4), Some(128));
        assert_eq!(short.cache, usual.cache * 128 / USUAL_CONTEXT as u64);
        let half = model.memory(None, None, CacheType::F16).expect("a model");
        assert_eq!((half.cache, half.weights), (usual.cache / 2, usual.weights));
        // 4 bits and a scale of 16 for 32 weights, and norms as they are.
        let ratio = usual.weights as f64 / short.weights as f64;
        assert!((7.0..7.2).contains(&ratio), "{ratio}");
        assert_eq!(
            of(None, Some(100_000)).cache,
            usual.cache * 2,
            "the model has 8192 positions"
        );
    }
}
