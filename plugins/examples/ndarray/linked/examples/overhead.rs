//! What the C interface costs: the time of a training step on the linked backend, and on the same in a shared object.
//!
//! ```text
//! cargo build --release -p meganeura-ndarray-plugin
//! MEGANEURA_PLUGINS=$PWD/target/release/libmeganeura_ndarray_plugin.so cargo run --release --example overhead
//! ```

use std::time::Instant;

use meganeura::{Graph, Session, SessionConfig, build};

/// Steps of a block, and blocks of each backend in turn.
const STEPS: usize = 400;
const BLOCKS: usize = 25;

fn session(device: &str, rows: usize, width: usize) -> Session {
    let mut g = Graph::new();
    let x = g.input("x", &[rows, width]);
    let labels = g.input("labels", &[rows, 4]);
    let (w1, w2) = (g.parameter("w1", &[width, width]), g.parameter("w2", &[width, 4]));
    let h = g.matmul(x, w1);
    let h = g.relu(h);
    let logits = g.matmul(h, w2);
    let loss = g.cross_entropy_loss(logits, labels);
    g.set_outputs(vec![loss]);
    let config = SessionConfig {
        device: Some(device.into()),
        ..SessionConfig::default()
    };
    let (mut s, _) = build(&g, config).expect("it builds");
    let wave = |n: usize| (0..n).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<_>>();
    s.set_parameter("w1", &wave(width * width));
    s.set_parameter("w2", &wave(width * 4));
    s.set_input("x", &wave(rows * width));
    s.set_input("labels", &[1.0, 0.0, 0.0, 0.0].repeat(rows));
    s.set_learning_rate(0.01);
    s
}

fn main() {
    meganeura::link_plugins!(meganeura_ndarray).expect("it is linked");
    for (rows, width) in [(8, 16), (32, 64), (64, 128)] {
        let mut sessions = ["ndarray", "ndarray-loaded"].map(|device| session(device, rows, width));
        let mut micros = [Vec::new(), Vec::new()];
        for _ in 0..BLOCKS {
            for (session, micros) in sessions.iter_mut().zip(&mut micros) {
                let start = Instant::now();
                for _ in 0..STEPS {
                    session.step();
                }
                session.wait();
                micros.push(start.elapsed().as_secs_f64() * 1e6 / STEPS as f64);
            }
        }
        let [linked, loaded] = micros.map(|mut all| {
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        });
        let more = 100.0 * (loaded / linked - 1.0);
        println!("{rows} rows of {width}: {linked:.1} us linked, {loaded:.1} us through the interface, {more:+.1} %");
    }
}
