//! Generation of the kernels of a dispatch for the buffers of its plan.

use std::collections::{HashMap, HashSet};

use meganeura_core::plan::{BufferRef, Dispatch, ExecutionPlan, Operand};
use meganeura_core::{DType, Error, Result};

use super::custom::CustomKernels;
use crate::coop::CoopConfig;
use crate::{
    self as kernels, CompileCx, Compiled, CustomKernel, DeviceLibrary, Features, Memory, ScheduleChooser, Source,
};

/// Properties of buffers that are known before kernels are generated.
pub struct Sources {
    constants: HashMap<BufferRef, u32>,
    scalars: HashMap<BufferRef, usize>,
}

impl Sources {
    /// Collects the properties of the buffers of a plan.
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

    /// Returns a key of everything that determines the kernels of a dispatch: its call and its buffers, with the
    /// buffers renumbered.
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

/// Options for generating kernels.
#[derive(Clone, Copy)]
pub struct KernelOptions<'a> {
    /// Name of the backend, for messages.
    pub backend: &'static str,
    /// Cooperative matrices. They are used by the dispatches for which the plan requests them.
    pub coop: Option<CoopConfig>,
    /// Other device features that kernels may use.
    pub features: Features,
    /// Library of the device that may compute matmuls.
    pub library: Option<&'a dyn DeviceLibrary>,
    /// Kernels of plugins.
    pub custom: &'a CustomKernels,
    /// Chooser of the schedules of calls.
    pub choices: Option<&'a dyn ScheduleChooser>,
    /// Selection of the `f32` buffers that are stored as `f16`.
    pub f16_storage: F16Storage<'a>,
}

/// Selection of the `f32` buffers that are stored as `f16` in memory; see [`choose`](super::f16_storage::choose).
#[derive(Clone, Copy)]
pub enum F16Storage<'a> {
    /// No buffers.
    No,
    /// The results that all readers round to `f16`.
    Chosen,
    /// These buffers. Data that the caller writes to them must be `f16`.
    Given(&'a HashSet<BufferRef>),
}

/// Returns true if a dispatch writes one of these buffers.
pub(super) fn writes(dispatch: &Dispatch, to: &HashSet<BufferRef>) -> bool {
    dispatch.outputs.iter().any(|output| to.contains(&output.buffer))
}

/// Properties of a dispatch that depend on the plan.
#[derive(Clone, Copy, Default)]
pub struct DispatchContext<'a> {
    /// Word of a condition: the dispatch writes nothing if it is not 0.
    pub skip_if: Option<BufferRef>,
    /// True if the host validates the dispatch's indices.
    pub host_validated: bool,
    /// True if a library may compute the dispatch, because the dispatch writes no data that must be restored after a
    /// fault.
    pub library: bool,
    /// The `f32` buffers that are stored as `f16`.
    pub f16_storage: Option<&'a HashSet<BufferRef>>,
}

/// Generates the kernels of a dispatch, or returns the custom kernel.
///
/// # Errors
/// No kernel supports the dispatch.
pub(super) fn compile(
    dispatch: &Dispatch,
    sources: &Sources,
    known: DispatchContext,
    with: &KernelOptions,
) -> Result<Compiled> {
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

impl KernelOptions<'_> {
    /// Returns the error of a dispatch without a kernel.
    pub(super) fn refused(&self, dispatch: &Dispatch, why: &str) -> Error {
        Error::backend(self.backend, format!("{}: {why}", dispatch.label))
    }
}
