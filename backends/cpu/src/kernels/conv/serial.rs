//! Matmuls for kernels in which one task runs all tasks of a matmul.

use crate::gemm::{Gemm, GemmSpec};
use crate::memory::aligned;

use super::sizes::Strips;

/// A matmul whose tasks run one after the other on the calling thread.
struct Serial {
    gemm: Gemm,
    /// Offset of the worker's scratch. It follows the scratch that the phases share.
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

/// The matmuls of all strips. The matmul of a shorter last strip is planned separately.
pub(super) struct StripMatmul {
    strips: usize,
    full: Serial,
    last: Serial,
}

impl StripMatmul {
    /// Plans the matmuls. `spec` returns the matmul for a strip of the given length.
    pub(super) fn new(strips: Strips, spec: impl Fn(usize) -> GemmSpec) -> Self {
        StripMatmul {
            strips: strips.count(),
            full: Serial::new(spec(strips.len)),
            last: Serial::new(spec(strips.last_len())),
        }
    }

    /// Returns the number of `f32`s of the scratch of a run.
    pub(super) fn scratch_len(&self) -> usize {
        self.full.scratch_len().max(self.last.scratch_len())
    }

    /// Runs the matmul of a strip.
    ///
    /// # Safety
    /// The operands must be valid for the spec of the strip's length, and the scratch for
    /// [`StripMatmul::scratch_len`] `f32`s. No other code may access `c` or the scratch meanwhile.
    pub(super) unsafe fn run(&self, strip: usize, a: *const f32, b: *const f32, c: *mut f32, scratch: *mut f32) {
        let Serial { gemm, worker_at } = if strip + 1 == self.strips {
            &self.last
        } else {
            &self.full
        };
        for phase in 0..gemm.phases() {
            for task in 0..gemm.tasks(phase) {
                // SAFETY: the operands and the scratch are valid by the contract; phases and tasks run in order.
                unsafe { gemm.run_task(phase, task, a, b, c, scratch, scratch.add(*worker_at)) }
            }
        }
    }
}
