//! One model, run by eight threads with batches of any size. All runs share the weights on the device.
//!
//! ```text
//! cargo run --release --example any_batch
//! ```

use std::thread;
use std::time::Instant;

use meganeura::{Builder, Graph, InferenceModel, InputShapes, Result, Tensor};

const FEATURES: usize = 512;
const CLASSES: usize = 10;

/// Returns a classifier for inputs `x` of the shape `[batch, FEATURES]`.
fn classifier(shapes: &InputShapes) -> Result<Graph> {
    let batch = shapes.dim("x", 0)?;
    let mut g = Graph::new();
    let mut h = g.input("x", &[batch, FEATURES]);
    for layer in 0..3 {
        let w = g.parameter(&format!("w{layer}"), &[FEATURES, FEATURES]);
        let b = g.parameter(&format!("b{layer}"), &[FEATURES]);
        h = g.matmul(h, w);
        h = g.bias_add(h, b);
        h = g.relu(h);
    }
    let w = g.parameter("classes", &[FEATURES, CLASSES]);
    let logits = g.matmul(h, w);
    let probabilities = g.softmax(logits, -1);
    g.set_outputs(vec![probabilities]);
    Ok(g)
}

pub(crate) fn main() -> Result<()> {
    // A real program loads a file here: `session.try_load("model.safetensors").map(drop)`.
    let model = InferenceModel::new(Builder::new(), &[("x", &[1, FEATURES])], classifier, |session| {
        session.try_initialize_parameters(7)
    })?;
    let start = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|number| (number, &model))
            .map(|(number, model)| scope.spawn(move || requests(model, number)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no request panics"))
    })?;
    println!(
        "8 threads ran 160 batches in {:.0} ms",
        1e3 * start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Runs batches of 1 to 8 rows.
fn requests(model: &InferenceModel, number: usize) -> Result<()> {
    for round in 0..20 {
        let batch = 1 + (number + round) % 8;
        let x = Tensor::f32(&[batch, FEATURES], &vec![0.1; batch * FEATURES])?;
        let probabilities = model.run(&[("x", &x)])?.remove(0).to_f32();
        assert_eq!(probabilities.len(), batch * CLASSES);
        assert!((probabilities.iter().sum::<f32>() - batch as f32).abs() < 1e-3);
    }
    Ok(())
}
