//! Detection of clients that close their sending side while they wait for the answer (half-closed connections).
//!
//! TCP reports the same end of input for a client that has left and for one that only sends no more. A client that has left
//! refuses the data that it receives. An interim response (`100 Continue`, RFC 9110, section 15.2.1) before each check
//! therefore tells them apart. HTTP/1.0 has no interim responses: there, the keep-alive probes of TCP detect a client that has
//! left, within about a minute.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::connections::Activity;

const PROBE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// First and maximum pause between two checks; each pause is twice the previous one.
const FIRST_LOOK: Duration = Duration::from_millis(50);
const LAST_LOOK: Duration = Duration::from_secs(2);
/// Length of the pause after which an incomplete body counts as cut off. All pauses up to it add up to about twice its
/// length.
const LONGEST_BODY_LOOK: Duration = Duration::from_millis(400);

/// TCP stream that hides the end of its input while a request is answered and the client is still connected.
pub(crate) struct HalfClosed {
    stream: TcpStream,
    activity: Activity,
    /// Timer of the next check for a disconnect and its pause, set once the input has ended.
    look: Option<(Pin<Box<Sleep>>, Duration)>,
}

impl HalfClosed {
    pub(crate) fn new(stream: TcpStream, activity: Activity) -> Self {
        HalfClosed {
            stream,
            activity,
            look: None,
        }
    }
}

impl AsyncRead for HalfClosed {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if let Some((sleep, _)) = &mut this.look {
                ready!(sleep.as_mut().poll(cx));
            }
            let before = buf.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
            let has_ended = buf.filled().len() == before && buf.remaining() > 0;
            let is_waiting = this.activity.has_request()
                // A request whose body is complete is noted as such at once. After some time, the rest of a body is missing.
                && !(this.activity.is_reading() && this.look.as_ref().is_some_and(|(_, pause)| *pause >= LONGEST_BODY_LOOK));
            if !has_ended || !is_waiting {
                return Poll::Ready(Ok(()));
            }
            if let Some(error) = this.stream.take_error()? {
                return Poll::Ready(Err(error));
            }
            if this.activity.may_probe()
                // A full send buffer means that the client is there, but reads nothing.
                && let Err(error) = this.stream.try_write(PROBE)
                && error.kind() != io::ErrorKind::WouldBlock
            {
                return Poll::Ready(Err(error));
            }
            let pause = match &this.look {
                None => FIRST_LOOK,
                Some((_, pause)) => (*pause * 2).min(LAST_LOOK),
            };
            this.look = Some((Box::pin(sleep(pause)), pause));
        }
    }
}

impl AsyncWrite for HalfClosed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Called when the HTTP layer holds no more bytes.
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.activity.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
