//! The built-in rule sets: an egglog file for each in `rules/`, with a comment above every rule that gives the reason.
//!
//! `docs/rules.md` describes the language. Every rule is sound for all types that its pattern admits; the rewriter checks this,
//! and the tests of this crate compare values.

use meganeura_core::registry::PluginManifest;
use meganeura_core::rule_set::RuleSet;

macro_rules! rule_sets {
    ($($name:literal $version:literal,)*) => {
        /// Returns the sets, sorted by name.
        pub fn rule_sets() -> Vec<RuleSet> {
            vec![$(RuleSet::new($name, $version, include_str!(concat!("../rules/", $name, ".egg")))),*]
        }

        $(meganeura_core::register_rule_set!(|| {
            RuleSet::new($name, $version, include_str!(concat!("../rules/", $name, ".egg")))
        });)*

        meganeura_core::register_plugin!(PluginManifest {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            backends: &[],
            ops: &[],
            rule_sets: &[$($name),*],
        });
    };
}

rule_sets! {
    "algebra" 1,
    "attention" 1,
    "convolution" 1,
    "matmul" 1,
    "norm" 1,
    "packing" 1,
    "parts" 1,
    "pooling" 1,
    "swiglu" 1,
}

#[cfg(test)]
mod tests {
    use meganeura_compiler::rewrite::rule::parse;

    use super::*;

    #[test]
    fn every_set_is_registered() {
        meganeura_compiler::link::verify_linked(&[&PLUGIN]).unwrap_or_else(|e| panic!("{e}"));
        assert!(meganeura_compiler::rewrite::rule_set_problems().is_empty());
    }

    #[test]
    fn every_set_parses_and_explains_its_rules() {
        let mut count = 0;
        for set in rule_sets() {
            let rules = parse(&set).unwrap_or_else(|e| panic!("{}: {e}", set.namespace));
            assert!(!rules.is_empty(), "{}", set.namespace);
            assert!(
                set.rules.starts_with("; "),
                "{} does not say what it is for",
                set.namespace
            );
            count += rules.len();
        }
        assert!(count > 100, "only {count} rules");
    }
}
