//! Tests of training on cooperative matrices: losses are as in full precision, updates are skipped if gradients
//! overflow, and the conformance suite passes.

use std::sync::Arc;

use meganeura_compiler::builder::Builder;
use meganeura_compiler::rewrite::RewriteConfig;
use meganeura_conformance::{Options, Section, run};
use meganeura_core::backend::Device;
use meganeura_core::precision::Precision;
use meganeura_core::{Adam, Graph, Init, NodeId, Session};

use super::devices_from;

const STEPS: usize = 50;
/// Maximum difference of losses, relative to the first loss. There are about ten successive matmuls, each of which
/// rounding changes by at most 2^-10. There are fifty steps, each based on the previous one.
const APART: f32 = 0.02;

const ROWS: usize = 32;
const TOKENS: usize = 24;
const VOCABULARY: usize = 11;

fn weight(g: &mut Graph, name: &str, shape: [usize; 2]) -> NodeId {
    let bound = 1.0 / (shape[0] as f32).sqrt();
    g.parameter_with(name, &shape, Init::Uniform { bound })
}

fn linear(g: &mut Graph, name: &str, x: NodeId, from: usize, to: usize) -> NodeId {
    let w = weight(g, name, [from, to]);
    g.matmul(x, w)
}

/// Returns the graph of a perceptron whose loss is multiplied by a factor.
fn perceptron(factor: f32) -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[ROWS, 20]);
    let labels = g.input_u32("labels", &[ROWS]);
    let h = linear(&mut g, "w1", x, 20, 40);
    let h = g.relu(h);
    let h = linear(&mut g, "w2", h, 40, 24);
    let h = g.tanh(h);
    let logits = linear(&mut g, "w3", h, 24, 5);
    let loss = g.cross_entropy_loss(logits, labels);
    let factor = g.scalar(factor);
    let loss = g.mul(loss, factor);
    g.set_outputs(vec![loss]);
    g
}

/// Returns the graph of two blocks of a language model.
pub(super) fn transformer() -> Graph {
    const DIM: usize = 16;
    let mut g = Graph::new();
    let ids = g.input_u32("x", &[TOKENS]);
    let labels = g.input_u32("labels", &[TOKENS]);
    let table = weight(&mut g, "table", [VOCABULARY, DIM]);
    let mut x = g.embedding(ids, table);
    for i in 0..2 {
        let name = |part: &str| format!("{part}{i}");
        let ones = |g: &mut Graph, part: &str| g.parameter_with(&name(part), &[DIM], Init::Constant(1.0));
        let norm = ones(&mut g, "norm_a");
        let h = g.rms_norm(x, norm, 1e-5);
        let [q, k, v] = ["q", "k", "v"].map(|part| linear(&mut g, &name(part), h, DIM, DIM));
        let [q, k] = [q, k].map(|x| g.rope(x, 10_000.0, 8));
        let h = g.causal_attention(q, k, v, 2, 2, 8);
        let h = linear(&mut g, &name("o"), h, DIM, DIM);
        x = g.add(x, h);
        let norm = ones(&mut g, "norm_b");
        let h = g.rms_norm(x, norm, 1e-5);
        let gate = linear(&mut g, &name("gate"), h, DIM, 2 * DIM);
        let up = linear(&mut g, &name("up"), h, DIM, 2 * DIM);
        let h = g.swiglu(gate, up);
        let h = linear(&mut g, &name("down"), h, 2 * DIM, DIM);
        x = g.add(x, h);
    }
    let logits = linear(&mut g, "head", x, DIM, VOCABULARY);
    let loss = g.cross_entropy_loss(logits, labels);
    g.set_outputs(vec![loss]);
    g
}

fn feed_perceptron(session: &mut Session) {
    let word = |i: usize| (i as u32 + 1).wrapping_mul(2_654_435_761) >> 8;
    let x: Vec<f32> = (0..ROWS * 20)
        .map(|i| word(i) as f32 / (1u32 << 23) as f32 - 1.0)
        .collect();
    session.set_input("x", &x);
    let labels: Vec<u32> = (0..ROWS as u32).map(|i| i % 5).collect();
    session.set_input_u32("labels", &labels);
}

