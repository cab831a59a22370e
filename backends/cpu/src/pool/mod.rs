//! A pool of persistent threads that share the tasks of one job at a time.
//!
//! A kernel launch on the CPU often takes only a few microseconds, so starting and finishing a job must take far less
//! than one. Hence a job needs no allocation, and no lock for which threads compete. Idle workers spin for a moment
//! before they sleep. The caller waits only for workers that joined the job. A worker that wakes too late finds the
//! job closed and delays no other thread.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::prefetch::Prefetch;
use crate::share::share;

/// Maximum time that an idle worker polls for the next job before it sleeps, and that a caller polls for the last
/// worker before it sleeps. It is longer than the gaps between the launches of one training step, but short enough to
/// save power on an idle machine.
const SPIN: Duration = Duration::from_micros(40);

/// Number of polls between two readings of the clock.
const POLLS_PER_CLOCK: u32 = 32;

/// Bit of `PoolState::state` that is set while further workers may join the job.
const OPEN: u64 = 1 << 31;
/// Bit of `PoolState::state` that is set while the caller sleeps on `PoolState::done`.
const CALLER_SLEEPS: u64 = 1 << 30;
/// Mask of the bits of `PoolState::state` that count the workers inside the job.
const INSIDE: u64 = CALLER_SLEEPS - 1;
/// Position of the lowest bit of the job's number in `PoolState::state`.
const EPOCH_SHIFT: u32 = 32;

type Task = dyn Fn(usize, usize) + Sync;
type Payload = Box<dyn Any + Send>;

/// A value on separate cache lines (two, because of the adjacent-line prefetcher).
#[repr(align(128))]
struct Line<T>(T);

/// The current job. The lifetime of the reference is erased: `ThreadPool::run` does not return before every worker
/// has left the job.
#[derive(Clone, Copy)]
struct Job {
    task: &'static Task,
    tasks: usize,
    /// Memory that each thread will read next, indexed by worker number.
    prefetch: &'static [Prefetch],
}

impl Job {
    fn ahead_of(&self, thread: usize) -> Prefetch {
        self.prefetch.get(thread).copied().unwrap_or_default()
    }
}

/// Size of the stack of a worker, which may compile graphs within a task.
const STACK: usize = 8 << 20;

struct PoolState {
    /// Job number, `OPEN`, `CALLER_SLEEPS` and the number of workers inside the job. They are in one word, so that
    /// joining and closing a job cannot overlap.
    state: Line<AtomicU64>,
    /// Next task of each thread's share. It is at or after the end of the share if no task is left.
    next: Box<[Line<AtomicUsize>]>,
    /// Current job, written by the caller while the job is closed and no worker is inside.
    job: UnsafeCell<Option<Job>>,
    /// First panic of the job.
    panic: Mutex<Option<Payload>>,
    panicked: AtomicBool,
    /// Mutex of the condition variable `done`. A caller sleeps on it until the last worker has left the job.
    gate: Mutex<()>,
    done: Condvar,
    stop: AtomicBool,
    /// One flag for each worker: true if it sleeps or is about to sleep.
    asleep: Box<[Line<AtomicBool>]>,
    spin: Duration,
}

// SAFETY: all fields but `job` are Sync. Only the caller that holds the pool's turn writes `job`, while the job is
// closed and no worker is inside. Only workers that joined through the state word read it, before the next write.
unsafe impl Sync for PoolState {}

thread_local! {
    /// Pool whose task this thread runs, and the thread's worker number in it.
    static CURRENT: Cell<(*const PoolState, usize)> = const { Cell::new((ptr::null(), 0)) };
}

/// A guard. Until it is dropped, this thread is marked as running tasks of a pool.
struct Scope((*const PoolState, usize));

