//! Threads that prepare requests: they parse bodies, render templates, tokenize, and compile grammars.
//!
//! Work that waits belongs to the request, and is dropped with it when the client leaves. Grammars have threads apart from
//! everything else, so that slow ones delay only each other.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meganeura_llm::processor_time::TimeLimit;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use crate::lock::lock;

/// Maximum number of requests of each size that are parsed and tokenized at the same time.
const TEXTS: usize = 2;
/// Maximum number of bytes of a small body, which is parsed within milliseconds. Small bodies never wait for large ones.
const SMALL_BODY: usize = 64 << 10;
/// Maximum processor time of the template of a small body, and of a large one. A request that exceeds it is prepared again by the
/// threads for slow templates. Usual templates take less than a millisecond.
const TEMPLATE_TIMES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(200)];
/// Maximum costs of small and of medium schemas and grammars, in bytes of a usual schema. Small ones never wait for larger ones,
/// which may take seconds to compile.
const GRAMMARS: [usize; 2] = [16 << 10, 256 << 10];

/// Limits of a grammar of each size. A grammar beyond them is treated as one of the next size. The lowest time limit is short, so that
/// grammars with a wrong estimate cause only short delays.
pub(crate) const GRAMMAR_LIMITS: [GrammarLimits; GRAMMARS.len() + 1] = [
    GrammarLimits {
        trial: Duration::from_millis(100),
        memory: 64 << 20,
        first_mask: Duration::from_millis(50),
    },
    GrammarLimits {
        trial: Duration::from_secs(1),
        memory: 192 << 20,
        first_mask: Duration::from_millis(300),
    },
    GrammarLimits {
        trial: Duration::from_secs(10),
        memory: 512 << 20,
        first_mask: Duration::from_secs(2),
    },
];

/// Limits of a grammar of one size.
#[derive(Clone, Copy)]
pub(crate) struct GrammarLimits {
    /// Maximum processor time of the compiler in the process that tries the grammar first. Usual grammars of the maximum cost take a third.
    pub(crate) trial: Duration,
    /// Maximum memory of the compiler in that process, in bytes. A usual grammar of 100 kB takes 100 MB.
    pub(crate) memory: u64,
    /// Maximum time to compute the mask of the first token, which usually takes a few milliseconds.
    pub(crate) first_mask: Duration,
}

/// Maximum number of simultaneous trials of small, medium and large grammars. With several, a trial that never ends delays other
/// grammars little. The processes have a low priority. Together, they take at most 2 GiB.
const TRIALS: [usize; GRAMMARS.len() + 1] = [4, 4, 2];

/// Reason why a request was not prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotPrepared {
    /// The queue is full.
    QueueFull,
    /// The request reached its deadline.
    TimedOut,
    /// The thread panicked.
    Panicked,
}

/// Threads for one kind of work. A free thread takes the smallest waiting work, and every few turns the oldest.
struct Pool {
    queue: Arc<Mutex<Queue>>,
    limit: usize,
}

/// Number of free threads of a pool, and the waiting work.
struct Queue {
    free: usize,
    /// Waiting work, by its size in bytes or its cost, and its arrival number.
    waiting: BTreeMap<(usize, u64), oneshot::Sender<Permit>>,
    arrivals: u64,
    turns: u64,
}

/// Period of the turns that take the oldest waiting work instead of the smallest.
const OLDEST: u64 = 4;

/// Permission to use a thread, until it is dropped.
struct Permit(Arc<Mutex<Queue>>);

/// Permission to keep a compiled grammar in memory, until it is dropped.
pub(crate) struct GrammarRoom {
    _permit: OwnedSemaphorePermit,
    _several: Option<Permit>,
}

/// Threads for all kinds of work.
pub(crate) struct Preparation {
    /// Pools for small bodies, for large bodies, and for slow templates.
    texts: [Pool; TEMPLATE_TIMES.len() + 1],
    /// Pools for trials of small, medium and large grammars in other processes.
    trials: [Pool; GRAMMARS.len() + 1],
    /// Pools that compile small, medium and large grammars.
    grammars: [Pool; GRAMMARS.len() + 1],
    /// Room for the compiled grammars of each pool, which take tens of megabytes each. Requests beyond it wait uncompiled.
    rooms: [Arc<Semaphore>; GRAMMARS.len() + 1],
    /// Half of that room: requests with several sequences, which keep their room until the last one ends, have no more.
    several: [Pool; GRAMMARS.len() + 1],
}

