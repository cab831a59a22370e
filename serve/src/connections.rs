//! Connections: their number, how slow they may be, and how they end.
//!
//! When all connection slots are in use, a new connection replaces one that waits for data from its client. Slow and silent
//! clients therefore cannot lock out other clients. A few reserved slots serve `/health` and `/metrics`.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_io_timeout::TimeoutStream;

use crate::half_closed::HalfClosed;

/// See [`ServerOptions`](crate::ServerOptions).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) connections: usize,
    pub(crate) connections_per_address: usize,
    /// Maximum time for the head of a request.
    pub(crate) head_timeout: Duration,
    /// Maximum time without progress while a response is written.
    pub(crate) write_timeout: Duration,
    pub(crate) shutdown_timeout: Duration,
}

/// Number of further slots, for paths that monitor the server.
const RESERVED: usize = 16;

/// Phases of a connection, as [`Activity`] holds them.
const IDLE: u8 = 0;
const RECEIVING: u8 = 1;
const WORKING: u8 = 2;
const ANSWERING: u8 = 3;

/// Current phase of a connection. Requests carry it as an extension.
#[derive(Clone, Debug)]
pub(crate) struct Activity {
    phase: Arc<AtomicU8>,
    /// Set if the client understands interim responses, which HTTP/1.0 lacks.
    takes_interim: Arc<AtomicBool>,
    /// Set if the connection uses a reserved slot.
    pub(crate) is_reserved: bool,
}

impl Activity {
    pub(crate) fn new(is_reserved: bool) -> Self {
        Activity {
            phase: Arc::new(AtomicU8::new(IDLE)),
            takes_interim: Arc::new(AtomicBool::new(false)),
            is_reserved,
        }
    }

    /// Marks the request as complete: the connection keeps its slot until the response is sent.
    pub(crate) fn start_work(&self) {
        self.phase.store(WORKING, Ordering::Relaxed);
    }

    /// Returns true while the connection waits for data from its client.
    pub(crate) fn is_reading(&self) -> bool {
        matches!(self.phase.load(Ordering::Relaxed), IDLE | RECEIVING)
    }

    /// Returns true from the head of a request to the end of its response.
    pub(crate) fn has_request(&self) -> bool {
        self.phase.load(Ordering::Relaxed) != IDLE
    }

    /// Returns true if an interim response may be sent now: the response has not begun, and the client understands it.
    pub(crate) fn may_probe(&self) -> bool {
        self.phase.load(Ordering::Relaxed) != ANSWERING && self.takes_interim.load(Ordering::Relaxed)
    }
}

/// An open connection.
struct Entry {
    address: IpAddr,
    since: Instant,
    activity: Activity,
    close: Arc<Notify>,
}

/// Open connections.
#[derive(Default)]
struct Registry {
    next: u64,
    open: HashMap<u64, Entry>,
}

/// Decision about a new connection.
#[derive(Debug, PartialEq, Eq)]
enum Admission {
    Admitted,
    /// Accepted into a reserved slot.
    Reserved,
    Refused,
}

impl Registry {
    /// Decides about a new connection, and closes another one for it if necessary: of the address with the most connections
    /// that wait for bytes, the oldest.
    fn admit(&mut self, address: IpAddr, limits: &Limits) -> Admission {
        let of_address = self.open.values().filter(|entry| entry.address == address).count();
        if of_address >= limits.connections_per_address && !self.close_oldest(Some(address), false) {
            return Admission::Refused;
        }
        let used = self.open.values().filter(|entry| !entry.activity.is_reserved).count();
        if used < limits.connections || self.close_oldest(None, false) {
            return Admission::Admitted;
        }
        if self.open.len() < limits.connections + RESERVED || self.close_oldest(None, true) {
            return Admission::Reserved;
        }
        Admission::Refused
    }

    /// Closes the oldest connection that waits for data, of an address or of the one with most of them, in the reserved slots or
    /// in the ordinary ones. Returns true if there was one.
    fn close_oldest(&mut self, address: Option<IpAddr>, is_reserved: bool) -> bool {
        let reading = |entry: &&Entry| entry.activity.is_reading() && entry.activity.is_reserved == is_reserved;
        let address = address.or_else(|| {
            let mut counts: HashMap<IpAddr, usize> = HashMap::new();
            for entry in self.open.values().filter(reading) {
                *counts.entry(entry.address).or_default() += 1;
            }
            counts
                .into_iter()
                .max_by_key(|(_, count)| *count)
                .map(|(address, _)| address)
        });
        let of_address = self
            .open
            .iter()
            .filter(|(_, entry)| Some(entry.address) == address && reading(entry));
        let oldest = of_address.min_by_key(|(_, entry)| entry.since).map(|(id, _)| *id);
        let Some(entry) = oldest.and_then(|id| self.open.remove(&id)) else {
            return false;
        };
        entry.close.notify_one();
        true
    }
}

fn lock(registry: &Mutex<Registry>) -> std::sync::MutexGuard<'_, Registry> {
    registry.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Entry of a connection, removed on drop.
struct Registered {
    registry: Arc<Mutex<Registry>>,
    id: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        lock(&self.registry).open.remove(&self.id);
    }
}

