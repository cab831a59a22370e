//! Workloads of steps of whole models.

use super::adamw;
use crate::{Sizes, Suite, Workload};
use meganeura::nn::layers::WeightStorage;
use meganeura::nn::models::{
    KV_POS, LOGITS_ROW, LlamaConfig, LogitsOf, ResNetConfig, classifier, cnn_classifier, language_model, mlp_classifier,
};
use meganeura::{Graph, Mode};

/// Language model, and the number of its tokens.
#[derive(Clone, Copy)]
struct Language {
    name: &'static str,
    config: fn() -> LlamaConfig,
    vocab: u32,
}

const SMALL: Language = Language {
    name: "llama, 4 blocks of 128",
    config: || LlamaConfig::small(1000),
    vocab: 1000,
};
const SMOLLM2: Language = Language {
    name: "smollm2-135m",
    config: LlamaConfig::smollm2_135m,
    vocab: 49_152,
};

impl Language {
    /// Creates a prefill of `rows` tokens into an empty cache, with the logits of the last one.
    fn prefill(self, rows: usize, weights: WeightStorage) -> Workload {
        let config = self.stored(weights);
        let name = format!("{}, {}, reads {rows} tokens", self.name, weights.name());
        Workload::of(Suite::Models, name, Mode::Inference, move || {
            config.decode_graph(&[], rows, 2 * rows, LogitsOf::OneRow)
        })
        .with_classes(self.vocab)
        .with_fixed(KV_POS, 0)
        .with_fixed(LOGITS_ROW, rows as u32 - 1)
    }

    /// Creates a decode step after `cached` tokens.
    fn decode(self, cached: usize, weights: WeightStorage) -> Workload {
        let config = self.stored(weights);
        let name = format!("{}, {}, a token behind {cached}", self.name, weights.name());
        Workload::of(Suite::Models, name, Mode::Inference, move || {
            config.decode_graph(&[], 1, cached + 1, LogitsOf::AllRows)
        })
        .with_classes(self.vocab)
        .with_fixed(KV_POS, cached as u32)
    }

    fn training(self, sequences: usize, rows: usize) -> Workload {
        let name = format!("{}, training step of {sequences}x{rows} tokens", self.name);
        Workload::of(Suite::Models, name, Mode::Training, move || {
            let config = (self.config)();
            language_model(sequences, rows, |g, tokens| config.build(g, "").forward(g, tokens))
        })
        .with_classes(self.vocab)
        .updating(adamw())
    }

    fn stored(self, weights: WeightStorage) -> LlamaConfig {
        let mut config = (self.config)();
        config.weights = weights.into();
        config
    }
}

/// Creates inference of ResNet-50 for images, with batch norms folded into the convolutions.
fn resnet50(batch: usize) -> Workload {
    let name = format!("resnet50, {batch} images of 224x224");
    Workload::inference(Suite::Models, name, move |g| {
        let x = g.input("x", &[batch, 3, 224, 224]);
        ResNetConfig::resnet50(1000).folded(true).build(g, "").forward(g, x)
    })
    .in_both_precisions()
}

fn resnet50_training(batch: usize, side: usize) -> Workload {
    let name = format!("resnet50, training step of {batch} images of {side}x{side}");
    Workload::of(Suite::Models, name, Mode::Training, move || {
        let config = ResNetConfig::resnet50(1000);
        classifier(batch, &[3, side, side], |g, x| config.build(g, "").forward(g, x))
    })
    .with_classes(1000)
    .updating(adamw())
}

/// Creates a training workload of a classifier of ten classes.
fn classifying(name: &str, graph: impl Fn() -> Graph + 'static) -> Workload {
    Workload::of(Suite::Models, name, Mode::Training, graph)
        .with_classes(10)
        .updating(adamw())
}

pub(super) fn models(sizes: Sizes) -> Vec<Workload> {
    let mut workloads = vec![
        classifying("mlp 784-256-128-10, training step of 32", || {
            mlp_classifier(32, 784, 10)
        }),
        classifying("cnn for 8x8 images, training step of 32", || {
            cnn_classifier(32, [1, 8, 8], 10)
        }),
    ];
    let f32 = WeightStorage::F32;
    if sizes == Sizes::Small {
        workloads.extend([SMALL.prefill(32, f32), SMALL.decode(31, f32), SMALL.training(1, 32)]);
        return workloads;
    }
    workloads.extend([resnet50(1), SMALL.training(4, 128), SMOLLM2.prefill(128, f32)]);
    let storages = [f32, WeightStorage::F16, WeightStorage::Q8, WeightStorage::Q4];
    workloads.extend(storages.map(|weights| SMOLLM2.decode(127, weights)));
    workloads.push(SMOLLM2.training(1, 128));
    workloads.push(match sizes {
        Sizes::Large => resnet50_training(32, 224),
        _ => resnet50_training(2, 128),
    });
    if sizes == Sizes::Large {
        workloads.extend([
            resnet50(32),
            SMOLLM2.prefill(1024, WeightStorage::F16),
            SMOLLM2.training(4, 512),
        ]);
    }
    workloads
}
