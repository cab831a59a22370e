//! Cases of every registered operator on its own samples.

mod faults;
mod large;
mod special;

use std::collections::BTreeSet;

use meganeura_compiler::optimize::try_optimize;
use meganeura_core::autodiff::try_differentiate;
use meganeura_core::error::Error;
use meganeura_core::graph::{Graph, NodeId, NodeKind, Value};
use meganeura_core::ops::sample::{Sample, Sizes};
use meganeura_core::ops::{Gradient, OpRef};
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::{Evaluation, evaluate};
use meganeura_core::{DType, Session, registry};

use crate::case::{Case, CaseRun, Check, SharedDevice, ensure, fail};
use crate::compare::{compare_within, widening, work};
use crate::harness::{Feeds, feed, open, output, run_once};
use crate::options::Options;
use crate::precision::Deviations;
use crate::storage::{decode, quantise, wide};

/// Maximum number of half-precision samples of an operator.
const HALF_SAMPLES: usize = 3;
/// Maximum number of elements of a half-precision sample, because sums of many rounded numbers are too inaccurate to
/// compare.
const HALF_ELEMENTS: usize = 1100;
/// Factor between the tolerance of gradients and that of results.
const GRADIENT_FACTOR: f64 = 5.0;

/// A sample as a graph with values.
#[derive(Clone)]
struct SampleGraph {
    graph: Graph,
    call: NodeId,
    operands: Vec<NodeId>,
    feeds: Feeds,
}

/// Builds the call of a sample on leaves named `operand0`, `operand1` ...; with `float`, operands that are
/// `f32` inputs get that type instead.
fn build(op: OpRef, sample: &Sample, seed: u64, float: DType) -> SampleGraph {
    let mut graph = Graph::new();
    let mut rng = SplitMix64::new(seed);
    let mut feeds = Feeds::new();
    let mut operands = Vec::new();
    for (i, input) in sample.inputs.iter().enumerate() {
        let name = format!("operand{i}");
        let dtype = match input.dtype {
            DType::F32 if !input.state => float,
            other => other,
        };
        let values = input.values(&mut rng);
        // The error of a type that cannot be stored occurs when the operand is set.
        feeds.insert(name.clone(), quantise(dtype, &values).unwrap_or(values));
        operands.push(input.leaf(&mut graph, &name, dtype));
    }
    let call = graph.call(op, sample.attrs.clone(), operands.iter().map(Value::from).collect());
    let ports = graph.nodes()[call.index()].outputs.len() as u32;
    let outputs: Vec<Value> = (0..ports).map(|port| graph.port(call, port)).collect();
    graph.set_outputs(outputs);
    SampleGraph {
        graph,
        call,
        operands,
        feeds,
    }
}

pub(crate) fn cases(options: &Options) -> Vec<Case> {
    let mut cases = Vec::new();
    for op in registry::ops() {
        let differentiable = matches!(op.gradient(), Gradient::Rule(_) | Gradient::Decomposed);
        let mut seen = BTreeSet::new();
        for seed in options.seeds.clone() {
            for (i, sample) in op.samples(&mut Sizes::new(seed)).into_iter().enumerate() {
                let shapes: Vec<_> = sample.inputs.iter().map(|s| s.shape.clone()).collect();
                // Samples of fixed shapes repeat with every seed.
                if !seen.insert((sample.label.clone(), shapes)) {
                    continue;
                }
                let built = build(op, &sample, seed, DType::F32);
                if work(&built.graph) > options.max_work {
                    continue;
                }
                let id = |kind: &str| format!("{}/{kind}/{i} {} seed {seed}", op.name(), sample.label);
                if differentiable && wants_gradients(&built, &sample) {
                    let (built, sample) = (built.clone(), sample.clone());
                    let run = move |device: &SharedDevice| gradients(device, built, &sample);
                    cases.push(Case::new(id("gradient"), run));
                }
                let tolerance = sample.tolerance;
                let run = move |device: &SharedDevice| forward(device, op, &built, tolerance);
                cases.push(Case::new(id("forward"), run));
            }
        }
        cases.extend(half_cases(op));
        cases.extend(faults::cases(op));
    }
    cases.extend(large::cases(options));
    cases.extend(special::cases());
    cases
}

