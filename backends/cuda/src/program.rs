//! The launches of a plan with their kernels and memory: what the executable replays at each step.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{DriverError, sys};
use meganeura_core::plan::ExecutionPlan;
use meganeura_core::{DType, Error, Result};
use meganeura_shaders::host::{Bound, Draft, Place, phases};
use meganeura_shaders::{Launch, LibraryMatmul, LibraryOperand};

use crate::cublaslt::{self, CublasLt};
use crate::gpu::NAME;
use crate::kernels::Kernel;
use crate::memory::Arena;
use crate::merging::Merging;

/// Bytes of the device that a launch reads or writes: the number of an allocation, and a range there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) slab: usize,
    pub(crate) bytes: Range<u64>,
    pub(crate) writes: bool,
}

impl Access {
    /// A whole place; one without bytes has some that are nobody else's.
    pub(crate) fn of(place: Place, writes: bool) -> Self {
        Access {
            slab: place.slab,
            bytes: place.offset..place.offset + place.bytes.max(1),
            writes,
        }
    }

    /// Whether the order of the two matters.
    pub(crate) fn conflicts(&self, other: &Access) -> bool {
        (self.writes || other.writes)
            && self.slab == other.slab
            && self.bytes.start < other.bytes.end
            && other.bytes.start < self.bytes.end
    }
}

/// A launch, ready to be enqueued.
pub(crate) struct Ready {
    pub(crate) work: Work,
    pub(crate) accesses: Vec<Access>,
    /// Numbers of the dispatches.
    pub(crate) dispatches: Vec<u32>,
}

/// What a launch runs.
pub(crate) enum Work {
    Kernel(KernelCall),
    Matmul(MatmulCall),
}

/// A kernel with its arguments.
pub(crate) struct KernelCall {
    kernel: Arc<Kernel>,
    /// Addresses and lengths, as the kernel takes them.
    arguments: Vec<u64>,
    groups: [u32; 3],
}

/// A matmul of the library with its operands, result and workspace.
pub(crate) struct MatmulCall {
    library: Arc<CublasLt>,
    matmul: cublaslt::Ready,
    addresses: [sys::CUdeviceptr; 4],
}

impl MatmulCall {
    /// Enqueues it.
    ///
    /// # Errors
    /// The library's.
    pub(crate) fn launch(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: the addresses are those of the plan's buffers, which are as large as the matrices, and of a workspace.
        let enqueued = unsafe { self.library.run(&self.matmul, self.addresses, stream) };
        enqueued.map_err(|why| {
            log::error!("{NAME}: {why}");
            DriverError(sys::CUresult::CUDA_ERROR_LAUNCH_FAILED)
        })
    }
}

impl KernelCall {
    /// Pointers to the arguments, as the driver takes them.
    pub(crate) fn parameters(&self) -> Vec<*mut c_void> {
        let pointers = self
            .arguments
            .iter()
            .map(|argument| std::ptr::from_ref(argument).cast_mut().cast());
        pointers.collect()
    }

    /// Blocks and threads of each along each axis.
    pub(crate) fn shape(&self) -> ([u32; 3], [u32; 3]) {
        (self.groups, self.kernel.threads())
    }

    /// The function as the driver knows it.
    pub(crate) fn function(&self) -> sys::CUfunction {
        self.kernel.function()
    }

    /// Whether it has blocks: a call of no elements has none, which CUDA does not launch.
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.contains(&0)
    }
}

/// Launches whose order does not matter.
pub(crate) type Phase = Vec<Ready>;

/// Where what is bound lies beside the buffers of the plan.
pub(crate) struct Extras {
    /// The scalars of the session.
    pub(crate) scalars: Place,
    /// The numbers from 0 on, as words.
    pub(crate) numbers: Place,
}

/// A launch, and the number of its dispatch.
pub(crate) type Numbered<'a> = (usize, &'a Launch);

/// The phases of each segment, in which launches that become one kernel are together. With `merge`, small ones do, as far as there
/// are so many multiprocessors.
pub(crate) fn batches<'a>(
    draft: &'a Draft,
    plan: &ExecutionPlan,
    merge: Option<u32>,
) -> Vec<Vec<Vec<Vec<Numbered<'a>>>>> {
    let mut numbered = draft
        .launches()
        .enumerate()
        .map(|(number, launches)| launches.iter().map(|launch| (number, launch)).collect());
    let mut merging = merge.map(Merging::new);
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

/// The phases of each segment, with their kernels and memory.
///
/// # Errors
/// A buffer that has no place.
pub(crate) fn ready(
    draft: &Draft,
    batches: &[Vec<Vec<Vec<Numbered>>>],
    kernels: Vec<Arc<Kernel>>,
    library: Option<&Arc<CublasLt>>,
    arena: &Arena,
    extras: &Extras,
) -> Result<Vec<Vec<Phase>>> {
    let mut made = kernels.into_iter();
    let mut ready = |batch: &Vec<Numbered>| {
        let first = batch
            .first()
            .and_then(|(dispatch, launch)| Some((*dispatch, *launch, launch.library?)));
        if let (Some((dispatch, launch, matmul)), Some(library)) = (first, library) {
            return bind_matmul(draft, dispatch, launch, &matmul, library, arena);
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

fn bind(draft: &Draft, batch: &[Numbered], kernel: Arc<Kernel>, arena: &Arena, extras: &Extras) -> Result<Ready> {
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
                    place.ok_or_else(|| Error::plan(format!("there is no buffer b{buffer}")))?,
                    0,
                )
            }
            Bound::Number(number) => (extras.numbers, 4 * u64::from(number)),
            Bound::Scalars => (extras.scalars, 0),
        };
        arguments.push(arena.address(place, offset));
        // A place has some bytes that are nobody else's.
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
    Ok(Ready {
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
    draft: &Draft,
    dispatch: usize,
    launch: &Launch,
    matmul: &LibraryMatmul,
    library: &Arc<CublasLt>,
    arena: &Arena,
) -> Result<Ready> {
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
    };
    let prepared = library.prepare(&described);
    let prepared = prepared.map_err(|why| Error::backend(NAME, format!("a matmul of cuBLASLt is refused: {why}")))?;
    let (mut addresses, mut accesses) = ([0; 4], Vec::with_capacity(4));
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
        let place = place.ok_or_else(|| Error::plan("a matmul has an operand that is nowhere"))?;
        *address = arena.address(place, 0);
        // The result and the workspace are written.
        accesses.push(Access::of(place, number >= 2));
    }
    Ok(Ready {
        work: Work::Matmul(MatmulCall {
            library: library.clone(),
            matmul: prepared,
            addresses,
        }),
        accesses,
        dispatches: vec![dispatch as u32],
    })
}
