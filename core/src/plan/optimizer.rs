//! Optimizers: parameter updates, compiled from ordinary operators into a segment of the plan.

use std::collections::HashMap;
use std::fmt::Debug;

use super::compile::{Supports, lower};
use super::{BufferRef, ExecutionPlan, UPDATE};
use crate::backend::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId, Value};
use crate::ops::AdamScalars;

/// A rule that turns gradients into parameter updates.
///
/// Hyper-parameters are scalars of each step; changing them changes no plan as long as
/// [`Optimizer::kind`] stays the same.
pub trait Optimizer: Send + Sync + Debug {
    /// Word that names the form of the update: plans are rebuilt, and moments start anew, when it changes.
    fn kind(&self) -> String;

    /// Tells names and values of the scalars of update `t` (from 1). Called in every step, so it allocates
    /// nothing.
    fn scalars(&self, t: u64, set: &mut dyn FnMut(&'static str, f64));

    /// Builds the update of one parameter: states are made on `graph` under names that contain `name`, the
    /// parameter is written by an operator with effects.
    fn update(&self, graph: &mut Graph, name: &str, parameter: NodeId, gradient: NodeId);

    /// The learning rate, for displays and schedules.
    fn learning_rate(&self) -> f32;

    /// Sets the learning rate.
    fn set_learning_rate(&mut self, lr: f32);

    /// Checks the hyper-parameters.
    ///
    /// # Errors
    /// What is wrong with them.
    fn check(&self) -> Result<(), String>;

    /// A copy behind a new pointer.
    fn clone_box(&self) -> Box<dyn Optimizer>;
}

impl Clone for Box<dyn Optimizer> {
    fn clone(&self) -> Self {
        self.clone_box()
    }
}

/// Stochastic gradient descent, with optional (Nesterov) momentum and L2 weight decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Learning rate.
    pub lr: f32,
    /// Decay of the velocity; 0 keeps none.
    pub momentum: f32,
    /// Whether to look ahead along the velocity.
    pub nesterov: bool,
    /// Multiple of the parameter that is added to its gradient.
    pub weight_decay: f32,
}

impl Sgd {
    /// Plain gradient descent.
    pub fn new(lr: f32) -> Self {
        Sgd {
            lr,
            momentum: 0.0,
            nesterov: false,
            weight_decay: 0.0,
        }
    }
}

/// Adam, and AdamW with decoupled weight decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Learning rate.
    pub lr: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the denominator.
    pub eps: f32,
    /// Weight decay: added to the gradient, or applied to the parameter if decoupled.
    pub weight_decay: f32,
    /// Whether weight decay bypasses the moments (AdamW).
    pub decoupled: bool,
}

impl Adam {
    /// Adam with the published constants and no weight decay.
    pub fn new(lr: f32) -> Self {
        Adam {
            lr,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
            decoupled: false,
        }
    }

    /// AdamW with the published constants.
    pub fn adamw(lr: f32, weight_decay: f32) -> Self {
        Adam {
            weight_decay,
            decoupled: true,
            ..Adam::new(lr)
        }
    }
}

fn finite_and_not_negative(values: &[(&str, f32)]) -> Result<(), String> {
    match values.iter().find(|(_, v)| !v.is_finite() || *v < 0.0) {
        Some((name, v)) => Err(format!("the {name} {v} is not a finite number of at least 0")),
        None => Ok(()),
    }
}

fn below_one(values: &[(&str, f32)]) -> Result<(), String> {
    match values.iter().find(|(_, v)| !(0.0..1.0).contains(v)) {
        Some((name, v)) => Err(format!("the {name} {v} is not in [0, 1)")),
        None => Ok(()),
    }
}

impl Optimizer for Sgd {
    fn kind(&self) -> String {
        match (self.momentum != 0.0, self.nesterov) {
            (false, _) => "sgd".into(),
            (true, false) => "momentum".into(),
            (true, true) => "nesterov".into(),
        }
    }

    fn scalars(&self, _: u64, set: &mut dyn FnMut(&'static str, f64)) {
        set("optimizer.lr", self.lr.into());
        set("optimizer.weight_decay", self.weight_decay.into());
        set("optimizer.momentum", self.momentum.into());
    }

    fn update(&self, graph: &mut Graph, name: &str, parameter: NodeId, gradient: NodeId) {
        let lr = graph.scalar_input("optimizer.lr", DType::F32);
        let decay = graph.scalar_input("optimizer.weight_decay", DType::F32);
        let (p, g) = (parameter.into(), gradient.into());
        if self.momentum == 0.0 {
            graph.sgd_update([p, g], [lr, decay]);
            return;
        }
        let momentum = graph.scalar_input("optimizer.momentum", DType::F32);
        let shape = graph.shape(parameter).to_vec();
        let velocity = graph.state(&format!("optimizer.velocity.{name}"), &shape);
        graph.momentum_update([p, g, velocity.into()], [lr, decay, momentum], self.nesterov);
    }

    fn learning_rate(&self) -> f32 {
        self.lr
    }

    fn set_learning_rate(&mut self, lr: f32) {
        self.lr = lr;
    }

    fn check(&self) -> Result<(), String> {
        finite_and_not_negative(&[("learning rate", self.lr), ("weight decay", self.weight_decay)])?;
        below_one(&[("momentum", self.momentum)])?;
        if self.nesterov && self.momentum == 0.0 {
            return Err("Nesterov's form needs a momentum".into());
        }
        Ok(())
    }

    fn clone_box(&self) -> Box<dyn Optimizer> {
        Box::new(*self)
    }
}

impl Optimizer for Adam {
    fn kind(&self) -> String {
        if self.decoupled { "adamw" } else { "adam" }.into()
    }

