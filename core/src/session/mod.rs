//! A session: a compiled plan with its memory; inputs are set and results read by tensor name.
//!
//! Every method that can fail has a `try_` form that returns a `Result`; the plain form panics with the
//! same message.

mod arrays;
mod counters;
mod debug;
mod device_tensor;
mod distributed;
mod levels;
mod loss_scale;
mod optimizer;
mod prepare;
mod profile;
mod progress;
mod read;
mod scalars;
mod sharding;
mod shared;
mod statistics;
mod summary;
mod tensors;
mod watched;
mod weights;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

pub use debug::{Defect, NonFinite};
pub use device_tensor::DeviceTensor;
pub use levels::Stage;
pub use profile::{TimingRow, Timings};
pub use progress::Progress;
pub use sharding::ShardedState;
pub use shared::SharedWeights;
pub use statistics::ResultStatistics;
pub use summary::MemorySummary;
pub use weights::{LoadOptions, LoadReport, Rename, Tensor, Weight, Weights};

use crate::backend::{Device, Executable, PassTiming, SharedBuffers, StepArgs, StepStats, Ticket};
use crate::config::Config;
use crate::debug::DebugOptions;
use crate::dtype::DType;
use crate::error::{Error, Result, TensorKind, unwrap_report};
use crate::host_memory;
use crate::plan::{
    ACCUMULATE, BufferRef, ExecutionPlan, FORWARD_BACKWARD, LOSS_SCALE, OWN_SEGMENTS, PREPARE, Segment, UPDATE,
};
use crate::profiler::DeviceTrack;
use crate::select;
use counters::OpenSteps;
use distributed::Distributed;
use optimizer::ActiveOptimizer;
pub(crate) use prepare::check_kernels;
use prepare::prepare;
use tensors::Tensors;
use watched::WatchedExecutable;
use weights::listed;

/// A compiled plan with its memory on a device.
pub struct Session {
    device: Arc<dyn Device>,
    executable: Box<WatchedExecutable>,
    plan: ExecutionPlan,
    tensors: Tensors,
    optimizer: Option<ActiveOptimizer>,
    /// Form of the plan's update, if it has one.
    attached: Option<String>,
    seed: u32,
    steps: u64,
    in_flight: OpenSteps,
    scalars: Vec<(BufferRef, [u8; 4])>,
    user_scalars: HashMap<String, f64>,
    last_ticket: Option<Ticket>,
    debug: DebugOptions,
    profiling: bool,
    /// `true` if any parameter was set or initialized: otherwise all are zero.
    parameters_set: bool,
    /// Times of passes that [`Session::take_timings`] has not returned yet.
    passes: Vec<PassTiming>,
    /// Track for passes in the trace, while a trace is recorded.
    track: Option<DeviceTrack>,
    /// State of data-parallel training over several ranks.
    distributed: Option<Distributed>,
    /// Weights that this session shares with other sessions.
    shared: Option<SharedWeights>,
    /// Parameters that could not be shared, and have no values yet.
    unshared: BTreeSet<String>,
}

impl Session {
    // ---- construction -------------------------------------------------------------------------

    /// Opens the device that environment and configuration file select, and prepares the plan on it.
    ///
    /// # Panics
    /// Panics with the text of the error if [`Session::try_new`] fails.
    #[must_use]
    #[track_caller]
    pub fn new(plan: ExecutionPlan) -> Self {
        unwrap_report(Session::try_new(plan))
    }

    /// Prepares a session like [`Session::new`], but returns errors instead of panicking.
    ///
    /// # Errors
    /// No such device; missing kernels; not enough memory.
    pub fn try_new(plan: ExecutionPlan) -> Result<Self> {
        let config = Config::load()?;
        let device = select::select(None, &config)?.open(&config)?;
        Session::on(device, plan)
    }

    /// Prepares a plan on an open device, with the debug options of the environment.
    ///
    /// # Errors
    /// An inconsistent plan; missing kernels, all listed; not enough memory; wrong debug options.
    pub fn on(device: Arc<dyn Device>, plan: ExecutionPlan) -> Result<Self> {
        Session::debugged(device, plan, DebugOptions::from_environment()?)
    }