pub(super) fn feed_transformer(session: &mut Session) {
    let token = |i: usize| (i * i + i / 3) as u32 % VOCABULARY as u32;
    let ids: Vec<u32> = (0..TOKENS).map(token).collect();
    let next: Vec<u32> = (1..=TOKENS).map(token).collect();
    session.set_input_u32("x", &ids);
    session.set_input_u32("labels", &next);
}

pub(super) fn session(
    device: &Arc<dyn Device>,
    graph: &Graph,
    precision: Precision,
    feed: fn(&mut Session),
) -> Session {
    let rewrite = RewriteConfig {
        precision: Some(precision),
        ..RewriteConfig::default()
    };
    let update = Some(Adam::new(5e-3).into());
    let built = Builder::on(device.clone())
        .maybe_optimizer(update)
        .rewrite(rewrite.clone())
        .build(graph);
    let (mut session, _) = built.expect("a session");
    session.initialize_parameters(3);
    feed(&mut session);
    session
}

fn on_units(session: &Session) -> usize {
    session.plan().dispatches.iter().filter(|d| d.use_coop).count()
}

/// Checks that the losses of both precisions decrease and stay close to each other.
fn compare_curves(graph: &Graph, feed: fn(&mut Session)) {
    for device in devices_from(Some(0)) {
        let mut exact = session(&device, graph, Precision::F32, feed);
        let mut mixed = session(&device, graph, Precision::Mixed, feed);
        assert_eq!(on_units(&exact), 0);
        assert!(on_units(&mixed) >= 5, "{} dispatches", on_units(&mixed));
        let losses = |session: &mut Session| -> Vec<f32> {
            let step = |_| {
                session.step();
                session.read_loss()
            };
            (0..STEPS).map(step).collect()
        };
        let (a, b) = (losses(&mut exact), losses(&mut mixed));
        for (step, (a_loss, b_loss)) in a.iter().zip(&b).enumerate() {
            assert!((a_loss - b_loss).abs() <= APART * a[0], "step {step}: {a:?} {b:?}");
        }
        assert!(b[STEPS - 1] < 0.6 * b[0], "{b:?}");
        assert_ne!(a, b, "nothing was rounded");
        assert_eq!(mixed.skipped_updates(), 0);
    }
}

#[test]
fn a_perceptron_learns_as_in_full_precision() {
    compare_curves(&perceptron(1.0), feed_perceptron);
}

#[test]
fn a_transformer_learns_as_in_full_precision() {
    compare_curves(&transformer(), feed_transformer);
}

#[test]
fn updates_are_left_out_until_gradients_fit_into_halves() {
    let graph = perceptron(3000.0);
    for device in devices_from(Some(0)) {
        let mut mixed = session(&device, &graph, Precision::Mixed, feed_perceptron);
        let before = mixed.read_parameter("w1");
        mixed.step();
        assert_eq!((mixed.skipped_updates(), mixed.loss_scale()), (1, Some(32_768.0)));
        assert_eq!(mixed.read_parameter("w1"), before);
        // The host does not wait for these steps.
        (0..30).for_each(|_| mixed.step());
        let skipped = mixed.skipped_updates();
        assert!((2..20).contains(&skipped), "{skipped}");
        assert_eq!(mixed.loss_scale(), Some(2f32.powi(16 - skipped as i32)));
        let after = mixed.read_parameter("w1");
        assert!(after != before && after.iter().all(|w| w.is_finite()));
    }
}

/// Some training cases of the suite conform if every matmul uses cooperative matrices. `meganeura conformance
/// --precision mixed` runs all cases.
#[test]
fn training_steps_conform_with_every_product_on_matrix_units() {
    for device in devices_from(Some(0)) {
        let options = Options {
            filter: Some("training/mlp/".into()),
            sections: vec![Section::Training],
            precision: Precision::Mixed,
            ..Options::default()
        };
        let report = run(device, &options);
        assert!(report.is_ok(), "{report}");
        assert!(report.on_tensor_cores >= 20, "{report}");
    }
}

/// Error cases conform in mixed precision. They contain no matmuls, so they do not use cooperative matrices.
/// `.ci/long` runs the semantics cases, which contain matmuls, with the optimized command.
#[test]
fn errors_conform_in_mixed_precision() {
    for device in devices_from(Some(0)) {
        let options = Options {
            sections: vec![Section::Errors],
            precision: Precision::Mixed,
            ..Options::default()
        };
        let report = run(device, &options);
        assert!(report.failed() == 0 && report.passed() >= 10, "{report}");
    }
}
