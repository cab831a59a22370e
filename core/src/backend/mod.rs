//! The traits that a backend implements. They have few methods, and none that is specific to an operator.
//!
//! A [`Backend`] lists [`Device`]s. A device reports which kernels it has and compiles an
//! [`ExecutionPlan`] to an [`Executable`]; a session writes inputs to it, runs it and reads
//! results.

pub mod shader;
mod shared;
mod target;
mod tune;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::error::{Error, Result};
pub use crate::kernel::{Capabilities, CostModel, KernelDesc, Support};
use crate::plan::{BufferRef, ExecutionPlan, Part};
pub use shared::{SharedBuffer, SharedBuffers};
pub use tune::{RefusedSchedule, Tune, TuneOptions, TunedClass};

/// Name, version and origin of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendInfo {
    /// Name as selectors use it: lower case, without a colon.
    pub name: String,
    /// Version of the crate or plugin.
    pub version: String,
    /// Origin: a crate or a file.
    pub origin: String,
}

/// Class of a device, used for automatic device selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The host's processor.
    Cpu,
    /// A GPU with dedicated memory.
    DiscreteGpu,
    /// A GPU that shares the host's memory.
    IntegratedGpu,
    /// Another accelerator.
    Accelerator,
    /// A GPU interface emulated on the processor: never chosen automatically.
    Software,
}

impl DeviceKind {
    /// Returns the name of the class, for listings.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::DiscreteGpu => "discrete GPU",
            DeviceKind::IntegratedGpu => "integrated GPU",
            DeviceKind::Accelerator => "accelerator",
            DeviceKind::Software => "software rasteriser",
        }
    }

    /// Returns `true` if the host's processor computes: for CPUs, and for GPU interfaces that it emulates.
    pub fn is_host(self) -> bool {
        matches!(self, DeviceKind::Cpu | DeviceKind::Software)
    }
}

/// A device that a backend found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Index in the backend's listing.
    pub index: usize,
    /// Human-readable name.
    pub name: String,
    /// Class of the device.
    pub kind: DeviceKind,
    /// Numeric id that the backend uses for the device (for Vulkan the device id), if it has one.
    pub numeric_id: Option<u64>,
    /// Identity of the hardware, if available. It is the same for all backends that reach the same device. For a GPU:
    /// the 16 bytes of its UUID as lower-case hexadecimal digits.
    pub hardware: Option<String>,
    /// Memory in bytes, if the backend can determine it.
    pub memory_bytes: Option<u64>,
    /// Driver and its version, if there is one.
    pub driver: Option<String>,
    /// Reason why the device cannot be used; `None` if it can.
    pub rejected: Option<String>,
    /// Additional information for users, such as that the device cannot be distinguished from
    /// another.
    pub note: Option<String>,
    /// Properties that only this backend has, for diagnosis.
    pub details: Vec<Fact>,
}

/// A property of a device or of its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Name of the property.
    pub name: String,
    /// Value of the property.
    pub value: String,
}

impl Fact {
    /// Creates a property with its value.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Fact {
            name: name.into(),
            value: value.into(),
        }
    }
}

impl DeviceInfo {
    /// Creates a usable device with this index, name and class; all other fields are empty.
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

/// A provider of devices, such as the CPU or the CUDA backend.
pub trait Backend: Send + Sync {
    /// Returns name, version and origin.
    fn info(&self) -> BackendInfo;

    /// Returns all devices, including rejected ones with the reason.
    ///
    /// # Errors
    /// Failure of the search itself. A driver that cannot be loaded means no devices, not an error.
    fn devices(&self, config: &Config) -> Result<Vec<DeviceInfo>>;

    /// Opens the device with this index in the listing.
    ///
    /// # Errors
    /// A device that does not exist, is rejected, or fails to open.
    fn open(&self, index: usize, config: &Config) -> Result<Arc<dyn Device>>;

    /// Returns the priority in automatic selection among backends that reach the same hardware: the
    /// backend with the greatest number whose [`self_test`](Backend::self_test) passes is selected.
    fn preference(&self) -> u32 {
        0
    }

    /// Tests for about one second whether a device computes correctly. Automatic selection calls it
    /// before it prefers this device to that of another backend for the same hardware.
    ///
    /// # Errors
    /// The fault that the test found.
    fn self_test(&self, index: usize, config: &Config) -> Result<()> {
        let _ = (index, config);
        Ok(())
    }

    /// Returns the reason why [`Backend::devices`] lists no devices, for instance a missing driver.
    fn unavailable_reason(&self) -> Option<String> {
        None
    }

    /// Returns facts about the environment that determines the devices: drivers, variables,
    /// versions.
    fn environment(&self) -> Vec<Fact> {
        Vec::new()
    }

    /// Returns errors of rejected third-party kernels and similar extensions.
    fn problems(&self) -> Vec<Error> {
        Vec::new()
    }
}

/// An open device.
pub trait Device: Send + Sync {
    /// Returns the capabilities of the device.
    fn capabilities(&self) -> &Capabilities;

    /// Returns whether the device has a kernel for a call.
    fn supports(&self, kernel: &KernelDesc) -> Support;

