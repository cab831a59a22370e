//! A segment of a plan as a list of steps that can grow, with the levels and readers of all values.

use std::collections::HashMap;

use crate::cost::{Target, call_cost};
use crate::error::Result;
use crate::graph::NodeKind;
use crate::ops::registered;
use crate::ops::{Call, OpRef};
use crate::plan::memory::aligned;
use crate::plan::{BufferRef, Dispatch, ExecutionPlan, MemoryLayout, Operand};
use crate::reference::{expand_call, operand_name};

/// Source of an operand, or destination of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// A buffer of persistent data.
    Fixed(BufferRef),
    /// A value of the step: the index of an instance.
    Made(usize),
}

/// A value as one step computed it. A value that is computed twice has two instances.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    /// The buffer that the value has in the original plan.
    pub(super) value: BufferRef,
    pub(super) bytes: usize,
    /// Index of the step that computes it.
    pub(super) step: usize,
    pub(super) port: usize,
}

/// Properties of a dispatch of the original plan; its copies refer to it.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub(super) dispatch: Dispatch,
    /// Estimated picoseconds.
    pub(super) cost: u64,
    /// Level of the dispatch in the plan.
    pub(super) level: usize,
    /// `true` if repeating it gives the same results and changes nothing else.
    pub(super) repeatable: bool,
    /// `true` if it writes persistent data in place.
    pub(super) writes: bool,
    /// Values that it reads.
    pub(super) reads: Vec<BufferRef>,
}

/// A dispatch or a copy of it.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) origin: usize,
    pub(super) level: usize,
    pub(super) inputs: Vec<Slot>,
    pub(super) outputs: Vec<Slot>,
    /// `true` if the step is no longer run, as its results have no readers.
    pub(super) dropped: bool,
}

/// All steps of the segment. The first steps are the dispatches of the original plan; each of them is its own origin.
#[derive(Clone)]
pub(super) struct Steps {
    pub(super) origins: Vec<Origin>,
    pub(super) steps: Vec<Step>,
    pub(super) instances: Vec<Instance>,
    /// Instances of each value.
    pub(super) instances_of: HashMap<BufferRef, Vec<usize>>,
    /// Steps that read each instance, by level.
    pub(super) readers: Vec<Vec<(usize, usize)>>,
    /// For each level, the bytes in use that recomputation cannot avoid.
    base: Vec<usize>,
    /// For each level, the bytes in use.
    pub(super) live: Vec<usize>,
}

impl Steps {
    /// Converts the only segment of a plan.
    pub(super) fn new(plan: &ExecutionPlan, target: &dyn Target) -> Result<Self> {
        let levels = plan.dispatches.last().map_or(0, |d| d.level as usize + 1);
        let lives = plan.lifetimes();
        let mut writers: Vec<Vec<usize>> = vec![Vec::new(); plan.buffers.len()];
        for (i, d) in plan.dispatches.iter().enumerate() {
            d.outputs.iter().for_each(|o| writers[o.buffer.index()].push(i));
        }
        let made = |b: BufferRef| lives[b.index()].is_some() && writers[b.index()].len() == 1;
        let mut out = Steps {
            origins: Vec::new(),
            steps: Vec::new(),
            instances: Vec::new(),
            instances_of: HashMap::new(),
            readers: Vec::new(),
            base: vec![0; levels],
            live: Vec::new(),
        };
        for (i, life) in lives.iter().enumerate() {
            if let (Some(life), false) = (life, made(BufferRef(i as u32))) {
                out.base[life.first..=life.last]
                    .iter_mut()
                    .for_each(|b| *b += aligned(plan.buffers[i]));
            }
        }
        for (i, d) in plan.dispatches.iter().enumerate() {
            let origin = origin(plan, i, &writers, &|b| lives[b.index()].is_some(), &made, target)?;
            let mut port = 0;
            let outputs = d.outputs.iter().map(|o| {
                port += 1;
                if made(o.buffer) {
                    Slot::Made(out.add_instance(o.buffer, aligned(plan.buffers[o.buffer.index()]), i, port - 1))
                } else {
                    Slot::Fixed(o.buffer)
                }
            });
            let outputs = outputs.collect();
            let slot = |o: &Operand| match out.instances_of.get(&o.buffer) {
                Some(instances) => Slot::Made(instances[0]),
                None => Slot::Fixed(o.buffer),
            };
            let inputs = d.inputs.iter().map(slot).collect();
            out.origins.push(origin);
            out.steps.push(Step {
                origin: i,
                level: d.level as usize,
                inputs,
                outputs,
                dropped: false,
            });
        }
        out.refresh();
        Ok(out)
    }

