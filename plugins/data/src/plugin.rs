//! A whole plugin: it is built from its files, checked, and registered.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use meganeura_compiler::rewrite::rule::parse;
use meganeura_compiler::rewrite::verify::{RuleVerdict, VerifyOptions, verify_rule};
use meganeura_compiler::rewrite::{BuildKind, RuleSet, register_rule_set, rule_sets};
use meganeura_core::TensorType;
use meganeura_core::backend::KernelDesc;
use meganeura_core::backend::shader::{
    ShaderDevice, ShaderKernel as _, register_shader_kernels, remove_shader_kernels,
};
use meganeura_core::files::sha256;
use meganeura_core::ops::sample::{Sample, Sizes as Dice};
use meganeura_core::ops::{Call, OpRef, Operator as _};
use meganeura_core::registry;

use crate::builder::{base_name, is_form};
use crate::definition::{Definition, keep};
use crate::manifest::{Manifest, OpEntry};
use crate::operator::DataOp;
use crate::shader::{DataShader, registered};
use crate::{Fault, term};

/// The backend whose kernels are WGSL, in listings.
const BACKEND: &str = "blade";
/// Maximum total time for testing rules.
const RULE_TIME: Duration = Duration::from_secs(60);

/// A plugin that has passed its checks.
pub struct Plugin {
    set: RuleSet,
    shaders: Vec<DataShader>,
    brings: PluginContents,
}

/// Contents of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginContents {
    /// Names of its operators.
    pub ops: Vec<String>,
    /// Names of its rules.
    pub rules: Vec<String>,
    /// Operators with a kernel in the plugin.
    pub kernels: Vec<String>,
}

impl Plugin {
    /// Builds a plugin from a manifest and the files that it names, and checks it; nothing is
    /// registered.
    ///
    /// # Errors
    /// Description of the error: see the crate's documentation.
    pub fn new(manifest: &Manifest, files: &BTreeMap<String, String>) -> Result<Self, Fault> {
        build(manifest, files).map_err(Fault::new)
    }

    /// Returns its contents.
    pub fn brings(&self) -> &PluginContents {
        &self.brings
    }

    /// Registers the plugin, so that later builds use it.
    ///
    /// # Errors
    /// A name that is taken.
    pub fn register(self) -> Result<PluginContents, Fault> {
        let kernels = registered(self.shaders);
        register_shader_kernels(&kernels).map_err(|e| Fault::new(e.to_string()))?;
        let ops = self.set.ops.clone();
        if let Err(error) = register_rule_set(self.set) {
            remove_shader_kernels(&ops);
            return Err(Fault::new(error.to_string()));
        }
        registered_names().extend(self.brings.ops.iter().cloned());
        Ok(self.brings)
    }
}

fn build(manifest: &Manifest, files: &BTreeMap<String, String>) -> Result<Plugin, String> {
    let name = manifest.name.as_str();
    let prefix = format!("{name}.");
    if registry::ops().iter().any(|op| op.name().starts_with(&prefix)) {
        return Err(format!("operators named '{name}.*' exist already; use another name"));
    }
    if rule_sets().iter().any(|s| s.set.namespace == name) {
        return Err(format!("a rule set named '{name}' exists already; use another name"));
    }
    let content = content(manifest, files);
    let ops = operators(manifest, &content)?;
    for op in &ops {
        try_operator(op).map_err(|e| format!("its operator '{}': {e}", op.name()))?;
    }
    let mut shaders = Vec::new();
    for entry in &manifest.op {
        let op = ops.iter().find(|op| op.name()[prefix.len()..] == entry.name);
        if let (Some(op), Some(wgsl)) = (op, &entry.wgsl) {
            let origin = format!("the plugin '{name}' {}", manifest.version);
            let of = |e: String| format!("its operator '{}': {e}", op.name());
            let shader = DataShader::new(op, &origin, &content[..16], wgsl, files).map_err(of)?;
            try_shader(op, &shader).map_err(of)?;
            shaders.push(shader);
        }
    }
    let set = rule_set(manifest, files, &ops, &shaders)?;
    let rules = try_rules(&set)?;
    let brings = PluginContents {
        ops: ops.iter().map(|op| op.name().to_owned()).collect(),
        rules,
        kernels: shaders.iter().map(|s| s.op().name().to_owned()).collect(),
    };
    if brings.ops.is_empty() && brings.rules.is_empty() {
        return Err("it contains neither operators nor rules".into());
    }
    Ok(Plugin { set, shaders, brings })
}

/// Returns a hash of all texts of the plugin.
fn content(manifest: &Manifest, files: &BTreeMap<String, String>) -> String {
    let own = format!("{manifest:?}");
    let parts = files
        .iter()
        .flat_map(|(name, text)| [name.as_bytes(), b"\0", text.as_bytes(), b"\0"]);
    sha256(std::iter::once(own.as_bytes()).chain(parts))
}

/// Maximum number of calls in an operator's full decomposition, with the plugin's own operators
/// expanded: they multiply.
const MAX_CALLS: usize = 1_000;

