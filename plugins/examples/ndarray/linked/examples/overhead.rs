//! Measures the cost of the C interface: the time of a training step on the linked backend, and on the same backend in a shared
//! object.
//!
//! ```text
//! cargo build --release -p meganeura-ndarray-plugin
//! MEGANEURA_PLUGINS=$PWD/target/release/libmeganeura_ndarray_plugin.so cargo run --release --example overhead
//! ```
//!
//! Both run the same plan with the same engine on one thread. Blocks of steps take turns, and each backend goes first in every
//! other pair. The result is the median of the ratios within pairs, with their quartiles: other load on the machine affects both
//! blocks of a pair. Nothing else should run.

use std::time::Instant;

use meganeura::{Graph, Session, SessionConfig, build};

/// Time of a block in seconds, and number of pairs of blocks.
const BLOCK_SECONDS: f64 = 0.05;
const PAIRS: usize = 60;
/// Sizes of steps, as rows and width. The cost of the interface is constant, so its share is smallest for the largest step.
const SIZES: [(usize, usize); 4] = [(8, 16), (16, 32), (32, 64), (64, 128)];
/// Minimum duration of a step, in microseconds: the interface is intended for steps of this length and more.
const STEP_MICROS: f64 = 50.0;

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

/// Returns the mean time of a step in a block, in microseconds.
fn block(session: &mut Session, steps: usize) -> f64 {
    let start = Instant::now();
    for _ in 0..steps {
        session.step();
    }
    session.wait();
    start.elapsed().as_secs_f64() * 1e6 / steps as f64
}

/// Returns the quartiles.
fn quartiles(mut all: Vec<f64>) -> [f64; 3] {
    all.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| all[(all.len() - 1) * quarter / 4])
}

/// Checks that both sessions compute the same results.
fn assert_same(sessions: &mut [Session; 2]) {
    let plan = |s: &Session| -> Vec<String> { s.plan().dispatches.iter().map(|d| d.title()).collect() };
    assert_eq!(plan(&sessions[0]), plan(&sessions[1]));
    let [linked, loaded] = sessions;
    assert_eq!(linked.read_loss().to_bits(), loaded.read_loss().to_bits());
    assert_eq!(linked.read_parameter("w1"), loaded.read_parameter("w1"));
}

fn main() {
    meganeura::link_plugins!(meganeura_ndarray).expect("it is linked");
    for (rows, width) in SIZES {
        let mut sessions = ["ndarray", "ndarray-loaded"].map(|device| session(device, rows, width));
        // Warms up the caches and the clock of the CPU.
        let micros = sessions.each_mut().map(|s| block(s, 200))[0];
        let steps = (BLOCK_SECONDS * 1e6 / micros).ceil() as usize;
        let mut pairs = Vec::with_capacity(PAIRS);
        for pair in 0..PAIRS {
            let mut micros = [0.0; 2];
            for turn in 0..2 {
                let which = (pair + turn) % 2;
                micros[which] = block(&mut sessions[which], steps);
            }
            pairs.push(micros);
        }
        assert_same(&mut sessions);
        let [_, linked, _] = quartiles(pairs.iter().map(|p| p[0]).collect());
        let [_, more_micros, _] = quartiles(pairs.iter().map(|p| p[1] - p[0]).collect());
        let [low, median, high] = quartiles(pairs.iter().map(|p| 100.0 * (p[1] / p[0] - 1.0)).collect());
        let note = if linked < STEP_MICROS {
            " (a shorter step than is meant)"
        } else {
            ""
        };
        println!(
            "{rows} rows of {width}: {linked:.1} us a step linked, {more_micros:+.2} us through the interface: \
             {median:+.2} %, quartiles {low:+.2} % and {high:+.2} %{note}"
        );
    }
}
