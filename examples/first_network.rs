//! The short program of the README: a graph from scratch, trained on the digits that ship with the crate.
//!
//! `cargo run --release --example first_network`

use meganeura::nn::data::{Batches, Remainder, digits_split, one_hot};
use meganeura::{Graph, Init, build_session, profiler};

const BATCH: usize = 32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let _trace = profiler::from_environment()?;
    let mut g = Graph::new();
    let x = g.input("x", &[BATCH, 64]);
    let w1 = g.parameter("w1", &[64, 128]);
    let b1 = g.parameter("b1", &[128]);
    let h = g.matmul(x, w1);
    let h = g.bias_add(h, b1);
    let a1 = g.relu(h);
    let w2 = g.parameter("w2", &[128, 10]);
    let b2 = g.parameter("b2", &[10]);
    let h = g.matmul(a1, w2);
    let logits = g.bias_add(h, b2);
    let labels = g.input("labels", &[BATCH, 10]);
    let loss = g.cross_entropy_loss(logits, labels);
    g.set_outputs(vec![loss]);

    let mut session = build_session(&g);
    session.set_parameter("w1", &Init::kaiming_uniform(64).values("w1", 64 * 128, 0));
    session.set_parameter("w2", &Init::kaiming_uniform(128).values("w2", 128 * 10, 0));
    session.set_adam(0.002, 0.9, 0.999, 1e-8);

    let (train, _) = digits_split()?;
    for epoch in 0..5 {
        let mut mean = 0.0;
        let batches = Batches::new(&train, BATCH, 0, epoch, Remainder::Drop)?;
        let count = batches.len() as f32;
        let mut rows = Vec::new();
        for batch in batches {
            one_hot(&batch.labels, 10, &mut rows)?;
            session.set_input("x", &batch.features);
            session.set_input("labels", &rows);
            session.step();
            mean += session.read_loss() / count;
        }
        println!("epoch {epoch}: loss {mean:.4}");
    }
    println!("{}", session.memory_summary());
    Ok(())
}