    pub(super) fn add_instance(&mut self, value: BufferRef, bytes: usize, step: usize, port: usize) -> usize {
        let id = self.instances.len();
        self.instances.push(Instance {
            value,
            bytes,
            step,
            port,
        });
        self.instances_of.entry(value).or_default().push(id);
        id
    }

    /// Recomputes readers and bytes in use.
    pub(super) fn refresh(&mut self) {
        self.readers.clear();
        self.readers.resize(self.instances.len(), Vec::new());
        for (i, step) in self.steps.iter().enumerate().filter(|(_, s)| !s.dropped) {
            for slot in &step.inputs {
                if let Slot::Made(instance) = *slot {
                    self.readers[instance].push((step.level, i));
                }
            }
        }
        let mut changes = vec![0i64; self.base.len() + 1];
        for id in 0..self.instances.len() {
            self.readers[id].sort_unstable();
            self.readers[id].dedup();
            if let Some((first, last)) = self.life(id) {
                changes[first] += self.instances[id].bytes as i64;
                changes[last + 1] -= self.instances[id].bytes as i64;
            }
        }
        let mut live = 0;
        let sum = |(base, change): (&usize, i64)| {
            live += change;
            base + live as usize
        };
        self.live = self.base.iter().zip(changes).map(sum).collect();
    }

    /// Returns the level that computes an instance; `None` if no step computes it.
    pub(super) fn first(&self, instance: usize) -> Option<usize> {
        let step = &self.steps[self.instances[instance].step];
        (!step.dropped).then_some(step.level)
    }

    /// Returns the first and last level of an instance.
    pub(super) fn life(&self, instance: usize) -> Option<(usize, usize)> {
        let first = self.first(instance)?;
        Some((first, self.readers[instance].last().map_or(first, |r| r.0)))
    }

    /// Returns the step of the plan that computes a value.
    pub(super) fn maker(&self, value: BufferRef) -> usize {
        self.steps[self.instances[self.instances_of[&value][0]].step].origin
    }

    pub(super) fn bytes(&self, value: BufferRef) -> usize {
        self.instances[self.instances_of[&value][0]].bytes
    }

    /// Returns the instance of a value that a step of a level should read: preferably one that is live at that level
    /// anyway, else the instance that is live longest.
    pub(super) fn nearest(&self, value: BufferRef, level: usize) -> Option<usize> {
        let before = |&id: &usize| Some((self.life(id).filter(|l| l.0 < level)?.1.min(level), id));
        self.instances_of[&value]
            .iter()
            .filter_map(before)
            .max()
            .map(|(_, id)| id)
    }

    /// Returns `true` if a value is live at a level, so that a step of that level can read it.
    pub(super) fn is_alive(&self, value: BufferRef, level: usize) -> bool {
        let nearest = self.nearest(value, level).and_then(|id| self.life(id));
        nearest.is_some_and(|life| life.1 >= level)
    }

