//! A rank's GPU in NCCL: collectives are enqueued, and somebody watches that they complete.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cudarc::driver::{DriverError, result, sys};
use meganeura_core::distributed::{CollectiveFailure, DeviceTensor};
use meganeura_core::{Error, Result};

use super::NAME;
use super::group::Group;
use super::library::{Nccl, Operation, RawComm, UniqueId};
use super::links::Lost;
use crate::driver::Properties;
use crate::event::Event;
use crate::gpu::Gpu;
use crate::memory::DeviceMemory;

/// How often it is looked whether a collective goes on.
const LOOK: Duration = Duration::from_millis(10);
/// As long as this the host asks again and again whether a collective is complete.
const ASKING: Duration = Duration::from_millis(2);
/// The priority of collectives that run beside kernels, below what any device has, which takes its highest: their few blocks would
/// otherwise wait for those of large kernels.
const FIRST: i32 = -100;
/// How long a call of the library may take to get past its first instructions, in which it must not be aborted.
const ENTERING: Duration = Duration::from_millis(100);

/// The bytes of numbers.
pub(super) fn bytes_of(data: &mut [f32]) -> &mut [u8] {
    // SAFETY: `f32` has no padding and every bit pattern is valid; the length in bytes is that of the slice; the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data)) }
}

/// Has what is enqueued from now on wait for an event.
///
/// # Safety
/// Both are there.
unsafe fn wait_for(stream: sys::CUstream, event: sys::CUevent) -> Result<(), DriverError> {
    // SAFETY: by the contract of this function.
    unsafe { result::stream::wait_event(stream, event, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }
}

fn transport(error: impl std::fmt::Display) -> CollectiveFailure {
    CollectiveFailure::Transport(error.to_string())
}

/// The library's communicator, which is aborted where a collective does not go on.
struct Comm {
    nccl: Nccl,
    raw: RawComm,
    /// Whether it was aborted, or is about to be.
    ended: AtomicBool,
    /// Calls that are in the library.
    inside: AtomicUsize,
    failure: Mutex<Option<CollectiveFailure>>,
    lost: Box<dyn Fn() -> Option<Lost> + Send + Sync>,
}

// SAFETY: the library's communicators may be used from any thread, by one at a time; aborting is allowed beside that.
unsafe impl Send for Comm {}
// SAFETY: as above: whoever enqueues has an exclusive reference to the device.
unsafe impl Sync for Comm {}

/// A call that is in the library.
struct Inside<'a>(&'a Comm);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Comm {
    /// Enters the library.
    fn enter(&self) -> Result<Inside<'_>, CollectiveFailure> {
        self.inside.fetch_add(1, Ordering::SeqCst);
        let inside = Inside(self);
        match self.ended.load(Ordering::SeqCst) {
            false => Ok(inside),
            true => Err(self.failure()),
        }
    }

    fn failure(&self) -> CollectiveFailure {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        failure.unwrap_or_else(|| transport("the communicator failed before"))
    }

    /// Ends all that was enqueued. Returns whether this was the first time.
    fn end(&self, failure: Option<CollectiveFailure>) -> bool {
        if self.ended.swap(true, Ordering::SeqCst) {
            return false;
        }
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
        let begun = Instant::now();
        while self.inside.load(Ordering::SeqCst) > 0 && begun.elapsed() < ENTERING {
            thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: nobody enters any more; who is inside waits there, and this ends it.
        unsafe { self.nccl.abort(self.raw) };
        true
    }

    /// Why a collective does not go on, which began at some time.
    fn stalled(&self, since: Option<Instant>, limit: Duration) -> Option<CollectiveFailure> {
        if let Some((peer, reason)) = (self.lost)() {
            return Some(CollectiveFailure::PeerLost { peer, reason });
        }
        let error = match self.enter() {
            // SAFETY: it was not aborted.
            Ok(_inside) => unsafe { self.nccl.asynchronous_error(self.raw) },
            Err(failure) => return Some(failure),
        };
        match error {
            Some(error) => Some(transport(error)),
            None if since.is_some_and(|since| since.elapsed() > limit) => Some(CollectiveFailure::TimedOut {
                missing: Vec::new(),
                limit,
            }),
            None => None,
        }
    }
}

