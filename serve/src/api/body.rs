//! Request bodies: limits of size and time, and how the rest of a refused body is received.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tower_http::timeout::TimeoutError;

use super::Bounds;
use super::error::{ApiError, quoted};
use crate::connections::Activity;

/// Maximum time to receive a whole body. Requests carry it as an extension.
#[derive(Clone, Copy)]
struct BodyTimeout(Duration);

/// Refuses a body with a `Content-Length` above the limit or an unsupported encoding, and unknown `Expect` headers.
pub(super) async fn check_announced(
    State(bounds): State<Bounds>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    check_headers(request.headers())?;
    let limit = bounds.body_bytes;
    request.extensions_mut().insert(BodyTimeout(bounds.body_timeout));
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let bytes: Option<u64> = announced.and_then(|text| text.to_str().ok()?.parse().ok());
    match bytes.filter(|&bytes| bytes > limit as u64) {
        Some(bytes) => {
            let message = format!("expected a body of at most {limit} bytes, found {bytes}");
            Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message))
        }
        None => Ok(next.run(request).await),
    }
}

/// Refuses unsupported body encodings and `Expect` headers (RFC 9110, sections 8.4 and 10.1.1, and RFC 9112, section
/// 6.1).
fn check_headers(headers: &HeaderMap) -> Result<(), ApiError> {
    let supported = [
        (header::TRANSFER_ENCODING, "chunked", StatusCode::NOT_IMPLEMENTED),
        (header::CONTENT_ENCODING, "identity", StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (header::EXPECT, "100-continue", StatusCode::EXPECTATION_FAILED),
    ];
    for name in [
        header::CONTENT_TYPE,
        header::TRANSFER_ENCODING,
        header::CONTENT_ENCODING,
    ] {
        let count = headers.get_all(&name).iter().count();
        if count > 1 {
            let message = format!("expected one header {name}, found {count}");
            return Err(ApiError::new(StatusCode::BAD_REQUEST, message));
        }
    }
    for (name, value, status) in supported {
        let other = headers
            .get_all(&name)
            .iter()
            .find(|found| !found.as_bytes().eq_ignore_ascii_case(value.as_bytes()));
        if let Some(other) = other {
            let found = quoted(&String::from_utf8_lossy(other.as_bytes()));
            return Err(ApiError::new(
                status,
                format!("expected the header {name} to be {value}, found {found}"),
            ));
        }
    }
    Ok(())
}

/// Receives and drops the rest of a body whose request is refused.
///
/// If the server closed the connection while the client sends, TCP would discard the response, and the client would report a
/// broken connection (RFC 9112, section 9.6). At most 16 MiB are dropped, within the time limit of bodies. A client that waits
/// for permission to send (`Expect: 100-continue`) is refused at once.
pub(super) async fn receive_rest(State(bounds): State<Bounds>, request: Request, next: Next) -> Response {
    const MAX_BYTES: usize = 16 << 20;
    /// Maximum time between two parts: a client that pauses has probably read the response.
    const PAUSE: Duration = Duration::from_secs(2);
    let waits = request.headers().contains_key(header::EXPECT);
    let activity = request.extensions().get::<Activity>().cloned();
    let (parts, body) = request.into_parts();
    let body = SharedBody(Arc::new(Mutex::new(IncomingBody {
        body,
        is_begun: false,
        has_ended: false,
    })));
    let response = next.run(Request::from_parts(parts, Body::new(body.clone()))).await;
    let (is_begun, has_ended) = {
        let incoming = body.lock();
        (incoming.is_begun, incoming.has_ended || incoming.body.is_end_stream())
    };
    if has_ended || (waits && !is_begun) {
        return response;
    }
    let drop_rest = async {
        let mut body = Body::new(body);
        let mut bytes = 0;
        while bytes < MAX_BYTES
            && let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx))
            && let Ok(Some(Ok(frame))) = tokio::time::timeout(PAUSE, frame).await
        {
            bytes += frame.data_ref().map_or(0, Bytes::len);
        }
    };
    let stops = async {
        match activity {
            Some(activity) => activity.server_stops().await,
            None => std::future::pending().await,
        }
    };
    // The response is sent meanwhile; the connection ends after both. The end of the server waits for no refused body.
    tokio::spawn(tokio::time::timeout(bounds.body_timeout, async move {
        tokio::select! {
            () = drop_rest => {}
            () = stops => {}
        }
    }));
    response
}

