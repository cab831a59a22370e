//! Neural-network training and inference on any hardware, as a framework of plugins.
//!
//! A [`Graph`] is optimized, differentiated, optimized again and compiled to a static [`ExecutionPlan`],
//! which a backend replays. This crate is the facade: it re-exports the core, links the CPU backend, and
//! carries the layers, models, data sets and the trainer of [`nn`] and the language models of [`llm`]. `docs/tutorial.md` in the repository goes from a
//! new project to a model of your own, `docs/write-a-backend.md` from an empty folder to a backend, `docs/operators.md` lists all operators, `docs/rules.md` is about rewriting and
//! fusion rules of your own.
//!
//! # A network from scratch
//!
//! ```
//! use meganeura::{Graph, build_session};
//!
//! let mut g = Graph::new();
//! let x = g.input("x", &[4, 784]);
//! let w1 = g.parameter("w1", &[784, 128]);
//! let b1 = g.parameter("b1", &[128]);
//! let h = g.matmul(x, w1);
//! let h = g.bias_add(h, b1);
//! let a1 = g.relu(h);
//! let w2 = g.parameter("w2", &[128, 10]);
//! let b2 = g.parameter("b2", &[10]);
//! let h = g.matmul(a1, w2);
//! let logits = g.bias_add(h, b2);
//! let labels = g.input("labels", &[4, 10]); // class probabilities or one-hot rows
//! let loss = g.cross_entropy_loss(logits, labels); // mean over rows, scalar
//! g.set_outputs(vec![loss]); // the first output is the loss when training
//!
//! let mut session = build_session(&g); // optimize -> autodiff -> optimize -> compile -> device
//! # // Four different rows; any distinguishable data will do.
//! # let images: Vec<f32> = (0..4 * 784).map(|i| ((i * 7919) % 97) as f32 / 97.0).collect();
//! # let one_hot: Vec<f32> = (0..40).map(|i| if i % 10 == i / 10 { 1.0 } else { 0.0 }).collect();
//! # let small = |n: usize| (0..n).map(|i| ((i * 31 % 17) as f32 - 8.0) / 100.0).collect::<Vec<_>>();
//! session.set_parameter("w1", &small(784 * 128));
//! session.set_parameter("w2", &small(128 * 10));
//! session.set_input("x", &images);
//! session.set_input("labels", &one_hot);
//! session.set_learning_rate(0.1); // an SGD update is part of every following step
//! session.step();
//! let first = session.read_loss();
//! for _ in 0..50 {
//!     session.step();
//! }
//! assert!(session.read_loss() < 0.5 * first);
//! ```
//!
//! # Errors
//!
//! Builder methods never panic: a wrong call is reported by [`build()`] with the place in your source. The
//! short forms such as [`build_session`] and [`Session::step`] panic with the full report; each has a form
//! that returns [`Result`].

#[cfg(feature = "blade")]
pub use meganeura_blade as blade;
/// Kernels of GPUs, and how cooperative matrices are used.
#[cfg(feature = "blade")]
pub use meganeura_blade as codegen;
/// From an optimized graph to a plan.
pub use meganeura_compiler::compile;
pub use meganeura_compiler::*;
pub use meganeura_core::*;
pub use meganeura_cpu as cpu;
#[cfg(feature = "cuda")]
pub use meganeura_cuda as cuda;
pub use meganeura_llm as llm;
pub use meganeura_nn as nn;
pub use meganeura_nn::trainer::{TrainConfig, Trainer};
/// ONNX models: import, preflight, runners.
pub use meganeura_onnx as onnx;
pub use meganeura_plugin_host as plugins;
pub use meganeura_rules as fusion_rules;

/// Backends, operators and rule sets that are linked into the program.
pub mod registry {
    pub use meganeura_compiler::rewrite::{RegisteredSet, register_rule_set, rule_set_problems, rule_sets};
    pub use meganeura_core::registry::*;
}

/// Checks that the plugins linked into this crate are registered (they are, unless a linker drops them).
///
/// # Errors
/// [`Error::Plugin`] naming what is absent.
pub fn verify_plugins() -> Result<()> {
    #[cfg(feature = "blade")]
    link_plugins!(blade)?;
    #[cfg(feature = "cuda")]
    link_plugins!(cuda)?;
    link_plugins!(cpu, fusion_rules, plugins)
}

/// The README's programs are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// So are those of the tutorial.
#[cfg(doctest)]
#[doc = include_str!("../docs/tutorial.md")]
struct Tutorial;

/// And the one of the page about rules.
#[cfg(doctest)]
#[doc = include_str!("../docs/rules.md")]
struct Rules;

/// And the backend of the page about those.
#[cfg(doctest)]
#[doc = include_str!("../docs/write-a-backend.md")]
struct Backends;

/// And those of the pages about rules and plugins.
#[cfg(doctest)]
#[doc = include_str!("../docs/write-a-fusion-rule.md")]
struct FusionRules;

/// See above.
#[cfg(doctest)]
#[doc = include_str!("../docs/write-a-data-plugin.md")]
struct DataPlugins;
