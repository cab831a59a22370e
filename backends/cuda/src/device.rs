//! An open device: which kernels it has, and plans compiled for it.

use std::sync::OnceLock;

use meganeura_core::backend::{Capabilities, Device, Executable, KernelDesc, KernelSource, Support};
use meganeura_core::plan::try_compile;
use meganeura_core::precision::Precision;
use meganeura_core::{Error, ExecutionPlan, Graph, Result};
use meganeura_shaders::coop::CoopConfig;
use meganeura_shaders::host::{self, Answers, Draft, F16Storage, Host as _, Tiles, Wanted, With};
use meganeura_shaders::{Features, MatmulLibrary};

use crate::gpu::NAME;
use crate::handle::Handle;

/// Threads of a warp.
const WARP: u32 = 32;
/// Rows and columns of the tiles that are written as instructions of tensor cores.
const TILE: u32 = 16;

/// An NVIDIA GPU.
pub struct CudaDevice {
    handle: Handle,
    /// What was asked for of tensor cores.
    wanted: Wanted,
    /// The cooperative matrices in use, once they have been tested.
    coop: OnceLock<Option<CoopConfig>>,
    /// Which calls it has kernels for.
    answers: Answers,
}

impl CudaDevice {
    /// Subgroups are warps. Conversions of bits to `f32` are written as instructions, so that kernels need no type `f16` for them.
    const FEATURES: Features = Features {
        subgroup_size: Some(WARP),
        exact_f16: false,
        // Of a kernel that asks for no more than is always there.
        workgroup_bytes: 48 << 10,
    };

    pub(crate) fn new(handle: Handle, wanted: Wanted) -> Self {
        CudaDevice {
            handle,
            wanted,
            coop: OnceLock::new(),
            answers: Answers::default(),
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.handle.gpu().is_lost()
    }

    /// The cooperative matrices that products may use: those that have passed their test, which is made when this is asked for
    /// the first time.
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

    /// Computes a little with every kind of kernel that hardware may get wrong: elementwise calls, sums, products on tensor cores.
    ///
    /// # Errors
    /// A kernel that is refused, or a wrong result.
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
        match properties.has_tensor_cores() && self.wanted.tile != Some(0) && self.coop_config().is_none() {
            true => Err(Error::backend(NAME, "its tensor cores fail their test")),
            false => Ok(()),
        }
    }

    /// The cooperative matrices that plans of a precision may use: they round operands, which is not allowed everywhere.
    fn coop_at(&self, precision: Precision) -> Option<CoopConfig> {
        match precision {
            Precision::F32 => None,
            _ => self.coop_config(),
        }
    }

    /// The cooperative matrices that a plan uses.
    fn coop_for(&self, plan: &ExecutionPlan) -> Option<CoopConfig> {
        let uses = plan.dispatches.iter().any(|d| d.use_coop);
        if uses { self.coop_config() } else { None }
    }

    fn library(&self) -> Option<&dyn MatmulLibrary> {
        self.handle.library().map(|library| &**library as &dyn MatmulLibrary)
    }

    /// The launches of a plan.
    fn draft(&self, plan: &ExecutionPlan) -> Result<Draft> {
        let custom = self.answers.custom_kernels(&self.handle, plan);
        let with = With {
            backend: NAME,
            coop: self.coop_for(plan),
            features: CudaDevice::FEATURES,
            library: self.library(),
            custom: &custom,
            choices: None,
            f16_storage: match self.wanted.wide_results {
                true => F16Storage::No,
                false => F16Storage::Chosen,
            },
        };
        Draft::of(plan, &with)
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
        meganeura_shaders::efficiency(kernel)
    }

    fn launches(&self, kernel: &KernelDesc) -> u32 {
        let launches = self.answers.launches(&self.handle, self.handle.buffer_bytes(), kernel);
        launches.unwrap_or(1)
    }

    fn kernels(&self) -> String {
        format!(
            "{:?}, cuBLASLt {:?}{}",
            self.wanted,
            self.handle.library().map(|library| library.min_flops()),
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
        let with = With {
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
        plan.verify()?;
        let custom = self.answers.custom_kernels(&self.handle, plan);
        host::compile(&self.handle, plan, &custom, || self.draft(plan), |_, _| ())
    }
}