impl Scope {
    fn enter(shared: &PoolState, worker: usize) -> Self {
        Self(CURRENT.replace((shared, worker)))
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Locks a mutex, even if a thread panicked while it held the lock, because no invariant depends on it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A fixed set of threads that run jobs of independent tasks.
pub struct ThreadPool {
    shared: Arc<PoolState>,
    workers: Vec<JoinHandle<()>>,
    /// Mutex that is held during a job, so that only one job is shared at a time.
    turn: Mutex<()>,
    /// Number of threads that have a job for the pool: they share it, wait for their turn, or run its tasks themselves.
    callers: AtomicUsize,
}

/// A caller of a pool, counted until this is dropped.
struct Caller<'a>(&'a AtomicUsize);

impl<'a> Caller<'a> {
    /// Also returns the number of callers, including this one.
    fn count(callers: &'a AtomicUsize) -> (Self, usize) {
        let before = callers.fetch_add(1, Ordering::Relaxed);
        (Caller(callers), before + 1)
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ThreadPool {
    /// Creates a pool of `threads` threads, including the calling one; 0 counts as 1.
    ///
    /// The pool has fewer threads if the system refuses to start one.
    pub fn new(threads: usize) -> Self {
        let wanted = threads.max(1);
        // With more threads than processors, a spinning worker only takes processor time from threads that have work.
        let cores = thread::available_parallelism().map_or(1, |n| n.get());
        let spin = if wanted <= cores { SPIN } else { Duration::ZERO };
        let shared = Arc::new(PoolState {
            state: Line(AtomicU64::new(0)),
            next: (0..wanted).map(|_| Line(AtomicUsize::new(0))).collect(),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
            panicked: AtomicBool::new(false),
            gate: Mutex::new(()),
            done: Condvar::new(),
            stop: AtomicBool::new(false),
            asleep: (1..wanted).map(|_| Line(AtomicBool::new(false))).collect(),
            spin,
        });
        let mut workers = Vec::with_capacity(wanted - 1);
        for worker in 1..wanted {
            let shared = Arc::clone(&shared);
            let started = thread::Builder::new()
                .name(format!("cpu-{worker}"))
                .stack_size(STACK)
                .spawn(move || serve(&shared, worker));
            match started {
                Ok(handle) => workers.push(handle),
                Err(_) => break,
            }
        }
        Self {
            shared,
            workers,
            turn: Mutex::new(()),
            callers: AtomicUsize::new(0),
        }
    }

    /// Returns the number of threads that share a job, including the caller.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `job(task, worker)` once for every task in `0..tasks`, on the caller (worker 0) and on the workers
    /// (`1..threads()`). Returns when all tasks have ended. Every thread begins with a share of neighbouring tasks,
    /// because neighbours commonly read neighbouring memory. A thread that has finished its share takes tasks from
    /// other shares. The tasks of a share are taken one by one, in ascending order.
    ///
    /// No two threads of a job have the same worker number at the same time, so a kernel may have scratch per worker. A
    /// few callers take turns. If there are more callers than half of the threads, a caller that would have to wait runs
    /// all of its tasks itself, without waiting. A call from inside a job of the same
    /// pool also runs its tasks immediately, under the worker number of that thread. Jobs of two pools must not call each
    /// other's pool, because each would wait for the other's turn.
    ///
    /// Allocates nothing.
    ///
    /// # Panics
    ///
    /// If a task panics on any thread, tasks that have not begun are skipped. When the running tasks have ended, the
    /// first panic continues in the caller. The pool stays usable.
    pub fn run(&self, tasks: usize, job: &(dyn Fn(usize, usize) + Sync)) {
        self.run_before(tasks, job, &[]);
    }

    /// Runs a job like [`Self::run`]. Waiting threads prefetch `prefetch[worker]`, the memory that they will read
    /// next.
    pub(crate) fn run_before(&self, tasks: usize, job: &(dyn Fn(usize, usize) + Sync), prefetch: &[Prefetch]) {
        let shared = &*self.shared;
        let (pool, worker) = CURRENT.get();
        if ptr::eq(pool, shared) {
            (0..tasks).for_each(|task| job(task, worker));
            return;
        }
        let (_caller, callers) = Caller::count(&self.callers);
        let is_shared = tasks > 1 && !self.workers.is_empty();
        let turn = match self.turn.try_lock() {
            _ if !is_shared => None,
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(turn)) => Some(turn.into_inner()),
            Err(TryLockError::WouldBlock) if 2 * callers > self.threads() => None,
            Err(TryLockError::WouldBlock) => Some(lock(&self.turn)),
        };
        let Some(turn) = turn else {
            let _scope = Scope::enter(shared, 0);
            (0..tasks).for_each(|task| job(task, 0));
            return;
        };
        // SAFETY: only the lifetimes change. The job is closed and all workers have left it before this function
        // returns or unwinds (`work` catches every panic of a task), so the references are not used after their
        // lifetimes.
        let (task, prefetch) = unsafe {
            (
                std::mem::transmute::<&(dyn Fn(usize, usize) + Sync), &'static Task>(job),
                std::mem::transmute::<&[Prefetch], &'static [Prefetch]>(prefetch),
            )
        };
        let job = Job { task, tasks, prefetch };
        self.open(job);
        shared.work(job, 0);
        shared.close(job.ahead_of(0));
        if shared.panicked.swap(false, Ordering::Relaxed)
            && let Some(payload) = lock(&shared.panic).take()
        {
            drop(turn);
            resume_unwind(payload);
        }
    }

    /// Publishes a job and wakes sleeping workers, at most one for each task after the first.
    fn open(&self, job: Job) {
        let shared = &*self.shared;
        // SAFETY: this thread holds the turn. The previous job was closed and all workers have left it, so no other
        // thread accesses the slot.
        unsafe { *shared.job.get() = Some(job) };
        for (thread, next) in shared.next.iter().enumerate() {
            next.0.store(shared.share(job.tasks, thread).start, Ordering::Relaxed);
        }
        let epoch = (shared.state.0.load(Ordering::Relaxed) >> EPOCH_SHIFT).wrapping_add(1);
        // This store and the accesses in `PoolState::sleep` are sequentially consistent: either the worker sees the
        // job, or this thread sees the worker's flag.
        let state = (epoch << EPOCH_SHIFT) | OPEN;
        shared.state.0.store(state, Ordering::SeqCst);
        for (flag, worker) in shared.asleep.iter().zip(&self.workers).take(job.tasks - 1) {
            if flag.0.load(Ordering::SeqCst) && flag.0.swap(false, Ordering::Relaxed) {
                worker.thread().unpark();
            }
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // Workers do not panic: `work` catches the panics of tasks.
            let _ = worker.join();
        }
    }
}

/// Runs the main loop of a worker thread.
fn serve(shared: &PoolState, worker: usize) {
    let (mut last, mut prefetch) = (0, Prefetch::default());
    while let Some(epoch) = shared.join(last, worker, prefetch) {
        last = epoch;
        // SAFETY: this thread is counted as inside the job, so the job does not change. The acquiring exchange in
        // `join` made the caller's write visible.
        let job = unsafe { *shared.job.get() };
        if let Some(job) = job {
            shared.work(job, worker);
            prefetch = job.ahead_of(worker);
        }
        shared.leave();
    }
}

impl PoolState {
    /// Returns the share of a thread, if a job has `tasks` tasks.
    fn share(&self, tasks: usize, thread: usize) -> Range<usize> {
        share(tasks, self.next.len(), thread)
    }

