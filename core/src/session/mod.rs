//! A session: a compiled plan with its memory, fed, stepped and read by tensor name.
//!
//! Every method that can fail has a `try_` form that returns a `Result`; the plain form panics with the
//! same message.

mod summary;
mod tensors;

use std::collections::HashMap;
use std::sync::Arc;

pub use summary::MemorySummary;

use crate::backend::{Device, Executable, KernelDesc, StepArgs, StepStats, Support, Ticket};
use crate::config::Config;
use crate::dtype::DType;
use crate::error::{Error, MissingKernel, Result, TensorKind, unwrap_report};
use crate::init::Init;
use crate::ops::{SEED_SCALAR, STEP_SCALAR};
use crate::plan::optimizer::{Adam, Optimizer, Sgd, attach};
use crate::plan::{BufferRef, ExecutionPlan, FORWARD_BACKWARD, UPDATE, scalar_bytes};
use crate::select;
use tensors::Tensors;

/// A compiled plan with its memory on a device.
pub struct Session {
    device: Arc<dyn Device>,
    executable: Box<dyn Executable>,
    plan: ExecutionPlan,
    tensors: Tensors,
    optimizer: Option<ActiveOptimizer>,
    /// Form of the update that the plan holds, if it holds one.
    attached: Option<String>,
    seed: u32,
    steps: u64,
    scalars: Vec<(BufferRef, [u8; 4])>,
    user_scalars: HashMap<String, f64>,
    last_ticket: Option<Ticket>,
}

struct ActiveOptimizer {
    rule: Box<dyn Optimizer>,
    /// Updates made so far.
    updates: u64,
}

impl Session {
    // ---- construction -------------------------------------------------------------------------

    /// Opens the device that environment and configuration file select, and prepares the plan on it.
    ///
    /// # Panics
    /// With the report of [`Session::try_new`]'s error.
    #[must_use]
    #[track_caller]
    pub fn new(plan: ExecutionPlan) -> Self {
        unwrap_report(Session::try_new(plan))
    }

    /// [`Session::new`] with errors as values.
    ///
    /// # Errors
    /// No such device; kernels that it lacks; memory that is not there.
    pub fn try_new(plan: ExecutionPlan) -> Result<Self> {
        let config = Config::load()?;
        let device = select::select(None, &config)?.open(&config)?;
        Session::on(device, plan)
    }

    /// Prepares a plan on a device that is open already.
    ///
    /// # Errors
    /// An inconsistent plan; kernels that the device lacks, all listed; memory that is not there.
    pub fn on(device: Arc<dyn Device>, plan: ExecutionPlan) -> Result<Self> {
        plan.verify()?;
        check_kernels(&*device, &plan)?;
        let executable = device.compile(&plan)?;
        let attached = plan.segment(UPDATE).map(|_| String::new());
        Ok(Session {
            tensors: Tensors::of(&plan),
            device,
            executable,
            plan,
            optimizer: None,
            attached,
            seed: 0,
            steps: 0,
            scalars: Vec::new(),
            user_scalars: HashMap::new(),
            last_ticket: None,
        })
    }

    /// Takes an optimizer whose update the plan holds already.
    pub(crate) fn adopt_optimizer(&mut self, rule: Box<dyn Optimizer>) {
        self.attached = Some(rule.kind());
        self.optimizer = Some(ActiveOptimizer { rule, updates: 0 });
    }

