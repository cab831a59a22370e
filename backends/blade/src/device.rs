//! An open device.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use blade_graphics as bg;
use meganeura_core::attrs::Attrs;
use meganeura_core::backend::shader::{ShaderDevice, shader_kernels};
use meganeura_core::backend::{Capabilities, CostModel, Device, Executable, KernelDesc, KernelSource, Support, Tune};
use meganeura_core::precision::Precision;
use meganeura_core::{ExecutionPlan, Result, Session, TensorType};

use crate::brought::{self, Brought, Tried};
use crate::coop::{self, CoopConfig, Wanted};
use crate::dispatch::{Narrows, With};
use crate::executable::BladeExecutable;
use crate::facts;
use crate::gpu::Gpu;
use crate::pipeline::Pipelines;
use crate::probe::{self, Limits, Probed};
use crate::program::Draft;
use crate::tune::Tuning;
use meganeura_shaders as kernels;
use meganeura_shaders::ScheduleChooser;

/// Rounds after which Mesa's software driver leaves all loops of a shader (`LP_MAX_TGSI_LOOP_ITERATIONS` in its sources).
const SOFTWARE_ROUNDS: u32 = 65_535;

/// A kernel that was asked about: name, attributes, types of operands and results.
type Asked = (String, Attrs, Vec<TensorType>, Vec<TensorType>);

/// A GPU, or software that acts as one.
pub struct BladeDevice {
    gpu: Arc<Gpu>,
    /// Whether it is software that acts as a GPU.
    software: bool,
    limits: Limits,
    capabilities: Capabilities,
    pipelines: Pipelines,
    /// What was asked for of matrix units.
    wanted: Wanted,
    /// The matrix units in use, once they have been tested.
    coop: OnceLock<Option<CoopConfig>>,
    /// Ways to compute calls that were measured here.
    tuning: Tuning,
    /// Kernels that others brought, as far as they were asked for.
    brought: Tried,
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
        let software = context.device_information().is_software_emulated;
        let limits = probed.map(|p| p.limits).unwrap_or_default();
        BladeDevice {
            capabilities: Capabilities {
                name,
                dtypes: kernels::DTYPES.to_vec(),
                max_buffer_bytes: Some(limits.buffer_bytes),
                memory_bytes: limits.memory_bytes,
                unified_memory: limits.discrete == Some(false),
                cost: cost_model(software, limits.discrete),
            },
            gpu: Arc::new(Gpu::new(context)),
            software,
            limits,
            pipelines: Pipelines::default(),
            wanted,
            coop: OnceLock::new(),
            tuning,
            brought: Tried::default(),
            answers: Mutex::default(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.capabilities.name
    }

    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The matrix units that products may use: those that have passed their test, which is made when this is asked for
    /// the first time.
    pub fn coop_config(&self) -> Option<CoopConfig> {
        let choose = || {
            let units = self
                .gpu
                .attempt(|context| context.capabilities().cooperative_matrix)
                .ok()?;
            coop::choose(self.name(), &units, &self.limits, self.wanted, |config| {
                coop::test_coop_matmul(self, config)
            })
        };
        *self.coop.get_or_init(choose)
    }

    /// The matrix units that a plan uses.
    fn coop_for(&self, plan: &ExecutionPlan) -> Option<CoopConfig> {
        let uses = plan.dispatches.iter().any(|d| d.use_coop);
        if uses { self.coop_config() } else { None }
    }

    /// The matrix units that plans of a precision may use: those that round operands only where that is allowed.
    pub(crate) fn coop_at(&self, precision: Precision) -> Option<CoopConfig> {
        // Without units of f32 there is nothing to test.
        let units = self.gpu.attempt(|context| context.capabilities().cooperative_matrix);
        let rounds = units.is_ok_and(|units| units.f16_tile > 0);
        match rounds && precision == Precision::F32 {
            true => None,
            false => self.coop_config(),
        }
    }

    /// Does something with what the kernels of a plan are made with.
    fn with<T>(&self, plan: &ExecutionPlan, coop: Option<CoopConfig>, make: impl FnOnce(&With) -> T) -> T {
        let brought = self.brought_for(plan);
        let chosen = self.tuning.choices(plan.precision);
        make(&With {
            coop,
            brought: &brought,
            choices: chosen.as_ref().map(|chosen| chosen as &dyn ScheduleChooser),
            narrows: if self.narrows() { Narrows::Chosen } else { Narrows::No },
        })
    }

    /// Whether results that are only read to be rounded are kept in `f16`.
    pub(crate) fn narrows(&self) -> bool {
        !self.wanted.wide_results
    }

    pub(crate) fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Whether it is software that acts as a GPU.
    pub(crate) fn is_software(&self) -> bool {
        self.software
    }

    /// The kernels that others brought for a plan.
    pub(crate) fn brought_for(&self, plan: &ExecutionPlan) -> Brought {
        self.brought.of_plan(self, plan)
    }

    /// Launches of the kernel for a call, or the reason why there is none.
    fn answer(&self, kernel: &KernelDesc) -> std::result::Result<u32, String> {
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
        let brought = self.brought.kernel(self, kernel.name);
        let supports = || {
            kernels::supports(
                kernel,
                self.limits.buffer_bytes,
                brought.as_deref().map(|kernel| kernel as &dyn kernels::CustomKernel),
            )
        };
        let mut compiled = supports()?;
        // A driver may take a kernel of others for some sizes only. It is asked while a plan is made, when there is still
        // something in its place.
        if let Some(brought) = &brought
            && !self.brought.takes(self, brought, &compiled)
        {
            compiled = supports()?;
        }
        Ok(compiled.launches.len() as u32)
    }

    /// What kernels of others have to know of it.
    pub(crate) fn shader_device(&self) -> ShaderDevice {
        ShaderDevice {
            most_rounds: self.software.then_some(SOFTWARE_ROUNDS),
        }
    }

    pub(crate) fn pipelines(&self) -> &Pipelines {
        &self.pipelines
    }
}

/// Sessions on a context of the host application.
pub trait WithContext: Sized {
    /// A session on the device of a context that others may use, too. Several sessions share compiled kernels if they are
    /// opened [on](Session::on) one [`BladeDevice::from_context`] instead.
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

/// Rough rates of a class of devices.
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

impl Device for BladeDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn supports(&self, kernel: &KernelDesc) -> Support {
        match self.answer(kernel) {
            Ok(_) => Support::Yes,
            Err(reason) => Support::No(reason),
        }
    }

