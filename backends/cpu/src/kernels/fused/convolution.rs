//! Fused programs that begin with a convolution. Elementwise steps process its result while it is in the cache.

use std::ops::Range;
use std::sync::Arc;

use meganeura_core::ops::{Conv2dDims, ImageLayout};

use super::engine::Engine;
use super::lower::TypedProgram;
use super::matmul;
use crate::kernel::{CompileCx, Compiled};
use crate::kernels::conv::forward::{Epilogue, convolution};
use crate::kernels::conv::nhwc;
use crate::memory::View;

/// Returns the image layout of a convolution that may have an epilogue, or `None` for other operators.
fn layout(name: &str) -> Option<ImageLayout> {
    match name {
        "core.conv2d" => Some(ImageLayout::Nchw),
        "core.conv2d_nhwc" => Some(ImageLayout::Nhwc),
        _ => None,
    }
}

/// Returns true if a step is a convolution.
pub(super) fn is_one(typed: &TypedProgram, step: usize) -> bool {
    layout(typed.program.steps()[step].op.name()).is_some()
}

/// Returns the sizes of a step that is a convolution.
///
/// # Errors
/// The step is not a convolution, or no kernel supports it.
pub(super) fn sizes(typed: &TypedProgram, step: usize) -> Result<Conv2dDims, String> {
    let layout = layout(typed.program.steps()[step].op.name()).ok_or("the step is not a convolution")?;
    let dims = layout.conv2d(&typed.call(step, &typed.inputs_of(step)))?;
    if layout == ImageLayout::Nhwc {
        nhwc::supports_dims(&dims)?;
    }
    Ok(dims)
}

pub(super) fn compile(cx: &CompileCx, typed: &TypedProgram, step: usize) -> Result<Compiled, String> {
    let plan = matmul::plan(typed, step)?;
    let dims = sizes(typed, step)?;
    let result: View<u32> = cx.output(plan.output);
    let engine = Engine::new(cx, plan.lowered, Some(result))?;
    let operands = [0, 1].map(|i| cx.input(plan.operands[i]));
    let convolution = match dims.layout {
        ImageLayout::Nchw => convolution,
        ImageLayout::Nhwc => nhwc::convolution,
    };
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