/// Maximum nesting of a plugin's operators: each expands the operators below twice, for its types
/// and for its cost.
const MAX_DEPTH: usize = 8;

/// Registered operators of plugins of this kind. Other plugins cannot call them, so that the number
/// of calls stays bounded.
static REGISTERED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Created operators, by the hash of their plugin and their name. They are never freed, so a plugin
/// that is tried again reuses its operators.
static MADE: Mutex<BTreeMap<(String, &'static str), &'static DataOp>> = Mutex::new(BTreeMap::new());

fn made() -> MutexGuard<'static, BTreeMap<(String, &'static str), &'static DataOp>> {
    // A panic cannot leave the map half changed.
    MADE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn registered_names() -> MutexGuard<'static, BTreeSet<String>> {
    // A panic cannot leave the set half changed.
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the operators, sorted so that each comes after the plugin's own operators that it calls.
fn operators(manifest: &Manifest, content: &str) -> Result<Vec<&'static DataOp>, String> {
    // Changing anything in the plugin invalidates cached plans.
    let version = u32::from_str_radix(&content[..8], 16).unwrap_or_default();
    let own: BTreeSet<String> = manifest
        .op
        .iter()
        .map(|op| format!("{}.{}", manifest.name, op.name))
        .collect();
    if own.len() < manifest.op.len() {
        return Err("two of its operators have one name".into());
    }
    let mut open: Vec<(&OpEntry, Definition)> = Vec::new();
    for entry in &manifest.op {
        let of = |e: String| format!("its operator '{}': {e}", entry.name);
        open.push((entry, Definition::new(&manifest.name, entry).map_err(of)?));
    }
    let mut done: Vec<&'static DataOp> = Vec::new();
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    let mut depths: BTreeMap<&str, usize> = BTreeMap::new();
    while !open.is_empty() {
        let waits = |name: &str| own.contains(name) && !sizes.contains_key(name);
        let ready = open.iter().position(|(_, definition)| !calls(definition).any(waits));
        let Some(ready) = ready else {
            let names: Vec<&str> = open.iter().map(|(_, d)| d.name).collect();
            return Err(format!(
                "its operators depend on each other in a cycle: {}",
                names.join(", ")
            ));
        };
        let (entry, definition) = open.remove(ready);
        let of = |e: String| format!("its operator '{}': {e}", entry.name);
        let name = definition.name;
        let count = calls(&definition).map(|name| sizes.get(name).copied().unwrap_or(1));
        let count = count.fold(0, usize::saturating_add);
        if count > MAX_CALLS {
            return Err(of(format!("it expands to {count} calls; expected at most {MAX_CALLS}")));
        }
        let depth = calls(&definition).filter_map(|name| depths.get(name)).max();
        let depth = depth.map_or(1, |depth| depth + 1);
        if depth > MAX_DEPTH {
            return Err(of(format!(
                "its operators are nested {depth} deep; expected at most {MAX_DEPTH}"
            )));
        }
        depths.insert(name, depth);
        let find = |name: &str| {
            let own = done.iter().find(|op| op.name() == name).map(|op| OpRef::new(*op));
            match own {
                Some(op) => Ok(op),
                None if registered_names().contains(name) => Err("an operator of another plugin".to_owned()),
                None => registry::op(name).ok_or_else(|| "which is no operator".to_owned()),
            }
        };
        let key = (content.to_owned(), name);
        let known = made().get(&key).copied();
        done.push(match known {
            Some(op) => op,
            None => {
                let op = DataOp::new(definition, version, find).map_err(of)?;
                *made().entry(key).or_insert_with(|| Box::leak(Box::new(op)))
            }
        });
        sizes.insert(name, count.max(1));
    }
    Ok(done)
}

/// Returns the names of the operators that a decomposition calls, with repetitions.
fn calls(definition: &Definition) -> impl Iterator<Item = &str> {
    let mut names = Vec::new();
    for (_, term) in &definition.steps {
        term.names(&mut |name, is_call| {
            if is_call && !is_form(name) {
                names.push(base_name(name));
            }
        });
    }
    names.into_iter()
}

/// Seed of random sizes.
const SEED: u64 = 7;

/// Tests an operator on random shapes. The types of its decomposition must equal the declared ones.
fn try_operator(op: &DataOp) -> Result<(), String> {
    for sample in op.calls(&mut Dice::new(SEED))? {
        types(op, &sample).map_err(|e| format!("called with {}: {e}", sample.label))?;
    }
    Ok(())
}

/// Returns the types of operands and results of a sample.
fn types(op: &DataOp, sample: &Sample) -> Result<(Vec<TensorType>, Vec<TensorType>), String> {
    let inputs = sample.input_types()?;
    let outputs = op.infer(&Call {
        attrs: &sample.attrs,
        inputs: &inputs,
        outputs: &[],
    })?;
    Ok((inputs, outputs))
}

