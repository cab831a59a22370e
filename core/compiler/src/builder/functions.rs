//! Functions that build a session with one call of a [`Builder`].

use std::path::Path;

use meganeura_core::error::{Result, unwrap_report};
use meganeura_core::graph::Graph;
use meganeura_core::mode::Mode;
use meganeura_core::session::Session;

use super::{Builder, SessionConfig};
use crate::optimize::OptimizeReport;

/// Builds a training session: optimize, differentiate, optimize, compile, open the device.
///
/// # Panics
/// Panics with the text of the error if [`build`] fails.
#[must_use]
#[track_caller]
pub fn build_session(graph: &Graph) -> Session {
    unwrap_report(build(graph, SessionConfig::default())).0
}

/// Builds a session like [`build_session`], and also returns the report of the optimizer.
///
/// # Panics
/// Panics with the text of the error if [`build`] fails.
#[must_use]
#[track_caller]
pub fn build_session_with_report(graph: &Graph) -> (Session, OptimizeReport) {
    unwrap_report(build(graph, SessionConfig::default()))
}

/// Builds a forward-only session.
///
/// # Panics
/// Panics with the text of the error if [`build`] fails.
#[must_use]
#[track_caller]
pub fn build_inference_session(graph: &Graph) -> Session {
    let config = SessionConfig {
        mode: Mode::Inference,
        ..SessionConfig::default()
    };
    unwrap_report(build(graph, config)).0
}

/// Builds a training session whose plan is cached in a file: the first build compiles and saves it,
/// later ones read it and pass it directly to the device. If the file belongs to another graph,
/// program, device or setting, `cache invalidated: ...` is logged, and a new plan replaces it.
///
/// # Panics
/// Panics with the text of the error if [`build`] fails.
#[must_use]
#[track_caller]
pub fn build_session_cached(graph: &Graph, path: impl AsRef<Path>) -> Session {
    let config = SessionConfig {
        cache: Some(path.as_ref().to_owned()),
        ..SessionConfig::default()
    };
    unwrap_report(build(graph, config)).0
}

/// Builds a session from a configuration: short for [`Builder::build`] of `Builder::from(config)`.
///
/// # Errors
/// As [`Builder::build`].
pub fn build(graph: &Graph, config: SessionConfig) -> Result<(Session, OptimizeReport)> {
    Builder::from(config).build(graph)
}
