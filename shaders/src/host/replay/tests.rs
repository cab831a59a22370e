//! Tests of the common state, with a driver whose memory is an array of the host.

use std::time::Duration;

use meganeura_core::plan::try_compile;
use meganeura_core::{DType, Graph};

use super::*;
use crate::Features;
use crate::host::{CustomKernels, F16Storage, KernelOptions, lay_out};

/// Effect of a step on the memory.
type Effect = fn(&mut FakeDriver);

/// A driver that executes a submission while the host waits for it.
struct FakeDriver {
    slabs: Vec<Vec<u8>>,
    places: Vec<BufferLocation>,
    staging: [Vec<u8>; FRAMES],
    /// Copies that the unfinished submission of a frame makes at its end.
    downloads: [Vec<Transfer>; FRAMES],
    in_flight: [bool; FRAMES],
    scalars: Vec<u8>,
    effect: Effect,
    /// Buffers of the state and of the fault report.
    faulty: [usize; 2],
    /// Report that the next step writes.
    report: [u32; 3],
    /// Number of submissions, and of launched steps.
    counts: [usize; 2],
}

impl FakeDriver {
    fn range(&mut self, place: BufferLocation, offset: u64, len: u64) -> &mut [u8] {
        let start = (place.offset + offset) as usize;
        &mut self.slabs[place.slab][start..start + len as usize]
    }

    /// Returns the bytes of a buffer.
    fn buffer(&mut self, buffer: usize) -> &mut [u8] {
        let place = self.places[buffer];
        self.range(place, 0, place.bytes)
    }
}

impl Driver for FakeDriver {
    const NAME: &'static str = "fake";
    const SCALARS: usize = 1;

    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn place(&self, buffer: usize) -> Option<BufferLocation> {
        self.places.get(buffer).copied()
    }

    fn staged(&self) -> usize {
        12
    }

    fn begin(&mut self, frame: usize, begin: Begin) -> Result<()> {
        assert!(!self.in_flight[frame], "the host has waited for the frame");
        if let Some((fault, saved)) = begin.undo {
            self.range(fault, 0, fault.bytes).fill(0);
            for part in saved {
                let copy = self.range(part.copy, 0, part.own.bytes).to_vec();
                self.range(part.own, 0, part.own.bytes).copy_from_slice(&copy);
            }
        }
        for write in begin.writes {
            let bytes = begin.bytes[write.host as usize..][..write.len as usize].to_vec();
            self.range(write.place, write.offset, write.len).copy_from_slice(&bytes);
        }
        if let Some(scalars) = begin.scalars {
            self.scalars = scalars.to_vec();
        }
        Ok(())
    }

    fn clear(&mut self, _frame: usize) -> Result<()> {
        self.slabs.iter_mut().for_each(|slab| slab.fill(0));
        Ok(())
    }

    fn launch(&mut self, _frame: usize, step: &Step) -> Result<u64> {
        for part in step.saved {
            let own = self.range(part.own, 0, part.own.bytes).to_vec();
            self.range(part.copy, 0, part.own.bytes).copy_from_slice(&own);
        }
        self.counts[1] += 1;
        (self.effect)(self);
        Ok(u64::from(step.measured))
    }

    fn download(&mut self, frame: usize, bytes: u64, copies: &[Transfer]) -> Result<()> {
        self.staging[frame] = vec![0xee; bytes as usize];
        self.downloads[frame] = copies.to_vec();
        Ok(())
    }

