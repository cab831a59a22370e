//! What a rewrite is for: the device's rates and kernels.

use crate::backend::{CostModel, Device, KernelDesc, Support};

/// Rates and kernels of a device.
pub trait Target {
    /// Rates.
    fn cost_model(&self) -> CostModel;
    /// Whether there is a kernel for a call.
    fn has_kernel(&self, kernel: &KernelDesc) -> bool;
}

impl Target for dyn Device {
    fn cost_model(&self) -> CostModel {
        self.capabilities().cost
    }

    fn has_kernel(&self, kernel: &KernelDesc) -> bool {
        matches!(self.supports(kernel), Support::Yes)
    }
}

/// A device known by its rates alone, with a kernel for every operator: for reports about hardware that is not
/// here, and for stages used without a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Modelled(pub CostModel);

impl Target for Modelled {
    fn cost_model(&self) -> CostModel {
        self.0
    }

    fn has_kernel(&self, _: &KernelDesc) -> bool {
        true
    }
}
