//! A plugin as a whole: made from its texts, checked, and registered.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use meganeura_core::backend::KernelDesc;
use meganeura_core::backend::shader::{ShaderKernel as _, register_shader_kernels, remove_shader_kernels};
use meganeura_core::files::sha256;
use meganeura_core::ops::sample::Sizes as Dice;
use meganeura_core::ops::{Call, OpRef, Operator as _};
use meganeura_core::registry;
use meganeura_core::rewrite::verify::{RuleVerdict, VerifyOptions, verify_rule};
use meganeura_core::rewrite::rule::parse;
use meganeura_core::rewrite::{Applies, RuleSet};

use crate::definition::{Definition, keep};
use crate::manifest::{Manifest, OpEntry};
use crate::operator::{DataOp, base_name, types_of};
use crate::shader::{DataShader, registered};
use crate::{Fault, term};

/// The backend whose kernels are WGSL, in listings.
const BACKEND: &str = "blade";
/// Rules are tried so long at most, all together.
const RULE_TIME: Duration = Duration::from_secs(60);

/// A plugin that has passed its checks.
pub struct Plugin {
    set: RuleSet,
    shaders: Vec<DataShader>,
    brings: Brings,
}

/// What a plugin brings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Brings {
    /// Names of its operators.
    pub ops: Vec<String>,
    /// Names of its rules.
    pub rules: Vec<String>,
    /// Operators for which it has a kernel.
    pub kernels: Vec<String>,
}

impl Plugin {
    /// Makes a plugin of a manifest and the files that it names, and checks it; nothing is registered.
    ///
    /// # Errors
    /// What is wrong with it: see the crate's documentation.
    pub fn new(manifest: &Manifest, files: &BTreeMap<String, String>) -> Result<Self, Fault> {
        build(manifest, files).map_err(Fault::new)
    }

    /// What it brings.
    pub fn brings(&self) -> &Brings {
        &self.brings
    }

    /// Registers it. Builds that begin afterwards use it.
    ///
    /// # Errors
    /// A name that is taken.
    pub fn register(self) -> Result<Brings, Fault> {
        let kernels = registered(self.shaders);
        register_shader_kernels(&kernels).map_err(|e| Fault::new(e.to_string()))?;
        let ops = self.set.ops.clone();
        if let Err(error) = registry::register_rule_set(self.set) {
            remove_shader_kernels(&ops);
            return Err(Fault::new(error.to_string()));
        }
        Ok(self.brings)
    }
}

fn build(manifest: &Manifest, files: &BTreeMap<String, String>) -> Result<Plugin, String> {
    let name = manifest.name.as_str();
    let prefix = format!("{name}.");
    if registry::ops().iter().any(|op| op.name().starts_with(&prefix)) {
        return Err(format!("operators of the name '{name}.*' are there already; give it another name"));
    }
    if registry::rule_sets().iter().any(|s| s.set.namespace == name) {
        return Err(format!("a rule set of the name '{name}' is there already; give it another name"));
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
            let shader = DataShader::new(op, &origin, &content, wgsl, files).map_err(of)?;
            try_shader(op, &shader).map_err(of)?;
            shaders.push(shader);
        }
    }
    let set = rule_set(manifest, files, &ops, &shaders)?;
    let rules = try_rules(&set)?;
    let brings = Brings {
        ops: ops.iter().map(|op| op.name().to_owned()).collect(),
        rules,
        kernels: shaders.iter().map(|s| s.op().name().to_owned()).collect(),
    };
    if brings.ops.is_empty() && brings.rules.is_empty() {
        return Err("it brings no operator and no rule".into());
    }
    Ok(Plugin { set, shaders, brings })
}

/// Hash of all that makes the plugin.
fn content(manifest: &Manifest, files: &BTreeMap<String, String>) -> String {
    let own = format!("{manifest:?}");
    let parts = files.iter().flat_map(|(name, text)| [name.as_bytes(), b"\0", text.as_bytes(), b"\0"]);
    sha256(std::iter::once(own.as_bytes()).chain(parts))[..16].to_owned()
}

