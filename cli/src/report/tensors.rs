//! Statistics of the tensors of a step.

use meganeura::error::TensorKind;
use meganeura::session::Stage;
use serde_json::{Value as Json, json};

use meganeura::{Error, Result, Session, TensorStatistics};

/// A tensor of a step for the page.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportTensor {
    /// Category in which the page lists it: `parameter`, `gradient` or `activation`.
    pub kind: String,
    /// Its name, or the call that computed it.
    pub name: String,
    /// Dtype and shape, or its source.
    pub details: String,
    /// Statistics.
    pub statistics: TensorStatistics,
}

/// Runs a step, and returns statistics of all parameters, gradients and activations. Activations are results of the forward pass
/// that kernels write to memory; they are omitted if the device does not have enough memory for all of them.
///
/// # Errors
/// The step fails.
pub fn tensors(session: &mut Session) -> Result<Vec<ReportTensor>> {
    let results = match session.try_step_statistics() {
        Ok(results) => results,
        Err(error @ Error::OutOfMemory { .. }) => {
            log::warn!("activations are not shown: {error}");
            session.try_step()?;
            Vec::new()
        }
        Err(error) => return Err(error),
    };
    let mut all = Vec::new();
    for kind in [TensorKind::Parameter, TensorKind::Gradient] {
        let named = session.try_statistics(kind)?.into_iter();
        all.extend(named.map(|tensor| ReportTensor {
            kind: kind.to_string(),
            details: format!("{} elements", tensor.statistics.len),
            name: tensor.name,
            statistics: tensor.statistics,
        }));
    }
    let forward = results.into_iter();
    let forward = forward.filter(|r| r.stage == Stage::Forward && r.ty.dtype.is_float());
    all.extend(forward.map(|r| ReportTensor {
        kind: "activation".into(),
        name: match r.result {
            0 => r.name,
            number => format!("{}, result {number}", r.name),
        },
        details: match r.source {
            Some(source) => format!("{}, from {source}", r.ty),
            None => r.ty.to_string(),
        },
        statistics: r.statistics,
    }));
    Ok(all)
}

/// Returns the tensors in the form that the page reads.
pub(super) fn data(tensors: &[ReportTensor]) -> Json {
    let rows = tensors.iter().map(|t| {
        let s = &t.statistics;
        let finite = s.finite.as_ref().map(
            |f| json!({ "min": f.min, "max": f.max, "mean": f.mean, "deviation": f.deviation, "counts": f.histogram }),
        );
        json!({ "kind": t.kind, "name": t.name, "details": t.details, "len": s.len, "nan": s.nan,
            "infinite": s.positive_infinities + s.negative_infinities, "zeros": s.zeros, "finite": finite })
    });
    rows.collect()
}
