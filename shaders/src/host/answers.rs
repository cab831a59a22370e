//! Cached results of support queries: the calls that a device has kernels for, including registered kernels.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use meganeura_core::attrs::Attrs;
use meganeura_core::backend::KernelDesc;
use meganeura_core::backend::shader::shader_kernels;
use meganeura_core::{Error, ExecutionPlan, TensorType};

use super::custom::CustomKernels;
use super::custom_trial::TrialResults;
use super::device::Host;
use crate::CustomKernel;

/// A queried call: kernel name, attributes, types of operands and results.
type SupportQuery = (String, Attrs, Vec<TensorType>, Vec<TensorType>);

/// Cache of the kernels that a device supports.
#[derive(Default)]
pub struct SupportCache {
    /// Registered kernels of plugins that were queried, with the results of their tests.
    custom: TrialResults,
    /// Cached results: the number of launches, or the reason why no kernel exists. The same calls are queried
    /// repeatedly.
    given: Mutex<HashMap<SupportQuery, Result<u32, String>>>,
}

impl SupportCache {
    /// Returns the number of launches of the kernel for a call, on a device that supports buffers of up to
    /// `max_buffer_bytes` bytes.
    ///
    /// # Errors
    /// No kernel supports the call; the text contains the reason.
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
        // A driver may accept a custom kernel only for some sizes. The check happens during planning, when a
        // decomposition can still replace the kernel.
        if let Some(custom) = &custom
            && !self.custom.takes(host, custom, &compiled)
        {
            compiled = supports()?;
        }
        Ok(compiled.launches.len() as u32)
    }

    /// Returns the registered kernels for a plan.
    pub fn custom_kernels(&self, host: &dyn Host, plan: &ExecutionPlan) -> CustomKernels {
        self.custom.of_plan(host, plan)
    }

    /// Returns a text that lists all registered kernels, and states for each whether it is used. The text is part of
    /// the identity of a device's kernels.
    pub fn fingerprint(&self, host: &dyn Host) -> String {
        let known = shader_kernels().into_iter().map(|custom| {
            let used = self.custom.kernel(host, custom.op().name()).is_some();
            format!(", {} {used}", custom.content())
        });
        known.collect()
    }

    /// Returns the reason why the registered kernel of an operator is not used, if it was queried.
    pub fn refusal(&self, op: &str) -> Option<Error> {
        self.custom.refusal(op)
    }
}
