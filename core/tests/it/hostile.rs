//! Tests that no invalid call makes a shape rule, a cost, a decomposition or a gradient rule panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common;
use crate::mutation::mutated;
use meganeura_core::attrs::Attrs;
use meganeura_core::autodiff::try_differentiate;
use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::sample::{Sample, Sizes};
use meganeura_core::ops::{Call, Gradient, OpRef};
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::{evaluate, expand_call};
use meganeura_core::{DType, Shape, TensorType, registry};

/// Maximum number of elements of a call that is also evaluated.
const SMALL: usize = 4000;

fn shapes(sample: &Sample) -> Option<Vec<TensorType>> {
    let ty = |i: &meganeura_core::ops::sample::SampleInput| {
        Shape::new(&i.shape).ok().map(|shape| TensorType::new(i.dtype, shape))
    };
    sample.inputs.iter().map(ty).collect()
}

/// Checks all functions of an operator for a call; returns an error if an invariant does not hold.
fn examine(op: OpRef, sample: &Sample) -> Result<bool, String> {
    let Some(inputs) = shapes(sample) else { return Ok(false) };
    let not_written = |&(operand, _): &(usize, usize)| sample.inputs.get(operand).is_none_or(|i| !i.state);
    if op.arity().check(inputs.len()).is_err() || op.writes().iter().any(not_written) {
        return Ok(false);
    }
    let call = |outputs| Call {
        attrs: &sample.attrs,
        inputs: &inputs,
        outputs,
    };
    let outputs = match op.infer(&call(&[])) {
        Ok(outputs) => outputs,
        Err(message) if message.is_empty() => return Err("rejected without a word".into()),
        Err(_) => return Ok(false),
    };
    let bound = op.index_bound(&call(&outputs));
    // Costs are sums of products of sizes, for tensors that fit into memory.
    let mut types = inputs.iter().chain(&outputs);
    if types.any(|t| t.numel() > 1 << 28 || t.shape.iter().any(|&d| d > 1 << 21)) {
        return Ok(true);
    }
    let cost = op.cost(&call(&outputs));
    // Masks and tables of a decomposition are constants of its size.
    if cost.flops.max(cost.bytes) > 1 << 28 {
        return Ok(true);
    }
    if op.semantics().decomposition().is_some() {
        expand_call(op, &sample.attrs, &inputs, &outputs).map_err(|e| format!("does not expand: {e}"))?;
    }
    let all = inputs.iter().chain(&outputs);
    let small = all.clone().map(TensorType::numel).sum::<usize>() <= SMALL
        && cost.flops < 2_000_000
        && all.flat_map(|t| t.shape.iter()).all(|&d| d < 1 << 16);
    gradient(op, sample, &inputs)?;
    let nothing_to_index = bound.is_some_and(|(operand, rows)| rows == 0 && inputs[operand].numel() > 0);
    if small && !nothing_to_index && bound.is_none() {
        let mut c = common::case(op, sample, 5);
        if c.operands.len() != inputs.len() {
            return Err("operands are lost".into());
        }
        let ports = c.graph.nodes()[c.call.index()].outputs.len() as u32;
        c.graph
            .set_outputs((0..ports).map(|p| c.graph.port(c.call, p)).collect());
        let values = evaluate(&c.graph, &c.feeds).map_err(|e| format!("is not evaluated: {e}"))?;
        for (&value, ty) in c.graph.outputs().iter().zip(&outputs) {
            let found = values.get(value).ok_or("no result")?;
            if found.data.len() != ty.numel() {
                return Err(format!("{} elements, not {}", found.data.len(), ty.numel()));
            }
        }
    }
    Ok(true)
}

/// Differentiates a sum of the float results; the only acceptable error is a reason why there is no gradient.
fn gradient(op: OpRef, sample: &Sample, inputs: &[TensorType]) -> Result<(), String> {
    if matches!(op.gradient(), Gradient::NotDifferentiable(_)) {
        return Ok(());
    }
    let mut g = Graph::new();
    let mut operands: Vec<Value> = Vec::new();
    for (i, (input, ty)) in sample.inputs.iter().zip(inputs).enumerate() {
        let name = format!("operand{i}");
        let leaf = input.leaf(&mut g, &name, ty.dtype);
        if ty.dtype.is_float() && !input.state {
            g.require_grad(leaf);
        }
        operands.push(leaf.into());
    }
    let call = g.call(op, sample.attrs.clone(), operands);
    if let Some(error) = g.errors().first() {
        return Err(format!("a graph refuses it: {error}"));
    }
    if !g.dtype(call).is_float() {
        return Ok(());
    }
    let sum = g.sum_all(call);
    g.set_outputs(vec![sum]);
    match try_differentiate(&g) {
        Ok(full) => full.verify().map_err(|e| format!("an invalid gradient: {e}")),
        Err(meganeura_core::Error::NotDifferentiable { .. }) => Ok(()),
        Err(e) => Err(format!("its gradient: {e}")),
    }
}

