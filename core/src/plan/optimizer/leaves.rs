//! Construction of updates as graphs whose leaves are buffers of a plan.

use std::collections::HashMap;

use super::update::{UpdateForm, UpdateInputs, sum_of};
use super::{GradientClip, UPDATES_STATE, Update};
use crate::backend::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId, NodeKind, Value};
use crate::loss_scaling::{FOUND_STATE, GOOD_STATE, INVERSE_STATE, LossScaling, SCALE_STATE, SKIPPED_STATE};
use crate::plan::compile::{Supports, lower};
use crate::plan::{BufferRef, ExecutionPlan};

/// Prefix of the names of an optimizer's states and scalars.
pub(super) const RESERVED: &str = "optimizer.";
/// Prefix of the names of the states in which gradients are accumulated.
const ACCUMULATED: &str = "optimizer.accumulated.";
/// Prefix of the names of temporary states that contain the sources of a packed parameter during an update.
const UNPACKED: &str = "optimizer.unpacked.";
/// Scalar by which gradients are multiplied before they are accumulated.
pub(crate) const ACCUMULATION_SCALE: &str = "optimizer.accumulation_scale";
/// Scalar that is 0 for the first gradient of an average, else 1.
pub(crate) const ACCUMULATION_KEEP: &str = "optimizer.accumulation_keep";

/// Scalar with the number of gradient elements that are not finite, over all ranks, for ranks that
/// update a share of the parameters.
pub(crate) const REDUCED_NON_FINITE: &str = "optimizer.reduced_non_finite";

/// Predicate for the parameters that this rank updates.
pub(crate) type Share<'a> = &'a dyn Fn(BufferRef) -> bool;

/// Returns the name of the state in which the gradients of a parameter are accumulated.
fn accumulated(parameter: &str) -> String {
    format!("{ACCUMULATED}{parameter}")
}

/// Returns `true` if an optimizer state is a moment of the rule, not a state of clipping,
/// accumulation or loss scaling.
pub(crate) fn is_moment(state: &str) -> bool {
    let around = [
        GradientClip::NORM_STATE,
        UPDATES_STATE,
        GOOD_STATE,
        SKIPPED_STATE,
        FOUND_STATE,
    ];
    !around.contains(&state) && !state.starts_with(ACCUMULATED) && !state.starts_with(UNPACKED)
}

/// A graph in which some leaves are bound to buffers of the plan.
#[derive(Default)]
pub(super) struct Leaves {
    graph: Graph,
    bound: HashMap<NodeId, BufferRef>,
    /// The packed parameter's buffer for each state that has the layout of a packed parameter, by the name of the
    /// state.
    packed: HashMap<String, BufferRef>,
}

impl Leaves {
    fn bind(&mut self, node: NodeId, buffer: BufferRef) -> NodeId {
        self.bound.insert(node, buffer);
        node
    }

    /// Appends the graph to a plan.
    pub(super) fn lower(&self, plan: &mut ExecutionPlan, segment: &str, device: &dyn Device) -> Result<()> {
        self.graph.verify()?;
        let supports: Supports = &|k| device.supports(k);
        let name = &device.capabilities().name;
        lower(&self.graph, plan, &self.bound, segment, name, supports)?;
        for state in &mut plan.state_buffers {
            state.packed = state.packed.or_else(|| self.packed.get(&state.name).copied());
        }
        Ok(())
    }

    /// Records the states that the update of a packed parameter added and that have the parameter's size: they are
    /// moments of all its sources.
    fn note_packed(&mut self, added: std::ops::Range<usize>, updated: &UpdateInputs, buffer: BufferRef) {
        let ty = self.graph.ty(updated.parameter);
        let states = self.graph.nodes()[added].iter().filter(|node| {
            let is_state = matches!(node.kind, NodeKind::State { .. });
            is_state && node.outputs.first() == ty
        });
        let names = states.filter_map(|node| node.name.as_deref());
        let names = names.filter(|name| name.ends_with(&*updated.name));
        self.packed.extend(names.map(|name| (name.to_owned(), buffer)));
    }
}

/// A parameter with a gradient in the plan.
struct TrainedParameter<'a> {
    /// Name of the parameter itself, even if it is packed.
    name: &'a str,
    parameter: BufferRef,
    gradient: BufferRef,
    /// Index among the packed parameters, if it is packed.
    derived: Option<usize>,
}

