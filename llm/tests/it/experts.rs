//! Mixtures of experts in checkpoints: what is missing or does not fit, and that rows are multiplied by their experts alone.

use std::collections::BTreeMap;
use std::path::Path;

use meganeura_core::Result;
use meganeura_core::ops::graph_flops;
use meganeura_llm::{Checkpoint, ModelConfig};
use meganeura_nn::models::{LlamaConfig, LogitsOf, MoeConfig};
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};

use crate::transformers::folder;

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// What is said of a checkpoint whose tensors were changed.
fn said(model: &str, change: impl FnOnce(&mut Tensors)) -> String {
    let bytes = std::fs::read(folder(model).join("model.safetensors")).expect("a fixture");
    let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
    let mut all: Tensors = tensors
        .tensors()
        .into_iter()
        .map(|(name, view)| (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec())))
        .collect();
    change(&mut all);
    let views = all.iter().map(|(name, (dtype, shape, data))| {
        let view = TensorView::new(*dtype, shape.clone(), data).expect("a tensor");
        (name, view)
    });
    let changed = tempfile::tempdir().expect("a folder");
    let stored = serialize(views, None).expect("serialized");
    std::fs::write(changed.path().join("model.safetensors"), stored).expect("written");
    let opened = |path: &Path| -> Result<()> {
        let config = ModelConfig::open(&folder(model))?;
        Checkpoint::open(path)?.check_model(&config.network)
    };
    opened(changed.path()).map_or_else(|e| e.to_string(), |()| "nothing".into())
}

fn expert(number: usize) -> String {
    format!("model.layers.1.mlp.experts.{number}.up_proj.weight")
}

#[test]
fn experts_that_are_missing_or_do_not_fit() {
    assert_eq!(said("qwen2_moe", |_| {}), "nothing");
    let missing = said("qwen2_moe", |all| {
        all.remove(&expert(2));
    });
    assert!(missing.contains(&format!("no file has '{}'", expert(2))), "{missing}");
    // The last one leaves no gap.
    let fewer = said("qwen2_moe", |all| {
        all.remove(&expert(4));
    });
    assert!(
        fewer.contains("experts.up_proj.weight (4 experts, not 5 of [24, 32])"),
        "{fewer}"
    );
    let more = said("qwen2_moe", |all| {
        let last = all[&expert(4)].clone();
        all.insert(expert(5), last);
    });
    assert!(more.contains("(6 experts, not 5 of [24, 32])"), "{more}");
    let shape = said("qwen2_moe", |all| {
        if let Some((_, shape, _)) = all.get_mut(&expert(3)) {
            *shape = vec![32, 24];
        }
    });
    assert!(
        shape.contains(&format!("{} ([32, 24], not [24, 32])", expert(3))),
        "{shape}"
    );
    let twice = said("qwen2_moe", |all| {
        let whole = (Dtype::BF16, vec![5, 24, 32], vec![0; 2 * 5 * 24 * 32]);
        all.insert("model.layers.1.mlp.experts.up_proj.weight".into(), whole);
    });
    assert!(twice.contains("as a whole and by expert"), "{twice}");
    let none = said("qwen2_moe", |all| {
        all.retain(|name, _| !name.contains(".layers.1.mlp.experts."))
    });
    assert!(
        none.contains("missing: model.layers.1.mlp.experts.down_proj.weight"),
        "{none}"
    );
    // Names of Mixtral are its own.
    let mixtral = said("mixtral", |all| {
        all.remove("model.layers.0.block_sparse_moe.experts.1.w2.weight");
    });
    assert!(
        mixtral.contains("model.layers.0.mlp.experts.1.down_proj.weight"),
        "{mixtral}"
    );
}

/// Four times as many experts cost no more than their router does.
#[test]
fn experts_that_no_row_has_are_not_computed() {
    let flops = |experts: usize, experts_per_token: usize| {
        let moe = MoeConfig {
            experts,
            experts_per_token,
            hidden: 64,
            normalize: true,
            shared_hidden: None,
            dense_layers: [0].into_iter().collect(),
        };
        let config = LlamaConfig {
            moe: Some(moe),
            layers: 3,
            ..LlamaConfig::small(32)
        };
        graph_flops(&config.decode_graph(&[], 4, 16, LogitsOf::OneRow))
    };
    let (few, many, more) = (flops(8, 2), flops(32, 2), flops(8, 4));
    let matrices = 3 * 2 * 4 * 128 * 64 * 2;
    assert!(many - few < matrices / 2, "{few} {many}");
    assert!(more - few >= 2 * matrices, "{few} {more}");
}
