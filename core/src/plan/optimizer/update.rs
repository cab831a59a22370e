//! The update of a step: the optimizer's rule, with clipping, accumulation and parameter groups.

use std::ops::Range;

use super::{Counter, Optimizer, UpdateCx, scalar_name};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, NodeId, Value};
use crate::pattern::matches;

/// Scalar with the limit for clipping gradients.
pub(crate) const CLIP_LIMIT: &str = "optimizer.clip_limit";
/// Scalar with the sum of squares of all gradient elements, for ranks that update a share of the
/// parameters.
pub(crate) const REDUCED_SQUARES: &str = "optimizer.reduced_squares";

/// The conversion of gradients to parameter updates.
///
/// ```
/// use meganeura_core::Adam;
/// use meganeura_core::plan::optimizer::{GradientClip, ParameterGroup, Update};
///
/// let update = Update::new(Adam::adamw(1e-3, 0.05))
///     .clip(GradientClip::Norm(1.0))
///     .accumulate(4)
///     .group(ParameterGroup::new(["*.bias", "norm*"]).weight_decay(0.0));
/// assert!(update.check().is_ok());
/// ```
///
/// Any [`Optimizer`] converts to an update without clipping, accumulation and groups.
#[derive(Clone, Debug)]
pub struct Update {
    /// The rule.
    pub rule: Box<dyn Optimizer>,
    /// Limit on the gradients, applied after accumulation.
    pub clip: Option<GradientClip>,
    /// Parameters with their own rate or weight decay. A parameter belongs to the first group that
    /// matches it; parameters in no group use the rule's values.
    pub groups: Vec<ParameterGroup>,
    /// Number of steps whose gradients are averaged for one update, at least 1. All but the last
    /// step only add to the average; the average takes as much memory as the parameters if the
    /// number exceeds 1.
    pub accumulate: u32,
}

/// A parameter, and the inputs of its update.
pub(super) struct UpdateInputs {
    /// Name of the parameter; moments are named after it.
    pub(super) name: String,
    /// Group of the parameter; see [`Update::group_of`].
    pub(super) group: usize,
    pub(super) parameter: NodeId,
    pub(super) gradient: Value,
}

/// Variant of the graph that computes the updates.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UpdateForm {
    /// `true` if updates may be skipped, so that the device counts them.
    pub(super) skips: bool,
    /// `true` if other ranks update other parameters, so that the norm of all gradients cannot be
    /// computed from this rank's gradients.
    pub(super) is_share: bool,
}

/// Limit on gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GradientClip {
    /// Every element is limited to `[-limit, limit]`.
    Value(f32),
    /// All gradients together are scaled by `min(1, limit / (norm + 1e-6))`, where `norm` is the Euclidean norm
    /// of all elements of all gradients (Pascanu, Mikolov and Bengio, 2013; in PyTorch's form). The state
    /// [`GradientClip::NORM_STATE`] contains the norm before scaling.
    Norm(f32),
}

impl GradientClip {
    /// Name of the state `f32 []` that holds the gradients' norm of the last update under
    /// [`GradientClip::Norm`].
    pub const NORM_STATE: &str = "optimizer.gradient_norm";

    /// Returns the limit.
    pub fn limit(self) -> f32 {
        match self {
            GradientClip::Value(limit) | GradientClip::Norm(limit) => limit,
        }
    }

    fn kind(self) -> &'static str {
        match self {
            GradientClip::Value(_) => "value",
            GradientClip::Norm(_) => "norm",
        }
    }
}

/// Parameters with their own hyper-parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterGroup {
    /// Name patterns of the parameters; `*` matches any characters. Each must match at least one
    /// parameter.
    pub patterns: Vec<String>,
    /// Learning rate of these parameters, divided by that of the update rule. It stays the same when a schedule changes
    /// the rule's learning rate.
    pub learning_rate_scale: f32,
    /// Weight decay of these parameters; `None` for that of the update rule.
    pub weight_decay: Option<f32>,
}

