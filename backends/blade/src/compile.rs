//! Implementation of the core's device trait: support queries for kernels, and compilation of plans.

use std::fmt::Write as _;
use std::sync::Arc;

use blade_graphics as bg;
use meganeura_core::backend::{
    Capabilities, Device, Executable, KernelDesc, KernelSource, SharedBuffers, Support, Tune,
};
use meganeura_core::plan::BufferRef;
use meganeura_core::{Error, ExecutionPlan, Result, Session};

use crate::device::BladeDevice;
use crate::gpu::NAME;
use crate::memory::Slab;
use crate::tune::validate::validate;
use meganeura_shaders::ScheduleChooser;
use meganeura_shaders::coop::CoopConfig;
use meganeura_shaders::host::{self, F16Storage, KernelOptions, LaunchPlan};

/// Creation of sessions on a context of the host application.
pub trait WithContext: Sized {
    /// Creates a session on the device of a context that other code may also use. Sessions share compiled kernels if
    /// they are opened [on](Session::on) the same [`BladeDevice::from_context`] instead.
    ///
    /// # Errors
    /// As [`Session::on`].
    fn with_context(context: Arc<bg::Context>, plan: ExecutionPlan) -> Result<Self>;
}

impl WithContext for Session {
    fn with_context(context: Arc<bg::Context>, plan: ExecutionPlan) -> Result<Self> {
        Session::on(Arc::new(BladeDevice::from_context(context)), plan)
    }
}

impl BladeDevice {
    /// Returns the cooperative matrices that a plan uses.
    fn coop_for(&self, plan: &ExecutionPlan) -> Option<CoopConfig> {
        let uses = plan.dispatches.iter().any(|d| d.use_coop);
        if uses { self.coop_config() } else { None }
    }

    /// Calls `make` with the options for generating the kernels of a plan.
    fn with<T>(&self, plan: &ExecutionPlan, coop: Option<CoopConfig>, make: impl FnOnce(&KernelOptions) -> T) -> T {
        let custom = self.custom_kernels_for(plan);
        let chosen = self.tuning().choices(plan.precision);
        make(&KernelOptions {
            backend: NAME,
            library: None,
            coop,
            features: self.handle().features(),
            custom: &custom,
            choices: chosen.as_ref().map(|chosen| chosen as &dyn ScheduleChooser),
            f16_storage: if self.f16_storage() {
                F16Storage::Chosen
            } else {
                F16Storage::No
            },
        })
    }
}

impl Device for BladeDevice {
    fn capabilities(&self) -> &Capabilities {
        self.handle().capabilities()
    }

    fn supports(&self, kernel: &KernelDesc) -> Support {
        match self.answer(kernel) {
            Ok(_) => Support::Yes,
            Err(reason) => Support::No(reason),
        }
    }

    fn efficiency(&self, kernel: &KernelDesc) -> f64 {
        meganeura_shaders::efficiency(kernel, false)
    }

    fn launches(&self, kernel: &KernelDesc) -> u32 {
        self.answer(kernel).unwrap_or(1)
    }

    fn kernels(&self) -> String {
        // A plan stores which matmuls use cooperative matrices, and the settings determine this.
        let mut kernels = format!("{:?}", self.wanted());
        kernels.push_str(&self.answers().fingerprint(self.handle()));
        if let Some(tuned) = self.tuning().fingerprint() {
            let _ = write!(kernels, ", tuned {tuned}");
        }
        kernels
    }

    fn has_mixed_precision(&self) -> bool {
        self.coop_config().is_some_and(|config| config.use_f16_input)
    }

    fn refused_kernel(&self, op: &str) -> Option<Error> {
        self.answers().refusal(op)
    }

    fn finalize(&self, plan: &mut ExecutionPlan) -> Result<()> {
        let custom = self.custom_kernels_for(plan);
        let chosen = self.tuning().choices(plan.precision);
        let with = KernelOptions {
            backend: NAME,
            library: None,
            coop: self.coop_at(plan.precision),
            features: self.handle().features(),
            custom: &custom,
            choices: chosen.as_ref().map(|chosen| chosen as &dyn ScheduleChooser),
            f16_storage: F16Storage::No,
        };
        host::choose_variants(plan, &with)
    }

    fn kernel_sources(&self, plan: &ExecutionPlan) -> Result<Vec<KernelSource>> {
        self.with(plan, self.coop_for(plan), |with| {
            Ok(LaunchPlan::of(plan, with)?.sources())
        })
    }

    fn workspace_bytes(&self, plan: &ExecutionPlan) -> Result<u64> {
        self.with(plan, self.coop_for(plan), |with| {
            Ok(LaunchPlan::of(plan, with)?.workspace_bytes())
        })
    }

    fn tunable(&self) -> Option<&dyn Tune> {
        Some(self)
    }

    fn compile(&self, plan: &ExecutionPlan) -> Result<Box<dyn Executable>> {
        self.compile_sharing(plan, &SharedBuffers::new())
    }

    fn shares_memory(&self) -> bool {
        true
    }

    fn usable_buffers(&self, plan: &ExecutionPlan, shared: &SharedBuffers) -> Vec<BufferRef> {
        host::borrowable::<Slab>(plan, shared)
    }

    fn compile_sharing(&self, plan: &ExecutionPlan, shared: &SharedBuffers) -> Result<Box<dyn Executable>> {
        plan.verify()?;
        if let Some(chosen) = self.tuning().choices(plan.precision) {
            validate(self.handle(), &chosen, self.coop_at(plan.precision), plan)?;
        }
        let coop = self.coop_for(plan);
        let custom = self.custom_kernels_for(plan);
        host::compile(
            self.handle(),
            plan,
            shared,
            &custom,
            || self.with(plan, coop, |with| LaunchPlan::of(plan, with)),
            |class, error| self.tuning().refuse(class, error),
        )
    }
}
