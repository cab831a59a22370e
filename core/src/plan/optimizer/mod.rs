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
/// Hyper-parameters are scalars of each step; changing them changes no plan as long as
/// [`Optimizer::kind`] stays the same.
pub trait Optimizer: Send + Sync + Debug {
    /// Word that names the form of the update: plans are rebuilt, and moments start anew, when it changes.
    fn kind(&self) -> String;

    /// Tells names and values of the scalars of update `t` (from 1; see [`UpdateCx::update_number`]). Called in every
    /// step, so it allocates nothing.
    fn scalars(&self, t: u64, set: &mut dyn FnMut(&'static str, f64));

    /// Builds the update of one parameter: scalars and states come from [`UpdateCx::scalar`] and
    /// [`UpdateCx::moment`], the parameter is written by an operator with effects.
    fn update(&self, cx: &mut UpdateCx, parameter: NodeId, gradient: Value);

    /// Whether each element's update depends on nothing but that element of the parameter, its gradient and the
    /// moments, and on scalars: then parameters that are stored as one may be updated as one. Rules that look at a
    /// parameter as a whole (its norm, its rows) must leave this `false`, as it is by default.
    fn is_elementwise(&self) -> bool {
        false
    }

    /// The learning rate, for displays and schedules.
    fn learning_rate(&self) -> f32;

    /// Sets the learning rate.
    fn set_learning_rate(&mut self, lr: f32);

    /// Sets the weight decay, which a [`ParameterGroup`] may have of its own.
    fn set_weight_decay(&mut self, weight_decay: f32);

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

/// What a rule builds the update of one parameter on: the graph, and the names of scalars and states.
pub struct UpdateCx<'a> {
    graph: &'a mut Graph,
    /// The parameter's name.
    name: &'a str,
    /// Group of the parameter; 0 for those in none.
    group: usize,
    /// Where updates may be left out.
    counter: Option<&'a mut Counter>,
}

/// Number of an update that the device counts, and what depends on nothing else.
#[derive(Debug, Default)]
struct Counter {
    number: Option<NodeId>,
    derived: HashMap<String, NodeId>,
}

/// State `f32 []` with the number of updates that were made, where updates may be left out. It counts to 2^24, when no
/// correction of the rules differs from 1 any more.
pub(crate) const UPDATES_STATE: &str = "optimizer.updates";

impl UpdateCx<'_> {
    /// A scalar that [`Optimizer::scalars`] sets under the same name, which starts with `optimizer.`. Each
    /// parameter group has its own.
    pub fn scalar(&mut self, name: &'static str) -> NodeId {
        self.graph.scalar_input(&scalar_name(name, self.group), DType::F32)
    }

    /// Number of this update, from 1, as an `f32 []` of the device; `None` where the host knows it. In mixed precision
    /// the device leaves updates out whose gradients are not finite, and the `t` of [`Optimizer::scalars`] counts these,
    /// too: rules that depend on the number take it from here.
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

    /// `1 - beta^t` for update `t`: the scalar `correction`, or computed from the scalar `log_beta` where the device
    /// counts updates. Each parameter group computes it once.
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

    /// A state of the shape of `parameter` that starts at zero.
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

/// Name in a plan of the scalar that the rule of a parameter group calls `name`.
fn scalar_name(name: &str, group: usize) -> String {
    match group {
        0 => name.to_owned(),
        group => format!("{name}@{group}"),
    }
}

/// A scalar's name in a plan as the rule calls it, and its parameter group: what [`scalar_name`] joined.
pub(crate) fn split_scalar_name(plan_name: &str) -> (&str, usize) {
    let parts = plan_name.rsplit_once('@');
    parts
        .and_then(|(name, group)| Some((name, group.parse().ok()?)))
        .unwrap_or((plan_name, 0))
}
