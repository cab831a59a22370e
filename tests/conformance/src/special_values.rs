//! Probe that tests how a device computes with NaN and infinity.
//!
//! Some drivers compile shaders under the assumption that no operand is NaN or infinite, and replace `x - x` by 0. The suite
//! tests each operator with separate operands, which no driver can simplify. This probe uses one operand twice.

use std::sync::Arc;

use meganeura_core::backend::Device;
use meganeura_core::error::Result;
use meganeura_core::graph::{Graph, NodeId};

use crate::harness::{Feeds, open, run_once};

/// Expression that the probe evaluates.
struct Expression {
    text: &'static str,
    build: fn(&mut Graph, NodeId) -> NodeId,
    expected: fn(f64) -> f64,
}

#[allow(clippy::eq_op, reason = "NaN and infinity give other results than numbers")]
const EXPRESSIONS: [Expression; 5] = [
    Expression {
        text: "x - x",
        build: |g, x| g.sub(x, x),
        expected: |x| x - x,
    },
    Expression {
        text: "x * 0",
        build: |g, x| {
            let zero = g.scalar(0.0);
            g.mul(x, zero)
        },
        expected: |x| x * 0.0,
    },
    Expression {
        text: "x / x",
        build: |g, x| g.div(x, x),
        expected: |x| x / x,
    },
    Expression {
        text: "x == x",
        build: |g, x| g.equal(x, x),
        expected: |x| f64::from(u8::from(!x.is_nan())),
    },
    Expression {
        text: "max(x, 0)",
        build: |g, x| g.relu(x),
        expected: |x| if x.is_nan() { x } else { x.max(0.0) },
    },
];

/// Operands of every expression.
const OPERANDS: [f64; 4] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 3.0];

/// Returns the expressions whose results are wrong on a device if `x` is NaN or infinite, for example `x - x`. Empty if the
/// device follows IEEE 754.
///
/// # Errors
/// Errors of the device.
pub fn wrong_special_values(device: &Arc<dyn Device>) -> Result<Vec<&'static str>> {
    let mut wrong = Vec::new();
    for expression in &EXPRESSIONS {
        let mut graph = Graph::new();
        let x = graph.input("x", &[OPERANDS.len()]);
        let y = (expression.build)(&mut graph, x);
        graph.set_outputs(vec![y]);
        let feeds = Feeds::from([("x".to_owned(), OPERANDS.to_vec())]);
        let found = run_once(&mut open(device, &graph)?, &graph, &feeds)?;
        let agrees = OPERANDS.iter().zip(&found[0]).all(|(&x, &found)| {
            let expected = (expression.expected)(x);
            found == expected || (found.is_nan() && expected.is_nan())
        });
        if !agrees {
            wrong.push(expression.text);
        }
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_keeps_nan_and_infinity() {
        use meganeura_core::backend::Backend as _;
        let config = meganeura_core::config::Config::default();
        let device = crate::ReferenceBackend::default().open(0, &config).expect("it opens");
        assert!(wrong_special_values(&device).expect("it runs").is_empty());
    }
}