/// Flag for work on a thread. It is set when the client of the work leaves.
#[derive(Clone, Default)]
pub(crate) struct Abandonment(Arc<AtomicBool>);

impl Abandonment {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Calls a function on drop: the request that waits for some work was dropped, or has its result.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Entry of a request in a queue, removed on drop.
struct Waiting<'a> {
    queue: &'a Mutex<Queue>,
    place: (usize, u64),
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(self.queue).waiting.remove(&self.place);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut queue = lock(&self.0);
        queue.free += 1;
        let next = queue.next();
        drop(queue);
        if let Some(next) = next {
            // A request that has left drops the permit, which passes it on.
            let _ = next.send(Permit(self.0.clone()));
        }
    }
}

impl Queue {
    /// Removes and returns the next waiting work, and reserves a free thread for it.
    fn next(&mut self) -> Option<oneshot::Sender<Permit>> {
        if self.free == 0 {
            return None;
        }
        self.turns += 1;
        let oldest = || self.waiting.keys().copied().min_by_key(|&(_, arrival)| arrival);
        let smallest = || self.waiting.keys().next().copied();
        let place = if self.turns.is_multiple_of(OLDEST) {
            oldest()
        } else {
            smallest()
        }?;
        self.free -= 1;
        self.waiting.remove(&place)
    }
}

impl Preparation {
    /// Returns the number of threads that all kinds of work need together.
    pub(crate) fn threads() -> usize {
        // One more for the runtime itself.
        (TEMPLATE_TIMES.len() + 1) * TEXTS + TRIALS.iter().sum::<usize>() + TRIALS.len() * grammar_threads() + 1
    }

    /// Creates the pools. In each of them, at most `limit` requests wait. `sequences` is the maximum number that the engine runs at
    /// once: more compiled grammars would only wait.
    pub(crate) fn new(limit: usize, sequences: usize) -> Self {
        let pool = |threads| Pool {
            queue: Arc::new(Mutex::new(Queue {
                free: threads,
                waiting: BTreeMap::new(),
                arrivals: 0,
                turns: 0,
            })),
            limit,
        };
        Preparation {
            texts: std::array::from_fn(|_| pool(TEXTS)),
            trials: TRIALS.map(pool),
            grammars: std::array::from_fn(|_| pool(grammar_threads())),
            rooms: std::array::from_fn(|_| Arc::new(Semaphore::new(sequences.clamp(1, Semaphore::MAX_PERMITS)))),
            several: std::array::from_fn(|_| pool((sequences / 2).max(1))),
        }
    }