    /// The plan.
    pub fn plan(&self) -> &ExecutionPlan {
        &self.plan
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    // ---- data in ------------------------------------------------------------------------------

    /// Uploads a parameter.
    ///
    /// # Errors
    /// Unknown name, wrong number of elements, a parameter that is not `f32`.
    pub fn try_set_parameter(&mut self, name: &str, data: &[f32]) -> Result<()> {
        let buffer = self
            .tensors
            .find(TensorKind::Parameter, name)?
            .checked(DType::F32, data.len())?;
        self.executable.write(buffer, 0, bytes_of(data))
    }

    /// [`Session::try_set_parameter`], panicking with its report.
    #[track_caller]
    pub fn set_parameter(&mut self, name: &str, data: &[f32]) {
        unwrap_report(self.try_set_parameter(name, data));
    }

    /// Writes a parameter: [`Session::try_set_parameter`] under the name that filling a cache goes by.
    ///
    /// # Errors
    /// As there.
    pub fn try_upload_param(&mut self, name: &str, data: &[f32]) -> Result<()> {
        self.try_set_parameter(name, data)
    }

    /// [`Session::try_upload_param`], panicking with its report.
    #[track_caller]
    pub fn upload_param(&mut self, name: &str, data: &[f32]) {
        unwrap_report(self.try_upload_param(name, data));
    }

    /// Fills every parameter that has an initial distribution; the values depend on the seed and the
    /// parameter's name alone.
    ///
    /// # Errors
    /// A lost device.
    pub fn try_initialize_parameters(&mut self, seed: u64) -> Result<()> {
        for ((name, buffer), info) in self.plan.param_buffers.iter().zip(&self.plan.param_info) {
            if info.init == Init::Zeros {
                continue;
            }
            let len = self.plan.buffer_types[buffer.index()].numel();
            let values = info.init.values(name, len, seed);
            self.executable.write(*buffer, 0, bytes_of(&values))?;
        }
        Ok(())
    }

    /// [`Session::try_initialize_parameters`], panicking with its report.
    #[track_caller]
    pub fn initialize_parameters(&mut self, seed: u64) {
        unwrap_report(self.try_initialize_parameters(seed));
    }

    /// Uploads an `f32` input for the next step.
    ///
    /// # Errors
    /// Unknown name, wrong number of elements, an input of another dtype.
    pub fn try_set_input(&mut self, name: &str, data: &[f32]) -> Result<()> {
        let tensor = self.tensors.find(TensorKind::Input, name)?;
        let buffer = tensor.checked(DType::F32, data.len())?;
        self.executable.write(buffer, 0, bytes_of(data))?;
        self.tensors.mark_set(name);
        Ok(())
    }

    /// [`Session::try_set_input`], panicking with its report.
    #[track_caller]
    pub fn set_input(&mut self, name: &str, data: &[f32]) {
        unwrap_report(self.try_set_input(name, data));
    }

    /// Uploads a `u32` input for the next step.
    ///
    /// # Errors
    /// Unknown name, wrong number of elements, an input of another dtype.
    pub fn try_set_input_u32(&mut self, name: &str, data: &[u32]) -> Result<()> {
        let tensor = self.tensors.find(TensorKind::Input, name)?;
        let buffer = tensor.checked(DType::U32, data.len())?;
        self.executable.write(buffer, 0, bytes_of(data))?;
        self.tensors.mark_set(name);
        Ok(())
    }

    /// [`Session::try_set_input_u32`], panicking with its report.
    #[track_caller]
    pub fn set_input_u32(&mut self, name: &str, data: &[u32]) {
        unwrap_report(self.try_set_input_u32(name, data));
    }

    /// Uploads an input of any dtype as storage bytes (little-endian).
    ///
    /// # Errors
    /// Unknown name, wrong number of bytes.
    pub fn try_set_input_bytes(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let tensor = self.tensors.find(TensorKind::Input, name)?;
        let buffer = tensor.checked_bytes(bytes.len())?;
        self.executable.write(buffer, 0, bytes)?;
        self.tensors.mark_set(name);
        Ok(())
    }

    /// Sets persistent data that is not a parameter (running statistics, caches).
    ///
    /// # Errors
    /// Unknown name, wrong number of elements.
    pub fn try_set_state(&mut self, name: &str, data: &[f32]) -> Result<()> {
        let buffer = self
            .tensors
            .find(TensorKind::State, name)?
            .checked(DType::F32, data.len())?;
        self.executable.write(buffer, 0, bytes_of(data))
    }

    /// Sets a scalar of the graph for all following steps.
    ///
    /// # Errors
    /// Unknown name.
    pub fn try_set_scalar(&mut self, name: &str, value: f64) -> Result<()> {
        if !self.plan.scalar_buffers.iter().any(|(n, _)| n == name) {
            let known = self.plan.scalar_buffers.iter().map(|(n, _)| n.as_str());
            return Err(Error::unknown_tensor(TensorKind::Input, name, known));
        }
        self.user_scalars.insert(name.to_owned(), value);
        Ok(())
    }

    /// Seed of the random numbers of the following steps (dropout masks).
    pub fn set_seed(&mut self, seed: u64) {
        // Both halves count.
        self.seed = (seed ^ (seed >> 32)) as u32;
    }

    // ---- optimizer ----------------------------------------------------------------------------

    /// Makes an update by this rule part of every following step. A change of hyper-parameters alone keeps
    /// the moments; another kind of rule starts with new ones.
    ///
    /// # Errors
    /// Hyper-parameters out of range; a plan without gradients.
    pub fn try_set_optimizer(&mut self, rule: impl Optimizer + 'static) -> Result<()> {
        self.try_set_boxed_optimizer(Box::new(rule))
    }

    /// [`Session::try_set_optimizer`] for a rule behind a pointer.
    ///
    /// # Errors
    /// As there.
    pub fn try_set_boxed_optimizer(&mut self, rule: Box<dyn Optimizer>) -> Result<()> {
        rule.check()
            .map_err(|m| Error::misuse(m, "correct the hyper-parameter"))?;
        let kind = rule.kind();
        if self.attached.as_deref() != Some(&kind) {
            self.rebuild_with(&*rule)?;
            self.optimizer = None;
        }
        let updates = match &self.optimizer {
            Some(active) if active.rule.kind() == kind => active.updates,
            _ => 0,
        };
        self.attached = Some(kind);
        self.optimizer = Some(ActiveOptimizer { rule, updates });
        Ok(())
    }

    /// [`Session::try_set_optimizer`], panicking with its report.
    #[track_caller]
    pub fn set_optimizer(&mut self, rule: impl Optimizer + 'static) {
        unwrap_report(self.try_set_optimizer(rule));
    }

    /// Makes a plain SGD update part of every following step. The last optimizer call wins.
    ///
    /// # Errors
    /// As [`Session::try_set_optimizer`].
    pub fn try_set_learning_rate(&mut self, lr: f32) -> Result<()> {
        self.try_set_optimizer(Sgd::new(lr))
    }

    /// [`Session::try_set_learning_rate`], panicking with its report.
    #[track_caller]
    pub fn set_learning_rate(&mut self, lr: f32) {
        unwrap_report(self.try_set_learning_rate(lr));
    }

    /// Makes an Adam update part of every following step. The last optimizer call wins.
    ///
    /// # Errors
    /// As [`Session::try_set_optimizer`].
    pub fn try_set_adam(&mut self, lr: f32, beta1: f32, beta2: f32, eps: f32) -> Result<()> {
        self.try_set_optimizer(Adam {
            beta1,
            beta2,
            eps,
            ..Adam::new(lr)
        })
    }

    /// [`Session::try_set_adam`], panicking with its report.
    #[track_caller]
    pub fn set_adam(&mut self, lr: f32, beta1: f32, beta2: f32, eps: f32) {
        unwrap_report(self.try_set_adam(lr, beta1, beta2, eps));
    }

    /// Stops updates: following steps compute gradients and change no parameter.
    pub fn clear_optimizer(&mut self) {
        self.optimizer = None;
    }

    /// Changes the rate of the optimizer in force, whatever its rule. Without one, nothing.
    pub fn adjust_learning_rate(&mut self, lr: f32) {
        if let Some(active) = &mut self.optimizer {
            active.rule.set_learning_rate(lr);
        }
    }

    /// Compiles the plan anew with the update of this rule, carrying parameters, states and inputs over.
    fn rebuild_with(&mut self, rule: &dyn Optimizer) -> Result<()> {
        let mut plan = self.plan.clone();
        attach(&mut plan, rule, &*self.device)?;
        let mut executable = self.device.compile(&plan)?;
        let named = plan.param_buffers.iter().chain(&plan.input_buffers).map(|(_, b)| *b);
        let states = plan.state_buffers.iter().filter(|s| !s.optimizer).map(|s| s.buffer);
        // Results of the last step stay readable.
        let results = plan.output_buffers.iter().copied();
        let gradients = plan.gradient_buffers.iter().map(|(_, b)| *b);
        for buffer in named.chain(states).chain(results).chain(gradients) {
            let mut bytes = vec![0; plan.buffers[buffer.index()]];
            self.executable.read(buffer, 0, &mut bytes)?;
            executable.write(buffer, 0, &bytes)?;
        }
        self.executable = executable;
        self.plan = plan;
        self.tensors.renew(&self.plan);
        Ok(())
    }

    // ---- execution ----------------------------------------------------------------------------

    /// Submits forward, backward and, with an optimizer set, the update, as one submission.
    ///
    /// # Errors
    /// Inputs that were never set; a lost device; errors of the step's kernels (they may also come out of
    /// the next call that waits).
    pub fn try_step(&mut self) -> Result<()> {
        self.tensors.check_inputs_set()?;
        let update = self.optimizer.is_some();
        self.gather_scalars();
        let mut segments = [0; 2];
        let mut count = 0;
        for (i, segment) in self.plan.segments.iter().enumerate() {
            let wanted = segment.name == FORWARD_BACKWARD || (segment.name == UPDATE && update);
            if wanted && count < segments.len() {
                segments[count] = i;
                count += 1;
            }
        }
        let ticket = self.executable.run(&StepArgs {
            segments: &segments[..count],
            scalars: &self.scalars,
        })?;
        self.last_ticket = Some(ticket);
        self.steps += 1;
        if let Some(active) = &mut self.optimizer {
            active.updates += 1;
        }
        Ok(())
    }

    /// [`Session::try_step`], panicking with its report.
    #[track_caller]
    pub fn step(&mut self) {
        unwrap_report(self.try_step());
    }

    /// Blocks until the last submission is complete.
    ///
    /// # Errors
    /// A lost device; errors of the step's kernels.
    pub fn try_wait(&mut self) -> Result<StepStats> {
        match self.last_ticket {
            Some(ticket) => self.executable.wait(ticket),
            None => Ok(StepStats::default()),
        }
    }

    /// [`Session::try_wait`], panicking with its report.
    #[track_caller]
    pub fn wait(&mut self) {
        unwrap_report(self.try_wait());
    }

    /// Values of all scalars for the next step, in memory that is reused.
    fn gather_scalars(&mut self) {
        let plan = &self.plan;
        self.scalars.clear();
        for (name, buffer) in &plan.scalar_buffers {
            let value = match name.as_str() {
                SEED_SCALAR => f64::from(self.seed),
                STEP_SCALAR => f64::from(self.steps as u32),
                _ => self.user_scalars.get(name).copied().unwrap_or(0.0),
            };
            let dtype = plan.buffer_types[buffer.index()].dtype;
            self.scalars.push((*buffer, scalar_bytes(dtype, value)));
        }
        let Some(active) = &self.optimizer else { return };
        let scalars = &mut self.scalars;
        active.rule.scalars(active.updates + 1, &mut |name, value| {
            for ((n, buffer), slot) in plan.scalar_buffers.iter().zip(scalars.iter_mut()) {
                if n == name {
                    let dtype = plan.buffer_types[buffer.index()].dtype;
                    slot.1 = scalar_bytes(dtype, value);
                }
            }
        });
    }

    // ---- data out -----------------------------------------------------------------------------

    /// The loss of the last step: the first output.
    ///
    /// # Errors
    /// A plan without outputs, or whose first output is not one `f32`; errors of the step.
    pub fn try_read_loss(&mut self) -> Result<f32> {
        let mut loss = [0.0];
        self.try_read_output_by_index(0, &mut loss)?;
        Ok(loss[0])
    }

    /// [`Session::try_read_loss`], panicking with its report.
    #[track_caller]
    pub fn read_loss(&mut self) -> f32 {
        unwrap_report(self.try_read_loss())
    }

    /// The first `len` elements of the first output.
    ///
    /// # Errors
    /// As [`Session::try_read_output_by_index`].
    pub fn try_read_output(&mut self, len: usize) -> Result<Vec<f32>> {
        let mut data = vec![0.0; len];
        self.read_output_prefix(0, &mut data, true)?;
        Ok(data)
    }

    /// [`Session::try_read_output`], panicking with its report.
    #[track_caller]
    pub fn read_output(&mut self, len: usize) -> Vec<f32> {
        unwrap_report(self.try_read_output(len))
    }

    /// The whole output of that index.
    ///
    /// # Errors
    /// No such output, another number of elements or another dtype; errors of the step.
    pub fn try_read_output_by_index(&mut self, index: usize, data: &mut [f32]) -> Result<()> {
        self.read_output_prefix(index, data, false)
    }

    /// [`Session::try_read_output_by_index`], panicking with its report.
    #[track_caller]
    pub fn read_output_by_index(&mut self, index: usize, data: &mut [f32]) {
        unwrap_report(self.try_read_output_by_index(index, data));
    }

    /// The whole `u32` output of that index.
    ///
    /// # Errors
    /// As [`Session::try_read_output_by_index`].
    pub fn try_read_output_u32(&mut self, index: usize, data: &mut [u32]) -> Result<()> {
        let buffer = self
            .tensors
            .output(&self.plan, index)?
            .checked(DType::U32, data.len())?;
        self.executable.read(buffer, 0, bytes_of_mut(data))
    }

    /// Storage bytes of the output of that index.
    ///
    /// # Errors
    /// No such output; errors of the step.
    pub fn try_read_output_bytes(&mut self, index: usize) -> Result<Vec<u8>> {
        let tensor = self.tensors.output(&self.plan, index)?;
        let mut bytes = vec![0; tensor.ty.bytes()];
        self.executable.read(tensor.buffer, 0, &mut bytes)?;
        Ok(bytes)
    }

    fn read_output_prefix(&mut self, index: usize, data: &mut [f32], prefix: bool) -> Result<()> {
        let tensor = self.tensors.output(&self.plan, index)?;
        let enough = prefix && data.len() <= tensor.ty.numel();
        let len = if enough { tensor.ty.numel() } else { data.len() };
        let buffer = tensor.checked(DType::F32, len)?;
        self.executable.read(buffer, 0, bytes_of_mut(data))
    }

    /// A parameter.
    ///
    /// # Errors
    /// Unknown name; errors of the step.
    pub fn try_read_parameter(&mut self, name: &str) -> Result<Vec<f32>> {
        self.read_named(TensorKind::Parameter, name)
    }

    /// [`Session::try_read_parameter`], panicking with its report.
    #[track_caller]
    pub fn read_parameter(&mut self, name: &str) -> Vec<f32> {
        unwrap_report(self.try_read_parameter(name))
    }

    /// The gradient of a parameter, or of an input marked by `require_grad`, in the last step.
    ///
    /// # Errors
    /// Unknown name, or one without a gradient; errors of the step.
    pub fn try_read_grad(&mut self, name: &str) -> Result<Vec<f32>> {
        self.read_named(TensorKind::Gradient, name)
    }

    /// [`Session::try_read_grad`], panicking with its report.
    #[track_caller]
    pub fn read_grad(&mut self, name: &str) -> Vec<f32> {
        unwrap_report(self.try_read_grad(name))
    }

    /// Persistent data that is not a parameter.
    ///
    /// # Errors
    /// Unknown name; errors of the step.
    pub fn try_read_state(&mut self, name: &str) -> Result<Vec<f32>> {
        self.read_named(TensorKind::State, name)
    }

    fn read_named(&mut self, kind: TensorKind, name: &str) -> Result<Vec<f32>> {
        let tensor = self.tensors.find(kind, name)?;
        let len = tensor.ty.numel();
        let buffer = tensor.checked(DType::F32, len)?;
        let mut data = vec![0.0; len];
        self.executable.read(buffer, 0, bytes_of_mut(&mut data))?;
        Ok(data)
    }

    /// Copies parameters and states (not the optimizer's) of the same names and types from another session,
    /// such as from a training to an evaluation session.
    ///
    /// # Errors
    /// A tensor of another size; errors of either device.
    pub fn try_copy_weights_from(&mut self, other: &mut Session) -> Result<()> {
        let params: Vec<String> = self.plan.param_buffers.iter().map(|(n, _)| n.clone()).collect();
        for name in params {
            if other.tensors.find(TensorKind::Parameter, &name).is_ok() {
                let data = other.try_read_parameter(&name)?;
                self.try_set_parameter(&name, &data)?;
            }
        }
        let states: Vec<String> = self.plan.state_buffers.iter().map(|s| s.name.clone()).collect();
        for name in states {
            if other.tensors.find(TensorKind::State, &name).is_ok() {
                let data = other.try_read_state(&name)?;
                self.try_set_state(&name, &data)?;
            }
        }
        Ok(())
    }

    /// Memory of the session.
    pub fn memory_summary(&self) -> MemorySummary {
        MemorySummary::of(&self.plan)
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("device", &self.device.capabilities().name)
            .field("dispatches", &self.plan.dispatches.len())
            .field("steps", &self.steps)
            .finish_non_exhaustive()
    }
}

/// A plan may list only kernels that the device has.
fn check_kernels(device: &dyn Device, plan: &ExecutionPlan) -> Result<()> {
    let mut missing: Vec<MissingKernel> = Vec::new();
    for d in &plan.dispatches {
        let inputs: Vec<_> = d.inputs.iter().map(|o| o.ty.clone()).collect();
        let outputs: Vec<_> = d.outputs.iter().map(|o| o.ty.clone()).collect();
        let desc = KernelDesc {
            name: &d.kernel.name,
            version: d.kernel.version,
            attrs: &d.attrs,
            inputs: &inputs,
            outputs: &outputs,
        };
        if let Support::No(reason) = device.supports(&desc) {
            missing.push(MissingKernel {
                kernel: desc.to_string(),
                label: d.label.clone(),
                reason,
            });
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::MissingKernels {
        device: device.capabilities().name.clone(),
        missing,
    })
}

/// Plain 4-byte numbers, whose bytes may be looked at and replaced freely.
trait Word: Copy {}
impl Word for f32 {}
impl Word for u32 {}

fn bytes_of<T: Word>(data: &[T]) -> &[u8] {
    // SAFETY: `Word` types have no padding and every bit pattern is valid; the length in bytes is that of
    // the slice, which fits in isize; u8 has no alignment.
    unsafe { std::slice::from_raw_parts(data.as_ptr().cast(), size_of_val(data)) }
}

fn bytes_of_mut<T: Word>(data: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `bytes_of`; any bytes written form valid `Word`s; the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data)) }
}
