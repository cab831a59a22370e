//! An open device: its kernels, tensor cores, and the compilation of plans.

use std::sync::OnceLock;

use meganeura_core::backend::{Capabilities, Device, Executable, KernelDesc, KernelSource, SharedBuffers, Support};
use meganeura_core::plan::{BufferRef, try_compile};
use meganeura_core::precision::Precision;
use meganeura_core::{Error, ExecutionPlan, Graph, Result};
use meganeura_shaders::coop::CoopConfig;
use meganeura_shaders::host::{
    self, CoopSettings, F16Storage, Host as _, KernelOptions, LaunchPlan, SupportCache, Tiles,
};
use meganeura_shaders::{DeviceLibrary, Features};

use crate::gpu::NAME;
use crate::handle::Handle;
use crate::memory::DeviceMemory;

/// Number of threads in a warp.
const WARP: u32 = 32;
/// Number of rows and columns of the tiles that tensor-core instructions multiply.
const TILE: u32 = 16;

/// An NVIDIA GPU.
pub struct CudaDevice {
    handle: Handle,
    /// Requested settings of tensor cores.
    wanted: CoopSettings,
    /// Cooperative matrices in use. They are tested when they are first requested.
    coop: OnceLock<Option<CoopConfig>>,
    /// Cache of the results of support queries.
    answers: SupportCache,
}

impl CudaDevice {
    /// Features of all devices. A subgroup is a warp. Conversions from `f16` bits to `f32` are written as
    /// instructions, so kernels need no `f16` type for them.
    const FEATURES: Features = Features {
        subgroup_size: Some(WARP),
        exact_f16: false,
        // Shared memory that every kernel may use without an opt-in.
        workgroup_bytes: 48 << 10,
    };

    pub(crate) fn new(handle: Handle, wanted: CoopSettings) -> Self {
        CudaDevice {
            handle,
            wanted,
            coop: OnceLock::new(),
            answers: SupportCache::default(),
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.handle.gpu().is_lost()
    }

    /// Returns the cooperative matrices that products may use. The first call tests them, and matrices
    /// that fail are left out.
    pub fn coop_config(&self) -> Option<CoopConfig> {
        let choose = || {
            let properties = self.handle.properties();
            let tiles = Tiles {
                f16: if properties.has_tensor_cores() { TILE } else { 0 },
                f32: 0,
            };
            let known = [Some(WARP), Some(properties.multiprocessors)];
            host::choose_coop(self.handle.name(), tiles, known, self.wanted, |config| {
                host::test_coop_matmul(&self.handle, config)
            })
        };
        *self.coop.get_or_init(choose)
    }

    /// Runs small computations with every kind of kernel that could be wrong on a device: elementwise calls, sums,
    /// tensor-core matmuls.
    ///
    /// # Errors
    /// A kernel is rejected, or a result is wrong.
    pub(crate) fn self_test(&self) -> Result<()> {
        const ROWS: usize = 33;
        const COLUMNS: usize = 65;
        let mut graph = Graph::new();
        let x = graph.input("x", &[ROWS, COLUMNS]);
        let one = graph.scalar(1.0);
        let shifted = graph.add(x, one);
        let sums = graph.sum(shifted, &[1], false);
        graph.set_outputs(vec![shifted, sums]);
        let plan = try_compile(&graph)?;
        let mut executable = self.compile(&plan)?;
        let value = |i: usize| (i % 7) as f32;
        let words = |_: &str| (0..ROWS * COLUMNS).map(|i| value(i).to_le_bytes()).collect();
        let found = host::run_once(&mut *executable, &plan, words)?;
        let shifted: Vec<f32> = (0..ROWS * COLUMNS).map(|i| value(i) + 1.0).collect();
        let sums: Vec<f32> = shifted.chunks(COLUMNS).map(|row| row.iter().sum()).collect();
        for (found, expected) in found.iter().zip([shifted, sums]) {
            let found: Vec<f32> = found.iter().map(|word| f32::from_le_bytes(*word)).collect();
            if found != expected {
                return Err(Error::backend(NAME, "sums of small integers are wrong"));
            }
        }
        let properties = self.handle.properties();
        if properties.has_tensor_cores() && self.wanted.tile != Some(0) && self.coop_config().is_none() {
            Err(Error::backend(NAME, "its tensor cores fail their test"))
        } else {
            Ok(())
        }
    }

    /// Returns the cooperative matrices for plans with this precision. Returns `None` if the precision does not allow
    /// rounding of operands.
    fn coop_at(&self, precision: Precision) -> Option<CoopConfig> {
        match precision {
            Precision::F32 => None,
            _ => self.coop_config(),
        }
    }

    /// Returns the cooperative matrices that a plan uses.
    fn coop_for(&self, plan: &ExecutionPlan) -> Option<CoopConfig> {
        let uses = plan.dispatches.iter().any(|d| d.use_coop);
        if uses { self.coop_config() } else { None }
    }

    fn library(&self) -> Option<&dyn DeviceLibrary> {
        self.handle
            .libraries()
            .map(|libraries| &**libraries as &dyn DeviceLibrary)
    }

    /// Creates the launches of a plan.
    fn draft(&self, plan: &ExecutionPlan) -> Result<LaunchPlan> {
        let custom = self.answers.custom_kernels(&self.handle, plan);
        let with = KernelOptions {
            backend: NAME,
            coop: self.coop_for(plan),
            features: CudaDevice::FEATURES,
            library: self.library(),
            custom: &custom,
            choices: None,
            f16_storage: if self.wanted.wide_results {
                F16Storage::No
            } else {
                F16Storage::Chosen
            },
        };
        LaunchPlan::of(plan, &with)
    }
}

impl Device for CudaDevice {
    fn capabilities(&self) -> &Capabilities {
        self.handle.capabilities()
    }

