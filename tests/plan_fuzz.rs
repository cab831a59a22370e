//! Test of randomly changed plan files: no crash, and no more memory than their size justifies.
// A separate binary: its allocator measures the memory of the whole process.

#[path = "common/fuzz.rs"]
mod fuzz;

use std::fs;
use std::sync::Arc;

use fuzz::{PeakAllocator, mutate, runs};
use meganeura::backend::Device;
use meganeura::builder::Builder;
use meganeura::cache::{load_plan, save_plan};
use meganeura::cpu::CpuDevice;
use meganeura::nn::models::{LlamaConfig, cnn_classifier, language_model, mlp_classifier};
use meganeura::random::SplitMix64;
use meganeura::rewrite::RewriteConfig;
use meganeura::{Adam, ExecutionPlan, Graph, Session};
use sha2::{Digest, Sha256};

#[global_allocator]
static GLOBAL: PeakAllocator = PeakAllocator;

/// Maximum memory in bytes of plans that are run. Larger ones are only verified.
const RUN_BYTES: usize = 1 << 24;

fn models() -> Vec<Graph> {
    let llama = LlamaConfig {
        layers: 1,
        dim: 16,
        hidden: 24,
        ..LlamaConfig::small(11)
    };
    vec![
        mlp_classifier(2, 5, 3),
        cnn_classifier(2, [1, 4, 4], 3),
        language_model(1, 5, |g, tokens| llama.build(g, "").forward(g, tokens)),
    ]
}

/// Returns a plan file with a valid checksum in the first line.
fn signed(body: &[u8]) -> Vec<u8> {
    let digest: String = Sha256::digest(body).iter().map(|b| format!("{b:02x}")).collect();
    let version = meganeura::compile::PLAN_VERSION;
    let mut file = format!("// meganeura plan, format {version}, sha256 {digest}\n").into_bytes();
    file.extend(body);
    file
}

/// Runs a step; its results are ignored, and errors are allowed.
fn run(plan: ExecutionPlan, device: &Arc<dyn Device>) {
    let inputs: Vec<(String, usize)> = plan
        .input_buffers
        .iter()
        .map(|(name, buffer)| (name.clone(), plan.buffers[buffer.index()]))
        .collect();
    let Ok(mut session) = Session::on(device.clone(), plan) else {
        return;
    };
    let _ = session.try_initialize_parameters(1);
    for (name, bytes) in inputs {
        let _ = session.try_set_input_bytes(&name, &vec![0; bytes]);
    }
    let _ = session.try_step().and_then(|()| session.try_wait());
    let _ = session.try_read_loss();
}

// A single test, because other tests would allocate at the same time.
#[test]
fn changed_files_are_refused_or_harmless() {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(1));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plan.ron");
    let models = models();
    let runs = runs(1200).div_ceil(models.len());
    let (mut loaded, mut refused) = (0, 0);
    for (m, graph) in models.iter().enumerate() {
        let adam = Adam::new(1e-3);
        let rewrite = RewriteConfig::default();
        let (plan, _) = Builder::on(device.clone())
            .optimizer(adam)
            .rewrite(rewrite.clone())
            .plan(graph)
            .expect("builds");
        save_plan(&plan, graph, &path).expect("saves");
        let good = fs::read(&path).expect("it was saved");
        let line = good.iter().position(|b| *b == b'\n').expect("a first line") + 1;
        let mut rng = SplitMix64::new(m as u64);
        for i in 0..runs {
            let mut body = good[line..].to_vec();
            for _ in 0..1 + rng.below(3) {
                if !body.is_empty() {
                    mutate(&mut body, &mut rng);
                }
            }
            // Without a new checksum, every change is rejected.
            if i % 8 == 0 && body != good[line..] {
                fs::write(&path, [&good[..line], &body[..]].concat()).expect("writes");
                assert!(load_plan(graph, &path).is_err(), "model {m}, change {i}");
            }
            let file = signed(&body);
            fs::write(&path, &file).expect("writes");
            PeakAllocator::forget();
            let result = load_plan(graph, &path);
            let largest = PeakAllocator::seen();
            assert!(
                largest < 8 * file.len() + (1 << 16),
                "model {m}, change {i}: {largest} bytes"
            );
            match result {
                Ok(Some(plan)) => {
                    loaded += 1;
                    if plan.total_bytes() < RUN_BYTES {
                        run(plan, &device);
                    }
                }
                Ok(None) => refused += 1,
                Err(error) => {
                    assert!(error.to_string().contains("delete it"), "{error}");
                    refused += 1;
                }
            }
        }
    }
    println!("{loaded} loaded, {refused} refused");
    assert!(loaded > 10 && refused > 10, "{loaded} loaded, {refused} refused");
}
