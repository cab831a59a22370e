//! Threads that compute futures.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use meganeura_core::error::{Error, Result};

type Job = Box<dyn FnOnce() + Send>;

/// Threads that run jobs in their order. They start with the first job, and end when this is dropped and no job is left.
#[derive(Default)]
pub struct Workers {
    shared: Arc<Queue>,
    limit: usize,
}

#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
}

/// Result of a job, and the task that waits for it.
struct Slot<T, E> {
    result: Option<Result<T, E>>,
    waker: Option<Waker>,
}

/// A result that a thread computes. Any executor can await it: the thread wakes the task. If this is dropped before the
/// job has begun, the job does not run.
pub struct Running<T, E = Error> {
    slot: Arc<Mutex<Slot<T, E>>>,
}

impl Workers {
    /// Creates at most `limit` threads (at least one), when they are needed.
    pub fn new(limit: usize) -> Self {
        Workers {
            shared: Arc::default(),
            limit: limit.max(1),
        }
    }

    /// Runs a job on one of the threads.
    ///
    /// The result is an error if the system refuses to start a thread, or if the job panics.
    pub fn run<T, E>(&self, job: impl FnOnce() -> Result<T, E> + Send + 'static) -> Running<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let slot = Arc::new(Mutex::new(Slot {
            result: None,
            waker: None,
        }));
        let wanted = Arc::downgrade(&slot);
        let work: Job = Box::new(move || {
            if wanted.strong_count() == 0 {
                return;
            }
            let result = catch_unwind(AssertUnwindSafe(job));
            let result = result.unwrap_or_else(|_| Err(failed("a run panicked; the log has its message").into()));
            if let Some(slot) = wanted.upgrade() {
                finish(&slot, result);
            }
        });
        if let Err(error) = self.enqueue(work) {
            finish(&slot, Err(error.into()));
        }
        Running { slot }
    }

    fn enqueue(&self, job: Job) -> Result<()> {
        let mut state = lock(&self.shared.state);
        if state.idle <= state.jobs.len() && state.threads < self.limit {
            let shared = self.shared.clone();
            let builder = std::thread::Builder::new().name("meganeura-run".to_owned());
            match builder.spawn(move || shared.serve()) {
                Ok(_) => state.threads += 1,
                // The other threads take the job.
                Err(_) if state.threads > 0 => {}
                Err(error) => return Err(failed(&format!("a thread could not be started: {error}"))),
            }
        }
        state.jobs.push_back(job);
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // The threads end by themselves: this may be dropped on one of them.
        lock(&self.shared.state).closed = true;
        self.shared.changed.notify_all();
    }
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workers")
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

impl Queue {
    /// Runs jobs until the queue is closed and empty.
    fn serve(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = lock(&self.state);
            } else if state.closed {
                return;
            } else {
                state.idle += 1;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }
}

impl<T, E> Future for Running<T, E> {
    type Output = Result<T, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = lock(&self.slot);
        match slot.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T, E> std::fmt::Debug for Running<T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").finish_non_exhaustive()
    }
}

fn finish<T, E>(slot: &Mutex<Slot<T, E>>, result: Result<T, E>) {
    let mut slot = lock(slot);
    slot.result = Some(result);
    let waker = slot.waker.take();
    drop(slot);
    if let Some(waker) = waker {
        waker.wake();
    }
}

fn failed(message: &str) -> Error {
    Error::backend("model", message)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic cannot leave the contents half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::task::Wake;
    use std::thread::{self, Thread};

    use super::*;

    /// Returns a result whose error type is that of the library.
    fn ok<T>(value: T) -> Result<T> {
        Ok(value)
    }

    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    /// Waits for a future, and returns its output and the number of polls.
    fn block_on<T>(mut running: Running<T>) -> (Result<T>, usize) {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        for polls in 1.. {
            if let Poll::Ready(result) = Pin::new(&mut running).poll(&mut context) {
                return (result, polls);
            }
            thread::park();
        }
        unreachable!()
    }

    #[test]
    fn results_wake_their_task() {
        let workers = Workers::new(2);
        let running: Vec<Running<usize>> = (0..20).map(|i| workers.run(move || Ok(i * i))).collect();
        for (i, running) in running.into_iter().enumerate() {
            assert_eq!(block_on(running).0.expect("computed"), i * i);
        }
        let slow = workers.run(|| {
            thread::sleep(std::time::Duration::from_millis(30));
            ok(1)
        });
        let (result, polls) = block_on(slow);
        assert_eq!(result.expect("computed"), 1);
        assert!(polls <= 3, "the task is not polled in a loop: {polls}");
    }

    #[test]
    fn what_nobody_waits_for_does_not_run() {
        let (workers, ran) = (Workers::new(1), Arc::new(AtomicUsize::new(0)));
        let (start, started) = mpsc::channel::<()>();
        let first = workers.run(move || {
            let _ = started.recv();
            ok(())
        });
        let counted = ran.clone();
        drop(workers.run(move || ok(counted.fetch_add(1, Ordering::SeqCst))));
        start.send(()).expect("it waits");
        block_on(first).0.expect("computed");
        block_on(workers.run(|| ok(()))).0.expect("computed");
        assert_eq!(ran.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_panic_is_an_error_and_the_thread_lives_on() {
        let workers = Workers::new(1);
        let panics = workers.run(|| -> Result<()> { panic!("inside") });
        assert!(
            block_on(panics)
                .0
                .expect_err("panicked")
                .to_string()
                .contains("panicked")
        );
        assert_eq!(block_on(workers.run(|| ok(7))).0.expect("computed"), 7);
    }
}
