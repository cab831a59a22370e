//! The launches of a plan with their kernels and memory. The executable replays them in each step.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{DriverError, sys};
use meganeura_core::plan::ExecutionPlan;
use meganeura_core::{Error, Result};
use meganeura_shaders::host::{Bound, BufferLocation, LaunchPlan, phases};
use meganeura_shaders::{Launch, LibraryCall};

use crate::kernels::Kernel;
use crate::libraries::{CallAddresses, Libraries, PreparedCall};
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

/// The work of a launch: a kernel, or a call of a library.
pub(crate) enum Work {
    Kernel(KernelCall),
    Library(LibraryWork),
}

/// A kernel with its arguments.
pub(crate) struct KernelCall {
    kernel: Arc<Kernel>,
    /// Arguments of the kernel: addresses and lengths of buffers.
    arguments: Vec<u64>,
    groups: [u32; 3],
}

/// A call of a library with its buffers.
pub(crate) struct LibraryWork {
    libraries: Arc<Libraries>,
    call: PreparedCall,
}

impl LibraryWork {
    /// Enqueues the call.
    ///
    /// # Errors
    /// Errors of the library.
    pub(crate) fn launch(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: the addresses point to plan buffers with the sizes of the tensors, to a workspace, and to the operands
        // of the epilogue.
        unsafe { self.libraries.run(&self.call, stream) }
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
    libraries: Option<&Arc<Libraries>>,
    arena: &Arena,
    extras: &ExtraBindings,
) -> Result<Vec<Vec<Phase>>> {
    let mut made = kernels.into_iter();
    let mut ready = |batch: &Vec<Numbered>| {
        let first = batch
            .first()
            .and_then(|(dispatch, launch)| Some((*dispatch, *launch, launch.library?)));
        if let (Some((dispatch, launch, call)), Some(libraries)) = (first, libraries) {
            return bind_call(draft, dispatch, launch, &call, libraries, arena, extras);
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

fn bind_call(
    draft: &LaunchPlan,
    dispatch: usize,
    launch: &Launch,
    call: &LibraryCall,
    libraries: &Arc<Libraries>,
    arena: &Arena,
    extras: &ExtraBindings,
) -> Result<PreparedLaunch> {
    let (mut addresses, mut accesses) = (Vec::new(), Vec::new());
    for (number, bound) in draft.bound(dispatch, launch).into_iter().enumerate() {
        let place = match bound {
            Bound::Buffer(buffer) => arena.place(buffer),
            Bound::Number(_) | Bound::Scalars => None,
        };
        let place = place.ok_or_else(|| Error::plan("a call of a library has an operand without memory"))?;
        addresses.push(arena.address(place, 0));
        // The result and the workspace.
        accesses.push(Access::of(place, matches!(number, 2 | 3)));
    }
    let [a, b, result, workspace, epilogue @ ..] = &addresses[..] else {
        return Err(Error::plan("a call of a library has too few buffers"));
    };
    let addresses = CallAddresses {
        tensors: [*a, *b, *result],
        workspace: *workspace,
        epilogue: epilogue.to_vec(),
        // The first number of the table is 0, which has the same bits as 0.0.
        zero: arena.address(extras.numbers, 0),
    };
    Ok(PreparedLaunch {
        work: Work::Library(LibraryWork {
            call: libraries.prepare(call, &addresses)?,
            libraries: libraries.clone(),
        }),
        accesses,
        dispatches: vec![dispatch as u32],
    })
}
