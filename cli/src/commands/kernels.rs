//! Kernels of an explained model: the source texts that a device generates for the dispatches of its plan.

use std::collections::HashMap;
use std::process::ExitCode;

use meganeura::ExecutionPlan;
use meganeura::backend::{Device, KernelSource};
use meganeura::plan::Dispatch;
use serde_json::{Value, json};

use super::Outcome;
use crate::output::line;

/// Options of `explain` about kernels.
#[derive(Debug, clap::Args)]
pub(super) struct KernelArgs {
    /// Print only the source code of the kernels that the device runs. Equal sources are printed once, with the numbers
    /// of their dispatches.
    #[arg(long, conflicts_with_all = ["simulated_gpu", "program", "dot"])]
    pub(super) kernels: bool,

    /// With --kernels: print only the kernels of this dispatch, numbered from 0 in the plan.
    #[arg(long, value_name = "N", requires = "kernels")]
    dispatch: Option<usize>,
}

impl KernelArgs {
    /// Prints the kernels of a plan.
    pub(super) fn print(&self, device: &dyn Device, name: &str, plan: &ExecutionPlan, as_json: bool) -> Outcome {
        let count = plan.dispatches.len();
        if let Some(number) = self.dispatch.filter(|&number| number >= count) {
            return Err(format!(
                "there is no dispatch {number}: the plan for {name} has {count} dispatches, numbered from 0"
            )
            .into());
        }
        let sources = device.kernel_sources(plan)?;
        if sources.is_empty() {
            return Err(format!(
                "{name} has no generated kernel sources to print; GPUs have them: try --device blade, and see \
                 `meganeura devices`"
            )
            .into());
        }
        let mut kernels = Kernel::list(plan, &sources);
        if let Some(number) = self.dispatch {
            kernels.retain(|k| k.source.dispatch == number);
            if kernels.is_empty() {
                return Err(without_text(device, name, plan, number).into());
            }
        }
        if as_json {
            line(kernels.iter().map(Kernel::object).collect::<Value>())?;
        } else {
            let mut between = "";
            for group in groups(&kernels) {
                line(format_args!("{between}{}", text_of(&group)))?;
                between = "\n";
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the reason why a dispatch has no kernel text.
fn without_text(device: &dyn Device, name: &str, plan: &ExecutionPlan, number: usize) -> String {
    let label = &plan.dispatches[number].label;
    let fallback_dispatches = device.fallback_dispatches(plan);
    match fallback_dispatches.iter().find(|(dispatch, _)| *dispatch == number) {
        Some((_, other)) => {
            format!("dispatch {number} ({label}) has no kernel text: {name} has no kernel for it, so {other} runs it")
        }
        None => format!("dispatch {number} ({label}) has no kernel text: {name} runs it without a generated kernel"),
    }
}

/// A kernel and its dispatch.
struct Kernel<'a> {
    source: &'a KernelSource,
    dispatch: &'a Dispatch,
    /// Number of kernels that the dispatch runs.
    parts: usize,
}

impl<'a> Kernel<'a> {
    fn list(plan: &'a ExecutionPlan, sources: &'a [KernelSource]) -> Vec<Self> {
        let mut parts: HashMap<usize, usize> = HashMap::new();
        for source in sources {
            *parts.entry(source.dispatch).or_default() += 1;
        }
        let kernels = sources.iter().filter_map(|source| {
            Some(Kernel {
                source,
                dispatch: plan.dispatches.get(source.dispatch)?,
                parts: parts[&source.dispatch],
            })
        });
        kernels.collect()
    }

    /// Returns the variant from which the text was generated, or else the variant that the plan records for the dispatch.
    fn variant(&self) -> Option<&str> {
        self.source.variant.as_deref().or(self.dispatch.variant.as_deref())
    }

    fn object(&self) -> Value {
        json!({
            "dispatch": self.source.dispatch,
            "part": self.source.part,
            "label": self.dispatch.label,
            "kernel": self.dispatch.title(),
            "variant": self.variant(),
            "cooperative_matrices": self.dispatch.use_coop,
            "why": self.source.why,
            "language": self.source.language,
            "text": self.source.text,
        })
    }

    /// Returns the properties that are printed after the kernel's number and label.
    fn facts(&self) -> String {
        let which = match self.parts {
            1 => String::new(),
            parts => format!("; kernel {} of {parts}", self.source.part + 1),
        };
        let variant = self.variant().map(|v| format!("; variant {v}")).unwrap_or_default();
        let coop = if self.dispatch.use_coop { "yes" } else { "no" };
        let why = self.source.why.as_ref();
        let why = why.map(|why| format!("; why: {why}")).unwrap_or_default();
        format!("{which}{variant}; cooperative matrices: {coop}{why}")
    }
}

/// Groups kernels by equal texts, in the order of their first occurrence.
fn groups<'k, 'a>(kernels: &'k [Kernel<'a>]) -> Vec<Vec<&'k Kernel<'a>>> {
    grouped(kernels.iter(), |k| (k.source.language, k.source.text.as_str()))
}

fn grouped<T: Copy, K: std::hash::Hash + Eq>(items: impl Iterator<Item = T>, key: impl Fn(T) -> K) -> Vec<Vec<T>> {
    let mut numbers: HashMap<K, usize> = HashMap::new();
    let mut groups: Vec<Vec<T>> = Vec::new();
    for item in items {
        let number = *numbers.entry(key(item)).or_insert(groups.len());
        if number == groups.len() {
            groups.push(Vec::new());
        }
        groups[number].push(item);
    }
    groups
}

/// Returns the common text of some kernels, below one line for each set of kernels with the same properties.
fn text_of(group: &[&Kernel]) -> String {
    let heads = grouped(group.iter().copied(), Kernel::facts).into_iter().map(|alike| {
        let numbers: Vec<String> = alike.iter().map(|k| k.source.dispatch.to_string()).collect();
        let noun = if numbers.len() == 1 { "dispatch" } else { "dispatches" };
        let facts = alike[0].facts();
        format!("== {noun} {}: {}{facts}\n", numbers.join(", "), labels(&alike))
    });
    let text = group.first().map_or("", |k| k.source.text.trim_end());
    heads.chain([text.to_owned()]).collect()
}

/// Returns the first three labels, followed by the number of the others.
fn labels(kernels: &[&Kernel]) -> String {
    const SHOWN: usize = 3;
    let names: Vec<&str> = kernels.iter().take(SHOWN).map(|k| k.dispatch.label.as_str()).collect();
    match kernels.len().saturating_sub(SHOWN) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}
