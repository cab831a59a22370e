//! Backends, operators and rule sets that are linked into the program.
//!
//! Crates announce themselves through `inventory`; [`link_plugins!`](crate::link_plugins) names the crates
//! so that the linker keeps them, and checks that each is really there. Order never depends on the linker:
//! everything is sorted by name.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, RwLock};

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::ops::{OpRef, builtin};

/// A linked crate that brings backends, operators or rule sets. Announce it with
/// [`register_plugin!`](crate::register_plugin).
#[derive(Debug)]
pub struct PluginManifest {
    /// Crate name.
    pub name: &'static str,
    /// Crate version.
    pub version: &'static str,
    /// Names of its backends.
    pub backends: &'static [&'static str],
    /// Names of its operators.
    pub ops: &'static [&'static str],
}

/// Entry of the registry of plugins.
pub struct PluginEntry(pub &'static PluginManifest);
/// Entry of the registry of backends.
pub struct BackendEntry(pub fn() -> Arc<dyn Backend>);
/// Entry of the registry of operators.
pub struct OpEntry(pub OpRef);

inventory::collect!(PluginEntry);
inventory::collect!(BackendEntry);
inventory::collect!(OpEntry);

#[doc(hidden)]
pub use inventory;

/// Announces a plugin crate: `register_plugin!(static PLUGIN = PluginManifest { .. });`. The static must be
/// public and named `PLUGIN` for [`link_plugins!`](crate::link_plugins) to find it.
#[macro_export]
macro_rules! register_plugin {
    ($manifest:expr) => {
        /// What this crate brings.
        pub static PLUGIN: $crate::registry::PluginManifest = $manifest;
        $crate::registry::inventory::submit! { $crate::registry::PluginEntry(&PLUGIN) }
    };
}

/// Announces a backend: `register_backend!(|| Arc::new(MyBackend::default()));`
#[macro_export]
macro_rules! register_backend {
    ($make:expr) => {
        $crate::registry::inventory::submit! { $crate::registry::BackendEntry($make) }
    };
}

/// Announces an operator: `register_op!(MyOp);` where `MyOp` is a unit struct that implements `Operator`.
#[macro_export]
macro_rules! register_op {
    ($op:expr) => {
        $crate::registry::inventory::submit! {
            $crate::registry::OpEntry($crate::ops::OpRef::new(&$op))
        }
    };
}

/// Names plugin crates so that the linker keeps them, and checks that what they announce is registered:
/// `link_plugins!(my_backend, my_ops)?;`
#[macro_export]
macro_rules! link_plugins {
    ($($plugin:ident),* $(,)?) => {
        $crate::registry::verify_linked(&[$(&$plugin::PLUGIN),*])
    };
}

/// A backend that this release knows of, whether or not it is linked.
pub struct KnownBackend {
    /// Name as selectors use it.
    pub name: &'static str,
    /// How to get it.
    pub how: &'static str,
}

/// Backends that users may ask for by name.
pub const KNOWN_BACKENDS: &[KnownBackend] = &[
    KnownBackend {
        name: "cpu",
        how: "link the crate meganeura-cpu",
    },
    KnownBackend {
        name: "blade",
        how: "the Vulkan and Metal backend is not part of this build",
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

/// All registered backends, by name.
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

/// What went wrong when linked plugins were registered.
pub fn problems() -> Vec<Error> {
    global()
        .read()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .problems
        .clone()
}

/// The operators and what was wrong with some. What is linked does not change while the program runs, so this
/// is collected once.
struct OpTable {
    ops: Vec<OpRef>,
    by_name: HashMap<&'static str, OpRef>,
    problems: Vec<Error>,
}

fn op_table() -> &'static OpTable {
    static TABLE: OnceLock<OpTable> = OnceLock::new();
    TABLE.get_or_init(collect_ops)
}

/// All operators by name: this crate's and the plugins'. Of two with one name the first is kept and the
/// other reported by [`op_problems`].
pub fn ops() -> Vec<OpRef> {
    op_table().ops.clone()
}

/// Operators that were rejected because their name is taken.
pub fn op_problems() -> Vec<Error> {
    op_table().problems.clone()
}

/// The operator of that name.
pub fn op(name: &str) -> Option<OpRef> {
    op_table().by_name.get(name).copied()
}

fn collect_ops() -> OpTable {
    let mut ops = builtin();
    let mut plugins: Vec<OpRef> = inventory::iter::<OpEntry>.into_iter().map(|e| e.0).collect();
    plugins.sort_by_key(|op| op.name());
    let mut problems = Vec::new();
    for op in plugins {
        if ops.contains(&op) {
            problems.push(Error::Plugin {
                plugin: op.name().to_owned(),
                message: "an operator of that name exists already".into(),
                remedy: "give it a namespace of its own".into(),
            });
        } else {
            ops.push(op);
        }
    }
    ops.sort_by_key(|op| op.name());
    OpTable {
        by_name: ops.iter().map(|op| (op.get().name(), *op)).collect(),
        ops,
        problems,
    }
}

/// Manifests of all linked plugins, by name.
pub fn plugins() -> Vec<&'static PluginManifest> {
    let mut plugins: Vec<_> = inventory::iter::<PluginEntry>.into_iter().map(|p| p.0).collect();
    plugins.sort_by_key(|p| p.name);
    plugins
}

/// Checks that everything the plugins announce is registered: what [`link_plugins!`](crate::link_plugins)
/// expands to.
///
/// # Errors
/// [`Error::Plugin`] naming the plugin and what is absent.
pub fn verify_linked(wanted: &[&'static PluginManifest]) -> Result<()> {
    let backends: Vec<String> = backends().iter().map(|b| b.info().name).collect();
    for plugin in wanted {
        let missing = |what: String| Error::Plugin {
            plugin: plugin.name.to_owned(),
            message: format!("{what} is not registered"),
            remedy: "check that the crate is linked and its name is not taken".into(),
        };
        if let Some(b) = plugin.backends.iter().find(|b| !backends.iter().any(|n| n == *b)) {
            return Err(missing(format!("its backend '{b}'")));
        }
        if let Some(o) = plugin.ops.iter().find(|o| op(o).is_none()) {
            return Err(missing(format!("its operator '{o}'")));
        }
    }
    Ok(())
}

/// A rule set with its rules.
pub struct RegisteredSet {
    /// The set.
    pub set: crate::rewrite::RuleSet,
    /// Its rules.
    pub rules: Vec<Arc<crate::rewrite::rule::Rule>>,
}

static SETS: RwLock<Vec<Arc<RegisteredSet>>> = RwLock::new(Vec::new());

/// All rule sets.
pub fn rule_sets() -> Vec<Arc<RegisteredSet>> {
    SETS.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
}

/// Registers a rule set.
pub fn register_rule_set(set: crate::rewrite::RuleSet) -> Result<()> {
    let rules = crate::rewrite::rule::parse(&set)?.into_iter().map(Arc::new).collect();
    SETS.write()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .push(Arc::new(RegisteredSet { set, rules }));
    Ok(())
}
