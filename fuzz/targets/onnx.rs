//! Target: ONNX files, and the report of importing them.
#![no_main]

use meganeura_fuzz::{protobuf, seed, target};
use meganeura_onnx::{Dims, Model};

fn seeds() -> Vec<Vec<u8>> {
    vec![
        seed!("formats/onnx/tests/data/attention/model.onnx"),
        seed!("formats/onnx/tests/data/convnet/model.onnx"),
        seed!("formats/onnx/tests/data/decoder/model.onnx"),
        seed!("formats/onnx/tests/data/function/model.onnx"),
        seed!("formats/onnx/tests/data/gather_block_quantized/model.onnx"),
        seed!("formats/onnx/tests/data/matmul_nbits/model.onnx"),
        seed!("formats/onnx/tests/data/multi_head_attention/model.onnx"),
        seed!("formats/onnx/tests/data/quantized_attention/model.onnx"),
        seed!("formats/onnx/tests/data/quantized_lstm/model.onnx"),
        seed!("formats/onnx/tests/data/quantized_ops/model.onnx"),
        seed!("formats/onnx/tests/data/recurrent/model.onnx"),
        seed!("formats/onnx/tests/data/refused.onnx"),
        seed!("formats/onnx/tests/data/sequence/model.onnx"),
        seed!("formats/onnx/tests/data/unsupported.onnx"),
    ]
}

target!(seeds: seeds, change: protobuf::change, |data| {
    if let Ok(model) = Model::from_bytes(data) {
        let _ = model.preflight(&Dims::new().bind("batch", 2).bind("rounds", 3));
    }
});
