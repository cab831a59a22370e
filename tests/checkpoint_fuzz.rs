//! Test of randomly changed checkpoints: no crash, and no more memory than their size justifies.
// A separate binary: its allocator measures the memory of the whole process.

mod common;
#[path = "common/fuzz.rs"]
mod fuzz;

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use fuzz::{PeakAllocator, mutate, runs};
use meganeura::nn::data::Dataset;
use meganeura::nn::models::{MlpConfig, classifier};
use meganeura::nn::trainer::{Checkpoints, Observer, StepInfo, TrainBegin, TrainError};
use meganeura::random::SplitMix64;
use meganeura::{TrainConfig, Trainer};

#[global_allocator]
static GLOBAL: PeakAllocator = PeakAllocator;

/// Observer that ends a run before its first step, or after this many steps.
struct EndAfter(usize);

impl Observer for EndAfter {
    fn on_train_begin(&mut self, _: &TrainBegin) -> ControlFlow<()> {
        match self.0 {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }

    fn on_step(&mut self, _: &StepInfo) -> ControlFlow<()> {
        self.0 -= 1;
        match self.0 {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
}

fn trainer(folder: &Path) -> Trainer {
    let config = TrainConfig {
        epochs: 3,
        batch_size: 6,
        device: Some("cpu".into()),
        checkpoints: Some(Checkpoints {
            folder: folder.to_owned(),
            every: 1000,
            resume: true,
            allow_changes: Vec::new(),
        }),
        ..TrainConfig::default()
    };
    let model = |batch| {
        classifier(batch, &[3], |g, x| {
            MlpConfig::new(3, 3).hidden([4]).build(g, "").forward(g, x)
        })
    };
    Trainer::new(model, config).expect("builds")
}

/// Writes tensors with a manifest that matches them.
fn sign(folder: &Path, bytes: &[u8]) -> Vec<u8> {
    fs::write(folder.join("step-1.safetensors"), bytes).expect("writes");
    let manifest = serde_json::json!({
        "format": 1,
        "file": "step-1.safetensors",
        "bytes": bytes.len(),
        "sha256": meganeura::files::sha256([bytes]),
    });
    let manifest = manifest.to_string().into_bytes();
    fs::write(folder.join("checkpoint.json"), &manifest).expect("writes");
    manifest
}

// A single test, because other tests would allocate at the same time.
#[test]
fn changed_checkpoints_are_refused_or_harmless() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let labels: Vec<u32> = (0..60).map(|i| i % 3).collect();
    let features = (0..180).map(|i| (i as f32 * 0.7).sin()).collect();
    let data = Dataset::new("points", features, vec![3], labels, 3).expect("valid");
    trainer(folder).fit(&data, None, &mut EndAfter(14)).expect("trains");
    let name = common::files(folder).into_iter().find(|n| n.ends_with(".safetensors"));
    let good = fs::read(folder.join(name.expect("tensors"))).expect("readable");
    let header = 8 + u64::from_le_bytes(good[..8].try_into().expect("eight bytes")) as usize;
    let mut trainer = trainer(folder);
    let mut rng = SplitMix64::new(1);
    let (mut taken, mut refused) = (0, 0);
    for i in 0..runs(800) {
        // The header, with shapes, names and the state of the run, is the best target for changes.
        let mut head = good[..header].to_vec();
        for _ in 0..1 + rng.below(3) {
            if !head.is_empty() {
                mutate(&mut head, &mut rng);
            }
        }
        // Half of the changed files contain the new length of the header.
        if rng.below(2) == 0 && head.len() > 8 {
            let length = head.len() as u64 - 8;
            head[..8].copy_from_slice(&length.to_le_bytes());
        }
        let bytes = [&head[..], &good[header..]].concat();
        let mut manifest = sign(folder, &bytes);
        if i % 8 == 0 {
            mutate(&mut manifest, &mut rng);
            fs::write(folder.join("checkpoint.json"), &manifest).expect("writes");
        }
        PeakAllocator::forget();
        let result = trainer.fit(&data, None, &mut EndAfter(if i % 16 == 1 { 2 } else { 0 }));
        let largest = PeakAllocator::seen();
        assert!(largest < 8 * bytes.len() + (1 << 16), "change {i}: {largest} bytes");
        match result {
            Ok(_) => taken += 1,
            Err(error) => {
                refused += 1;
                let is_refusal = error.to_string().contains("help: ");
                // Accepted weights may give a loss that is not finite.
                let is_harmless = matches!(error, TrainError::NonFiniteLoss { .. });
                assert!(is_refusal || is_harmless, "change {i}: {error}");
            }
        }
    }
    println!("{taken} taken, {refused} refused");
    assert!(taken > 10 && refused > 10, "{taken} taken, {refused} refused");
}
