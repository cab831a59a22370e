//! What compilation asks a device for: its rates, its kernels, and the precision that it is used in.

use std::sync::Arc;

use super::Device;
use crate::cost::Target;
use crate::kernel::{CostModel, KernelDesc, Support};
use crate::mode::Mode;
use crate::precision::Precision;

impl Target for Arc<dyn Device> {
    fn cost_model(&self) -> CostModel {
        self.capabilities().cost
    }

    fn launches(&self, kernel: &KernelDesc) -> Option<u32> {
        match self.supports(kernel) {
            Support::Yes => Some(Device::launches(&**self, kernel)),
            Support::No(_) => None,
        }
    }

    fn efficiency(&self, kernel: &KernelDesc) -> f64 {
        Device::efficiency(&**self, kernel)
    }
}

impl Precision {
    /// What a build uses unless it is told: [`Precision::Mixed`] for inference on devices that are faster with it, else
    /// [`Precision::F32`].
    pub fn default_for(mode: Mode, device: &dyn Device) -> Self {
        match mode {
            Mode::Inference if device.has_mixed_precision() => Precision::Mixed,
            _ => Precision::F32,
        }
    }

    /// A precision that was asked for, or the default.
    pub fn resolve(wanted: Option<Self>, mode: Mode, device: &dyn Device) -> Self {
        wanted.unwrap_or_else(|| Precision::default_for(mode, device))
    }
}
