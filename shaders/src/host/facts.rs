//! What is known of the kernels of a plan before they are made for its buffers.

use std::collections::HashMap;
use std::rc::Rc;

use meganeura_core::Result;
use meganeura_core::plan::{Dispatch, ExecutionPlan};

use super::dispatch::{Known, Sources, With, compile, writes};
use crate::{Compiled, Launch};

/// Decides for each dispatch whether it uses cooperative matrices, and records the schedule that its kernels follow.
///
/// # Errors
/// A dispatch for which there is no kernel.
pub fn choose_variants(plan: &mut ExecutionPlan, with: &With) -> Result<()> {
    // As if all could use them.
    let facts = facts_by(plan, |_| *with)?;
    for (dispatch, facts) in plan.dispatches.iter_mut().zip(facts) {
        dispatch.use_coop = facts.coop;
        dispatch.variant.clone_from(&facts.variant);
    }
    Ok(())
}

/// What a plan needs to know of the kernels of a dispatch before they are made for its buffers.
#[derive(Debug, Default)]
pub struct Facts {
    /// Operands of which they read nothing but elements that they round to `f16`.
    pub rounded: Vec<usize>,
    /// Whether one is a custom kernel.
    pub is_custom: bool,
    /// Whether one uses cooperative matrices.
    coop: bool,
    /// Their schedules.
    variant: Option<String>,
}

impl Facts {
    fn of(compiled: &Compiled) -> Self {
        Facts {
            rounded: compiled.rounded.clone(),
            is_custom: compiled.launches.iter().any(Launch::is_custom),
            coop: compiled.launches.iter().any(|launch| launch.coop),
            variant: variant_of(&compiled.launches),
        }
    }
}

/// The schedules of some launches, each once.
fn variant_of(launches: &[Launch]) -> Option<String> {
    let mut schedules: Vec<&str> = Vec::new();
    for schedule in launches.iter().filter_map(|launch| launch.schedule.as_deref()) {
        if !schedules.contains(&schedule) {
            schedules.push(schedule);
        }
    }
    (!schedules.is_empty()).then(|| schedules.join("; "))
}

/// Facts of each dispatch, as if no buffer were in `f16` that the plan has in `f32`.
///
/// # Errors
/// A dispatch for which there is no kernel.
pub fn facts_of(plan: &ExecutionPlan, with: &With) -> Result<Vec<Rc<Facts>>> {
    facts_by(plan, |dispatch| With {
        coop: with.coop.filter(|_| dispatch.use_coop),
        ..*with
    })
}

/// Equal calls, as layers repeat, are looked at once.
fn facts_by<'a>(plan: &ExecutionPlan, with: impl Fn(&Dispatch) -> With<'a>) -> Result<Vec<Rc<Facts>>> {
    let (sources, persistent) = (Sources::of(plan), plan.persistent().collect());
    let mut all: HashMap<String, Rc<Facts>> = HashMap::new();
    let facts = plan.dispatches.iter().map(|dispatch| {
        let with = with(dispatch);
        let known = Known {
            library: !writes(dispatch, &persistent),
            ..Known::default()
        };
        let call = format!(
            "{} {} {}",
            sources.describe(dispatch),
            with.coop.is_some(),
            known.library
        );
        if let Some(facts) = all.get(&call) {
            return Ok(facts.clone());
        }
        let facts = Rc::new(Facts::of(&compile(dispatch, &sources, known, &with)?));
        all.insert(call, facts.clone());
        Ok(facts)
    });
    facts.collect()
}

/// Generates the kernels of each dispatch, as if all could use cooperative matrices, for what the choices are asked meanwhile;
/// `done` is called behind each.
///
/// # Errors
/// A dispatch for which there is no kernel.
pub fn ask(plan: &ExecutionPlan, with: &With, done: &mut dyn FnMut(&Dispatch)) -> Result<()> {
    let sources = Sources::of(plan);
    for dispatch in &plan.dispatches {
        compile(dispatch, &sources, Known::default(), with)?;
        done(dispatch);
    }
    Ok(())
}