    /// Runs `work`, which parses a body of `bytes` bytes, renders its template and tokenizes the text. It runs once more if its template is
    /// slow, and its template ends early if the client leaves.
    pub(crate) async fn text<T: Send + 'static>(
        &self,
        deadline: Instant,
        bytes: usize,
        work: impl Fn() -> T + Send + Sync + 'static,
    ) -> Result<T, NotPrepared> {
        let work = Arc::new(work);
        let size = usize::from(bytes > SMALL_BODY);
        let limit = TimeLimit::new(TEMPLATE_TIMES[size]);
        let (value, is_slow) = self.text_within(deadline, (size, bytes), limit, &work).await?;
        if !is_slow {
            return Ok(value);
        }
        let slow = (TEMPLATE_TIMES.len(), bytes);
        let (value, _) = self
            .text_within(deadline, slow, TimeLimit::new(Duration::MAX), &work)
            .await?;
        Ok(value)
    }

    /// Runs `work` on the threads of a pool, and returns its result, and true if its template exceeded the limit.
    async fn text_within<T: Send + 'static>(
        &self,
        deadline: Instant,
        (pool, bytes): (usize, usize),
        limit: TimeLimit,
        work: &Arc<impl Fn() -> T + Send + Sync + 'static>,
    ) -> Result<(T, bool), NotPrepared> {
        let permit = self.texts[pool].permit(deadline, bytes).await?;
        let limit = Arc::new(limit);
        let _guard = OnDrop(|| limit.cancel());
        let (of_work, work) = (limit.clone(), work.clone());
        let value = run(permit, deadline, move || of_work.run(|| work())).await?;
        Ok((value, limit.is_exceeded()))
    }

    /// Runs `work`, which tries a schema or grammar of this size (0 to 2) and cost in another process. It should end soon once its argument
    /// is set.
    pub(crate) async fn trial<T: Send + 'static>(
        &self,
        deadline: Instant,
        size: usize,
        cost: usize,
        work: impl FnOnce(&Abandonment) -> T + Send + 'static,
    ) -> Result<T, NotPrepared> {
        let permit = self.trials[size].permit(deadline, cost).await?;
        let abandoned = Abandonment::default();
        let _guard = OnDrop(|| abandoned.set());
        let of_work = abandoned.clone();
        run(permit, deadline, move || work(&of_work)).await
    }

    /// Runs `work`, which compiles a schema or grammar of this size (0 to 2) and cost for `count` sequences, and returns its result with its
    /// room in memory. It has [`GRAMMAR_TIMEOUT`] after its start. If it is running then or at the deadline, it continues, but its result is
    /// dropped.
    pub(crate) async fn grammar<T: Send + 'static>(
        &self,
        deadline: Instant,
        [size, cost, count]: [usize; 3],
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<(T, GrammarRoom), NotPrepared> {
        // Comes first: a request that waits for it must not hold a thread.
        let several = if count > 1 {
            Some(self.several[size].permit(deadline, cost).await?)
        } else {
            None
        };
        let permit = self.grammars[size].permit(deadline, cost).await?;
        let room = tokio::time::timeout_at(deadline, self.rooms[size].clone().acquire_owned());
        // The semaphore is never closed.
        let Ok(Ok(room)) = room.await else {
            return Err(NotPrepared::TimedOut);
        };
        let value = run(permit, deadline.min(Instant::now() + GRAMMAR_TIMEOUT), work).await?;
        let room = GrammarRoom {
            _permit: room,
            _several: several,
        };
        Ok((value, room))
    }
}

/// Returns the size of a grammar by its cost: small (0), medium (1) or large (2).
pub(crate) fn size_of_grammar(cost: usize) -> usize {
    GRAMMARS.partition_point(|&largest| largest < cost)
}

/// Returns the number of threads of a pool for grammars: a quarter of the cores (1 to 4), so that the engine keeps most
/// of them.
fn grammar_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / 4).clamp(1, 4)
}

/// Runs `work` on a thread, and waits for it until the deadline.
async fn run<T: Send + 'static>(
    permit: Permit,
    deadline: Instant,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NotPrepared> {
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

impl Pool {
    /// Waits for a free thread.
    async fn permit(&self, deadline: Instant, bytes: usize) -> Result<Permit, NotPrepared> {
        let (receiver, _waiting) = {
            let mut queue = lock(&self.queue);
            if queue.free > 0 {
                queue.free -= 1;
                return Ok(Permit(self.queue.clone()));
            }
            if queue.waiting.len() >= self.limit {
                return Err(NotPrepared::QueueFull);
            }
            let place = (bytes, queue.arrivals);
            queue.arrivals += 1;
            let (sender, receiver) = oneshot::channel();
            queue.waiting.insert(place, sender);
            let waiting = Waiting {
                queue: &self.queue,
                place,
            };
            (receiver, waiting)
        };
        match tokio::time::timeout_at(deadline, receiver).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(NotPrepared::TimedOut),
        }
    }
}