    /// Takes the next task of a thread's share, or returns `None` if none is left.
    fn take(&self, tasks: usize, thread: usize) -> Option<usize> {
        let (next, end) = (&self.next[thread].0, self.share(tasks, thread).end);
        // Reads first, because a read does not take the cache line from other threads.
        if next.load(Ordering::Relaxed) >= end {
            return None;
        }
        let task = next.fetch_add(1, Ordering::Relaxed);
        (task < end).then_some(task)
    }

    /// Takes and runs tasks of the job until none is left.
    fn work(&self, job: Job, worker: usize) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            let _scope = Scope::enter(self, worker);
            let threads = self.next.len();
            for thread in (worker..threads).chain(0..worker) {
                while let Some(task) = self.take(job.tasks, thread) {
                    (job.task)(task, worker);
                }
            }
        }));
        if let Err(payload) = result {
            for next in &self.next {
                next.0.store(job.tasks, Ordering::Relaxed);
            }
            let mut first = lock(&self.panic);
            let spare = match *first {
                Some(_) => Some(payload),
                None => {
                    *first = Some(payload);
                    self.panicked.store(true, Ordering::Relaxed);
                    None
                }
            };
            drop(first);
            // Dropping the payload runs code of the task, which could panic again. The payload of that panic is
            // leaked, because dropping it could also panic.
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(spare))) {
                std::mem::forget(again);
            }
        }
    }

    /// Returns true if a worker whose last job was `last` can join the job in `state`.
    fn fresh(state: u64, last: u64) -> bool {
        state & OPEN != 0 && state >> EPOCH_SHIFT != last
    }

    /// Waits for a job other than `last` and joins it. Returns the number of the job, or `None` when the pool ends.
    fn join(&self, last: u64, worker: usize, mut prefetch: Prefetch) -> Option<u64> {
        loop {
            let joined = poll(self.spin, &mut prefetch, || {
                let state = self.state.0.load(Ordering::Relaxed);
                if Self::fresh(state, last) {
                    let entered =
                        self.state
                            .0
                            .compare_exchange_weak(state, state + 1, Ordering::Acquire, Ordering::Relaxed);
                    return entered.is_ok().then_some(Some(state >> EPOCH_SHIFT));
                }
                self.stop.load(Ordering::Relaxed).then_some(None)
            });
            match joined {
                Some(epoch) => return epoch,
                None => self.sleep(last, worker),
            }
        }
    }

    /// Sleeps until this worker is woken, unless there is already a new job or the pool ends.
    fn sleep(&self, last: u64, worker: usize) {
        let flag = &self.asleep[worker - 1].0;
        flag.store(true, Ordering::SeqCst);
        let idle = !Self::fresh(self.state.0.load(Ordering::SeqCst), last);
        if idle && !self.stop.load(Ordering::SeqCst) {
            thread::park();
        }
        flag.store(false, Ordering::Relaxed);
    }

    /// Removes this worker from the count of workers inside the job.
    fn leave(&self) {
        // With release ordering, the caller sees all writes of the tasks.
        let before = self.state.0.fetch_sub(1, Ordering::Release);
        if before & INSIDE == 1 && before & CALLER_SLEEPS != 0 {
            // The caller sets the bit while it holds the lock `gate`, and releases the lock only by waiting. After
            // this lock, it cannot miss the notification.
            drop(lock(&self.gate));
            self.done.notify_one();
        }
    }

    /// Closes the job, so that no more workers join, and waits until all workers have left.
    fn close(&self, mut prefetch: Prefetch) {
        let state = self.state.0.fetch_and(!OPEN, Ordering::Acquire);
        let left = |state: u64| state & INSIDE == 0;
        let quick = || left(self.state.0.load(Ordering::Acquire)).then_some(());
        if left(state) || poll(self.spin, &mut prefetch, quick).is_some() {
            return;
        }
        let mut gate = lock(&self.gate);
        let mut state = self.state.0.fetch_or(CALLER_SLEEPS, Ordering::Acquire);
        while !left(state) {
            gate = self.done.wait(gate).unwrap_or_else(PoisonError::into_inner);
            state = self.state.0.load(Ordering::Acquire);
        }
    }
}

/// Polls `ready` for the time `limit`, at least once. Prefetches memory meanwhile.
fn poll<T>(limit: Duration, prefetch: &mut Prefetch, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    // The clock is read only after the first round, because often there is no wait.
    let mut start = None;
    loop {
        for _ in 0..POLLS_PER_CLOCK {
            if let Some(value) = ready() {
                return Some(value);
            }
            if !prefetch.prefetch_line() {
                std::hint::spin_loop();
            }
        }
        if start.get_or_insert_with(Instant::now).elapsed() >= limit {
            return None;
        }
    }
}

#[cfg(test)]
mod tests;
