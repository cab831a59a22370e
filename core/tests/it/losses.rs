//! Tests of losses: rejected calls with their messages, and values at the limits.

use meganeura_core::autodiff::try_differentiate;
use meganeura_core::dtype::DType;
use meganeura_core::graph::{Graph, NodeId};
use meganeura_core::reference::evaluate;

/// Returns the error of the graph that `build` creates.
fn rejection(build: impl FnOnce(&mut Graph) -> NodeId) -> String {
    let mut graph = Graph::new();
    let node = build(&mut graph);
    graph.set_outputs(vec![node]);
    assert_eq!(graph.errors().len(), 1, "{:?}", graph.errors());
    graph.errors()[0].to_string()
}

#[track_caller]
fn says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
}

type Loss = fn(&mut Graph, NodeId, NodeId) -> NodeId;

/// Losses of a prediction and a target of one shape.
const PAIRS: [(&str, Loss); 6] = [
    ("mse", |g, p, t| g.mse_loss(p, t)),
    ("l1", |g, p, t| g.l1_loss(p, t)),
    ("huber", |g, p, t| g.huber_loss(p, t, 1.0)),
    ("bce", |g, p, t| g.bce_loss(p, t)),
    ("bce with logits", |g, p, t| g.bce_with_logits_loss(p, t)),
    ("kl_div", |g, p, t| g.kl_div_loss(p, t)),
];

#[test]
fn pairs_that_do_not_fit() {
    for (name, loss) in PAIRS {
        let call = |p: (&[usize], DType), t: (&[usize], DType)| {
            rejection(|g| {
                let a = g.input_typed("a", p.0, p.1);
                let b = g.input_typed("b", t.0, t.1);
                loss(g, a, b)
            })
        };
        let f = DType::F32;
        let shapes = call((&[3, 4], f), (&[4, 3], f));
        assert!(shapes.contains("one shape"), "{name}: {shapes}");
        says(&call((&[3, 4], f), (&[3, 4], DType::F16)), &["different element types"]);
        says(&call((&[3], DType::I32), (&[3], DType::I32)), &["floating point"]);
        says(&call((&[0, 4], f), (&[0, 4], f)), &["no elements"]);
    }
}

#[test]
fn attributes_and_classes() {
    for delta in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let message = rejection(|g| {
            let [a, b] = ["a", "b"].map(|name| g.input(name, &[3]));
            g.huber_loss(a, b, delta)
        });
        says(&message, &["delta", "above 0"]);
    }
    let scalar = rejection(|g| {
        let [a, b] = ["a", "b"].map(|name| g.input(name, &[]));
        g.kl_div_loss(a, b)
    });
    says(&scalar, &["no classes"]);
    let ids = |shape: &[usize], ids: &[usize]| {
        rejection(|g| {
            let log = g.input("log", shape);
            let ids = g.input_u32("ids", ids);
            g.nll_loss(log, ids)
        })
    };
    says(&ids(&[3, 4], &[4]), &["u32[4]", "need u32[3]"]);
    says(&ids(&[], &[]), &["at least one class"]);
    says(&ids(&[3, 0], &[3]), &["at least one class"]);
    let floats = rejection(|g| {
        let log = g.input("log", &[3, 4]);
        let ids = g.input("ids", &[3]);
        g.nll_loss(log, ids)
    });
    says(&floats, &["f32[3]", "need u32[3]"]);
}

/// Returns the loss of one prediction and one target, and its derivatives with respect to both.
fn at(loss: Loss, prediction: f64, target: f64) -> [f64; 3] {
    let mut g = Graph::new();
    let [p, t] = ["p", "t"].map(|name| {
        let x = g.input(name, &[1]);
        g.require_grad(x)
    });
    let y = loss(&mut g, p, t);
    g.set_outputs(vec![y]);
    let full = try_differentiate(&g).expect("differentiates");
    let feeds = [("p".to_owned(), vec![prediction]), ("t".to_owned(), vec![target])];
    let values = evaluate(&full, &feeds.into()).expect("evaluates");
    let gradients = full.gradients().iter().map(|g| g.1);
    let all = std::iter::once(full.outputs()[0]).chain(gradients);
    let numbers: Vec<f64> = all.map(|v| values.get(v).expect("a value").data[0]).collect();
    numbers.try_into().expect("three numbers")
}

#[test]
fn certain_predictions_have_finite_losses() {
    let [bce, logits, kl] = [PAIRS[3].1, PAIRS[4].1, PAIRS[5].1];
    // The probability of the true class is 0: ln 0 is replaced by -100.
    let [loss, slope, _] = at(bce, 0.0, 1.0);
    assert_eq!(loss, 100.0);
    assert!(slope.is_finite() && slope < 0.0, "{slope}");
    let right = at(bce, 1.0, 1.0);
    assert_eq!(&right[..2], [0.0, 0.0]);
    // Logits far out do not overflow.
    assert_eq!(at(logits, 1000.0, 0.0)[..2], [1000.0, 1.0]);
    let far = at(logits, -1000.0, 0.0);
    assert!(far[0].abs() < 1e-300 && far[1].abs() < 1e-300, "{far:?}");
    // Classes with probability 0 in both distributions contribute nothing.
    assert_eq!(at(kl, f64::NEG_INFINITY, 0.0)[0], 0.0);
    assert_eq!(at(kl, -1.0, 0.0), [0.0, 0.0, 0.0]);
}

#[test]
fn huber_is_quadratic_within_delta_and_linear_beyond() {
    let huber = PAIRS[2].1;
    assert_eq!(at(huber, 0.5, 0.0), [0.125, 0.5, -0.5]);
    assert_eq!(at(huber, 3.0, 0.0), [2.5, 1.0, -1.0]);
    assert_eq!(at(huber, -3.0, 0.0), [2.5, -1.0, 1.0]);
}