    fn scalars(&self, t: u64, set: &mut dyn FnMut(&'static str, f64)) {
        let (beta1, beta2) = (f64::from(self.beta1), f64::from(self.beta2));
        let t = t.min(i32::MAX as u64) as i32;
        set("optimizer.lr", self.lr.into());
        set("optimizer.beta1", beta1);
        set("optimizer.beta2", beta2);
        set("optimizer.eps", self.eps.into());
        set("optimizer.weight_decay", self.weight_decay.into());
        // On the host in f64: 1 - 0.999 in f32 would be off by 1e-5.
        set("optimizer.correction1", 1.0 - beta1.powi(t));
        set("optimizer.correction2", 1.0 - beta2.powi(t));
    }

    fn update(&self, graph: &mut Graph, name: &str, parameter: NodeId, gradient: NodeId) {
        let mut scalar = |name: &str| graph.scalar_input(&format!("optimizer.{name}"), DType::F32);
        let scalars = AdamScalars {
            lr: scalar("lr"),
            beta1: scalar("beta1"),
            beta2: scalar("beta2"),
            eps: scalar("eps"),
            weight_decay: scalar("weight_decay"),
            correction1: scalar("correction1"),
            correction2: scalar("correction2"),
        };
        let shape = graph.shape(parameter).to_vec();
        let m = graph.state(&format!("optimizer.m.{name}"), &shape);
        let v = graph.state(&format!("optimizer.v.{name}"), &shape);
        let operands: [Value; 4] = [parameter, gradient, m, v].map(Value::from);
        graph.adam_update(operands, scalars, self.decoupled);
    }

    fn learning_rate(&self) -> f32 {
        self.lr
    }

    fn set_learning_rate(&mut self, lr: f32) {
        self.lr = lr;
    }

    fn check(&self) -> Result<(), String> {
        finite_and_not_negative(&[
            ("learning rate", self.lr),
            ("eps", self.eps),
            ("weight decay", self.weight_decay),
        ])?;
        below_one(&[("beta1", self.beta1), ("beta2", self.beta2)])
    }

    fn clone_box(&self) -> Box<dyn Optimizer> {
        Box::new(*self)
    }
}

/// Adds the update segment to a plan, replacing an earlier one. On an error the plan stays as it was.
///
/// # Errors
/// [`Error::InvalidUse`] when the plan has no gradients, or names that belong to the optimizer; an invalid
/// plan; what lowering for the device finds.
pub fn attach(plan: &mut ExecutionPlan, optimizer: &dyn Optimizer, device: &dyn Device) -> Result<()> {
    optimizer
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
    let (graph, bound) = update_graph(&next, optimizer)?;
    let states = next.state_buffers.len();
    let supports: Supports = &|k| device.supports(k);
    lower(&graph, &mut next, &bound, UPDATE, &device.capabilities().name, supports)?;
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

/// The updates of all parameters, and the buffers that their leaves stand for.
fn update_graph(plan: &ExecutionPlan, optimizer: &dyn Optimizer) -> Result<(Graph, HashMap<NodeId, BufferRef>)> {
    let mut graph = Graph::new();
    let mut bound = HashMap::new();
    let names: HashMap<BufferRef, &str> = plan.param_buffers.iter().map(|(n, b)| (*b, n.as_str())).collect();
    for (i, &(parameter, gradient)) in plan.param_grad_pairs.iter().enumerate() {
        let name = names.get(&parameter).copied().unwrap_or_default();
        let ty = &plan.buffer_types[parameter.index()];
        // Numbered: names of parameters are the user's, and any suffix could be one of them.
        let p = graph.parameter(&format!("{RESERVED}parameter.{i}"), &ty.shape);
        let g = graph.input(&format!("{RESERVED}gradient.{i}"), &ty.shape);
        bound.insert(p, parameter);
        bound.insert(g, gradient);
        let first = graph.nodes().len();
        optimizer.update(&mut graph, name, p, g);
        for id in (first..graph.nodes().len()).map(|i| NodeId(i as u32)) {
            if graph.nodes()[id.index()].is_op() && graph.nodes()[id.index()].name.is_none() {
                graph.named(id, name);
            }
        }
    }
    graph.verify()?;
    Ok((graph, bound))
}

/// Removes the update segment and what only it needs. Its buffers are the last of the plan, so the others
/// keep their numbers.
pub fn detach(plan: &mut ExecutionPlan) {
    let Some(at) = plan.segments.iter().position(|s| s.name == UPDATE) else {
        return;
    };
    let segment = plan.segments.remove(at);
    let end = plan.dispatches.len();
    plan.dispatches
        .drain(segment.first.min(end)..(segment.first + segment.count).min(end));
    for later in &mut plan.segments[at..] {
        later.first = later.first.saturating_sub(segment.count);
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
