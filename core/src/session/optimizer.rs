//! The optimizer of a session.

use super::Session;
use super::counters::OpenSteps;
use super::prepare::prepare;
use super::tensors::Tensors;
use crate::backend::{Executable, SharedBuffers};
use crate::error::{Error, Result, TensorKind, unwrap_report};
use crate::host_memory;
use crate::plan::ExecutionPlan;
use crate::plan::optimizer::{
    ACCUMULATION_KEEP, ACCUMULATION_SCALE, Adam, CLIP_LIMIT, GradientClip, Optimizer, Sgd, Update, attach,
    attach_share, split_scalar_name,
};

/// The active update and its counters.
pub(super) struct ActiveOptimizer {
    update: Update,
    /// Rule of each parameter group; the first is for parameters in no group.
    rules: Vec<Box<dyn Optimizer>>,
    /// Number of updates made so far.
    updates: u64,
    /// Number of steps since the last update whose gradients were accumulated.
    accumulated: u32,
    /// `true` while updates are paused.
    pub(super) paused: bool,
}

impl ActiveOptimizer {
    pub(super) fn new(update: Update) -> Self {
        ActiveOptimizer {
            rules: update.rules(),
            update,
            updates: 0,
            accumulated: 0,
            paused: false,
        }
    }

    /// Returns `true` if the next step makes an update.
    pub(super) fn is_due(&self) -> bool {
        self.accumulated + 1 >= self.update.accumulate
    }

    pub(super) fn updates(&self) -> u64 {
        self.updates
    }

    pub(super) fn accumulated(&self) -> u32 {
        self.accumulated
    }

    /// Sets the counters, to continue from them.
    pub(super) fn go_on(&mut self, updates: u64, accumulated: u32) {
        self.updates = updates;
        // A number from a file must not skip an update.
        self.accumulated = accumulated.min(self.update.accumulate - 1);
    }

    /// Counts a step, and its update if it makes one.
    pub(super) fn advance(&mut self) {
        if self.is_due() {
            self.accumulated = 0;
            self.updates += 1;
        } else {
            self.accumulated += 1;
        }
    }

    /// Returns the value of a scalar for the next step; `None` if the scalar does not belong to the optimizer.
    pub(super) fn scalar(&self, name: &str) -> Option<f64> {
        match name {
            ACCUMULATION_SCALE => return Some(1.0 / f64::from(self.update.accumulate)),
            ACCUMULATION_KEEP => return Some(f64::from(u8::from(self.accumulated > 0))),
            CLIP_LIMIT => return self.update.clip.map(GradientClip::limit).map(f64::from),
            _ => {}
        }
        let (name, group) = split_scalar_name(name);
        let mut found = None;
        self.rules.get(group)?.scalars(self.updates + 1, &mut |scalar, value| {
            if scalar == name {
                found = Some(value);
            }
        });
        found
    }

    /// Sets the learning rate of every group. On an error, all learning rates are unchanged.
    fn set_learning_rate(&mut self, lr: f32) -> Result<(), String> {
        let before = self.update.rule.learning_rate();
        let Err(message) = self.apply_learning_rate(lr) else {
            return Ok(());
        };
        // Checking the whole update gives a message with the group.
        let message = self.update.check().err().unwrap_or(message);
        self.apply_learning_rate(before)?;
        Err(message)
    }

    /// Sets the learning rate of every group, and then checks all of them. It is called in every step, so it must not
    /// allocate.
    fn apply_learning_rate(&mut self, lr: f32) -> Result<(), String> {
        self.update.rule.set_learning_rate(lr);
        let scales = self.update.groups.iter().map(|group| group.learning_rate_scale);
        for (rule, scale) in self.rules.iter_mut().zip(std::iter::once(1.0).chain(scales)) {
            rule.set_learning_rate(lr * scale);
        }
        self.rules.iter().try_for_each(|rule| rule.check())
    }
}

impl Session {
    /// Activates the optimizer of an update that the plan already contains.
    pub fn adopt_optimizer(&mut self, update: Update) {
        self.attached = Some(update.form());
        self.optimizer = Some(ActiveOptimizer::new(update));
    }

    /// Makes updates part of the following steps. `update` is an optimizer, or an [`Update`] with clipping,
    /// accumulation and parameter groups. If the rule's kind stays the same, moments are kept, even if clipping,
    /// accumulation or groups change; another kind of rule starts with new moments. A different number of accumulated
    /// steps starts a new average.
    ///
    /// # Errors
    /// Hyper-parameters out of range; a parameter group that names no parameter; a plan without gradients.
    pub fn try_set_optimizer(&mut self, update: impl Into<Update>) -> Result<()> {
        let update = update.into();
        update.checked()?;
        self.settle();
        let form = update.form();
        let before = self.optimizer.as_ref();
        let keeps = before.is_some_and(|active| active.update.rule.kind() == update.rule.kind());
        let rebuilt = self.attached.as_deref() != Some(&form);
        // Moments and the number of updates belong together, also after a pause.
        let updates = before.filter(|_| keeps).map_or(0, |active| active.updates);
        // Gradients that were accumulated with another weight cannot be part of the new average.
        let goes_on = before.filter(|active| !rebuilt && active.update.accumulate == update.accumulate);
        let accumulated = goes_on.map_or(0, |active| active.accumulated);
        if goes_on.is_none() {
            self.in_flight.forget_average();
        }
        if rebuilt {
            self.rebuild_with(&update, keeps)?;
        }
        self.attached = Some(form);
        self.optimizer = Some(ActiveOptimizer {
            updates,
            accumulated,
            ..ActiveOptimizer::new(update)
        });
        Ok(())
    }

