//! The state that requests to all kinds of models share.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use super::error::ApiError;
use super::generation::too_much;
use super::{answer, fields, request};
use crate::metrics::Metrics;
use crate::preparation::{NotPrepared, Preparation};
use crate::steps::Steps;
use crate::unsent::{RequestBytes, UnsentBytes};

/// State that requests to all kinds of models share.
pub(crate) struct Site {
    pub(crate) steps: Box<dyn Steps>,
    pub(crate) metrics: Metrics,
    /// Name of the model.
    pub(crate) model: String,
    /// Folder or file of the model.
    pub(crate) path: PathBuf,
    /// True to refuse requests that name another model.
    pub(crate) strict_model: bool,
    /// True if only this machine can send requests and no key is needed. The `Host` header is then checked, to refuse
    /// requests of web pages.
    pub(crate) local_only: bool,
    /// Start time of the server, in seconds since 1970.
    pub(crate) started: u64,
    /// Maximum number of tokens of a sequence.
    pub(crate) context: usize,
    pub(crate) api_key: Option<String>,
    pub(crate) request_timeout: Duration,
    pub(crate) preparation: Preparation,
    pub(crate) unsent: UnsentBytes,
}

/// Limits of request bodies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Maximum number of bytes of a body.
    pub(crate) body_bytes: usize,
    /// Maximum time to receive a whole body, and maximum time between two parts of it.
    pub(crate) body_timeout: Duration,
    pub(crate) part_timeout: Duration,
}

impl Site {
    /// Returns an error message with the name of the model instead of its path, to keep the path private.
    pub(crate) fn without_paths(&self, error: &meganeura_core::Error) -> String {
        error.to_string().replace(&*self.path.to_string_lossy(), &self.model)
    }

    /// Checks the model name and the unread fields of a request to an encoder.
    pub(crate) fn check_encoder_request(
        &self,
        model: Option<&str>,
        others: &serde_json::Map<String, Value>,
    ) -> Result<(), ApiError> {
        fields::check(others)?;
        model.map_or(Ok(()), |model| {
            request::check_name(model, &self.model, self.strict_model)
        })
    }

    /// Returns the deadline of a request that begins now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.request_timeout
    }

    /// Runs `work`, which parses and tokenizes a body of `bytes` bytes, on another thread.
    pub(crate) async fn prepare<T: Send + 'static>(
        &self,
        deadline: Instant,
        bytes: usize,
        work: impl Fn() -> Result<T, ApiError> + Send + Sync + 'static,
    ) -> Result<T, ApiError> {
        let prepared = self.preparation.text(deadline, bytes, work).await;
        prepared.map_err(|e| self.not_prepared(e))?
    }

    /// Writes a complete answer, whose value `make` returns, on another thread. Its bytes count as unsent until the client has
    /// read them. `counted` counts the memory of the request until then, including about `bytes` bytes of text.
    ///
    /// # Errors
    /// A limit that the text exceeds; a panic of `make`.
    pub(crate) async fn answer<T: Serialize>(
        &self,
        counted: Arc<RequestBytes>,
        bytes: usize,
        make: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Response, ApiError> {
        counted.add(bytes).map_err(too_much)?;
        let internal = |message: String| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message);
        let written = tokio::task::spawn_blocking(move || serde_json::to_string(&make())).await;
        let text = written
            .map_err(|e| internal(e.to_string()))?
            .map_err(|e| internal(e.to_string()))?;
        Ok(answer::json(text, counted))
    }

    pub(crate) fn not_prepared(&self, error: NotPrepared) -> ApiError {
        match error {
            NotPrepared::QueueFull => {
                self.metrics.refused.inc();
                ApiError::queue_full("too many requests are waiting to be prepared; try again later")
            }
            NotPrepared::TimedOut => ApiError::timeout(self.request_timeout),
            NotPrepared::Panicked => ApiError::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the request could not be prepared: its thread panicked, see the log",
            ),
        }
    }
}

/// Returns the current time in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}
