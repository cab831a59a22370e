//! Which calls a device has kernels for, with those that others registered.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use meganeura_core::attrs::Attrs;
use meganeura_core::backend::KernelDesc;
use meganeura_core::backend::shader::shader_kernels;
use meganeura_core::{Error, ExecutionPlan, TensorType};

use super::custom::CustomKernels;
use super::custom_trial::Tried;
use super::device::Host;
use crate::CustomKernel;

/// A kernel that was asked about: name, attributes, types of operands and results.
type Asked = (String, Attrs, Vec<TensorType>, Vec<TensorType>);

/// What a device answers when it is asked for kernels.
#[derive(Default)]
pub struct Answers {
    /// Kernels that others registered, as far as they were asked for.
    custom: Tried,
    /// Answers that were given, launches or the reason why there is no kernel, because the same calls are asked about again and
    /// again.
    given: Mutex<HashMap<Asked, Result<u32, String>>>,
}

impl Answers {
    /// Launches of the kernel for a call on a device that binds at most so many bytes, or the reason why there is none.
    ///
    /// # Errors
    /// That reason.
    pub fn launches(&self, host: &dyn Host, max_buffer_bytes: u64, kernel: &KernelDesc) -> Result<u32, String> {
        let asked = (
            kernel.name.to_owned(),
            kernel.attrs.clone(),
            kernel.inputs.to_vec(),
            kernel.outputs.to_vec(),
        );
        // A panic cannot leave the map half changed.
        let lock = || self.given.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = lock().get(&asked) {
            return answer.clone();
        }
        let answer = self.find(host, max_buffer_bytes, kernel);
        lock().insert(asked, answer.clone());
        answer
    }

    fn find(&self, host: &dyn Host, max_buffer_bytes: u64, kernel: &KernelDesc) -> Result<u32, String> {
        let custom = self.custom.kernel(host, kernel.name);
        let supports = || {
            let custom = custom.as_deref().map(|kernel| kernel as &dyn CustomKernel);
            crate::supports(kernel, max_buffer_bytes, custom)
        };
        let mut compiled = supports()?;
        // A driver may take a custom kernel for some sizes only. It is asked while a plan is made, when there is still
        // something in its place.
        if let Some(custom) = &custom
            && !self.custom.takes(host, custom, &compiled)
        {
            compiled = supports()?;
        }
        Ok(compiled.launches.len() as u32)
    }

    /// The kernels for a plan that others registered.
    pub fn custom_kernels(&self, host: &dyn Host, plan: &ExecutionPlan) -> CustomKernels {
        self.custom.of_plan(host, plan)
    }

    /// All kernels that others registered, and whether they are used: a part of what identifies a device's kernels.
    pub fn fingerprint(&self, host: &dyn Host) -> String {
        let known = shader_kernels().into_iter().map(|custom| {
            let used = self.custom.kernel(host, custom.op().name()).is_some();
            format!(", {} {used}", custom.content())
        });
        known.collect()
    }

    /// Why the kernel that somebody registered for an operator is not used, as far as it was asked for.
    pub fn refusal(&self, op: &str) -> Option<Error> {
        self.custom.refusal(op)
    }
}
