//! Preparation of requests on threads of their own: parsing, templates, tokens, grammars.
//!
//! Work that waits belongs to the request, and is dropped with it when the client leaves. Grammars have threads apart from
//! everything else, so that slow ones delay only each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Maximum number of requests that are parsed and tokenized at the same time.
const TEXTS: usize = 4;

/// Reason why work was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotPrepared {
    /// The queue is full.
    QueueFull,
    /// The time of the request was over.
    TimedOut,
    /// The work panicked.
    Panicked,
}

/// Threads of one kind of work.
struct Pool {
    threads: Arc<Semaphore>,
    waiting: AtomicUsize,
    limit: usize,
}

/// Both kinds of work.
pub(crate) struct Preparation {
    texts: Pool,
    grammars: Pool,
}

/// Counts a request that waits, until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Preparation {
    /// Number of threads that all work together needs.
    pub(crate) fn threads() -> usize {
        // One more for the runtime itself.
        TEXTS + grammar_threads() + 1
    }

    /// At most `limit` requests wait for each kind of work.
    pub(crate) fn new(limit: usize) -> Self {
        let pool = |threads| Pool {
            threads: Arc::new(Semaphore::new(threads)),
            waiting: AtomicUsize::new(0),
            limit,
        };
        Preparation {
            texts: pool(TEXTS),
            grammars: pool(grammar_threads()),
        }
    }

    /// Parses and tokenizes.
    pub(crate) async fn text<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotPrepared> {
        self.texts.run(deadline, work).await
    }

    /// Compiles a grammar. A compilation that is running at the deadline continues, but its result is dropped.
    pub(crate) async fn grammar<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotPrepared> {
        self.grammars.run(deadline, work).await
    }
}

/// A quarter of the cores, so that the engine keeps most of them.
fn grammar_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / 4).clamp(1, 4)
}

impl Pool {
    async fn run<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotPrepared> {
        let fits = |waiting: usize| (waiting < self.limit).then_some(waiting + 1);
        self.waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .map_err(|_| NotPrepared::QueueFull)?;
        let waiting = Waiting(&self.waiting);
        let permit = tokio::time::timeout_at(deadline, self.threads.clone().acquire_owned());
        let Ok(Ok(permit)) = permit.await else {
            return Err(NotPrepared::TimedOut);
        };
        drop(waiting);
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        match tokio::time::timeout_at(deadline, done).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(_)) => Err(NotPrepared::Panicked),
            Err(_) => Err(NotPrepared::TimedOut),
        }
    }
}

/// Maximum time that the compilation of a grammar may take, besides the time of its request.
pub(crate) const GRAMMAR_TIMEOUT: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_beyond_the_queue_is_refused_and_left_work_is_dropped() {
        let preparation = Arc::new(Preparation::new(2));
        let deadline = Instant::now() + Duration::from_secs(30);
        let (release, gate) = std::sync::mpsc::channel::<()>();
        let gate = Arc::new(std::sync::Mutex::new(gate));
        // All threads are busy until they are released.
        let busy: Vec<_> = (0..grammar_threads())
            .map(|_| {
                let (preparation, gate) = (preparation.clone(), gate.clone());
                tokio::spawn(async move {
                    let wait = move || gate.lock().map(|gate| gate.recv()).is_ok();
                    preparation.grammar(deadline, wait).await
                })
            })
            .collect();
        let is_idle = |p: &Preparation| p.grammars.threads.available_permits() > 0;
        while is_idle(&preparation) {
            tokio::task::yield_now().await;
        }
        let waits = |deadline| {
            let preparation = preparation.clone();
            tokio::spawn(async move { preparation.grammar(deadline, || 1).await })
        };
        let soon = Instant::now() + Duration::from_millis(50);
        let left = waits(deadline);
        let late = waits(soon);
        while preparation.grammars.waiting.load(Ordering::Relaxed) < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(preparation.grammar(deadline, || 1).await, Err(NotPrepared::QueueFull));
        // Texts have threads of their own.
        assert_eq!(preparation.text(deadline, || 2).await, Ok(2));
        assert_eq!(late.await.expect("no panic"), Err(NotPrepared::TimedOut));
        left.abort();
        assert!(left.await.is_err());
        assert_eq!(preparation.grammars.waiting.load(Ordering::Relaxed), 0);
        for _ in &busy {
            let _ = release.send(());
        }
        for task in busy {
            assert_eq!(task.await.expect("no panic"), Ok(true));
        }
        assert_eq!(
            preparation.grammar(deadline, || panic!("as it should")).await,
            Err::<(), _>(NotPrepared::Panicked)
        );
        assert_eq!(preparation.grammar(deadline, || 3).await, Ok(3));
    }
}
