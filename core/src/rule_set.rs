//! Rule sets: plugins that contain fusion rules.

use std::borrow::Cow;
use std::sync::OnceLock;

use crate::ops::OpRef;
use crate::ops::registered::OpGroups;

/// Entry of the registry of rule sets; see [`register_rule_set!`](crate::register_rule_set).
pub struct RuleSetEntry(pub fn() -> RuleSet);

inventory::collect!(RuleSetEntry);
inventory::submit! { OpGroups(|| linked_rule_sets().iter().map(|set| set.ops.to_vec()).collect()) }

/// Returns the registered rule sets of linked crates, by name and version; their rules are not
/// parsed here.
pub fn linked_rule_sets() -> &'static [RuleSet] {
    static LINKED: OnceLock<Vec<RuleSet>> = OnceLock::new();
    LINKED.get_or_init(|| {
        let mut sets: Vec<RuleSet> = inventory::iter::<RuleSetEntry>.into_iter().map(|e| (e.0)()).collect();
        sets.sort_by(|a, b| (&a.namespace, a.version, &a.rules).cmp(&(&b.namespace, b.version, &b.rules)));
        sets
    })
}

/// Kind of builds that use the rules of a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BuildKind {
    /// In every build.
    #[default]
    Always,
    /// In builds for training.
    Training,
    /// In builds for inference.
    Inference,
}

impl BuildKind {
    /// Returns the name of the kind, for listings.
    pub fn name(self) -> &'static str {
        match self {
            BuildKind::Always => "always",
            BuildKind::Training => "training",
            BuildKind::Inference => "inference",
        }
    }
}

/// A set of rewrite rules with the operators that they introduce. Register it with
/// [`register_rule_set!`](crate::register_rule_set) or
/// `register_rule_set` of the crate `meganeura-compiler`.
#[derive(Clone, Debug)]
pub struct RuleSet {
    /// Name: lower case, digits, `-` and `_`. It is the prefix of the names of the rules; listing
    /// it in `rewrite.disable` disables the set.
    pub namespace: Cow<'static, str>,
    /// Version; increase it with every change of the rules.
    pub version: u32,
    /// The rules as egglog text; see the language of rules in `docs/rules.md`.
    pub rules: Cow<'static, str>,
    /// Operators that the rules introduce, with their decompositions.
    pub ops: Cow<'static, [OpRef]>,
    /// Kernels for operators of the set: names of the backend and of the operator.
    pub kernels: Cow<'static, [(&'static str, &'static str)]>,
    /// Kind of builds that use the rules.
    pub applies: BuildKind,
}

impl RuleSet {
    /// Creates a set with rules only, used in every build.
    pub const fn new(namespace: &'static str, version: u32, rules: &'static str) -> Self {
        RuleSet {
            namespace: Cow::Borrowed(namespace),
            version,
            rules: Cow::Borrowed(rules),
            ops: Cow::Borrowed(&[]),
            kernels: Cow::Borrowed(&[]),
            applies: BuildKind::Always,
        }
    }

    /// Adds operators that the rules introduce.
    #[must_use]
    pub fn with_ops(mut self, ops: &'static [OpRef]) -> Self {
        self.ops = Cow::Borrowed(ops);
        self
    }

    /// Adds kernels, each named by backend and operator.
    #[must_use]
    pub fn with_kernels(mut self, kernels: &'static [(&'static str, &'static str)]) -> Self {
        self.kernels = Cow::Borrowed(kernels);
        self
    }

    /// Restricts the rules to one kind of builds.
    #[must_use]
    pub fn applying(mut self, applies: BuildKind) -> Self {
        self.applies = applies;
        self
    }
}
