//! Matmuls within a task.

use crate::gemm::{Gemm, GemmSpec};
use crate::memory::aligned;

use super::sizes::Strips;

/// A matmul whose tasks all run one after the other on the calling thread.
struct Serial {
    gemm: Gemm,
    /// Where the worker's scratch begins, behind what the phases share.
    worker_at: usize,
}

impl Serial {
    fn new(spec: GemmSpec) -> Self {
        let gemm = Gemm::new(spec);
        Serial {
            worker_at: aligned(gemm.shared_len()),
            gemm,
        }
    }

    fn scratch_len(&self) -> usize {
        self.worker_at + aligned(self.gemm.worker_len())
    }
}

/// Matmuls over strips: those of the last strip may be smaller.
pub(super) struct StripMatmul {
    strips: usize,
    full: Serial,
    last: Serial,
}

impl StripMatmul {
    /// Plans a matmul for each length of a strip.
    pub(super) fn new(strips: Strips, spec: impl Fn(usize) -> GemmSpec) -> Self {
        StripMatmul {
            strips: strips.count(),
            full: Serial::new(spec(strips.len)),
            last: Serial::new(spec(strips.last_len())),
        }
    }

    /// `f32`s of scratch of a run.
    pub(super) fn scratch_len(&self) -> usize {
        self.full.scratch_len().max(self.last.scratch_len())
    }

    /// Multiplies for a strip.
    ///
    /// # Safety
    /// The operands are valid for the spec of the strip's length, and the scratch for
    /// [`StripMatmul::scratch_len`]; nobody else touches `c` or the scratch meanwhile.
    pub(super) unsafe fn run(&self, strip: usize, a: *const f32, b: *const f32, c: *mut f32, scratch: *mut f32) {
        let Serial { gemm, worker_at } = if strip + 1 == self.strips {
            &self.last
        } else {
            &self.full
        };
        for phase in 0..gemm.phases() {
            for task in 0..gemm.tasks(phase) {
                // SAFETY: operands and scratch by contract; phases and tasks run in order.
                unsafe { gemm.run_task(phase, task, a, b, c, scratch, scratch.add(*worker_at)) }
            }
        }
    }
}