/// Body of a request, and how far it was read.
struct IncomingBody {
    body: Body,
    is_begun: bool,
    has_ended: bool,
}

/// Body that first a handler reads, and then [`receive_rest`].
#[derive(Clone)]
struct SharedBody(Arc<Mutex<IncomingBody>>);

impl SharedBody {
    fn lock(&self) -> std::sync::MutexGuard<'_, IncomingBody> {
        crate::lock::lock(&self.0)
    }
}

impl HttpBody for SharedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut incoming = self.lock();
        incoming.is_begun = true;
        let polled = Pin::new(&mut incoming.body).poll_frame(cx);
        // Nothing follows an error.
        incoming.has_ended |= matches!(polled, Poll::Ready(None | Some(Err(_))));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.lock().body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.lock().body.size_hint()
    }
}

/// Body whose parts are gathered to parts of [`GatheredBody::PART`] bytes. A part of one byte takes the memory of about 20.
struct GatheredBody {
    body: Body,
    buffer: Vec<u8>,
    has_ended: bool,
}

impl GatheredBody {
    const PART: usize = 16 << 10;
}

impl HttpBody for GatheredBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        while !self.has_ended && self.buffer.len() < Self::PART {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(Some(Ok(frame))) => {
                    // Trailers are ignored.
                    let data = frame.into_data().unwrap_or_default();
                    if self.buffer.is_empty() && data.len() >= Self::PART {
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                    self.buffer.extend_from_slice(&data);
                }
                Poll::Ready(None) => self.has_ended = true,
            }
        }
        let part = std::mem::take(&mut self.buffer);
        Poll::Ready((!part.is_empty()).then(|| Ok(Frame::data(part.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.buffer.is_empty() && (self.has_ended || self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        // The length of the rest is not that of the body after a part is in the buffer.
        if self.buffer.is_empty() {
            self.body.size_hint()
        } else {
            SizeHint::default()
        }
    }
}

/// The bytes of a JSON body. Web pages may send bodies of other types to any address without permission.
pub(super) struct JsonBody(pub(super) Vec<u8>);

impl<S: Send + Sync> FromRequest<S> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, state: &S) -> Result<Self, ApiError> {
        let kind = request
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        let essence = |kind: &str| kind.split(';').next().map(|kind| kind.trim().to_ascii_lowercase());
        if kind.and_then(essence).as_deref() != Some("application/json") {
            let message = "send JSON with the header `Content-Type: application/json`";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let activity = request.extensions().get::<Activity>().cloned();
        let limit = request
            .extensions()
            .get::<BodyTimeout>()
            .map_or(Duration::MAX, |limit| limit.0);
        let request = request.map(|body| {
            Body::new(GatheredBody {
                body,
                buffer: Vec::new(),
                has_ended: false,
            })
        });
        let bytes = Bytes::from_request(request, state);
        let Ok(bytes) = tokio::time::timeout(limit, bytes).await else {
            let message = format!("expected the whole body within {} s", limit.as_secs());
            return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, message));
        };
        match bytes {
            Ok(bytes) => {
                if let Some(activity) = activity {
                    activity.start_work();
                }
                Ok(JsonBody(bytes.into()))
            }
            Err(rejection) if is_timeout(&rejection) => Err(ApiError::new(
                StatusCode::REQUEST_TIMEOUT,
                "the client paused for too long while it sent the body",
            )),
            Err(rejection) => Err(ApiError::new(rejection.status(), rejection.body_text())),
        }
    }
}

/// Returns true if the cause of an error is the maximum time between two parts of a body.
fn is_timeout(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source()).any(|error| error.is::<TimeoutError>())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Body of this number of parts of one byte.
    struct Bits(usize);

    impl HttpBody for Bits {
        type Data = Bytes;
        type Error = axum::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
            let Some(left) = self.0.checked_sub(1) else {
                return Poll::Ready(None);
            };
            self.0 = left;
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"x")))))
        }
    }

    #[tokio::test]
    async fn small_parts_are_gathered() {
        for (bytes, parts) in [(0, 0), (1, 1), (GatheredBody::PART, 1), (100_000, 7)] {
            let mut body = GatheredBody {
                body: Body::new(Bits(bytes)),
                buffer: Vec::new(),
                has_ended: false,
            };
            let mut found = Vec::new();
            while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                found.push(frame.expect("no error").into_data().expect("data").len());
            }
            assert_eq!((found.iter().sum::<usize>(), found.len()), (bytes, parts));
        }
    }
}
