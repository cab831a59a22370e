//! Residual networks for images.

use meganeura_core::graph::Value;
use meganeura_core::ops::Pool2dOptions;
use meganeura_core::{Error, Graph, Init, NodeId, Session};

use crate::layers::{Conv2dConfig, ConvNorm, Linear, LinearConfig, scoped};

/// Form of the residual blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    /// Two 3x3 convolutions.
    Basic,
    /// 1x1, 3x3 and 1x1 convolutions, the last one to four times the channels.
    Bottleneck,
}

impl Block {
    /// Returns the number of output channels of a block as a multiple of its width.
    fn expansion(self) -> usize {
        match self {
            Block::Basic => 1,
            Block::Bottleneck => 4,
        }
    }
}

/// Options of a [`ResNet`].
#[derive(Clone, Debug, PartialEq)]
pub struct ResNetConfig {
    block: Block,
    depths: [usize; 4],
    width: usize,
    channels: usize,
    classes: usize,
    small_images: bool,
    folded: bool,
}

impl ResNetConfig {
    /// Returns ResNet-18 for images of 3 channels: 11.7 million parameters with 1000 classes.
    pub fn resnet18(classes: usize) -> Self {
        ResNetConfig {
            block: Block::Basic,
            depths: [2, 2, 2, 2],
            width: 64,
            channels: 3,
            classes,
            small_images: false,
            folded: false,
        }
    }

    /// Returns ResNet-50 for images of 3 channels: 25.6 million parameters with 1000 classes. The
    /// stride is in the 3x3 convolution of a block, as in torchvision (version 1.5 of the
    /// architecture).
    pub fn resnet50(classes: usize) -> Self {
        ResNetConfig {
            block: Block::Bottleneck,
            depths: [3, 4, 6, 3],
            ..ResNetConfig::resnet18(classes)
        }
    }

    /// Sets the number of channels of the images.
    #[must_use]
    pub fn channels(mut self, channels: usize) -> Self {
        self.channels = channels;
        self
    }

    /// Sets the number of channels of the first stage, 64 in the published networks; each later stage has twice the
    /// previous number.
    #[must_use]
    pub fn width(mut self, width: usize) -> Self {
        self.width = width;
        self
    }

    /// Sets the number of blocks of each of the four stages.
    #[must_use]
    pub fn depths(mut self, depths: [usize; 4]) -> Self {
        self.depths = depths;
        self
    }

    /// Starts with a 3x3 convolution of stride 1 instead of a 7x7 one of stride 2 and a max pooling: for images of
    /// 32x32 or so.
    #[must_use]
    pub fn small_images(mut self, small: bool) -> Self {
        self.small_images = small;
        self
    }

    /// Uses biases in the convolutions instead of batch norms; [`ResNet::folded_parameters`]
    /// computes their values from a trained network. For inference only: such a network does not
    /// train well.
    #[must_use]
    pub fn folded(mut self, folded: bool) -> Self {
        self.folded = folded;
        self
    }

    /// Registers the layers under torchvision's names: `{name}.conv1`, `bn1`, `layer1.0.conv1` ...,
    /// `layer2.0.downsample.0` and `.1`, `fc`.
    #[track_caller]
    pub fn build(&self, g: &mut Graph, name: &str) -> ResNet {
        g.at_caller(|g| {
            let stem = if self.small_images {
                Conv2dConfig::new(self.channels, self.width, [3, 3]).padding([1, 1])
            } else {
                Conv2dConfig::new(self.channels, self.width, [7, 7])
                    .stride([2, 2])
                    .padding([3, 3])
            };
            let names = [scoped(name, "conv1"), scoped(name, "bn1")];
            let stem = ConvNorm::new(g, [&names[0], &names[1]], stem, self.width, self.folded);
            let mut blocks = Vec::new();
            let mut inputs = self.width;
            for (stage, &depth) in self.depths.iter().enumerate() {
                // A size that overflows is refused as a shape.
                let width = self.width.saturating_mul(1 << stage);
                for i in 0..depth {
                    let stride = if stage > 0 && i == 0 { 2 } else { 1 };
                    let name = scoped(name, &format!("layer{}.{i}", stage + 1));
                    blocks.push(self.residual(g, &name, [inputs, width], stride));
                    inputs = width.saturating_mul(self.block.expansion());
                }
            }
            let fc = LinearConfig::new(inputs, self.classes).init(Init::xavier_uniform(inputs, self.classes));
            ResNet {
                stem,
                pool: !self.small_images,
                blocks,
                fc: fc.build(g, &scoped(name, "fc")),
            }
        })
    }

