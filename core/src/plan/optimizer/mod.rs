//! Optimizers: parameter updates, compiled from ordinary operators into segments of the plan.

mod attach;
mod leaves;
mod rules;
mod update;

use std::collections::HashMap;
use std::fmt::Debug;
use std::ops::{Deref, DerefMut};

pub(crate) use attach::attach_share;
pub use attach::{attach, detach};
pub(crate) use leaves::{
    ACCUMULATION_KEEP, ACCUMULATION_SCALE, REDUCED_NON_FINITE, final_gradients, is_accumulation, is_moment,
};
pub use rules::{Adam, Sgd};
pub(crate) use update::{CLIP_LIMIT, REDUCED_SQUARES};
pub use update::{GradientClip, ParameterGroup, Update};

use crate::dtype::DType;
use crate::graph::{Graph, NodeId, Value};

/// A rule that turns gradients into parameter updates.
///
/// Hyper-parameters are scalars of each step: changing them does not change the plan, provided that
/// [`Optimizer::kind`] stays the same.
pub trait Optimizer: Send + Sync + Debug {
    /// Returns an identifier of the form of the update: if it changes, plans are rebuilt and moments are reset.
    fn kind(&self) -> String;

    /// Calls `set` with name and value of each scalar of update `t` (from 1; see [`UpdateCx::update_number`]). It is
    /// called in every step, so it must not allocate.
    fn scalars(&self, t: u64, set: &mut dyn FnMut(&'static str, f64));

    /// Builds the update of one parameter: scalars and states come from [`UpdateCx::scalar`] and
    /// [`UpdateCx::moment`], the parameter is written by an operator with effects.
    fn update(&self, cx: &mut UpdateCx, parameter: NodeId, gradient: Value);

    /// Returns `true` if each element's update depends only on that element of the parameter, its
    /// gradient and its moments, and on scalars: parameters that are stored as one may then be
    /// updated as one. Rules that use the whole parameter (its norm, its rows) must return `false`,
    /// the default.
    fn is_elementwise(&self) -> bool {
        false
    }

    /// Returns the learning rate, for displays and schedules.
    fn learning_rate(&self) -> f32;

    /// Sets the learning rate.
    fn set_learning_rate(&mut self, lr: f32);

    /// Sets the weight decay; a [`ParameterGroup`] may have a different one.
    fn set_weight_decay(&mut self, weight_decay: f32);

    /// Checks the hyper-parameters.
    ///
    /// # Errors
    /// Description of the invalid hyper-parameter.
    fn check(&self) -> Result<(), String>;

    /// Clones the rule into a new box.
    fn clone_box(&self) -> Box<dyn Optimizer>;
}

impl Clone for Box<dyn Optimizer> {
    fn clone(&self) -> Self {
        self.clone_box()
    }
}

/// Context in which a rule builds the update of one parameter: the graph, and the names of scalars
/// and states.
pub struct UpdateCx<'a> {
    graph: &'a mut Graph,
    /// The parameter's name.
    name: &'a str,
    /// Group of the parameter; 0 if it is in none.
    group: usize,
    /// Counter of updates, if updates may be skipped.
    counter: Option<&'a mut Counter>,
}

/// Number of an update that the device counts, and values that depend only on it.
#[derive(Debug, Default)]
struct Counter {
    number: Option<NodeId>,
    derived: HashMap<String, NodeId>,
}

/// State `f32 []` with the number of updates made, if updates may be skipped. It saturates at 2^24,
/// at which all bias corrections of the rules are 1.
pub(crate) const UPDATES_STATE: &str = "optimizer.updates";

impl UpdateCx<'_> {
    /// Returns a scalar that [`Optimizer::scalars`] sets under the same name, which starts with
    /// `optimizer.`. Each parameter group has its own.
    pub fn scalar(&mut self, name: &'static str) -> NodeId {
        self.graph.scalar_input(&scalar_name(name, self.group), DType::F32)
    }

    /// Returns the number of this update, from 1, as an `f32 []` of the device; `None` if the host
    /// counts updates. In mixed precision the device skips updates whose gradients are not finite,
    /// but the `t` of [`Optimizer::scalars`] includes skipped ones: rules that depend on the number
    /// must use this one.
    pub fn update_number(&mut self) -> Option<NodeId> {
        let number = self.counter.as_deref()?.number;
        let graph = &mut *self.graph;
        let number = number.unwrap_or_else(|| {
            let count = graph.state(UPDATES_STATE, &[]);
            let one = graph.scalar(1.0);
            let next = graph.add(count, one);
            let written = graph.assign(count, next);
            for node in [next, written] {
                graph.named(node, "number of the update");
            }
            next
        });
        if let Some(counter) = self.counter.as_deref_mut() {
            counter.number = Some(number);
        }
        Some(number)
    }

    /// Returns `1 - beta^t` for update `t`: the scalar `correction`, or computed from the scalar
    /// `log_beta` if the device counts updates. Each parameter group computes it once.
    fn bias_correction(&mut self, correction: &'static str, log_beta: &'static str) -> NodeId {
        let Some(number) = self.update_number() else {
            return self.scalar(correction);
        };
        let key = scalar_name(correction, self.group);
        let known = self.counter.as_ref().and_then(|c| c.derived.get(&key).copied());
        known.unwrap_or_else(|| {
            let log_beta = self.scalar(log_beta);
            let computed = self.graph.bias_correction(number, log_beta);
            self.graph.named(computed, correction);
            if let Some(counter) = &mut self.counter {
                counter.derived.insert(key, computed);
            }
            computed
        })
    }

    /// Returns a state with the shape of `parameter` that starts at zero.
    pub fn moment(&mut self, kind: &str, parameter: NodeId) -> NodeId {
        let shape = self.graph.shape(parameter).to_vec();
        self.graph.state(&format!("optimizer.{kind}.{}", self.name), &shape)
    }
}

impl Deref for UpdateCx<'_> {
    type Target = Graph;
    fn deref(&self) -> &Graph {
        self.graph
    }
}

impl DerefMut for UpdateCx<'_> {
    fn deref_mut(&mut self) -> &mut Graph {
        self.graph
    }
}

/// Returns the name in a plan of the scalar that the rule of a parameter group calls `name`.
fn scalar_name(name: &str, group: usize) -> String {
    match group {
        0 => name.to_owned(),
        group => format!("{name}@{group}"),
    }
}

/// Splits a scalar's name in a plan into the rule's name and the parameter group; the inverse of
/// [`scalar_name`].
pub(crate) fn split_scalar_name(plan_name: &str) -> (&str, usize) {
    let parts = plan_name.rsplit_once('@');
    parts
        .and_then(|(name, group)| Some((name, group.parse().ok()?)))
        .unwrap_or((plan_name, 0))
}
