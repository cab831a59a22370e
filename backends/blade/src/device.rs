//! An open device.

use std::sync::{Arc, OnceLock};

use blade_graphics as bg;
use meganeura_core::ExecutionPlan;
use meganeura_core::backend::KernelDesc;
use meganeura_core::precision::Precision;

use crate::handle::Handle;
use crate::probe::{self, Probed};
use crate::tune::Tuning;
use meganeura_shaders::coop::CoopConfig;
use meganeura_shaders::host::{self, Answers, CustomKernels, Host as _, Tiles, Wanted};

/// The configuration for what a device lists: tiles of `f16` if there are such, else of `f32`, else `None`.
pub fn select_coop_config(units: &bg::CooperativeMatrix) -> Option<CoopConfig> {
    host::select_coop_config(tiles(units))
}

fn tiles(units: &bg::CooperativeMatrix) -> Tiles {
    Tiles {
        f16: units.f16_tile,
        f32: units.f32_tile,
    }
}

/// A GPU, or software that acts as one.
pub struct BladeDevice {
    handle: Handle,
    /// What was asked for of cooperative matrices.
    wanted: Wanted,
    /// The cooperative matrices in use, once they have been tested.
    coop: OnceLock<Option<CoopConfig>>,
    /// Ways to compute calls that were measured here.
    tuning: Tuning,
    /// Which calls it has kernels for.
    answers: Answers,
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
            answers: Answers::default(),
        }
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The cooperative matrices that products may use: those that have passed their test, which is made when this is asked for
    /// the first time.
    pub fn coop_config(&self) -> Option<CoopConfig> {
        let choose = || {
            let (handle, limits) = (&self.handle, self.handle.limits());
            let tiles = tiles(&self.matrix_units().ok()?);
            let known = [limits.subgroup_size, limits.multiprocessors];
            host::choose_coop(handle.name(), tiles, known, self.wanted, |config| {
                host::test_coop_matmul(handle, config)
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

    /// Which calls it has kernels for.
    pub(crate) fn answers(&self) -> &Answers {
        &self.answers
    }

    /// The kernels for a plan that others registered.
    pub(crate) fn custom_kernels_for(&self, plan: &ExecutionPlan) -> CustomKernels {
        self.answers.custom_kernels(&self.handle, plan)
    }

    /// Launches of the kernel for a call, or the reason why there is none.
    pub(crate) fn answer(&self, kernel: &KernelDesc) -> std::result::Result<u32, String> {
        self.answers
            .launches(&self.handle, self.handle.limits().buffer_bytes, kernel)
    }
}
