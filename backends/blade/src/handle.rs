//! The low-level device: context, capabilities, and compiled kernels.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use blade_graphics as bg;
use meganeura_core::ExecutionPlan;
use meganeura_core::backend::shader::ShaderDevice;
use meganeura_core::backend::{Capabilities, CostModel, Executable, SharedBuffers};
use meganeura_shaders::host::{self, CompileFailure, Host, LaunchPlan, RejectedKernel};
use meganeura_shaders::{DTYPES, Features, Launch};

use crate::executable;
use crate::gpu::{Gpu, NAME};
use crate::pipeline::Pipelines;
use crate::probe::{Limits, ProbedDevice};

/// Maximum number of loop iterations on Mesa's software driver. Afterwards, the driver ends all loops of the shader
/// (`LP_MAX_TGSI_LOOP_ITERATIONS` in its sources).
const SOFTWARE_ROUNDS: u32 = 65_535;

/// The part of a device that executables need. It is also sufficient to test kernels before a
/// [`BladeDevice`](crate::BladeDevice) exists.
pub(crate) struct Handle {
    gpu: Arc<Gpu>,
    /// `true` for a software implementation of a GPU.
    software: bool,
    limits: Limits,
    /// Features that kernels may use. They are tested when they are first requested.
    features: OnceLock<Features>,
    capabilities: Capabilities,
    pipelines: Pipelines,
}

impl Handle {
    pub(crate) fn new(context: Arc<bg::Context>, name: String, probed: Option<ProbedDevice>) -> Self {
        let software = context.device_information().is_software_emulated;
        let limits = probed.map(|p| p.limits).unwrap_or_default();
        Handle {
            capabilities: Capabilities {
                name,
                dtypes: DTYPES.to_vec(),
                max_buffer_bytes: Some(limits.buffer_bytes),
                memory_bytes: limits.memory_bytes,
                unified_memory: limits.discrete == Some(false),
                cost: cost_model(software, limits.discrete),
            },
            gpu: Arc::new(Gpu::new(context)),
            software,
            limits,
            features: OnceLock::new(),
            pipelines: Pipelines::default(),
        }
    }

    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the features that kernels may use. The driver must list them, and the first call tests them.
    pub(crate) fn features(&self) -> Features {
        *self.features.get_or_init(|| {
            let listed = Features {
                subgroup_size: self.limits.uniform_subgroup_size,
                exact_f16: self.gpu.attempt(|context| context.capabilities().shader_float16) == Ok(true),
                workgroup_bytes: self.limits.workgroup_bytes,
            };
            host::test_features(self, listed)
        })
    }

    pub(crate) fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Returns `true` for a software implementation of a GPU.
    pub(crate) fn is_software(&self) -> bool {
        self.software
    }

    pub(crate) fn pipelines(&self) -> &Pipelines {
        &self.pipelines
    }
}

impl Host for Handle {
    fn backend(&self) -> &'static str {
        NAME
    }

    fn name(&self) -> &str {
        &self.capabilities.name
    }

    fn shader_device(&self) -> ShaderDevice {
        ShaderDevice {
            most_rounds: self.software.then_some(SOFTWARE_ROUNDS),
        }
    }

    fn executable(
        &self,
        plan: &ExecutionPlan,
        draft: LaunchPlan,
        shared: &SharedBuffers,
    ) -> Result<Box<dyn Executable>, CompileFailure> {
        Ok(Box::new(executable::open(self, plan, draft, shared)?))
    }

    fn prepare(&self, launches: &[(&str, &Launch)]) -> Result<(), RejectedKernel> {
        self.pipelines.prepare(&self.gpu, launches)
    }
}

/// Returns approximate rates of a class of devices, for the cost model.
fn cost_model(software: bool, discrete: Option<bool>) -> CostModel {
    let (launch_ns, bytes, flops) = match (software, discrete) {
        (true, _) => (10_000, 8e9, 10e9),
        (_, Some(true)) => (2_500, 1e12, 20e12),
        _ => (4_000, 100e9, 3e12),
    };
    CostModel {
        launch: Duration::from_nanos(launch_ns),
        bytes_per_second: bytes,
        flops_per_second: flops,
        // Half precision is computed in single precision.
        half_flops_per_second: flops,
        free_views: false,
    }
}
