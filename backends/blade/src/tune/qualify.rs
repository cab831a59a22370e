//! Stored ways are compared with the usual ones before a call uses them for the first time.
//!
//! A way is stored for a class of calls, and these differ: in rows, in what is computed along. What is
//! remembered of each is the text of its kernels, so that nothing is run twice that is known to be right with this driver.

use std::cell::RefCell;
use std::collections::HashSet;
use std::time::Instant;

use meganeura_core::files::sha256;
use meganeura_core::plan::{Dispatch, ExecutionPlan};
use meganeura_core::precision::Precision;
use meganeura_core::{Error, Result};

use super::Chosen;
use super::contest::Subject as _;
use super::operands::Operands;
use super::trial::Trial;
use crate::gpu::NAME;
use crate::handle::Handle;
use meganeura_shaders::Schedule;
use meganeura_shaders::coop::CoopConfig;
use meganeura_shaders::{self as kernels, CompileCx};
use meganeura_shaders::{Class, ScheduleChooser};

/// The hash of the kernels of a call, made for buffers of its own; `None` where there are none.
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

/// Compares the stored ways that a plan would use with the usual ones, unless that was done before. One that is wrong is
/// not used any more.
///
/// # Errors
/// A device that fails.
pub(crate) fn qualify(device: &Handle, chosen: &Chosen, coop: Option<CoopConfig>, plan: &ExecutionPlan) -> Result<()> {
    qualify_by(device, chosen, coop, plan, &|dispatch, class, ways| {
        first_difference(device, dispatch, (plan.precision, coop), class, ways)
    })
}

/// [`qualify`] with another comparison.
pub(super) fn qualify_by(
    device: &Handle,
    chosen: &Chosen,
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
        let noted = Noted {
            choices: chosen,
            asked: RefCell::default(),
        };
        let Some(hash) = text_hash(dispatch, coop.filter(|_| dispatch.use_coop), &noted) else {
            continue;
        };
        for Noticed { class, ways } in noted.asked.take() {
            if tuning.is_qualified(&class, &hash) {
                continue;
            }
            match difference(dispatch, &class, &ways) {
                Ok(None) => tuning.qualified(&class, &hash),
                Ok(Some(difference)) => tuning.refuse(&class, &Error::backend(NAME, difference)),
                Err(error) if device.gpu().is_lost() => return Err(error),
                Err(error) => tuning.refuse(&class, &error),
            }
        }
    }
    Ok(())
}

/// How the second of two ways differs from the first.
fn first_difference(
    device: &Handle,
    dispatch: &Dispatch,
    units: (Precision, Option<CoopConfig>),
    class: &Class,
    ways: &[String; 2],
) -> Result<Option<String>> {
    let operands = Operands::plain(dispatch);
    let trial = Trial::new(device, dispatch, &operands, units, (class, ways), Instant::now())?;
    let (mut usual, mut other) = (trial.prepare(&ways[0])?, trial.prepare(&ways[1])?);
    trial.difference(&mut usual, &mut other)
}

/// How the second of two ways to compute a call differs from the first.
pub(super) type Difference<'a> = dyn Fn(&Dispatch, &Class, &[String; 2]) -> Result<Option<String>> + 'a;

/// A class for which a stored way is used, and the usual way with it.
struct Noticed {
    class: Class,
    ways: [String; 2],
}

/// Notes which stored ways are used.
struct Noted<'a> {
    choices: &'a dyn ScheduleChooser,
    asked: RefCell<Vec<Noticed>>,
}

impl ScheduleChooser for Noted<'_> {
    fn precision(&self) -> Precision {
        self.choices.precision()
    }

    fn choose(&self, class: &Class, candidates: &dyn Fn() -> Vec<Schedule>) -> Option<Schedule> {
        let way = self.choices.choose(class, candidates)?;
        let all = candidates();
        if let Some(usual) = all.first().filter(|usual| **usual != way && all.contains(&way)) {
            self.asked.borrow_mut().push(Noticed {
                class: class.clone(),
                ways: [usual.to_string(), way.to_string()],
            });
        }
        Some(way)
    }

    fn missing(&self, class: &Class, schedule: &Schedule) {
        self.choices.missing(class, schedule);
    }
}
