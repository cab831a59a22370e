//! The launches of a plan with their kernels and memory. The executable replays them in each step.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{DriverError, sys};
use meganeura_core::plan::ExecutionPlan;
use meganeura_core::{DType, Error, Result};
use meganeura_shaders::host::{Bound, BufferLocation, LaunchPlan, phases};
use meganeura_shaders::{Launch, LibraryMatmul, LibraryOperand};

use crate::cublaslt::{self, CublasLt};
use crate::gpu::NAME;
use crate::kernels::Kernel;
use crate::memory::Arena;
use crate::merging::MergeDecisions;

/// A range of device memory that a launch reads or writes: the index of its allocation, and the range within the
/// allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) slab: usize,
    pub(crate) bytes: Range<u64>,
    pub(crate) writes: bool,
}

impl Access {
    /// Returns the access to a whole location. An empty location counts as one byte, which belongs to no other
    /// location.
    pub(crate) fn of(place: BufferLocation, writes: bool) -> Self {
        Access {
            slab: place.slab,
            bytes: place.offset..place.offset + place.bytes.max(1),
            writes,
        }
    }

    /// Returns `true` if the order of the two accesses matters.
    pub(crate) fn conflicts(&self, other: &Access) -> bool {
        (self.writes || other.writes)
            && self.slab == other.slab
            && self.bytes.start < other.bytes.end
            && other.bytes.start < self.bytes.end
    }
}

/// A launch with its arguments, ready to be enqueued.
pub(crate) struct PreparedLaunch {
    pub(crate) work: Work,
    pub(crate) accesses: Vec<Access>,
    /// Indices of the dispatches that the launch executes.
    pub(crate) dispatches: Vec<u32>,
}

/// The work of a launch: a kernel, or a matmul of the library.
pub(crate) enum Work {
    Kernel(KernelCall),
    Matmul(MatmulCall),
}

/// A kernel with its arguments.
pub(crate) struct KernelCall {
    kernel: Arc<Kernel>,
    /// Arguments of the kernel: addresses and lengths of buffers.
    arguments: Vec<u64>,
    groups: [u32; 3],
}

/// A matmul of the library with the addresses of its operands, result and workspace.
pub(crate) struct MatmulCall {
    library: Arc<CublasLt>,
    matmul: cublaslt::PreparedMatmul,
    addresses: cublaslt::Addresses,
}

impl MatmulCall {
    /// Enqueues the matmul.
    ///
    /// # Errors
    /// Errors of the library.
    pub(crate) fn launch(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: the addresses point to plan buffers with the sizes of the matrices, to a workspace, and to the
        // operand of the epilogue.
        let enqueued = unsafe { self.library.run(&self.matmul, &self.addresses, stream) };
        enqueued.map_err(|why| {
            log::error!("{NAME}: {why}");
            DriverError(sys::CUresult::CUDA_ERROR_LAUNCH_FAILED)
        })
    }
}

impl KernelCall {
    /// Returns pointers to the arguments, as the driver requires them.
    pub(crate) fn parameters(&self) -> Vec<*mut c_void> {
        let pointers = self
            .arguments
            .iter()
            .map(|argument| std::ptr::from_ref(argument).cast_mut().cast());
        pointers.collect()
    }

    /// Returns the number of blocks, and the number of threads of a block, along each axis.
    pub(crate) fn shape(&self) -> ([u32; 3], [u32; 3]) {
        (self.groups, self.kernel.threads())
    }

    /// Returns the driver's handle of the function.
    pub(crate) fn function(&self) -> sys::CUfunction {
        self.kernel.function()
    }

    /// Returns `true` if the kernel has no blocks, as for a call without elements. CUDA rejects such launches.
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.contains(&0)
    }
}

/// Launches that may run in any order.
pub(crate) type Phase = Vec<PreparedLaunch>;

/// Locations of memory that launches bind and that is not a buffer of the plan.
pub(crate) struct ExtraBindings {
    /// Location of the session's scalars.
    pub(crate) scalars: BufferLocation,
    /// Location of a table of the numbers from 0 on, as words.
    pub(crate) numbers: BufferLocation,
}

/// A launch, and the index of its dispatch.
pub(crate) type Numbered<'a> = (usize, &'a Launch);

/// Returns the launches of each phase of each segment, in groups that are merged. `merge` is the number of
/// multiprocessors, which limits the merging of small launches. Without it, no launches are merged.
pub(crate) fn batches<'a>(
    draft: &'a LaunchPlan,
    plan: &ExecutionPlan,
    merge: Option<u32>,
) -> Vec<Vec<Vec<Vec<Numbered<'a>>>>> {
    let mut numbered = draft
        .launches()
        .enumerate()
        .map(|(number, launches)| launches.iter().map(|launch| (number, launch)).collect());
    let mut merging = merge.map(MergeDecisions::new);
    let segments = plan.segments.iter().map(|segment| {
        let phases = phases(plan, segment, &mut numbered).into_iter();
        let phases = phases.map(|phase: Vec<Numbered>| match &mut merging {
            Some(merging) => merging.batches(phase),
            None => phase.into_iter().map(|launch| vec![launch]).collect(),
        });
        phases.collect()
    });
    segments.collect()
}

