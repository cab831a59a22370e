//! Built-in optimizer rules.

use super::{Optimizer, UpdateCx};
use crate::graph::{NodeId, Value};
use crate::ops::AdamScalars;

/// Stochastic gradient descent, with optional (Nesterov) momentum and L2 weight decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Learning rate.
    pub lr: f32,
    /// Decay of the velocity; 0 disables momentum.
    pub momentum: f32,
    /// Uses Nesterov momentum if `true`.
    pub nesterov: bool,
    /// Multiple of the parameter that is added to its gradient.
    pub weight_decay: f32,
}

impl Sgd {
    /// Creates the optimizer of plain gradient descent.
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
    /// Number added to the denominator.
    pub eps: f32,
    /// Weight decay: added to the gradient, or applied to the parameter if decoupled.
    pub weight_decay: f32,
    /// Decouples weight decay from the moments if `true` (AdamW).
    pub decoupled: bool,
}

impl Adam {
    /// Creates Adam with the published constants and no weight decay.
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

    /// Creates AdamW with the published constants.
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

    fn update(&self, cx: &mut UpdateCx, parameter: NodeId, gradient: Value) {
        let lr = cx.scalar("optimizer.lr");
        let decay = cx.scalar("optimizer.weight_decay");
        if self.momentum == 0.0 {
            cx.sgd_update([parameter.into(), gradient], [lr, decay]);
            return;
        }
        let momentum = cx.scalar("optimizer.momentum");
        let velocity = cx.moment("velocity", parameter);
        let operands = [parameter.into(), gradient, velocity.into()];
        cx.momentum_update(operands, [lr, decay, momentum], self.nesterov);
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn learning_rate(&self) -> f32 {
        self.lr
    }

    fn set_learning_rate(&mut self, lr: f32) {
        self.lr = lr;
    }

    fn set_weight_decay(&mut self, weight_decay: f32) {
        self.weight_decay = weight_decay;
    }

    fn check(&self) -> Result<(), String> {
        finite_and_not_negative(&[("learning rate", self.lr), ("weight decay", self.weight_decay)])?;
        below_one(&[("momentum", self.momentum)])?;
        if self.nesterov && self.momentum == 0.0 {
            return Err("Nesterov momentum needs a momentum above 0".into());
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
        set("optimizer.log_beta1", beta1.ln());
        set("optimizer.log_beta2", beta2.ln());
    }

    fn update(&self, cx: &mut UpdateCx, parameter: NodeId, gradient: Value) {
        let scalars = AdamScalars {
            lr: cx.scalar("optimizer.lr"),
            beta1: cx.scalar("optimizer.beta1"),
            beta2: cx.scalar("optimizer.beta2"),
            eps: cx.scalar("optimizer.eps"),
            weight_decay: cx.scalar("optimizer.weight_decay"),
            correction1: cx.bias_correction("optimizer.correction1", "optimizer.log_beta1"),
            correction2: cx.bias_correction("optimizer.correction2", "optimizer.log_beta2"),
        };
        let m = cx.moment("m", parameter);
        let v = cx.moment("v", parameter);
        let operands = [parameter.into(), gradient, m.into(), v.into()];
        cx.adam_update(operands, scalars, self.decoupled);
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn learning_rate(&self) -> f32 {
        self.lr
    }

    fn set_learning_rate(&mut self, lr: f32) {
        self.lr = lr;
    }

    fn set_weight_decay(&mut self, weight_decay: f32) {
        self.weight_decay = weight_decay;
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
