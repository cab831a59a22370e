//! A device as its driver has it: the context, what it can do, and its compiled kernels.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use meganeura_core::backend::shader::ShaderDevice;
use meganeura_core::backend::{Capabilities, CostModel, Executable};
use meganeura_core::{ExecutionPlan, Result};
use meganeura_shaders::host::{Draft, Host, Refused, Unmade};
use meganeura_shaders::{DTYPES, Launch};

use crate::copies::Copier;
use crate::cubins::Compiler;
use crate::cublaslt::CublasLt;
use crate::driver::{Driver, Properties};
use crate::executable::CudaExecutable;
use crate::gpu::{Gpu, NAME};
use crate::graph::Order;
use crate::kernels::Kernels;
use crate::settings::Settings;

/// Bytes beyond which numbers of elements do not fit 32 bits.
const MAX_BUFFER: u64 = 4 << 30;
/// A launch within a graph, behind another one.
const LAUNCH: Duration = Duration::from_nanos(1_000);
/// Share of the memory's rate that kernels reach.
const MEMORY_SHARE: f64 = 0.75;
/// How many times as fast as `f32` tensor cores are with operands of `f16`, as kernels reach it.
const TENSOR_CORE_GAIN: f64 = 8.0;

/// What executables need of a device, and those who try kernels before there is any [`CudaDevice`](crate::CudaDevice).
pub(crate) struct Handle {
    gpu: Arc<Gpu>,
    properties: Properties,
    capabilities: Capabilities,
    kernels: Kernels,
    /// The kernel of small copies, once it is needed.
    copier: OnceLock<Arc<Copier>>,
    order: Order,
    programmatic: bool,
    merge: bool,
    library: Option<Arc<CublasLt>>,
}

impl Handle {
    /// # Errors
    /// A device that cannot be opened, or no compiler.
    pub(crate) fn open(name: String, properties: Properties, driver: Driver, settings: &Settings) -> Result<Self> {
        let gpu = Arc::new(Gpu::open(&properties)?);
        let programmatic = settings.programmatic && properties.capability >= (9, 0) && driver.has_programmatic_edges();
        let compiler = Compiler::new(properties.architecture(), settings.folder.clone());
        compiler
            .nvrtc()
            .map_err(|why| meganeura_core::Error::backend(NAME, why))?;
        let library = match settings.cublaslt {
            true => gpu
                .within(|| Ok(CublasLt::open(settings.cublaslt_min_flops)))?
                .inspect_err(|why| log::info!("{name}: {why}"))
                .ok(),
            false => None,
        };
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
                    half_flops_per_second: match properties.has_tensor_cores() {
                        true => TENSOR_CORE_GAIN * flops,
                        false => flops,
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
            library: library.map(Arc::new),
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

    /// Bytes of the largest buffer.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        MAX_BUFFER
    }

    /// The library of matmuls, if there is one.
    pub(crate) fn library(&self) -> Option<&Arc<CublasLt>> {
        self.library.as_ref()
    }

    /// The multiprocessors for which small launches become one kernel, if they do.
    pub(crate) fn merge(&self) -> Option<u32> {
        self.merge.then_some(self.properties.multiprocessors)
    }

    /// In which order the launches of a step are.
    pub(crate) fn order(&self) -> Order {
        self.order
    }

    /// Whether launches begin before those that they depend on have ended.
    pub(crate) fn programmatic(&self) -> bool {
        self.programmatic
    }

    /// The kernel of small copies.
    ///
    /// # Errors
    /// The compiler's or the driver's.
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

    fn executable(&self, plan: &ExecutionPlan, draft: Draft) -> Result<Box<dyn Executable>, Unmade> {
        Ok(Box::new(CudaExecutable::of(self, plan, draft)?))
    }

    fn prepare(&self, launches: &[(&str, &Launch)]) -> Result<(), Refused> {
        self.kernels.prepare(&self.gpu, launches)
    }
}
