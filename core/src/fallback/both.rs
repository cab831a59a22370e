//! A plan that runs on two devices, part by part.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::{Executable, PassTiming, StepArgs, StepStats, Ticket};
use crate::error::{Error, Result};
use crate::plan::{BufferRef, ExecutionPlan, Part as Place};

/// Number of steps whose submissions are kept, because a device may report the times of a step only with the next step.
const KEPT_STEPS: u64 = 2;

/// A range of consecutive dispatches of a segment that all run on one device.
pub(super) struct Part {
    /// Index of the device.
    pub(super) device: usize,
    /// Index of the segment in that device's plan.
    pub(super) segment: usize,
    /// Buffers that it reads, including old contents of buffers that it writes.
    pub(super) needs: Vec<BufferRef>,
    /// Buffers that it writes.
    pub(super) writes: Vec<BufferRef>,
}

/// A plan on two devices.
pub(super) struct TwoDevicePlan {
    name: String,
    executables: [Box<dyn Executable>; 2],
    parts: Vec<Vec<Part>>,
    sizes: Vec<usize>,
    /// Devices on which the contents of each buffer are up to date.
    valid: Vec<[bool; 2]>,
    /// Buffers that must be restored after a faulty step.
    exposed: Vec<BufferRef>,
    steps: u64,
    /// Time that the devices spent on the last step, if both measure it.
    device_time: Option<Duration>,
    /// Reason why the executable cannot be used any more.
    unusable: Option<String>,
    measured: TimingMap,
}

/// Data for mapping a measured time to its dispatches and step.
struct TimingMap {
    on: bool,
    /// For each device, the indices of its dispatches in the whole plan.
    numbers: [Vec<u32>; 2],
    /// Submissions to each device, with the ticket of the step that each belongs to.
    submissions: [VecDeque<(Ticket, Ticket)>; 2],
    /// Times of the copies from one device to the other.
    copies: Vec<PassTiming>,
}

impl TwoDevicePlan {
    pub(super) fn new(
        name: &str,
        executables: [Box<dyn Executable>; 2],
        parts: Vec<Vec<Part>>,
        plan: &ExecutionPlan,
        owners: &[usize],
    ) -> Self {
        let proven = plan.proven_indices();
        let reads = |i: usize| !proven.contains(&i) && plan.dispatches[i].index_bound().is_some();
        let of = |device: usize| (0u32..).zip(owners).filter(move |(_, owner)| **owner == device);
        TwoDevicePlan {
            name: name.to_owned(),
            executables,
            parts,
            sizes: plan.buffers.clone(),
            valid: vec![[true; 2]; plan.buffers.len()],
            exposed: plan.exposed_to_faults(&reads),
            steps: 0,
            device_time: None,
            unusable: None,
            measured: TimingMap {
                on: false,
                numbers: [0, 1].map(|device| of(device).map(|(i, _)| i).collect()),
                submissions: Default::default(),
                copies: Vec::new(),
            },
        }
    }

    fn check(&self, buffer: BufferRef) -> Result<[bool; 2]> {
        if let Some(why) = &self.unusable {
            return Err(Error::backend(
                &self.name,
                format!("this session cannot be used any more: {why}"),
            ));
        }
        let valid = self.valid.get(buffer.index()).copied();
        valid.ok_or_else(|| Error::backend(&self.name, format!("buffer {buffer} does not exist")))
    }