fn trained(plan: &ExecutionPlan) -> Vec<TrainedParameter<'_>> {
    let names: HashMap<BufferRef, &str> = plan.param_buffers.iter().map(|(n, b)| (*b, n.as_str())).collect();
    let named = |&(parameter, gradient): &(BufferRef, BufferRef)| TrainedParameter {
        name: names.get(&parameter).copied().unwrap_or_default(),
        parameter,
        gradient,
        derived: plan.derived(parameter),
    };
    plan.param_grad_pairs.iter().map(named).collect()
}

/// Builds the graph that adds every gradient to its average.
pub(super) fn accumulation(plan: &ExecutionPlan) -> Leaves {
    let mut leaves = Leaves::default();
    for (i, trained) in trained(plan).into_iter().enumerate() {
        let shape = &plan.buffer_types[trained.parameter.index()].shape;
        let g = leaves.graph.input(&format!("{RESERVED}gradient.{i}"), shape);
        let g = leaves.bind(g, trained.gradient);
        let graph = &mut leaves.graph;
        let name = accumulated(trained.name);
        let sum = graph.state(&name, shape);
        let scale = graph.scalar_input(ACCUMULATION_SCALE, DType::F32);
        let keep = graph.scalar_input(ACCUMULATION_KEEP, DType::F32);
        let next = graph.accumulate_gradient([sum.into(), g.into()], [scale, keep]);
        graph.named(next, trained.name);
        if trained.derived.is_some() {
            leaves.packed.insert(name, trained.parameter);
        }
    }
    leaves
}

/// Returns the gradient that the update uses: the average over accumulated steps, if there is one.
fn final_gradient(plan: &ExecutionPlan, trained: &TrainedParameter) -> BufferRef {
    let average = accumulated(trained.name);
    let average = plan.state_buffers.iter().find(|s| s.name == average);
    average.map_or(trained.gradient, |s| s.buffer)
}

/// A trained parameter, and the gradient that its update reads: its average over accumulated steps, if there is one.
pub(crate) struct FinalGradient {
    /// Name of the parameter.
    pub(crate) name: String,
    pub(crate) parameter: BufferRef,
    pub(crate) gradient: BufferRef,
}

/// Returns the gradients of all trained parameters, in the plan's order.
pub(crate) fn final_gradients(plan: &ExecutionPlan) -> Vec<FinalGradient> {
    let gradient = |trained: TrainedParameter| FinalGradient {
        name: trained.name.to_owned(),
        parameter: trained.parameter,
        gradient: final_gradient(plan, &trained),
    };
    trained(plan).into_iter().map(gradient).collect()
}

/// Returns `true` for the name of a state in which gradients are accumulated.
pub(crate) fn is_accumulation(state: &str) -> bool {
    state.starts_with(ACCUMULATED)
}

/// Builds the graph that counts non-finite gradient elements and updates the loss scale. `plan`
/// already contains the averages, if there are any. If `is_reduced`, the count is the scalar
/// [`REDUCED_NON_FINITE`].
///
/// # Errors
/// A plan without the states of a loss scale.
pub(super) fn loss_scale(plan: &ExecutionPlan, scaling: LossScaling, is_reduced: bool) -> Result<Leaves> {
    let mut leaves = Leaves::default();
    let mut counts = Vec::new();
    let counted = if is_reduced { Vec::new() } else { trained(plan) };
    for (i, trained) in counted.into_iter().enumerate() {
        let shape = &plan.buffer_types[trained.parameter.index()].shape;
        let g = leaves.graph.input(&format!("{RESERVED}gradient.{i}"), shape);
        let g = leaves.bind(g, final_gradient(plan, &trained));
        let count = leaves.graph.count_non_finite(g);
        counts.push(leaves.graph.named(count, trained.name));
    }
    let mut bound = |name: &str| {
        let state = plan.state_buffers.iter().find(|s| s.name == name);
        let state = state.ok_or_else(|| Error::plan(format!("its gradients are scaled, but '{name}' is missing")))?;
        let leaf = leaves.graph.state(name, &[]);
        Ok(leaves.bind(leaf, state.buffer))
    };
    let (scale, inverse) = (bound(SCALE_STATE)?, bound(INVERSE_STATE)?);
    let graph = &mut leaves.graph;
    let total = if is_reduced {
        graph.scalar_input(REDUCED_NON_FINITE, DType::F32)
    } else {
        sum_of(graph, counts, "loss scale")
    };
    let found = graph.state(FOUND_STATE, &[]);
    let found = graph.assign(found, total);
    let (good, skipped) = (graph.state(GOOD_STATE, &[]), graph.state(SKIPPED_STATE, &[]));
    let interval = graph.scalar(scaling.interval() as f32);
    let states = [scale, inverse, good, skipped].map(Value::from);
    let changed = graph.update_loss_scale(states, total.into(), interval);
    for node in [found, changed] {
        graph.named(node, "loss scale");
    }
    Ok(leaves)
}