    fn supports(&self, kernel: &KernelDesc) -> Support {
        match self.answers.launches(&self.handle, self.handle.buffer_bytes(), kernel) {
            Ok(_) => Support::Yes,
            Err(reason) => Support::No(reason),
        }
    }

    fn efficiency(&self, kernel: &KernelDesc) -> f64 {
        let has_library = self
            .handle
            .libraries()
            .is_some_and(|libraries| libraries.has_convolutions());
        meganeura_shaders::efficiency(kernel, has_library)
    }

    fn launches(&self, kernel: &KernelDesc) -> u32 {
        let launches = self.answers.launches(&self.handle, self.handle.buffer_bytes(), kernel);
        launches.unwrap_or(1)
    }

    fn kernels(&self) -> String {
        format!(
            "{:?}, {}{}",
            self.wanted,
            self.handle
                .libraries()
                .map_or_else(String::new, |libraries| libraries.fingerprint()),
            self.answers.fingerprint(&self.handle)
        )
    }

    fn has_mixed_precision(&self) -> bool {
        self.coop_config().is_some()
    }

    fn refused_kernel(&self, op: &str) -> Option<Error> {
        self.answers.refusal(op)
    }

    fn finalize(&self, plan: &mut ExecutionPlan) -> Result<()> {
        let custom = self.answers.custom_kernels(&self.handle, plan);
        let with = KernelOptions {
            backend: NAME,
            coop: self.coop_at(plan.precision),
            features: CudaDevice::FEATURES,
            library: self.library(),
            custom: &custom,
            choices: None,
            f16_storage: F16Storage::No,
        };
        host::choose_variants(plan, &with)
    }

    fn kernel_sources(&self, plan: &ExecutionPlan) -> Result<Vec<KernelSource>> {
        Ok(self.draft(plan)?.sources())
    }

    fn workspace_bytes(&self, plan: &ExecutionPlan) -> Result<u64> {
        Ok(self.draft(plan)?.workspace_bytes())
    }

    fn compile(&self, plan: &ExecutionPlan) -> Result<Box<dyn Executable>> {
        self.compile_sharing(plan, &SharedBuffers::new())
    }

    fn shares_memory(&self) -> bool {
        true
    }

    fn usable_buffers(&self, plan: &ExecutionPlan, shared: &SharedBuffers) -> Vec<BufferRef> {
        host::borrowable::<DeviceMemory>(plan, shared)
    }

    fn compile_sharing(&self, plan: &ExecutionPlan, shared: &SharedBuffers) -> Result<Box<dyn Executable>> {
        plan.verify()?;
        let custom = self.answers.custom_kernels(&self.handle, plan);
        host::compile(&self.handle, plan, shared, &custom, || self.draft(plan), |_, _| ())
    }
}