impl ParameterGroup {
    /// Creates a group of the parameters that match a pattern, with the rule's rate and weight
    /// decay.
    pub fn new<S: Into<String>>(patterns: impl IntoIterator<Item = S>) -> Self {
        ParameterGroup {
            patterns: patterns.into_iter().map(Into::into).collect(),
            learning_rate_scale: 1.0,
            weight_decay: None,
        }
    }

    /// Sets the learning rate, as a multiple of the rule's; 0 freezes the group.
    #[must_use]
    pub fn learning_rate_scale(mut self, scale: f32) -> Self {
        self.learning_rate_scale = scale;
        self
    }

    /// Sets the weight decay.
    #[must_use]
    pub fn weight_decay(mut self, weight_decay: f32) -> Self {
        self.weight_decay = Some(weight_decay);
        self
    }

    /// Returns `true` if a parameter belongs to the group.
    pub fn contains(&self, parameter: &str) -> bool {
        self.patterns.iter().any(|pattern| matches(pattern, parameter))
    }

    /// Returns the rule with this group's hyper-parameters.
    fn adapt(&self, rule: &dyn Optimizer) -> Box<dyn Optimizer> {
        let mut rule = rule.clone_box();
        rule.set_learning_rate(rule.learning_rate() * self.learning_rate_scale);
        if let Some(decay) = self.weight_decay {
            rule.set_weight_decay(decay);
        }
        rule
    }
}

impl Update {
    /// Creates an update from the rule only.
    pub fn new(rule: impl Optimizer + 'static) -> Self {
        Update::from(rule)
    }

    /// Sets the limit on gradients.
    #[must_use]
    pub fn clip(mut self, clip: GradientClip) -> Self {
        self.clip = Some(clip);
        self
    }

    /// Sets the number of steps whose gradients are averaged.
    #[must_use]
    pub fn accumulate(mut self, steps: u32) -> Self {
        self.accumulate = steps;
        self
    }

    /// Adds a parameter group.
    #[must_use]
    pub fn group(mut self, group: ParameterGroup) -> Self {
        self.groups.push(group);
        self
    }

    /// Checks all hyper-parameters.
    ///
    /// # Errors
    /// Description of the invalid hyper-parameter.
    pub fn check(&self) -> Result<(), String> {
        self.rule.check()?;
        if self.accumulate == 0 {
            return Err("gradients cannot be accumulated over 0 steps; 1 updates at every step".into());
        }
        if let Some(limit) = self.clip.map(GradientClip::limit)
            && !(limit.is_finite() && limit > 0.0)
        {
            return Err(format!("the gradients' limit {limit} is not a finite number above 0"));
        }
        for group in &self.groups {
            let scale = group.learning_rate_scale;
            if !scale.is_finite() || scale < 0.0 {
                return Err(format!(
                    "the learning rate scale {scale} of the group {:?} is not a finite number of at least 0",
                    group.patterns
                ));
            }
            let rule = group.adapt(&*self.rule);
            rule.check()
                .map_err(|message| format!("in the group {:?}, {message}", group.patterns))?;
        }
        Ok(())
    }

    /// Checks like [`Update::check`], but returns an error of the library.
    ///
    /// # Errors
    /// [`Error::InvalidUse`] with a description of the invalid hyper-parameter.
    pub fn checked(&self) -> Result<(), Error> {
        self.check()
            .map_err(|message| Error::misuse(message, "correct the hyper-parameter"))
    }

    /// Builds the updates of parameters, each with its name and its gradient (the average, where gradients are
    /// accumulated), with clipping and groups.
    pub fn build(&self, graph: &mut Graph, parameters: &[(&str, NodeId, Value)]) {
        let updated = |&(name, parameter, gradient): &(&'_ str, NodeId, Value)| UpdateInputs {
            name: name.to_owned(),
            group: self.group_of(name),
            parameter,
            gradient,
        };
        self.build_all(
            graph,
            &parameters.iter().map(updated).collect::<Vec<_>>(),
            UpdateForm::default(),
        );
    }

