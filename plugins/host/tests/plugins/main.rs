//! Plugins that are built and loaded.
#![cfg(unix)]

mod common;
mod golden;
mod hostile;
mod loops;
mod panics;
mod trial;
