//! Storage types of a model's matrices.

use std::fmt;

use super::LayerSet;
use crate::layers::{LORA_LAYERS, WeightStorage};

/// Matrices of a layer, by the ends of their names. Matrices of experts have the storage of the
/// corresponding dense matrix.
const MATRICES: [&str; LORA_LAYERS.len() + OTHERS.len()] = {
    let mut all = [""; LORA_LAYERS.len() + OTHERS.len()];
    let (dense, others) = all.split_at_mut(LORA_LAYERS.len());
    dense.copy_from_slice(&LORA_LAYERS);
    others.copy_from_slice(&OTHERS);
    all
};

/// Matrices of the shared expert, with a gate of its own and without one, and of short convolutions.
const OTHERS: [&str; 8] = [
    "shared_expert.gate_proj",
    "shared_expert.up_proj",
    "shared_expert.down_proj",
    "shared_experts.gate_proj",
    "shared_experts.up_proj",
    "shared_experts.down_proj",
    "conv.in_proj",
    "conv.out_proj",
];

/// The storage type of each matrix of a [`LlamaConfig`](super::LlamaConfig): one for all, or mixed
/// ones as in some files. Norms and biases are always `f32`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StorageMap {
    /// Storage of all other matrices: those of layers from [`LayerSet::LAYERS`] on.
    usual: WeightStorage,
    embedding: WeightStorage,
    head: WeightStorage,
    layers: [[WeightStorage; MATRICES.len()]; LayerSet::LAYERS],
}

/// A matrix of a model.
enum MatrixName {
    Embedding,
    Head,
    Layer(usize, usize),
}

/// Returns the matrix whose weights have this name: `model.embed_tokens.weight`, `lm_head.weight`,
/// `model.layers.0.mlp.up_proj.weight`.
fn place(name: &str) -> Option<MatrixName> {
    let (module, _) = name.rsplit_once(".weight")?;
    let mut parts = module.split('.');
    let last = module.rsplit('.').next()?;
    match last {
        "embed_tokens" => Some(MatrixName::Embedding),
        "lm_head" => Some(MatrixName::Head),
        _ => {
            parts.find(|part| *part == "layers")?;
            let layer = parts.next()?.parse().ok()?;
            let other = OTHERS.iter().find(|end| module.ends_with(*end));
            Some(MatrixName::Layer(layer, matrix(other.unwrap_or(&last))?))
        }
    }
}

fn matrix(module: &str) -> Option<usize> {
    MATRICES.iter().position(|name| *name == module)
}

impl StorageMap {
    /// Creates a map with the same storage type for all matrices.
    pub const fn all(storage: WeightStorage) -> Self {
        StorageMap {
            usual: storage,
            embedding: storage,
            head: storage,
            layers: [[storage; MATRICES.len()]; LayerSet::LAYERS],
        }
    }

    /// Sets the storage type of the matrix whose parameter has this name (`model.layers.0.mlp.up_proj.weight`). Names
    /// of other parameters, and layers from [`LayerSet::LAYERS`] on, are ignored.
    pub fn set(&mut self, parameter: &str, storage: WeightStorage) {
        match place(parameter) {
            Some(MatrixName::Embedding) => self.embedding = storage,
            Some(MatrixName::Head) => self.head = storage,
            Some(MatrixName::Layer(layer, matrix)) => {
                if let Some(layer) = self.layers.get_mut(layer) {
                    layer[matrix] = storage;
                }
            }
            None => {}
        }
    }

    /// Returns the storage type of the matrix whose parameter has this name; `None` if the model has no such matrix.
    pub fn of(&self, parameter: &str) -> Option<WeightStorage> {
        Some(match place(parameter)? {
            MatrixName::Embedding => self.embedding,
            MatrixName::Head => self.head,
            MatrixName::Layer(layer, matrix) => self.layers.get(layer).map_or(self.usual, |layer| layer[matrix]),
        })
    }

    pub(super) fn embedding(&self) -> WeightStorage {
        self.embedding
    }

    pub(super) fn head(&self) -> WeightStorage {
        self.head
    }

    /// Returns the storage of a module of a layer, such as `q_proj`.
    pub(super) fn of_layer(&self, layer: usize, module: &str) -> WeightStorage {
        let layer = self.layers.get(layer).zip(matrix(module));
        layer.map_or(self.usual, |(layer, matrix)| layer[matrix])
    }

    /// Returns a lower-case name for plan files: the name of the storage type if all matrices have the same one, else
    /// `mixed-` and a hash of all types.
    pub fn name(&self) -> String {
        if *self == StorageMap::all(self.usual) {
            return self.usual.name().to_owned();
        }
        let layers = self.layers.iter().flatten();
        let all = [&self.usual, &self.embedding, &self.head].into_iter().chain(layers);
        // FNV-1a: a name has to be the same in every build.
        let hash = all.fold(0xcbf2_9ce4_8422_2325_u64, |hash, storage| {
            let bytes = storage.name().bytes().chain([b' ']);
            bytes.fold(hash, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            })
        });
        format!("mixed-{hash:016x}")
    }
}

impl Default for StorageMap {
    fn default() -> Self {
        StorageMap::all(WeightStorage::F32)
    }
}

impl From<WeightStorage> for StorageMap {
    fn from(storage: WeightStorage) -> Self {
        StorageMap::all(storage)
    }
}

impl fmt::Debug for StorageMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_are_told_apart_by_name() {
        let mut map = StorageMap::all(WeightStorage::Q4_1);
        assert_eq!(map.name(), "q4_1");
        let uniform = map;
        map.set("model.layers.3.mlp.down_proj.weight", WeightStorage::Q6);
        map.set("model.embed_tokens.weight", WeightStorage::Q8);
        map.set("model.layers.3.input_layernorm.weight", WeightStorage::F16);
        map.set("model.layers.3.self_attn.q_proj.bias", WeightStorage::F16);
        map.set("model.layers.500.self_attn.q_proj.weight", WeightStorage::F16);
        assert_eq!(map.of_layer(3, "down_proj"), WeightStorage::Q6);
        assert_eq!(map.of_layer(2, "down_proj"), WeightStorage::Q4_1);
        assert_eq!(map.of_layer(500, "q_proj"), WeightStorage::Q4_1);
        assert_eq!(map.of("model.layers.3.mlp.down_proj.weight"), Some(WeightStorage::Q6));
        assert_eq!(map.of("model.norm.weight"), None);
        assert_eq!([map.embedding(), map.head()], [WeightStorage::Q8, WeightStorage::Q4_1]);
        assert!(map.name().starts_with("mixed-") && map != uniform);
        map.set("model.layers.3.mlp.down_proj.weight", WeightStorage::Q4_1);
        map.set("model.embed_tokens.weight", WeightStorage::Q4_1);
        assert_eq!(map, uniform);
        map.set("model.layers.1.mlp.experts.up_proj.weight", WeightStorage::Q5_0);
        map.set("model.layers.1.mlp.shared_expert.up_proj.weight", WeightStorage::Q8);
        map.set("model.layers.1.mlp.gate.weight", WeightStorage::F16);
        assert_eq!(map.of_layer(1, "up_proj"), WeightStorage::Q5_0);
        assert_eq!(map.of_layer(1, "shared_expert.up_proj"), WeightStorage::Q8);
        assert_eq!(map.of_layer(1, "shared_expert.down_proj"), WeightStorage::Q4_1);
        assert_eq!(map.of("model.layers.1.mlp.shared_expert_gate.weight"), None);
    }
}
