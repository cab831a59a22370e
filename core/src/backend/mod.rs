//! What a backend implements: a few methods, none per operator.
//!
//! A [`Backend`] finds [`Device`]s; a device says which kernels it has and compiles an [`ExecutionPlan`] to
//! an [`Executable`], which a session feeds, runs and reads.

pub mod shader;
mod target;
mod tune;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::error::{Error, Result};
pub use crate::kernel::{Capabilities, CostModel, KernelDesc, Support};
use crate::plan::{BufferRef, ExecutionPlan, Part};
pub use tune::{RefusedSchedule, Tune, TuneOptions, Tuned};

/// Name, version and origin of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendInfo {
    /// Name as selectors use it: lower case, without a colon.
    pub name: String,
    /// Version of the crate or plugin.
    pub version: String,
    /// Where it comes from: a crate, or a file.
    pub origin: String,
}

/// Class of a device; the automatic choice is made by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The host's processor.
    Cpu,
    /// A GPU with memory of its own.
    DiscreteGpu,
    /// A GPU that shares the host's memory.
    IntegratedGpu,
    /// Another accelerator.
    Accelerator,
    /// A GPU interface emulated on the processor: never chosen automatically.
    Software,
}

impl DeviceKind {
    /// Word for listings.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::DiscreteGpu => "discrete GPU",
            DeviceKind::IntegratedGpu => "integrated GPU",
            DeviceKind::Accelerator => "accelerator",
            DeviceKind::Software => "software rasteriser",
        }
    }

    /// Whether the host's processor computes, whatever the interface.
    pub fn is_host(self) -> bool {
        matches!(self, DeviceKind::Cpu | DeviceKind::Software)
    }
}

/// A device that a backend found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Position in the backend's listing.
    pub index: usize,
    /// Human-readable name.
    pub name: String,
    /// Class.
    pub kind: DeviceKind,
    /// Numeric identity in the backend's own terms (for Vulkan the device id), if it has one.
    pub numeric_id: Option<u64>,
    /// Identity of the hardware, if known, which is the same for every backend that reaches it: of a GPU the 16 bytes of its UUID as
    /// hexadecimal digits in lower case.
    pub hardware: Option<String>,
    /// Memory in bytes, if known.
    pub memory_bytes: Option<u64>,
    /// Driver and its version, if there is one.
    pub driver: Option<String>,
    /// Why the device cannot be used, if it cannot.
    pub rejected: Option<String>,
    /// Anything a user should know, such as that it cannot be distinguished from a second device.
    pub note: Option<String>,
    /// Properties in the backend's own terms, for diagnosis.
    pub details: Vec<Fact>,
}

/// A property of a device or of its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
}

impl Fact {
    /// A property with its value.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Fact {
            name: name.into(),
            value: value.into(),
        }
    }
}

impl DeviceInfo {
    /// A usable device with nothing but its name and class known.
    pub fn new(index: usize, name: impl Into<String>, kind: DeviceKind) -> Self {
        DeviceInfo {
            index,
            name: name.into(),
            kind,
            numeric_id: None,
            hardware: None,
            memory_bytes: None,
            driver: None,
            rejected: None,
            note: None,
            details: Vec::new(),
        }
    }
}

/// A family of devices.
pub trait Backend: Send + Sync {
    /// Name, version, origin.
    fn info(&self) -> BackendInfo;

    /// All devices, the rejected ones with their reason.
    ///
    /// # Errors
    /// When the search itself fails (a driver that cannot be loaded is not an error but no device).
    fn devices(&self, config: &Config) -> Result<Vec<DeviceInfo>>;

    /// Opens the device of that index in the listing.
    ///
    /// # Errors
    /// When it does not exist, is rejected, or fails to open.
    fn open(&self, index: usize, config: &Config) -> Result<Arc<dyn Device>>;

    /// Which backend is chosen automatically of several that reach the same hardware: that with the greatest number whose
    /// [`self_test`](Backend::self_test) passes.
    fn preference(&self) -> u32 {
        0
    }

    /// Whether a device computes right, as far as that is found out in a second. It is asked before the automatic choice prefers the
    /// device to that of another backend for the same hardware.
    ///
    /// # Errors
    /// What is wrong with it.
    fn self_test(&self, index: usize, config: &Config) -> Result<()> {
        let _ = (index, config);
        Ok(())
    }

    /// Why there are no devices, where [`Backend::devices`] lists none: no driver, for instance.
    fn unavailable_reason(&self) -> Option<String> {
        None
    }

    /// Its environment, which determines the devices: drivers, variables, versions.
    fn environment(&self) -> Vec<Fact> {
        Vec::new()
    }

    /// Kernels and the like of other crates that were rejected, and why.
    fn problems(&self) -> Vec<Error> {
        Vec::new()
    }
}

/// An open device.
pub trait Device: Send + Sync {
    /// What it can do.
    fn capabilities(&self) -> &Capabilities;

    /// Whether it has a kernel for a call.
    fn supports(&self, kernel: &KernelDesc) -> Support;

