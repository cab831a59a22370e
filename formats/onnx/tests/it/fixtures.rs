//! Tests of the models of `tests/data` against the results of ONNX Runtime in the same folders.

use std::path::Path;

use meganeura_compiler::Builder;
use meganeura_core::graph::NodeKind;
use meganeura_onnx::{Dims, ElementType, Error, ImportOptions, Model, Runner, Tensor};

/// Reads an array from a file of `numpy.save`, for the types of these models.
pub(super) fn read(path: &Path) -> Tensor {
    let bytes = std::fs::read(path).expect("an array");
    let length = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let (header, data) = bytes[10..].split_at(length);
    let header = std::str::from_utf8(header).expect("text");
    let between = |from: &str, to: &str| -> &str {
        let start = header.split_once(from).expect("a field").1;
        start.split_once(to).expect("its end").0
    };
    let sizes = between("'shape': (", ")").split(',').map(str::trim);
    let dims: Vec<usize> = sizes.filter_map(|size| size.parse().ok()).collect();
    match between("'descr': '", "'") {
        "<f4" => {
            let numbers = data.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
            Tensor::f32(&dims, numbers.map(f32::from_le_bytes).collect())
        }
        "<i4" => {
            let numbers = data.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
            let numbers = numbers.map(|b| i32::from_le_bytes(b).into());
            Tensor::integers(ElementType::I32, &dims, numbers.collect())
        }
        "<f8" => {
            let numbers = data.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b));
            Tensor::floats(ElementType::F64, &dims, numbers.collect())
        }
        "<i8" => {
            let numbers = data.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b));
            Tensor::i64(&dims, numbers.collect())
        }
        "|u1" => Tensor::integers(ElementType::U8, &dims, data.iter().map(|&b| b.into()).collect()),
        other => panic!("arrays of {other} are not among the fixtures"),
    }
}

/// Reads `PREFIX_0.npy`, `PREFIX_1.npy`... in a folder.
pub(super) fn arrays(folder: &Path, prefix: &str) -> Vec<Tensor> {
    let paths = (0..).map(|i| folder.join(format!("{prefix}_{i}.npy")));
    paths.take_while(|path| path.exists()).map(|path| read(&path)).collect()
}

/// Checks that results equal those of ONNX Runtime, within a tolerance relative to the largest value of each.
fn agrees(name: &str, tolerance: f64) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let model = Model::open(folder.join("model.onnx")).expect("a model");
    let inputs = arrays(&folder, "input");
    let builder = Builder::on(super::cases::device());
    let mut runner = Runner::for_inputs(&model, &inputs, &builder).expect("supported");
    let results = runner.run(&inputs).expect("it runs");
    let wanted = arrays(&folder, "output");
    assert_eq!(results.len(), wanted.len(), "{name}");
    for (port, (found, wanted)) in model.outputs().iter().zip(results.iter().zip(&wanted)) {
        let case = format!("{name} {}", port.name);
        assert_eq!(
            (found.dims(), found.element()),
            (wanted.dims(), wanted.element()),
            "{case}"
        );
        let (found, wanted) = (found.to_f64(), wanted.to_f64());
        let largest = wanted.iter().fold(0.0f64, |most, v| most.max(v.abs()));
        for (i, (a, b)) in found.iter().zip(&wanted).enumerate() {
            let near = (a - b).abs() <= tolerance * largest;
            assert!(near, "{case}, element {i}: {a}, not {b}");
        }
    }
}

#[test]
fn recurrent_and_quantised_models_agree_with_onnx_runtime() {
    agrees("recurrent", 1e-5);
    // ONNX Runtime rounds inputs and states of a quantised LSTM to 8 bits; a unit of such integers is 1/255 of their range.
    agrees("quantized_lstm", 1e-2);
    agrees("quantized_ops", 1e-2);
}

#[test]
fn attention_with_projections_agrees_with_onnx_runtime() {
    agrees("attention", 1e-5);
    agrees("quantized_attention", 1e-5);
}

#[test]
fn attention_of_projections_agrees_with_onnx_runtime() {
    agrees("multi_head_attention", 1e-5);
}

#[test]
fn attention_with_caches_agrees_with_onnx_runtime() {
    agrees("decoder", 1e-5);
    agrees("group_query_attention", 1e-5);
}

#[test]
fn weights_of_a_few_bits_agree_with_onnx_runtime() {
    agrees("matmul_nbits", 1e-5);
    agrees("gather_block_quantized", 1e-5);
}

#[test]
fn distances_agree_with_onnx_runtime() {
    agrees("distances", 1e-5);
}

#[test]
fn forms_that_are_not_supported_are_refused_with_node_and_reason() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/refused.onnx");
    let model = Model::open(path).expect("a model");
    let Err(Error::Unsupported(report)) = model.import(&ImportOptions::default()) else {
        panic!("it is refused")
    };
    let wanted = [
        ("megatron", "four dimensions"),
        ("cumulative", "cumulative lengths"),
        ("rotary", "do_rotary"),
        ("shared", "longer than what they hold"),
        ("both", "past together with attention_bias"),
        ("buffer", "longer than what they hold"),
        ("beams", "beams"),
        ("open", "the total length (operand 6, `open_6`) depends on the data"),
        ("norms", "q_norm_weight"),
        ("chunks", "query_seqlens"),
        ("quantized", "k_scale"),
        ("window", "sliding_window_cache"),
        ("sharing", "0"),
        ("three", "3 bits"),
        ("order", "g_idx"),
        ("prepacked", "weight_prepacked"),
        ("columns", "gather_axis = 1"),
    ];
    for (node, reason) in wanted {
        let found: Vec<&str> = report
            .issues
            .iter()
            .filter(|issue| issue.place.starts_with(node))
            .map(|issue| issue.message.as_str())
            .collect();
        assert!(
            found.iter().any(|message| message.contains(reason)),
            "{node}: {found:?}"
        );
    }
}

#[test]
fn statistics_of_batch_norms_are_not_trained() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/convnet/model.onnx");
    let model = Model::open(path).expect("a model");
    let options = ImportOptions {
        freeze: vec!["conv.*".into()],
        ..ImportOptions::new(Dims::new().bind("batch", 2))
    };
    let graph = model.import(&options).expect("supported").graph;
    let mut trained: Vec<&str> = graph
        .nodes()
        .iter()
        .filter(|node| matches!(node.kind, NodeKind::Parameter { trainable: true, .. }))
        .filter_map(|node| node.name.as_deref())
        .collect();
    trained.sort_unstable();
    assert_eq!(trained, ["fc.bias", "fc.weight", "scale", "shift"]);
}
