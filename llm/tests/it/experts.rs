//! Tests of mixture-of-experts checkpoints: errors of tensors, and products of rows with only their experts.

use std::collections::BTreeMap;
use std::path::Path;

use meganeura_compiler::builder::Builder;
use meganeura_core::ops::graph_flops;
use meganeura_core::random::SplitMix64;
use meganeura_core::{Adam, Result};
use meganeura_llm::{Checkpoint, ModelConfig, WeightStorage};
use meganeura_nn::layers::{LoraConfig, LoraTargets};
use meganeura_nn::models::{LlamaConfig, LogitsOf, MoeConfig, Routing, TARGETS, TOKENS, language_model};
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};

use crate::transformers::{device, expected, folder, ids};

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// Returns the error of a checkpoint whose tensors were changed.
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
    // Without the last one, there is no gap.
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
    assert!(twice.contains("both as a whole and per expert"), "{twice}");
    let none = said("qwen2_moe", |all| {
        all.retain(|name, _| !name.contains(".layers.1.mlp.experts."))
    });
    assert!(
        none.contains("missing: model.layers.1.mlp.experts.down_proj.weight"),
        "{none}"
    );
    // Mixtral has separate tensor names.
    let mixtral = said("mixtral", |all| {
        all.remove("model.layers.0.block_sparse_moe.experts.1.w2.weight");
    });
    assert!(
        mixtral.contains("model.layers.0.mlp.experts.1.down_proj.weight"),
        "{mixtral}"
    );
}

/// With four times the number of experts, only the router needs more operations.
#[test]
fn experts_that_no_row_has_are_not_computed() {
    let flops = |experts: usize, experts_per_token: usize| {
        let moe = MoeConfig {
            experts,
            experts_per_token,
            hidden: 64,
            normalize: true,
            routing: Routing::Softmax,
            shared_hidden: None,
            biases: false,
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

/// Gradients pass through frozen experts in few bits to adapters before them.
#[test]
fn adapters_beside_packed_experts_are_trained() {
    for (model, weights) in [("qwen2_moe", WeightStorage::Q8), ("mixtral", WeightStorage::Q4)] {
        let prompt = ids(&expected(model)["prompt_ids"]);
        let config = ModelConfig::open(&folder(model)).expect("a configuration");
        let lora = LoraConfig {
            targets: LoraTargets::ALL,
            ..LoraConfig::new(2)
        };
        let network = LlamaConfig {
            lora: Some(lora),
            weights: weights.into(),
            ..config.network
        };
        let rows = prompt.len() - 1;
        let graph = language_model(1, rows, |g, tokens| network.build(g, "").forward(g, tokens));
        let (mut session, _) = Builder::on(device()).build(&graph).expect("a session");
        let checkpoint = Checkpoint::open(&folder(model)).expect("weights");
        checkpoint.load_into(&mut session).expect("they fit");
        let mut rng = SplitMix64::new(3);
        for view in session.plan().parameters() {
            if view.name.contains(".lora_A") {
                let values: Vec<f32> = (0..view.ty.numel()).map(|_| rng.unit() as f32 - 0.5).collect();
                session.set_parameter(&view.name, &values);
            }
        }
        // Modules of the attention, and of the shared expert, if there is one.
        let modules = 4 + network.moe.and_then(|moe| moe.shared_hidden).map_or(0, |_| 3);
        assert_eq!(
            session.plan().gradients().len(),
            2 * modules * network.layers,
            "{model}"
        );
        session.set_optimizer(Adam::adamw(1e-2, 0.0));
        session.set_input_u32(TOKENS, &prompt[..rows]);
        session.set_input_u32(TARGETS, &prompt[1..]);
        let mut losses = Vec::new();
        for _ in 0..8 {
            session.step();
            losses.push(session.read_loss());
        }
        assert!(losses[7] < 0.9 * losses[0], "{model}: {losses:?}");
    }
}
