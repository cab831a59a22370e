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

/// Class of a device, which the automatic choice goes by.
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
    /// Memory in bytes, if known.
    pub memory_bytes: Option<u64>,
    /// Driver and its version, if there is one.
    pub driver: Option<String>,
    /// Why the device cannot be used, if it cannot.
    pub rejected: Option<String>,
    /// Anything a user should know, such as that a second device cannot be told apart from it.
    pub note: Option<String>,
    /// What it can do, in the backend's own terms, for those who look for a fault.
    pub details: Vec<Fact>,
}

/// Something to know of a device or of what is around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// What.
    pub name: String,
    /// How it is.
    pub value: String,
}

impl Fact {
    /// A fact.
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

    /// Why there are no devices, where [`Backend::devices`] lists none: no driver, for instance.
    fn unavailable_reason(&self) -> Option<String> {
        None
    }

    /// What it found around it that decides which devices there are: drivers, variables, versions.
    fn environment(&self) -> Vec<Fact> {
        Vec::new()
    }

    /// What of the kernels and the like that other crates brought to it was rejected, and why.
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

    /// How many launches that wait for each other a call takes for which it has a kernel; the price of a call counts them.
    fn launches(&self, kernel: &KernelDesc) -> u32 {
        let _ = kernel;
        1
    }

    /// What tells its kernels from those of another version or build. It is part of the key of cached plans, which
    /// are made anew when it changes.
    fn kernels(&self) -> String {
        String::new()
    }

    /// Whether products are faster where their operands may be rounded to `f16`, and right within that.
    fn has_mixed_precision(&self) -> bool {
        false
    }

    /// Chooses variants and launch geometry for each dispatch, before the plan is cached.
    ///
    /// # Errors
    /// When a dispatch cannot be launched on this device.
    fn finalize(&self, plan: &mut ExecutionPlan) -> Result<()> {
        let _ = plan;
        Ok(())
    }

    /// Dispatches of a plan that another device runs, with its name; see [`fallback`](crate::fallback).
    fn elsewhere(&self, plan: &ExecutionPlan) -> Vec<(usize, String)> {
        let _ = plan;
        Vec::new()
    }

    /// The generated sources of a plan's kernels, for people to read; none where kernels are not generated.
    ///
    /// # Errors
    /// A kernel that cannot be made.
    fn kernel_sources(&self, plan: &ExecutionPlan) -> Result<Vec<KernelSource>> {
        let _ = plan;
        Ok(Vec::new())
    }

    /// Bytes of memory that [`Device::compile`] takes beside the plan's buffers: scratch of kernels, tables, copies that
    /// undo a step that failed. Making the kernels to know it may take as long as compiling.
    ///
    /// # Errors
    /// A kernel that cannot be made.
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
    /// A plan that is not consistent, kernels that are missing, memory that is not there.
    fn compile(&self, plan: &ExecutionPlan) -> Result<Box<dyn Executable>>;
}

/// The source of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSource {
    /// Number of the dispatch in the plan.
    pub dispatch: usize,
    /// Which of the dispatch's kernels, from 0.
    pub part: usize,
    /// Language, as files of it end: `wgsl`.
    pub language: &'static str,
    /// The text.
    pub text: String,
    /// Name of the variant (the schedule) from which it was made, where the backend tells its variants apart.
    pub variant: Option<String>,
    /// One sentence why the backend chose that variant: by its default heuristic, or by tuning, and what that gained.
    pub why: Option<String>,
}

/// What one step shall do.
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

/// What is known of a completed submission.
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

    /// Writes a tensor that lies at a part of a buffer, before the next step; what is between the part's runs stays as it
    /// is. `bytes` are those of all runs, one after the other.
    ///
    /// Unless a device has a way of its own, a part of several runs is read with what is between them and written back.
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

    /// Reads a tensor that lies at a part of a buffer, after all submitted steps. `bytes` are those of all runs, one after
    /// the other.
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
    /// A step that meets a fault (an index outside of its table) changes no parameter and no state: it is as if it had
    /// not been made. The same holds for steps that are submitted after it and before its error is told; so whoever
    /// goes on after the error goes on from where the faulty step began. [`Executable::rolled_back`] counts these steps.
    /// What else they compute, results and gradients, is undefined.
    ///
    /// # Errors
    /// A lost device; errors of the step if it is complete already.
    fn run(&mut self, args: &StepArgs) -> Result<Ticket>;

    /// Blocks until a submission is complete.
    ///
    /// # Errors
    /// Errors of that step, such as an index outside of a table.
    fn wait(&mut self, ticket: Ticket) -> Result<StepStats>;

    /// How many steps that [`Executable::run`] accepted may still turn out to have met a fault.
    fn in_flight(&self) -> usize {
        0
    }

    /// How many steps that [`Executable::run`] accepted were given up so far, because of a fault in them or in one
    /// before. Steps for which it returned an error itself do not count.
    fn rolled_back(&self) -> u64 {
        0
    }

    /// Starts or stops measuring the passes of each step; devices that cannot measure ignore it.
    fn set_profiling(&mut self, on: bool) {
        let _ = on;
    }

    /// Takes what was measured since the last call, in the order of execution. A device may deliver the times
    /// of a step at the following one.
    fn take_timings(&mut self) -> Vec<PassTiming> {
        Vec::new()
    }
}
