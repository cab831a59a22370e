//! Plugins without native code: operators, rules and kernels as data.
//!
//! A plugin is a manifest, `plugin.toml` of a folder or a single file, with operators as
//! decompositions into existing ones, rules in the language of rule sets, and kernels in WGSL. None
//! of it is machine code, so its possible effects are bounded by the checks here, which run before
//! anything is registered:
//!
//! - sizes and counts of everything;
//! - every operator on random shapes: its decomposition has the declared results, and operators do
//!   not call each other in a circle;
//! - every rule on random graphs, against the definitions of the operators ([`verify_rule_set`]);
//! - every kernel: it is valid, and is rewritten so that every index stays within its buffer and
//!   every loop ends.
//!
//! A device tests each kernel against the decomposition before its first use.
//! `docs/write-a-data-plugin.md` of the repository describes the format. The crate
//! `meganeura-plugin-host` decides which files are read.
//!
//! [`verify_rule_set`]: meganeura_compiler::rewrite::verify::verify_rule_set

mod builder;
mod definition;
mod manifest;
mod operator;
mod plugin;
mod samples;
mod shader;
mod size;
mod term;

use std::fmt;

pub use manifest::Manifest;
pub use plugin::{Plugin, PluginContents};

/// Reason why a plugin is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Description of the problem, with the plugin as the subject.
    pub message: String,
}

impl Fault {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Fault {
            message: message.into(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}
