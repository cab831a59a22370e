//! Neural-network training and inference on any hardware, as a framework of plugins.
//!
//! A [`Graph`] is optimized, differentiated, optimized again and compiled to a static [`ExecutionPlan`], which a backend replays.
//! This crate is the facade: it re-exports the core, links the CPU backend, and contains the layers, models, data sets and the
//! trainer of [`nn`] and the language models of [`llm`]. In the repository, `docs/tutorial.md` leads from a new project to a
//! custom model, `docs/write-a-backend.md` from an empty folder to a backend, `docs/operators.md` lists all operators, and
//! `docs/rules.md` describes rewriting and custom fusion rules.
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
//! Builder methods never panic: [`build()`] reports a wrong call with its location in your source. The short forms such as
//! [`build_session`] and [`Session::step`] panic with the full report; each has a form that returns [`Result`].
//!
//! # Features
//!
//! All but `hub` are on by default. Without them the crate has graphs, differentiation, rewriting, plans and the CPU backend.
//!
//! | feature | adds |
//! | --- | --- |
//! | `blade` | GPUs through Vulkan and Metal |
//! | `cuda` | NVIDIA GPUs through CUDA; its libraries are loaded at run time |
//! | `nn` | [`nn`]: layers, models, data sets and the trainer |
//! | `llm` | [`llm`]: language models and embeddings; includes `nn` |
//! | `onnx` | [`onnx`]: import and export of ONNX models |
//! | `plugins` | [`plugins`]: plugins in shared objects and in folders of data |
//! | `hub` | downloads of models from the Hugging Face Hub; includes `llm` |

#[cfg(feature = "blade")]
pub use meganeura_blade as blade;
/// GPU kernels, and how they use cooperative matrices.
#[cfg(feature = "blade")]
pub use meganeura_blade as codegen;
/// Compilation of an optimized graph to a plan.
pub use meganeura_compiler::compile;
pub use meganeura_compiler::*;
pub use meganeura_core::*;
pub use meganeura_cpu as cpu;
#[cfg(feature = "cuda")]
pub use meganeura_cuda as cuda;
#[cfg(feature = "llm")]
pub use meganeura_llm as llm;
#[cfg(feature = "nn")]
pub use meganeura_nn as nn;
#[cfg(feature = "nn")]
pub use meganeura_nn::trainer::{TrainConfig, Trainer};
/// ONNX models: import, check before import, runners.
#[cfg(feature = "onnx")]
pub use meganeura_onnx as onnx;
#[cfg(feature = "plugins")]
pub use meganeura_plugin_host as plugins;
pub use meganeura_rules as fusion_rules;

/// Registry of the backends, operators and rule sets that are linked into the program.
pub mod registry {
    pub use meganeura_compiler::rewrite::{RegisteredSet, register_rule_set, rule_set_problems, rule_sets};
    pub use meganeura_core::registry::*;
}

/// Checks that the plugins linked into this crate are registered (they are, unless a linker drops them).
///
/// # Errors
/// [`Error::Plugin`] with the missing plugins.
pub fn verify_plugins() -> Result<()> {
    #[cfg(feature = "blade")]
    link_plugins!(blade)?;
    #[cfg(feature = "cuda")]
    link_plugins!(cuda)?;
    #[cfg(feature = "plugins")]
    link_plugins!(plugins)?;
    link_plugins!(cpu, fusion_rules)
}

/// Compiles and runs the programs of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Compiles and runs the programs of the guide on batches and threads.
#[cfg(all(doctest, feature = "onnx"))]
#[doc = include_str!("../docs/batches-and-threads.md")]
struct BatchesAndThreads;

/// Compiles and runs the programs of the tutorial.
#[cfg(doctest)]
#[doc = include_str!("../docs/tutorial.md")]
struct Tutorial;

/// Compiles and runs the program of the page about rules.
#[cfg(doctest)]
#[doc = include_str!("../docs/rules.md")]
struct Rules;

/// Compiles and runs the backend of the page about backends.
#[cfg(doctest)]
#[doc = include_str!("../docs/write-a-backend.md")]
struct Backends;

/// Compiles and runs the programs of the page about fusion rules.
#[cfg(doctest)]
#[doc = include_str!("../docs/write-a-fusion-rule.md")]
struct FusionRules;

/// Compiles and runs the programs of the page about data plugins.
#[cfg(doctest)]
#[doc = include_str!("../docs/write-a-data-plugin.md")]
struct DataPlugins;