    /// Builds the updates like [`Update::build`], from parameters whose groups are resolved. Returns the range of nodes
    /// that each update added.
    pub(super) fn build_all(
        &self,
        graph: &mut Graph,
        parameters: &[UpdateInputs],
        form: UpdateForm,
    ) -> Vec<Range<usize>> {
        let mut gradients: Vec<Value> = parameters.iter().map(|p| p.gradient).collect();
        if let Some(clip) = self.clip {
            gradients = clipped(graph, clip, gradients, form.is_share);
        }
        let mut added = Vec::with_capacity(parameters.len());
        let mut counter = form.skips.then(Counter::default);
        for (updated, gradient) in parameters.iter().zip(gradients) {
            let first = graph.nodes().len();
            let (name, group) = (&*updated.name, updated.group);
            let mut cx = UpdateCx {
                graph,
                name,
                group,
                counter: counter.as_mut(),
            };
            self.rule.update(&mut cx, updated.parameter, gradient);
            for id in (first..graph.nodes().len()).map(|i| NodeId::new(i as u32)) {
                if graph.nodes()[id.index()].is_op() && graph.nodes()[id.index()].name.is_none() {
                    graph.named(id, name);
                }
            }
            added.push(first..graph.nodes().len());
        }
        added
    }

    /// Calls `set` with name and value of each scalar that the graph of [`Update::build`] reads in update `t` (from 1).
    pub fn scalars(&self, t: u64, set: &mut dyn FnMut(&str, f64)) {
        for (group, rule) in self.rules().iter().enumerate() {
            rule.scalars(t, &mut |name, value| set(&scalar_name(name, group), value));
        }
        if let Some(clip) = self.clip {
            set(CLIP_LIMIT, clip.limit().into());
        }
    }

    /// Returns the group of a parameter: 0 if it is in none, else the group's index counted from 1.
    pub fn group_of(&self, parameter: &str) -> usize {
        self.groups
            .iter()
            .position(|group| group.contains(parameter))
            .map_or(0, |i| i + 1)
    }

    /// Returns the rule of each group; the first is for parameters in no group.
    pub(crate) fn rules(&self) -> Vec<Box<dyn Optimizer>> {
        let own = self.groups.iter().map(|group| group.adapt(&*self.rule));
        std::iter::once(self.rule.clone()).chain(own).collect()
    }

    /// Returns a text with everything in the update that its plan depends on.
    pub fn form(&self) -> String {
        let clip = self.clip.map_or("none", GradientClip::kind);
        let groups: Vec<&[String]> = self.groups.iter().map(|g| &g.patterns[..]).collect();
        let accumulates = self.accumulate > 1;
        format!(
            "{} clip={clip} groups={groups:?} accumulate={accumulates}",
            self.rule.kind()
        )
    }
}

/// Returns the sum of numbers, of shape `[]`. It adds a few at a time, because kernels bind only about ten buffers.
pub(super) fn sum_of(graph: &mut Graph, mut numbers: Vec<NodeId>, name: &str) -> NodeId {
    const TERMS_PER_SUM: usize = 8;
    if numbers.is_empty() {
        return graph.scalar(0.0);
    }
    loop {
        let mut sums = Vec::new();
        for some in numbers.chunks(TERMS_PER_SUM) {
            let some: Vec<NodeId> = some.iter().map(|&x| graph.reshape(x, &[1])).collect();
            let joined = graph.concat(&some, 0);
            let sum = graph.sum_all(joined);
            for node in [joined, sum] {
                graph.named(node, name);
            }
            sums.push(sum);
        }
        match sums[..] {
            [sum] => return sum,
            _ => numbers = sums,
        }
    }
}