    fn submit(&mut self, frame: usize) -> Result<()> {
        for copy in std::mem::take(&mut self.downloads[frame]) {
            let bytes = self.range(copy.place, copy.offset, copy.len).to_vec();
            self.staging[frame][copy.host as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        self.in_flight[frame] = true;
        self.counts[0] += 1;
        Ok(())
    }

    fn wait(&mut self, frame: usize) -> Result<()> {
        self.in_flight[frame] = false;
        Ok(())
    }

    fn downloaded(&self, frame: usize, offset: u64, bytes: &mut [u8]) {
        assert!(!self.in_flight[frame], "the submission is complete");
        bytes.copy_from_slice(&self.staging[frame][offset as usize..][..bytes.len()]);
    }

    fn take_timings(&mut self) -> Vec<PassTiming> {
        Vec::new()
    }

    fn spent_on(&self, _step: Ticket) -> Option<Duration> {
        None
    }
}

/// Returns a plan with a state that is written before an index out of range is found, two scalars, and a constant. The effect
/// stands for the kernels of a step.
fn replay(effect: Effect) -> (ExecutionPlan, Replay<FakeDriver>) {
    let mut g = Graph::new();
    let x = g.input("x", &[5]);
    let seen = g.state_filled("seen", &[5], 2.0);
    let new = g.add(seen, x);
    let seen = g.assign(seen, new);
    let [a, b] = ["a", "b"].map(|name| g.scalar_input(name, DType::F32));
    let factor = g.mul(a, b);
    let (ids, more) = (g.input_u32("ids", &[2]), g.input_u32("more", &[2]));
    let ids = g.add(ids, more);
    let table = g.parameter("table", &[3, 5]);
    let rows = g.embedding(ids, table);
    let rows = g.add(rows, seen);
    let rows = g.mul(rows, factor);
    g.set_outputs(vec![rows]);
    let plan = try_compile(&g).expect("a plan");
    let with = KernelOptions {
        backend: "fake",
        library: None,
        coop: None,
        features: Features::default(),
        custom: &CustomKernels::new(),
        choices: None,
        f16_storage: F16Storage::No,
    };
    let draft = LaunchPlan::of(&plan, &with).expect("kernels");
    let (slabs, places) = lay_out(&draft.sizes, &plan, 1 << 20).expect("a layout");
    let driver = FakeDriver {
        slabs: slabs.iter().map(|&bytes| vec![0xdd; bytes as usize]).collect(),
        places,
        staging: Default::default(),
        downloads: Default::default(),
        in_flight: [false; FRAMES],
        scalars: Vec::new(),
        effect,
        faulty: [0; 2],
        report: [0; 3],
        counts: [0; 2],
    };
    let replay = Replay::new(driver, &plan, draft).expect("an executable");
    (plan, replay)
}

fn input(plan: &ExecutionPlan, name: &str) -> BufferRef {
    let (_, buffer) = plan.input_buffers.iter().find(|(n, _)| n == name).expect("an input");
    *buffer
}

fn step(replay: &mut Replay<FakeDriver>) -> Result<Ticket> {
    replay.run(&StepArgs {
        segments: &[0],
        scalars: &[],
    })
}

#[test]
fn writes_wait_for_the_next_submission_and_are_read_back() {
    let (plan, mut replay) = replay(|_| ());
    let x = input(&plan, "x");
    // This also submits the initial values.
    replay.read(x, 0, &mut [0; 4]).expect("read");
    let before = replay.driver().counts[0];
    replay.write(x, 0, &[1; 8]).expect("written");
    replay.write(x, 4, &[2; 4]).expect("written");
    assert_eq!(replay.driver().counts[0], before, "nothing is submitted");
    let mut found = [0; 20];
    // A read takes pieces of 12 bytes.
    replay.read(x, 0, &mut found).expect("read");
    assert_eq!(found[..9], [1, 1, 1, 1, 2, 2, 2, 2, 0]);
    // A write that is longer than a piece is submitted in parts.
    replay.write(x, 0, &[3; 20]).expect("written");
    replay.read(x, 0, &mut found).expect("read");
    assert_eq!(found, [3; 20]);
    let error = replay.write(x, 8, &[0; 16]).expect_err("outside");
    assert!(
        error.to_string().contains("16 bytes at 8 are outside of buffer"),
        "{error}"
    );
    let state = plan.state_buffers[0].buffer;
    replay.read(state, 0, &mut found).expect("read");
    assert_eq!(found[..], 2_f32.to_le_bytes().repeat(5), "the initial value");
}

#[test]
fn a_result_that_was_read_is_copied_by_the_next_step() {
    let (plan, mut replay) = replay(|_| ());
    let x = input(&plan, "x");
    replay.write(x, 0, &[7; 20]).expect("written");
    let mut found = [0; 4];
    replay.read(x, 16, &mut found).expect("read");
    let ticket = step(&mut replay).expect("a step");
    assert_eq!((replay.in_flight(), ticket), (1, Ticket(replay.submissions)));
    let before = replay.driver().counts[0];
    replay.read(x, 16, &mut found).expect("read");
    assert_eq!(
        (found, replay.driver().counts[0]),
        ([7; 4], before),
        "no further submission"
    );
    // A write after the step invalidates the copy.
    replay.write(x, 16, &[8; 4]).expect("written");
    replay.read(x, 16, &mut found).expect("read");
    assert_eq!((found, replay.driver().counts[0]), ([8; 4], before + 1));
}

#[test]
fn scalars_reach_the_driver_or_the_buffer() {
    let (plan, mut replay) = replay(|_| ());
    let [(_, a), (_, b)] = plan.scalar_buffers[..] else {
        panic!("two scalars")
    };
    let args = StepArgs {
        segments: &[0],
        scalars: &[(a, [1, 2, 3, 4]), (b, [5, 6, 7, 8])],
    };
    replay.run(&args).expect("a step");
    assert_eq!(replay.driver().scalars, [1, 2, 3, 4]);
    let all = replay.extra.scalars;
    assert_eq!(replay.driver_mut().buffer(all)[4..8], [5, 6, 7, 8]);
    let mut found = [0; 4];
    for (buffer, expected) in [(a, [1, 2, 3, 4]), (b, [5, 6, 7, 8])] {
        replay.read(buffer, 0, &mut found).expect("read");
        assert_eq!(found, expected);
    }
    assert!(replay.device_buffer(a).expect("a scalar").is_none());
}

#[test]
fn a_fault_rolls_back_its_step_and_the_next_one() {
    // The kernels write the state, then find a fault. After a fault they do nothing.
    let (plan, mut replay) = replay(|driver| {
        if driver.report[0] == 0 {
            return;
        }
        let [state, fault] = driver.faulty;
        if driver.buffer(fault)[0] == 0 {
            driver.buffer(state).fill(0x55);
            let report = driver.report.map(u32::to_le_bytes).concat();
            driver.buffer(fault).copy_from_slice(&report);
        }
    });
    let state = plan.state_buffers[0].buffer;
    assert_eq!(replay.exposed, [state]);
    let fault = replay.extra.fault;
    replay.driver_mut().faulty = [state.index(), fault];
    let ones = 1_f32.to_le_bytes().repeat(5);
    replay.write(state, 0, &ones).expect("written");
    step(&mut replay).expect("a step");
    replay.finish_all().expect("no fault");

    replay.driver_mut().report = [1, 1, 12];
    step(&mut replay).expect("submitted");
    let second = step(&mut replay).expect("submitted before the fault is known");
    assert_eq!(replay.in_flight(), 2);
    let error = replay.wait(second).expect_err("a fault");
    assert!(
        matches!(error, Error::IndexOutOfRange { index: 12, rows: 3, .. }),
        "{error}"
    );
    assert_eq!((replay.rolled_back(), replay.in_flight()), (2, 0));
    let mut found = [0; 20];
    replay.driver_mut().report = [0; 3];
    replay.read(state, 0, &mut found).expect("the error is returned once");
    assert_eq!(found[..], ones, "the state is restored");
    assert_eq!(replay.driver_mut().buffer(fault)[..4], [0; 4], "the report is cleared");
    step(&mut replay).expect("a step");
    replay.finish_all().expect("complete");
    replay.read(state, 0, &mut found).expect("no fault");
}
