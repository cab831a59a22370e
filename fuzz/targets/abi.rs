//! Target: plans and calls, encoded as plugins in shared objects receive them.
#![no_main]

use std::sync::Arc;

use meganeura_compiler::Builder;
use meganeura_core::plan::compile_for;
use meganeura_core::{Adam, Graph};
use meganeura_cpu::CpuDevice;
use meganeura_fuzz::{binary, target};
use meganeura_nn::models::mlp_classifier;
use meganeura_plugin_abi::NONE;
use meganeura_plugin_abi::view::PlanView;

/// Returns an encoded plan with all kinds of parts, and a small one, of which more mutations can be tried.
fn seeds() -> Vec<Vec<u8>> {
    let device = Arc::new(CpuDevice::new(1));
    let built = Builder::on(device.clone())
        .optimizer(Adam::new(1e-3))
        .plan(&mlp_classifier(2, 5, 3));
    let (large, _) = built.expect("a model of this repository");
    let mut graph = Graph::new();
    let (x, w) = (graph.input("x", &[2, 3]), graph.parameter("w", &[3, 4]));
    let y = graph.matmul(x, w);
    let y = graph.softmax(y, -1);
    graph.set_outputs(vec![y]);
    let small = compile_for(&graph, &*device).expect("operators that ship");
    let encoded = |plan| meganeura::plugins::encoded_plan(plan).expect("operators that ship");
    [large, small].iter().map(encoded).collect()
}

target!(seeds: seeds, change: binary::change, |data| {
    let _ = PlanView::read_call(data);
    let Ok(plan) = PlanView::read(data) else {
        return;
    };
    // An accepted plan only refers to objects that exist.
    for buffer in &plan.buffers {
        assert!(buffer.offset + buffer.bytes as u64 <= plan.arena_bytes);
        assert!(buffer.data.is_empty() || buffer.data.len() == buffer.bytes);
    }
    for operand in plan.dispatches.iter().flat_map(|d| d.inputs.iter().chain(&d.outputs)) {
        match plan.buffers.get(operand.buffer as usize) {
            Some(buffer) => assert!(operand.elements() * operand.dtype.bytes() <= buffer.bytes),
            None => assert!(operand.buffer == NONE && plan.buffers.is_empty()),
        }
    }
});