    /// Calls [`Session::on`] with debug options.
    ///
    /// # Errors
    /// As [`Session::on`]; a folder for kernels that cannot be written.
    pub fn debugged(device: Arc<dyn Device>, plan: ExecutionPlan, debug: DebugOptions) -> Result<Self> {
        Session::compiled(device, plan, debug, &SharedBuffers::new())
    }

    /// Compiles a plan that borrows `shared` buffers, and creates the session.
    fn compiled(
        device: Arc<dyn Device>,
        plan: ExecutionPlan,
        debug: DebugOptions,
        shared: &SharedBuffers,
    ) -> Result<Self> {
        plan.verify()?;
        check_kernels(&*device, &plan)?;
        let executable = prepare(&*device, &plan, &debug, shared)?;
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
            in_flight: OpenSteps::default(),
            scalars: Vec::new(),
            user_scalars: HashMap::new(),
            last_ticket: None,
            debug,
            profiling: false,
            parameters_set: false,
            passes: Vec::new(),
            track: None,
            distributed: None,
            shared: None,
            unshared: BTreeSet::new(),
        })
    }

    /// Returns the plan.
    pub fn plan(&self) -> &ExecutionPlan {
        &self.plan
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    // ---- data in ------------------------------------------------------------------------------

    /// Uploads a parameter. It may be part of a packed parameter.
    ///
    /// # Errors
    /// Unknown name, the name of packed storage, wrong number of elements, a parameter that is not
    /// `f32`; for a parameter that is not contiguous in memory, errors of the last step.
    pub fn try_set_parameter(&mut self, name: &str, data: &[f32]) -> Result<()> {
        let tensor = self.tensors.find(TensorKind::Parameter, name)?;
        tensor.checked(DType::F32, data.len())?;
        tensor.write(&mut *self.executable, bytes_of(data))?;
        self.note_set(name);
        Ok(())
    }

    /// Calls [`Session::try_set_parameter`], and panics on errors.
    #[track_caller]
    pub fn set_parameter(&mut self, name: &str, data: &[f32]) {
        unwrap_report(self.try_set_parameter(name, data));
    }

    /// Uploads a parameter of any dtype as storage bytes (little-endian).
    ///
    /// # Errors
    /// As [`Session::try_set_parameter`], with the wrong number of bytes.
    pub fn try_set_parameter_bytes(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let tensor = self.tensors.find(TensorKind::Parameter, name)?;
        tensor.checked_bytes(bytes.len())?;
        tensor.write(&mut *self.executable, bytes)?;
        self.note_set(name);
        Ok(())
    }

    /// Writes a parameter: another name of [`Session::try_set_parameter`], for programs that fill caches.
    ///
    /// # Errors
    /// As [`Session::try_set_parameter`].
    pub fn try_upload_param(&mut self, name: &str, data: &[f32]) -> Result<()> {
        self.try_set_parameter(name, data)
    }

    /// Calls [`Session::try_upload_param`], and panics on errors.
    #[track_caller]
    pub fn upload_param(&mut self, name: &str, data: &[f32]) {
        unwrap_report(self.try_upload_param(name, data));
    }

    /// Fills every `f32` parameter by its initializer (zeros by default). The values depend only on
    /// the seed and the parameter's name, even if parameters are stored packed. Parameters of other
    /// types do not change.
    ///
    /// # Errors
    /// A lost device; [`Error::HostMemory`].
    pub fn try_initialize_parameters(&mut self, seed: u64) -> Result<()> {
        self.parameters_set = true;
        self.unshared.clear();
        for ((name, buffer), info) in self.plan.param_buffers.iter().zip(&self.plan.param_info) {
            let ty = &self.plan.buffer_types[buffer.index()];
            if ty.dtype != DType::F32 {
                continue;
            }
            let Some(derived) = self.plan.derived(*buffer) else {
                let values = info.init.try_values(name, ty.numel(), seed)?;
                self.executable.write(*buffer, 0, bytes_of(&values))?;
                continue;
            };
            let mut storage = host_memory::filled(&format!("the first values of '{name}'"), ty.bytes(), 0)?;
            let inits = self.plan.derived_info[derived].init.iter();
            for ((source, ty, part), init) in self.plan.sources(derived).into_iter().zip(inits) {
                let values = init.try_values(source, ty.numel(), seed)?;
                let span = part.offset..part.offset + part.span();
                part.scatter(bytes_of(&values), &mut storage[span]);
            }
            self.executable.write(*buffer, 0, &storage)?;
        }
        Ok(())
    }

    /// Calls [`Session::try_initialize_parameters`], and panics on errors.
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

    /// Calls [`Session::try_set_input`], and panics on errors.
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

    /// Calls [`Session::try_set_input_u32`], and panics on errors.
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
        let tensor = self.tensors.find(TensorKind::State, name)?;
        tensor.checked(DType::F32, data.len())?;
        tensor.write(&mut *self.executable, bytes_of(data))
    }

    /// Calls [`Session::try_set_state`], and panics on errors.
    #[track_caller]
    pub fn set_state(&mut self, name: &str, data: &[f32]) {
        unwrap_report(self.try_set_state(name, data));
    }

    /// Sets the seed of the random numbers of the following steps, such as in dropout.
    pub fn set_seed(&mut self, seed: u64) {
        // Use both halves of the seed.
        self.seed = (seed ^ (seed >> 32)) as u32;
    }

    // ---- execution ----------------------------------------------------------------------------

    /// Submits forward, backward and, with an optimizer set, the update, as one submission.
    ///
    /// A step with a fault, such as an index out of range, changes no parameter, no state and no
    /// counter. Its error may be returned by a later call; the steps that were submitted in between
    /// are then rolled back, too.
    ///
    /// # Errors
    /// Inputs that were never set; a training step before any parameter was set; a lost device; errors of the step's
    /// kernels. Errors of kernels may be returned later: by the next call that waits, or by a later step, which then does not
    /// run.
    pub fn try_step(&mut self) -> Result<()> {
        self.submit(None)
    }

    /// Submits a step like [`Session::try_step`], but of the segment of a plan that was merged into this session
    /// ([`ExecutionPlan::join`]). Inputs of other segments need no data, and outputs of other segments do not change.
    ///
    /// # Errors
    /// As [`Session::try_step`]; no such segment.
    pub fn try_step_of(&mut self, segment: &str) -> Result<()> {
        let is_merged = |s: &Segment| !s.once && !OWN_SEGMENTS.contains(&s.name.as_str());
        let number = self.plan.segments.iter().position(|s| s.name == segment);
        let Some(number) = number.filter(|&number| is_merged(&self.plan.segments[number])) else {
            let known = self.plan.segments.iter().filter(|s| is_merged(s));
            let known: Vec<&str> = known.map(|s| s.name.as_str()).collect();
            return Err(Error::misuse(
                format!("no plan was merged into this session as segment '{segment}'"),
                format!("there are: {}", known.join(", ")),
            ));
        };
        self.submit(Some(number))
    }

    /// Submits a segment, or all segments that are due.
    fn submit(&mut self, segment: Option<usize>) -> Result<()> {
        let _step = tracing::debug_span!("step", number = self.steps).entered();
        self.follow_trace();
        // Due segments depend on the counters, which a rolled-back step reverts.
        self.settle();
        let (segments, count) = match segment {
            Some(segment) => self.with_preparation(segment),
            None => self.due_segments(),
        };
        let segments = &segments[..count];
        self.tensors.check_inputs_set(segments)?;
        self.check_parameters_set()?;
        self.gather_scalars()?;
        let before_update = segments.iter().position(|&s| self.is_update(s));
        match before_update {
            // The update needs the gradients of all ranks.
            Some(at) if self.distributed.is_some() => {
                self.run_and_reduce(&segments[..at])?;
                self.run_segments(&segments[at..])?;
                self.restore_inputs()?;
                self.share_parameters()?;
            }
            _ => self.run_segments(segments)?,
        }
        self.count_step();
        if let (true, Some(ticket)) = (self.has_too_many_in_flight(), self.last_ticket) {
            self.executable.wait(ticket)?;
        }
        self.collect_passes();
        Ok(())
    }

    /// Submits segments with the gathered scalars. If they are rolled back later, the counters return to their current
    /// values.
    fn run_segments(&mut self, segments: &[usize]) -> Result<()> {
        let submit = tracing::debug_span!("submit", submission = tracing::field::Empty).entered();
        let ticket = self.executable.run(&StepArgs {
            segments,
            scalars: &self.scalars,
        })?;
        submit.record("submission", ticket.0);
        self.last_ticket = Some(ticket);
        self.note_submission();
        Ok(())
    }

    /// Returns `true` for the segments of the update.
    fn is_update(&self, segment: usize) -> bool {
        matches!(self.plan.segments[segment].name.as_str(), LOSS_SCALE | UPDATE)
    }

    /// Rejects a training step if no parameter was initialized or set: all are then zero, and most of them would
    /// silently stay zero.
    fn check_parameters_set(&mut self) -> Result<()> {
        self.check_unshared_set()?;
        if self.parameters_set || self.optimizer.is_none() || self.plan.param_grad_pairs.is_empty() {
            return Ok(());
        }
        let parameters = self.plan.parameters();
        // Vectors may start at zero in a valid model, but a network does not learn from zero
        // matrices.
        if parameters.iter().all(|view| view.ty.shape.rank() < 2) {
            return Ok(());
        }
        let names: Vec<String> = parameters.into_iter().map(|view| view.name).collect();
        Err(Error::misuse(
            format!(
                "training starts, but no parameter was initialized or set: {} are all zero",
                listed(&names)
            ),
            "call `initialize_parameters(seed)`, or set or load them; to train from zeros, set one to zeros",
        ))
    }

    /// Returns the segments that the next step runs, and their number.
    fn due_segments(&mut self) -> ([usize; OWN_SEGMENTS.len()], usize) {
        let mut segments = [0; OWN_SEGMENTS.len()];
        let mut count = 0;
        for i in 0..self.plan.segments.len() {
            if count < segments.len() && self.is_due(i) {
                segments[count] = i;
                count += 1;
            }
        }
        (segments, count)
    }

    /// Returns a segment of a merged plan. If the segment that prepares its values has to run, that segment comes
    /// first. Also returns their number.
    fn with_preparation(&mut self, segment: usize) -> ([usize; OWN_SEGMENTS.len()], usize) {
        let mut segments = [segment; OWN_SEGMENTS.len()];
        match self.plan.prepared_by(segment) {
            Some(before) if self.executable.is_stale(before) => {
                segments[0] = before;
                (segments, 2)
            }
            _ => (segments, 1),
        }
    }

    /// Returns `true` if the next step runs a segment of the plan.
    fn is_due(&mut self, segment: usize) -> bool {
        let active = self.optimizer.as_ref().filter(|active| !active.paused);
        match self.plan.segments[segment].name.as_str() {
            PREPARE => self.executable.is_stale(segment),
            FORWARD_BACKWARD => true,
            ACCUMULATE => active.is_some(),
            LOSS_SCALE | UPDATE => active.is_some_and(ActiveOptimizer::is_due),
            _ => false,
        }
    }

    /// Calls [`Session::try_step`], and panics on errors.
    #[track_caller]
    pub fn step(&mut self) {
        unwrap_report(self.try_step());
    }

    /// Blocks until the last submission is complete.
    ///
    /// # Errors
    /// A lost device; errors of the step's kernels.
    pub fn try_wait(&mut self) -> Result<StepStats> {
        let _wait = tracing::debug_span!("wait").entered();
        let stats = match self.last_ticket {
            Some(ticket) => self.executable.wait(ticket),
            None => Ok(StepStats::default()),
        };
        self.collect_passes();
        stats
    }

    /// Calls [`Session::try_wait`], and panics on errors.
    #[track_caller]
    pub fn wait(&mut self) {
        unwrap_report(self.try_wait());
    }

    /// Returns a summary of the session's memory.
    pub fn memory_summary(&self) -> MemorySummary {
        MemorySummary::of(&self.plan)
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("device", &self.device.capabilities().name)
            .field("dispatches", &self.plan.dispatches.len())
            .field("steps", &self.counters().steps)
            .finish_non_exhaustive()
    }
}

/// Numbers of 4 bytes, for which any bytes are a valid value.
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