#[test]
fn no_call_panics() {
    let rounds: usize = std::env::var("HOSTILE_ROUNDS")
        .ok()
        .and_then(|r| r.parse().ok())
        .unwrap_or(40);
    let mut failures = Vec::new();
    let mut accepted = 0;
    for op in registry::ops() {
        let mut rng = SplitMix64::new(11);
        let mut first = None;
        for sample in op.samples(&mut Sizes::new(1)) {
            for _ in 0..rounds {
                let sample = mutated(&sample, &mut rng);
                let outcome = catch_unwind(AssertUnwindSafe(|| examine(op, &sample)));
                match outcome {
                    Ok(Ok(was)) => accepted += usize::from(was),
                    Ok(Err(message)) => {
                        first.get_or_insert(format!("{} {}: {message}", op.name(), sample.label));
                    }
                    Err(_) => {
                        first.get_or_insert(format!("{} {}: panicked", op.name(), sample.label));
                    }
                }
            }
        }
        failures.extend(first);
    }
    assert!(
        failures.is_empty(),
        "{} of them:\n{}",
        failures.len(),
        failures.join("\n")
    );
    assert!(accepted > 1000, "only {accepted}");
}

/// Shape rules refuse types and attributes that were once accepted and then failed in later stages.
#[test]
fn what_used_to_fail_later_is_refused_with_a_reason() {
    let refusal = |name: &str, inputs: &[(DType, &[usize])], attrs: Attrs| {
        let ty = |&(dtype, shape): &(DType, &[usize])| TensorType::new(dtype, Shape::new(shape).expect("a shape"));
        let inputs: Vec<TensorType> = inputs.iter().map(ty).collect();
        let op = registry::ops()
            .into_iter()
            .find(|op| op.name() == name)
            .expect("an operator");
        let result = op.infer(&Call {
            attrs: &attrs,
            inputs: &inputs,
            outputs: &[],
        });
        result.expect_err(name)
    };
    let f = DType::F32;
    let attrs = Attrs::new().with("p", 0.5).with("uid", 1i64);
    let message = refusal("core.dropout", &[(f, &[4]), (DType::U32, &[]), (f, &[4])], attrs);
    assert!(message.contains("the step must be one u32"), "{message}");
    let attrs = (Attrs::new().with("stride", [1usize; 2]).with("padding", [1usize; 2]))
        .with("dilation", [1usize; 2])
        .with("groups", i64::from(u32::MAX))
        .with("input_size", [6usize; 2]);
    let message = refusal(
        "core.conv2d_input_grad",
        &[(f, &[2, 5, 6, 6]), (f, &[5, 1 << 40, 3, 3])],
        attrs,
    );
    assert!(message.contains("groups"), "{message}");
    let attrs = (Attrs::new().with("num_heads", 1i64).with("num_kv_heads", 1i64))
        .with("head_dim", 2i64)
        .with("causal", false)
        .with("window", 0i64)
        .with("scale", 1e300);
    let message = refusal("core.attention", &[(f, &[3, 2]), (f, &[3, 2]), (f, &[3, 2])], attrs);
    assert!(message.contains("is not a finite number in f32"), "{message}");
    for (dtype, value) in [
        (DType::U32, 0.5),
        (DType::U32, -1.0),
        (DType::I32, f64::NAN),
        (DType::I32, 1e10),
    ] {
        let one = || vec![1i64];
        let attrs = Attrs::new()
            .with("low", one())
            .with("high", one())
            .with("interior", one());
        let message = refusal("core.pad", &[(dtype, &[3])], attrs.with("value", value));
        assert!(message.contains("is not one of"), "{message}");
    }
}

/// A single element may have the maximum gap, because it has no neighbour to be separated from.
#[test]
fn one_element_may_have_any_gap() {
    let mut g = Graph::new();
    let x = g.input("x", &[1]);
    g.require_grad(x);
    let attrs = (Attrs::new().with("low", vec![1i64]).with("high", vec![2i64]))
        .with("interior", vec![i64::MAX])
        .with("value", 0.0);
    let pad = registry::ops()
        .into_iter()
        .find(|op| op.name() == "core.pad")
        .expect("an operator");
    let y = g.call(pad, attrs, vec![x.into()]);
    let loss = g.sum_all(y);
    g.set_outputs(vec![loss]);
    let full = try_differentiate(&g).expect("a gradient");
    let values = evaluate(&full, &[("x".to_owned(), vec![3.0])].into()).expect("values");
    let (_, gradient) = full.gradients()[0];
    assert_eq!(values.get(gradient).map(|v| v.data.clone()), Some(vec![1.0]));
}
