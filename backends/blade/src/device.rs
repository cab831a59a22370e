//! An open device, with its cooperative matrices and its measured variants.

use std::sync::{Arc, OnceLock};

use blade_graphics as bg;
use meganeura_core::ExecutionPlan;
use meganeura_core::backend::KernelDesc;
use meganeura_core::precision::Precision;

use crate::handle::Handle;
use crate::probe::{self, ProbedDevice};
use crate::tune::Tuning;
use meganeura_shaders::coop::CoopConfig;
use meganeura_shaders::host::{self, CoopSettings, CustomKernels, Host as _, SupportCache, Tiles};

/// Selects the configuration for the tiles that a device lists: `f16` tiles if available, else `f32` tiles, else
/// `None`.
pub fn select_coop_config(units: &bg::CooperativeMatrix) -> Option<CoopConfig> {
    host::select_coop_config(tiles(units))
}

fn tiles(units: &bg::CooperativeMatrix) -> Tiles {
    Tiles {
        f16: units.f16_tile,
        f32: units.f32_tile,
    }
}

/// A GPU, or a software implementation of one.
pub struct BladeDevice {
    handle: Handle,
    /// Requested settings of cooperative matrices.
    wanted: CoopSettings,
    /// Cooperative matrices in use. They are tested when they are first requested.
    coop: OnceLock<Option<CoopConfig>>,
    /// Measured variants of kernels, by class of calls.
    tuning: Tuning,
    /// Cache of the results of support queries.
    answers: SupportCache,
}

impl BladeDevice {
    /// Creates a device on a context of the host application. Stored measurements are not used:
    /// they apply only to devices that a configuration opens.
    pub fn from_context(context: Arc<bg::Context>) -> Self {
        let name = context.device_information().device_name.clone();
        let probed = probe::probe().into_iter().find(|p| p.name == name);
        Self::named(context, name, probed, CoopSettings::default(), Tuning::none())
    }

    pub(crate) fn named(
        context: Arc<bg::Context>,
        name: String,
        probed: Option<ProbedDevice>,
        wanted: CoopSettings,
        tuning: Tuning,
    ) -> Self {
        BladeDevice {
            handle: Handle::new(context, name, probed),
            wanted,
            coop: OnceLock::new(),
            tuning,
            answers: SupportCache::default(),
        }
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns the cooperative matrices that products may use. The first call tests them, and matrices
    /// that fail are left out.
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

    /// Returns the cooperative matrices for plans with this precision. Matrices that round operands are included only
    /// if the precision allows it.
    pub(crate) fn coop_at(&self, precision: Precision) -> Option<CoopConfig> {
        // f16 tiles are preferred. They round operands, so they are not used here and need no test.
        let rounds = self.matrix_units().is_ok_and(|units| units.f16_tile > 0);
        if rounds && precision == Precision::F32 {
            None
        } else {
            self.coop_config()
        }
    }

    /// Returns the cooperative matrices that the driver lists.
    fn matrix_units(&self) -> std::result::Result<bg::CooperativeMatrix, String> {
        let gpu = self.handle.gpu();
        gpu.attempt(|context| context.capabilities().cooperative_matrix)
    }

    /// Returns the requested settings of cooperative matrices.
    pub(crate) fn wanted(&self) -> &CoopSettings {
        &self.wanted
    }

    /// Returns `true` if results are stored in `f16` when all of their readers round them anyway.
    pub(crate) fn f16_storage(&self) -> bool {
        !self.wanted.wide_results
    }

    pub(crate) fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Returns the cache of the results of support queries.
    pub(crate) fn answers(&self) -> &SupportCache {
        &self.answers
    }

    /// Returns the registered custom kernels for a plan.
    pub(crate) fn custom_kernels_for(&self, plan: &ExecutionPlan) -> CustomKernels {
        self.answers.custom_kernels(&self.handle, plan)
    }

    /// Returns the number of launches that a call needs, or the reason why no kernel supports the call.
    pub(crate) fn answer(&self, kernel: &KernelDesc) -> std::result::Result<u32, String> {
        self.answers
            .launches(&self.handle, self.handle.limits().buffer_bytes, kernel)
    }
}
