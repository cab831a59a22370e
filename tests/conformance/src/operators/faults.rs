//! Cases of indices out of range, for every operator that declares a bound: the step must fail instead of computing a
//! number.

use meganeura_core::error::Error;
use meganeura_core::ops::sample::Sizes;
use meganeura_core::ops::{Call, OpRef};
use meganeura_core::{DType, TensorType};

use super::{SampleGraph, build};
use crate::case::{Case, CaseRun, Check, SharedDevice, fail};
use crate::harness::{open, run_once};

/// Returns cases from the first samples that contain indices. One index equals the bound.
pub(super) fn cases(op: OpRef) -> Vec<Case> {
    const SAMPLES: usize = 3;
    let samples = op.samples(&mut Sizes::new(0)).into_iter().enumerate();
    samples
        .filter_map(|(i, sample)| {
            let mut built = build(op, &sample, 0, DType::F32);
            let types: Vec<TensorType> = built
                .operands
                .iter()
                .filter_map(|&o| built.graph.ty(o).cloned())
                .collect();
            let (operand, bound) = op.index_bound(&Call {
                attrs: &sample.attrs,
                inputs: &types,
                outputs: &[],
            })?;
            let ids = built.feeds.get_mut(&format!("operand{operand}"))?;
            *ids.last_mut()? = bound as f64;
            let id = format!("{}/index at the bound/{i} {}", op.name(), sample.label);
            Some(Case::new(id, move |device: &SharedDevice| fault(device, &built, bound)))
        })
        .take(SAMPLES)
        .collect()
}

fn fault(device: &SharedDevice, case: &SampleGraph, bound: usize) -> CaseRun {
    let mut session = open(device, &case.graph)?;
    match run_once(&mut session, &case.graph, &case.feeds) {
        Err(Error::IndexOutOfRange { index, rows, .. }) if index as usize == bound && rows == bound => {
            Ok(Check::default())
        }
        Err(other) => fail(format!("index {bound} of {bound}: another error: {other}")),
        Ok(_) => fail(format!("index {bound} of {bound} gave a result and no error")),
    }
}
