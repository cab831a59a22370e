//! The launches of a plan with their pipelines and memory: what the executable records at each step.

use std::sync::Arc;

use meganeura_core::plan::ExecutionPlan;
use meganeura_core::{Error, Result};
use meganeura_shaders::Launch;
use meganeura_shaders::host::{self, Draft, phases};

use crate::memory::Arena;
use crate::pipeline::{self, Pipeline};

/// A launch, ready to be recorded.
pub(crate) struct Ready {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) bound: Vec<pipeline::Bound>,
    pub(crate) groups: [u32; 3],
    /// Number of the dispatch.
    pub(crate) dispatch: u32,
}

/// Launches between two barriers.
pub(crate) type Phase = Vec<Ready>;

/// The phases of each segment, with their pipelines and memory.
///
/// # Errors
/// A buffer that has no place.
pub(crate) fn ready(
    draft: &Draft,
    plan: &ExecutionPlan,
    pipelines: Vec<Arc<Pipeline>>,
    arena: &Arena,
) -> Result<Vec<Vec<Phase>>> {
    let mut made = pipelines.into_iter();
    let mut ready: Vec<Vec<Ready>> = Vec::with_capacity(plan.dispatches.len());
    for (number, launches) in draft.launches().enumerate() {
        let mut list = Vec::with_capacity(launches.len());
        for (launch, pipeline) in launches.iter().zip(made.by_ref()) {
            list.push(Ready {
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

fn bound(draft: &Draft, dispatch: usize, launch: &Launch, arena: &Arena) -> Result<Vec<pipeline::Bound>> {
    let bound = draft.bound(dispatch, launch).into_iter().map(|bound| match bound {
        host::Bound::Buffer(buffer) => {
            let place = arena.place(buffer);
            let place = place.ok_or_else(|| Error::plan(format!("there is no buffer b{buffer}")))?;
            Ok(pipeline::Bound::Piece(arena.piece(place, 0)))
        }
        host::Bound::Number(number) => Ok(pipeline::Bound::Number(number)),
        host::Bound::Scalars => Ok(pipeline::Bound::Scalars),
    });
    bound.collect()
}
