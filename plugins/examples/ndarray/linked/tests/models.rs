//! Tests of models on this backend, without a fallback to another one.

use meganeura::nn::models::LlamaConfig;
use meganeura::{Graph, Session, SessionConfig, build, link_plugins};

/// Creates a training session. A missing kernel is an error, because there is no fallback device.
fn session(graph: &Graph, device: &str) -> Session {
    link_plugins!(meganeura_ndarray).expect("it is linked");
    let config = SessionConfig {
        device: Some(device.into()),
        ..SessionConfig::default()
    };
    let (session, _) = build(graph, config).expect("it builds");
    assert!(session.device().capabilities().name.starts_with(device));
    session
}

fn wave(n: usize, k: f32) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * k).sin()).collect()
}

#[test]
fn a_multilayer_perceptron_learns() {
    let mut g = Graph::new();
    let x = g.input("x", &[8, 4]);
    let labels = g.input("labels", &[8, 2]);
    let (w1, w2) = (g.parameter("w1", &[4, 16]), g.parameter("w2", &[16, 2]));
    let h = g.matmul(x, w1);
    let h = g.relu(h);
    let logits = g.matmul(h, w2);
    let loss = g.cross_entropy_loss(logits, labels);
    g.set_outputs(vec![loss]);
    let mut s = session(&g, "ndarray");
    s.set_parameter("w1", &wave(64, 1.7));
    s.set_parameter("w2", &wave(32, 2.3));
    s.set_input("x", &wave(32, 0.9));
    let one_hot: Vec<f32> = (0..16).map(|i| f32::from(u8::from(i % 2 == i / 2 % 2))).collect();
    s.set_input("labels", &one_hot);
    s.set_learning_rate(0.5);
    s.step();
    let first = s.read_loss();
    for _ in 0..100 {
        s.step();
    }
    assert!(s.read_loss() < 0.3 * first, "{first} to {}", s.read_loss());
}

#[test]
fn a_transformer_block_gives_what_the_cpu_backend_gives() {
    let mut g = Graph::new();
    let x = g.input("x", &[6, 128]);
    let block = LlamaConfig::small(32).block(&mut g, "block");
    let y = block.forward(&mut g, x);
    let loss = g.mean_all(y);
    g.set_outputs(vec![loss, y]);
    let run = |device: &str| {
        let mut s = session(&g, device);
        s.try_initialize_parameters(7).expect("it has initial values");
        s.set_input("x", &wave(6 * 128, 0.37));
        s.step();
        let mut y = vec![0.0; 6 * 128];
        s.read_output_by_index(1, &mut y);
        y
    };
    let (found, expected) = (run("ndarray"), run("cpu"));
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert!(
            (found - expected).abs() < 1e-4 * expected.abs().max(1.0),
            "[{i}]: {found} against {expected}"
        );
    }
}
