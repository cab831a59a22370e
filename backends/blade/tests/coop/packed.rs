//! Tests of packed weights, experts and recurrent layers on devices with cooperative matrices.

use meganeura_compiler::builder::Builder;
use meganeura_core::ops::sample::SampleInput;
use meganeura_core::plan::compile_at;
use meganeura_core::precision::Precision;
use meganeura_core::quantization::{BLOCK, BlockFormat};
use meganeura_core::{DType, Graph, NodeId, Session};

use super::case::Case;
use super::packed_product::PackedProduct;
use super::{check_on, devices_from};

/// Matmuls with weights in blocks and in `f16` are correct, also if the last tile is not full. The software driver
/// takes seconds for each kernel, so not every format is tested with every size. `blade:quantized` tests all formats
/// without cooperative matrices.
#[test]
fn products_of_packed_weights() {
    use BlockFormat::{Q4_0, Q5_1, Q8_0};
    for device in devices_from(Some(0)) {
        for (format, rows) in [
            (None, 40),
            (Some(Q8_0), 40),
            (Some(Q4_0), 40),
            (Some(Q5_1), 40),
            (Some(Q8_0), 3),
        ] {
            let product = PackedProduct::new(format, [rows, 70, 3 * BLOCK]);
            let plan = compile_at(&product.graph, &*device, Precision::Mixed).expect("a plan");
            let used: Vec<bool> = plan.dispatches.iter().map(|d| d.use_coop).collect();
            assert_eq!(used, [true], "{}", product.label);
            let mut session = Session::on(device.clone(), plan).expect("a session");
            // Both operands are rounded to 11 bits.
            product.check(&mut session, 2e-3);
        }
    }
}

/// Matmuls of many rows expand the matrix once, in a separate launch.
#[test]
fn products_of_many_rows() {
    let [rows, columns, length] = [200, 70, 3 * BLOCK];
    for device in devices_from(Some(0)) {
        for product in [
            PackedProduct::new(Some(BlockFormat::Q4_0), [rows, columns, length]),
            PackedProduct::gradient(BlockFormat::Q4_0, [rows, columns, length]),
            PackedProduct::gradient(BlockFormat::Q6, [40, columns, length]),
        ] {
            let builder = Builder::on(device.clone()).inference().precision(Precision::Mixed);
            let (mut session, _) = builder.build(&product.graph).expect("a session");
            let used: Vec<bool> = session.plan().dispatches.iter().map(|d| d.use_coop).collect();
            assert_eq!(used, [true], "{}", product.label);
            product.check(&mut session, 2e-3);
        }
    }
}

/// Expert matmuls never use cooperative matrices, so their results equal the results in `f32`.
#[test]
fn products_of_experts_are_exact() {
    const EXPERTS: usize = 3;
    const ROWS: usize = 70;
    let [columns, length] = [40, 2 * BLOCK];
    let format = BlockFormat::Q8_0;
    let values: Vec<f32> = (0..EXPERTS * columns * length)
        .map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.01)
        .collect();
    let (mut bytes, mut scales) = (Vec::new(), Vec::new());
    format.quantize(&values, &mut bytes, &mut scales);
    let numbers = format.dequantize(&bytes, &scales);
    let scales: Vec<u8> = scales.iter().flat_map(|s| s.to_le_bytes()).collect();
    let mut g = Graph::new();
    let x = g.input("x", &[ROWS, length]);
    let experts = g.input_u32("experts", &[ROWS]);
    let whole = g.parameter("whole", &[EXPERTS, columns, length]);
    let blocks = length / BLOCK;
    let words = g.parameter_typed("words", &[EXPERTS, columns, blocks * format.words()], DType::U32);
    let packed_scales = g.parameter_typed("scales", &[EXPERTS, columns, blocks * format.scales()], DType::F16);
    let plain = g.expert_matmul(x, experts, whole);
    let packed = g.quantized_expert_matmul(x, experts, words, Some(packed_scales.into()));
    g.set_outputs(vec![plain, packed]);

    let x: Vec<f32> = (0..ROWS * length).map(|i| (i as f32 * 0.29).sin()).collect();
    let chosen: Vec<u32> = (0..ROWS as u32).map(|i| i * i % EXPERTS as u32).collect();
    for device in devices_from(Some(0)) {
        let plan = compile_at(&g, &*device, Precision::Mixed).expect("a plan");
        assert!(plan.dispatches.iter().all(|d| !d.use_coop), "{:?}", plan.dispatches);
        let mut session = Session::on(device, plan).expect("a session");
        session.set_parameter("whole", &numbers);
        session.try_set_parameter_bytes("words", &bytes).expect("words");
        session.try_set_parameter_bytes("scales", &scales).expect("scales");
        session.set_input("x", &x);
        session.set_input_u32("experts", &chosen);
        session.step();
        for output in [0, 1] {
            let mut found = vec![0.0; ROWS * columns];
            session.read_output_by_index(output, &mut found);
            for (i, (x, &expert)) in x.chunks(length).zip(&chosen).enumerate() {
                let matrix = &numbers[expert as usize * columns * length..][..columns * length];
                for (j, row) in matrix.chunks(length).enumerate() {
                    let terms = x.iter().zip(row).map(|(&x, &w)| f64::from(x) * f64::from(w));
                    let (sum, size) = terms.fold((0.0, 0.0), |(s, z), t: f64| (s + t, z + t.abs()));
                    let error = (f64::from(found[i * columns + j]) - sum).abs();
                    assert!(
                        error <= 1e-5 * size,
                        "output {output} [{i}, {j}]: off by {error} of {size}"
                    );
                }
            }
        }
    }
}

/// All steps of a recurrent layer are one dispatch. Its matmuls use cooperative matrices.
#[test]
fn recurrent_layers() {
    const STEPS: usize = 2;
    const BATCH: usize = 10;
    const HIDDEN: usize = 12;
    /// Factor of the weights. With it, the sums are about as large as in trained layers.
    const WEIGHT: f64 = 0.2;
    let inputs = |gates: usize, others: &[&[usize]]| {
        let own: [&[usize]; 2] = [&[STEPS, BATCH, gates * HIDDEN], &[gates * HIDDEN, HIDDEN]];
        let all = own.iter().chain(others);
        all.map(|shape| SampleInput::f32(shape)).collect::<Vec<_>>()
    };
    let scaled = |input, _, value| if input == 1 { WEIGHT * value } else { value };
    let state: &[usize] = &[BATCH, HIDDEN];
    let lstm = |g: &mut Graph, x: &[NodeId]| {
        let layer = g.lstm(x[0], x[1], x[2], x[3], None, false);
        vec![g.port(layer, 0), g.port(layer, 1)]
    };
    let gru = |g: &mut Graph, x: &[NodeId]| vec![g.gru(x[0], x[1], x[2], x[3], None, true, false)];
    let rnn = |g: &mut Graph, x: &[NodeId]| vec![g.rnn(x[0], x[1], x[2], None, false, true)];
    let devices = devices_from(Some(0));
    for case in [
        Case::with(&inputs(4, &[state, state]), lstm, scaled),
        Case::with(&inputs(3, &[&[HIDDEN], state]), gru, scaled),
        Case::with(&inputs(1, &[state]), rnn, scaled),
    ] {
        check_on(&devices, &case, 1);
    }
}
