//! Plugins that are built and loaded.
#![cfg(unix)]

mod again;
mod beside;
mod common;
mod compile;
mod golden;
mod hostile;
mod loops;
mod panics;
mod trial;