    /// The number of dependent launches that a call takes for which it has a kernel; the cost of a call includes them.
    fn launches(&self, kernel: &KernelDesc) -> u32 {
        let _ = kernel;
        1
    }

    /// The share of the device's rates, above 0, that the kernel for a call reaches beside its other kernels: 1 unless it is
    /// known to be slower, as 0.5 for one that takes twice as long as bytes and operations say. The optimizer chooses the layout of
    /// images by it.
    fn efficiency(&self, kernel: &KernelDesc) -> f64 {
        let _ = kernel;
        1.0
    }

    /// Identifies its kernels among those of other versions and builds. It is part of the key of cached plans, which are
    /// built again when it changes.
    fn kernels(&self) -> String {
        String::new()
    }

    /// Whether matmuls are faster where their operands may be rounded to `f16`, and accurate within that rounding.
    fn has_mixed_precision(&self) -> bool {
        false
    }

    /// Why the device does not use a kernel that a plugin brings for an operator, where it has tried it and it failed. Calls
    /// of the operator are decomposed then, with right results, so that nothing else shows it.
    fn refused_kernel(&self, op: &str) -> Option<Error> {
        let _ = op;
        None
    }

    /// Chooses variants and launch geometry for each dispatch, before the plan is cached.
    ///
    /// # Errors
    /// When a dispatch cannot be launched on this device.
    fn finalize(&self, plan: &mut ExecutionPlan) -> Result<()> {
        let _ = plan;
        Ok(())
    }

    /// Dispatches of a plan that the fallback device runs, with its name; see [`fallback`](crate::fallback).
    fn fallback_dispatches(&self, plan: &ExecutionPlan) -> Vec<(usize, String)> {
        let _ = plan;
        Vec::new()
    }

    /// The generated source code of a plan's kernels; none where kernels are not generated.
    ///
    /// # Errors
    /// A kernel that cannot be generated.
    fn kernel_sources(&self, plan: &ExecutionPlan) -> Result<Vec<KernelSource>> {
        let _ = plan;
        Ok(Vec::new())
    }

    /// Bytes of memory that [`Device::compile`] allocates in addition to the plan's buffers: scratch of kernels, tables,
    /// copies for rolling back a failed step. It may generate the kernels, and take as long as compiling.
    ///
    /// # Errors
    /// A kernel that cannot be generated.
    fn workspace_bytes(&self, plan: &ExecutionPlan) -> Result<u64> {
        let _ = plan;
        Ok(0)
    }

    /// The device as one whose schedules can be measured, if its kernels have several.
    fn tunable(&self) -> Option<&dyn Tune> {
        None
    }

    /// Prepares everything that replaying the plan needs, and allocates its buffers: zeroed, constants and
    /// state fills uploaded.
    ///
    /// # Errors
    /// An inconsistent plan, missing kernels, not enough memory.
    fn compile(&self, plan: &ExecutionPlan) -> Result<Box<dyn Executable>>;
}

/// The source of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSource {
    /// Number of the dispatch in the plan.
    pub dispatch: usize,
    /// Which of the dispatch's kernels, from 0.
    pub part: usize,
    /// Language, by its file extension: `wgsl`.
    pub language: &'static str,
    /// The text.
    pub text: String,
    /// Name of the variant (the schedule) that it was generated from, where the backend names its variants.
    pub variant: Option<String>,
    /// One sentence on why the backend chose that variant: its default heuristic, or tuning with the measured gain.
    pub why: Option<String>,
}

/// Arguments of one step.
#[derive(Clone, Copy, Debug)]
pub struct StepArgs<'a> {
    /// Segments to run, as indices into [`ExecutionPlan::segments`], in order.
    pub segments: &'a [usize],
    /// Scalar buffers and their storage bytes for this step.
    pub scalars: &'a [(BufferRef, [u8; 4])],
}

/// A submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Result of a completed submission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepStats {
    /// Time that the device spent on it, if measured.
    pub device_time: Option<Duration>,
}

/// Measured time of one pass of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassTiming {
    /// The dispatches of the pass by their kernels; see [`pass_label`].
    pub label: Arc<str>,
    /// Their numbers in the plan. None, where the pass copies or clears.
    pub dispatches: Arc<[u32]>,
    /// What [`Executable::run`] returned for the step.
    pub submission: Ticket,
    /// When it began, by the host's clock, as far as that is known.
    pub start: Instant,
    /// How long it took on the device.
    pub duration: Duration,
}

impl PassTiming {
    /// A pass of which nothing but name and duration is known, and that is over.
    pub fn new(label: impl Into<Arc<str>>, duration: Duration) -> Self {
        let now = Instant::now();
        PassTiming {
            label: label.into(),
            dispatches: Arc::new([]),
            submission: Ticket(0),
            start: now.checked_sub(duration).unwrap_or(now),
            duration,
        }
    }
}

/// The name of a pass from the titles of its dispatches: equal ones are counted.
pub fn pass_label<'a>(titles: impl IntoIterator<Item = &'a str>) -> String {
    let mut kinds: Vec<(&str, usize)> = Vec::new();
    for title in titles {
        match kinds.iter_mut().find(|(known, _)| *known == title) {
            Some((_, count)) => *count += 1,
            None => kinds.push((title, 1)),
        }
    }
    let words = kinds.iter().map(|(title, count)| match count {
        1 => (*title).to_owned(),
        _ => format!("{count} {title}"),
    });
    words.collect::<Vec<_>>().join(" + ")
}

