//! The published update rules as plain loops, independent of the rules that are compiled into plans.

use meganeura_core::{Adam, Optimizer, Sgd};

/// Update rule with its hyper-parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// Gradient descent in all its forms.
    Sgd(Sgd),
    /// Adam and AdamW.
    Adam(Adam),
}

/// Returns one rule of each form.
pub(crate) fn all() -> Vec<Rule> {
    let sgd = |momentum, nesterov| {
        Rule::Sgd(Sgd {
            momentum,
            nesterov,
            weight_decay: 0.02,
            ..Sgd::new(0.1)
        })
    };
    let adam = Adam {
        weight_decay: 0.02,
        ..Adam::new(0.01)
    };
    vec![
        sgd(0.0, false),
        sgd(0.9, false),
        sgd(0.8, true),
        Rule::Adam(adam),
        Rule::Adam(Adam::adamw(0.02, 0.1)),
        // Neither average keeps earlier values, so their corrections are 1 from the first update on.
        Rule::Adam(Adam {
            beta1: 0.0,
            beta2: 0.0,
            eps: 0.1,
            ..Adam::new(0.02)
        }),
    ]
}

impl Rule {
    /// Returns the library's optimizer for the rule.
    pub(crate) fn optimizer(self) -> Box<dyn Optimizer> {
        match self {
            Rule::Sgd(sgd) => Box::new(sgd),
            Rule::Adam(adam) => Box::new(adam),
        }
    }

    /// Returns the name of the rule for ids of cases.
    pub(crate) fn name(self) -> String {
        let kind = self.optimizer().kind();
        match self {
            Rule::Adam(adam) if adam.beta1 == 0.0 => format!("{kind} without averages"),
            _ => kind,
        }
    }

    /// Returns the names of the optimizer states of a parameter.
    pub(crate) fn states(self, parameter: &str) -> Vec<String> {
        let words: &[&str] = match self {
            Rule::Sgd(sgd) if sgd.momentum == 0.0 => &[],
            Rule::Sgd(_) => &["velocity"],
            Rule::Adam(_) => &["m", "v"],
        };
        words.iter().map(|w| format!("optimizer.{w}.{parameter}")).collect()
    }

    /// Applies update `t` (from 1) to one parameter and its states.
    pub(crate) fn apply(self, t: u64, parameter: &mut [f64], gradient: &[f64], states: &mut [Vec<f64>]) {
        match (self, states) {
            (Rule::Sgd(r), []) => sgd(r, parameter, gradient),
            (Rule::Sgd(r), [velocity]) => momentum(r, parameter, gradient, velocity),
            (Rule::Adam(r), [m, v]) => adam(r, t, parameter, gradient, m, v),
            _ => {}
        }
    }
}

fn sgd(rule: Sgd, parameter: &mut [f64], gradient: &[f64]) {
    let (lr, decay) = (f64::from(rule.lr), f64::from(rule.weight_decay));
    for (p, g) in parameter.iter_mut().zip(gradient) {
        *p -= lr * (g + decay * *p);
    }
}

fn momentum(rule: Sgd, parameter: &mut [f64], gradient: &[f64], velocity: &mut [f64]) {
    let (lr, decay, mu) = (
        f64::from(rule.lr),
        f64::from(rule.weight_decay),
        f64::from(rule.momentum),
    );
    for ((p, g), v) in parameter.iter_mut().zip(gradient).zip(velocity) {
        let g: f64 = g + decay * *p;
        *v = mu * *v + g;
        let direction: f64 = if rule.nesterov { g + mu * *v } else { *v };
        *p -= direction * lr;
    }
}

fn adam(rule: Adam, t: u64, parameter: &mut [f64], gradient: &[f64], m: &mut [f64], v: &mut [f64]) {
    let (lr, eps, decay) = (f64::from(rule.lr), f64::from(rule.eps), f64::from(rule.weight_decay));
    let (b1, b2) = (f64::from(rule.beta1), f64::from(rule.beta2));
    let (c1, c2) = (1.0 - b1.powf(t as f64), 1.0 - b2.powf(t as f64));
    for (i, p) in parameter.iter_mut().enumerate() {
        let g = if rule.decoupled {
            gradient[i]
        } else {
            gradient[i] + decay * *p
        };
        m[i] = b1 * m[i] + (1.0 - b1) * g;
        v[i] = b2 * v[i] + (1.0 - b2) * g * g;
        let step = m[i] / c1 / ((v[i] / c2).sqrt() + eps);
        if rule.decoupled {
            *p -= lr * decay * *p;
        }
        *p -= lr * step;
    }
}
