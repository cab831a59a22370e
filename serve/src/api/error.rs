//! Errors in the format of OpenAI's API.

use std::borrow::Cow;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Error response.
#[derive(Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    message: String,
    /// Name of the request field that is wrong.
    param: Option<Cow<'static, str>>,
    code: Option<&'static str>,
}

/// Maximum number of characters of an error message, as messages can quote long values of the request.
const MAX_CHARS: usize = 1_000;

/// Returns a value of the request in quotes for an error message, shortened to 60 characters.
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

    /// Returns an error with the status 400 (bad request).
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }

    /// Returns the error for a wrong value of a request field.
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

    /// Converts an error of the library: status 503 if the server lacks memory, otherwise 400.
    pub(crate) fn of_request(error: &meganeura_core::Error) -> Self {
        let status = match error {
            meganeura_core::Error::HostMemory { .. } | meganeura_core::Error::OutOfMemory { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            _ => StatusCode::BAD_REQUEST,
        };
        ApiError::new(status, error.to_string())
    }

    /// Returns the error for a full queue (status 429).
    pub(crate) fn queue_full(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, message).code("queue_full")
    }

    /// Returns the error for a request that exceeds its maximum time (status 504).
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