/// Compares results and written states with the oracle.
fn forward(device: &SharedDevice, op: OpRef, case: &SampleGraph, tolerance: f64) -> CaseRun {
    let oracle = evaluate(&case.graph, &case.feeds)?;
    let mut session = open(device, &case.graph)?;
    // The results of the decomposition are correct, but do not test the kernel.
    if let Some(problem) = device.refused_kernel(op.name()) {
        return fail(format!("the kernel did not run: {problem}"));
    }
    let results = run_once(&mut session, &case.graph, &case.feeds)?;
    let off = Deviations::of(&session, &case.graph, &case.feeds)?;
    let limit = tolerance * widening(&case.graph);
    let mut check = Check::default();
    for (port, (&value, found)) in case.graph.outputs().iter().zip(&results).enumerate() {
        let Some(expected) = oracle.get(value) else {
            return fail(format!("the oracle has no result {port}"));
        };
        let what = format!("result {port}");
        let (dtype, more) = (expected.ty.dtype, off.output(port));
        check = check.worse(compare_within(&what, dtype, found, &expected.data, limit, more)?);
    }
    for (name, expected) in &oracle.written {
        let (dtype, found) = persistent(&mut session, &case.graph, name)?;
        let what = format!("{name} after the step");
        check = check.worse(compare_within(&what, dtype, &found, expected, limit, off.state(name))?);
    }
    Ok(check)
}

/// Returns the contents and the type of a state or a parameter.
fn persistent(session: &mut Session, graph: &Graph, name: &str) -> Result<(DType, Vec<f64>), Error> {
    let named = graph.nodes().iter().find(|node| node.name.as_deref() == Some(name));
    Ok(match named.map(|node| (&node.kind, node.outputs.first())) {
        Some((NodeKind::Parameter { .. }, Some(ty))) => {
            let bytes = session.try_read_parameter_bytes(name)?;
            (ty.dtype, decode(ty.dtype, &bytes)?)
        }
        _ => (DType::F32, wide(&session.try_read_state(name)?)),
    })
}

fn wants_gradients(case: &SampleGraph, sample: &Sample) -> bool {
    let operand = |i: &meganeura_core::ops::sample::SampleInput| i.dtype.is_float() && !i.state;
    case.graph.dtype(case.call).is_float() && sample.inputs.iter().any(operand)
}

/// Returns a loss with different weights for the elements of some results, and the graph with its
/// gradients.
fn differentiated(mut case: SampleGraph, sample: &Sample, ports: &[u32]) -> Result<(Value, Graph), Error> {
    let g = &mut case.graph;
    let mut rng = SplitMix64::new(99);
    let mut loss: Option<Value> = None;
    for &port in ports {
        let result = g.port(case.call, port);
        let shape = g.shape(result).to_vec();
        let count: usize = shape.iter().product();
        let weights = (0..count).map(|_| (rng.unit() * 2.0 - 1.0) as f32).collect();
        let weights = g.constant(weights, &shape);
        let dtype = g.dtype(result);
        let weights = g.cast(weights, dtype);
        let product = g.mul(result, weights);
        let part = g.sum_all(product).into();
        loss = Some(loss.map_or(part, |sum| g.add(sum, part).into()));
    }
    let loss = loss.ok_or(Error::NoOutputs)?;
    g.set_outputs(vec![loss]);
    for (operand, input) in case.operands.iter().zip(&sample.inputs) {
        if input.dtype.is_float() && !input.state {
            g.require_grad(*operand);
        }
    }
    Ok((loss, try_differentiate(g)?))
}

