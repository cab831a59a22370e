//! The optimizer of a session.

use super::{ActiveOptimizer, Session};
use crate::error::{Error, Result, unwrap_report};
use crate::plan::optimizer::{Adam, Optimizer, Sgd, attach};

impl Session {
    /// Makes an update by this rule part of every following step. A change of hyper-parameters alone keeps
    /// the moments; another kind of rule starts with new ones.
    ///
    /// # Errors
    /// Hyper-parameters out of range; a plan without gradients.
    pub fn try_set_optimizer(&mut self, rule: impl Optimizer + 'static) -> Result<()> {
        self.try_set_boxed_optimizer(Box::new(rule))
    }

    /// [`Session::try_set_optimizer`] for a rule behind a pointer.
    ///
    /// # Errors
    /// As there.
    pub fn try_set_boxed_optimizer(&mut self, rule: Box<dyn Optimizer>) -> Result<()> {
        rule.check()
            .map_err(|m| Error::misuse(m, "correct the hyper-parameter"))?;
        let kind = rule.kind();
        if self.attached.as_deref() != Some(&kind) {
            self.rebuild_with(&*rule)?;
            self.optimizer = None;
        }
        // Moments and the number of updates belong together, also after a pause.
        let updates = self.optimizer.as_ref().map_or(0, |active| active.updates);
        self.attached = Some(kind);
        self.optimizer = Some(ActiveOptimizer {
            rule,
            updates,
            paused: false,
        });
        Ok(())
    }

    /// [`Session::try_set_optimizer`], panicking with its report.
    #[track_caller]
    pub fn set_optimizer(&mut self, rule: impl Optimizer + 'static) {
        unwrap_report(self.try_set_optimizer(rule));
    }

    /// Makes a plain SGD update part of every following step. The last optimizer call wins.
    ///
    /// # Errors
    /// As [`Session::try_set_optimizer`].
    pub fn try_set_learning_rate(&mut self, lr: f32) -> Result<()> {
        self.try_set_optimizer(Sgd::new(lr))
    }

    /// [`Session::try_set_learning_rate`], panicking with its report.
    #[track_caller]
    pub fn set_learning_rate(&mut self, lr: f32) {
        unwrap_report(self.try_set_learning_rate(lr));
    }

    /// Makes an Adam update part of every following step. The last optimizer call wins.
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

    /// [`Session::try_set_adam`], panicking with its report.
    #[track_caller]
    pub fn set_adam(&mut self, lr: f32, beta1: f32, beta2: f32, eps: f32) {
        unwrap_report(self.try_set_adam(lr, beta1, beta2, eps));
    }

    /// Stops updates: following steps compute gradients and change no parameter. Setting a rule of the same
    /// kind later goes on with the same moments.
    pub fn clear_optimizer(&mut self) {
        if let Some(active) = &mut self.optimizer {
            active.paused = true;
        }
    }

    /// Changes the rate of the optimizer in force, whatever its rule. Without one, nothing.
    ///
    /// # Errors
    /// A rate that is not a finite number of at least 0.
    pub fn try_adjust_learning_rate(&mut self, lr: f32) -> Result<()> {
        let Some(active) = &mut self.optimizer else {
            return Ok(());
        };
        let before = active.rule.learning_rate();
        active.rule.set_learning_rate(lr);
        active.rule.check().map_err(|message| {
            active.rule.set_learning_rate(before);
            Error::misuse(message, "the rate stays what it was")
        })
    }

    /// [`Session::try_adjust_learning_rate`], panicking with its report.
    #[track_caller]
    pub fn adjust_learning_rate(&mut self, lr: f32) {
        unwrap_report(self.try_adjust_learning_rate(lr));
    }

    /// Compiles the plan anew with the update of this rule, carrying parameters, states and inputs over.
    fn rebuild_with(&mut self, rule: &dyn Optimizer) -> Result<()> {
        let mut plan = self.plan.clone();
        attach(&mut plan, rule, &*self.device)?;
        let mut executable = self.device.compile(&plan)?;
        let named = plan.param_buffers.iter().chain(&plan.input_buffers).map(|(_, b)| *b);
        let states = plan.state_buffers.iter().filter(|s| !s.optimizer).map(|s| s.buffer);
        // Results of the last step stay readable.
        let results = plan.output_buffers.iter().copied();
        let gradients = plan.gradient_buffers.iter().map(|(_, b)| *b);
        for buffer in named.chain(states).chain(results).chain(gradients) {
            let mut bytes = vec![0; plan.buffers[buffer.index()]];
            self.executable.read(buffer, 0, &mut bytes)?;
            executable.write(buffer, 0, &bytes)?;
        }
        executable.set_profiling(self.profiling);
        self.executable = executable;
        self.last_ticket = None;
        self.plan = plan;
        self.tensors.renew(&self.plan);
        Ok(())
    }
}