    /// Adds a copy of a step at a level; its operands are resolved later.
    pub(super) fn add_copy(&mut self, origin: usize, level: usize) -> usize {
        let step = self.steps.len();
        let outputs = self.origins[origin].dispatch.outputs.clone();
        let first = self.steps[origin].outputs.clone();
        let outputs = outputs.iter().zip(first).enumerate().map(|(port, (operand, slot))| {
            let bytes = match slot {
                Slot::Made(id) => self.instances[id].bytes,
                Slot::Fixed(_) => aligned(operand.ty.bytes()),
            };
            Slot::Made(self.add_instance(operand.buffer, bytes, step, port))
        });
        let outputs = outputs.collect();
        self.steps.push(Step {
            origin,
            level,
            inputs: self.steps[origin].inputs.clone(),
            outputs,
            dropped: false,
        });
        step
    }

    /// Drops steps whose results have no readers, because other steps compute them.
    pub(super) fn drop_unread(&mut self) {
        loop {
            self.refresh();
            let mut left = vec![0; self.origins.len()];
            let live = self.steps.iter().filter(|s| !s.dropped);
            live.for_each(|s| left[s.origin] += 1);
            let unread = |slot: &Slot| matches!(*slot, Slot::Made(id) if self.readers[id].is_empty());
            let mut idle = Vec::new();
            for (i, step) in self.steps.iter().enumerate().filter(|(_, s)| !s.dropped) {
                let keeps = i == step.origin && self.origins[i].writes;
                if !keeps && left[step.origin] > 1 && step.outputs.iter().all(unread) {
                    left[step.origin] -= 1;
                    idle.push(i);
                }
            }
            if idle.is_empty() {
                return;
            }
            idle.into_iter().for_each(|i| self.steps[i].dropped = true);
        }
    }

    /// Returns the steps that repeat the dispatch of an earlier step.
    pub(super) fn repeated(&self) -> Vec<usize> {
        let mut seen = vec![false; self.origins.len()];
        let mut order: Vec<usize> = (0..self.steps.len()).filter(|&i| !self.steps[i].dropped).collect();
        order.sort_by_key(|&i| self.steps[i].level);
        order.retain(|&i| std::mem::replace(&mut seen[self.steps[i].origin], true));
        order
    }

    /// Returns the plan with these steps and without offsets, and the indices of the repeated dispatches in it.
    pub(super) fn plan(&self, from: &ExecutionPlan) -> (ExecutionPlan, Vec<u32>) {
        let mut plan = from.clone();
        plan.dispatches.clear();
        plan.memory = MemoryLayout::default();
        let mut places: Vec<Option<BufferRef>> = vec![None; self.instances.len()];
        let mut used = vec![false; from.buffers.len()];
        for (id, instance) in self
            .instances
            .iter()
            .enumerate()
            .filter(|(id, _)| self.first(*id).is_some())
        {
            // A copy does not write to the persistent buffer of its origin; it gets its own buffer.
            let fixed = matches!(
                self.steps[self.steps[instance.step].origin].outputs[instance.port],
                Slot::Fixed(_)
            );
            let taken = fixed || std::mem::replace(&mut used[instance.value.index()], true);
            let ty = from.buffer_types[instance.value.index()].clone();
            places[id] = Some(if taken { plan.add_buffer(&ty) } else { instance.value });
        }
        let place = |slot: Slot, else_at: BufferRef| match slot {
            Slot::Fixed(buffer) => buffer,
            Slot::Made(id) => places[id].unwrap_or(else_at),
        };
        let mut order: Vec<usize> = (0..self.steps.len()).filter(|&i| !self.steps[i].dropped).collect();
        order.sort_by_key(|&i| self.steps[i].level);
        let repeated = self.repeated();
        let (mut again, mut level, mut before) = (Vec::new(), 0, None);
        for i in order {
            let step = &self.steps[i];
            // Empty levels are removed.
            level += u32::from(before.is_some_and(|b| b != step.level));
            before = Some(step.level);
            let mut dispatch = self.origins[step.origin].dispatch.clone();
            dispatch.level = level;
            let operands = dispatch.inputs.iter_mut().zip(&step.inputs);
            for (operand, &slot) in operands.chain(dispatch.outputs.iter_mut().zip(&step.outputs)) {
                operand.buffer = place(slot, operand.buffer);
            }
            if repeated.contains(&i) {
                again.push(plan.dispatches.len() as u32);
                dispatch.label += " again";
            }
            plan.dispatches.push(dispatch);
        }
        if let Some(segment) = plan.segments.first_mut() {
            segment.count = plan.dispatches.len();
        }
        (plan, again)
    }
}