/// Prepares the launches of a plan, and returns the phases of each segment.
///
/// # Errors
/// A buffer has no location.
pub(crate) fn ready(
    draft: &LaunchPlan,
    batches: &[Vec<Vec<Vec<Numbered>>>],
    kernels: Vec<Arc<Kernel>>,
    library: Option<&Arc<CublasLt>>,
    arena: &Arena,
    extras: &ExtraBindings,
) -> Result<Vec<Vec<Phase>>> {
    let mut made = kernels.into_iter();
    let mut ready = |batch: &Vec<Numbered>| {
        let first = batch
            .first()
            .and_then(|(dispatch, launch)| Some((*dispatch, *launch, launch.library?)));
        if let (Some((dispatch, launch, matmul)), Some(library)) = (first, library) {
            return bind_matmul(draft, dispatch, launch, &matmul, library, arena, extras);
        }
        let kernel = made.next().ok_or_else(|| Error::plan("a launch has no kernel"))?;
        bind(draft, batch, kernel, arena, extras)
    };
    let mut phases = |phases: &Vec<Vec<Vec<Numbered>>>| -> Result<Vec<Phase>> {
        let phases = phases.iter().map(|phase| phase.iter().map(&mut ready).collect());
        phases.collect()
    };
    batches.iter().map(&mut phases).collect()
}

fn bind(
    draft: &LaunchPlan,
    batch: &[Numbered],
    kernel: Arc<Kernel>,
    arena: &Arena,
    extras: &ExtraBindings,
) -> Result<PreparedLaunch> {
    let bound: Vec<Vec<Bound>> = batch
        .iter()
        .map(|(dispatch, launch)| draft.bound(*dispatch, launch))
        .collect();
    let (mut arguments, mut accesses) = (Vec::new(), Vec::new());
    for parameter in &kernel.parameters {
        let (place, offset) = match bound[parameter.launch][parameter.binding] {
            Bound::Buffer(buffer) => {
                let place = arena.place(buffer);
                (
                    place.ok_or_else(|| Error::plan(format!("buffer b{buffer} does not exist")))?,
                    0,
                )
            }
            Bound::Number(number) => (extras.numbers, 4 * u64::from(number)),
            Bound::Scalars => (extras.scalars, 0),
        };
        arguments.push(arena.address(place, offset));
        // An empty location also has at least one byte, which belongs to no other location.
        let bytes = place.bytes.saturating_sub(offset).max(parameter.least_bytes);
        if parameter.has_length {
            arguments.push(bytes);
        }
        accesses.push(Access {
            slab: place.slab,
            bytes: place.offset + offset..place.offset + offset + bytes.max(1),
            writes: parameter.writable,
        });
    }
    Ok(PreparedLaunch {
        work: Work::Kernel(KernelCall {
            groups: kernel.blocks().unwrap_or(batch[0].1.groups),
            kernel,
            arguments,
        }),
        accesses,
        dispatches: batch.iter().map(|(dispatch, _)| *dispatch as u32).collect(),
    })
}

fn bind_matmul(
    draft: &LaunchPlan,
    dispatch: usize,
    launch: &Launch,
    matmul: &LibraryMatmul,
    library: &Arc<CublasLt>,
    arena: &Arena,
    extras: &ExtraBindings,
) -> Result<PreparedLaunch> {
    let &LibraryMatmul { batch, m, n, k, .. } = matmul;
    let matrix = |operand: usize, rows: usize, columns: usize| {
        let LibraryOperand {
            dtype,
            transposed,
            stride,
        } = matmul.operands[operand];
        let (rows, columns) = if transposed { (columns, rows) } else { (rows, columns) };
        cublaslt::Matrix {
            half: dtype == DType::F16,
            rows,
            columns,
            stride,
        }
    };
    let described = cublaslt::Matmul {
        a: matrix(0, m, k),
        transpose_a: matmul.operands[0].transposed,
        b: matrix(1, k, n),
        transpose_b: matmul.operands[1].transposed,
        d: cublaslt::Matrix {
            half: matmul.result == DType::F16,
            rows: m,
            columns: n,
            stride: m * n,
        },
        batch,
        epilogue: matmul.epilogue,
    };
    let prepared = library.prepare(&described);
    let prepared = prepared.map_err(|why| Error::backend(NAME, format!("cuBLASLt rejects a matmul: {why}")))?;
    // Operands, result, workspace, and the operand of the epilogue.
    let (mut addresses, mut accesses) = ([0; 5], Vec::with_capacity(5));
    for (number, (bound, address)) in draft
        .bound(dispatch, launch)
        .into_iter()
        .zip(&mut addresses)
        .enumerate()
    {
        let place = match bound {
            Bound::Buffer(buffer) => arena.place(buffer),
            Bound::Number(_) | Bound::Scalars => None,
        };
        let place = place.ok_or_else(|| Error::plan("a matmul has an operand without memory"))?;
        *address = arena.address(place, 0);
        accesses.push(Access::of(place, matches!(number, 2 | 3)));
    }
    let [a, b, d, workspace, epilogue] = addresses;
    let addresses = cublaslt::Addresses {
        a,
        b,
        d,
        workspace,
        epilogue,
        // The first number of the table is 0, which has the same bits as 0.0.
        zero: arena.address(extras.numbers, 0),
    };
    Ok(PreparedLaunch {
        work: Work::Matmul(MatmulCall {
            library: library.clone(),
            matmul: prepared,
            addresses,
        }),
        accesses,
        dispatches: vec![dispatch as u32],
    })
}
