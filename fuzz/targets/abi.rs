//! Plans and calls as they are handed to plugins in shared objects.
#![no_main]

use std::sync::Arc;

use meganeura_compiler::Builder;
use meganeura_core::Adam;
use meganeura_cpu::CpuDevice;
use meganeura_fuzz::{binary, target};
use meganeura_nn::models::{cnn_classifier, mlp_classifier};
use meganeura_plugin_abi::NONE;
use meganeura_plugin_abi::view::PlanView;

fn seeds() -> Vec<Vec<u8>> {
    let graphs = [mlp_classifier(2, 5, 3), cnn_classifier(2, [1, 4, 4], 3)];
    let encoded = |graph| {
        let device = Arc::new(CpuDevice::new(1));
        let built = Builder::on(device).optimizer(Adam::new(1e-3)).plan(graph);
        let (plan, _) = built.expect("a model of this repository");
        meganeura::plugins::encoded_plan(&plan).expect("operators that ship")
    };
    graphs.iter().map(encoded).collect()
}

target!(seeds: seeds, change: binary::change, |data| {
    let _ = PlanView::read_call(data);
    let Ok(plan) = PlanView::read(data) else {
        return;
    };
    // What is accepted names nothing that is not there.
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