    #[track_caller]
    fn residual(&self, g: &mut Graph, name: &str, [inputs, width]: [usize; 2], stride: u32) -> Residual {
        let outputs = width.saturating_mul(self.block.expansion());
        let conv = |inputs, outputs, kernel: usize, stride: u32| {
            let padding = (kernel / 2) as u32;
            Conv2dConfig::new(inputs, outputs, [kernel; 2])
                .stride([stride; 2])
                .padding([padding; 2])
        };
        let path = match self.block {
            Block::Basic => vec![
                (conv(inputs, width, 3, stride), width),
                (conv(width, outputs, 3, 1), outputs),
            ],
            Block::Bottleneck => vec![
                (conv(inputs, width, 1, 1), width),
                (conv(width, width, 3, stride), width),
                (conv(width, outputs, 1, 1), outputs),
            ],
        };
        let mut layers = Vec::new();
        for (i, (conv, outputs)) in path.into_iter().enumerate() {
            let names = ["conv", "bn"].map(|layer| scoped(name, &format!("{layer}{}", i + 1)));
            layers.push(ConvNorm::new(g, [&names[0], &names[1]], conv, outputs, self.folded));
        }
        // If the shape changes, a projection replaces the identity.
        let shortcut = (stride != 1 || inputs != outputs).then(|| {
            let names = ["downsample.0", "downsample.1"].map(|layer| scoped(name, layer));
            let projection = conv(inputs, outputs, 1, stride);
            ConvNorm::new(g, [&names[0], &names[1]], projection, outputs, self.folded)
        });
        Residual { layers, shortcut }
    }
}

#[derive(Clone, Debug)]
struct Residual {
    layers: Vec<ConvNorm>,
    shortcut: Option<ConvNorm>,
}

impl Residual {
    #[track_caller]
    fn forward(&self, g: &mut Graph, x: Value) -> NodeId {
        let mut y = x;
        for (i, layer) in self.layers.iter().enumerate() {
            y = layer.forward(g, y).into();
            if i + 1 < self.layers.len() {
                y = g.relu(y).into();
            }
        }
        let shortcut = match &self.shortcut {
            Some(projection) => projection.forward(g, x).into(),
            None => x,
        };
        let sum = g.add(y, shortcut);
        g.relu(sum)
    }
}

/// A residual network (He et al., "Deep residual learning for image recognition", 2016).
#[derive(Clone, Debug)]
pub struct ResNet {
    stem: ConvNorm,
    pool: bool,
    blocks: Vec<Residual>,
    fc: Linear,
}

impl ResNet {
    /// Computes logits: `x [batch, channels, height, width] -> [batch, classes]`. Height and width
    /// are halved five times, or three times for small images; the published networks take 224x224.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        let y = self.stem.forward(g, x);
        let mut y = g.relu(y);
        if self.pool {
            y = g.max_pool2d(
                y,
                Pool2dOptions {
                    kernel: [3, 3],
                    stride: [2, 2],
                    padding: [1, 1],
                },
            );
        }
        for block in &self.blocks {
            y = block.forward(g, y.into());
        }
        let y = g.global_avg_pool(y);
        self.fc.forward(g, y)
    }

    /// Computes the parameters of the [folded](ResNetConfig::folded) form of this network, by name, from a session that
    /// contains the trained network.
    ///
    /// # Errors
    /// A session without the parameters and running statistics of this network.
    pub fn folded_parameters(&self, trained: &mut Session) -> Result<Vec<(String, Vec<f32>)>, Error> {
        let mut parameters = Vec::new();
        let blocks = self.blocks.iter().flat_map(|b| b.layers.iter().chain(&b.shortcut));
        for layer in std::iter::once(&self.stem).chain(blocks) {
            parameters.extend(layer.folded(trained)?);
        }
        for child in ["weight", "bias"] {
            let name = scoped(self.fc.name(), child);
            let values = trained.try_read_parameter(&name)?;
            parameters.push((name, values));
        }
        Ok(parameters)
    }
}
