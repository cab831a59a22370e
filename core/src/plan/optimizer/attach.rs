//! Adding the segments of an update to a plan, and removing them.

use super::Update;
use super::leaves::{RESERVED, Share, accumulation, loss_scale, updates};
use crate::backend::Device;
use crate::error::{Error, Result};
use crate::loss_scaling::FOUND_STATE;
use crate::plan::{ACCUMULATE, ExecutionPlan, LOSS_SCALE, UPDATE};

/// Adds the segments of an update to a plan, replacing earlier ones. On an error the plan is
/// unchanged.
///
/// # Errors
/// [`Error::InvalidUse`] if the plan has no gradients, uses names that are reserved for the
/// optimizer, or a parameter group matches no parameter; an invalid plan; errors of lowering for
/// the device.
pub fn attach(plan: &mut ExecutionPlan, update: &Update, device: &dyn Device) -> Result<()> {
    attach_share(plan, update, device, None)
}

/// Adds an update like [`attach`], but updates only the trained parameters of a share. Clipping by the norm and the
/// loss scale need sums over all gradients; these are scalars ([`REDUCED_SQUARES`], [`REDUCED_NON_FINITE`]).
///
/// [`REDUCED_SQUARES`]: super::REDUCED_SQUARES
/// [`REDUCED_NON_FINITE`]: super::REDUCED_NON_FINITE
///
/// # Errors
/// As [`attach`].
pub(crate) fn attach_share(
    plan: &mut ExecutionPlan,
    update: &Update,
    device: &dyn Device,
    share: Option<Share>,
) -> Result<()> {
    update.checked()?;
    plan.verify()?;
    if plan.param_grad_pairs.is_empty() {
        return Err(Error::misuse(
            "an optimizer needs gradients, but the plan has none",
            "build a training session (`build_session`, or `Mode::Training`) with at least one trainable parameter",
        ));
    }
    let mut next = plan.clone();
    detach(&mut next);
    check_reserved_names(&next)?;
    check_groups(&next, update)?;
    let states = next.state_buffers.len();
    if update.accumulate > 1 {
        let leaves = accumulation(&next);
        leaves.lower(&mut next, ACCUMULATE, device)?;
    }
    if let Some(scaling) = next.loss_scaling {
        let leaves = loss_scale(&next, scaling, share.is_some())?;
        leaves.lower(&mut next, LOSS_SCALE, device)?;
    }
    let leaves = updates(&next, update, share);
    leaves.lower(&mut next, UPDATE, device)?;
    let found = next.state_buffers.iter().find(|s| s.name == FOUND_STATE);
    let found = found.map(|s| s.buffer);
    if let Some(segment) = next.segments.last_mut() {
        segment.skip_if = found;
    }
    for state in &mut next.state_buffers[states..] {
        state.optimizer = true;
    }
    device.finalize(&mut next)?;
    next.place_buffers(device.capabilities().max_buffer_bytes)?;
    next.verify()?;
    *plan = next;
    Ok(())
}

fn check_reserved_names(plan: &ExecutionPlan) -> Result<()> {
    let states = plan.state_buffers.iter().map(|s| s.name.as_str());
    let scalars = plan.scalar_buffers.iter().map(|(n, _)| n.as_str());
    match states.chain(scalars).find(|n| n.starts_with(RESERVED)) {
        None => Ok(()),
        Some(name) => Err(Error::misuse(
            format!("the model has a state or scalar named '{name}', but these names belong to the optimizer"),
            "rename it: names that start with 'optimizer.' are reserved",
        )),
    }
}

/// Checks that every pattern of every group matches a trainable parameter.
fn check_groups(plan: &ExecutionPlan, update: &Update) -> Result<()> {
    let parameters = plan.parameters();
    let is_trained = |buffer| plan.param_grad_pairs.iter().any(|(p, _)| *p == buffer);
    let trained = parameters.iter().filter(|p| is_trained(p.buffer));
    let names: Vec<&str> = trained.map(|p| p.name.as_str()).collect();
    let mut patterns = update.groups.iter().flat_map(|group| &group.patterns);
    match patterns.find(|pattern| !names.iter().any(|name| crate::pattern::matches(pattern, name))) {
        None => Ok(()),
        Some(pattern) => Err(Error::misuse(
            format!(
                "'{pattern}' of a parameter group matches none of the trained parameters, which are {}",
                names.join(", ")
            ),
            "correct the pattern; `*` matches any characters",
        )),
    }
}

/// Removes the segments of an update and everything that only they need. Their buffers are the last
/// of the plan, so the remaining buffers keep their indices and offsets.
pub fn detach(plan: &mut ExecutionPlan) {
    let is_update = |name: &str| [ACCUMULATE, LOSS_SCALE, UPDATE].contains(&name);
    while let Some(at) = plan.segments.iter().position(|s| is_update(&s.name)) {
        let segment = plan.segments.remove(at);
        let end = plan.dispatches.len();
        plan.dispatches
            .drain(segment.first.min(end)..(segment.first + segment.count).min(end));
        for later in &mut plan.segments[at..] {
            later.first = later.first.saturating_sub(segment.count);
        }
    }
    plan.state_buffers.retain(|s| !s.optimizer);
    let used = plan.first_unused_buffer();
    plan.buffers.truncate(used);
    plan.buffer_types.truncate(used);
    plan.memory.offsets.truncate(used);
    plan.scalar_buffers.retain(|(_, b)| b.index() < used);
    plan.constant_buffers.retain(|(b, _)| b.index() < used);
    plan.raw_constant_buffers.retain(|(b, _)| b.index() < used);
}

impl ExecutionPlan {
    /// Returns the index after the last buffer that the remaining dispatches and tables need.
    fn first_unused_buffer(&self) -> usize {
        let dispatched = self
            .dispatches
            .iter()
            .flat_map(|d| d.inputs.iter().chain(&d.outputs).map(|o| o.buffer));
        let named = self.param_buffers.iter().chain(&self.input_buffers).map(|(_, b)| *b);
        let states = self.state_buffers.iter().map(|s| s.buffer);
        let results = self.output_buffers.iter().copied();
        let gradients = self.gradient_buffers.iter().map(|(_, b)| *b);
        dispatched
            .chain(named)
            .chain(states)
            .chain(results)
            .chain(gradients)
            .map(|b| b.index() + 1)
            .max()
            .unwrap_or(0)
    }
}
