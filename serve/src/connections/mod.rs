//! Connections of clients: their limits, timeouts and shutdown.
//!
//! When all connection slots are in use, the server closes a connection to accept a new one. It first closes old connections
//! that wait for data from their clients, then connections of clients that read slowly, then new connections that wait. Slow and silent
//! clients therefore cannot lock out other clients. A few reserved slots serve `/health` and `/metrics`.

mod admission;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio_io_timeout::TimeoutStream;

use self::admission::{Admission, ConnectionEntry, Entry, RESERVED, Registry};
use crate::half_closed::HalfClosed;
use crate::lock::lock;
use crate::pace::Pace;

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

/// Number of open files reserved for purposes other than connections. At most half of the process's limit is reserved.
const OTHER_FILES: u64 = 128;

/// Raises the process's limit of open files as far as the system allows. Returns the number of connections that fit, at
/// most `wanted`.
fn connections_within_files(wanted: usize) -> usize {
    let files = match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(files) => files,
        Err(error) => {
            log::debug!("the limit of open files is unknown: {error}");
            return wanted;
        }
    };
    let left = files - OTHER_FILES.min(files / 2);
    let fitting = usize::try_from(left)
        .unwrap_or(usize::MAX)
        .saturating_sub(RESERVED)
        .max(1);
    if fitting < wanted {
        log::warn!(
            "at most {fitting} of {wanted} connections are accepted, because the process may open only {files} files; \
             raise the limit with `ulimit -n`"
        );
    }
    fitting.min(wanted)
}

/// Pause before the first keep-alive probe of TCP on an idle connection, and between two probes.
const KEEP_ALIVE_TIME: Duration = Duration::from_secs(15);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// Bytes that the system may keep for a client that does not read; Linux doubles it.
const SEND_BUFFER: usize = 256 << 10;

/// Time that clients get to send the rest of their bodies when the server stops.
const READ_ON: Duration = Duration::from_secs(2);

/// Phases of a connection, stored in [`Activity`].
const IDLE: u8 = 0;
const RECEIVING: u8 = 1;
const WORKING: u8 = 2;
const ANSWERING: u8 = 3;

/// Current phase of a connection. Requests carry it as an extension.
#[derive(Clone, Debug)]
pub(crate) struct Activity {
    phase: Arc<AtomicU8>,
    /// True if the client supports interim responses such as `100 Continue`. HTTP/1.0 has none.
    takes_interim: Arc<AtomicBool>,
    /// True from the start of a response until all of its bytes are passed to the operating system.
    has_unsent: Arc<AtomicBool>,
    /// Speed of the client's reading.
    pace: Arc<Mutex<Pace>>,
    /// Value that becomes true when the server stops.
    stopping: watch::Receiver<bool>,
    /// True if a request of the connection passed authorization and was received completely.
    is_trusted: Arc<AtomicBool>,
    /// True if the connection uses a reserved slot.
    pub(crate) is_reserved: bool,
}

impl Activity {
    pub(crate) fn new(is_reserved: bool, stopping: watch::Receiver<bool>) -> Self {
        Activity {
            stopping,
            phase: Arc::new(AtomicU8::new(IDLE)),
            takes_interim: Arc::new(AtomicBool::new(false)),
            has_unsent: Arc::new(AtomicBool::new(false)),
            pace: Arc::default(),
            is_trusted: Arc::default(),
            is_reserved,
        }
    }

    /// Marks an authorized request as fully received. The connection keeps its slot until the response is sent.
    pub(crate) fn start_work(&self) {
        self.is_trusted.store(true, Ordering::Relaxed);
        self.phase.store(WORKING, Ordering::Relaxed);
    }

    /// Waits until the server stops.
    pub(crate) async fn server_stops(mut self) {
        // An error means that the server is gone.
        let _ = self.stopping.wait_for(|stops| *stops).await;
    }

    /// Returns true while the connection waits for data from its client.
    pub(crate) fn is_reading(&self) -> bool {
        matches!(self.phase.load(Ordering::Relaxed), IDLE | RECEIVING)
    }

    /// Returns true if a new connection may replace this one: it waits for its client, and has no response left to
    /// send.
    fn may_be_closed(&self) -> bool {
        self.is_reading() && !self.has_unsent.load(Ordering::Relaxed)
    }

    /// Returns the time by which the client is late in reading answers. Clients that only read public pages get no tolerance.
    fn lateness(&self, now: Instant) -> Duration {
        let pace = self.pace();
        if self.is_trusted.load(Ordering::Relaxed) {
            pace.lateness(now)
        } else {
            pace.delay(now)
        }
    }

