//! Bodies of complete (not streamed) responses. Their bytes count as unsent memory until the client has read
//! them.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use crate::unsent::RequestBytes;

/// Maximum number of bytes that are passed to the connection at a time. The connection buffers parts only if the client
/// reads slowly.
const PART: usize = 64 << 10;

/// A JSON text that is sent part by part.
struct AnswerBody {
    left: Bytes,
    _counted: Arc<RequestBytes>,
}

/// Returns a response with a JSON text. Its bytes replace the bytes counted for the request, until they are sent.
pub(super) fn json(text: String, counted: Arc<RequestBytes>) -> Response {
    counted.set(text.len());
    let body = AnswerBody {
        left: text.into(),
        _counted: counted,
    };
    ([(header::CONTENT_TYPE, "application/json")], Body::new(body)).into_response()
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left.is_empty() {
            return Poll::Ready(None);
        }
        let len = self.left.len().min(PART);
        Poll::Ready(Some(Ok(Frame::data(self.left.split_to(len)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unsent::UnsentBytes;

    #[tokio::test]
    async fn an_answer_counts_until_its_last_part_was_taken() {
        let all = UnsentBytes::new(1 << 20);
        let counted = all.of_request();
        counted.add(1000).expect("it fits");
        let text = "ab".repeat(PART);
        let response = json(text.clone(), counted);
        assert_eq!(all.held(), text.len());
        let mut body = response.into_body();
        assert_eq!(body.size_hint().exact(), Some(text.len() as u64));
        let mut found = Vec::new();
        while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let part = frame.expect("a frame").into_data().expect("data");
            assert!(part.len() <= PART && all.held() == text.len());
            found.extend_from_slice(&part);
        }
        assert_eq!(found, text.as_bytes());
        drop(body);
        assert_eq!(all.held(), 0);
    }
}
