//! From an update to segments of a plan, and back.

use std::collections::HashMap;

use super::{GradientClip, Update};
use crate::backend::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId, Value};
use crate::plan::compile::{Supports, lower};
use crate::plan::{ACCUMULATE, BufferRef, ExecutionPlan, UPDATE};

/// Adds the segments of an update to a plan, replacing earlier ones. On an error the plan stays as it was.
///
/// # Errors
/// [`Error::InvalidUse`] when the plan has no gradients, or names that belong to the optimizer, or a parameter
/// group names no parameter; an invalid plan; what lowering for the device finds.
pub fn attach(plan: &mut ExecutionPlan, update: &Update, device: &dyn Device) -> Result<()> {
    update
        .check()
        .map_err(|message| Error::misuse(message, "correct the hyper-parameter"))?;
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
    let leaves = updates(&next, update);
    leaves.lower(&mut next, UPDATE, device)?;
    for state in &mut next.state_buffers[states..] {
        state.optimizer = true;
    }
    device.finalize(&mut next)?;
    next.verify()?;
    *plan = next;
    Ok(())
}

/// Prefix of the names of an optimizer's states and scalars.
const RESERVED: &str = "optimizer.";

/// A graph some of whose leaves stand for buffers of the plan.
#[derive(Default)]
struct Leaves {
    graph: Graph,
    bound: HashMap<NodeId, BufferRef>,
}

impl Leaves {
    fn bind(&mut self, node: NodeId, buffer: BufferRef) -> NodeId {
        self.bound.insert(node, buffer);
        node
    }

    /// Appends the graph to a plan.
    fn lower(&self, plan: &mut ExecutionPlan, segment: &str, device: &dyn Device) -> Result<()> {
        self.graph.verify()?;
        let supports: Supports = &|k| device.supports(k);
        let name = &device.capabilities().name;
        lower(&self.graph, plan, &self.bound, segment, name, supports)?;
        Ok(())
    }
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

/// Every pattern of every group must name a trainable parameter.
fn check_groups(plan: &ExecutionPlan, update: &Update) -> Result<()> {
    let names: Vec<&str> = trained(plan).into_iter().map(|(name, ..)| name).collect();
    let mut patterns = update.groups.iter().flat_map(|group| &group.patterns);
    match patterns.find(|pattern| !names.iter().any(|name| super::update::matches(pattern, name))) {
        None => Ok(()),
        Some(pattern) => Err(Error::misuse(
            format!(
                "'{pattern}' of a parameter group names none of the trained parameters, which are {}",
                names.join(", ")
            ),
            "correct the pattern; `*` stands for any characters",
        )),
    }
}

/// Name, parameter and gradient of every trained parameter.
fn trained(plan: &ExecutionPlan) -> Vec<(&str, BufferRef, BufferRef)> {
    let names: HashMap<BufferRef, &str> = plan.param_buffers.iter().map(|(n, b)| (*b, n.as_str())).collect();
    let named = |&(parameter, gradient): &(BufferRef, BufferRef)| {
        let name = names.get(&parameter).copied().unwrap_or_default();
        (name, parameter, gradient)
    };
    plan.param_grad_pairs.iter().map(named).collect()
}

/// Prefix of the names of the states in which gradients add up.
const ACCUMULATED: &str = "optimizer.accumulated.";

/// Name of the state in which the gradients of a parameter add up.
fn accumulated(parameter: &str) -> String {
    format!("{ACCUMULATED}{parameter}")
}

/// Whether the state of an optimizer of that name is a moment of the rule, not part of what is around it.
pub(crate) fn is_moment(state: &str) -> bool {
    state != GradientClip::NORM_STATE && !state.starts_with(ACCUMULATED)
}

/// Adds every gradient to its average.
fn accumulation(plan: &ExecutionPlan) -> Leaves {
    let mut leaves = Leaves::default();
    for (i, (name, _, gradient)) in trained(plan).into_iter().enumerate() {
        let shape = &plan.buffer_types[gradient.index()].shape;
        let g = leaves.graph.input(&format!("{RESERVED}gradient.{i}"), shape);
        let g = leaves.bind(g, gradient);
        let graph = &mut leaves.graph;
        let sum = graph.state(&accumulated(name), shape);
        let scale = graph.scalar_input(ACCUMULATION_SCALE, DType::F32);
        let keep = graph.scalar_input(ACCUMULATION_KEEP, DType::F32);
        let next = graph.accumulate_gradient([sum, g].map(Value::from), [scale, keep]);
        graph.named(next, name);
    }
    leaves
}

/// Scalar by which gradients are multiplied before they are added up.
pub(crate) const ACCUMULATION_SCALE: &str = "optimizer.accumulation_scale";
/// Scalar that is 0 where a gradient is the first of its average, else 1.
pub(crate) const ACCUMULATION_KEEP: &str = "optimizer.accumulation_keep";

/// The updates of all parameters. `plan` has the averages, if there are any.
fn updates(plan: &ExecutionPlan, update: &Update) -> Leaves {
    let mut leaves = Leaves::default();
    let mut parameters = Vec::new();
    for (i, (name, parameter, gradient)) in trained(plan).into_iter().enumerate() {
        let shape = &plan.buffer_types[parameter.index()].shape;
        // Numbered: names of parameters are the user's, and any suffix could be one of them.
        let p = leaves.graph.parameter(&format!("{RESERVED}parameter.{i}"), shape);
        let g = leaves.graph.input(&format!("{RESERVED}gradient.{i}"), shape);
        let average = accumulated(name);
        let average = plan.state_buffers.iter().find(|s| s.name == average);
        let p = leaves.bind(p, parameter);
        let g = leaves.bind(g, average.map_or(gradient, |s| s.buffer));
        parameters.push((name, p, g.into()));
    }
    update.build(&mut leaves.graph, &parameters);
    leaves
}

/// Removes the segments of an update and what only they need. Their buffers are the last of the plan, so the
/// others keep their numbers.
pub fn detach(plan: &mut ExecutionPlan) {
    let is_update = |name: &str| name == UPDATE || name == ACCUMULATE;
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
    plan.scalar_buffers.retain(|(_, b)| b.index() < used);
    plan.constant_buffers.retain(|(b, _)| b.index() < used);
    plan.raw_constant_buffers.retain(|(b, _)| b.index() < used);
}

impl ExecutionPlan {
    /// One past the last buffer that the remaining dispatches and tables need.
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