/// The operators, each after those of the plugin that it calls.
fn operators(manifest: &Manifest, content: &str) -> Result<Vec<&'static DataOp>, String> {
    // Plans are made anew when anything of the plugin changes.
    let version = u32::from_str_radix(&content[..8], 16).unwrap_or_default();
    let own: BTreeSet<String> = manifest.op.iter().map(|op| format!("{}.{}", manifest.name, op.name)).collect();
    if own.len() < manifest.op.len() {
        return Err("two of its operators have one name".into());
    }
    let mut open: Vec<(&OpEntry, Definition)> = Vec::new();
    for entry in &manifest.op {
        let of = |e: String| format!("its operator '{}': {e}", entry.name);
        open.push((entry, Definition::new(&manifest.name, entry).map_err(of)?));
    }
    let mut done: Vec<&'static DataOp> = Vec::new();
    while !open.is_empty() {
        let is_done = |name: &str| done.iter().any(|op| op.name() == name);
        let ready = open.iter().position(|(_, definition)| {
            let mut waits = false;
            for (_, term) in &definition.steps {
                term.names(&mut |name, is_call| {
                    let name = base_name(name);
                    waits |= is_call && own.contains(name) && !is_done(name);
                });
            }
            !waits
        });
        let Some(ready) = ready else {
            let names: Vec<&str> = open.iter().map(|(_, d)| d.name).collect();
            return Err(format!("its operators are made of each other in a circle: {}", names.join(", ")));
        };
        let (entry, definition) = open.remove(ready);
        let find = |name: &str| {
            let own = done.iter().find(|op| op.name() == name);
            own.map(|op| OpRef::new(*op)).or_else(|| registry::op(name))
        };
        let op = DataOp::new(definition, version, find).map_err(|e| format!("its operator '{}': {e}", entry.name))?;
        done.push(Box::leak(Box::new(op)));
    }
    Ok(done)
}

/// Where random sizes begin.
const SEED: u64 = 7;

/// Tries an operator on random shapes: its decomposition has to make what is declared.
fn try_operator(op: &DataOp) -> Result<(), String> {
    let samples = op.calls(&mut Dice::new(SEED));
    if samples.is_empty() {
        return Err("no shapes were found for which there is a call".into());
    }
    for sample in samples {
        let inputs = types_of(&sample.inputs).ok_or("its operands are too large")?;
        let call = Call {
            attrs: &sample.attrs,
            inputs: &inputs,
            outputs: &[],
        };
        op.infer(&call).map_err(|e| format!("called with {}: {e}", sample.label))?;
    }
    Ok(())
}

/// Makes a kernel for random shapes.
fn try_shader(op: &DataOp, shader: &DataShader) -> Result<(), String> {
    let mut refusal = None;
    let mut made = false;
    for sample in op.calls(&mut Dice::new(SEED)) {
        let inputs = types_of(&sample.inputs).ok_or("its operands are too large")?;
        let call = Call {
            attrs: &sample.attrs,
            inputs: &inputs,
            outputs: &[],
        };
        let outputs = op.infer(&call)?;
        let found = shader.shader(&KernelDesc {
            name: op.name(),
            version: op.version(),
            attrs: &sample.attrs,
            inputs: &inputs,
            outputs: &outputs,
        });
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
        None | Some("always") => Applies::Always,
        Some("training") => Applies::Training,
        Some("inference") => Applies::Inference,
        Some(other) => return Err(format!("'{}' is no word for when rules apply", term::shortened(other))),
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

/// Tries every rule on random graphs.
///
/// This is done here and not in a process of its own: nothing that runs is the plugin's, but the definitions of operators on
/// graphs whose sizes and number are bounded, and every program that embeds the library has this one, and not the command.
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
            return Err(format!("its rules could not be tried within {RULE_TIME:?}; it has too many or too large ones"));
        }
        let verdict: RuleVerdict = verify_rule(&rule, &options);
        if !verdict.is_sound() {
            return Err(format!("its rule does not hold: {verdict}"));
        }
        names.push(rule.name.clone());
    }
    Ok(names)
}
