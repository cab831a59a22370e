//! Backends, operators and rule sets that are linked into the program.
//!
//! Crates register themselves through `inventory`; `link_plugins!` of the crate `meganeura-compiler` names the crates
//! so that the linker keeps them, and checks that each is linked. Nothing depends on the linker's order, because
//! everything is sorted by name.

use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use crate::backend::Backend;
use crate::config::Config;
use crate::error::{Error, Result};
pub use crate::ops::registered::{OpEntry, linked_set_of, op, op_problems, ops, register_ops};
pub use crate::rule_set::{RuleSetEntry, linked_rule_sets};

/// A linked crate with backends, operators or rule sets. Register it with
/// [`register_plugin!`](crate::register_plugin).
#[derive(Debug)]
pub struct PluginManifest {
    /// Name of the crate.
    pub name: &'static str,
    /// Version of the crate.
    pub version: &'static str,
    /// Names of the crate's backends.
    pub backends: &'static [&'static str],
    /// Names of the crate's operators.
    pub ops: &'static [&'static str],
    /// Namespaces of the crate's rule sets.
    pub rule_sets: &'static [&'static str],
}

/// Entry of the registry of plugins.
pub struct PluginEntry(pub &'static PluginManifest);
/// Entry of the registry of backends.
pub struct BackendEntry(pub fn() -> Arc<dyn Backend>);
/// Entry of the registry of loaders, which find further backends at run time according to the configuration. A loader
/// is called whenever devices are listed, and registers the new backends that it finds.
pub struct LoaderEntry(pub fn(&Config));

inventory::collect!(LoaderEntry);
inventory::collect!(PluginEntry);
inventory::collect!(BackendEntry);

#[doc(hidden)]
pub use inventory;

/// Registers a plugin crate: `register_plugin!(static PLUGIN = PluginManifest { .. });`. The static
/// must be
/// public and named `PLUGIN` for `link_plugins!` to find it.
#[macro_export]
macro_rules! register_plugin {
    ($manifest:expr) => {
        /// Manifest of this crate.
        pub static PLUGIN: $crate::registry::PluginManifest = $manifest;
        $crate::registry::inventory::submit! { $crate::registry::PluginEntry(&PLUGIN) }
    };
}

/// Registers a backend: `register_backend!(|| Arc::new(MyBackend::default()));`
#[macro_export]
macro_rules! register_backend {
    ($make:expr) => {
        $crate::registry::inventory::submit! { $crate::registry::BackendEntry($make) }
    };
}

/// Registers an operator: `register_op!(MyOp);` where `MyOp` is a unit struct that implements
/// `Operator`.
#[macro_export]
macro_rules! register_op {
    ($op:expr) => {
        $crate::registry::inventory::submit! {
            $crate::registry::OpEntry($crate::ops::OpRef::new(&$op))
        }
    };
}

/// Registers a rule set with its operators:
/// `register_rule_set!(|| RuleSet::new("mine", 1, include_str!("mine.egg")).with_ops(&[..]));`
#[macro_export]
macro_rules! register_rule_set {
    ($make:expr) => {
        $crate::registry::inventory::submit! { $crate::registry::RuleSetEntry($make) }
    };
}

/// A backend of this release, linked or not.
pub struct KnownBackend {
    /// Name as selectors use it.
    pub name: &'static str,
    /// Instructions for making the backend available.
    pub how: &'static str,
}

/// Backends that users may request by name, linked or not.
pub const KNOWN_BACKENDS: &[KnownBackend] = &[
    KnownBackend {
        name: "cpu",
        how: "link the crate meganeura-cpu",
    },
    KnownBackend {
        name: "blade",
        how: "this build has no Vulkan and Metal backend",
    },
    KnownBackend {
        name: "cuda",
        how: "this build has no backend for NVIDIA GPUs",
    },
];

struct Registry {
    backends: Vec<Arc<dyn Backend>>,
    problems: Vec<Error>,
}

fn global() -> &'static RwLock<Registry> {
    static REGISTRY: OnceLock<RwLock<Registry>> = OnceLock::new();
    REGISTRY.get_or_init(|| {
        let mut registry = Registry {
            backends: Vec::new(),
            problems: Vec::new(),
        };
        for entry in inventory::iter::<BackendEntry> {
            if let Err(problem) = registry.add((entry.0)()) {
                log::error!("{problem}");
                registry.problems.push(problem);
            }
        }
        RwLock::new(registry)
    })
}

impl Registry {
    fn add(&mut self, backend: Arc<dyn Backend>) -> Result<()> {
        let info = backend.info();
        let plugin = |message: &str, remedy: &str| Error::Plugin {
            plugin: info.name.clone(),
            message: message.to_owned(),
            remedy: remedy.to_owned(),
        };
        let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        if info.name.is_empty() || !info.name.chars().all(valid) || info.name == "auto" {
            return Err(plugin(
                "the backend's name cannot be used in a selector",
                "use lower-case letters, digits, '-' and '_', and not 'auto'",
            ));
        }
        if self.backends.iter().any(|b| b.info().name == info.name) {
            return Err(plugin(
                &format!("a second backend of that name comes from {}", info.origin),
                "link only one of them",
            ));
        }
        self.backends.push(backend);
        self.backends.sort_by_key(|b| b.info().name);
        Ok(())
    }
}

/// Returns all registered backends, sorted by name.
pub fn backends() -> Vec<Arc<dyn Backend>> {
    global()
        .read()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .backends
        .clone()
}

/// Registers a backend at run time.
///
/// # Errors
/// [`Error::Plugin`] when its name is taken or unusable.
pub fn register_backend(backend: Arc<dyn Backend>) -> Result<()> {
    global()
        .write()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .add(backend)
}

/// Calls all loaders, which load the backends and plugins that the configuration names, unless they are loaded already.
pub fn load_backends(config: &Config) {
    for loader in inventory::iter::<LoaderEntry> {
        (loader.0)(config);
    }
}

/// Stores a problem, such as a rejected plugin, for [`problems`].
pub fn report_problem(problem: Error) {
    let mut registry = global().write().unwrap_or_else(PoisonError::into_inner);
    registry.problems.push(problem);
}

/// Removes a reported problem, such as a rejected plugin that was loaded later.
pub fn forget_problem(problem: &Error) {
    let mut registry = global().write().unwrap_or_else(PoisonError::into_inner);
    let text = problem.to_string();
    registry.problems.retain(|known| known.to_string() != text);
}

/// Returns errors of registering backends and third-party kernels, and of rejected plugins.
pub fn problems() -> Vec<Error> {
    let mut problems = {
        let registry = global().read().unwrap_or_else(PoisonError::into_inner);
        registry.problems.clone()
    };
    problems.extend(backends().iter().flat_map(|b| b.problems()));
    problems
}

/// Returns the manifests of all linked plugins, by name.
pub fn plugins() -> Vec<&'static PluginManifest> {
    let mut plugins: Vec<_> = inventory::iter::<PluginEntry>.into_iter().map(|p| p.0).collect();
    plugins.sort_by_key(|p| p.name);
    plugins
}
