//! Check of plugins that are linked into the program.

use meganeura_core::error::{Error, Result};
use meganeura_core::registry::{PluginManifest, backends, op};

use crate::rewrite::rule_sets;

/// Refers to plugin crates so that the linker keeps them, and checks that their contents are registered:
/// `link_plugins!(my_backend, my_ops)?;`
#[macro_export]
macro_rules! link_plugins {
    ($($plugin:ident),* $(,)?) => {
        $crate::link::verify_linked(&[$(&$plugin::PLUGIN),*])
    };
}

/// Checks that everything in the plugins' manifests is registered. [`link_plugins!`](crate::link_plugins) expands to a
/// call of it.
///
/// # Errors
/// [`Error::Plugin`] naming the plugin and the missing part.
pub fn verify_linked(wanted: &[&'static PluginManifest]) -> Result<()> {
    let backends: Vec<String> = backends().iter().map(|b| b.info().name).collect();
    let sets = rule_sets();
    for plugin in wanted {
        let missing = |what: String| Error::Plugin {
            plugin: plugin.name.to_owned(),
            message: format!("{what} is not registered"),
            remedy: "check that the crate is linked and its name is not used by another one".into(),
        };
        if let Some(b) = plugin.backends.iter().find(|b| !backends.iter().any(|n| n == *b)) {
            return Err(missing(format!("its backend '{b}'")));
        }
        if let Some(o) = plugin.ops.iter().find(|o| op(o).is_none()) {
            return Err(missing(format!("its operator '{o}'")));
        }
        if let Some(r) = plugin
            .rule_sets
            .iter()
            .find(|r| !sets.iter().any(|s| s.set.namespace == **r))
        {
            return Err(missing(format!("its rule set '{r}'")));
        }
    }
    Ok(())
}
