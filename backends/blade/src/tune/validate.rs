//! Validation of stored variants. Each variant is compared with the default one before a call uses it for the first
//! time.
//!
//! A variant is stored for a class of calls, which can differ in the number of rows and in fused operations. The hash
//! of the kernels of each validated call is recorded. With the same driver, such a call is not validated again.

use std::cell::RefCell;
use std::collections::HashSet;
use std::time::Instant;

use meganeura_core::files::sha256;
use meganeura_core::plan::{Dispatch, ExecutionPlan};
use meganeura_core::precision::Precision;
use meganeura_core::{Error, Result};

use super::StoredChoices;
use super::comparison::Subject as _;
use super::operands::Operands;
use super::trial::Trial;
use crate::gpu::NAME;
use crate::handle::Handle;
use meganeura_shaders::Schedule;
use meganeura_shaders::coop::CoopConfig;
use meganeura_shaders::{self as kernels, CompileCx};
use meganeura_shaders::{Class, ScheduleChooser};

/// Returns the hash of the kernels of a call with separate buffers, or `None` if the call has no kernels.
pub(super) fn text_hash(
    dispatch: &Dispatch,
    coop: Option<CoopConfig>,
    choices: &dyn ScheduleChooser,
) -> Option<String> {
    let types = dispatch.types();
    let cx = CompileCx {
        coop,
        choices: Some(choices),
        ..CompileCx::standalone(dispatch.kernel_desc(&types))
    };
    let compiled = kernels::compile(&cx).ok()?;
    Some(sha256(compiled.launches.iter().map(|launch| launch.source.as_bytes())))
}

/// Compares the stored variants that a plan would use with the default ones, unless this was done before. A wrong
/// variant is no longer used.
///
/// # Errors
/// The device fails.
pub(crate) fn validate(
    device: &Handle,
    chosen: &StoredChoices,
    coop: Option<CoopConfig>,
    plan: &ExecutionPlan,
) -> Result<()> {
    validate_by(device, chosen, coop, plan, &|dispatch, class, variants| {
        first_difference(device, dispatch, (plan.precision, coop), class, variants)
    })
}

/// Validates the variants of a plan like [`validate`], but compares them by means of `difference`.
pub(super) fn validate_by(
    device: &Handle,
    chosen: &StoredChoices,
    coop: Option<CoopConfig>,
    plan: &ExecutionPlan,
    difference: &Difference,
) -> Result<()> {
    let tuning = chosen.tuning;
    let mut seen = HashSet::new();
    for dispatch in &plan.dispatches {
        let call = format!("{:?}", (&dispatch.kernel, &dispatch.attrs, dispatch.types()));
        if !seen.insert(call) {
            continue;
        }
        let noted = UsageRecorder {
            choices: chosen,
            asked: RefCell::default(),
        };
        let Some(hash) = text_hash(dispatch, coop.filter(|_| dispatch.use_coop), &noted) else {
            continue;
        };
        for UsedVariant { class, variants } in noted.asked.take() {
            if tuning.is_qualified(&class, &hash) {
                continue;
            }
            match difference(dispatch, &class, &variants) {
                Ok(None) => tuning.qualified(&class, &hash),
                Ok(Some(difference)) => tuning.refuse(&class, &Error::backend(NAME, difference)),
                Err(error) if device.gpu().is_lost() => return Err(error),
                Err(error) => tuning.refuse(&class, &error),
            }
        }
    }
    Ok(())
}

/// Returns the first difference between the results of two variants of a call, or `None` if they are equal.
fn first_difference(
    device: &Handle,
    dispatch: &Dispatch,
    units: (Precision, Option<CoopConfig>),
    class: &Class,
    variants: &[String; 2],
) -> Result<Option<String>> {
    let operands = Operands::plain(dispatch);
    let trial = Trial::new(device, dispatch, &operands, units, (class, variants), Instant::now())?;
    let (mut usual, mut other) = (trial.prepare(&variants[0])?, trial.prepare(&variants[1])?);
    trial.difference(&mut usual, &mut other)
}

/// Type of a comparison: a function that returns the difference between two variants of a call.
pub(super) type Difference<'a> = dyn Fn(&Dispatch, &Class, &[String; 2]) -> Result<Option<String>> + 'a;

/// A class whose stored variant is used, with the default variant and the stored one.
struct UsedVariant {
    class: Class,
    variants: [String; 2],
}

/// A selector of stored variants that records which of them are used.
struct UsageRecorder<'a> {
    choices: &'a dyn ScheduleChooser,
    asked: RefCell<Vec<UsedVariant>>,
}

impl ScheduleChooser for UsageRecorder<'_> {
    fn precision(&self) -> Precision {
        self.choices.precision()
    }

    fn choose(&self, class: &Class, candidates: &dyn Fn() -> Vec<Schedule>) -> Option<Schedule> {
        let variant = self.choices.choose(class, candidates)?;
        let all = candidates();
        if let Some(usual) = all.first().filter(|usual| **usual != variant && all.contains(&variant)) {
            self.asked.borrow_mut().push(UsedVariant {
                class: class.clone(),
                variants: [usual.to_string(), variant.to_string()],
            });
        }
        Some(variant)
    }

    fn missing(&self, class: &Class, schedule: &Schedule) {
        self.choices.missing(class, schedule);
    }
}
