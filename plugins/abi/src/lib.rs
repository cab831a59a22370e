//! The C interface between Meganeura and backends in shared objects.
//!
//! A plugin is a shared object with two symbols: [`MANIFEST_SYMBOL`], a text that is read from the file before any of
//! its code runs, and [`ENTRY_SYMBOL`], a function that returns a table of functions ([`Plugin`]). Backends in C
//! include `meganeura_plugin.h`, which [`header`] writes from the types here; backends in Rust implement the traits of
//! [`author`] and call [`export_plugin!`]. The page `docs/plugin-abi.md` of the repository explains the rules.
//!
//! This crate depends on nothing, so a plugin in Rust is as small as one in C.

mod describe;
mod header;
mod manifest;
mod reader;
mod types;

pub mod author;
pub mod plain;
pub mod view;

pub use describe::{FieldInfo, FunctionInfo, StructDescription};
pub use header::header;
pub use manifest::is_backend_name;
pub use types::*;

#[doc(hidden)]
pub mod export;

/// The example of the page about the interface is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/plugin-abi.md")]
struct Page;
