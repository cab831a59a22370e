//! Level-by-level execution of a step, with inspection after each level.

use std::collections::HashSet;
use std::fmt;
use std::ops::ControlFlow;

use super::Session;
use crate::backend::{Executable, StepArgs};
use crate::error::{Result, TensorKind};
use crate::host_memory;
use crate::plan::memory::check_fit;
use crate::plan::{ACCUMULATE, BufferRef, ExecutionPlan, FORWARD_BACKWARD, LOSS_SCALE, PREPARE, Segment, UPDATE};

/// The part of a step that computed a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// None: the tensor existed before the step. It is an input, parameter or state.
    Before(TensorKind),
    /// The forward pass: outputs and states.
    Forward,
    /// The backward pass: gradients.
    Backward,
    /// The accumulation of gradients over several steps.
    Accumulate,
    /// The count of non-finite gradient elements, for the loss scale.
    LossScale,
    /// The update by the optimizer.
    Update,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stage::Before(kind) => write!(f, "before the step, {kind}"),
            Stage::Forward => f.write_str("forward"),
            Stage::Backward => f.write_str("backward"),
            Stage::Accumulate => f.write_str("accumulate"),
            Stage::LossScale => f.write_str("loss scale"),
            Stage::Update => f.write_str("update"),
        }
    }
}

/// The state of an executable after a level of a step, or before the first level.
pub(super) struct Level<'a> {
    executable: &'a mut dyn Executable,
    /// A plan in which no buffers share memory.
    pub(super) plan: &'a ExecutionPlan,
    /// The dispatches of the level, as a segment; `None` before the step.
    pub(super) segment: Option<&'a Segment>,
    /// Name of the original segment that contains the level.
    part: &'a str,
    forward: &'a [bool],
}

impl Level<'_> {
    /// Reads the storage bytes of a buffer.
    pub(super) fn read(&mut self, buffer: BufferRef) -> Result<Vec<u8>> {
        let mut bytes = host_memory::filled("the data of a dispatch", self.plan.buffers[buffer.index()], 0)?;
        self.executable.read(buffer, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns the part of the step that a dispatch of the level belongs to.
    pub(super) fn stage(&self, dispatch: usize) -> Stage {
        match self.part {
            UPDATE => Stage::Update,
            ACCUMULATE => Stage::Accumulate,
            LOSS_SCALE => Stage::LossScale,
            _ if self.forward[dispatch] => Stage::Forward,
            _ => Stage::Backward,
        }
    }
}

impl Session {
    /// Runs a step, one level after the other, on a copy of the session's memory in which no buffers share memory;
    /// `look` is called before the first level and after each. If `look` returns a break, the step is rolled back:
    /// parameters, states and counters are unchanged.
    pub(super) fn step_by_levels(&mut self, look: &mut dyn FnMut(&mut Level) -> Result<ControlFlow<()>>) -> Result<()> {
        self.settle();
        let (due, count) = self.due_segments();
        self.tensors.check_inputs_set(&due[..count])?;
        // The copy has no prepared values.
        let runs = |(i, s): (usize, &Segment)| s.name == PREPARE || due[..count].contains(&i);
        let due: Vec<bool> = self.plan.segments.iter().enumerate().map(runs).collect();
        let (plan, segments) = self.plan.by_levels();
        check_fit(&plan, 0, self.device.capabilities())?;
        let mut copy = self.device.compile(&plan)?;
        let external: HashSet<BufferRef> = plan.external().collect();
        copy_buffers(&mut *self.executable, &mut *copy, &plan, &external)?;
        self.gather_scalars()?;
        let forward = forward_dispatches(&plan);
        let mut level = Level {
            executable: &mut *copy,
            plan: &plan,
            segment: None,
            part: "",
            forward: &forward,
        };
        if look(&mut level)?.is_break() {
            return Ok(());
        }
        for (number, original) in segments.iter().enumerate() {
            if !due[*original] {
                continue;
            }
            let args = StepArgs {
                segments: &[number],
                scalars: &self.scalars,
            };
            let ticket = level.executable.run(&args)?;
            level.executable.wait(ticket)?;
            level.segment = Some(&plan.segments[number]);
            level.part = &self.plan.segments[*original].name;
            if look(&mut level)?.is_break() {
                return Ok(());
            }
        }
        copy_buffers(&mut *copy, &mut *self.executable, &plan, &external)?;
        self.count_step();
        Ok(())
    }
}

/// Copies the contents of buffers from one executable to another, whose plan has the same buffers.
fn copy_buffers(
    from: &mut dyn Executable,
    to: &mut dyn Executable,
    plan: &ExecutionPlan,
    buffers: &HashSet<BufferRef>,
) -> Result<()> {
    let mut bytes = Vec::new();
    for &buffer in buffers {
        bytes.resize(plan.buffers[buffer.index()], 0);
        from.read(buffer, 0, &mut bytes)?;
        to.write(buffer, 0, &bytes)?;
    }
    Ok(())
}

/// Returns for each dispatch whether an output or a state depends on it.
fn forward_dispatches(plan: &ExecutionPlan) -> Vec<bool> {
    let states = plan.state_buffers.iter().filter(|s| !s.optimizer).map(|s| s.buffer);
    let mut needed: HashSet<BufferRef> = plan.output_buffers.iter().copied().chain(states).collect();
    let mut forward = vec![false; plan.dispatches.len()];
    // Segments of this plan are levels, named after the original segment with a number.
    let is_own = |s: &&Segment| {
        s.name
            .rsplit_once(' ')
            .is_some_and(|(name, _)| [PREPARE, FORWARD_BACKWARD].contains(&name))
    };
    let own = plan.segments.iter().filter(is_own);
    let own: Vec<usize> = own.flat_map(Segment::range).collect();
    for &i in own.iter().rev() {
        let d = &plan.dispatches[i];
        if d.outputs.iter().any(|o| needed.contains(&o.buffer)) {
            forward[i] = true;
            needed.extend(d.inputs.iter().map(|o| o.buffer));
        }
    }
    forward
}
