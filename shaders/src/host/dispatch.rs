//! The kernels of a dispatch, for the buffers that it has.

use std::collections::{HashMap, HashSet};

use meganeura_core::plan::{BufferRef, Dispatch, ExecutionPlan, Operand};
use meganeura_core::{DType, Error, Result};

use super::custom::CustomKernels;
use crate::coop::CoopConfig;
use crate::{
    self as kernels, CompileCx, Compiled, CustomKernel, Features, MatmulLibrary, Memory, ScheduleChooser, Source,
};

/// What is known of buffers when kernels are made.
pub struct Sources {
    constants: HashMap<BufferRef, u32>,
    scalars: HashMap<BufferRef, usize>,
}

impl Sources {
    /// Of the buffers of a plan.
    pub fn of(plan: &ExecutionPlan) -> Self {
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
    pub fn describe(&self, dispatch: &Dispatch) -> String {
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
pub struct With<'a> {
    /// Name of the backend, for messages.
    pub backend: &'static str,
    /// Cooperative matrices, for dispatches of which the plan says that they use them.
    pub coop: Option<CoopConfig>,
    /// What else of the device kernels may use.
    pub features: Features,
    /// A library of matmuls.
    pub library: Option<&'a dyn MatmulLibrary>,
    /// Kernels of others.
    pub custom: &'a CustomKernels,
    /// Ways to compute calls.
    pub choices: Option<&'a dyn ScheduleChooser>,
    /// Which buffers of `f32` are in `f16` in memory.
    pub f16_storage: F16Storage<'a>,
}

/// Buffers of `f32` that are in `f16` in memory; see [`choose`](super::f16_storage::choose).
#[derive(Clone, Copy)]
pub enum F16Storage<'a> {
    /// None.
    No,
    /// Results that are only read to be rounded.
    Chosen,
    /// These, which whoever writes them knows.
    Given(&'a HashSet<BufferRef>),
}

/// Whether a dispatch writes some of these buffers.
pub(super) fn writes(dispatch: &Dispatch, to: &HashSet<BufferRef>) -> bool {
    dispatch.outputs.iter().any(|output| to.contains(&output.buffer))
}

/// What is known of a dispatch beside itself.
#[derive(Clone, Copy, Default)]
pub struct Known<'a> {
    /// It writes nothing where this word is not 0.
    pub skip_if: Option<BufferRef>,
    /// The host looks at its indices.
    pub host_validated: bool,
    /// A library may compute it: it writes nothing that a fault takes back.
    pub library: bool,
    /// Buffers of `f32` that are in `f16` in memory.
    pub f16_storage: Option<&'a HashSet<BufferRef>>,
}

/// Generates the kernels of a dispatch, or takes a custom one.
///
/// # Errors
/// There is none.
pub(super) fn compile(dispatch: &Dispatch, sources: &Sources, known: Known, with: &With) -> Result<Compiled> {
    let types = dispatch.types();
    let cx = CompileCx {
        kernel: dispatch.kernel_desc(&types),
        inputs: dispatch.inputs.iter().map(|o| sources.source(o)).collect(),
        outputs: dispatch.outputs.iter().map(|o| Memory::Buffer(o.buffer)).collect(),
        skip_if: known.skip_if,
        host_validated: known.host_validated,
        coop: with.coop,
        features: with.features,
        library: with.library.filter(|_| known.library),
        choices: with.choices,
        custom: with
            .custom
            .get(&dispatch.kernel.name)
            .map(|kernel| &**kernel as &dyn CustomKernel),
        first_scratch: 0,
        f16_storage: known.f16_storage,
    };
    kernels::compile(&cx).map_err(|why| with.refused(dispatch, &why))
}

impl With<'_> {
    /// The error of a dispatch that has no kernel.
    pub(super) fn refused(&self, dispatch: &Dispatch, why: &str) -> Error {
        Error::backend(self.backend, format!("{}: {why}", dispatch.label))
    }
}
