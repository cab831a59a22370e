//! A convolution, and elementwise steps on its result while that is in the cache.

use std::ops::Range;
use std::sync::Arc;

use meganeura_core::ops::Conv2dDims;

use super::engine::Engine;
use super::lower::Typed;
use super::matmul;
use crate::kernel::{CompileCx, Compiled};
use crate::kernels::conv::forward::{Epilogue, convolution};
use crate::memory::View;

/// Whether a step is a convolution.
pub(super) fn is_one(typed: &Typed, step: usize) -> bool {
    typed.program.steps()[step].op.name() == "core.conv2d"
}

pub(super) fn compile(cx: &CompileCx, typed: &Typed, step: usize) -> Result<Compiled, String> {
    let plan = matmul::plan(typed, step)?;
    let dims = Conv2dDims::of_conv2d(&typed.call(step, &typed.inputs_of(step)))?;
    let result: View<u32> = cx.output(plan.output);
    let engine = Engine::new(cx, plan.lowered, Some(result))?;
    let operands = [0, 1].map(|i| cx.input(plan.operands[i]));
    Ok(convolution(
        cx,
        &dims,
        operands,
        cx.output(plan.output),
        Some(Arc::new(engine)),
    ))
}

impl Epilogue for Engine {
    fn scratch(&self) -> usize {
        Engine::scratch(self)
    }

    fn nanos(&self) -> u64 {
        self.nanos
    }

    unsafe fn run(&self, elements: Range<usize>, scratch: *mut f32) {
        // SAFETY: forwarded.
        unsafe { self.run_all(elements, scratch) };
    }
}