    /// Returns the number of dependent launches of the kernel for a call; the cost of a call
    /// includes them.
    fn launches(&self, kernel: &KernelDesc) -> u32 {
        let _ = kernel;
        1
    }

    /// Returns the fraction, above 0, of the device's rates that the kernel for a call reaches
    /// relative to its other kernels. It is 1 unless the kernel is slower than usual: 0.5 for one
    /// that takes twice as long as its bytes and operations suggest. The optimizer uses it to
    /// choose the layout of images.
    fn efficiency(&self, kernel: &KernelDesc) -> f64 {
        let _ = kernel;
        1.0
    }

    /// Returns an identifier of the device's kernels that differs between versions and builds. It
    /// is part of the key of cached plans: when it changes, plans are rebuilt.
    fn kernels(&self) -> String {
        String::new()
    }

    /// Returns `true` if rounding matmul operands to `f16` makes matmuls faster, and results are
    /// accurate within that rounding.
    fn has_mixed_precision(&self) -> bool {
        false
    }

    /// Returns the reason why the device does not use a plugin's kernel for an operator, if its
    /// trial failed. Calls of the operator are then decomposed and still give correct results, so
    /// the failure is visible only here.
    fn refused_kernel(&self, op: &str) -> Option<Error> {
        let _ = op;
        None
    }

    /// Chooses variants and launch geometry for each dispatch, before the plan is cached.
    ///
    /// # Errors
    /// A dispatch that cannot be launched on this device.
    fn finalize(&self, plan: &mut ExecutionPlan) -> Result<()> {
        let _ = plan;
        Ok(())
    }

    /// Returns the dispatches of a plan that the fallback device runs, with its name; see
    /// [`fallback`](crate::fallback).
    fn fallback_dispatches(&self, plan: &ExecutionPlan) -> Vec<(usize, String)> {
        let _ = plan;
        Vec::new()
    }

    /// Returns the generated source code of a plan's kernels; empty if kernels are not generated.
    ///
    /// # Errors
    /// A kernel that cannot be generated.
    fn kernel_sources(&self, plan: &ExecutionPlan) -> Result<Vec<KernelSource>> {
        let _ = plan;
        Ok(Vec::new())
    }

    /// Returns the bytes of memory that [`Device::compile`] allocates in addition to the plan's
    /// buffers: kernel workspaces, tables, copies for rolling back a failed step. It may have to
    /// generate the kernels, and take as long as compiling.
    ///
    /// # Errors
    /// A kernel that cannot be generated.
    fn workspace_bytes(&self, plan: &ExecutionPlan) -> Result<u64> {
        let _ = plan;
        Ok(0)
    }

    /// Returns the interface for measuring schedules, if the device's kernels have several.
    fn tunable(&self) -> Option<&dyn Tune> {
        None
    }

    /// Compiles a plan's kernels and allocates its buffers. Constants and initial values of states are uploaded, all
    /// other buffers are zeroed.
    ///
    /// # Errors
    /// An inconsistent plan, missing kernels, not enough memory.
    fn compile(&self, plan: &ExecutionPlan) -> Result<Box<dyn Executable>>;

    /// Returns `true` if executables can share memory: [`Executable::share`] and [`Device::compile_sharing`] are
    /// implemented.
    fn shares_memory(&self) -> bool {
        false
    }

    /// Returns the shared buffers that an executable of the plan can use instead of its own: none by default. A buffer
    /// cannot be used if the kernels of the plan need another storage order.
    fn usable_buffers(&self, plan: &ExecutionPlan, shared: &SharedBuffers) -> Vec<BufferRef> {
        let _ = (plan, shared);
        Vec::new()
    }

    /// Compiles a plan like [`Device::compile`], but uses the memory of other executables for the plan's borrowed
    /// buffers ([`MemoryLayout::borrowed`](crate::plan::MemoryLayout::borrowed)). `shared` contains all of them. The
    /// executable never writes them.
    ///
    /// # Errors
    /// As [`Device::compile`]; buffers that [`Device::usable_buffers`] does not return.
    fn compile_sharing(&self, plan: &ExecutionPlan, shared: &SharedBuffers) -> Result<Box<dyn Executable>> {
        if plan.memory.borrowed.is_empty() {
            return self.compile(plan);
        }
        let _ = shared;
        Err(Error::misuse(
            format!("{} does not share memory between sessions", self.capabilities().name),
            "give each session its own weights",
        ))
    }
}

/// Generated source code of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSource {
    /// Index of the dispatch in the plan.
    pub dispatch: usize,
    /// Index of the kernel within its dispatch, from 0.
    pub part: usize,
    /// File extension of the language, such as `wgsl`.
    pub language: &'static str,
    /// The source code.
    pub text: String,
    /// Name of the variant (the schedule) that it was generated from, where the backend names its variants.
    pub variant: Option<String>,
    /// One sentence with the reason why the backend chose that variant: the default heuristic, or tuning, with the
    /// measured gain.
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

/// Handle of a submitted step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Result of a completed submission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepStats {
    /// Time that the device spent on the step, if measured.
    pub device_time: Option<Duration>,
}

