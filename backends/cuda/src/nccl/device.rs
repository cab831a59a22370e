//! The GPU of a rank in NCCL. Collectives are enqueued, and a thread checks their progress.

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
use super::links::LostRank;
use crate::driver::Properties;
use crate::event::Event;
use crate::gpu::Gpu;
use crate::memory::DeviceMemory;

/// Interval between checks of the progress of collectives.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum duration of polling for a collective.
const POLL_TIME: Duration = Duration::from_millis(2);
/// Priority of the stream of collectives that run concurrently with kernels. It is below the range of every device,
/// so it is clamped to the highest priority. With a lower priority, the few blocks of a collective would wait for the
/// many blocks of large kernels.
const FIRST: i32 = -100;
/// Time limit for the first instructions of an NCCL call. The call must not be aborted during them.
const ENTRY_TIME: Duration = Duration::from_millis(100);

/// Returns the numbers of a slice as bytes.
pub(super) fn bytes_of(data: &mut [f32]) -> &mut [u8] {
    // SAFETY: `f32` has no padding and every bit pattern is valid. The slice of bytes has the same size, and the
    // borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data)) }
}

/// Makes a stream wait for an event before later work.
///
/// # Safety
/// The stream and the event must be valid.
unsafe fn wait_for(stream: sys::CUstream, event: sys::CUevent) -> Result<(), DriverError> {
    // SAFETY: by the contract of this function.
    unsafe { result::stream::wait_event(stream, event, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }
}

fn transport(error: impl std::fmt::Display) -> CollectiveFailure {
    CollectiveFailure::Transport(error.to_string())
}

/// The communicator of NCCL. It is aborted if a collective stalls.
struct Comm {
    nccl: Nccl,
    raw: RawComm,
    /// `true` if the communicator was aborted, or is about to be.
    ended: AtomicBool,
    /// Number of calls that are executing inside the library.
    inside: AtomicUsize,
    failure: Mutex<Option<CollectiveFailure>>,
    lost: Box<dyn Fn() -> Option<LostRank> + Send + Sync>,
}

// SAFETY: any thread may use a communicator, but only one at a time. Only the abort may be concurrent.
unsafe impl Send for Comm {}
// SAFETY: as above: enqueueing requires an exclusive reference to the device.
unsafe impl Sync for Comm {}

/// A guard that counts a call inside the library until it is dropped.
struct LibraryCall<'a>(&'a Comm);

