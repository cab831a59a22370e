//! Models of well-known sizes by name, for reports and measurements.

use meganeura_core::{Graph, NodeId};

use super::{
    EfficientNetConfig, LlamaConfig, MobileNetConfig, ResNetConfig, UnetConfig, VitConfig, classifier, cnn_classifier,
    mlp_classifier, segmentation,
};

/// A model of well-known size.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Name of the model.
    pub name: &'static str,
    /// Short description.
    pub about: &'static str,
    /// Default number of rows of a graph: examples, or tokens of a sequence.
    pub rows: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Of(fn(rows: usize) -> Graph),
    /// A classifier of images of [`IMAGE`].
    ImageNet(fn(&mut Graph, NodeId) -> NodeId),
    Language(fn() -> LlamaConfig),
}

impl Preset {
    /// Returns the graph that trains the model on `rows` examples (or one sequence of this number
    /// of tokens), before differentiation. No weights are made or loaded.
    #[track_caller]
    pub fn graph(&self, rows: usize) -> Graph {
        match self.kind {
            Kind::Of(build) => build(rows),
            Kind::ImageNet(logits) => classifier(rows, IMAGE, logits),
            Kind::Language(config) => config().training_graph(&[], rows),
        }
    }

    /// Returns its configuration, if it is a language model.
    pub fn language_model(&self) -> Option<LlamaConfig> {
        match self.kind {
            Kind::Of(_) | Kind::ImageNet(_) => None,
            Kind::Language(config) => Some(config()),
        }
    }
}

/// Shape of the images for networks that were trained on ImageNet: channels, height and width.
const IMAGE: &[usize] = &[3, 224, 224];

/// All presets.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "mlp",
        about: "784 -> 256 -> 128 -> 10 with ReLU and dropout, for 28x28 digits",
        rows: 32,
        kind: Kind::Of(|rows| mlp_classifier(rows, 784, 10)),
    },
    Preset {
        name: "cnn",
        about: "small convolutional network for 28x28 digits",
        rows: 32,
        kind: Kind::Of(|rows| cnn_classifier(rows, [1, 28, 28], 10)),
    },
    Preset {
        name: "resnet18",
        about: "ResNet-18 for 224x224 images in 1000 classes",
        rows: 8,
        kind: Kind::ImageNet(|g, x| ResNetConfig::resnet18(1000).build(g, "").forward(g, x)),
    },
    Preset {
        name: "resnet50",
        about: "ResNet-50 for 224x224 images in 1000 classes",
        rows: 8,
        kind: Kind::ImageNet(|g, x| ResNetConfig::resnet50(1000).build(g, "").forward(g, x)),
    },
    Preset {
        name: "mobilenet",
        about: "MobileNetV2 for 224x224 images in 1000 classes",
        rows: 8,
        kind: Kind::ImageNet(|g, x| MobileNetConfig::new(1000).build(g, "").forward(g, x)),
    },
    Preset {
        name: "efficientnet",
        about: "EfficientNet-B0 for 224x224 images in 1000 classes",
        rows: 8,
        kind: Kind::ImageNet(|g, x| EfficientNetConfig::b0(1000).build(g, "").forward(g, x)),
    },
    Preset {
        name: "vit-b16",
        about: "vision transformer ViT-B/16 for 224x224 images in 1000 classes",
        rows: 8,
        kind: Kind::ImageNet(|g, x| VitConfig::base16(1000).build(g, "").forward(g, x)),
    },
    Preset {
        name: "unet",
        about: "U-Net of 64 to 1024 channels for the pixels of 128x128 images in 21 classes",
        rows: 1,
        kind: Kind::Of(|rows| {
            let config = UnetConfig::new(3, 21).width(64).depth(4);
            segmentation(rows, [3, 128, 128], |g, x| config.build(g, "").forward(g, x))
        }),
    },
    Preset {
        name: "smollm2-135m",
        about: "language model of the Llama family: 30 blocks of 576, 49,152 tokens",
        rows: 128,
        kind: Kind::Language(LlamaConfig::smollm2_135m),
    },
    Preset {
        name: "smollm2-360m",
        about: "language model of the Llama family: 32 blocks of 960, 49,152 tokens",
        rows: 128,
        kind: Kind::Language(LlamaConfig::smollm2_360m),
    },
    Preset {
        name: "smollm2-1.7b",
        about: "language model of the Llama family: 24 blocks of 2048, 49,152 tokens",
        rows: 128,
        kind: Kind::Language(LlamaConfig::smollm2_1_7b),
    },
    Preset {
        name: "llama3.2-3b",
        about: "language model of the Llama family: 28 blocks of 3072, 128,256 tokens",
        rows: 128,
        kind: Kind::Language(LlamaConfig::llama3_2_3b),
    },
    Preset {
        name: "llama3-8b",
        about: "language model of the Llama family: 32 blocks of 4096, 128,256 tokens",
        rows: 128,
        kind: Kind::Language(LlamaConfig::llama3_8b),
    },
    Preset {
        name: "qwen3-8b",
        about: "language model of the Qwen 3 family: 36 blocks of 4096, 151,936 tokens",
        rows: 128,
        kind: Kind::Language(LlamaConfig::qwen3_8b),
    },
    Preset {
        name: "llama3-70b",
        about: "language model of the Llama family: 80 blocks of 8192, 128,256 tokens; see --layers",
        rows: 128,
        kind: Kind::Language(LlamaConfig::llama3_70b),
    },
];

/// Returns the preset of this name.
pub fn preset(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|p| p.name == name)
}
