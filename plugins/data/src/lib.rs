//! Plugins without native code: operators, rules and kernels as data.
//!
//! A plugin is a manifest, `plugin.toml` of a folder or a single file, with operators that are decompositions into known
//! ones, rules in the language of rule sets, and kernels in WGSL. Nothing of it is code of the machine, so what it can do
//! is bounded by what is checked here, before anything of it is registered:
//!
//! - sizes and counts of everything;
//! - every operator on random shapes: its decomposition makes what is declared, and calls no operator in a circle;
//! - every rule on random graphs, against the definitions of the operators ([`verify_rule_set`]);
//! - every kernel: it is valid, and is rewritten so that no index leaves a buffer and no loop goes on for ever.
//!
//! A device tries each kernel against the decomposition before it uses it for the first time. `docs/write-a-data-plugin.md`
//! of the repository describes the format. Which files are read is the affair of the crate `meganeura-plugin-host`.
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
pub use plugin::{Brings, Plugin};

/// Why a plugin is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong, with the plugin as the subject.
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
