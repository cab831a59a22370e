//! Tests of every operator's gradient against central differences in `f64`.

use crate::common::{Case, case};
use meganeura_core::autodiff::try_differentiate;
use meganeura_core::error::Error;
use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::sample::{Sample, Sizes};
use meganeura_core::ops::{Gradient, OpRef};
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::evaluate;
use meganeura_core::registry;

/// Maximum number of operand elements whose derivative is checked; large operands are sampled.
const PROBES: usize = 12;

/// Adds a loss that weights every element of some results differently.
fn add_loss(c: &mut Case, ports: &[u32]) -> Value {
    let mut rng = SplitMix64::new(99);
    let mut loss: Option<Value> = None;
    for &port in ports {
        let result = c.graph.port(c.call, port);
        let shape = c.graph.shape(result).to_vec();
        let len: usize = shape.iter().product();
        let weights: Vec<f32> = (0..len).map(|_| (rng.unit() * 2.0 - 1.0) as f32).collect();
        let dtype = c.graph.dtype(result);
        let weights = c.graph.constant(weights, &shape);
        let weights = c.graph.cast(weights, dtype);
        let product = c.graph.mul(result, weights);
        let part = c.graph.sum_all(product).into();
        loss = Some(loss.map_or(part, |sum| c.graph.add(sum, part).into()));
    }
    let loss = loss.expect("a float result");
    c.graph.set_outputs(vec![loss]);
    loss
}

/// Returns a case with its loss and the derivatives of the loss. The loss uses all float results if the operator
/// supports that, otherwise only the first one.
fn differentiated(op: OpRef, sample: &Sample, probed: &[usize]) -> (Case, Value, Graph) {
    let build = |ports: &dyn Fn(u32) -> bool| {
        let mut c = case(op, sample, 5);
        for &i in probed {
            c.graph.require_grad(c.operands[i]);
        }
        let results = c.graph.nodes()[c.call.index()].outputs.len() as u32;
        let float = |&p: &u32| c.graph.dtype(c.graph.port(c.call, p)).is_float();
        let ports: Vec<u32> = (0..results).filter(float).filter(|&p| ports(p)).collect();
        let loss = add_loss(&mut c, &ports);
        let full = try_differentiate(&c.graph);
        (c, loss, full)
    };
    match build(&|_| true) {
        (_, _, Err(Error::NotDifferentiable { .. })) => {}
        (c, loss, Ok(full)) => return (c, loss, full),
        (_, _, Err(e)) => panic!("{} {}: {e}", op.name(), sample.label),
    }
    let (c, loss, full) = build(&|p| p == 0);
    let full = full.unwrap_or_else(|e| panic!("{} {}: {e}", op.name(), sample.label));
    (c, loss, full)
}

fn check(op: OpRef, sample: &Sample) {
    let c = case(op, sample, 5);
    assert!(c.graph.errors().is_empty(), "{}: {:?}", op.name(), c.graph.errors());
    if !c.graph.dtype(c.call).is_float() {
        return;
    }
    let probed: Vec<usize> = (0..c.operands.len())
        .filter(|&i| sample.inputs[i].dtype.is_float() && !sample.inputs[i].state)
        .collect();
    if probed.is_empty() {
        return;
    }
    let (mut c, loss, full) = differentiated(op, sample, &probed);
    let values = evaluate(&full, &c.feeds).expect("evaluates");
    let gradients = full.gradients().to_vec();
    let mut rng = SplitMix64::new(17);
    for &(leaf, gradient) in &gradients {
        let name = full.nodes()[leaf.index()].name.clone().expect("leaves are named");
        let analytic = &values.get(gradient).expect("a gradient").data;
        let scale = analytic.iter().fold(1e-3f64, |m, v| m.max(v.abs()));
        for _ in 0..PROBES.min(analytic.len()) {
            let at = rng.below(analytic.len());
            let x = c.feeds[&*name][at];
            let h = 1e-5 * x.abs().max(1.0);
            let mut probe = |x: f64| {
                c.feeds.get_mut(&*name).expect("fed")[at] = x;
                evaluate(&c.graph, &c.feeds)
                    .expect("evaluates")
                    .get(loss)
                    .expect("a loss")
                    .data[0]
            };
            let numeric = (probe(x + h) - probe(x - h)) / (2.0 * h);
            probe(x);
            let error = (numeric - analytic[at]).abs() / scale;
            assert!(
                error < 2e-5,
                "{} {}, gradient of {name}[{at}]: {} by the rule, {numeric} by differences",
                op.name(),
                sample.label,
                analytic[at]
            );
        }
    }
}

#[test]
fn every_gradient_matches_finite_differences() {
    let mut checked = 0;
    for op in registry::ops() {
        let differentiable = matches!(op.gradient(), Gradient::Rule(_) | Gradient::Decomposed);
        if !differentiable {
            continue;
        }
        for seed in 0..2 {
            for sample in op.samples(&mut Sizes::new(seed)) {
                let elements: usize = sample.inputs.iter().map(|i| i.shape.iter().product::<usize>()).sum();
                // Finite differences of a large case are slow and find no additional errors.
                if elements <= 4000 {
                    check(op, &sample);
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 300, "only {checked} cases were checked");
}

#[test]
fn every_operator_has_samples_that_build() {
    for op in registry::ops() {
        let samples = op.samples(&mut Sizes::new(1));
        assert!(!samples.is_empty(), "{} has no sample cases", op.name());
        for sample in samples {
            let c = case(op, &sample, 1);
            assert!(
                c.graph.errors().is_empty(),
                "{} {}: {:?}",
                op.name(),
                sample.label,
                c.graph.errors()
            );
        }
    }
}