    pub(crate) fn pace(&self) -> MutexGuard<'_, Pace> {
        lock(&self.pace)
    }

    /// Records that all bytes written so far are passed to the operating system.
    pub(crate) fn flushed(&self) {
        self.pace().flush(Instant::now());
        if self.phase.load(Ordering::Relaxed) != ANSWERING {
            self.has_unsent.store(false, Ordering::Relaxed);
        }
    }

    /// Returns true from the arrival of a request's head to the end of its response.
    pub(crate) fn has_request(&self) -> bool {
        self.phase.load(Ordering::Relaxed) != IDLE
    }

    /// Returns true if the client gets no answer yet, and does not understand interim responses.
    pub(crate) fn cannot_probe(&self) -> bool {
        !self.is_answering() && !self.takes_interim.load(Ordering::Relaxed)
    }

    /// Returns true if an interim response may be sent now: no response is incomplete, and the client understands it.
    pub(crate) fn may_probe(&self) -> bool {
        !self.is_answering() && self.takes_interim.load(Ordering::Relaxed)
    }

    /// Returns true from the start of a response until all of its bytes are passed to the operating system.
    fn is_answering(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == ANSWERING || self.has_unsent.load(Ordering::Relaxed)
    }
}

/// Accepts connections until `stop` completes. Running requests may then finish until `kill` completes or the shutdown
/// timeout is over. Returns true if all requests were completed.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    mut limits: Limits,
    stop: impl Future<Output = ()>,
    kill: impl Future<Output = ()>,
) -> bool {
    limits.connections = connections_within_files(limits.connections);
    let graceful = GracefulShutdown::new();
    let registry = Arc::new(Mutex::new(Registry::default()));
    let (stops, stopping) = watch::channel(false);
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                log::warn!("a connection cannot be accepted: {error}");
                // Often there are too many open files: a silent connection gives its file to the new one.
                lock(&registry).close_one(None, false);
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let close = Arc::new(Notify::new());
        let (activity, registered) = {
            let mut open = lock(&registry);
            let activity = match open.admit(peer.ip(), &limits) {
                Admission::Refused => continue,
                admission => Activity::new(admission == Admission::Reserved, stopping.clone()),
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
            (activity, ConnectionEntry { registry, id })
        };
        // Tokens are small, and are sent at once.
        let _ = stream.set_nodelay(true);
        // Otherwise, the system may keep several megabytes for each client that does not read.
        if let Err(error) = SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER) {
            log::debug!("the send buffer of a connection has its default size: {error}");
        }
        // Notices clients whose machine or connection is gone.
        let keepalive = TcpKeepalive::new()
            .with_time(KEEP_ALIVE_TIME)
            .with_interval(KEEP_ALIVE_INTERVAL);
        if let Err(error) = SockRef::from(&stream).set_tcp_keepalive(&keepalive) {
            log::debug!("a connection has no keep-alive probes: {error}");
        }
        let stream = HalfClosed::new(stream, activity.clone());
        let client_left = stream.client_left();
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(limits.write_timeout));
        let router = router.clone();
        let has_request_before = AtomicBool::new(false);
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let (mut router, activity) = (router.clone(), activity.clone());
            activity.phase.store(RECEIVING, Ordering::Relaxed);
            let takes_interim = request.version() >= hyper::Version::HTTP_11;
            activity.takes_interim.store(takes_interim, Ordering::Relaxed);
            // Otherwise, a connection answers many pipelined requests in a row, while the tasks of other connections wait.
            let yields = has_request_before.swap(true, Ordering::Relaxed);
            async move {
                if yields {
                    tokio::task::yield_now().await;
                }
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
                error = client_left => log::debug!("a client has left: {error}"),
            }
            drop(registered);
        });
    }
    drop(listener);
    let _ = stops.send(true);
    // A head or a body that is incomplete now may stay so.
    lock(&registry).close_all(IDLE);
    let reading = async {
        tokio::time::sleep(READ_ON).await;
        lock(&registry).close_all(RECEIVING);
        std::future::pending::<()>().await
    };
    tokio::select! {
        ended = tokio::time::timeout(limits.shutdown_timeout, graceful.shutdown()) => ended.is_ok(),
        () = reading => false,
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
    activity.has_unsent.store(true, Ordering::Relaxed);
    activity.phase.store(ANSWERING, Ordering::Relaxed);
    response.map(|body| Body::new(Answer { body, activity }))
}

/// Response body that ends the phase `ANSWERING` on drop. Its bytes may still be in buffers then.
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
