//! Persistent threads that share the tasks of one job at a time.
//!
//! A kernel launch on the CPU often lasts only a few microseconds, so starting
//! and finishing a job must cost well below one. Hence: no allocation, no lock
//! that another thread contends for, workers that spin for a moment before they
//! sleep, and a caller that waits only for workers that really joined. A worker
//! that wakes too late finds the job closed and does not hold anybody up.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::prefetch::Prefetch;
use crate::share::share;

/// How long an idle worker polls for the next job before it sleeps, and how long
/// a caller polls for the last worker. Longer than the gaps between the launches
/// of one training step, short enough not to heat an idle machine.
const SPIN: Duration = Duration::from_micros(40);

/// Polls between two readings of the clock.
const POLLS_PER_CLOCK: u32 = 32;

/// `Shared::state`: the job accepts further workers.
const OPEN: u64 = 1 << 31;
/// `Shared::state`: the caller sleeps on `Shared::done`.
const CALLER_SLEEPS: u64 = 1 << 30;
/// `Shared::state`: how many workers are inside the job.
const INSIDE: u64 = CALLER_SLEEPS - 1;
/// `Shared::state`: the job's number is above this bit.
const EPOCH_SHIFT: u32 = 32;

type Task = dyn Fn(usize, usize) + Sync;
type Payload = Box<dyn Any + Send>;

/// A value on cache lines of its own (two, for the adjacent-line prefetcher).
#[repr(align(128))]
struct Line<T>(T);

/// The job in progress. The reference's lifetime is erased: `ThreadPool::run`
/// does not return before every worker has left the job.
#[derive(Clone, Copy)]
struct Job {
    task: &'static Task,
    tasks: usize,
    /// What each thread will read next.
    prefetch: &'static [Prefetch],
}

impl Job {
    fn ahead_of(&self, thread: usize) -> Prefetch {
        self.prefetch.get(thread).copied().unwrap_or_default()
    }
}

struct Shared {
    /// Job number, `OPEN`, `CALLER_SLEEPS` and the count of workers inside, in
    /// one word so that joining and closing cannot cross.
    state: Line<AtomicU64>,
    /// For each thread the next task of its share; at or beyond the share's end when none is left.
    next: Box<[Line<AtomicUsize>]>,
    /// Written by the caller while the job is closed and nobody is inside.
    job: UnsafeCell<Option<Job>>,
    /// The first panic of the job.
    panic: Mutex<Option<Payload>>,
    panicked: AtomicBool,
    /// With `done`, where a caller sleeps until the last worker has left.
    gate: Mutex<()>,
    done: Condvar,
    stop: AtomicBool,
    /// One flag per worker: it sleeps or is about to.
    asleep: Box<[Line<AtomicBool>]>,
    spin: Duration,
}

// SAFETY: all fields but `job` are Sync by themselves. `job` is written only by
// the caller that holds the pool's turn, while the state word says closed and
// empty, and read only by workers that joined through the state word in between.
unsafe impl Sync for Shared {}

thread_local! {
    /// The pool whose task this thread runs, and its worker number there.
    static CURRENT: Cell<(*const Shared, usize)> = const { Cell::new((ptr::null(), 0)) };
}

/// Marks this thread as running tasks of a pool, until dropped.
struct Scope((*const Shared, usize));

