//! Selection of the schedule of a call.
//!
//! By default, thresholds of each kernel family select the schedule. They are constants in the family's files. A
//! tuner can request another schedule ([`ScheduleChooser`](super::ScheduleChooser)). A call belongs to a [`Class`],
//! and each [`Schedule`] can be printed and parsed. A family with several schedules lists them in a file
//! `schedules.rs`.

use std::sync::Arc;

use meganeura_core::precision::Precision;

use super::kernel::{CompileCx, Compiled};
use super::schedule::{Class, Schedule};

/// Maximum number of rows or batches for which each number is a separate class.
const EXACT_ROWS: usize = 16;

/// Returns the range of sizes that form one class. It ends with a power of two, and begins after the previous power
/// of two.
pub(super) fn range(size: usize) -> String {
    match size {
        ..=EXACT_ROWS => size.to_string(),
        _ => {
            let last = size.checked_next_power_of_two().unwrap_or(usize::MAX);
            format!("{}..{last}", last / 2 + 1)
        }
    }
}

/// A variant of a call's computation.
pub(super) trait Candidate {
    /// Returns the schedule. It is unique among the variants of the call.
    fn schedule(&self) -> Schedule;
}

/// Compiles a call in the variant that the chooser requests, or else in the default variant, which is the first one
/// of `all`. If the default variant cannot be generated, returns its error.
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

/// Compiles a call in the variant that the chooser requests. Returns `None` if it requests no variant, or a variant
/// that cannot be generated. `all` lists the candidates, the default one first.
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

/// Records the schedule in the launches.
pub(super) fn scheduled(mut compiled: Compiled, schedule: &Schedule) -> Compiled {
    let text: Arc<str> = schedule.to_string().into();
    for launch in &mut compiled.launches {
        launch.schedule.get_or_insert_with(|| text.clone());
    }
    compiled
}
