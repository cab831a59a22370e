//! The memory of a plan, computed before any is allocated.

use std::fmt;

use super::aligned;
use crate::plan::{BufferRef, ExecutionPlan};

/// Memory of a plan's buffers, in bytes. The workspace of a device (scratch of kernels, copies for rolling back a
/// failed step) is not included; see [`Device::workspace_bytes`](crate::backend::Device::workspace_bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryForecast {
    /// Bytes that a device allocates for the buffers.
    pub planned: usize,
    /// Bytes of the buffers if each had memory of its own.
    pub unplanned: usize,
    /// Bytes that are live at the peak level: no assignment of offsets needs less. A result is counted in addition to
    /// its operands, because none is computed in place.
    pub lower_bound: usize,
    /// Bytes of parameters.
    pub parameters: usize,
    /// Bytes of prepared values: computed once from parameters and kept for many steps.
    pub prepared: usize,
    /// Bytes of the gradients of parameters and inputs.
    pub gradients: usize,
    /// Bytes of the optimizer's state: moments, and accumulated gradients.
    pub optimizer: usize,
    /// Bytes of inputs, outputs, constants, scalars and other states.
    pub others: usize,
    /// The part of `planned` for buffers that are needed only within a step: activations and other intermediates.
    pub transient: usize,
}

impl ExecutionPlan {
    /// Computes the memory that the plan will take.
    pub fn memory_forecast(&self) -> MemoryForecast {
        let lives = self.lifetimes();
        // A buffer in the memory of another executable takes no memory of this plan.
        let own = |buffer: BufferRef| !self.memory.is_borrowed(buffer);
        let size = |buffer: BufferRef| {
            self.buffers
                .get(buffer.index())
                .copied()
                .filter(|_| own(buffer))
                .unwrap_or(0)
        };
        let mut counted = vec![false; self.buffers.len()];
        let mut sum = |buffers: &mut dyn Iterator<Item = BufferRef>| -> usize {
            let new = buffers.filter(|b| counted.get_mut(b.index()).is_some_and(|c| !std::mem::replace(c, true)));
            new.map(size).sum()
        };
        let parameters = sum(&mut self.param_buffers.iter().map(|(_, b)| *b));
        let trained = self.param_grad_pairs.iter().map(|(_, g)| *g);
        let gradients = sum(&mut trained.chain(self.gradient_buffers.iter().map(|(_, b)| *b)));
        let optimizer = sum(&mut self.state_buffers.iter().filter(|s| s.optimizer).map(|s| s.buffer));
        let prepared = sum(&mut self.kept_between_steps().into_iter());
        let rest = (0..self.buffers.len()).filter(|i| lives[*i].is_none());
        let others = sum(&mut rest.map(|i| BufferRef(i as u32)));
        let persistent = parameters + prepared + gradients + optimizer + others;
        let buffers = (0..self.buffers.len()).map(|i| BufferRef(i as u32));
        let unplanned = buffers.fold(0, |sum: usize, buffer| sum.saturating_add(aligned(size(buffer))));
        let planned = if self.memory.offsets.is_empty() {
            unplanned
        } else {
            self.memory.bytes
        };
        let mut changes: Vec<(usize, bool, usize)> = Vec::new();
        for (life, &bytes) in lives.iter().zip(&self.buffers) {
            if let Some(life) = life {
                changes.push((life.first, false, bytes));
                changes.push((life.last, true, bytes));
            }
        }
        changes.sort_unstable();
        let (mut live, mut most) = (0, 0);
        for (_, ends, bytes) in changes {
            live = if ends { live - bytes } else { live + bytes };
            most = most.max(live);
        }
        MemoryForecast {
            planned,
            unplanned,
            lower_bound: persistent + most,
            parameters,
            prepared,
            gradients,
            optimizer,
            others,
            transient: planned.saturating_sub(persistent),
        }
    }
}

impl fmt::Display for MemoryForecast {
    /// Writes `128.4 MB (300.1 MB without sharing): 20.0 MB parameters, ...`, in units of 10^6
    /// bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: usize| bytes as f64 / 1e6;
        let prepared = match self.prepared {
            0 => String::new(),
            bytes => format!(", {:.1} MB computed from them", mb(bytes)),
        };
        write!(
            f,
            "{:.1} MB ({:.1} MB without sharing): {:.1} MB parameters{prepared}, {:.1} MB gradients, {:.1} MB optimizer, \
             {:.1} MB inputs, outputs and states, {:.1} MB within a step",
            mb(self.planned),
            mb(self.unplanned),
            mb(self.parameters),
            mb(self.gradients),
            mb(self.optimizer),
            mb(self.others),
            mb(self.transient)
        )
    }
}
