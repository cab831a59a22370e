//! Test that sessions that are repeatedly opened, trained, saved and closed do not leak memory, open files or threads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use meganeura::backend::Device;
use meganeura::builder::Builder;
use meganeura::config::Config;
use meganeura::cpu::CpuDevice;
use meganeura::ops::Conv2dOptions;
use meganeura::{Adam, Graph, select};

use crate::held::ProcessResources;

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

/// Opens, uses and closes sessions for some time, and checks that the resources of the process do not grow.
fn soak(name: &str, time: Duration, open: impl Fn() -> Arc<dyn Device>) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("saved.safetensors");
    let (begun, mut count, [mut early, mut late]) = (Instant::now(), 0, [None; 2]);
    while begun.elapsed() < time || late.is_none() {
        session_of_a_moment(&open(), &file);
        count += 1;
        // Objects that are created once and kept exist by then. Allocators of several threads return memory at irregular times,
        // so the minimum is compared.
        let held = match begun.elapsed() {
            at if at > time / 8 * 7 => &mut late,
            at if at > time / 4 && at < time / 2 || early.is_none() => &mut early,
            _ => continue,
        };
        let now = ProcessResources::now();
        *held = Some(held.map_or(now, |least: ProcessResources| least.least(now)));
    }
    let [early, late] = [early, late].map(|held| held.expect("some sessions"));
    early.assert_kept(late, &format!("{name}, {count} sessions"), 0, 0);
}

/// Sessions leak nothing during a minute per device, or half of `SOAK_SECONDS`. `SOAK_DEVICES` selects other devices:
/// `cargo test --release -p meganeura --test it soak:: -- --ignored --nocapture --test-threads 1`.
#[test]
#[ignore = "takes minutes"]
fn sessions_leave_nothing_behind() {
    let seconds = std::env::var("SOAK_SECONDS").map_or(120, |text| text.parse().expect("a number"));
    let time = Duration::from_secs(seconds) / 2;
    let devices = std::env::var("SOAK_DEVICES").unwrap_or_else(|_| "cpu,blade,cuda".into());
    let config = Config::default();
    for name in devices.split(',') {
        match (name, select::select(Some(name), &config)) {
            // Uses the same number of threads on every machine.
            ("cpu", _) => soak(name, time, || Arc::new(CpuDevice::new(2))),
            (_, Ok(selected)) => soak(name, time, || selected.open(&config).expect("it opens")),
            ("blade", Err(why)) => println!("VULKAN-NOT-TESTED: {why}"),
            (name, Err(why)) => println!("{}-NOT-TESTED: {why}", name.to_uppercase()),
        }
    }
}
