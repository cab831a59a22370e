//! Losses of the first training steps, compared between devices and precisions.

use serde::{Deserialize, Serialize};

use super::comparison::contained;
use super::{BenchDevice, SkippedDevice, Workload};
use meganeura::precision::Precision;
use meganeura::{Error, Result};

/// Maximum deviation of a loss curve in `f32` from the reference, relative to the first loss. Sums are computed in
/// another order, and errors accumulate over the steps.
const ACCEPTED: f64 = 1e-3;
/// Maximum deviation in mixed precision. Rounding to `f16` changes each of about ten consecutive matmuls by at most 2^-10.
const ACCEPTED_MIXED: f64 = 2e-2;

/// Losses of a training run on a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossCurve {
    /// Selector of the device.
    pub device: String,
    /// Precision of the plan.
    pub precision: Precision,
    /// Number of dispatches of the plan, and how many of them use cooperative matrices.
    pub dispatches: [usize; 2],
    /// Loss of each step, before its update.
    pub losses: Vec<f32>,
}

impl LossCurve {
    /// Returns the index of the step with the largest deviation from another curve, and this deviation relative to the other
    /// curve's first loss; infinite for NaN and for missing steps.
    pub fn farthest(&self, reference: &LossCurve) -> (usize, f64) {
        let first = reference.losses.first().map_or(0.0, |&loss| f64::from(loss.abs()));
        let off = |step: usize| match (self.losses.get(step), reference.losses.get(step)) {
            (Some(&loss), Some(&wanted)) => {
                let off = f64::from((loss - wanted).abs()) / first.max(f64::from(f32::MIN_POSITIVE));
                if off.is_nan() { f64::INFINITY } else { off }
            }
            _ => f64::INFINITY,
        };
        let steps = 0..self.losses.len().max(reference.losses.len());
        steps
            .map(|step| (step, off(step)))
            .fold((0, 0.0), |worst, one| if one.1 > worst.1 { one } else { worst })
    }

    /// Returns the accepted deviation from a reference in `f32`.
    pub fn accepted(&self) -> f64 {
        match self.precision {
            Precision::Mixed => ACCEPTED_MIXED,
            _ => ACCEPTED,
        }
    }
}

/// Loss curves of one workload on several devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossCurves {
    /// Name of the workload.
    pub workload: String,
    /// Curves, with the reference in `f32` first.
    pub curves: Vec<LossCurve>,
    /// Devices that failed, or whose losses differ from the reference's.
    pub skipped: Vec<SkippedDevice>,
}

/// Trains for a number of steps, on one batch, on every device: in `f32` and, if supported, in mixed precision, or only in the
/// given precision. The first curve, in `f32` on the first device, is the reference. Curves that deviate from it by more than
/// [`LossCurve::accepted`] are among the curves, and in [`LossCurves::skipped`] with the reason.
///
/// # Errors
/// [`Error::InvalidUse`] for a workload that does not train, and for zero steps; errors of the reference. Other devices that fail
/// are not an error.
pub fn loss_curves(
    workload: &Workload,
    devices: &[BenchDevice],
    precision: Option<Precision>,
    steps: usize,
) -> Result<LossCurves> {
    if workload.update.is_none() {
        return Err(Error::misuse(
            format!("'{}' has no losses: it does not train", workload.name),
            "give workloads that train",
        ));
    }
    let Some(first) = devices.first().filter(|_| steps > 0) else {
        return Err(Error::misuse(
            "a comparison needs a device and at least one step",
            "give a device, and one step or more",
        ));
    };
    let reference = curve(workload, first, Precision::F32, steps)?;
    let mut found = LossCurves {
        workload: workload.name.clone(),
        curves: vec![reference],
        skipped: Vec::new(),
    };
    for (number, on) in devices.iter().enumerate() {
        let precisions = match precision {
            Some(wanted) => vec![wanted],
            None if on.device.has_mixed_precision() => vec![Precision::F32, Precision::Mixed],
            None => vec![Precision::F32],
        };
        let is_reference = |precision: &Precision| number == 0 && *precision == Precision::F32;
        for precision in precisions.into_iter().filter(|p| !is_reference(p)) {
            let reason = match contained(|| curve(workload, on, precision, steps)) {
                Err(reason) => Some(reason),
                Ok(curve) => {
                    let (step, off) = curve.farthest(&found.curves[0]);
                    let accepted = curve.accepted();
                    found.curves.push(curve);
                    (off > accepted).then(|| {
                        format!(
                            "at step {} its loss deviates by {off:.1e} of the first loss; {accepted:.0e} is accepted",
                            step + 1
                        )
                    })
                }
            };
            found.skipped.extend(reason.map(|reason| SkippedDevice {
                suite: workload.suite,
                workload: workload.name.clone(),
                device: on.selector.clone(),
                precision,
                reason,
            }));
        }
    }
    Ok(found)
}

fn curve(workload: &Workload, on: &BenchDevice, precision: Precision, steps: usize) -> Result<LossCurve> {
    let mut session = workload.session(on, precision)?;
    let dispatches = || session.plan().step_dispatches();
    let dispatches = [dispatches().count(), dispatches().filter(|d| d.use_coop).count()];
    let mut losses = Vec::new();
    for _ in 0..steps {
        session.try_step()?;
        let mut loss = [0.0];
        session.try_read_output_start(0, &mut loss)?;
        losses.push(loss[0]);
    }
    Ok(LossCurve {
        device: on.selector.clone(),
        precision: session.plan().precision,
        dispatches,
        losses,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve_of(losses: &[f32]) -> LossCurve {
        LossCurve {
            device: "cpu".to_owned(),
            precision: Precision::F32,
            dispatches: [1, 0],
            losses: losses.to_vec(),
        }
    }

    #[test]
    fn the_farthest_step_counts_as_a_part_of_the_first_loss() {
        let reference = curve_of(&[2.0, 1.0, 0.5]);
        assert_eq!(reference.farthest(&reference), (0, 0.0));
        assert_eq!(curve_of(&[2.0, 1.5, 0.4]).farthest(&reference), (1, 0.25));
        assert_eq!(curve_of(&[2.0, f32::NAN, 0.5]).farthest(&reference), (1, f64::INFINITY));
        assert_eq!(curve_of(&[2.0, 1.0]).farthest(&reference), (2, f64::INFINITY));
    }
}
