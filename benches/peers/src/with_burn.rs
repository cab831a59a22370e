//! Workloads in burn, with its CPU backend and, if enabled, its GPU backend.

use std::collections::HashMap;

use burn::module::{Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLoss;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::activation::{gelu, relu, softmax};
use burn::tensor::module::{adaptive_avg_pool2d, conv2d, layer_norm, linear, max_pool2d};
use burn::tensor::ops::{ConvOptions, MaxPoolOptions};
use burn::tensor::{Device, Int, Tensor, TensorData};
use meganeura::nn::models::FEATURES;

use crate::Setup;
use crate::comparison::{Comparison, Peer, ReadsBack, Result};
use crate::images::{self, Calls};
use crate::kernels::EPS;
use crate::problem::{Kind, Operand, Problem};
use crate::training::{Network, RATE, Trainer, Training, WATCHED};

/// Adds burn to a comparison, once for each of its devices.
pub(crate) fn add(
    comparison: &mut Comparison<'_>,
    setup: &Setup,
    tolerance: f32,
    workload: impl Fn(&Device) -> Result<Box<dyn Peer>>,
) {
    for (name, device) in devices().into_iter().filter(|(name, _)| setup.wants(name)) {
        match device.and_then(|device| workload(&device)) {
            Ok(workload) => comparison.add(name, tolerance, workload),
            Err(e) => comparison.leave_out(name, &*e),
        }
    }
}

fn devices() -> Vec<(&'static str, Result<Device>)> {
    vec![
        ("burn flex", Ok(Device::flex())),
        #[cfg(feature = "burn-wgpu")]
        (WGPU, wgpu()),
    ]
}

/// Name of burn on a GPU: with SPIR-V if the feature is enabled, otherwise with WGSL.
#[cfg(feature = "burn-wgpu")]
const WGPU: &str = if cfg!(feature = "burn-vulkan") {
    "burn vulkan"
} else {
    "burn wgpu"
};

/// Opens the device that wgpu chooses (a Vulkan device if SPIR-V is enabled), once.
#[cfg(feature = "burn-wgpu")]
fn wgpu() -> Result<Device> {
    use burn::tensor::wgpu::WgpuBackend;
    use std::sync::OnceLock;

    static DEVICE: OnceLock<std::result::Result<Device, String>> = OnceLock::new();
    let api = if cfg!(feature = "burn-vulkan") {
        WgpuBackend::Vulkan
    } else {
        WgpuBackend::Auto
    };
    let open = || Device::wgpu_options().graphics_api(api).init();
    let device = DEVICE.get_or_init(|| open().map_err(|e| e.to_string()));
    Ok(device.clone()?)
}

fn tensor<const D: usize>(operand: &Operand, device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(operand.data.clone(), operand.shape.clone()), device)
}

/// Creates a candidate from a function that computes a tensor. A run includes the wait for the device.
fn reading<const D: usize>(device: &Device, mut workload: impl FnMut() -> Tensor<D> + 'static) -> Box<dyn Peer> {
    let device = device.clone();
    Box::new(ReadsBack::new(move |read| {
        let y = workload();
        device.sync()?;
        Ok(if read { y.try_into_vec_as()? } else { Vec::new() })
    }))
}

/// Creates the candidate for a single call.
pub(crate) fn call(problem: &Problem, device: &Device) -> Result<Box<dyn Peer>> {
    let operands = &problem.operands;
    let matrix = |i: usize| tensor::<2>(&operands[i], device);
    let x = || matrix(0);
    Ok(match problem.kind {
        Kind::Matmul => {
            let (x, w) = (x(), matrix(1));
            reading(device, move || x.clone().matmul(w.clone()))
        }
        Kind::Mlp => {
            let (x, w1, w2) = (x(), matrix(1), matrix(2));
            reading(device, move || relu(x.clone().matmul(w1.clone())).matmul(w2.clone()))
        }
        Kind::Softmax => {
            let x = x();
            reading(device, move || softmax(x.clone(), 1))
        }
        Kind::LayerNorm => {
            let (x, weight, bias) = (x(), tensor(&operands[1], device), tensor(&operands[2], device));
            reading(device, move || {
                layer_norm(x.clone(), weight.clone(), Some(bias.clone()), f64::from(EPS))
            })
        }
        Kind::Gelu => {
            let x = x();
            reading(device, move || gelu(x.clone()))
        }
        Kind::Conv => {
            let (x, w) = (tensor(&operands[0], device), tensor(&operands[1], device));
            reading(device, move || {
                let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
                conv2d(x.clone(), w.clone(), None, options)
            })
        }
    })
}

/// Creates the candidate for ResNet-50 inference.
pub(crate) fn image(parameters: &[Operand], x: &Operand, device: &Device) -> Result<Box<dyn Peer>> {
    let mut calls = Parameters(HashMap::new());
    for o in parameters {
        let ones = vec![1; 4 - o.shape.len()];
        let shape = [ones, o.shape.clone()].concat();
        let of_four_axes = Operand { shape, ..o.clone() };
        calls.0.insert(o.name.clone(), tensor(&of_four_axes, device));
    }
    let x = tensor(x, device);
    Ok(reading(device, move || images::resnet50(&mut calls, x.clone())))
}

/// Parameters of a network by name. Leading dimensions of 1 are added to their shapes.
struct Parameters(HashMap<String, Tensor<4>>);

impl Parameters {
    fn weight(&self, name: &str) -> Tensor<4> {
        self.0[&format!("{name}.weight")].clone()
    }

    fn bias(&self, name: &str) -> Option<Tensor<1>> {
        Some(self.0[&format!("{name}.bias")].clone().reshape([-1]))
    }
}

