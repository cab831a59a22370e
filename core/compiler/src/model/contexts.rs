//! A pool of execution contexts.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Contexts by key, for any number of threads. One thread at a time uses a context, such as a session. The key identifies
/// equal contexts, for instance by the shapes of the inputs.
///
/// A thread gets an idle context of its key, or makes a new one. If there are too many, it replaces the idle context that
/// was not used for the longest time, or waits until another thread returns one.
#[derive(Debug)]
pub struct Contexts<K, C> {
    state: Mutex<State<K, C>>,
    returned: Condvar,
    limit: usize,
}

#[derive(Debug)]
struct State<K, C> {
    /// Idle contexts, with the time of their last use.
    idle: HashMap<K, Vec<(u64, C)>>,
    /// Number of all contexts: idle, in use, and being made.
    total: usize,
    now: u64,
}

impl<K: Hash + Eq + Clone, C> Contexts<K, C> {
    /// Creates a pool of at most `limit` contexts (at least one).
    pub fn new(limit: usize) -> Self {
        Contexts {
            state: Mutex::new(State {
                idle: HashMap::new(),
                total: 0,
                now: 0,
            }),
            returned: Condvar::new(),
            limit: limit.max(1),
        }
    }

    /// Returns the maximum number of contexts.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the number of contexts that exist.
    pub fn len(&self) -> usize {
        self.lock().total
    }

    /// Returns `true` if no context exists.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an idle context.
    pub fn add(&self, key: K, context: C) {
        let mut state = self.lock();
        state.total += 1;
        state.put(key, context);
        drop(state);
        self.returned.notify_one();
    }

    /// Returns a context for a key. Calls `make` if there is no idle one.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn get<E>(&self, key: &K, make: impl FnOnce() -> Result<C, E>) -> Result<Lease<'_, K, C>, E> {
        let found = self.take_or_reserve(key);
        let mut lease = Lease {
            pool: self,
            key: key.clone(),
            context: found,
        };
        if lease.context.is_none() {
            // If `make` fails or panics, dropping the lease lets another context be made.
            lease.context = Some(make()?);
        }
        Ok(lease)
    }

    /// Returns an idle context, or `None` after counting a new one.
    fn take_or_reserve(&self, key: &K) -> Option<C> {
        let mut state = self.lock();
        loop {
            if let Some(context) = state.take(key) {
                return Some(context);
            }
            if state.total < self.limit {
                state.total += 1;
                return None;
            }
            if let Some(oldest) = state.take_oldest() {
                // The total stays the same: a new context replaces this one. Dropping a session takes time, so the lock is
                // released.
                drop(state);
                drop(oldest);
                return None;
            }
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<K, C>> {
        // A panic cannot leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq + Clone, C> State<K, C> {
    fn take(&mut self, key: &K) -> Option<C> {
        let contexts = self.idle.get_mut(key)?;
        let (_, context) = contexts.pop()?;
        if contexts.is_empty() {
            self.idle.remove(key);
        }
        Some(context)
    }

    /// Removes the idle context that was not used for the longest time.
    fn take_oldest(&mut self) -> Option<C> {
        // Lists are sorted by the time of the return.
        let oldest = self.idle.iter().filter_map(|(key, list)| Some((list.first()?.0, key)));
        let key = oldest.min_by_key(|(time, _)| *time)?.1.clone();
        let contexts = self.idle.get_mut(&key)?;
        let (_, context) = contexts.remove(0);
        if contexts.is_empty() {
            self.idle.remove(&key);
        }
        Some(context)
    }

    fn put(&mut self, key: K, context: C) {
        self.now += 1;
        self.idle.entry(key).or_default().push((self.now, context));
    }
}

/// A context in use. It is returned to the pool when this is dropped, unless the thread panics.
#[derive(Debug)]
pub struct Lease<'p, K: Hash + Eq + Clone, C> {
    pool: &'p Contexts<K, C>,
    key: K,
    /// `None` only while the context is being made, and after its return.
    context: Option<C>,
}

impl<K: Hash + Eq + Clone, C> Deref for Lease<'_, K, C> {
    type Target = C;
    fn deref(&self) -> &C {
        self.context
            .as_ref()
            .expect("a lease has a context until it is dropped")
    }
}

impl<K: Hash + Eq + Clone, C> DerefMut for Lease<'_, K, C> {
    fn deref_mut(&mut self) -> &mut C {
        self.context
            .as_mut()
            .expect("a lease has a context until it is dropped")
    }
}

impl<K: Hash + Eq + Clone, C> Drop for Lease<'_, K, C> {
    fn drop(&mut self) {
        let context = self.context.take().filter(|_| !std::thread::panicking());
        let mut state = self.pool.lock();
        match context {
            Some(context) => state.put(self.key.clone(), context),
            None => state.total -= 1,
        }
        drop(state);
        self.pool.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn idle_contexts_are_used_again_and_the_oldest_is_replaced() {
        let (pool, made) = (Contexts::new(2), AtomicUsize::new(0));
        let get = |key: &'static str| {
            let make = || Ok::<_, ()>((key, made.fetch_add(1, Ordering::Relaxed)));
            pool.get(&key, make).expect("made")
        };
        assert_eq!(*get("a"), ("a", 0));
        assert_eq!(*get("b"), ("b", 1));
        assert_eq!(*get("a"), ("a", 0));
        // "b" was used before "a".
        assert_eq!(*get("c"), ("c", 2));
        assert_eq!(*get("a"), ("a", 0));
        assert_eq!(*get("b"), ("b", 3));
        assert_eq!(pool.len(), 2);
    }

    #[test]
    fn a_full_pool_is_waited_for() {
        let pool = Contexts::new(2);
        let (busy, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for number in 0..8 {
                let (pool, busy, most) = (&pool, &busy, &most);
                scope.spawn(move || {
                    for round in 0..50 {
                        let lease = pool.get(&((number + round) % 3), || Ok::<_, ()>(0)).expect("made");
                        most.fetch_max(busy.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        busy.fetch_sub(1, Ordering::SeqCst);
                        drop(lease);
                    }
                });
            }
        });
        assert!(most.into_inner() <= 2);
        assert!(pool.len() <= 2);
    }

    #[test]
    fn failures_and_panics_are_not_counted() {
        let pool: Contexts<u8, u8> = Contexts::new(1);
        assert_eq!(pool.get(&0, || Err("no")).err(), Some("no"));
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _lease = pool.get(&0, || Ok::<_, ()>(1)).expect("made");
            panic!("in use");
        }));
        assert!(panics.is_err() && pool.is_empty());
        assert_eq!(*pool.get(&0, || Ok::<_, ()>(2)).expect("made"), 2);
    }
}
