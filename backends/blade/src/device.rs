//! An open device.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use blade_graphics as bg;
use meganeura_core::attrs::Attrs;
use meganeura_core::backend::KernelDesc;
use meganeura_core::precision::Precision;
use meganeura_core::{ExecutionPlan, TensorType};

use crate::coop_trial::{self, CoopConfig};
use crate::custom::CustomKernels;
use crate::custom_trial::Tried;
use crate::handle::Handle;
use crate::probe::{self, Probed};
use crate::settings::Wanted;
use crate::tune::Tuning;
use meganeura_shaders as kernels;

/// A kernel that was asked about: name, attributes, types of operands and results.
type Asked = (String, Attrs, Vec<TensorType>, Vec<TensorType>);

/// A GPU, or software that acts as one.
pub struct BladeDevice {
    handle: Handle,
    /// What was asked for of cooperative matrices.
    wanted: Wanted,
    /// The cooperative matrices in use, once they have been tested.
    coop: OnceLock<Option<CoopConfig>>,
    /// Ways to compute calls that were measured here.
    tuning: Tuning,
    /// Kernels that others custom, as far as they were asked for.
    custom: Tried,
    /// Answers that were given, launches or the reason why there is no kernel, because the same calls are asked about again and again.
    answers: Mutex<HashMap<Asked, std::result::Result<u32, String>>>,
}

impl BladeDevice {
    /// A device on a context of the host application. What was measured on it before is not used: that is for the devices that
    /// a configuration opens.
    pub fn from_context(context: Arc<bg::Context>) -> Self {
        let name = context.device_information().device_name.clone();
        let probed = probe::probe().into_iter().find(|p| p.name == name);
        Self::named(context, name, probed, Wanted::default(), Tuning::none())
    }

    pub(crate) fn named(
        context: Arc<bg::Context>,
        name: String,
        probed: Option<Probed>,
        wanted: Wanted,
        tuning: Tuning,
    ) -> Self {
        BladeDevice {
            handle: Handle::new(context, name, probed),
            wanted,
            coop: OnceLock::new(),
            tuning,
            custom: Tried::default(),
            answers: Mutex::default(),
        }
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The cooperative matrices that products may use: those that have passed their test, which is made when this is asked for
    /// the first time.
    pub fn coop_config(&self) -> Option<CoopConfig> {
        let choose = || {
            let handle = &self.handle;
            let units = self.matrix_units().ok()?;
            coop_trial::choose(handle.name(), &units, handle.limits(), self.wanted, |config| {
                coop_trial::test_coop_matmul(handle, config)
            })
        };
        *self.coop.get_or_init(choose)
    }

    /// The cooperative matrices that plans of a precision may use: those that round operands only where that is allowed.
    pub(crate) fn coop_at(&self, precision: Precision) -> Option<CoopConfig> {
        // Without units of f32 there is nothing to test.
        let rounds = self.matrix_units().is_ok_and(|units| units.f16_tile > 0);
        match rounds && precision == Precision::F32 {
            true => None,
            false => self.coop_config(),
        }
    }

    /// The cooperative matrices that its driver lists.
    fn matrix_units(&self) -> std::result::Result<bg::CooperativeMatrix, String> {
        let gpu = self.handle.gpu();
        gpu.attempt(|context| context.capabilities().cooperative_matrix)
    }

    /// What was asked for of cooperative matrices.
    pub(crate) fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Whether results that are only read to be rounded are kept in `f16`.
    pub(crate) fn f16_storage(&self) -> bool {
        !self.wanted.wide_results
    }

    pub(crate) fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// The custom kernels for a plan.
    pub(crate) fn custom_kernels_for(&self, plan: &ExecutionPlan) -> CustomKernels {
        self.custom.of_plan(&self.handle, plan)
    }

    /// Whether a custom kernels for an operator is used.
    pub(crate) fn uses_custom_kernel(&self, op: &str) -> bool {
        self.custom.kernel(&self.handle, op).is_some()
    }

    /// Why the custom kernel for an operator is not used, as far as it was asked for.
    pub(crate) fn why_custom_kernel_is_refused(&self, op: &str) -> Option<meganeura_core::Error> {
        self.custom.refusal(op)
    }

    /// Launches of the kernel for a call, or the reason why there is none.
    pub(crate) fn answer(&self, kernel: &KernelDesc) -> std::result::Result<u32, String> {
        let asked = (
            kernel.name.to_owned(),
            kernel.attrs.clone(),
            kernel.inputs.to_vec(),
            kernel.outputs.to_vec(),
        );
        // A panic cannot leave the map half changed.
        let lock = || self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = lock().get(&asked) {
            return answer.clone();
        }
        let answer = self.find_answer(kernel);
        lock().insert(asked, answer.clone());
        answer
    }

    fn find_answer(&self, kernel: &KernelDesc) -> std::result::Result<u32, String> {
        let custom = self.custom.kernel(&self.handle, kernel.name);
        let supports = || {
            kernels::supports(
                kernel,
                self.handle.limits().buffer_bytes,
                custom.as_deref().map(|kernel| kernel as &dyn kernels::CustomKernel),
            )
        };
        let mut compiled = supports()?;
        // A driver may take a custom kernel for some sizes only. It is asked while a plan is made, when there is still
        // something in its place.
        if let Some(custom) = &custom
            && !self.custom.takes(&self.handle, custom, &compiled)
        {
            compiled = supports()?;
        }
        Ok(compiled.launches.len() as u32)
    }
}