/// Compares gradients of a loss of all float results, or of the first result if the operator only
/// differentiates that one.
fn gradients(device: &SharedDevice, case: SampleGraph, sample: &Sample) -> CaseRun {
    let results = case.graph.nodes()[case.call.index()].outputs.iter();
    let ports: Vec<u32> = (0..)
        .zip(results)
        .filter(|(_, ty)| ty.dtype.is_float())
        .map(|(p, _)| p)
        .collect();
    let (loss, mut full) = match differentiated(case.clone(), sample, &ports) {
        Err(Error::NotDifferentiable { .. }) => differentiated(case.clone(), sample, &[0])?,
        other => other?,
    };
    // Read as outputs, because these can have any type.
    let gradients: Vec<Value> = full.gradients().iter().map(|&(_, v)| v).collect();
    full.set_outputs([vec![loss], gradients].concat());
    let oracle = evaluate(&full, &case.feeds)?;
    let limit = GRADIENT_FACTOR * sample.tolerance * widening(&full);
    let plain = check_gradients(device, &full, &full, &oracle, &case.feeds, limit)?;
    let (optimized, _) = try_optimize(&full)?;
    let optimized = check_gradients(device, &optimized, &full, &oracle, &case.feeds, limit);
    match optimized {
        Ok(check) => Ok(plain.worse(check)),
        Err(crate::case::Failure::Wrong(message)) => fail(format!("after optimization, {message}")),
        Err(other) => Err(other),
    }
}

/// Runs a graph with gradients, before or after optimization, and compares with the oracle's evaluation of the
/// `original`.
fn check_gradients(
    device: &SharedDevice,
    graph: &Graph,
    original: &Graph,
    oracle: &Evaluation,
    feeds: &Feeds,
    limit: f64,
) -> CaseRun {
    let mut session = open(device, graph)?;
    feed(&mut session, graph, feeds)?;
    session.try_step()?;
    let off = Deviations::of(&session, original, feeds)?;
    let mut check = Check::default();
    for (i, &(leaf, value)) in original.gradients().iter().enumerate() {
        let name = original.nodes()[leaf.index()].name.as_deref().unwrap_or_default();
        let Some(expected) = oracle.get(value) else {
            return fail(format!("the oracle has no gradient of {name}"));
        };
        let found = output(&mut session, i + 1)?;
        let what = format!("gradient of {name}");
        let (dtype, more) = (expected.ty.dtype, off.output(i + 1));
        // The gradient of a half-precision operand has its precision.
        let limit = limit.max(rounding(dtype));
        check = check.worse(compare_within(&what, dtype, &found, &expected.data, limit, more)?);
        if expected.ty.dtype == DType::F32 {
            let read = wide(&session.try_read_grad(name)?);
            let same = read.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
            ensure!(same, "{what}: reading it by name and as an output gives two results");
        }
    }
    Ok(check)
}

/// Returns the maximum effect of rounding to a type of 16 bits, relative to the largest magnitude.
fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2.0 / 1024.0,
        DType::BF16 => 2.0 / 128.0,
        _ => 0.0,
    }
}

/// Repeats the first samples with operands in 16 bits, if the operator supports them.
fn half_cases(op: OpRef) -> Vec<Case> {
    let suitable = |s: &Sample| {
        let elements: usize = s.inputs.iter().map(|i| i.shape.iter().product::<usize>()).sum();
        elements <= HALF_ELEMENTS && s.inputs.iter().any(|i| i.dtype == DType::F32 && !i.state)
    };
    let samples: Vec<Sample> = op.samples(&mut Sizes::new(0)).into_iter().filter(suitable).collect();
    let mut cases = Vec::new();
    for dtype in [DType::F16, DType::BF16] {
        for (i, sample) in samples.iter().take(HALF_SAMPLES).enumerate() {
            let built = build(op, sample, 0, dtype);
            if !built.graph.errors().is_empty() {
                continue;
            }
            let tolerance = sample.tolerance.max(rounding(dtype));
            let run = move |device: &SharedDevice| forward(device, op, &built, tolerance);
            let id = format!("{}/{dtype}/{i} {}", op.name(), sample.label);
            cases.push(Case::new(id, run));
        }
    }
    cases
}
