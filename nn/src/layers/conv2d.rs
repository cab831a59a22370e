//! Two-dimensional convolution layer.

use meganeura_core::graph::Value;
use meganeura_core::ops::Conv2dOptions;
use meganeura_core::{Graph, Init, NodeId};

use super::{reject_zero_sizes, scoped};

/// Options of a [`Conv2d`] layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conv2dConfig {
    inputs: usize,
    outputs: usize,
    kernel: [usize; 2],
    geometry: Conv2dOptions,
    bias: bool,
    init: Option<Init>,
}

impl Conv2dConfig {
    /// Creates options for `inputs` to `outputs` channels with a kernel of this height and width:
    /// stride 1, no padding, a bias, Kaiming uniform weights.
    pub fn new(inputs: usize, outputs: usize, kernel: [usize; 2]) -> Self {
        Conv2dConfig {
            inputs,
            outputs,
            kernel,
            geometry: Conv2dOptions::default(),
            bias: true,
            init: None,
        }
    }

    /// Sets the distance between windows, along height and width.
    #[must_use]
    pub fn stride(mut self, stride: [u32; 2]) -> Self {
        self.geometry.stride = stride;
        self
    }

    /// Sets the number of rows and columns of zeros added on each side, along height and width.
    #[must_use]
    pub fn padding(mut self, padding: [u32; 2]) -> Self {
        self.geometry.padding = padding;
        self
    }

    /// Sets the distance between the taps of the kernel, along height and width.
    #[must_use]
    pub fn dilation(mut self, dilation: [u32; 2]) -> Self {
        self.geometry.dilation = dilation;
        self
    }

    /// Sets the number of groups into which both channel axes are divided.
    #[must_use]
    pub fn groups(mut self, groups: u32) -> Self {
        self.geometry.groups = groups;
        self
    }

    /// Sets whether there is a bias (default: true). A bias has no effect before a batch norm.
    #[must_use]
    pub fn bias(mut self, bias: bool) -> Self {
        self.bias = bias;
        self
    }

    /// Sets the initial distribution of the weights instead of Kaiming uniform, whose fan-in is
    /// `inputs / groups * kernel height * kernel width`.
    #[must_use]
    pub fn init(mut self, init: Init) -> Self {
        self.init = Some(init);
        self
    }

    /// Registers `{name}.weight [outputs, inputs / groups, kernel height, kernel width]` and
    /// `{name}.bias [outputs]` (zeros).
    #[track_caller]
    pub fn build(self, g: &mut Graph, name: &str) -> Conv2d {
        g.at_caller(|g| {
            if let Some(poison) = self.reject(g, name) {
                return Conv2d {
                    name: name.to_owned(),
                    sizes: [self.inputs, self.outputs],
                    kernel: self.kernel,
                    weight: poison,
                    bias: None,
                    geometry: self.geometry,
                };
            }
            let [height, width] = self.kernel;
            let inputs = self.inputs / self.geometry.groups as usize;
            // Saturation only decides a distribution; `parameter_with` refuses shapes of that size.
            let fan_in = inputs.saturating_mul(height).saturating_mul(width);
            let init = self.init.unwrap_or_else(|| Init::kaiming_uniform(fan_in));
            let shape = [self.outputs, inputs, height, width];
            Conv2d {
                name: name.to_owned(),
                sizes: [self.inputs, self.outputs],
                kernel: self.kernel,
                weight: g.parameter_with(&scoped(name, "weight"), &shape, init),
                bias: self.bias.then(|| g.parameter(&scoped(name, "bias"), &[self.outputs])),
                geometry: self.geometry,
            }
        })
    }

    /// Rejects sizes that would result in an empty weight, and windows that do not move.
    #[track_caller]
    fn reject(&self, g: &mut Graph, name: &str) -> Option<NodeId> {
        let layer = format!("conv2d '{name}'");
        let groups = self.geometry.groups as usize;
        let sizes = [
            ("input channels", self.inputs),
            ("output channels", self.outputs),
            ("kernel rows", self.kernel[0]),
            ("kernel columns", self.kernel[1]),
            ("groups", groups),
        ];
        if let Some(poison) = reject_zero_sizes(g, &layer, &sizes) {
            return Some(poison);
        }
        let geometry = [("stride", self.geometry.stride), ("dilation", self.geometry.dilation)];
        if let Some((field, found)) = geometry.into_iter().find(|(_, steps)| steps.contains(&0)) {
            let message = format!("{field} is {found:?}");
            return Some(g.report(
                &layer,
                message,
                "strides and dilations are at least 1 in both directions",
            ));
        }
        if self.inputs.is_multiple_of(groups) && self.outputs.is_multiple_of(groups) {
            return None;
        }
        let (inputs, outputs) = (self.inputs, self.outputs);
        let message = format!("{groups} groups do not divide {inputs} input and {outputs} output channels");
        Some(g.report(&layer, message, "choose a number of groups that divides both"))
    }
}

/// Two-dimensional convolution (strictly, cross-correlation, as in all frameworks) with a bias per channel.
#[derive(Clone, Debug)]
pub struct Conv2d {
    name: String,
    sizes: [usize; 2],
    kernel: [usize; 2],
    /// `f32 [outputs, inputs / groups, kernel height, kernel width]`.
    pub weight: NodeId,
    /// `f32 [outputs]`.
    pub bias: Option<NodeId>,
    geometry: Conv2dOptions,
}

impl Conv2d {
    /// Creates a layer with the defaults of [`Conv2dConfig`].
    #[track_caller]
    pub fn new(g: &mut Graph, name: &str, inputs: usize, outputs: usize, kernel: [usize; 2]) -> Self {
        Conv2dConfig::new(inputs, outputs, kernel).build(g, name)
    }

    /// Applies the layer: `x [batch, inputs, height, width] -> [batch, outputs, height', width']`
    /// with `height' = (height + 2 padding - dilation (kernel - 1) - 1) / stride + 1`, rounded
    /// down.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        let (x, [inputs, outputs], [height, width]) = (x.into(), self.sizes, self.kernel);
        let name = &self.name;
        let what = format!("conv2d '{name}' ({inputs} to {outputs} channels, kernel {height}x{width})");
        g.within(what, |g| {
            let y = g.conv2d(x, self.weight, self.geometry);
            g.named(y, name);
            let Some(bias) = self.bias else {
                return y;
            };
            let y = g.channel_bias_add(y, bias);
            g.named(y, name)
        })
    }
}
