//! Tests of the kernels against the definition. On CPUs without VNNI they use portable products.

use std::collections::HashMap;
use std::sync::Arc;

use meganeura_core::attrs::Attrs;
use meganeura_core::backend::Device;
use meganeura_core::ops::Conv2dOptions;
use meganeura_core::ops::sample::{Fill, Sample, SampleInput, Sizes};
use meganeura_core::plan::compile_for;
use meganeura_core::random::SplitMix64;
use meganeura_core::{DType, Graph, Session, reference, registry};

use super::*;
use crate::CpuDevice;

/// Runs a call and compares the result with the definition. The weights are a parameter, so that the backend stores them in
/// panels. `change` changes the activations.
fn check(name: &str, sample: &Sample, seed: u64, change: impl Fn(&mut [f64])) -> Vec<f32> {
    let mut graph = Graph::new();
    let mut rng = SplitMix64::new(seed);
    let mut values: HashMap<String, Vec<f64>> = HashMap::new();
    let mut operands = Vec::new();
    for (i, input) in sample.inputs.iter().enumerate() {
        let operand = format!("operand{i}");
        let mut drawn = input.values(&mut rng);
        if i == 0 {
            change(&mut drawn);
        }
        values.insert(operand.clone(), drawn);
        operands.push(match i {
            3 => graph.parameter_typed(&operand, &input.shape, input.dtype).into(),
            _ => graph.input_typed(&operand, &input.shape, input.dtype).into(),
        });
    }
    let op = registry::op(name).expect("a registered operator");
    let y = graph.call(op, sample.attrs.clone(), operands);
    graph.set_outputs(vec![y]);
    let want = reference::evaluate(&graph, &values).expect("an evaluation");
    let results = [1, 2, 3].map(|threads| {
        let device: Arc<dyn Device> = Arc::new(CpuDevice::new(threads));
        let plan = compile_for(&graph, &*device).expect("a plan");
        assert_eq!(plan.dispatches.len(), 1, "{name} is decomposed");
        let mut session = Session::on(device, plan).expect("a session");
        for (i, input) in sample.inputs.iter().enumerate() {
            let operand = format!("operand{i}");
            let bytes: Vec<u8> = values[&operand]
                .iter()
                .flat_map(|&v| match input.dtype {
                    DType::U32 => (v as u32).to_le_bytes(),
                    DType::I32 => (v as i32).to_le_bytes(),
                    _ => (v as f32).to_le_bytes(),
                })
                .collect();
            match i {
                3 => session.try_set_parameter_bytes(&operand, &bytes).expect("a parameter"),
                _ => session.try_set_input_bytes(&operand, &bytes).expect("an input"),
            }
        }
        session.step();
        session.try_read_output_named("0").expect("a result")
    });
    let [one, two, three] = results;
    let same = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
    assert!(
        same(&one, &two) && same(&one, &three),
        "{name} {}: threads differ",
        sample.label
    );
    let want = want.get(graph.outputs()[0]).expect("a result");
    assert_eq!(want.data.len(), one.len(), "{name} {}", sample.label);
    let largest = want
        .data
        .iter()
        .filter(|v| v.is_finite())
        .fold(1e-3f64, |m, v| m.max(v.abs()));
    for (i, (&want, &got)) in want.data.iter().zip(&one).enumerate() {
        let got = f64::from(got);
        let close = (want - got).abs() <= 1e-6 * largest || got.is_nan();
        assert!(close, "{name} {} [{i}]: {got}, not {want}", sample.label);
        assert!(
            got.is_nan() || !want.is_nan(),
            "{name} {} [{i}]: {got} hides NaN",
            sample.label
        );
    }
    one
}

#[test]
fn samples_agree_with_the_definition() {
    for name in ["core.int8_matmul", "core.int8_conv2d"] {
        for seed in 0..6 {
            let op = registry::op(name).expect("a registered operator");
            for sample in op.samples(&mut Sizes::new(seed)) {
                let y = check(name, &sample, seed, |_| {});
                assert!(y.iter().all(|y| y.is_finite()), "{name} {}", sample.label);
            }
        }
    }
}

/// Operands with the scale 0.5, whose quotients are integers and ties.
fn operands(x: &[usize], zero: f64, words: [usize; 2]) -> Vec<SampleInput> {
    vec![
        SampleInput::filled(DType::F32, x, Fill::Below(240)),
        SampleInput::filled(DType::F32, &[], Fill::Constant(0.5)),
        SampleInput::filled(DType::I32, &[], Fill::Constant(zero)),
        SampleInput::below(&words, u32::MAX as usize),
        SampleInput::range(&words[..1], 0.01, 0.02),
    ]
}

#[test]
fn large_products_are_exact() {
    let cases = [
        ([70, 257], 100, 9.0, false),
        ([9, 14_336], 40, -128.0, true),
        ([1, MAX_TERMS], 35, 255.0, false),
        ([300, 64], 1000, 0.0, false),
    ];
    for (x, n, zero, signed) in cases {
        let inputs = operands(&x, zero, [n, x[1].div_ceil(UNIT)]);
        let sample = Sample::new(format!("{x:?} by {n}"), inputs, Attrs::new().with("signed", signed));
        check("core.int8_matmul", &sample, 3, |x| {
            // Quarters are ties.
            x.iter_mut()
                .enumerate()
                .for_each(|(i, x)| *x = *x * 0.5 + (i % 3) as f64 * 0.25);
        });
    }
}

#[test]
fn convolutions_of_many_pixels_agree() {
    let options = Conv2dOptions {
        stride: [2, 1],
        padding: [3, 3],
        ..Conv2dOptions::default()
    };
    let attrs = Attrs::new()
        .with("stride", options.stride)
        .with("padding", options.padding)
        .with("dilation", options.dilation)
        .with("groups", 1i64)
        .with("signed", false)
        .with("kernel_size", [7usize, 7]);
    let inputs = operands(&[2, 3, 41, 37], 117.0, [50, 49]);
    let sample = Sample::new("7x7", inputs, attrs);
    check("core.int8_conv2d", &sample, 5, |_| {});
}

#[test]
fn numbers_that_cannot_be_rounded_stay_visible() {
    let inputs = operands(&[4, 20], 3.0, [17, 5]);
    let sample = Sample::new("NaN", inputs, Attrs::new().with("signed", true));
    let y = check("core.int8_matmul", &sample, 1, |x| {
        x[25] = f64::NAN;
        x[45] = f64::INFINITY;
        x[46] = f64::NEG_INFINITY;
    });
    let nan: Vec<bool> = y.chunks(17).map(|row| row.iter().all(|y| y.is_nan())).collect();
    assert_eq!(nan, [false, true, false, false]);
    let attrs = Attrs::new()
        .with("stride", [1usize, 1])
        .with("padding", [0usize, 0])
        .with("dilation", [1usize, 1])
        .with("groups", 1i64)
        .with("signed", true)
        .with("kernel_size", [1usize, 1]);
    let sample = Sample::new("NaN", operands(&[2, 3, 2, 80], 3.0, [2, 1]), attrs);
    let y = check("core.int8_conv2d", &sample, 1, |x| x[0] = f64::NAN);
    assert!(y[0].is_nan() && y[320..].iter().all(|y| y.is_finite()));
}