fn sum_of_squares(graph: &mut Graph, gradients: &[Value]) -> NodeId {
    let mut squares = Vec::new();
    for &g in gradients {
        let sum = graph.sum_squares(g);
        squares.push(graph.named(sum, "gradient clipping"));
    }
    sum_of(graph, squares, "gradient clipping")
}

/// Clips the gradients. For a share of the parameters, the norm is computed from the scalar
/// [`REDUCED_SQUARES`].
fn clipped(graph: &mut Graph, clip: GradientClip, gradients: Vec<Value>, is_share: bool) -> Vec<Value> {
    let limit = graph.scalar_input(CLIP_LIMIT, DType::F32);
    let named = |graph: &mut Graph, node| Value::from(graph.named(node, "gradient clipping"));
    match clip {
        GradientClip::Value(_) => {
            let low = graph.neg(limit);
            let low = named(graph, low);
            let mut limited = |g| {
                let g = graph.maximum(g, low);
                let g = graph.minimum(g, limit);
                named(graph, g)
            };
            gradients.into_iter().map(&mut limited).collect()
        }
        GradientClip::Norm(_) => {
            let sum = if is_share {
                graph.scalar_input(REDUCED_SQUARES, DType::F32)
            } else {
                sum_of_squares(graph, &gradients)
            };
            let norm = graph.sqrt(sum);
            let record = graph.state(GradientClip::NORM_STATE, &[]);
            let written = graph.assign(record, norm);
            // As in PyTorch: no division by zero where all gradients are zero.
            let tiny = graph.scalar(1e-6);
            let denominator = graph.add(norm, tiny);
            let scale = graph.div(limit, denominator);
            let one = graph.scalar(1.0);
            let scale = graph.minimum(scale, one);
            for node in [norm, written, denominator, scale] {
                graph.named(node, "gradient clipping");
            }
            let mut scaled = |g| {
                let g = graph.mul(g, scale);
                named(graph, g)
            };
            gradients.into_iter().map(&mut scaled).collect()
        }
    }
}

impl<O: Optimizer + 'static> From<O> for Update {
    fn from(rule: O) -> Self {
        Update::from(Box::new(rule) as Box<dyn Optimizer>)
    }
}

impl From<Box<dyn Optimizer>> for Update {
    fn from(rule: Box<dyn Optimizer>) -> Self {
        Update {
            rule,
            clip: None,
            groups: Vec::new(),
            accumulate: 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Adam, Sgd};

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        let base = || Update::new(Sgd::new(0.1));
        let cases = [
            (base().accumulate(0), "0 steps"),
            (base().clip(GradientClip::Norm(0.0)), "limit 0"),
            (base().clip(GradientClip::Value(f32::NAN)), "limit NaN"),
            (
                base().group(ParameterGroup::new(["x"]).learning_rate_scale(-1.0)),
                "scale -1",
            ),
            (
                base().group(ParameterGroup::new(["x"]).weight_decay(f32::NAN)),
                "group [\"x\"]",
            ),
            (Update::new(Adam::new(f32::NAN)), "learning rate"),
        ];
        for (update, expected) in cases {
            let message = update.check().expect_err(expected);
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn groups_adapt_the_rule() {
        let group = ParameterGroup::new(["b"]).learning_rate_scale(0.5).weight_decay(0.25);
        let update = Update::new(Adam::adamw(0.5, 0.125)).group(group);
        let rules = update.rules();
        assert_eq!(rules[0].learning_rate(), 0.5);
        assert_eq!(rules[1].learning_rate(), 0.25);
        let mut decay = 0.0;
        rules[1].scalars(1, &mut |name, value| {
            if name == "optimizer.weight_decay" {
                decay = value;
            }
        });
        assert_eq!(decay, 0.25);
        assert_eq!((update.group_of("b"), update.group_of("a")), (1, 0));
    }
}