    fn launches(&self, kernel: &KernelDesc) -> u32 {
        self.answer(kernel).unwrap_or(1)
    }

    fn kernels(&self) -> String {
        // Which products use matrix units is part of a plan.
        let mut kernels = format!("{:?}", self.wanted);
        for brought in shader_kernels() {
            let used = self.brought.kernel(self, brought.op().name()).is_some();
            let _ = write!(kernels, ", {} {used}", brought.content());
        }
        if let Some(tuned) = self.tuning.fingerprint() {
            let _ = write!(kernels, ", tuned {tuned}");
        }
        kernels
    }

    fn has_mixed_precision(&self) -> bool {
        self.coop_config().is_some_and(|config| config.use_f16_input)
    }

    fn finalize(&self, plan: &mut ExecutionPlan) -> Result<()> {
        let brought = self.brought_for(plan);
        let chosen = self.tuning.choices(plan.precision);
        let with = With {
            coop: self.coop_at(plan.precision),
            brought: &brought,
            choices: chosen.as_ref().map(|chosen| chosen as &dyn ScheduleChooser),
            narrows: Narrows::No,
        };
        facts::choose_variants(plan, &with)
    }

    fn kernel_sources(&self, plan: &ExecutionPlan) -> Result<Vec<KernelSource>> {
        self.with(plan, self.coop_for(plan), |with| Ok(Draft::of(plan, with)?.sources()))
    }

    fn memory_beside(&self, plan: &ExecutionPlan) -> Result<u64> {
        self.with(plan, self.coop_for(plan), |with| Ok(Draft::of(plan, with)?.beside()))
    }

    fn tunable(&self) -> Option<&dyn Tune> {
        Some(self)
    }

    fn compile(&self, plan: &ExecutionPlan) -> Result<Box<dyn Executable>> {
        plan.verify()?;
        self.qualify(plan)?;
        let coop = self.coop_for(plan);
        let brought = self.brought_for(plan);
        let mut refusal = None;
        loop {
            let unmade = match self.with(plan, coop, |with| BladeExecutable::new(self, plan, with)) {
                Ok(executable) => return Ok(Box::new(executable)),
                Err(unmade) => unmade,
            };
            // There is always the usual way.
            if let Some(class) = &unmade.chosen {
                self.tuning.refuse(class, &unmade.error);
                continue;
            }
            // Only for a plan of another driver, say from a file: this one was asked while its plans were made.
            let kernel = unmade.brought.as_ref().and_then(|(op, _)| brought.get(op));
            match (kernel, unmade.brought.as_ref(), refusal) {
                (Some(kernel), Some((_, source)), _) => {
                    brought::refuse(self, kernel, Some(source.clone()), &unmade.error);
                    refusal = Some((kernel, *unmade.error));
                }
                (_, _, Some((kernel, refusal))) => {
                    return Err(brought::irreplaceable(self, kernel, &refusal, &unmade.error));
                }
                _ => return Err(*unmade.error),
            }
        }
    }
}