/// Generates the kernel for random shapes. At least one of them must have a kernel.
fn try_shader(op: &DataOp, shader: &DataShader) -> Result<(), String> {
    let mut refusal = None;
    let mut made = false;
    for sample in op.calls(&mut Dice::new(SEED))? {
        let (inputs, outputs) = types(op, &sample)?;
        let desc = KernelDesc {
            name: op.name(),
            version: op.version(),
            attrs: &sample.attrs,
            inputs: &inputs,
            outputs: &outputs,
        };
        let found = shader.shader(&desc, &ShaderDevice::default());
        match found {
            Ok(_) => made = true,
            Err(e) => refusal = refusal.or(Some(format!("called with {}: {e}", sample.label))),
        }
    }
    match (made, refusal) {
        (false, Some(refusal)) => Err(refusal),
        _ => Ok(()),
    }
}

fn rule_set(
    manifest: &Manifest,
    files: &BTreeMap<String, String>,
    ops: &[&'static DataOp],
    shaders: &[DataShader],
) -> Result<RuleSet, String> {
    let applies = match manifest.applies.as_deref() {
        None | Some("always") => BuildKind::Always,
        Some("training") => BuildKind::Training,
        Some("inference") => BuildKind::Inference,
        Some(other) => return Err(format!("'{}' is not a phase for rules", term::shortened(other))),
    };
    let kernels = shaders.iter().map(|s| (BACKEND, s.op().get().name()));
    Ok(RuleSet {
        namespace: Cow::Borrowed(keep(manifest.name.clone())),
        version: 1,
        rules: Cow::Owned(manifest.rules(files)?.to_owned()),
        ops: Cow::Owned(ops.iter().map(|op| OpRef::new(*op)).collect()),
        kernels: Cow::Owned(kernels.collect()),
        applies,
    })
}

/// Tests every rule on random graphs.
///
/// This runs in the process that loads the plugin. It executes no code of the plugin, only
/// definitions of operators on graphs of bounded size and number. So a program that embeds the
/// library does not need the command, which runs all checks in a separate process first.
fn try_rules(set: &RuleSet) -> Result<Vec<String>, String> {
    let rules = parse(set).map_err(|e| e.to_string())?;
    let options = VerifyOptions {
        cases: 4,
        steps: 100_000,
        ..VerifyOptions::default()
    };
    let begin = Instant::now();
    let mut names = Vec::new();
    for rule in rules.into_iter().map(Arc::new) {
        if begin.elapsed() > RULE_TIME {
            return Err(format!(
                "its rules could not be tested within {RULE_TIME:?}; they are too many or too large"
            ));
        }
        let verdict: RuleVerdict = verify_rule(&rule, &options);
        if !verdict.is_sound() {
            return Err(format!("its rule does not hold: {verdict}"));
        }
        names.push(rule.name.clone());
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str, rules: &str) -> u32 {
        let manifest = Manifest::parse(text).expect("a manifest");
        let files = BTreeMap::from([("a.egg".to_owned(), rules.to_owned())]);
        let plugin = Plugin::new(&manifest, &files).expect("fine");
        plugin.set.ops[0].version()
    }

    #[test]
    fn what_is_tried_again_is_made_once() {
        let text = "format = 1\nname = \"repeated\"\nversion = \"1\"\n[[op]]\nname = \"twice\"\nformula = \"2 x\"\n\
                    inputs = [{ name = \"x\", shape = [\"...\"] }]\noutputs = [{ name = \"y\", shape = [\"...\"] }]\n\
                    let = { y = \"(core.mul x 2)\" }\n";
        let of = |text: &str| {
            let manifest = Manifest::parse(text).expect("a manifest");
            let content = content(&manifest, &BTreeMap::new());
            operators(&manifest, &content).expect("fine")[0]
        };
        let first = of(text);
        assert!(std::ptr::eq(of(text), first));
        let other = of(&text.replace("core.mul x 2", "core.add x x"));
        assert!(!std::ptr::eq(other, first) && other.version() != first.version());
        assert!(std::ptr::eq(keep("repeated.twice".to_owned()), first.name()));
    }

    #[test]
    fn plans_depend_on_all_that_makes_a_plugin() {
        let text = "format = 1\nname = \"content\"\nversion = \"1\"\nrules = \"a.egg\"\n[[op]]\nname = \"twice\"\n\
                    formula = \"2 x\"\ninputs = [{ name = \"x\", shape = [\"...\"] }]\n\
                    outputs = [{ name = \"y\", shape = [\"...\"] }]\nlet = { y = \"(core.mul x 2)\" }\n";
        let first = version(text, "");
        assert_eq!(version(text, ""), first);
        assert_ne!(version(text, "; changed"), first);
        assert_ne!(version(&text.replace("core.mul x 2", "core.add x x"), ""), first);
        let kernel = "[op.wgsl]\ngroups = [1]\ntext = \"var<storage, read_write> y: array<f32>; \
                      @compute @workgroup_size(1) fn main() { y[0] = 1.0; }\"\n";
        let with = version(&format!("{text}{kernel}"), "");
        assert_ne!(with, first);
        assert_ne!(version(&format!("{text}{}", kernel.replace("1.0", "2.0")), ""), with);
    }
}