/// A collective on the device that is not known to be complete.
struct Watched {
    before: Event,
    behind: Event,
    /// When it was the next to run.
    since: Option<Instant>,
    limit: Duration,
}

/// What the watching thread shares.
#[derive(Default)]
struct Watch {
    queue: Mutex<VecDeque<Watched>>,
    stops: AtomicBool,
}

impl Watch {
    fn queue(&self) -> MutexGuard<'_, VecDeque<Watched>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what is complete, and ends what does not go on.
    fn look(&self, comm: &Comm) {
        let mut queue = self.queue();
        while queue
            .front()
            .is_some_and(|first| first.behind.is_complete().unwrap_or(true))
        {
            queue.pop_front();
        }
        let Some(first) = queue.front_mut() else { return };
        if first.since.is_none() && first.before.is_complete().unwrap_or(true) {
            first.since = Some(Instant::now());
        }
        if let Some(failure) = comm.stalled(first.since, first.limit) {
            queue.clear();
            drop(queue);
            log::error!("{NAME}: an all-reduce does not go on: {failure:?}");
            comm.end(Some(failure));
        }
    }
}

/// Memory of the device for data of the host; it grows.
#[derive(Default)]
struct Staging(Option<(DeviceMemory, usize)>);

impl Staging {
    fn address(&mut self, gpu: &Arc<Gpu>, bytes: usize) -> Result<u64> {
        if self.0.as_ref().is_none_or(|(_, have)| *have < bytes) {
            self.0 = None;
            let wanted = bytes.next_power_of_two().max(4096);
            self.0 = Some((DeviceMemory::new(gpu, wanted)?, wanted));
        }
        Ok(self.0.as_ref().map_or(0, |(memory, _)| memory.address()))
    }
}

/// The GPU of a rank.
pub(super) struct Device {
    gpu: Arc<Gpu>,
    comm: Arc<Comm>,
    ordinal: sys::CUdevice,
    /// For data of the host, and for tensors that are complete before their queue is.
    stream: sys::CUstream,
    from: Staging,
    to: Staging,
    watch: Arc<Watch>,
    thread: Option<JoinHandle<()>>,
}

// SAFETY: streams of CUDA belong to their context and to no thread.
unsafe impl Send for Device {}

impl Device {
    /// Joins the others with a GPU. `lost` knows of ranks that end.
    ///
    /// # Errors
    /// The driver's and the library's.
    pub(super) fn join(
        nccl: Nccl,
        properties: &Properties,
        id: UniqueId,
        group: &Group,
        lost: impl Fn() -> Option<Lost> + Send + Sync + 'static,
    ) -> Result<Self> {
        let gpu = Arc::new(Gpu::open(properties)?);
        let stream = gpu.call("making a stream", || {
            let mut raw = std::ptr::null_mut();
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            // SAFETY: `raw` is a place for a stream.
            unsafe { sys::cuStreamCreateWithPriority(&mut raw, flags, FIRST) }.result()?;
            Ok(raw)
        })?;
        let raw = gpu.within(|| {
            let joined = nccl.join(id, group.rank, group.size);
            joined.map_err(|why| Error::backend(NAME, why))
        })?;
        let comm = Arc::new(Comm {
            nccl,
            raw,
            ended: AtomicBool::new(false),
            inside: AtomicUsize::new(0),
            failure: Mutex::default(),
            lost: Box::new(lost),
        });
        let watch = Arc::new(Watch::default());
        let thread = thread::Builder::new().name(NAME.into()).spawn({
            let (comm, watch) = (comm.clone(), watch.clone());
            move || {
                while !watch.stops.load(Ordering::Acquire) {
                    watch.look(&comm);
                    thread::sleep(LOOK);
                }
            }
        });
        let thread = thread.map_err(|error| Error::backend(NAME, format!("no thread can be started: {error}")))?;
        Ok(Device {
            gpu,
            comm,
            ordinal: properties.device,
            stream,
            from: Staging::default(),
            to: Staging::default(),
            watch,
            thread: Some(thread),
        })
    }

