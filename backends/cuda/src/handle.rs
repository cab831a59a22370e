//! The low-level device: context, capabilities, and compiled kernels.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use meganeura_core::backend::shader::ShaderDevice;
use meganeura_core::backend::{Capabilities, CostModel, Executable, SharedBuffers};
use meganeura_core::{ExecutionPlan, Result};
use meganeura_shaders::host::{CompileFailure, Host, LaunchPlan, RejectedKernel};
use meganeura_shaders::{DTYPES, Launch};

use crate::copies::Copier;
use crate::cubins::Compiler;
use crate::driver::{Driver, Properties};
use crate::executable;
use crate::gpu::{Gpu, NAME};
use crate::graph::Order;
use crate::kernels::Kernels;
use crate::libraries::Libraries;
use crate::settings::Settings;

/// Maximum buffer size in bytes. Element counts then fit into 32 bits.
const MAX_BUFFER: u64 = 4 << 30;
/// Duration of a launch that follows another launch in a graph, for the cost model.
const LAUNCH: Duration = Duration::from_nanos(1_000);
/// Fraction of the memory bandwidth that kernels reach.
const MEMORY_SHARE: f64 = 0.75;
/// Speedup of tensor cores with `f16` operands over `f32` that kernels reach.
const TENSOR_CORE_GAIN: f64 = 8.0;

/// The part of a device that executables need. It is also sufficient to test kernels before a
/// [`CudaDevice`](crate::CudaDevice) exists.
pub(crate) struct Handle {
    gpu: Arc<Gpu>,
    properties: Properties,
    capabilities: Capabilities,
    kernels: Kernels,
    /// Kernel for small copies, compiled when it is first needed.
    copier: OnceLock<Arc<Copier>>,
    order: Order,
    programmatic: bool,
    merge: bool,
    libraries: Option<Arc<Libraries>>,
}

impl Handle {
    /// Opens a device.
    ///
    /// # Errors
    /// The device cannot be opened, or there is no compiler.
    pub(crate) fn open(name: String, properties: Properties, driver: Driver, settings: &Settings) -> Result<Self> {
        let gpu = Arc::new(Gpu::open(&properties)?);
        let programmatic = settings.programmatic && properties.capability >= (9, 0) && driver.has_programmatic_edges();
        let compiler = Compiler::new(properties.architecture(), settings.folder.clone());
        compiler
            .nvrtc()
            .map_err(|why| meganeura_core::Error::backend(NAME, why))?;
        let libraries = Libraries::open(&gpu, &name, settings)?;
        let flops = properties.flops_per_second();
        Ok(Handle {
            capabilities: Capabilities {
                name,
                dtypes: DTYPES.to_vec(),
                max_buffer_bytes: Some(MAX_BUFFER),
                memory_bytes: Some(properties.memory_bytes),
                unified_memory: properties.integrated,
                cost: CostModel {
                    launch: LAUNCH,
                    bytes_per_second: MEMORY_SHARE * properties.bytes_per_second(),
                    flops_per_second: flops,
                    half_flops_per_second: if properties.has_tensor_cores() {
                        TENSOR_CORE_GAIN * flops
                    } else {
                        flops
                    },
                    free_views: false,
                },
            },
            kernels: Kernels::new(compiler, programmatic),
            gpu,
            properties,
            copier: OnceLock::new(),
            order: settings.order,
            programmatic,
            merge: settings.merge,
            libraries: libraries.map(Arc::new),
        })
    }

    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    pub(crate) fn properties(&self) -> &Properties {
        &self.properties
    }

    pub(crate) fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    pub(crate) fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// Returns the maximum size of a buffer in bytes.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        MAX_BUFFER
    }

    /// Returns the libraries of matmuls and convolutions that are available and enabled.
    pub(crate) fn libraries(&self) -> Option<&Arc<Libraries>> {
        self.libraries.as_ref()
    }

    /// Returns the number of multiprocessors, which limits the merging of small launches. Returns `None` if merging
    /// is disabled.
    pub(crate) fn merge(&self) -> Option<u32> {
        self.merge.then_some(self.properties.multiprocessors)
    }

    /// Returns the setting for the order of launches within a step.
    pub(crate) fn order(&self) -> Order {
        self.order
    }

    /// Returns `true` if launches begin before their predecessors have ended.
    pub(crate) fn programmatic(&self) -> bool {
        self.programmatic
    }

    /// Returns the kernel for small copies. The first call compiles it.
    ///
    /// # Errors
    /// Errors of the compiler or the driver.
    pub(crate) fn copier(&self) -> Result<Arc<Copier>> {
        if let Some(copier) = self.copier.get() {
            return Ok(copier.clone());
        }
        let copier = Arc::new(Copier::new(&self.gpu, self.kernels.compiler())?);
        Ok(self.copier.get_or_init(|| copier).clone())
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
        ShaderDevice { most_rounds: None }
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
        self.kernels.prepare(&self.gpu, launches)
    }
}