impl Drop for LibraryCall<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Comm {
    /// Begins a call of the library. Returns the failure if the communicator was aborted.
    fn enter(&self) -> Result<LibraryCall<'_>, CollectiveFailure> {
        self.inside.fetch_add(1, Ordering::SeqCst);
        let inside = LibraryCall(self);
        if !self.ended.load(Ordering::SeqCst) {
            Ok(inside)
        } else {
            Err(self.failure())
        }
    }

    fn failure(&self) -> CollectiveFailure {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        failure.unwrap_or_else(|| transport("the communicator failed in an earlier call"))
    }

    /// Aborts the communicator and all enqueued work. Returns `true` if it was not aborted before.
    fn end(&self, failure: Option<CollectiveFailure>) -> bool {
        if self.ended.swap(true, Ordering::SeqCst) {
            return false;
        }
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
        let begun = Instant::now();
        while self.inside.load(Ordering::SeqCst) > 0 && begun.elapsed() < ENTRY_TIME {
            thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: no more calls enter. The calls inside the library are waiting, and the abort ends them.
        unsafe { self.nccl.abort(self.raw) };
        true
    }

    /// Returns the failure if a collective that started at `since` has stalled, or if NCCL or a peer failed.
    fn stalled(&self, since: Option<Instant>, limit: Duration) -> Option<CollectiveFailure> {
        if let Some((peer, reason)) = (self.lost)() {
            return Some(CollectiveFailure::PeerLost { peer, reason });
        }
        let error = match self.enter() {
            // SAFETY: the communicator has not been aborted.
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

/// A collective on the device that may still be running.
struct RunningCollective {
    before: Event,
    behind: Event,
    /// Start of the time limit: the time when the collective became the first in the queue.
    since: Option<Instant>,
    limit: Duration,
}

/// State that the watching thread shares with the device.
#[derive(Default)]
struct Watch {
    queue: Mutex<VecDeque<RunningCollective>>,
    stops: AtomicBool,
}

impl Watch {
    fn queue(&self) -> MutexGuard<'_, VecDeque<RunningCollective>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes completed collectives from the queue, and aborts stalled ones.
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
            log::error!("{NAME}: an all-reduce does not progress: {failure:?}");
            comm.end(Some(failure));
        }
    }
}

/// Growing device memory for the data of the host.
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

/// The GPU of a rank, with its communicator.
pub(super) struct Device {
    gpu: Arc<Gpu>,
    comm: Arc<Comm>,
    ordinal: sys::CUdevice,
    /// Stream for data of the host, and for tensors that are complete before the other work in their queue.
    stream: sys::CUstream,
    from: Staging,
    to: Staging,
    watch: Arc<Watch>,
    thread: Option<JoinHandle<()>>,
}

// SAFETY: streams of CUDA belong to their context. They are not bound to a thread.
unsafe impl Send for Device {}

impl Device {
    /// Joins the other ranks with a GPU. `lost` returns a rank that ended early, if any.
    ///
    /// # Errors
    /// Errors of the driver and the library.
    pub(super) fn join(
        nccl: Nccl,
        properties: &Properties,
        id: UniqueId,
        group: &Group,
        lost: impl Fn() -> Option<LostRank> + Send + Sync + 'static,
    ) -> Result<Self> {
        let gpu = Arc::new(Gpu::open(properties)?);
        let stream = gpu.call("making a stream", || {
            let mut raw = std::ptr::null_mut();
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            // SAFETY: the pointer is to a local stream.
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
                    thread::sleep(CHECK_INTERVAL);
                }
            }
        });
        let thread = thread.map_err(|error| Error::backend(NAME, format!("cannot start a thread: {error}")))?;
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

    /// Checks that collectives can be enqueued.
    ///
    /// # Errors
    /// The failure of an earlier collective.
    pub(super) fn usable(&self) -> Result<(), CollectiveFailure> {
        self.comm.enter().map(|_| ())
    }

    /// Aborts all enqueued and future work. Returns `true` if it was not aborted before.
    pub(super) fn end(&self) -> bool {
        self.comm.end(None)
    }

    /// Returns `true` if an address in GPU memory belongs to this GPU, and `None` for other memory.
    pub(super) fn holds(&self, address: u64) -> Option<bool> {
        let attribute = |which, to: *mut c_void| {
            // SAFETY: the target is as large as the attribute, a 32-bit number.
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

    /// Runs a collective on host memory, and waits until it is complete.
    ///
    /// # Errors
    /// Errors of the driver or the library; a rank that is lost or does not arrive.
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
                // SAFETY: the device memory is large enough. The bytes stay valid until the copy is complete, because
                // it is awaited below, or the driver has already copied them.
                unsafe { result::memcpy_htod_async(source, from, stream) }
                    .map_err(|error| Error::backend(NAME, crate::driver::text(error)))?;
                // SAFETY: the communicator has not been aborted. The memory has the size that the operation requires,
                // and stays valid.
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
            if begun.elapsed() < POLL_TIME {
                std::hint::spin_loop();
                continue;
            }
            if let Some(failure) = self.comm.stalled(Some(begun), limit) {
                return Err(failure);
            }
            thread::sleep(Duration::from_micros(200));
        }
        // Aborted collectives also end the wait.
        self.usable()?;
        let Some(to) = to else { return Ok(()) };
        let read = self.gpu.call("downloading", || {
            // SAFETY: the device memory has the size of `to`.
            unsafe { result::memcpy_dtoh_sync(to, target) }
        });
        read.map_err(transport)
    }

    /// Enqueues the averages of tensors. If each tensor has an event, they are enqueued on a separate stream as soon
    /// as the tensors are ready, and the tensors' queue then waits for all averages. Otherwise they are enqueued in
    /// the tensors' queue.
    ///
    /// # Errors
    /// As [`Device::run`], including errors of earlier averages.
    pub(super) fn average(&mut self, tensors: &[DeviceTensor], limit: Duration) -> Result<(), CollectiveFailure> {
        let Some(queue) = tensors.first().and_then(|first| first.buffer.stream) else {
            return Ok(());
        };
        if tensors
            .iter()
            .any(|t| t.buffer.stream != Some(queue) || t.buffer.bytes < 4 * t.elements as u64)
        {
            return Err(CollectiveFailure::Invalid(
                "the tensors belong to several queues, or are larger than their buffers".into(),
            ));
        }
        if let Some((peer, reason)) = (self.comm.lost)() {
            return Err(CollectiveFailure::PeerLost { peer, reason });
        }
        let queue = queue as sys::CUstream;
        // If one of the tensors has no event, all of them are averaged in their queue.
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
                    // SAFETY: the event belongs to the owner of the tensors, and lives as long as the tensors.
                    unsafe { wait_for(stream, ready as sys::CUevent) }.map_err(failed)?;
                }
                if number == 0 {
                    before.record(stream).map_err(failed)?;
                }
                let all = self.comm.nccl.group(|| {
                    group.iter().try_for_each(|tensor| {
                        let places = [tensor.buffer.address; 2];
                        let operation = Operation::AllReduce { mean: true };
                        // SAFETY: the communicator has not been aborted. By the check above, the buffers have at
                        // least this number of elements. They stay valid until their queue has passed this point.
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
            if is_early {
                // SAFETY: the queue and the event are valid. The wait remains valid after the event is deleted.
                unsafe { wait_for(queue, behind.raw()) }.map_err(failed)
            } else {
                Ok(())
            }
        });
        drop(inside);
        enqueued.map_err(transport)?;
        self.watch.queue().push_back(RunningCollective {
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
        // Enqueued work completes, or the watching thread aborts it.
        while !self.watch.queue().is_empty() && !self.comm.ended.load(Ordering::SeqCst) {
            thread::sleep(CHECK_INTERVAL);
        }
        self.watch.stops.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if !self.comm.ended.swap(true, Ordering::SeqCst) {
            let _ = self.gpu.within(|| {
                // SAFETY: no more calls enter the library, and all enqueued work is complete.
                unsafe { self.comm.nccl.destroy(self.comm.raw) };
                Ok(())
            });
        }
        // SAFETY: the driver created the stream, and no work is enqueued in it.
        self.gpu.free(|| unsafe { result::stream::destroy(self.stream) });
    }
}
