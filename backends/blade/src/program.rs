//! The launches of a plan with their pipelines and memory. The executable records them in each step.

use std::sync::Arc;

use meganeura_core::plan::ExecutionPlan;
use meganeura_core::{Error, Result};
use meganeura_shaders::Launch;
use meganeura_shaders::host::{self, LaunchPlan, phases};

use crate::memory::Arena;
use crate::pipeline::{self, Pipeline};

/// A launch with its pipeline and bindings, ready to be recorded.
pub(crate) struct PreparedLaunch {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) bound: Vec<pipeline::Bound>,
    pub(crate) groups: [u32; 3],
    /// Index of the dispatch in the plan.
    pub(crate) dispatch: u32,
}

/// The launches between two barriers, which may run at the same time.
pub(crate) type Phase = Vec<PreparedLaunch>;

/// Prepares the launches of a plan, and returns the phases of each segment.
///
/// # Errors
/// A buffer has no location.
pub(crate) fn ready(
    draft: &LaunchPlan,
    plan: &ExecutionPlan,
    pipelines: Vec<Arc<Pipeline>>,
    arena: &Arena,
) -> Result<Vec<Vec<Phase>>> {
    let mut made = pipelines.into_iter();
    let mut ready: Vec<Vec<PreparedLaunch>> = Vec::with_capacity(plan.dispatches.len());
    for (number, launches) in draft.launches().enumerate() {
        let mut list = Vec::with_capacity(launches.len());
        for (launch, pipeline) in launches.iter().zip(made.by_ref()) {
            list.push(PreparedLaunch {
                pipeline,
                bound: bound(draft, number, launch, arena)?,
                groups: launch.groups,
                dispatch: number as u32,
            });
        }
        ready.push(list);
    }
    let mut ready = ready.into_iter();
    Ok(plan.segments.iter().map(|s| phases(plan, s, &mut ready)).collect())
}

fn bound(draft: &LaunchPlan, dispatch: usize, launch: &Launch, arena: &Arena) -> Result<Vec<pipeline::Bound>> {
    let bound = draft.bound(dispatch, launch).into_iter().map(|bound| match bound {
        host::Bound::Buffer(buffer) => {
            let place = arena.place(buffer);
            let place = place.ok_or_else(|| Error::plan(format!("buffer b{buffer} does not exist")))?;
            Ok(pipeline::Bound::Piece(arena.piece(place, 0)))
        }
        host::Bound::Number(number) => Ok(pipeline::Bound::Number(number)),
        host::Bound::Scalars => Ok(pipeline::Bound::Scalars),
    });
    bound.collect()
}