/// Measured time of one pass of a step: of dispatches that the device measures together, or of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassTiming {
    /// Name of the pass, made from the kernels of its dispatches; see [`pass_label`].
    pub label: Arc<str>,
    /// Indices of its dispatches in the plan; empty if the pass copies or clears.
    pub dispatches: Arc<[u32]>,
    /// Ticket that [`Executable::run`] returned for the step.
    pub submission: Ticket,
    /// Start of the pass on the host's clock, as exactly as the device can determine it.
    pub start: Instant,
    /// Time that the pass took on the device.
    pub duration: Duration,
}

impl PassTiming {
    /// Creates the timing of a pass that ends now, without dispatches, from a name and a duration.
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

/// Returns the name of a pass: the titles of its dispatches, with the count of equal titles.
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

/// Location of an executable's buffer in the memory of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceBuffer {
    /// Address of the first byte, in the form that code for the same device uses: a host pointer
    /// for the CPU, a device pointer for CUDA.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Queue that orders the executable's work, in the form that other code for the device uses (a
    /// `CUstream` for CUDA); `None` if all work is complete when a call returns.
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
    /// `bytes` contains the data of all runs, concatenated.
    ///
    /// The default implementation of a part with several runs reads the bytes between them, too,
    /// and writes them back.
    ///
    /// # Errors
    /// As [`Executable::write`] and [`Executable::read`].
    fn write_part(&mut self, buffer: BufferRef, part: &Part, bytes: &[u8]) -> Result<()> {
        let offset = part.offset as u64;
        if part.is_contiguous() {
            return if bytes.is_empty() {
                Ok(())
            } else {
                self.write(buffer, offset, bytes)
            };
        }
        let mut span = vec![0; part.span()];
        self.read(buffer, offset, &mut span)?;
        part.scatter(bytes, &mut span);
        self.write(buffer, offset, &span)
    }

    /// Reads a strided part of a buffer, after all submitted steps. `bytes` receives the data of
    /// all runs, concatenated.
    ///
    /// # Errors
    /// As [`Executable::read`].
    fn read_part(&mut self, buffer: BufferRef, part: &Part, bytes: &mut [u8]) -> Result<()> {
        let offset = part.offset as u64;
        if part.is_contiguous() {
            return if bytes.is_empty() {
                Ok(())
            } else {
                self.read(buffer, offset, bytes)
            };
        }
        let mut span = vec![0; part.span()];
        self.read(buffer, offset, &mut span)?;
        part.gather(&span, bytes);
        Ok(())
    }

    /// Submits a step. It need not be complete on return.
    ///
    /// A step with a fault (an index out of range) changes no parameter and no state: it is rolled back. So are steps
    /// that are submitted after it and before its error is reported; training continues from the state before the
    /// faulty step. [`Executable::rolled_back`] counts these steps. Their results and gradients are undefined.
    ///
    /// # Errors
    /// A lost device; errors of the step if it is complete already.
    fn run(&mut self, args: &StepArgs) -> Result<Ticket>;

    /// Blocks until a submission is complete.
    ///
    /// # Errors
    /// Errors of that step, such as an index outside of a table.
    fn wait(&mut self, ticket: Ticket) -> Result<StepStats>;

    /// Returns the number of steps that [`Executable::run`] accepted and whose faults are not yet
    /// reported.
    fn in_flight(&self) -> usize {
        0
    }

    /// Returns the number of accepted steps that were rolled back so far, because of a fault in
    /// them or in an earlier step. A step for which [`Executable::run`] itself returned an error is
    /// not counted.
    fn rolled_back(&self) -> u64 {
        0
    }

    /// Returns the location of a buffer, so that code for the same device can read or write it
    /// without a copy. Earlier writes to the buffer are visible once all enqueued work has run.
    /// Returns `None` if the device has no addresses, keeps the buffer in another order, or must
    /// observe writes to it.
    ///
    /// # Errors
    /// No such buffer; a lost device.
    fn device_buffer(&mut self, buffer: BufferRef) -> Result<Option<DeviceBuffer>> {
        let _ = buffer;
        Ok(None)
    }

    /// Shares buffers with other executables of the device, after all submitted work is complete. From then on, no
    /// executable may write them, including this one. Returns one entry for each buffer: `None` if its memory cannot be
    /// shared, which is the default.
    ///
    /// # Errors
    /// No such buffer; a lost device; an error of a step that was waited for.
    fn share(&mut self, buffers: &[BufferRef]) -> Result<Vec<Option<SharedBuffer>>> {
        Ok(vec![None; buffers.len()])
    }

    /// Makes every later run signal when it has finished with groups of buffers, so that other code
    /// for the device can use their contents while the rest of the run continues. Returns one event
    /// per group, in the order of the groups, as a handle of the device's interface (`CUevent` for
    /// CUDA). The events are valid until the next call, or until this executable is dropped.
    /// Returns `None` if the device cannot do that: contents are then complete when the whole run
    /// is.
    ///
    /// # Errors
    /// No such buffer; an error of the device.
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
