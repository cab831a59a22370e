//! Recomputation (gradient checkpointing): values of a step that are computed again just before a late use, instead of being
//! kept.
//!
//! It works on a plan, not on a graph, because only there everything that decides is known: which values share a buffer
//! as views, what is written in place, into which dispatches calls were decomposed for the device, and at which levels
//! they run. Clusters are dispatches like others, and run again as a whole. A copy of a dispatch gets a level of its own
//! directly before the first one that reads it; levels of a plan say when something runs, so nothing else is needed to
//! keep it late. There are as many levels as before, with more dispatches in some.
//!
//! What is over the budget is brought down greedily: of all values that wait through levels with too many bytes, the
//! one is given up that saves most bytes, over the levels where they are too many, for each picosecond that it takes to
//! have it again by the cost model of the device. That includes whatever else must run again, or be kept longer, for it.
//! A value whose first use is late is just computed later, for nothing. In the end, copies for which there is room after
//! all are taken back. The idea goes back to Chen et al. (2016); choosing by size, time and cost to Kirisame et al.
//! (2021), there at run time.
//!
//! Results are the same, bit for bit where kernels are deterministic: a copy has the operands of the first run. Random
//! operators take seed and step as operands, and these do not change within a step. What writes data that lasts never
//! writes it twice: it is not repeated, or, where the written values have no influence on its other results (running
//! statistics of a batch norm), its copy writes them to memory that nobody reads.

mod change;
mod steps;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{ALIGNMENT, MemoryBudget, aligned};
use crate::cost::Target;
use crate::error::{Error, Result};
use crate::plan::{ExecutionPlan, FORWARD_BACKWARD};
use steps::Steps;

/// The recomputation in a plan with a memory budget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recomputation {
    /// The budget in bytes, for the plan with its update.
    pub budget: usize,
    /// Bytes of the plan without recomputation.
    pub peak_without: usize,
    /// Bytes of the plan.
    pub peak: usize,
    /// Indices of the dispatches that recompute values.
    pub repeated: Vec<u32>,
    /// Estimated time of these, in picoseconds.
    pub extra_ps: u64,
    /// Estimated time of a step without them, updates left out, in picoseconds.
    pub step_ps: u64,
}

impl Recomputation {
    /// Estimated time of a step in relation to one without recomputation, at least 1.
    pub fn slow_down(&self) -> f64 {
        1.0 + self.extra_ps as f64 / self.step_ps.max(1) as f64
    }
}

impl fmt::Display for Recomputation {
    /// `85 dispatches are recomputed, an estimated 12.3 ms or 5.2 % more; 574.2 MB instead of 1148.4 MB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: usize| bytes as f64 / 1e6;
        write!(
            f,
            "{} dispatches are recomputed, an estimated {:.3} ms or {:.1} % more; {:.1} MB instead of {:.1} MB",
            self.repeated.len(),
            self.extra_ps as f64 * 1e-9,
            (self.slow_down() - 1.0) * 100.0,
            mb(self.peak),
            mb(self.peak_without)
        )
    }
}

/// Makes a plan fit into a budget. The plan has no update yet; `finish` adds it, if there is one, and places the
/// buffers. `target` is asked for times only, `device_memory` is that of the device in bytes, if known.
///
/// Where the plan fits already, nothing is recomputed.
///
/// # Errors
/// [`Error::MemoryBudget`] for a budget that cannot be reached; [`Error::InvalidUse`] for one that makes no sense, or a
/// plan with more segments than one; what `finish` finds.
pub fn fit_to_budget(
    plan: &ExecutionPlan,
    budget: &MemoryBudget,
    target: &dyn Target,
    device_memory: Option<u64>,
    finish: &dyn Fn(&mut ExecutionPlan) -> Result<()>,
) -> Result<ExecutionPlan> {
    if plan.segments.len() != 1 || plan.segments[0].name != FORWARD_BACKWARD {
        return Err(Error::misuse(
            "recomputation is for plans without an update",
            "give the budget to the build, which adds the update afterwards",
        ));
    }
    let mut whole = plan.clone();
    finish(&mut whole)?;
    let without = whole.memory_forecast();
    let bytes = budget.bytes(&without, device_memory)?;
    let fitting = Fitting {
        plan,
        start: Steps::new(plan, target)?,
        persistent: persistent(&whole),
        without: without.planned,
        finish,
    };
    match fitting.fit(bytes)? {
        Reached::Fits(plan) => Ok(*plan),
        Reached::Least(least) => Err(Error::MemoryBudget {
            budget: bytes,
            least: fitting.least(bytes, least)?,
            without: without.planned,
        }),
    }
}

/// Bytes that are not shared.
fn persistent(plan: &ExecutionPlan) -> usize {
    let lives = plan.lifetimes();
    let persistent = (0..plan.buffers.len()).filter(|i| lives[*i].is_none());
    persistent.map(|i| aligned(plan.buffers[i])).sum()
}

struct Fitting<'a> {
    plan: &'a ExecutionPlan,
    start: Steps,
    persistent: usize,
    without: usize,
    finish: &'a dyn Fn(&mut ExecutionPlan) -> Result<()>,
}

/// Where a search ended.
enum Reached {
    Fits(Box<ExecutionPlan>),
    /// Bytes that it takes at least.
    Least(usize),
}

/// Searches for the least budget end where what is not known is a smaller part of it than one of so many.
const MIN_PARTS: usize = 50;

impl Fitting<'_> {
    /// The least budget that is reached when asked for, between one that is not and one that may be. A search takes
    /// another way for every budget, so that nothing else is promised.
    fn least(&self, mut not: usize, mut least: usize) -> Result<usize> {
        while let Reached::Least(more) = self.fit(least)? {
            least = more.max(least + ALIGNMENT);
        }
        while least - not > least / MIN_PARTS {
            let between = not + (least - not) / 2;
            match self.fit(between)? {
                Reached::Fits(_) => least = between,
                Reached::Least(_) => not = between,
            }
        }
        Ok(least)
    }

    fn fit(&self, budget: usize) -> Result<Reached> {
        let mut steps = self.start.clone();
        let mut limit = budget.saturating_sub(self.persistent);
        let mut least = usize::MAX;
        loop {
            let mut stuck = false;
            while steps.live.iter().any(|&bytes| bytes > limit) && !stuck {
                match steps.best_change(limit) {
                    Some(change) => steps.apply(&change),
                    None => stuck = true,
                }
            }
            let mut relaxed = steps.clone();
            relaxed.take_back(limit.max(steps.live.iter().copied().max().unwrap_or(0)));
            let plan = self.finished(&relaxed, budget)?;
            let planned = plan.memory_forecast().planned;
            if planned <= budget {
                return Ok(Reached::Fits(Box::new(plan)));
            }
            least = least.min(planned);
            if stuck {
                return Ok(Reached::Least(least));
            }
            // Gaps between buffers, or an update that takes more than the rest.
            limit = limit.saturating_sub(planned - budget);
        }
    }

    fn finished(&self, steps: &Steps, budget: usize) -> Result<ExecutionPlan> {
        let (mut plan, repeated) = steps.plan(self.plan);
        (self.finish)(&mut plan)?;
        plan.recomputation = Some(Recomputation {
            budget,
            peak_without: self.without,
            peak: plan.memory_forecast().planned,
            extra_ps: steps
                .repeated()
                .iter()
                .map(|&i| steps.origins[steps.steps[i].origin].cost)
                .sum(),
            step_ps: steps.origins.iter().map(|o| o.cost).sum(),
            repeated,
        });
        plan.verify()?;
        Ok(plan)
    }
}