/// Builds the updates of all parameters, or of a share. `plan` already contains the averages, if
/// there are any.
pub(super) fn updates(plan: &ExecutionPlan, update: &Update, share: Option<Share>) -> Leaves {
    let mut leaves = Leaves::default();
    let mut parameters: Vec<UpdateInputs> = Vec::new();
    // Packed parameters that are updated as a whole, by their index in `parameters`, and all other
    // packed ones.
    let mut packed: Vec<(usize, BufferRef)> = Vec::new();
    let mut unpacked: Vec<UnpackedParameter> = Vec::new();
    let updated = trained(plan).into_iter().enumerate();
    for (i, trained) in updated.filter(|(_, trained)| share.is_none_or(|is_own| is_own(trained.parameter))) {
        let shape = &plan.buffer_types[trained.parameter.index()].shape;
        // Numbered, because parameter names belong to the user and could have any suffix.
        let p = leaves.graph.parameter(&format!("{RESERVED}parameter.{i}"), shape);
        let g = leaves.graph.input(&format!("{RESERVED}gradient.{i}"), shape);
        let p = leaves.bind(p, trained.parameter);
        let g = leaves.bind(g, final_gradient(plan, &trained));
        let name = trained.name.to_owned();
        let group = match trained.derived {
            None => update.group_of(trained.name),
            Some(derived) => match common_group(plan, derived, update) {
                Some(group) => {
                    packed.push((parameters.len(), trained.parameter));
                    group
                }
                None => {
                    unpacked.push(unpack(&mut leaves.graph, plan, derived, p, g, update, &mut parameters));
                    continue;
                }
            },
        };
        parameters.push(UpdateInputs {
            name,
            group,
            parameter: p,
            gradient: g.into(),
        });
    }
    let form = UpdateForm {
        skips: plan.loss_scaling.is_some(),
        is_share: share.is_some(),
    };
    let added = update.build_all(&mut leaves.graph, &parameters, form);
    for (i, buffer) in packed {
        leaves.note_packed(added[i].clone(), &parameters[i], buffer);
    }
    for unpacked in unpacked {
        unpacked.pack(&mut leaves.graph);
    }
    leaves
}

/// Returns the parameter group of all sources of a packed parameter, if one update of the whole parameter is correct
/// for all of them.
fn common_group(plan: &ExecutionPlan, derived: usize, update: &Update) -> Option<usize> {
    let mut groups = plan.derived_params[derived]
        .1
        .iter()
        .map(|(name, _)| update.group_of(name));
    let group = groups.next()?;
    (update.rule.is_elementwise() && groups.all(|g| g == group)).then_some(group)
}

/// A packed parameter whose sources are copied to be updated separately, because their rules differ.
struct UnpackedParameter {
    name: Option<String>,
    parameter: NodeId,
    axis: usize,
    copies: Vec<NodeId>,
}

/// Copies the sources of a packed parameter to separate tensors, and lists these for updates.
fn unpack(
    graph: &mut Graph,
    plan: &ExecutionPlan,
    derived: usize,
    parameter: NodeId,
    gradient: NodeId,
    update: &Update,
    parameters: &mut Vec<UpdateInputs>,
) -> UnpackedParameter {
    let axis = plan.derived_info.get(derived).map_or(0, |info| info.axis);
    let mut copies = Vec::new();
    let mut start = 0;
    for (name, ty, _) in plan.sources(derived) {
        let size = ty.shape[axis];
        let copy = graph.state(&format!("{UNPACKED}{name}"), &ty.shape);
        let part = graph.narrow(parameter, axis as i32, start, size);
        let copied = graph.assign(copy, part);
        let gradient = graph.narrow(gradient, axis as i32, start, size);
        for node in [part, copied, gradient] {
            graph.named(node, name);
        }
        parameters.push(UpdateInputs {
            name: name.to_owned(),
            group: update.group_of(name),
            parameter: copy,
            gradient: gradient.into(),
        });
        copies.push(copy);
        start += size;
    }
    UnpackedParameter {
        name: plan.parameter_name(plan.derived_params[derived].0).map(str::to_owned),
        parameter,
        axis,
        copies,
    }
}

impl UnpackedParameter {
    /// Writes the updated sources back into the packed parameter.
    fn pack(self, graph: &mut Graph) {
        let joined = graph.concat(&self.copies, self.axis as i32);
        let written = graph.assign(self.parameter, joined);
        for node in [joined, written] {
            graph.named(node, self.name.as_deref().unwrap_or_default());
        }
    }
}
