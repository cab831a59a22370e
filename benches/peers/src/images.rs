//! Comparison of ResNet-50 inference.

use std::collections::HashMap;

use candle_core::{DType, Device as CandleDevice, Tensor};
use candle_nn::{Module, VarBuilder};
use meganeura::nn::models::ResNetConfig;
use meganeura::{Graph, Mode};
use serde_json::Value;

use crate::comparison::{Comparison, Peer, ReadsBack, Result};
use crate::onnx::Model;
use crate::problem::{Handout, Operand};
#[cfg(feature = "burn")]
use crate::with_burn;
#[cfg(feature = "tract")]
use crate::with_tract;
use crate::{Setup, kernels, python, training};

const IMAGE: [usize; 4] = [1, 3, 224, 224];
const CLASSES: usize = 1000;
/// Maximum difference of logits, relative to the largest one.
const SAME: f32 = 1e-3;

/// Operations of ResNet-50 in a framework. Parameters have the names of torchvision; norms are folded into the convolutions.
pub(crate) trait Calls {
    type Value: Clone;

    fn conv(&mut self, x: Self::Value, name: &str, stride: usize, padding: usize) -> Self::Value;

    /// Applies max pooling of 3x3, with stride 2 and one row of padding around the image.
    fn max_pool(&mut self, x: Self::Value) -> Self::Value;

    fn relu(&mut self, x: Self::Value) -> Self::Value;

    fn add(&mut self, x: Self::Value, y: Self::Value) -> Self::Value;

    /// Averages each channel, and applies a linear layer with weights `[inputs, outputs]`.
    fn classify(&mut self, x: Self::Value, name: &str) -> Self::Value;
}

/// Computes the logits of an image.
pub(crate) fn resnet50<C: Calls>(calls: &mut C, x: C::Value) -> C::Value {
    let x = calls.conv(x, "conv1", 2, 3);
    let x = calls.relu(x);
    let mut x = calls.max_pool(x);
    for (stage, blocks) in [3, 4, 6, 3].into_iter().enumerate() {
        for block in 0..blocks {
            let name = format!("layer{}.{block}", stage + 1);
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let y = calls.conv(x.clone(), &format!("{name}.conv1"), 1, 0);
            let y = calls.relu(y);
            let y = calls.conv(y, &format!("{name}.conv2"), stride, 1);
            let y = calls.relu(y);
            let y = calls.conv(y, &format!("{name}.conv3"), 1, 0);
            if block == 0 {
                x = calls.conv(x, &format!("{name}.downsample.0"), stride, 0);
            }
            x = calls.add(y, x);
            x = calls.relu(x);
        }
    }
    calls.classify(x, "fc")
}

/// Returns all candidates. Batch norms are folded into the convolutions for all candidates except candle, whose model contains
/// them.
pub(crate) fn comparison(setup: &Setup) -> Result<Comparison<'static>> {
    let mut comparison = Comparison::new("ResNet-50, an image of 224x224");
    let mut g = Graph::new();
    let x = g.input("x", &IMAGE);
    let y = ResNetConfig::resnet50(CLASSES)
        .folded(true)
        .build(&mut g, "")
        .forward(&mut g, x);
    g.set_outputs(vec![y]);
    let x = Operand::random("x", &IMAGE, 1.0, 0);
    let mut operands = Vec::new();
    for entrant in setup.meganeura(SAME)? {
        let (name, tolerance) = (entrant.name.clone(), entrant.tolerance);
        let mut session = entrant.build(&g, Mode::Inference, None)?;
        training::set_parameters(&mut session, &mut operands)?;
        session.try_set_input("x", &x.data)?;
        comparison.add(name, tolerance, kernels::reading(session, CLASSES));
    }
    if setup.wants("candle") {
        comparison.add("candle", SAME, candle(&operands, &x)?);
    }
    #[cfg(feature = "burn")]
    with_burn::add(&mut comparison, setup, SAME, |device| {
        with_burn::image(&operands, &x, device)
    });
    operands.push(x.clone());
    let model = Model::resnet50(&operands);
    #[cfg(feature = "tract")]
    with_tract::add(&mut comparison, setup, SAME, &model, &x);
    let handout = Handout {
        kind: "Resnet50".to_owned(),
        operands: &operands,
        settings: Value::Null,
        onnx: Some(model.bytes()),
    };
    python::add(&mut comparison, setup, python::OF_IMAGES, SAME, &handout);
    Ok(comparison)
}

fn tensor(o: &Operand) -> Result<Tensor> {
    let tensor = Tensor::from_vec(o.data.clone(), o.shape.clone(), &CandleDevice::Cpu)?;
    // Linear layers are `[outputs, inputs]` in candle.
    Ok(if o.shape.len() == 2 {
        tensor.t()?.contiguous()?
    } else {
        tensor
    })
}

/// Creates the ResNet-50 of candle's model collection. Its batch norms only add the biases, because norms are already
/// folded.
fn candle(operands: &[Operand], x: &Operand) -> Result<Box<dyn Peer>> {
    let mut tensors = HashMap::new();
    for o in operands {
        let layer = o.name.strip_suffix(".bias").filter(|layer| *layer != "fc");
        let Some(layer) = layer else {
            tensors.insert(o.name.clone(), tensor(o)?);
            continue;
        };
        let norm = match layer.strip_suffix("downsample.0") {
            Some(block) => format!("{block}downsample.1"),
            None => layer.replace("conv", "bn"),
        };
        let constant = |value: f32| Tensor::full(value, o.shape.clone(), &CandleDevice::Cpu);
        // The variance is 1 minus the epsilon that is added to it.
        for (child, value) in [("weight", 1.0), ("running_mean", 0.0), ("running_var", 1.0 - 1e-5)] {
            tensors.insert(format!("{norm}.{child}"), constant(value)?);
        }
        tensors.insert(format!("{norm}.bias"), tensor(o)?);
    }
    let weights = VarBuilder::from_tensors(tensors, DType::F32, &CandleDevice::Cpu);
    let model = candle_transformers::models::resnet::resnet50(CLASSES, weights)?;
    let x = tensor(x)?;
    Ok(Box::new(ReadsBack::new(move |read| {
        let y = model.forward(&x)?;
        Ok(if read { y.flatten_all()?.to_vec1()? } else { Vec::new() })
    })))
}