/// Where a buffer of an executable is in the memory of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceBuffer {
    /// The address of its first byte, as code of the same device takes it: a pointer of the host for the CPU, a device pointer for
    /// CUDA.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The queue in whose order the executable works, as other code of the device takes it (for CUDA a `CUstream`); `None` where
    /// everything is done when a call returns.
    pub stream: Option<u64>,
}

/// A compiled plan with its memory.
pub trait Executable: Send {
    /// Writes bytes into a buffer before the next step.
    ///
    /// # Errors
    /// Out of bounds; a lost device.
    fn write(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Reads bytes of a buffer, after all submitted steps.
    ///
    /// # Errors
    /// Out of bounds; a lost device; an error of the step that was waited for.
    fn read(&mut self, buffer: BufferRef, offset: u64, bytes: &mut [u8]) -> Result<()>;

    /// Writes a strided part of a buffer, before the next step; bytes between the part's contiguous runs are unchanged.
    /// `bytes` are those of all runs, concatenated.
    ///
    /// By default, a part of several runs is read together with the bytes between them, and written back.
    ///
    /// # Errors
    /// As [`Executable::write`] and [`Executable::read`].
    fn write_part(&mut self, buffer: BufferRef, part: &Part, bytes: &[u8]) -> Result<()> {
        let offset = part.offset as u64;
        if part.is_contiguous() {
            return match bytes.is_empty() {
                true => Ok(()),
                false => self.write(buffer, offset, bytes),
            };
        }
        let mut span = vec![0; part.span()];
        self.read(buffer, offset, &mut span)?;
        part.scatter(bytes, &mut span);
        self.write(buffer, offset, &span)
    }

    /// Reads a strided part of a buffer, after all submitted steps. `bytes` are those of all runs, concatenated.
    ///
    /// # Errors
    /// As [`Executable::read`].
    fn read_part(&mut self, buffer: BufferRef, part: &Part, bytes: &mut [u8]) -> Result<()> {
        let offset = part.offset as u64;
        if part.is_contiguous() {
            return match bytes.is_empty() {
                true => Ok(()),
                false => self.read(buffer, offset, bytes),
            };
        }
        let mut span = vec![0; part.span()];
        self.read(buffer, offset, &mut span)?;
        part.gather(&span, bytes);
        Ok(())
    }

    /// Submits a step. It need not be complete on return.
    ///
    /// A step with a fault (an index out of range) changes no parameter and no state: it is rolled back. So are steps that
    /// are submitted after it and before its error is reported; training continues from the state before the faulty step.
    /// [`Executable::rolled_back`] counts these steps. Their results and gradients are undefined.
    ///
    /// # Errors
    /// A lost device; errors of the step if it is complete already.
    fn run(&mut self, args: &StepArgs) -> Result<Ticket>;

    /// Blocks until a submission is complete.
    ///
    /// # Errors
    /// Errors of that step, such as an index outside of a table.
    fn wait(&mut self, ticket: Ticket) -> Result<StepStats>;

    /// The number of steps that [`Executable::run`] accepted whose faults are not known yet.
    fn in_flight(&self) -> usize {
        0
    }

    /// The number of steps that [`Executable::run`] accepted and that were rolled back so far, because of a fault in them
    /// or in an earlier step. Steps for which it returned an error itself do not count.
    fn rolled_back(&self) -> u64 {
        0
    }

    /// Where a buffer is, for code of the same device that reads or writes it without a copy; what was written to it before is
    /// there when what is enqueued has run. `None` where that is not told, because the device has no addresses, keeps the buffer in
    /// another order, or has to see what is written to it.
    ///
    /// # Errors
    /// No such buffer; a lost device.
    fn device_buffer(&mut self, buffer: BufferRef) -> Result<Option<DeviceBuffer>> {
        let _ = buffer;
        Ok(None)
    }

    /// Has every run from now on signal when it has done with groups of buffers, so that other code of the device can go on with their
    /// contents while the rest of the run goes on. Returns an event for each group, in the order of the groups, as the device's
    /// interface has it (`CUevent` for CUDA), which is valid as long as this executable or until the next call. `None` where
    /// the device cannot do that: then contents are complete when the whole run is.
    ///
    /// # Errors
    /// No such buffer; what the device refuses.
    fn signal_when_done(&mut self, groups: &[Vec<BufferRef>]) -> Result<Option<Vec<u64>>> {
        let _ = groups;
        Ok(None)
    }

    /// Starts or stops measuring the passes of each step; devices that cannot measure ignore it.
    fn set_profiling(&mut self, on: bool) {
        let _ = on;
    }

    /// Takes the measurements since the last call, in the order of execution. A device may deliver the times of a step
    /// at the following one.
    fn take_timings(&mut self) -> Vec<PassTiming> {
        Vec::new()
    }
}