/// Maximum time to compile a grammar, from its start. The deadline of the request applies in addition.
pub(crate) const GRAMMAR_TIMEOUT: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn small_bodies_do_not_wait_for_large_ones() {
        let preparation = Arc::new(Preparation::new(100, 4));
        let deadline = Instant::now() + Duration::from_secs(30);
        let (release, gate) = std::sync::mpsc::channel::<()>();
        let gate = Arc::new(std::sync::Mutex::new(gate));
        let busy: Vec<_> = (0..3 * TEXTS)
            .map(|_| {
                let (preparation, gate) = (preparation.clone(), gate.clone());
                tokio::spawn(async move {
                    let wait = move || gate.lock().map(|gate| gate.recv()).is_ok();
                    preparation.text(deadline, SMALL_BODY + 1, wait).await
                })
            })
            .collect();
        while lock(&preparation.texts[1].queue).waiting.len() < 2 * TEXTS {
            tokio::task::yield_now().await;
        }
        assert_eq!(preparation.text(deadline, SMALL_BODY, || 1).await, Ok(1));
        for _ in &busy {
            let _ = release.send(());
        }
        for task in busy {
            assert_eq!(task.await.expect("no panic"), Ok(true));
        }
    }

    #[tokio::test]
    async fn slow_templates_do_not_delay_other_small_bodies() {
        let preparation = Arc::new(Preparation::new(16, 4));
        let deadline = Instant::now() + Duration::from_secs(30);
        // Renders until its limit, as a template does that takes long.
        let render = || {
            let limit = TimeLimit::current().expect("work has a limit");
            while !limit.ends(Duration::from_millis(900)) {
                std::thread::sleep(Duration::from_millis(1));
            }
            limit.is_exceeded()
        };
        let slow: Vec<_> = (0..8)
            .map(|_| {
                let preparation = preparation.clone();
                tokio::spawn(async move { preparation.text(deadline, 10, render).await })
            })
            .collect();
        let is_waiting = || lock(&preparation.texts[TEMPLATE_TIMES.len()].queue).waiting.len() == 8 - TEXTS;
        while !is_waiting() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(preparation.text(deadline, 10, || 1).await, Ok(1));
        assert_eq!(preparation.text(deadline, SMALL_BODY + 1, || 2).await, Ok(2));
        // The templates of clients that have left end, and their threads are free.
        for task in slow {
            task.abort();
        }
        while lock(&preparation.texts[TEMPLATE_TIMES.len()].queue).free < TEXTS {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn the_smallest_work_is_next_and_the_oldest_now_and_then() {
        let preparation = Arc::new(Preparation::new(100, 4));
        let deadline = Instant::now() + Duration::from_secs(30);
        let pool = &preparation.grammars[2];
        let mut held = Vec::new();
        for _ in 0..grammar_threads() {
            held.push(pool.permit(deadline, 1).await.expect("a free thread"));
        }
        let (done, mut order) = tokio::sync::mpsc::unbounded_channel();
        let sizes = [900_000, 800_000, 100_000, 200_000, 300_000, 400_000];
        let mut tasks = Vec::new();
        for (number, bytes) in sizes.into_iter().enumerate() {
            let (preparation, done) = (preparation.clone(), done.clone());
            tasks.push(tokio::spawn(async move {
                let permit = preparation.grammars[2].permit(deadline, bytes).await.expect("a turn");
                done.send(bytes).expect("the test waits");
                drop(permit);
            }));
            while lock(&pool.queue).waiting.len() <= number {
                tokio::task::yield_now().await;
            }
        }
        // One thread does all.
        drop(held.pop());
        let mut found = Vec::new();
        for _ in sizes {
            found.extend(order.recv().await);
        }
        assert_eq!(found, [100_000, 200_000, 300_000, 900_000, 400_000, 800_000]);
        for task in tasks {
            task.await.expect("no panic");
        }
        drop(held);
        let queue = lock(&pool.queue);
        assert!(queue.free == grammar_threads() && queue.waiting.is_empty());
    }

    #[tokio::test]
    async fn work_beyond_the_queue_is_refused_and_left_work_is_dropped() {
        let preparation = Arc::new(Preparation::new(2, 4));
        let deadline = Instant::now() + Duration::from_secs(30);
        let (release, gate) = std::sync::mpsc::channel::<()>();
        let gate = Arc::new(std::sync::Mutex::new(gate));
        // All threads are busy until they are released.
        let busy: Vec<_> = (0..grammar_threads())
            .map(|_| {
                let (preparation, gate) = (preparation.clone(), gate.clone());
                tokio::spawn(async move {
                    let wait = move || gate.lock().map(|gate| gate.recv()).is_ok();
                    without_room(preparation.grammar(deadline, [0, 10, 1], wait).await)
                })
            })
            .collect();
        let is_idle = |p: &Preparation| lock(&p.grammars[0].queue).free > 0;
        while is_idle(&preparation) {
            tokio::task::yield_now().await;
        }
        let waits = |deadline| {
            let preparation = preparation.clone();
            tokio::spawn(async move { without_room(preparation.grammar(deadline, [0, 10, 1], || 1).await) })
        };
        let soon = Instant::now() + Duration::from_millis(50);
        let left = waits(deadline);
        let late = waits(soon);
        while lock(&preparation.grammars[0].queue).waiting.len() < 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(
            without_room(preparation.grammar(deadline, [0, 10, 1], || 1).await),
            Err(NotPrepared::QueueFull)
        );
        // Texts and larger grammars have threads of their own.
        for bytes in GRAMMARS {
            assert_eq!(
                without_room(
                    preparation
                        .grammar(deadline, [size_of_grammar(bytes + 1), bytes + 1, 1], || 4)
                        .await
                ),
                Ok(4)
            );
        }
        assert_eq!(preparation.text(deadline, 10, || 2).await, Ok(2));
        assert_eq!(late.await.expect("no panic"), Err(NotPrepared::TimedOut));
        left.abort();
        assert!(left.await.is_err());
        assert!(lock(&preparation.grammars[0].queue).waiting.is_empty());
        for _ in &busy {
            let _ = release.send(());
        }
        for task in busy {
            assert_eq!(task.await.expect("no panic"), Ok(true));
        }
        assert_eq!(
            without_room(
                preparation
                    .grammar(deadline, [0, 10, 1], || panic!("as it should"))
                    .await
            ),
            Err::<(), _>(NotPrepared::Panicked)
        );
        assert_eq!(
            without_room(preparation.grammar(deadline, [0, 10, 1], || 3).await),
            Ok(3)
        );
    }

    #[tokio::test]
    async fn grammars_wait_for_room_before_they_are_compiled() {
        let preparation = Preparation::new(2, 4);
        let long = Instant::now() + Duration::from_secs(30);
        let mut rooms = Vec::new();
        for _ in 0..4 {
            let (_, room) = preparation.grammar(long, [0, 10, 1], || ()).await.expect("room");
            rooms.push(room);
        }
        let soon = Instant::now() + Duration::from_millis(50);
        let late = preparation.grammar(soon, [0, 10, 1], || panic!("no room")).await;
        assert_eq!(without_room(late), Err::<(), _>(NotPrepared::TimedOut));
        // Grammars of another size have their own room.
        assert_eq!(
            without_room(preparation.grammar(long, [2, usize::MAX, 1], || 6).await),
            Ok(6)
        );
        rooms.pop();
        assert_eq!(without_room(preparation.grammar(long, [0, 10, 1], || 5).await), Ok(5));
    }

    #[tokio::test]
    async fn requests_with_several_sequences_have_half_of_the_rooms() {
        let preparation = Preparation::new(2, 4);
        let long = Instant::now() + Duration::from_secs(30);
        let mut rooms = Vec::new();
        for _ in 0..2 {
            let (_, room) = preparation.grammar(long, [0, 10, 24], || ()).await.expect("room");
            rooms.push(room);
        }
        let soon = Instant::now() + Duration::from_millis(50);
        let late = preparation.grammar(soon, [0, 10, 2], || panic!("no room")).await;
        assert_eq!(without_room(late), Err::<(), _>(NotPrepared::TimedOut));
        // Requests with one sequence have the other half.
        for _ in 0..2 {
            let (_, room) = preparation.grammar(long, [0, 10, 1], || ()).await.expect("room");
            rooms.push(room);
        }
        rooms.clear();
        assert_eq!(without_room(preparation.grammar(long, [0, 10, 2], || 5).await), Ok(5));
    }

    fn without_room<T>(result: Result<(T, GrammarRoom), NotPrepared>) -> Result<T, NotPrepared> {
        result.map(|(value, _)| value)
    }
}