    /// Reads the contents of a buffer.
    fn contents(&mut self, buffer: BufferRef) -> Result<Vec<u8>> {
        let device = usize::from(!self.check(buffer)?[0]);
        let mut bytes = vec![0; self.sizes[buffer.index()]];
        self.executables[device].read(buffer, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns an executable whose contents of a buffer are up to date.
    fn source(&mut self, buffer: BufferRef) -> Result<&mut dyn Executable> {
        let device = usize::from(!self.check(buffer)?[0]);
        Ok(&mut *self.executables[device])
    }

    /// Writes to a buffer on every device on which its contents are up to date.
    fn write_by(&mut self, buffer: BufferRef, mut write: impl FnMut(&mut dyn Executable) -> Result<()>) -> Result<()> {
        let valid = self.check(buffer)?;
        // A copy that is not valid is replaced as a whole when it is needed.
        let mut outcomes = [Ok(()), Ok(())];
        for device in (0..2).filter(|&device| valid[device]) {
            outcomes[device] = write(&mut *self.executables[device]);
        }
        for (device, other) in [(0, 1), (1, 0)] {
            // The devices must not continue with different contents.
            if outcomes[device].is_err() && valid[other] && outcomes[other].is_ok() {
                self.valid[buffer.index()][device] = false;
            }
        }
        let [first, second] = outcomes;
        first.and(second)
    }

    /// Copies a buffer to a device on which its contents are not up to date.
    fn copy(&mut self, buffer: BufferRef, device: usize) -> Result<()> {
        let start = Instant::now();
        let bytes = self.contents(buffer)?;
        self.executables[device].write(buffer, 0, &bytes)?;
        self.valid[buffer.index()][device] = true;
        if self.measured.on {
            self.measured.copies.push(PassTiming {
                label: "copy between devices".into(),
                dispatches: Arc::new([]),
                submission: Ticket(self.steps),
                start,
                duration: start.elapsed(),
            });
        }
        Ok(())
    }

    fn run_part(&mut self, segment: usize, part: usize, scalars: &[(BufferRef, [u8; 4])]) -> Result<()> {
        let device = self.parts[segment][part].device;
        for i in 0..self.parts[segment][part].needs.len() {
            let buffer = self.parts[segment][part].needs[i];
            if !self.valid[buffer.index()][device] {
                self.copy(buffer, device)?;
            }
        }
        let part = &self.parts[segment][part];
        for buffer in &part.writes {
            self.valid[buffer.index()] = [device == 0, device == 1];
        }
        let ticket = self.executables[device].run(&StepArgs {
            segments: &[part.segment],
            scalars,
        })?;
        self.measured.note(device, ticket, self.steps);
        let stats = self.executables[device].wait(ticket)?;
        self.device_time = self.device_time.zip(stats.device_time).map(|(sum, time)| sum + time);
        Ok(())
    }

    fn run_all(&mut self, args: &StepArgs) -> Result<()> {
        self.device_time = Some(Duration::ZERO);
        for &segment in args.segments {
            for part in 0..self.parts.get(segment).map_or(0, Vec::len) {
                self.run_part(segment, part, args.scalars)?;
            }
        }
        Ok(())
    }

    /// Restores the changes of a failed step. Returns the first error.
    fn put_back(&mut self, before: Vec<(BufferRef, Vec<u8>)>) -> Result<()> {
        let mut outcome = Ok(());
        for (buffer, bytes) in before {
            self.valid[buffer.index()] = [true; 2];
            outcome = outcome.and(self.write(buffer, 0, &bytes));
        }
        outcome
    }
}

impl TimingMap {
    /// Records a submission to a device.
    fn note(&mut self, device: usize, ticket: Ticket, step: u64) {
        if self.on {
            let submissions = &mut self.submissions[device];
            submissions.retain(|(_, of)| of.0 + KEPT_STEPS > step);
            submissions.push_back((ticket, Ticket(step)));
        }
    }

    /// Converts a time that a device measured to one of the whole plan.
    fn of_whole(&self, device: usize, pass: PassTiming) -> PassTiming {
        let number = |i: &u32| self.numbers[device].get(*i as usize).copied();
        // A pass of a device that does not number its submissions belongs to the last one.
        let step = self.submissions[device]
            .iter()
            .rev()
            .find(|(own, _)| *own == pass.submission);
        PassTiming {
            dispatches: pass.dispatches.iter().filter_map(number).collect(),
            submission: step.map_or(pass.submission, |(_, step)| *step),
            ..pass
        }
    }
}

impl Executable for TwoDevicePlan {
    fn write(&mut self, buffer: BufferRef, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write_by(buffer, |executable| executable.write(buffer, offset, bytes))
    }

    fn read(&mut self, buffer: BufferRef, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.source(buffer)?.read(buffer, offset, bytes)
    }

    fn write_part(&mut self, buffer: BufferRef, part: &Place, bytes: &[u8]) -> Result<()> {
        self.write_by(buffer, |executable| executable.write_part(buffer, part, bytes))
    }

    fn read_part(&mut self, buffer: BufferRef, part: &Place, bytes: &mut [u8]) -> Result<()> {
        self.source(buffer)?.read_part(buffer, part, bytes)
    }

    fn run(&mut self, args: &StepArgs) -> Result<Ticket> {
        // Every part gets the scalars; a device without dispatches does not need them.
        for (buffer, bytes) in args.scalars {
            let len = self.sizes.get(buffer.index()).map_or(0, |size| bytes.len().min(*size));
            self.write(*buffer, 0, &bytes[..len])?;
        }
        let exposed = self.exposed.clone().into_iter();
        let before = exposed.map(|buffer| Ok((buffer, self.contents(buffer)?)));
        let before = before.collect::<Result<Vec<_>>>()?;
        self.steps += 1;
        if let Err(error) = self.run_all(args) {
            if let Err(second) = self.put_back(before) {
                self.unusable = Some(format!(
                    "a step failed ({error}) and could not be rolled back ({second})"
                ));
            }
            return Err(error);
        }
        Ok(Ticket(self.steps))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<StepStats> {
        // `run` has already waited for each part.
        Ok(StepStats {
            device_time: self.device_time.filter(|_| ticket == Ticket(self.steps)),
        })
    }

    fn set_profiling(&mut self, on: bool) {
        self.measured.on = on;
        self.executables.iter_mut().for_each(|e| e.set_profiling(on));
    }

    fn take_timings(&mut self) -> Vec<PassTiming> {
        let mut passes = std::mem::take(&mut self.measured.copies);
        for device in 0..2 {
            let told = self.executables[device].take_timings().into_iter();
            passes.extend(told.map(|pass| self.measured.of_whole(device, pass)));
        }
        // One device waits for the other, so the order of start times is the order of execution.
        passes.sort_by_key(|pass| pass.start);
        passes
    }
}
