//! Detection of clients that close their sending side while they wait for the answer (half-closed connections).
//!
//! TCP reports the same end of input for a client that has left and for one that only sends no more. A client that has left
//! refuses the data that it receives. An interim response (`100 Continue`, RFC 9110, section 15.2.1) before each check
//! therefore distinguishes them. HTTP/1.0 has no interim responses: a client of HTTP/1.0 counts as disconnected if its input
//! ended 1.5 s ago and no answer has begun.
//!
//! The HTTP layer does not read while it holds bytes after the request, such as a second request. Then [`client_left`] checks
//! the socket itself.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::connections::Activity;

const PROBE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// First and maximum pause between two checks; each pause is twice the previous one.
const FIRST_LOOK: Duration = Duration::from_millis(50);
const LAST_LOOK: Duration = Duration::from_secs(2);
/// Pause after which an HTTP/1.0 client counts as disconnected. The pauses double, so the sum of all pauses is about twice this value.
const LONGEST_HTTP10_LOOK: Duration = Duration::from_millis(800);
/// Pause between two checks whether the input has ended although the HTTP layer does not read.
const CONNECTED_LOOK: Duration = Duration::from_millis(500);
/// Pause after which an incomplete body counts as cut off. The sum of all pauses is about twice this value.
const LONGEST_BODY_LOOK: Duration = Duration::from_millis(400);

/// TCP stream that hides the end of its input while a request is answered and the client is still connected.
pub(crate) struct HalfClosed {
    stream: Arc<TcpStream>,
    activity: Activity,
    /// Timer of the next check for a disconnect and its pause, set once the input has ended.
    look: Option<(Pin<Box<Sleep>>, Duration)>,
    /// True once the input has ended.
    has_ended: Arc<AtomicBool>,
}

impl HalfClosed {
    pub(crate) fn new(stream: TcpStream, activity: Activity) -> Self {
        HalfClosed {
            stream: Arc::new(stream),
            activity,
            look: None,
            has_ended: Arc::default(),
        }
    }

    /// Returns a future that completes when the client has left although the HTTP layer does not read.
    pub(crate) fn client_left(&self) -> impl Future<Output = io::Error> + Send + use<> {
        client_left(self.stream.clone(), self.activity.clone(), self.has_ended.clone())
    }
}

/// Completes when the client has left and its request is not answered yet. Does not check a connection whose end of input was
/// read: [`HalfClosed`] does.
async fn client_left(stream: Arc<TcpStream>, activity: Activity, has_ended: Arc<AtomicBool>) -> io::Error {
    let mut pause = CONNECTED_LOOK;
    loop {
        sleep(pause).await;
        // The input may have ended after bytes that are not read yet.
        let ready = stream.ready(Interest::READABLE).now_or_never();
        let is_closed = ready.is_some_and(|ready| ready.is_ok_and(|ready| ready.is_read_closed()));
        if !is_closed || has_ended.load(Ordering::Relaxed) || !activity.has_request() {
            pause = CONNECTED_LOOK;
            continue;
        }
        if let Err(error) = probe(&stream, &activity) {
            return error;
        }
        if pause >= LONGEST_HTTP10_LOOK && activity.cannot_probe() {
            return io::ErrorKind::ConnectionAborted.into();
        }
        // The first probe of a client that has left succeeds, and its system answers that the connection is gone.
        pause = if pause == CONNECTED_LOOK {
            FIRST_LOOK
        } else {
            (pause * 2).min(LAST_LOOK)
        };
    }
}

/// Sends an interim response if the client understands it.
///
/// # Errors
/// The client has left.
fn probe(stream: &TcpStream, activity: &Activity) -> io::Result<()> {
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    if activity.may_probe()
        // A full send buffer means that the client is there, but reads nothing.
        && let Err(error) = stream.try_write(PROBE)
        && error.kind() != io::ErrorKind::WouldBlock
    {
        return Err(error);
    }
    Ok(())
}

impl AsyncRead for HalfClosed {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if let Some((sleep, _)) = &mut this.look {
                ready!(sleep.as_mut().poll(cx));
            }
            let before = buf.filled().len();
            ready!(poll_read(&this.stream, cx, buf))?;
            let has_ended = buf.filled().len() == before && buf.remaining() > 0;
            let has_looked = |longest| this.look.as_ref().is_some_and(|(_, pause)| *pause >= longest);
            let is_waiting = this.activity.has_request()
                // A request whose body is complete is noted as such at once. After some time, the rest of a body is missing.
                && !(this.activity.is_reading() && has_looked(LONGEST_BODY_LOOK))
                && !(this.activity.cannot_probe() && has_looked(LONGEST_HTTP10_LOOK));
            if !has_ended || !is_waiting {
                return Poll::Ready(Ok(()));
            }
            this.has_ended.store(true, Ordering::Relaxed);
            probe(&this.stream, &this.activity)?;
            let pause = match &this.look {
                None => FIRST_LOOK,
                Some((_, pause)) => (*pause * 2).min(LAST_LOOK),
            };
            this.look = Some((Box::pin(sleep(pause)), pause));
        }
    }
}

/// Reads like `AsyncRead` of a stream that is not shared.
fn poll_read(stream: &TcpStream, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
    loop {
        ready!(stream.poll_read_ready(cx))?;
        match stream.try_read(buf.initialize_unfilled()) {
            Ok(read) => {
                buf.advance(read);
                return Poll::Ready(Ok(()));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
}

impl HalfClosed {
    /// Writes like `AsyncWrite` of a stream that is not shared, and records the pace of the client.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        send: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            let ready = self.stream.poll_write_ready(cx)?;
            if ready.is_pending() {
                self.activity.pace().wait(Instant::now());
                return Poll::Pending;
            }
            match send(&self.stream) {
                Ok(sent) => {
                    self.activity.pace().send(sent);
                    return Poll::Ready(Ok(sent));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for HalfClosed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_send(cx, |stream| stream.try_write(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Called when the HTTP layer holds no more bytes.
        self.activity.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.stream).shutdown(Shutdown::Write))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(cx, |stream| stream.try_write_vectored(bytes))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
