//! The interface that a GPU backend implements for the shared host code.

use meganeura_core::ExecutionPlan;
use meganeura_core::backend::shader::ShaderDevice;
use meganeura_core::backend::{Executable, SharedBuffers};

use super::draft::{CompileFailure, LaunchPlan, RejectedKernel};
use crate::Launch;

/// A device that executes launches.
pub trait Host {
    /// Returns the name of the backend, for messages.
    fn backend(&self) -> &'static str;

    /// Returns the name of the device, for messages.
    fn name(&self) -> &str;

    /// Returns the device properties that registered kernels need.
    fn shader_device(&self) -> ShaderDevice;

    /// Creates an executable with the kernels and the memory of a plan. `shared` contains the buffers that the plan
    /// borrows.
    ///
    /// # Errors
    /// The device does not have enough memory, or the driver rejects a kernel.
    fn executable(
        &self,
        plan: &ExecutionPlan,
        draft: LaunchPlan,
        shared: &SharedBuffers,
    ) -> Result<Box<dyn Executable>, CompileFailure>;

    /// Compiles labelled launches before the plans that will use them.
    ///
    /// # Errors
    /// The driver rejects a kernel.
    fn prepare(&self, launches: &[(&str, &Launch)]) -> Result<(), RejectedKernel>;
}
