//! What a host of these kernels is asked by what is common to all.

use meganeura_core::ExecutionPlan;
use meganeura_core::backend::Executable;
use meganeura_core::backend::shader::ShaderDevice;

use super::draft::{Draft, Refused, Unmade};
use crate::Launch;

/// A device that executes launches.
pub trait Host {
    /// Name of the backend, for messages.
    fn backend(&self) -> &'static str;

    /// Name of the device, for messages.
    fn name(&self) -> &str;

    /// What registered kernels have to know of it.
    fn shader_device(&self) -> ShaderDevice;

    /// An executable of the kernels of a plan, with its memory.
    ///
    /// # Errors
    /// What there is no memory for, and kernels that the driver refuses.
    fn executable(&self, plan: &ExecutionPlan, draft: Draft) -> Result<Box<dyn Executable>, Unmade>;

    /// Compiles launches, which are labelled, ahead of the plans that are going to use them.
    ///
    /// # Errors
    /// A kernel that the driver refuses.
    fn prepare(&self, launches: &[(&str, &Launch)]) -> Result<(), Refused>;
}
