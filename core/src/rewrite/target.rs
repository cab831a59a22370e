//! What a rewrite is for: the device's rates and kernels.

use std::time::Duration;

use crate::kernel::{CostModel, KernelDesc};

/// Rates and kernels of a device.
pub trait Target {
    /// Rates.
    fn cost_model(&self) -> CostModel;
    /// Launches that wait for each other of the kernel for a call; `None` if there is no kernel.
    fn launches(&self, kernel: &KernelDesc) -> Option<u32>;
}

/// A device known by its rates alone, with a kernel for every operator: for reports about hardware that is not
/// here, and for stages used without a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Simulated(pub CostModel);

impl Simulated {
    /// A discrete GPU: 5 us a launch, 500 GB/s, 20 TFLOP/s in `f32`.
    pub fn discrete_gpu() -> Self {
        Simulated(CostModel {
            launch: Duration::from_micros(5),
            bytes_per_second: 500e9,
            flops_per_second: 20e12,
            half_flops_per_second: 80e12,
            free_views: true,
        })
    }
}

impl Target for Simulated {
    fn cost_model(&self) -> CostModel {
        self.0
    }

    fn launches(&self, _: &KernelDesc) -> Option<u32> {
        Some(1)
    }
}
