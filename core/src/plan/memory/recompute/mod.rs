//! Recomputation (gradient checkpointing): some values of a step are not kept, but recomputed just
//! before a late use.
//!
//! It works on a plan instead of a graph, because only the plan contains everything that matters:
//! which values share a buffer as views, which are written in place, how calls were decomposed for
//! the device, and at which levels dispatches run. Clusters are ordinary dispatches, and are
//! repeated as a whole. A copy of a dispatch runs at a level directly before its first reader; the
//! levels of a plan determine the order of execution, so nothing else is needed to keep it late.
//! The number of levels does not change; some have more dispatches.
//!
//! A greedy search reduces the memory to the budget. Among all values that are live but unused in levels with too many
//! bytes, it drops the one that saves most bytes over these levels, per picosecond of recomputation by the device's
//! cost model. The cost includes everything else that must be repeated, or kept longer, for it. A value whose first use
//! is late is only computed later, which costs no time. At the end, copies for which there is enough memory after all
//! are removed. The idea is from Chen et al. (2016); the choice by size, time and cost is from Kirisame et al. (2021),
//! who make it at run time.
//!
//! Results are the same, bit for bit if kernels are deterministic: a copy has the operands of the
//! first run. Random operators take seed and step as operands, and these do not change within a
//! step. Persistent data is never written twice: a dispatch that writes it is not repeated, or, if
//! the written values have no influence on its other results (running statistics of a batch norm),
//! its copy writes them to unused memory.

mod change;
mod steps;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{ALIGNMENT, MemoryBudget, aligned};
use crate::cost::Target;
use crate::error::{Error, Result};
use crate::plan::{ExecutionPlan, FORWARD_BACKWARD};
use steps::Steps;

/// The recomputation in a plan that was compiled with a memory budget.
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
    /// Estimated time of the repeated dispatches, in picoseconds.
    pub extra_ps: u64,
    /// Estimated time of a step without them and without updates, in picoseconds.
    pub step_ps: u64,
}

impl Recomputation {
    /// Returns the estimated time of a step relative to one without recomputation, at least 1.
    pub fn slow_down(&self) -> f64 {
        1.0 + self.extra_ps as f64 / self.step_ps.max(1) as f64
    }
}

impl fmt::Display for Recomputation {
    /// Writes `85 dispatches are recomputed, an estimated 12.3 ms or 5.2 % more; 574.2 MB instead
    /// of 1148.4 MB`.
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

/// Makes a plan fit into a budget. The plan has no update yet; `finish` adds it, if there is one,
/// and places the buffers. `target` is used only for times; `device_memory` is the memory of the
/// device in bytes, if available.
///
/// A plan that already fits is not changed.
///
/// # Errors
/// [`Error::MemoryBudget`] for a budget that cannot be reached; [`Error::InvalidUse`] for an
/// invalid budget, or a plan with more than one segment; errors of `finish`.
pub fn fit_to_budget(
    plan: &ExecutionPlan,
    budget: &MemoryBudget,
    target: &dyn Target,
    device_memory: Option<u64>,
    finish: &dyn Fn(&mut ExecutionPlan) -> Result<()>,
) -> Result<ExecutionPlan> {
    if plan.segments.len() != 1 || plan.segments[0].name != FORWARD_BACKWARD {
        return Err(Error::misuse(
            "recomputation needs a plan without an update",
            "pass the budget to the build, which adds the update afterwards",
        ));
    }
    let mut whole = plan.clone();
    finish(&mut whole)?;
    let without = whole.memory_forecast();
    let bytes = budget.bytes(&without, device_memory)?;
    let fitting = BudgetSearch {
        plan,
        start: Steps::new(plan, target)?,
        persistent: persistent(&whole),
        without: without.planned,
        finish,
    };
    match fitting.fit(bytes)? {
        SearchResult::Fits(plan) => Ok(*plan),
        SearchResult::Least(least) => Err(Error::MemoryBudget {
            budget: bytes,
            least: fitting.least(bytes, least)?,
            without: without.planned,
        }),
    }
}

/// Returns the bytes of buffers that share no memory.
fn persistent(plan: &ExecutionPlan) -> usize {
    let lives = plan.lifetimes();
    let persistent = (0..plan.buffers.len()).filter(|i| lives[*i].is_none());
    persistent.map(|i| aligned(plan.buffers[i])).sum()
}

struct BudgetSearch<'a> {
    plan: &'a ExecutionPlan,
    start: Steps,
    persistent: usize,
    without: usize,
    finish: &'a dyn Fn(&mut ExecutionPlan) -> Result<()>,
}

/// Result of a search with one budget.
enum SearchResult {
    Fits(Box<ExecutionPlan>),
    /// The plan does not fit: it needs at least this number of bytes.
    Least(usize),
}

/// The search for the smallest budget ends when the remaining interval is smaller than the budget
/// divided by this.
const MIN_PARTS: usize = 50;

impl BudgetSearch<'_> {
    /// Returns the smallest budget that the search can reach, between `not` (out of reach) and `least` (perhaps in
    /// reach). The result is not exact, because every budget leads to a different search.
    fn least(&self, mut not: usize, mut least: usize) -> Result<usize> {
        while let SearchResult::Least(more) = self.fit(least)? {
            least = more.max(least + ALIGNMENT);
        }
        while least - not > least / MIN_PARTS {
            let between = not + (least - not) / 2;
            match self.fit(between)? {
                SearchResult::Fits(_) => least = between,
                SearchResult::Least(_) => not = between,
            }
        }
        Ok(least)
    }

    fn fit(&self, budget: usize) -> Result<SearchResult> {
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
                return Ok(SearchResult::Fits(Box::new(plan)));
            }
            least = least.min(planned);
            if stuck {
                return Ok(SearchResult::Least(least));
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
