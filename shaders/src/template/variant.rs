//! Description of a kernel by its replacements in the kernel file.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::sync::Arc;

use super::{Kind, Template, items};

/// The replacements in a kernel file of `kernels/` that make it the kernel of a launch.
#[derive(Clone, Debug)]
pub struct Replacements(Arc<Template>);

impl Replacements {
    pub(crate) fn new(template: Template) -> Self {
        Replacements(Arc::new(template))
    }

    /// Returns the replacements of a kernel with this source. The key is a kind and a name, such as `constant UNROLL`
    /// or `function load_a`; the value is the text. Added declarations that the source does not use are omitted.
    pub fn parts(&self, source: &str) -> BTreeMap<String, String> {
        let template = &*self.0;
        let constants = template.constants.iter();
        let constants = constants.map(|(name, value)| (format!("{} {name}", Kind::Constant), value.clone()));
        let of = |kind: &dyn Display, map: &HashMap<String, String>| -> Vec<(String, String)> {
            let part = |(name, text): (&String, &String)| (format!("{kind} {name}"), text.trim().to_owned());
            map.iter().map(part).collect()
        };
        let used = items::names(source);
        // The declarations are valid, because the kernel was expanded.
        let added = items::parse(&template.more).unwrap_or_default();
        let added = added
            .into_iter()
            .filter(|item| used.contains(&&*item.name))
            .map(|item| (format!("{} {}", item.kind, item.name), item.text.trim().to_owned()));
        constants
            .chain(of(&Kind::Alias, &template.aliases))
            .chain(of(&Kind::Function, &template.bodies))
            .chain(of(&"insertion", &template.inserts))
            .chain(added)
            .collect()
    }
}
