//! Tests of quantized models (W8A8): products of bytes, and agreement with ONNX Runtime.

use std::path::Path;

use meganeura_compiler::Builder;
use meganeura_onnx::{ImportOptions, Model, Runner};

use super::fixtures::arrays;

/// Checks the numbers of `core.int8_conv2d` and `core.int8_matmul` in an imported model, and that it has no products of
/// floats. Checks that its results equal those of ONNX Runtime within `tolerance`.
fn agrees(name: &str, products: [usize; 2], tolerance: f64) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/int8").join(name);
    let model = Model::open(folder.join("model.onnx")).expect("a model");
    let graph = model.import(&ImportOptions::default()).expect("supported").graph;
    let count = |op: &str| {
        let ops = graph.nodes().iter().filter_map(|node| node.op());
        ops.filter(|(own, _)| own.name() == op).count()
    };
    let found = ["core.int8_conv2d", "core.int8_matmul"].map(count);
    assert_eq!(found, products, "{name}");
    assert_eq!(["core.conv2d", "core.matmul"].map(count), [0, 0], "{name}");

    let inputs = arrays(&folder, "input");
    let builder = Builder::on(super::cases::device());
    let mut runner = Runner::for_inputs(&model, &inputs, &builder).expect("supported");
    let found = runner.run(&inputs).expect("it runs");
    let wanted = arrays(&folder, "output");
    let (found, wanted) = (found[0].to_f64(), wanted[0].to_f64());
    assert_eq!(found.len(), wanted.len(), "{name}");
    for (i, (a, b)) in found.iter().zip(&wanted).enumerate() {
        assert!((a - b).abs() <= tolerance, "{name}, element {i}: {a}, not {b}");
    }
}

/// A step of the quantized results.
const STEP: f64 = 0.16560;

#[test]
fn pairs_of_quantize_and_dequantize_become_products_of_bytes() {
    agrees("qdq", [2, 2], STEP);
    agrees("qdq_signed", [2, 2], STEP);
}

#[test]
fn quantized_operators_become_products_of_bytes() {
    agrees("qoperator", [2, 2], STEP);
}

#[test]
fn products_of_integers_become_products_of_bytes() {
    agrees("dynamic", [2, 2], 0.05);
}
