//! Errors in the format of OpenAI's API.

use std::borrow::Cow;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Error that a client gets instead of a result.
#[derive(Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    message: String,
    /// Name of the wrong field.
    param: Option<Cow<'static, str>>,
    code: Option<&'static str>,
}

/// Maximum number of characters of a message, which may quote a value of the request.
const MAX_CHARS: usize = 1_000;

/// A value of a request, as messages quote it: without most of a long one.
pub(crate) fn quoted(value: &str) -> String {
    const MAX_CHARS: usize = 60;
    match value.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("'{}...'", &value[..end]),
        None => format!("'{value}'"),
    }
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let mut message: String = message.into();
        if let Some((end, _)) = message.char_indices().nth(MAX_CHARS) {
            message.truncate(end);
            message += "...";
        }
        ApiError {
            status,
            message,
            param: None,
            code: None,
        }
    }

    /// A request that cannot be answered as it is.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }

    /// A wrong value of a field.
    pub(crate) fn field(name: &'static str, message: impl Into<String>) -> Self {
        ApiError::bad(message).of(name)
    }

    pub(crate) fn of(self, param: &'static str) -> Self {
        self.of_any(param)
    }

    pub(crate) fn of_any(mut self, param: impl Into<Cow<'static, str>>) -> Self {
        self.param = Some(param.into());
        self
    }

    pub(crate) fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// An error of the library that the request caused.
    pub(crate) fn of_request(error: &meganeura_core::Error) -> Self {
        ApiError::bad(error.to_string())
    }

    /// A full queue.
    pub(crate) fn queue_full(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, message).code("queue_full")
    }

    /// The time of a request is over.
    pub(crate) fn timeout(limit: std::time::Duration) -> Self {
        let message = format!("the request took longer than {} s", limit.as_secs());
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, message).code("timeout")
    }

    pub(crate) fn body(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            // Seconds.
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
