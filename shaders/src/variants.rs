//! Which schedule a call gets.
//!
//! By default the limits of each family of kernels choose, which are constants beside it. Whoever measures can ask for another
//! schedule ([`ScheduleChooser`](super::ScheduleChooser)): a call belongs to a [`Class`], and each [`Schedule`] can be printed and parsed. A family that has
//! several schedules has a file `schedules.rs` that lists them.

use std::sync::Arc;

use meganeura_core::precision::Precision;

use super::kernel::{CompileCx, Compiled};
use super::schedule::{Class, Schedule};

/// Rows, and batches, up to which each number is a class of its own.
const EXACT_ROWS: usize = 16;

/// The range of sizes that are one class: a power of two, and what is above the next smaller one.
pub(super) fn range(size: usize) -> String {
    match size {
        ..=EXACT_ROWS => size.to_string(),
        _ => {
            let last = size.checked_next_power_of_two().unwrap_or(usize::MAX);
            format!("{}..{last}", last / 2 + 1)
        }
    }
}

/// How a family of kernels computes a call.
pub(super) trait Candidate {
    /// What tells it from all others for the call.
    fn schedule(&self) -> Schedule;
}

/// Compiles a call in the variant that a chooser asks for, or else in the default one, which is the first of `all`. Where the default one
/// cannot be made, neither is another.
pub(super) fn compile<C: Candidate>(
    cx: &CompileCx,
    class: impl FnOnce(Precision) -> Class,
    usual: &C,
    all: impl Fn() -> Vec<C>,
    compile: impl Fn(&C) -> Result<Compiled, String>,
) -> Result<Compiled, String> {
    let compiled = scheduled(compile(usual)?, &usual.schedule());
    Ok(chosen(cx, class, all, compile).unwrap_or(compiled))
}

/// What a chooser asks to compile a call to; `None` where it asks for nothing, or for what cannot be made. `all` lists the
/// candidates, the default one first.
pub(super) fn chosen<C: Candidate>(
    cx: &CompileCx,
    class: impl FnOnce(Precision) -> Class,
    all: impl Fn() -> Vec<C>,
    compile: impl FnOnce(&C) -> Result<Compiled, String>,
) -> Option<Compiled> {
    let chooser = cx.choices?;
    let class = class(chooser.precision());
    let candidates = || {
        let mut schedules: Vec<Schedule> = Vec::new();
        for schedule in all().iter().map(Candidate::schedule) {
            if !schedules.contains(&schedule) {
                schedules.push(schedule);
            }
        }
        schedules
    };
    let schedule = chooser.choose(&class, &candidates)?;
    let candidate = all().into_iter().find(|candidate| candidate.schedule() == schedule);
    let Some(mut compiled) = candidate.and_then(|candidate| compile(&candidate).ok()) else {
        chooser.missing(&class, &schedule);
        return None;
    };
    let class = Arc::new(class);
    for launch in &mut compiled.launches {
        launch.chosen = Some(class.clone());
    }
    Some(scheduled(compiled, &schedule))
}

/// Says in launches which schedule they follow.
pub(super) fn scheduled(mut compiled: Compiled, schedule: &Schedule) -> Compiled {
    let text: Arc<str> = schedule.to_string().into();
    for launch in &mut compiled.launches {
        launch.schedule.get_or_insert_with(|| text.clone());
    }
    compiled
}