/// Accepts connections until `stop` is done. Then requests may be completed until `kill` is done or the time is over. Returns
/// whether all requests were completed.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    stop: impl Future<Output = ()>,
    kill: impl Future<Output = ()>,
) -> bool {
    let graceful = GracefulShutdown::new();
    let registry = Arc::new(Mutex::new(Registry::default()));
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Too many open files, for example: this passes.
                log::warn!("a connection cannot be accepted: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let close = Arc::new(Notify::new());
        let (activity, registered) = {
            let mut open = lock(&registry);
            let activity = match open.admit(peer.ip(), &limits) {
                Admission::Refused => continue,
                admission => Activity::new(admission == Admission::Reserved),
            };
            let id = open.next;
            open.next += 1;
            let entry = Entry {
                address: peer.ip(),
                since: Instant::now(),
                activity: activity.clone(),
                close: close.clone(),
            };
            open.open.insert(id, entry);
            let registry = registry.clone();
            (activity, Registered { registry, id })
        };
        // Tokens are small, and are sent at once.
        let _ = stream.set_nodelay(true);
        let mut stream = TimeoutStream::new(HalfClosed::new(stream, activity.clone()));
        stream.set_write_timeout(Some(limits.write_timeout));
        let router = router.clone();
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let (mut router, activity) = (router.clone(), activity.clone());
            activity.phase.store(RECEIVING, Ordering::Relaxed);
            let takes_interim = request.version() >= hyper::Version::HTTP_11;
            activity.takes_interim.store(takes_interim, Ordering::Relaxed);
            async move {
                let mut request: axum::extract::Request = request.map(Body::new);
                request.extensions_mut().insert(activity.clone());
                let response = call(&mut router, request).await;
                Ok::<_, Infallible>(answering(response, activity))
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head_timeout)
            .serve_connection(TokioIo::new(Box::pin(stream)), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            tokio::select! {
                ended = connection => {
                    if let Err(error) = ended {
                        log::debug!("a connection ended: {error}");
                    }
                }
                () = close.notified() => log::debug!("a connection that waited for its client was closed for another"),
            }
            drop(registered);
        });
    }
    drop(listener);
    tokio::select! {
        ended = tokio::time::timeout(limits.shutdown_timeout, graceful.shutdown()) => ended.is_ok(),
        () = kill => false,
    }
}

/// Calls the router, which is always ready and never fails.
async fn call(router: &mut Router, request: axum::extract::Request) -> axum::response::Response {
    use tower_service::Service;
    match router.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Wraps a response so that the connection counts as busy until its body ends.
fn answering(response: axum::response::Response, activity: Activity) -> Response<Body> {
    activity.phase.store(ANSWERING, Ordering::Relaxed);
    response.map(|body| Body::new(Answer { body, activity }))
}

/// Body of a response that notes its end.
struct Answer {
    body: Body,
    activity: Activity,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.activity.phase.store(IDLE, Ordering::Relaxed);
    }
}

/// Completes when the process receives SIGINT or SIGTERM.
pub(crate) async fn signal() {
    let interrupt = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let terminate = async {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => {
                signal.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminate = std::future::pending::<()>();
    tokio::select! {
        () = interrupt => {}
        () = terminate => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        connections: 3,
        connections_per_address: 3,
        head_timeout: Duration::from_secs(1),
        write_timeout: Duration::from_secs(1),
        shutdown_timeout: Duration::from_secs(1),
    };

    fn add(registry: &mut Registry, address: [u8; 4], phase: u8, limits: &Limits) -> Admission {
        let admission = registry.admit(address.into(), limits);
        if admission != Admission::Refused {
            let activity = Activity::new(admission == Admission::Reserved);
            activity.phase.store(phase, Ordering::Relaxed);
            let entry = Entry {
                address: address.into(),
                since: Instant::now(),
                activity,
                close: Arc::default(),
            };
            registry.open.insert(registry.next, entry);
            registry.next += 1;
        }
        admission
    }

    #[test]
    fn connections_that_wait_give_their_places() {
        let mut registry = Registry::default();
        let limits = Limits {
            connections_per_address: 100,
            ..LIMITS
        };
        // The address with most waiting connections loses its oldest.
        for address in [[1; 4], [2; 4], [2; 4]] {
            assert_eq!(add(&mut registry, address, IDLE, &limits), Admission::Admitted);
        }
        assert_eq!(add(&mut registry, [3; 4], IDLE, &limits), Admission::Admitted);
        let mut open: Vec<u64> = registry.open.keys().copied().collect();
        open.sort_unstable();
        assert_eq!(open, [0, 2, 3]);
        // Busy connections keep their slots, and the reserved slots fill up.
        registry.open.values().for_each(|entry| entry.activity.start_work());
        for _ in 0..RESERVED {
            assert_eq!(add(&mut registry, [4; 4], WORKING, &limits), Admission::Reserved);
        }
        assert_eq!(add(&mut registry, [4; 4], WORKING, &limits), Admission::Refused);
        assert_eq!(registry.open.len(), 3 + RESERVED);
        // A silent connection in a reserved slot gives it to a new one.
        let reserved = registry.open.values().find(|entry| entry.activity.is_reserved);
        let activity = &reserved.expect("one").activity;
        activity.phase.store(IDLE, Ordering::Relaxed);
        assert_eq!(add(&mut registry, [5; 4], WORKING, &limits), Admission::Reserved);
        assert_eq!(registry.open.len(), 3 + RESERVED);
    }

    #[test]
    fn one_address_has_its_own_limit() {
        let mut registry = Registry::default();
        let limits = Limits {
            connections: 10,
            connections_per_address: 2,
            ..LIMITS
        };
        assert_eq!(add(&mut registry, [1; 4], WORKING, &limits), Admission::Admitted);
        assert_eq!(add(&mut registry, [1; 4], IDLE, &limits), Admission::Admitted);
        // The one that waits is closed.
        assert_eq!(add(&mut registry, [1; 4], WORKING, &limits), Admission::Admitted);
        assert_eq!(registry.open.len(), 2);
        assert_eq!(add(&mut registry, [1; 4], IDLE, &limits), Admission::Refused);
        assert_eq!(add(&mut registry, [2; 4], IDLE, &limits), Admission::Admitted);
    }
}
