//! Workloads in tract, which reads ONNX models and supports only inference.

use tract_onnx::prelude::multithread::Executor;
use tract_onnx::prelude::{Framework, InferenceModelExt, IntoTValue, RunOptions, Tensor, tvec};

use crate::Setup;
use crate::comparison::{Comparison, Peer, ReadsBack, Result};
use crate::onnx::Model;
use crate::problem::Operand;

/// Adds tract to a comparison, if it supports the workload.
pub(crate) fn add(comparison: &mut Comparison<'_>, setup: &Setup, tolerance: f32, model: &Model, x: &Operand) {
    const NAME: &str = "tract";
    if !setup.wants(NAME) {
        return;
    }
    match workload(model, x, setup.threads) {
        Ok(workload) => comparison.add(NAME, tolerance, workload),
        Err(e) => comparison.leave_out(NAME, &*e),
    }
}

fn workload(model: &Model, x: &Operand, threads: usize) -> Result<Box<dyn Peer>> {
    let options = RunOptions {
        executor: Some(Executor::multithread(threads)),
        ..RunOptions::default()
    };
    let mut state = tract_onnx::onnx()
        .model_for_read(&mut model.bytes().as_slice())?
        .into_optimized()?
        .into_runnable_with_options(&options)?
        .spawn()?;
    let x = Tensor::from_shape(&x.shape, &x.data)?.into_tvalue();
    Ok(Box::new(ReadsBack::new(move |read| {
        let results = state.run(tvec![x.clone()])?;
        Ok(if read {
            results[0].try_as_plain_ram()?.as_slice::<f32>()?.to_vec()
        } else {
            Vec::new()
        })
    })))
}
