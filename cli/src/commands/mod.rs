//! Commands, with one file for each.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod conformance;
pub(crate) mod data;
pub(crate) mod devices;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod embed;
pub(crate) mod evaluation;
pub(crate) mod explain;
pub(crate) mod generate;
mod kernels;
mod language;
mod loading_bar;
pub(crate) mod models;
pub(crate) mod onnx;
pub(crate) mod ops;
mod outputs;
mod page;
mod planned;
pub(crate) mod plugins;
mod precision;
pub(crate) mod predict;
pub(crate) mod pull;
mod ranks;
mod scaling;
#[cfg(feature = "serve")]
pub(crate) mod serve;
mod slow_stage;
pub(crate) mod train;
pub(crate) mod tune;
mod workload;

use std::error::Error;
use std::process::ExitCode;

pub(crate) use outputs::check_outputs;

/// Result of a command.
pub(crate) type Outcome = Result<ExitCode, Box<dyn Error>>;
