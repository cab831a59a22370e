//! Properties of the kernels of a plan that are determined before the kernels are generated for its buffers.

use std::collections::HashMap;
use std::rc::Rc;

use meganeura_core::Result;
use meganeura_core::plan::{Dispatch, ExecutionPlan};

use super::dispatch::{DispatchContext, KernelOptions, Sources, compile, writes};
use crate::{Compiled, Launch};

/// Decides for each dispatch whether it uses cooperative matrices, and records the schedule of its kernels.
///
/// # Errors
/// A dispatch has no kernel.
pub fn choose_variants(plan: &mut ExecutionPlan, with: &KernelOptions) -> Result<()> {
    // This assumes that all dispatches can use cooperative matrices.
    let facts = facts_by(plan, |_| *with)?;
    for (dispatch, facts) in plan.dispatches.iter_mut().zip(facts) {
        dispatch.use_coop = facts.coop;
        dispatch.variant.clone_from(&facts.variant);
    }
    Ok(())
}

/// Properties of the kernels of a dispatch that a plan needs before the kernels are generated for its buffers.
#[derive(Debug, Default)]
pub struct Facts {
    /// Operands whose elements the kernels always round to `f16` when they read them.
    pub rounded: Vec<usize>,
    /// Operands that may be stored as `f16` if the result is.
    pub rounded_with_result: Vec<usize>,
    /// True if the only result is rounded to `f16` in any case.
    pub has_rounded_result: bool,
    /// True if one of the kernels is a custom kernel.
    pub is_custom: bool,
    /// True if one of the kernels uses cooperative matrices.
    coop: bool,
    /// Schedules of the kernels.
    variant: Option<String>,
}

impl Facts {
    fn of(compiled: &Compiled) -> Self {
        Facts {
            rounded: compiled.rounded.clone(),
            rounded_with_result: compiled.rounded_with_result.clone(),
            has_rounded_result: compiled.has_rounded_result,
            is_custom: compiled.launches.iter().any(Launch::is_custom),
            coop: compiled.launches.iter().any(|launch| launch.coop),
            variant: variant_of(&compiled.launches),
        }
    }
}

/// Returns the schedules of some launches, without duplicates.
fn variant_of(launches: &[Launch]) -> Option<String> {
    let mut schedules: Vec<&str> = Vec::new();
    for schedule in launches.iter().filter_map(|launch| launch.schedule.as_deref()) {
        if !schedules.contains(&schedule) {
            schedules.push(schedule);
        }
    }
    (!schedules.is_empty()).then(|| schedules.join("; "))
}

/// Returns the facts of each dispatch, under the assumption that `f32` buffers are stored as `f32`.
///
/// # Errors
/// A dispatch has no kernel.
pub fn facts_of(plan: &ExecutionPlan, with: &KernelOptions) -> Result<Vec<Rc<Facts>>> {
    facts_by(plan, |dispatch| KernelOptions {
        coop: with.coop.filter(|_| dispatch.use_coop),
        ..*with
    })
}

/// Returns the facts of each dispatch. Equal calls, for example of repeated layers, are analyzed only once.
fn facts_by<'a>(plan: &ExecutionPlan, with: impl Fn(&Dispatch) -> KernelOptions<'a>) -> Result<Vec<Rc<Facts>>> {
    let (sources, persistent) = (Sources::of(plan), plan.persistent().collect());
    let mut all: HashMap<String, Rc<Facts>> = HashMap::new();
    let facts = plan.dispatches.iter().map(|dispatch| {
        let with = with(dispatch);
        let known = DispatchContext {
            library: !writes(dispatch, &persistent),
            ..DispatchContext::default()
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

/// Generates the kernels of each dispatch only so that they query the chooser. Assumes that all dispatches can use
/// cooperative matrices. Calls `done` after each dispatch.
///
/// # Errors
/// A dispatch has no kernel.
pub fn ask(plan: &ExecutionPlan, with: &KernelOptions, done: &mut dyn FnMut(&Dispatch)) -> Result<()> {
    let sources = Sources::of(plan);
    for dispatch in &plan.dispatches {
        compile(dispatch, &sources, DispatchContext::default(), with)?;
        done(dispatch);
    }
    Ok(())
}
