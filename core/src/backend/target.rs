//! The properties of a device that compilation uses: its rates, its kernels and its precision.

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
    /// Returns the default precision of a build: [`Precision::Mixed`] for inference on devices that compute faster with
    /// it, else [`Precision::F32`].
    pub fn default_for(mode: Mode, device: &dyn Device) -> Self {
        match mode {
            Mode::Inference if device.has_mixed_precision() => Precision::Mixed,
            _ => Precision::F32,
        }
    }

    /// Returns the requested precision, or the default.
    pub fn resolve(wanted: Option<Self>, mode: Mode, device: &dyn Device) -> Self {
        wanted.unwrap_or_else(|| Precision::default_for(mode, device))
    }
}