    /// Calls [`Session::try_set_optimizer`], and panics on errors.
    #[track_caller]
    pub fn set_optimizer(&mut self, update: impl Into<Update>) {
        unwrap_report(self.try_set_optimizer(update));
    }

    /// Makes a plain SGD update part of every following step. It replaces an earlier optimizer.
    ///
    /// # Errors
    /// As [`Session::try_set_optimizer`].
    pub fn try_set_learning_rate(&mut self, lr: f32) -> Result<()> {
        self.try_set_optimizer(Sgd::new(lr))
    }

    /// Calls [`Session::try_set_learning_rate`], and panics on errors.
    #[track_caller]
    pub fn set_learning_rate(&mut self, lr: f32) {
        unwrap_report(self.try_set_learning_rate(lr));
    }

    /// Makes an Adam update part of every following step. It replaces an earlier optimizer.
    ///
    /// # Errors
    /// As [`Session::try_set_optimizer`].
    pub fn try_set_adam(&mut self, lr: f32, beta1: f32, beta2: f32, eps: f32) -> Result<()> {
        self.try_set_optimizer(Adam {
            beta1,
            beta2,
            eps,
            ..Adam::new(lr)
        })
    }

    /// Calls [`Session::try_set_adam`], and panics on errors.
    #[track_caller]
    pub fn set_adam(&mut self, lr: f32, beta1: f32, beta2: f32, eps: f32) {
        unwrap_report(self.try_set_adam(lr, beta1, beta2, eps));
    }

    /// Pauses updates: following steps compute gradients but do not change parameters. Setting a
    /// rule of the same kind later continues with the same moments and accumulated gradients.
    pub fn clear_optimizer(&mut self) {
        if let Some(active) = &mut self.optimizer {
            active.paused = true;
        }
    }

    /// Changes the learning rate of the active optimizer, for any rule.
    ///
    /// # Errors
    /// A session without an optimizer; a rate that is not a finite number of at least 0.
    pub fn try_adjust_learning_rate(&mut self, lr: f32) -> Result<()> {
        let Some(active) = &mut self.optimizer else {
            return Err(Error::misuse(
                "the session has no optimizer",
                "set one first, by `set_optimizer`, `set_adam` or `set_learning_rate`",
            ));
        };
        active
            .set_learning_rate(lr)
            .map_err(|message| Error::misuse(message, "the rate is unchanged"))
    }

    /// Calls [`Session::try_adjust_learning_rate`], and panics on errors.
    #[track_caller]
    pub fn adjust_learning_rate(&mut self, lr: f32) {
        unwrap_report(self.try_adjust_learning_rate(lr));
    }

    /// Recompiles the plan with this update. Parameters, states and inputs are kept, and moments if
    /// requested.
    pub(super) fn rebuild_with(&mut self, update: &Update, keep_moments: bool) -> Result<()> {
        if self.shared.is_some() {
            return Err(Error::misuse(
                "this session shares its weights with other sessions, so it cannot train them",
                "train a session of its own, and build sessions for inference from the result",
            ));
        }
        let mut plan = self.plan.clone();
        self.attach_to(&mut plan, update)?;
        let mut executable = prepare(&*self.device, &plan, &self.debug, &SharedBuffers::new())?;
        let named = plan.param_buffers.iter().chain(&plan.input_buffers).map(|(_, b)| *b);
        let states = plan.state_buffers.iter().filter(|s| !s.optimizer).map(|s| s.buffer);
        // Results of the last step stay readable.
        let results = plan.output_buffers.iter().copied();
        let gradients = plan.gradient_buffers.iter().map(|(_, b)| *b);
        for buffer in named.chain(states).chain(results).chain(gradients) {
            let mut bytes = host_memory::filled("a copy of a buffer", plan.buffers[buffer.index()], 0)?;
            self.executable.read(buffer, 0, &mut bytes)?;
            executable.write(buffer, 0, &bytes)?;
        }
        let tensors = Tensors::of(&plan);
        let moments = plan.state_buffers.iter().filter(|s| s.optimizer && keep_moments);
        for state in moments {
            // Use the names that users see: sources of a packed parameter may or may not share
            // their moments.
            for new in tensors.states_in(state.buffer) {
                if let Ok(old) = self.tensors.find(TensorKind::State, &new.name) {
                    let mut bytes = host_memory::filled(&format!("a copy of '{}'", new.name), old.ty.bytes(), 0)?;
                    old.read(&mut *self.executable, &mut bytes)?;
                    new.write(&mut *executable, &bytes)?;
                }
            }
        }
        self.collect_passes();
        self.executable = executable;
        self.in_flight = OpenSteps::default();
        self.last_ticket = None;
        self.plan = plan;
        self.measure_anew();
        self.tensors.renew(&self.plan);
        self.renew_buckets()
    }

    /// Adds the update to a plan: for all trained parameters, or for those that this rank owns.
    fn attach_to(&self, plan: &mut ExecutionPlan, update: &Update) -> Result<()> {
        let sharded = self
            .distributed
            .as_ref()
            .and_then(|d| Some((d.owners.as_ref()?, d.communicator.rank())));
        let Some((owners, rank)) = sharded else {
            return attach(plan, update, &*self.device);
        };
        let is_own = |parameter| owners.owner(parameter) == Some(rank);
        attach_share(plan, update, &*self.device, Some(&is_own))
    }

    /// Returns the active update.
    pub(super) fn update(&self) -> Option<&Update> {
        self.optimizer.as_ref().map(|active| &active.update)
    }
}
