//! Measured peak rates of a device, and the roofline bound of a workload.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::WorkloadCost;
use meganeura::backend::Device;
use meganeura::calibration::Rates;
use meganeura::measure_rates;
use meganeura::precision::Precision;
use meganeura::{Error, Result};

/// Measured peak rates of a device, from [`Rates`], in a form that can be saved.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeakRates {
    /// Time of a step with one small call, in seconds, from the submission until the host has waited for it.
    pub step_seconds: f64,
    /// Time that one more dependent launch adds to a step, in seconds.
    pub launch_seconds: f64,
    /// Bytes that copies of 64 MB read and write per second.
    pub bytes_per_second: f64,
    /// FLOP/s of a large matmul in `f32`.
    pub flops_per_second: f64,
    /// FLOP/s of a large matmul in mixed precision, if supported.
    pub mixed_flops_per_second: Option<f64>,
}

impl From<Rates> for PeakRates {
    fn from(rates: Rates) -> Self {
        PeakRates {
            step_seconds: rates.step.as_secs_f64(),
            launch_seconds: rates.launch.as_secs_f64(),
            bytes_per_second: rates.bytes_per_second,
            flops_per_second: rates.flops_per_second,
            mixed_flops_per_second: rates.mixed_flops_per_second,
        }
    }
}

impl PeakRates {
    /// Measures an idle device, as `meganeura doctor` does; takes some seconds. If the device lacks a kernel of the measurement,
    /// returns the rates that its backend declares: such a backend is not complete yet.
    ///
    /// # Errors
    /// Errors of a session on the device.
    pub fn of(device: &Arc<dyn Device>) -> Result<Self> {
        match measure_rates(device) {
            Ok(rates) => Ok(rates.into()),
            Err(Error::MissingKernels { .. }) => Ok(PeakRates::declared(&**device)),
            Err(error) => Err(error),
        }
    }

    fn declared(device: &dyn Device) -> Self {
        let cost = &device.capabilities().cost;
        let launch = cost.launch.as_secs_f64();
        PeakRates {
            step_seconds: launch,
            launch_seconds: launch,
            bytes_per_second: cost.bytes_per_second,
            flops_per_second: cost.flops_per_second,
            mixed_flops_per_second: device.has_mixed_precision().then_some(cost.half_flops_per_second),
        }
    }

    /// Returns the FLOP/s of matmuls in a precision. If mixed precision is not faster, its rate is that of `f32`.
    pub fn product_rate(&self, precision: Precision) -> f64 {
        match (precision, self.mixed_flops_per_second) {
            (Precision::Mixed, Some(mixed)) => mixed.max(self.flops_per_second),
            _ => self.flops_per_second,
        }
    }

    /// Returns the roofline bound of a step with this cost; see [`super`] for the formula.
    pub fn floor(&self, cost: &WorkloadCost, precision: Precision) -> Roofline {
        let arithmetic = cost.flops as f64 / self.product_rate(precision);
        let memory = cost.bytes as f64 / self.bytes_per_second;
        let launches = cost.launches as f64 * self.launch_seconds;
        let work = arithmetic.max(memory);
        let bound = if launches > work {
            Bound::Launches
        } else if arithmetic > memory {
            Bound::Arithmetic
        } else {
            Bound::Memory
        };
        Roofline {
            seconds: work + launches,
            bound,
        }
    }
}

impl fmt::Display for PeakRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a step {:.1} us, a launch {:.2} us, copies {:.1} GB/s, matmuls {:.1} GFLOP/s",
            self.step_seconds * 1e6,
            self.launch_seconds * 1e6,
            self.bytes_per_second * 1e-9,
            self.flops_per_second * 1e-9
        )?;
        match self.mixed_flops_per_second {
            Some(rate) => write!(f, ", in mixed precision {:.1} GFLOP/s", rate * 1e-9),
            None => Ok(()),
        }
    }
}

/// Roofline bound of a workload: its minimum time, and the resource that limits it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Roofline {
    /// Minimum time in seconds.
    pub seconds: f64,
    /// Resource with the longest time.
    pub bound: Bound,
}

/// Resource that limits a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// Memory bandwidth.
    Memory,
    /// Rate of arithmetic operations.
    Arithmetic,
    /// Cost of dependent launches.
    Launches,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bound::Memory => "memory",
            Bound::Arithmetic => "arithmetic",
            Bound::Launches => "launches",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CEILINGS: PeakRates = PeakRates {
        step_seconds: 1e-4,
        launch_seconds: 1e-6,
        bytes_per_second: 1e9,
        flops_per_second: 1e10,
        mixed_flops_per_second: Some(1e11),
    };

    fn floor(flops: u64, bytes: u64, launches: u64, precision: Precision) -> Roofline {
        let cost = WorkloadCost {
            flops,
            bytes,
            launches,
            dispatches: launches,
        };
        CEILINGS.floor(&cost, precision)
    }

    #[test]
    fn the_floor_is_the_longer_of_both_and_the_launches() {
        let cases = [
            (floor(0, 1_000_000, 2, Precision::F32), 1.002e-3, Bound::Memory),
            (
                floor(100_000_000, 1_000_000, 2, Precision::F32),
                1.0002e-2,
                Bound::Arithmetic,
            ),
            // Ten times the rate, and no longer than the memory traffic.
            (
                floor(100_000_000, 1_000_001, 2, Precision::Mixed),
                1.002001e-3,
                Bound::Memory,
            ),
            (floor(10, 1000, 5, Precision::F32), 6e-6, Bound::Launches),
        ];
        for (found, seconds, bound) in cases {
            assert!((found.seconds / seconds - 1.0).abs() < 1e-9, "{found:?}, {seconds}");
            assert_eq!(found.bound, bound);
        }
    }

    #[test]
    fn mixed_precision_is_never_taken_for_slower() {
        let slow = PeakRates {
            mixed_flops_per_second: Some(1e9),
            ..CEILINGS
        };
        assert_eq!(slow.product_rate(Precision::Mixed), 1e10);
        assert_eq!(CEILINGS.product_rate(Precision::Mixed), 1e11);
        assert_eq!(CEILINGS.product_rate(Precision::F32), 1e10);
    }
}
