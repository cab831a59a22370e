//! Sessions that are opened, trained, saved and closed again and again: memory, open files and threads stay as they are.

use std::sync::Arc;
use std::time::{Duration, Instant};

use meganeura::backend::Device;
use meganeura::build::Builder;
use meganeura::config::Config;
use meganeura::cpu::CpuDevice;
use meganeura::ops::Conv2dOptions;
use meganeura::{Adam, Graph, select};

use crate::held::Held;

fn graph() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[16, 3, 12, 12]);
    let labels = g.input_u32("labels", &[16]);
    let kernel = g.parameter("kernel", &[8, 3, 3, 3]);
    let w = g.parameter("w", &[8, 4]);
    let h = g.conv2d(x, kernel, Conv2dOptions::default());
    let h = g.relu(h);
    let h = g.global_avg_pool(h);
    let logits = g.matmul(h, w);
    let loss = g.cross_entropy_loss(logits, labels);
    g.set_outputs(vec![loss]);
    g
}

fn session_of_a_moment(device: &Arc<dyn Device>, file: &std::path::Path) {
    let built = Builder::on(device.clone()).optimizer(Adam::new(0.01)).build(&graph());
    let (mut session, _) = built.expect("a session");
    let spread = |count: usize| -> Vec<f32> { (0..count).map(|i| (i * 7 % 11) as f32 / 11.0 - 0.5).collect() };
    session.set_parameter("kernel", &spread(216));
    session.set_parameter("w", &spread(32));
    session.set_input_u32("labels", &(0..16).map(|i| i % 4).collect::<Vec<_>>());
    session.set_input("x", &spread(16 * 3 * 144));
    for _ in 0..4 {
        session.step();
    }
    assert!(session.read_loss().is_finite());
    session.save(file);
    session.load(file);
}

/// Opens and closes sessions for some time.
fn soak(name: &str, time: Duration, open: impl Fn() -> Arc<dyn Device>) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("saved.safetensors");
    let (begun, mut count, mut early) = (Instant::now(), 0, None);
    while begun.elapsed() < time || early.is_none() {
        session_of_a_moment(&open(), &file);
        count += 1;
        // What is made once and kept, and the allocator's own reserve, are there by then.
        if begun.elapsed() > time / 4 {
            early.get_or_insert_with(Held::now);
        }
    }
    let early = early.expect("a quarter of the time");
    early.assert_kept(Held::now(), &format!("{name}, {count} sessions"), 0, 0);
}

/// A minute for each device; half of other seconds in `SOAK_SECONDS`:
/// `cargo test --release -p meganeura --test it soak:: -- --ignored --nocapture --test-threads 1`.
#[test]
#[ignore = "takes minutes"]
fn sessions_leave_nothing_behind() {
    let seconds = std::env::var("SOAK_SECONDS").map_or(120, |text| text.parse().expect("a number"));
    let time = Duration::from_secs(seconds) / 2;
    soak("cpu", time, || Arc::new(CpuDevice::new(2)));
    let config = Config::default();
    for (backend, absent) in [("blade", "VULKAN-NOT-TESTED"), ("cuda", "CUDA-NOT-TESTED")] {
        match select::select(Some(backend), &config) {
            Ok(selected) => soak(backend, time, || selected.open(&config).expect("it opens")),
            Err(why) => println!("{absent}: {why}"),
        }
    }
}
