//! Bodies of requests: their size, their time, and what is left of them when a request is refused.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use super::Bounds;
use super::error::ApiError;
use crate::connections::Activity;

/// Maximum time for a whole body, as an extension of requests.
#[derive(Clone, Copy)]
struct BodyTimeout(Duration);

/// Refuses a body whose announced length is too large.
pub(super) async fn check_announced(
    State(bounds): State<Bounds>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
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
    let (parts, body) = request.into_parts();
    let body = Shared(Arc::new(Mutex::new(Incoming {
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
    // The response is sent meanwhile; the connection ends after both.
    tokio::spawn(tokio::time::timeout(bounds.body_timeout, drop_rest));
    response
}

/// A body, and what was read of it.
struct Incoming {
    body: Body,
    is_begun: bool,
    has_ended: bool,
}

/// Body that a handler reads, and [`receive_rest`] after it.
#[derive(Clone)]
struct Shared(Arc<Mutex<Incoming>>);

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Incoming> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpBody for Shared {
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

/// The bytes of a JSON body. Web pages may send bodies of other types to any address without permission.
pub(super) struct JsonBody(pub(super) Vec<u8>);

impl<S: Send + Sync> FromRequest<S> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, state: &S) -> Result<Self, ApiError> {
        let kind = request
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok());
        if !kind.is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with("application/json")) {
            let message = "send JSON with the header `Content-Type: application/json`";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let activity = request.extensions().get::<Activity>().cloned();
        let limit = request
            .extensions()
            .get::<BodyTimeout>()
            .map_or(Duration::MAX, |limit| limit.0);
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
            Err(rejection) => Err(ApiError::new(rejection.status(), rejection.body_text())),
        }
    }
}