    /// Whether collectives can be enqueued.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn usable(&self) -> Result<(), CollectiveFailure> {
        self.comm.enter().map(|_| ())
    }

    /// Ends all that was enqueued, and whatever comes. Returns whether this was the first time.
    pub(super) fn end(&self) -> bool {
        self.comm.end(None)
    }

    /// Whether memory of a GPU is that of this one; `None` for other memory.
    pub(super) fn holds(&self, address: u64) -> Option<bool> {
        let attribute = |which, to: *mut c_void| {
            // SAFETY: the place is as large as the attribute, a number of 32 bits.
            unsafe { sys::cuPointerGetAttribute(to, which, address) }.result()
        };
        let (mut kind, mut ordinal) = (0_u32, 0_i32);
        let found = self.gpu.attempt(|| {
            let (kind, ordinal) = (&raw mut kind, &raw mut ordinal);
            attribute(sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, kind.cast())?;
            attribute(
                sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                ordinal.cast(),
            )
        });
        let is_device = found.is_ok() && kind == sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32;
        is_device.then_some(ordinal == self.ordinal)
    }

    /// A collective on memory of the host, which waits until it is complete.
    ///
    /// # Errors
    /// What the driver or the library fail with; a rank that is lost or does not come.
    pub(super) fn run(
        &mut self,
        operation: Operation,
        from: &[u8],
        to: Option<&mut [u8]>,
        elements: usize,
        limit: Duration,
    ) -> Result<(), CollectiveFailure> {
        let outcome = self.try_run(operation, from, to, elements, limit);
        if let Err(failure) = &outcome {
            self.comm.end(Some(failure.clone()));
        }
        outcome
    }

    fn try_run(
        &mut self,
        operation: Operation,
        from: &[u8],
        to: Option<&mut [u8]>,
        elements: usize,
        limit: Duration,
    ) -> Result<(), CollectiveFailure> {
        let stream = self.stream;
        let source = self.from.address(&self.gpu, from.len()).map_err(transport)?;
        let results = to.as_ref().map_or(from.len(), |to| to.len());
        let target = self.to.address(&self.gpu, results).map_err(transport)?;
        let behind = Event::new(&self.gpu, false).map_err(transport)?;
        {
            let inside = self.comm.enter()?;
            let enqueued = self.gpu.within(|| {
                // SAFETY: the memory is as large, and the bytes stay until the copy is complete: it is waited for below, or the driver
                // has copied them.
                unsafe { result::memcpy_htod_async(source, from, stream) }
                    .map_err(|error| Error::backend(NAME, crate::driver::text(error)))?;
                // SAFETY: the communicator was not aborted; the memory is as large as the operation says, and stays.
                unsafe {
                    self.comm
                        .nccl
                        .enqueue(operation, [source, target], elements, self.comm.raw, stream)
                }
                .map_err(|why| Error::backend(NAME, why))?;
                behind
                    .record(stream)
                    .map_err(|error| Error::backend(NAME, crate::driver::text(error)))
            });
            drop(inside);
            enqueued.map_err(transport)?;
        }
        let begun = Instant::now();
        while !behind.is_complete().map_err(transport)? {
            if begun.elapsed() < ASKING {
                std::hint::spin_loop();
                continue;
            }
            if let Some(failure) = self.comm.stalled(Some(begun), limit) {
                return Err(failure);
            }
            thread::sleep(Duration::from_micros(200));
        }
        // One that was aborted completes as well.
        self.usable()?;
        let Some(to) = to else { return Ok(()) };
        let read = self.gpu.call("downloading", || {
            // SAFETY: the memory is as large.
            unsafe { result::memcpy_dtoh_sync(to, target) }
        });
        read.map_err(transport)
    }

    /// Enqueues the averages of tensors: in their own queue, or beside it as soon as each is ready; their queue then waits for all.
    ///
    /// # Errors
    /// As above, also of averages before.
    pub(super) fn average(&mut self, tensors: &[DeviceTensor], limit: Duration) -> Result<(), CollectiveFailure> {
        let Some(queue) = tensors.first().and_then(|first| first.buffer.stream) else {
            return Ok(());
        };
        if tensors
            .iter()
            .any(|t| t.buffer.stream != Some(queue) || t.buffer.bytes < 4 * t.elements as u64)
        {
            return Err(CollectiveFailure::Invalid(
                "the tensors are of several queues, or larger than their buffers".into(),
            ));
        }
        if let Some((peer, reason)) = (self.comm.lost)() {
            return Err(CollectiveFailure::PeerLost { peer, reason });
        }
        let queue = queue as sys::CUstream;
        // Where a tensor does not tell when it is ready, all wait for their queue.
        let is_early = tensors.iter().all(|tensor| tensor.ready.is_some());
        let stream = if is_early { self.stream } else { queue };
        let groups = tensors.chunk_by(|a, b| !is_early || a.ready == b.ready);
        let [before, behind] = [(); 2].map(|()| Event::new(&self.gpu, false));
        let (before, behind) = (before.map_err(transport)?, behind.map_err(transport)?);
        let inside = self.comm.enter()?;
        let failed = |error| Error::backend(NAME, crate::driver::text(error));
        let enqueued = self.gpu.within(|| {
            for (number, group) in groups.enumerate() {
                if let Some(ready) = group[0].ready.filter(|_| is_early) {
                    // SAFETY: the event is one of the owner of the tensors, who keeps it as long as them.
                    unsafe { wait_for(stream, ready as sys::CUevent) }.map_err(failed)?;
                }
                if number == 0 {
                    before.record(stream).map_err(failed)?;
                }
                let all = self.comm.nccl.group(|| {
                    group.iter().try_for_each(|tensor| {
                        let places = [tensor.buffer.address; 2];
                        let operation = Operation::AllReduce { mean: true };
                        // SAFETY: the communicator was not aborted; the buffers have as many elements, by the test above, and
                        // stay until their queue has come past.
                        unsafe {
                            self.comm
                                .nccl
                                .enqueue(operation, places, tensor.elements, self.comm.raw, stream)
                        }
                    })
                });
                all.map_err(|why| Error::backend(NAME, why))?;
            }
            behind.record(stream).map_err(failed)?;
            match is_early {
                // SAFETY: both are there; an event that is deleted is still waited for.
                true => unsafe { wait_for(queue, behind.raw()) }.map_err(failed),
                false => Ok(()),
            }
        });
        drop(inside);
        enqueued.map_err(transport)?;
        self.watch.queue().push_back(Watched {
            before,
            behind,
            since: None,
            limit,
        });
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // What is enqueued is completed, or ended by the thread that watches it.
        while !self.watch.queue().is_empty() && !self.comm.ended.load(Ordering::SeqCst) {
            thread::sleep(LOOK);
        }
        self.watch.stops.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if !self.comm.ended.swap(true, Ordering::SeqCst) {
            let _ = self.gpu.within(|| {
                // SAFETY: nobody enters any more, and all that was enqueued is complete.
                unsafe { self.comm.nccl.destroy(self.comm.raw) };
                Ok(())
            });
        }
        // SAFETY: it was made by the driver, and nothing is enqueued in it.
        self.gpu.free(|| unsafe { result::stream::destroy(self.stream) });
    }
}