impl Calls for Parameters {
    type Value = Tensor<4>;

    fn conv(&mut self, x: Tensor<4>, name: &str, stride: usize, padding: usize) -> Tensor<4> {
        let options = ConvOptions::new([stride; 2], [padding; 2], [1, 1], 1);
        conv2d(x, self.weight(name), self.bias(name), options)
    }

    fn max_pool(&mut self, x: Tensor<4>) -> Tensor<4> {
        max_pool2d(x, MaxPoolOptions::new([3, 3]).with_stride([2, 2]).with_padding([1, 1]))
    }

    fn relu(&mut self, x: Tensor<4>) -> Tensor<4> {
        relu(x)
    }

    fn add(&mut self, x: Tensor<4>, y: Tensor<4>) -> Tensor<4> {
        x + y
    }

    fn classify(&mut self, x: Tensor<4>, name: &str) -> Tensor<4> {
        let x: Tensor<2> = adaptive_avg_pool2d(x, [1, 1]).flatten(1, 3);
        let weight = self.weight(name);
        let [_, _, inputs, outputs] = weight.dims();
        linear(x, weight.reshape([inputs, outputs]), self.bias(name)).unsqueeze()
    }
}

/// Network of the workloads `mlp` (without convolutions) and `cnn`.
#[derive(Module, Debug)]
struct Classifier {
    convs: Vec<Conv2d>,
    fc1: Linear,
    fc2: Linear,
}

impl Classifier {
    fn new(network: Network, operands: &[Operand], device: &Device) -> Result<Self> {
        let find = |name: String| {
            let found = operands.iter().find(|o| o.name == name);
            found.ok_or_else(|| format!("there is no {name}"))
        };
        let conv = |name: &str| -> Result<Conv2d> {
            let weight = find(format!("{name}.weight"))?;
            let mut conv = Conv2dConfig::new([weight.shape[1], weight.shape[0]], [3, 3]).init(device);
            conv.weight = parameter(weight, device);
            conv.bias = Some(parameter(find(format!("{name}.bias"))?, device));
            Ok(conv)
        };
        let linear = |name: &str| -> Result<Linear> {
            let weight = find(format!("{name}.weight"))?;
            let mut linear = LinearConfig::new(weight.shape[0], weight.shape[1]).init(device);
            linear.weight = parameter(weight, device);
            linear.bias = Some(parameter(find(format!("{name}.bias"))?, device));
            Ok(linear)
        };
        let convs = match network {
            Network::Mlp => Vec::new(),
            Network::Cnn => vec![conv("conv1")?, conv("conv2")?],
        };
        Ok(Classifier {
            convs,
            fc1: linear("fc1")?,
            fc2: linear("fc2")?,
        })
    }

    /// Returns the logits of images, `[images, pixels]`.
    fn forward(&self, mut x: Tensor<2>) -> Tensor<2> {
        if !self.convs.is_empty() {
            let mut y = x.reshape([-1, 1, 28, 28]);
            for conv in &self.convs {
                y = relu(conv.forward(y));
            }
            x = max_pool2d(y, MaxPoolOptions::new([2, 2])).flatten(1, 3);
        }
        self.fc2.forward(relu(self.fc1.forward(x)))
    }
}

fn parameter<const D: usize>(operand: &Operand, device: &Device) -> Param<Tensor<D>> {
    Param::from_tensor(tensor(operand, device))
}

struct Burn {
    device: Device,
    x: Tensor<2>,
    labels: Tensor<1, Int>,
    /// Network; `None` only while a step replaces it.
    model: Option<Classifier>,
    loss: CrossEntropyLoss,
    optimizer: ModuleOptimizer,
}

/// Creates the candidate for training a small classifier.
pub(crate) fn training(
    network: Network,
    operands: &[Operand],
    labels: &[u32],
    device: &Device,
) -> Result<Box<dyn Peer>> {
    let device = device.clone().autodiff();
    let x = operands
        .iter()
        .find(|o| o.name == FEATURES)
        .ok_or("there are no images")?;
    let rows = Operand {
        shape: vec![labels.len(), x.data.len() / labels.len()],
        ..x.clone()
    };
    let labels: Vec<i32> = labels.iter().map(|&label| label as i32).collect();
    Ok(Box::new(Training(Burn {
        x: tensor(&rows, &device),
        labels: Tensor::from_data(labels.as_slice(), &device),
        model: Some(Classifier::new(network, operands, &device)?),
        loss: CrossEntropyLoss::new(None, &device),
        optimizer: AdamConfig::new().with_epsilon(1e-8).init(),
        device,
    })))
}

impl Trainer for Burn {
    type Loss = Tensor<1>;

    fn step(&mut self) -> Result<Tensor<1>> {
        // Moved instead of copied, so that it can be updated in place.
        let model = self.model.take().ok_or("an earlier step has failed")?;
        let logits = model.forward(self.x.clone());
        let loss = self.loss.forward(logits, self.labels.clone());
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        self.model = Some(self.optimizer.step(f64::from(RATE), model, gradients));
        self.device.sync()?;
        Ok(loss.inner())
    }

    fn read(&mut self, loss: Tensor<1>) -> Result<f32> {
        Ok(loss.try_into_scalar()?)
    }

    fn watched(&mut self) -> Result<Vec<f32>> {
        let bias = self.model.as_ref().and_then(|model| model.fc2.bias.as_ref());
        let bias = bias.ok_or_else(|| format!("there is no {WATCHED}"))?;
        Ok(bias.val().try_into_vec_as()?)
    }
}
