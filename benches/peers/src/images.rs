//! Inference of ResNet-50.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{DType, Device as CandleDevice, Tensor};
use candle_nn::{Module, VarBuilder};
use meganeura::build::build_on;
use meganeura::cpu::CpuDevice;
use meganeura::nn::models::ResNetConfig;
use meganeura::{Graph, Mode};
use serde_json::Value;

use crate::Setup;
use crate::contest::{Contest, Peer, Result};
use crate::kernels::Reading;
use crate::problem::{Handout, Operand};
use crate::{python, training};

const IMAGE: [usize; 4] = [1, 3, 224, 224];
const CLASSES: usize = 1000;
/// How far logits may be off, relative to the largest.
const SAME: f32 = 1e-3;

/// All contestants. Batch norms are folded into the convolutions for all of them but candle, whose model has them.
pub(crate) fn contest(setup: &Setup) -> Result<Contest<'static>> {
    let mut contest = Contest::new("ResNet-50, an image of 224x224");
    let mut g = Graph::new();
    let x = g.input("x", &IMAGE);
    let y = ResNetConfig::resnet50(CLASSES)
        .folded(true)
        .build(&mut g, "")
        .forward(&mut g, x);
    g.set_outputs(vec![y]);
    let (mut session, _) = build_on(&g, Arc::new(CpuDevice::new(setup.threads)), Mode::Inference, None)?;
    let mut operands = training::parameters(&mut session)?;
    let x = Operand::random("x", &IMAGE, 1.0, 0);
    session.try_set_input("x", &x.data)?;
    let work = Reading::new(move |read| {
        session.try_step()?;
        session.try_wait()?;
        Ok(if read {
            session.try_read_output(CLASSES)?
        } else {
            Vec::new()
        })
    });
    contest.add("meganeura cpu", 0.0, Box::new(work));
    if setup.wants("candle") {
        contest.add("candle", SAME, candle(&operands, &x)?);
    }
    operands.push(x);
    let handout = Handout {
        kind: "Resnet50".to_owned(),
        operands: &operands,
        settings: Value::Null,
    };
    python::add(&mut contest, setup, python::OF_IMAGES, SAME, &handout);
    Ok(contest)
}

fn tensor(o: &Operand) -> Result<Tensor> {
    let tensor = Tensor::from_vec(o.data.clone(), o.shape.clone(), &CandleDevice::Cpu)?;
    // Linear layers are `[outputs, inputs]` there.
    Ok(if o.shape.len() == 2 {
        tensor.t()?.contiguous()?
    } else {
        tensor
    })
}

/// The model of candle's collection, with batch norms that do nothing but add the biases.
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
        // The variance is what is added to it short of one.
        for (child, value) in [("weight", 1.0), ("running_mean", 0.0), ("running_var", 1.0 - 1e-5)] {
            tensors.insert(format!("{norm}.{child}"), constant(value)?);
        }
        tensors.insert(format!("{norm}.bias"), tensor(o)?);
    }
    let weights = VarBuilder::from_tensors(tensors, DType::F32, &CandleDevice::Cpu);
    let model = candle_transformers::models::resnet::resnet50(CLASSES, weights)?;
    let x = tensor(x)?;
    Ok(Box::new(Reading::new(move |read| {
        let y = model.forward(&x)?;
        Ok(if read { y.flatten_all()?.to_vec1()? } else { Vec::new() })
    })))
}
