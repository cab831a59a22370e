//! The kernels of a dispatch, for the buffers that it has.

use std::collections::{HashMap, HashSet};

use meganeura_core::plan::{BufferRef, Dispatch, ExecutionPlan, Operand};
use meganeura_core::{DType, Error, Result};
use meganeura_shaders::ScheduleChooser;
use meganeura_shaders::coop::CoopConfig;
use meganeura_shaders::{self as kernels, CompileCx, Compiled, CustomKernel, Memory, Source};

use crate::custom::CustomKernels;
use crate::gpu::NAME;

/// What is known of buffers when kernels are made.
pub(crate) struct Sources {
    constants: HashMap<BufferRef, u32>,
    scalars: HashMap<BufferRef, usize>,
}

impl Sources {
    pub(crate) fn of(plan: &ExecutionPlan) -> Self {
        let constants = plan.constants().filter_map(|(buffer, bytes)| {
            let dtype = plan.buffer_types.get(buffer.index())?.dtype;
            let words: Vec<&[u8]> = bytes.chunks_exact(4).collect();
            let first: [u8; 4] = (*words.first()?).try_into().ok()?;
            let wide = matches!(dtype, DType::F32 | DType::U32 | DType::I32);
            let same = wide && words.iter().all(|w| *w == first);
            same.then(|| (buffer, u32::from_le_bytes(first)))
        });
        let scalars = plan.scalar_buffers.iter().enumerate().map(|(i, (_, b))| (*b, i));
        Sources {
            constants: constants.collect(),
            scalars: scalars.collect(),
        }
    }

    /// All that decides which kernels a dispatch has: its call, and where operands and results are, but for the buffers' numbers.
    pub(crate) fn describe(&self, dispatch: &Dispatch) -> String {
        let mut buffers: Vec<BufferRef> = Vec::new();
        let mut number = |buffer: BufferRef| {
            let at = buffers.iter().position(|known| *known == buffer);
            at.unwrap_or_else(|| {
                buffers.push(buffer);
                buffers.len() - 1
            })
        };
        let operands = dispatch.inputs.iter().map(|operand| match self.source(operand) {
            Source::Memory(Memory::Buffer(buffer)) => format!("b{}", number(buffer)),
            other => format!("{other:?}"),
        });
        let operands: Vec<String> = operands.collect();
        let results: Vec<usize> = dispatch.outputs.iter().map(|result| number(result.buffer)).collect();
        format!(
            "{:?} {:?} {:?} {operands:?} {results:?}",
            dispatch.kernel,
            dispatch.attrs,
            dispatch.types()
        )
    }

    fn source(&self, operand: &Operand) -> Source {
        if let Some(&bits) = self.constants.get(&operand.buffer) {
            return Source::Constant(bits);
        }
        match self.scalars.get(&operand.buffer) {
            Some(&place) => Source::Scalar(place),
            None => Source::Memory(Memory::Buffer(operand.buffer)),
        }
    }
}

/// What kernels are made with.
#[derive(Clone, Copy)]
pub(crate) struct With<'a> {
    /// Cooperative matrices, for dispatches of which the plan says that they use them.
    pub(crate) coop: Option<CoopConfig>,
    /// Kernels of others.
    pub(crate) custom: &'a CustomKernels,
    /// Ways to compute calls.
    pub(crate) choices: Option<&'a dyn ScheduleChooser>,
    /// Which buffers of `f32` are in `f16` in memory.
    pub(crate) f16_storage: F16Storage<'a>,
}

/// Buffers of `f32` that are in `f16` in memory; see [`f16_storage`](crate::f16_storage).
#[derive(Clone, Copy)]
pub(crate) enum F16Storage<'a> {
    /// None.
    No,
    /// Results that are only read to be rounded.
    Chosen,
    /// These, which whoever writes them knows.
    Given(&'a HashSet<BufferRef>),
}

/// What is known of a dispatch beside itself.
#[derive(Clone, Copy, Default)]
pub(crate) struct Known<'a> {
    /// It writes nothing where this word is not 0.
    pub(crate) skip_if: Option<BufferRef>,
    /// The host looks at its indices.
    pub(crate) host_validated: bool,
    /// Buffers of `f32` that are in `f16` in memory.
    pub(crate) f16_storage: Option<&'a HashSet<BufferRef>>,
}

/// Generates the kernels of a dispatch, or takes a custom one.
///
/// # Errors
/// There is none.
pub(crate) fn compile(dispatch: &Dispatch, sources: &Sources, known: Known, with: &With) -> Result<Compiled> {
    let types = dispatch.types();
    let cx = CompileCx {
        kernel: dispatch.kernel_desc(&types),
        inputs: dispatch.inputs.iter().map(|o| sources.source(o)).collect(),
        outputs: dispatch.outputs.iter().map(|o| Memory::Buffer(o.buffer)).collect(),
        skip_if: known.skip_if,
        host_validated: known.host_validated,
        coop: with.coop,
        choices: with.choices,
        custom: with
            .custom
            .get(&dispatch.kernel.name)
            .map(|kernel| &**kernel as &dyn CustomKernel),
        first_scratch: 0,
        f16_storage: known.f16_storage,
    };
    kernels::compile(&cx).map_err(|why| refused(dispatch, &why))
}

pub(crate) fn refused(dispatch: &Dispatch, why: &str) -> Error {
    Error::backend(NAME, format!("{}: {why}", dispatch.label))
}
