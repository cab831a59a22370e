//! Helpers of tests that run a graph with a single call, and compare the results with the operator's definition.

use std::collections::HashMap;
use std::sync::Arc;

use half::{bf16, f16};
use meganeura_core::attrs::Attrs;
use meganeura_core::backend::Device;
use meganeura_core::ops::OpRef;
use meganeura_core::ops::sample::{Sample, SampleInput};
use meganeura_core::plan::compile_for;
use meganeura_core::random::SplitMix64;
use meganeura_core::{DType, Graph, Session, reference, registry};
use meganeura_cpu::CpuDevice;

pub(crate) fn op(name: &str) -> OpRef {
    registry::ops()
        .into_iter()
        .find(|op| op.name() == name)
        .expect("a registered operator")
}

/// A graph with one call, and the values of its operands.
pub(crate) struct Case {
    pub(crate) graph: Graph,
    pub(crate) values: HashMap<String, Vec<f64>>,
    inputs: Vec<SampleInput>,
    name: &'static str,
    ports: usize,
}

pub(crate) fn case(op: OpRef, sample: &Sample, seed: u64) -> Case {
    let mut graph = Graph::new();
    let mut rng = SplitMix64::new(seed);
    let mut values = HashMap::new();
    let operands: Vec<_> = (sample.inputs.iter().enumerate())
        .map(|(i, input)| {
            let name = format!("operand{i}");
            values.insert(name.clone(), input.values(&mut rng));
            input.leaf(&mut graph, &name, input.dtype).into()
        })
        .collect();
    let call = graph.call(op, sample.attrs.clone(), operands);
    let ports = graph.nodes()[call.index()].outputs.len();
    graph.set_outputs((0..ports as u32).map(|p| graph.port(call, p)).collect());
    Case {
        graph,
        values,
        inputs: sample.inputs.clone(),
        name: op.name(),
        ports,
    }
}

/// Returns the bytes that store `values` in a dtype.
pub(crate) fn bytes(values: &[f64], dtype: DType) -> Vec<u8> {
    let each = values.iter();
    match dtype {
        DType::U32 => each.flat_map(|&v| (v as u32).to_le_bytes()).collect(),
        DType::I32 => each.flat_map(|&v| (v as i32).to_le_bytes()).collect(),
        DType::F16 => each.flat_map(|&v| f16::from_f64(v).to_le_bytes()).collect(),
        DType::BF16 => each.flat_map(|&v| bf16::from_f64(v).to_le_bytes()).collect(),
        _ => each.flat_map(|&v| (v as f32).to_le_bytes()).collect(),
    }
}

/// Returns the numbers that `bytes` store in a dtype.
pub(crate) fn numbers(bytes: &[u8], dtype: DType) -> Vec<f64> {
    let (words, _) = bytes.as_chunks::<4>();
    let (halves, _) = bytes.as_chunks::<2>();
    match dtype {
        DType::U32 => words.iter().map(|&b| f64::from(u32::from_le_bytes(b))).collect(),
        DType::I32 => words.iter().map(|&b| f64::from(i32::from_le_bytes(b))).collect(),
        DType::F16 => halves.iter().map(|&b| f16::from_le_bytes(b).to_f64()).collect(),
        DType::BF16 => halves.iter().map(|&b| bf16::from_le_bytes(b).to_f64()).collect(),
        _ => words.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect(),
    }
}

pub(crate) fn session(case: &Case, threads: usize) -> Session {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(threads));
    let plan = compile_for(&case.graph, &*device).expect("a plan");
    let own = plan.dispatches.iter().filter(|d| d.kernel.name == case.name);
    assert_eq!(own.count(), 1, "{} is decomposed", case.name);
    let mut session = Session::on(device, plan).expect("a session");
    for (i, input) in case.inputs.iter().enumerate() {
        let name = format!("operand{i}");
        let values = &case.values[&name];
        if input.state && input.dtype != DType::F32 {
            session
                .try_set_parameter_bytes(&name, &bytes(values, input.dtype))
                .expect("a parameter");
        } else if input.state {
            let values: Vec<f32> = values.iter().map(|&v| v as f32).collect();
            session.try_set_state(&name, &values).expect("a state");
        } else {
            session
                .try_set_input_bytes(&name, &bytes(values, input.dtype))
                .expect("an input");
        }
    }
    session
}

/// Returns the bytes of all results after a step.
pub(crate) fn results(case: &Case, threads: usize) -> Vec<Vec<u8>> {
    let mut session = session(case, threads);
    session.step();
    (0..case.ports)
        .map(|p| session.try_read_output_bytes(p).expect("a result"))
        .collect()
}

/// Compares the results of one call with the definition, and with the results for other numbers of threads.
pub(crate) fn check(name: &str, sample: &Sample, seed: u64) {
    check_case(name, sample, &case(op(name), sample, seed));
}

/// Checks a case like [`check`]. The case contains the operand values.
pub(crate) fn check_case(name: &str, sample: &Sample, case: &Case) {
    let want = reference::evaluate(&case.graph, &case.values).expect("an evaluation");
    let got = results(case, 2);
    for threads in [1, 3] {
        assert!(
            got == results(case, threads),
            "{name} {}: {threads} threads differ",
            sample.label
        );
    }
    for (port, (value, got)) in case.graph.outputs().iter().zip(&got).enumerate() {
        let want = want.get(*value).expect("a result");
        let scale = want.data.iter().fold(1e-3f64, |m, v| m.max(v.abs()));
        let got = numbers(got, want.ty.dtype);
        assert_eq!(got.len(), want.data.len(), "{name} {} port {port}", sample.label);
        for (i, (&want, &got)) in want.data.iter().zip(&got).enumerate() {
            let close = (want - got).abs() <= sample.tolerance * scale || (want.is_nan() && got.is_nan());
            assert!(close, "{name} {} port {port} [{i}]: {got}, not {want}", sample.label);
        }
    }
}

pub(crate) fn sample(inputs: Vec<SampleInput>, attrs: Attrs) -> Sample {
    let shapes: Vec<_> = inputs.iter().map(|i| &i.shape).collect();
    Sample::new(format!("{shapes:?} {attrs}"), inputs, attrs)
}
