//! Limits of the memory for generated text that is not sent yet.
//!
//! A client that does not read its stream, and an answer that is sent as a whole, both keep tokens in memory. Their size is
//! limited for each request and for all requests together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of unsent bytes of all requests.
const MAX_ALL_BYTES: usize = 1 << 30;

/// Counter of the unsent bytes of all requests, and the maximum for one request.
#[derive(Clone, Debug)]
pub(crate) struct UnsentBytes {
    held: Arc<AtomicUsize>,
    limit: usize,
}

/// Counter of the unsent bytes of one request. They are released on drop.
#[derive(Debug)]
pub(crate) struct RequestBytes {
    all: UnsentBytes,
    own: AtomicUsize,
}

/// Error if a limit of unsent bytes is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitReached {
    /// The limit of one request, in bytes.
    Own(usize),
    /// The limit of all requests together.
    All,
}

impl LimitReached {
    /// Returns the message for the client.
    pub(crate) fn message(self) -> String {
        match self {
            LimitReached::Own(limit) => format!(
                "the generated text that is not sent yet exceeds {limit} bytes: read the stream faster, or request \
                 fewer choices, tokens or log-probabilities"
            ),
            LimitReached::All => "the server buffers too much text that is not sent yet; try again later".into(),
        }
    }
}

impl UnsentBytes {
    pub(crate) fn new(limit: usize) -> Self {
        UnsentBytes {
            held: Arc::default(),
            limit,
        }
    }

    /// Returns the number of unsent bytes of all requests.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Creates the counter of a new request.
    pub(crate) fn of_request(&self) -> Arc<RequestBytes> {
        Arc::new(RequestBytes {
            all: self.clone(),
            own: AtomicUsize::new(0),
        })
    }
}

impl RequestBytes {
    /// Counts bytes.
    ///
    /// # Errors
    /// A limit that they exceed. They are not counted then.
    pub(crate) fn add(&self, bytes: usize) -> Result<(), LimitReached> {
        let add = |counter: &AtomicUsize, limit: usize| {
            let fits = |held: usize| held.checked_add(bytes).filter(|&held| held <= limit);
            counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
        };
        if !add(&self.own, self.all.limit) {
            return Err(LimitReached::Own(self.all.limit));
        }
        if !add(&self.all.held, MAX_ALL_BYTES) {
            self.own.fetch_sub(bytes, Ordering::Relaxed);
            return Err(LimitReached::All);
        }
        Ok(())
    }

    /// Replaces the counted number of bytes, even if it exceeds a limit, because the bytes are already in memory.
    pub(crate) fn set(&self, bytes: usize) {
        let before = self.own.swap(bytes, Ordering::Relaxed);
        // Wraps around like a subtraction.
        self.all.held.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Releases bytes that were counted.
    pub(crate) fn remove(&self, bytes: usize) {
        self.own.fetch_sub(bytes, Ordering::Relaxed);
        self.all.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for RequestBytes {
    fn drop(&mut self) {
        self.all.held.fetch_sub(*self.own.get_mut(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_limited_for_each_request_and_for_all() {
        let all = UnsentBytes::new(100);
        let one = all.of_request();
        assert_eq!(one.add(60), Ok(()));
        assert_eq!(one.add(60), Err(LimitReached::Own(100)));
        one.remove(30);
        assert_eq!(one.add(60), Ok(()));
        let large = UnsentBytes {
            limit: usize::MAX,
            ..all.clone()
        };
        let large = large.of_request();
        assert_eq!(large.add(MAX_ALL_BYTES), Err(LimitReached::All));
        assert_eq!(large.add(MAX_ALL_BYTES - 90), Ok(()));
        assert_eq!(one.add(1), Err(LimitReached::All));
        large.set(10);
        assert_eq!(one.add(1), Ok(()));
        large.set(MAX_ALL_BYTES);
        assert_eq!(one.add(1), Err(LimitReached::All));
        drop(large);
        assert_eq!(one.add(1), Ok(()));
        drop(one);
        assert_eq!(all.held(), 0);
    }
}
