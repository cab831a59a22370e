//! Memory of generated text that is not sent yet.
//!
//! A client that does not read its stream, and an answer that is sent as a whole, both keep tokens in memory. Their size is
//! limited for each request and for all requests together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of bytes for all requests.
const MAX_ALL_BYTES: usize = 1 << 30;

/// Bytes that all requests of a server hold, and the maximum number for one request.
#[derive(Clone, Debug)]
pub(crate) struct UnsentBytes {
    held: Arc<AtomicUsize>,
    limit: usize,
}

/// Bytes that one request holds. They are released on drop.
#[derive(Debug)]
pub(crate) struct Unsent {
    all: UnsentBytes,
    own: AtomicUsize,
}

/// Error: a limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// The limit of a request, in bytes.
    Own(usize),
    /// The limit of the server.
    All,
}

impl Full {
    /// The message for the client.
    pub(crate) fn message(self) -> String {
        match self {
            Full::Own(limit) => format!(
                "the text that is generated and not sent yet exceeds {limit} bytes: read the stream faster, or ask for fewer choices, \
                 tokens or log-probabilities"
            ),
            Full::All => "the server holds too much text that is not sent yet; try again later".into(),
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

    /// Starts to count the bytes of a request.
    pub(crate) fn of_request(&self) -> Arc<Unsent> {
        Arc::new(Unsent {
            all: self.clone(),
            own: AtomicUsize::new(0),
        })
    }
}

impl Unsent {
    /// Counts bytes.
    ///
    /// # Errors
    /// A limit that they exceed. They are not counted then.
    pub(crate) fn add(&self, bytes: usize) -> Result<(), Full> {
        let add = |counter: &AtomicUsize, limit: usize| {
            let fits = |held: usize| held.checked_add(bytes).filter(|&held| held <= limit);
            counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
        };
        if !add(&self.own, self.all.limit) {
            return Err(Full::Own(self.all.limit));
        }
        if !add(&self.all.held, MAX_ALL_BYTES) {
            self.own.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Full::All);
        }
        Ok(())
    }

    /// Releases bytes that were counted.
    pub(crate) fn remove(&self, bytes: usize) {
        self.own.fetch_sub(bytes, Ordering::Relaxed);
        self.all.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Unsent {
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
        assert_eq!(one.add(60), Err(Full::Own(100)));
        one.remove(30);
        assert_eq!(one.add(60), Ok(()));
        let large = UnsentBytes {
            limit: usize::MAX,
            ..all.clone()
        };
        let large = large.of_request();
        assert_eq!(large.add(MAX_ALL_BYTES), Err(Full::All));
        assert_eq!(large.add(MAX_ALL_BYTES - 90), Ok(()));
        assert_eq!(one.add(1), Err(Full::All));
        drop(large);
        assert_eq!(one.add(1), Ok(()));
        drop(one);
        assert_eq!(all.held.load(Ordering::Relaxed), 0);
    }
}
