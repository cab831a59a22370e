//! Test that matmuls with packed weights are never decomposed, for any number of rows, so that no step expands the
//! weights in memory.

use std::sync::Arc;

use meganeura::Session;
use meganeura::builder::Builder;
use meganeura::cpu::CpuDevice;
use meganeura::nn::layers::WeightStorage;
use meganeura::nn::models::{LlamaConfig, LogitsOf};

const LAYERS: usize = 2;
const DIM: usize = 64;

fn prompt(weights: WeightStorage, rows: usize) -> Session {
    let config = LlamaConfig {
        dim: DIM,
        layers: LAYERS,
        heads: 4,
        kv_heads: 2,
        hidden: 3 * DIM,
        weights: weights.into(),
        ..LlamaConfig::small(96)
    };
    let graph = config.decode_graph(&[], rows, 256, LogitsOf::OneRow);
    match Builder::on(Arc::new(CpuDevice::new(2))).inference().build(&graph) {
        Ok((session, _)) => session,
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn prompts_of_any_length_read_weights_packed() {
    for &weights in &WeightStorage::ALL[1..] {
        for rows in [1, 9, 64, 256] {
            let session = prompt(weights, rows);
            let plan = session.plan();
            let count = |name: &str| plan.dispatches.iter().filter(|d| d.kernel.name == name).count();
            // Seven matrices of a block, and the logits.
            assert_eq!(
                count("core.quantized_matmul"),
                7 * LAYERS + 1,
                "{weights:?}, {rows} rows"
            );
            assert_eq!(count("core.matmul"), 0, "{weights:?}, {rows} rows");
            // Only rows of the embedding table are expanded.
            let expanded = count("core.dequantize") + count("core.cast");
            assert_eq!(expanded, 1, "{weights:?}, {rows} rows");
        }
    }
}