impl Scope {
    fn enter(shared: &Shared, worker: usize) -> Self {
        Self(CURRENT.replace((shared, worker)))
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Locks a mutex that guards no invariant a panic could break.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A fixed set of threads that run jobs made of independent tasks.
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held for the length of a job: one job at a time.
    turn: Mutex<()>,
}

impl ThreadPool {
    /// A pool of `threads` threads, the calling one included; 0 counts as 1.
    ///
    /// Where the system refuses a thread, the pool has as many as it got.
    pub fn new(threads: usize) -> Self {
        let wanted = threads.max(1);
        // With more threads than processors a spinning worker only takes the
        // processor from one that has work.
        let cores = thread::available_parallelism().map_or(1, |n| n.get());
        let spin = if wanted <= cores { SPIN } else { Duration::ZERO };
        let shared = Arc::new(Shared {
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
        }
    }

    /// How many threads share a job, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `job(task, worker)` once for every task in `0..tasks`, on the caller
    /// (worker 0) and on the workers (`1..threads()`), and returns when all are
    /// done. Every thread has a share of neighbouring tasks and begins there, since
    /// neighbours commonly read neighbouring memory; whoever is done takes tasks of
    /// the others' shares. Those of a share are handed out one by one, in rising order.
    ///
    /// No two threads have the same worker number at the same time, so a kernel
    /// may own scratch per worker. Calls from several threads take turns. A call
    /// from inside a job of the same pool runs its tasks there and then, under
    /// the worker number of that thread. (Jobs of two pools that each call the
    /// other pool would wait for each other's turn: do not.)
    ///
    /// Allocates nothing.
    ///
    /// # Panics
    ///
    /// When a task panics, on whichever thread: tasks not begun are skipped, and
    /// once those in progress are over the first panic goes on in the caller.
    /// The pool stays usable.
    pub fn run(&self, tasks: usize, job: &(dyn Fn(usize, usize) + Sync)) {
        self.run_before(tasks, job, &[]);
    }

    /// The same; threads that would wait ask for what they read next, by their numbers.
    pub(crate) fn run_before(&self, tasks: usize, job: &(dyn Fn(usize, usize) + Sync), prefetch: &[Prefetch]) {
        let shared = &*self.shared;
        let (pool, worker) = CURRENT.get();
        if ptr::eq(pool, shared) {
            (0..tasks).for_each(|task| job(task, worker));
            return;
        }
        let turn = lock(&self.turn);
        if tasks <= 1 || self.workers.is_empty() {
            let _scope = Scope::enter(shared, 0);
            (0..tasks).for_each(|task| job(task, 0));
            return;
        }
        // SAFETY: only the lifetimes change. The job is closed and empty of
        // workers again before this function returns or unwinds (`work` catches
        // every panic of a task), so nobody uses the references after their end.
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

    /// Publishes a job and wakes as many sleepers as can get a task.
    fn open(&self, job: Job) {
        let shared = &*self.shared;
        // SAFETY: this thread holds the turn, and the previous job was closed
        // and left by all workers, so nobody else looks at the slot.
        unsafe { *shared.job.get() = Some(job) };
        for (thread, next) in shared.next.iter().enumerate() {
            next.0.store(shared.share(job.tasks, thread).start, Ordering::Relaxed);
        }
        let epoch = (shared.state.0.load(Ordering::Relaxed) >> EPOCH_SHIFT).wrapping_add(1);
        // Sequentially consistent, as are the accesses in `Shared::sleep`: either
        // the worker sees the job or this thread sees the worker's flag.
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
            // A worker ends by returning: panics of tasks are caught in `work`.
            let _ = worker.join();
        }
    }
}

/// The life of a worker thread.
fn serve(shared: &Shared, worker: usize) {
    let (mut last, mut prefetch) = (0, Prefetch::default());
    while let Some(epoch) = shared.join(last, worker, prefetch) {
        last = epoch;
        // SAFETY: this thread is counted as inside, so the job stays as it is;
        // the acquiring exchange in `join` made the caller's write visible.
        let job = unsafe { *shared.job.get() };
        if let Some(job) = job {
            shared.work(job, worker);
            prefetch = job.ahead_of(worker);
        }
        shared.leave();
    }
}

impl Shared {
    /// The share of a thread in so many tasks.
    fn share(&self, tasks: usize, thread: usize) -> Range<usize> {
        share(tasks, self.next.len(), thread)
    }

    /// Takes a task of a thread's share, if one is left.
    fn take(&self, tasks: usize, thread: usize) -> Option<usize> {
        let (next, end) = (&self.next[thread].0, self.share(tasks, thread).end);
        // Reading alone leaves the line to the others.
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
            // That runs foreign code, which could panic in its turn. What it says then is leaked: it could do so again.
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(spare))) {
                std::mem::forget(again);
            }
        }
    }

    /// Whether `state` shows a job that a worker which last did `last` can join.
    fn fresh(state: u64, last: u64) -> bool {
        state & OPEN != 0 && state >> EPOCH_SHIFT != last
    }

    /// Waits for a job other than `last` and enters it; gives its number, or
    /// nothing when the pool ends.
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

    /// Sleeps until somebody wakes this worker, unless there is a reason not to.
    fn sleep(&self, last: u64, worker: usize) {
        let flag = &self.asleep[worker - 1].0;
        flag.store(true, Ordering::SeqCst);
        let idle = !Self::fresh(self.state.0.load(Ordering::SeqCst), last);
        if idle && !self.stop.load(Ordering::SeqCst) {
            thread::park();
        }
        flag.store(false, Ordering::Relaxed);
    }

    /// Counts this worker out of the job.
    fn leave(&self) {
        // Releasing: what the tasks wrote is visible to the caller.
        let before = self.state.0.fetch_sub(1, Ordering::Release);
        if before & INSIDE == 1 && before & CALLER_SLEEPS != 0 {
            // The caller set the bit under the gate, and gives the gate up only
            // by waiting: past this lock it cannot miss the call.
            drop(lock(&self.gate));
            self.done.notify_one();
        }
    }

    /// Lets no further worker in and waits for those inside.
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

