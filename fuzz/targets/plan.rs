//! Target: plan files with a valid checksum. Small plans that are accepted run a step.
#![no_main]

use std::sync::{Arc, OnceLock};

use meganeura_compiler::Builder;
use meganeura_core::backend::Device;
use meganeura_core::cache::{read_plan, save_plan};
use meganeura_core::files::seal;
use meganeura_core::plan::PLAN_VERSION;
use meganeura_core::{Adam, ExecutionPlan, Session};
use meganeura_cpu::CpuDevice;
use meganeura_fuzz::{in_file, target, text};
use meganeura_nn::models::{cnn_classifier, mlp_classifier};

const MAX_BYTES: usize = 1 << 20;

fn device() -> Arc<dyn Device> {
    static DEVICE: OnceLock<Arc<CpuDevice>> = OnceLock::new();
    DEVICE.get_or_init(|| Arc::new(CpuDevice::new(1))).clone()
}

/// Returns the seeds: plan files without the first line.
fn seeds() -> Vec<Vec<u8>> {
    let graphs = [mlp_classifier(2, 5, 3), cnn_classifier(2, [1, 4, 4], 3)];
    let plan = |graph| {
        let built = Builder::on(device()).optimizer(Adam::new(1e-3)).plan(graph);
        let (plan, _) = built.expect("a model of this repository");
        let file = in_file("seed.ron", &[], |path| {
            save_plan(&plan, graph, path).expect("room in TMPDIR");
            std::fs::read(path).expect("it was written")
        });
        let line = file.iter().position(|b| *b == b'\n').expect("a first line");
        file[line + 1..].to_vec()
    };
    graphs.iter().map(plan).collect()
}

/// Runs a step; results are ignored, and errors are allowed.
fn run(plan: ExecutionPlan) {
    let Ok(mut session) = Session::on(device(), plan) else {
        return;
    };
    let _ = session.try_initialize_parameters(1);
    let _ = session.try_step().and_then(|()| session.try_wait());
    let _ = session.try_read_loss();
}

target!(seeds: seeds, change: text::change, |data| {
    let Ok(body) = std::str::from_utf8(data) else {
        return;
    };
    let file = seal("// meganeura plan, format ", PLAN_VERSION, body);
    if let Ok(plan) = in_file("plan.ron", file.as_bytes(), |path| read_plan(path))
        && plan.total_bytes() < MAX_BYTES
    {
        run(plan);
    }
});