/// Determines the properties of a dispatch. `transient` returns whether a buffer is needed only
/// within the step, `made` whether it is also written only once.
fn origin(
    plan: &ExecutionPlan,
    index: usize,
    writers: &[Vec<usize>],
    transient: &dyn Fn(BufferRef) -> bool,
    made: &dyn Fn(BufferRef) -> bool,
    target: &dyn Target,
) -> Result<Origin> {
    let d = &plan.dispatches[index];
    let types = d.types();
    let op = registered::op(&d.kernel.name);
    let kernel = d.kernel_desc(&types);
    let call = kernel.call();
    let cost = op.map_or(0, |op| call_cost(target, op, &call));
    // Data that another dispatch writes at this level or later may have changed when a copy runs.
    let changes = |b: BufferRef| {
        let mut others = writers[b.index()].iter().filter(|w| **w != index);
        others.any(|&w| plan.dispatches[w].level >= d.level)
    };
    let in_place = |port: usize| d.inputs.iter().any(|o| o.buffer == d.outputs[port].buffer);
    let readable = d
        .inputs
        .iter()
        .all(|o| made(o.buffer) || !transient(o.buffer) && !changes(o.buffer));
    let writable = (0..d.outputs.len()).all(|port| {
        if in_place(port) {
            // A copy writes to another buffer.
            op.is_some_and(|op| is_independent_write(op, &call, d, port))
        } else {
            made(d.outputs[port].buffer)
        }
    });
    let reads = d.inputs.iter().map(|o| o.buffer).filter(|b| made(*b));
    Ok(Origin {
        cost,
        level: d.level as usize,
        repeatable: op.is_some() && readable && writable,
        writes: d.outputs.iter().any(|o| !made(o.buffer)),
        reads: reads.collect(),
        dispatch: d.clone(),
    })
}

/// Returns `true` if, by the operator's definition, the write of a port in place does not influence the other results,
/// and if the call does not read the old contents in another way. Then a copy that reads the new contents computes the
/// same for its other results.
fn is_independent_write(op: OpRef, call: &Call, d: &Dispatch, port: usize) -> bool {
    let Some(&(operand, _)) = op.writes().iter().find(|(_, p)| *p == port) else {
        return false;
    };
    let buffer = d.outputs[port].buffer;
    let elsewhere = d
        .inputs
        .iter()
        .enumerate()
        .any(|(i, o)| i != operand && o.buffer == buffer);
    if elsewhere || op.get().semantics().decomposition().is_none() {
        return false;
    }
    let Ok((graph, results)) = expand_call(op, call.attrs, call.inputs, call.outputs) else {
        return false;
    };
    let name = operand_name(operand);
    let mut seen = vec![false; graph.nodes().len()];
    let written = |p: usize| op.writes().iter().any(|(_, w)| *w == p);
    let others = results.iter().enumerate().filter(|(p, _)| !written(*p));
    let mut open: Vec<usize> = others.map(|(_, v)| v.node.index()).collect();
    while let Some(i) = open.pop() {
        if std::mem::replace(&mut seen[i], true) {
            continue;
        }
        let node = &graph.nodes()[i];
        if matches!(node.kind, NodeKind::Input) && node.name.as_deref() == Some(name.as_str()) {
            return false;
        }
        open.extend(node.inputs.iter().map(|v| v.node.index()));
    }
    true
}