/// Asks `ready` again and again for the time `limit`, at least once, and meanwhile for memory.
fn poll<T>(limit: Duration, prefetch: &mut Prefetch, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    // The clock is not read before the first round, for the case of no wait.
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
mod tests {
    use super::*;

    /// How often something is done. Miri interprets, and tries another order of the threads in each run instead.
    fn rounds(rounds: usize) -> usize {
        if cfg!(miri) { rounds.div_ceil(500) } else { rounds }
    }

    fn sum(pool: &ThreadPool, tasks: usize) -> usize {
        let total = AtomicUsize::new(0);
        pool.run(tasks, &|task, worker| {
            assert!(worker < pool.threads());
            total.fetch_add(task + 1, Ordering::Relaxed);
        });
        total.into_inner()
    }

    #[test]
    fn every_task_runs_once() {
        for threads in [0, 1, 2, 3, 8] {
            let pool = ThreadPool::new(threads);
            assert_eq!(pool.threads(), threads.max(1));
            for tasks in [0, 1, 2, 3, 17, rounds(1000)] {
                assert_eq!(sum(&pool, tasks), tasks * (tasks + 1) / 2);
            }
        }
    }

    #[test]
    fn what_a_busy_thread_leaves_others_do() {
        let pool = ThreadPool::new(2);
        let done = AtomicUsize::new(0);
        let others = if pool.threads() == 2 { 7 } else { 0 };
        pool.run(8, &|task, _| {
            // The first of a share whose others nobody else would do.
            while task == 0 && done.load(Ordering::Acquire) < others {
                thread::yield_now();
            }
            done.fetch_add(1, Ordering::Release);
        });
        assert_eq!(done.into_inner(), 8);
    }

    #[test]
    fn worker_numbers_are_exclusive() {
        let pool = ThreadPool::new(4);
        let busy: Vec<AtomicBool> = (0..4).map(|_| AtomicBool::new(false)).collect();
        let job = |_: usize, worker: usize| {
            assert!(!busy[worker].swap(true, Ordering::SeqCst));
            thread::yield_now();
            busy[worker].store(false, Ordering::SeqCst);
        };
        thread::scope(|scope| {
            for tasks in [1, 5, 40] {
                let (pool, job) = (&pool, &job);
                scope.spawn(move || (0..rounds(200)).for_each(|_| pool.run(tasks, job)));
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        for threads in [1, 2, 4] {
            let pool = ThreadPool::new(threads);
            for bad in [0, 5, 63] {
                let caught = catch_unwind(AssertUnwindSafe(|| {
                    pool.run(64, &|task, _| {
                        assert!(task != bad, "task {task} is bad");
                    });
                }));
                let payload = caught.expect_err("the job must panic");
                let text = payload.downcast_ref::<String>().expect("a message");
                assert_eq!(*text, format!("task {bad} is bad"));
                assert_eq!(sum(&pool, 100), 5050);
            }
        }
    }

    #[test]
    fn all_tasks_may_panic() {
        let pool = ThreadPool::new(3);
        for _ in 0..rounds(50) {
            let caught = catch_unwind(AssertUnwindSafe(|| pool.run(8, &|_, _| panic!("all"))));
            assert!(caught.is_err());
        }
        assert_eq!(sum(&pool, 10), 55);
    }

    #[test]
    fn what_a_panic_carries_may_panic_as_well() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                std::panic::panic_any(());
            }
        }
        let pool = ThreadPool::new(3);
        for _ in 0..rounds(50) {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(8, &|_, _| std::panic::panic_any(Bomb));
            }));
            let payload = caught.expect_err("all tasks panic");
            assert!(payload.is::<Bomb>());
            std::mem::forget(payload);
        }
        assert_eq!(sum(&pool, 10), 55);
    }

    #[test]
    fn many_tiny_jobs() {
        let pool = ThreadPool::new(2);
        let total = AtomicUsize::new(0);
        let rounds = rounds(100_000);
        for _ in 0..rounds {
            pool.run(2, &|_, _| {
                total.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(total.into_inner(), 2 * rounds);
    }

    #[test]
    fn workers_that_sleep_are_woken() {
        let pool = ThreadPool::new(2);
        for _ in 0..5 {
            thread::sleep(SPIN * 20);
            // Each task waits for the other, so both threads must take part.
            let met = AtomicUsize::new(0);
            pool.run(2, &|_, _| {
                met.fetch_add(1, Ordering::SeqCst);
                while met.load(Ordering::SeqCst) < 2 {
                    thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn a_slow_worker_is_awaited() {
        let pool = ThreadPool::new(2);
        let done = AtomicUsize::new(0);
        let arrived = AtomicUsize::new(0);
        pool.run(2, &|_, worker| {
            arrived.fetch_add(1, Ordering::SeqCst);
            while arrived.load(Ordering::SeqCst) < 2 {
                thread::yield_now();
            }
            if worker == 1 {
                thread::sleep(SPIN * 100);
            }
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 2);
    }

    #[test]
    fn callers_take_turns() {
        let pool = ThreadPool::new(2);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..rounds(2000)).for_each(|_| assert_eq!(sum(&pool, 4), 10)));
            }
        });
    }

    #[test]
    fn a_nested_run_stays_on_its_thread() {
        let pool = ThreadPool::new(3);
        let total = AtomicUsize::new(0);
        pool.run(10, &|_, outer| {
            let here = thread::current().id();
            pool.run(10, &|_, inner| {
                assert_eq!((inner, thread::current().id()), (outer, here));
                total.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(total.into_inner(), 100);
    }

    #[test]
    fn dropping_ends_the_threads() {
        for _ in 0..rounds(50) {
            let pool = ThreadPool::new(4);
            assert_eq!(sum(&pool, 4), 10);
            let shared = Arc::downgrade(&pool.shared);
            drop(pool);
            assert!(shared.upgrade().is_none());
        }
    }
}
