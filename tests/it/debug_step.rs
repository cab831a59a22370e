//! Tests of the search for the first NaN or infinity of a step.

use std::sync::Arc;

use meganeura::backend::Device;
use meganeura::builder::Builder;
use meganeura::cpu::CpuDevice;
use meganeura::error::TensorKind;
use meganeura::nn::models::mlp_classifier;
use meganeura::rewrite::RewriteConfig;
use meganeura::runtime::{Defect, Stage};
use meganeura::{Adam, GradientClip, Graph, Session, Sgd, Update};

fn session(graph: &Graph, update: Option<Update>) -> Session {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(2));
    Builder::on(device)
        .maybe_optimizer(update)
        .build(graph)
        .expect("builds")
        .0
}

/// Builds a product followed by a logarithm. Also returns the source line of the logarithm.
fn logarithm() -> (Graph, u32) {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 3]);
    let w = g.parameter("w", &[3, 2]);
    let h = g.matmul(x, w);
    let line = line!() + 1;
    let l = g.log(h);
    g.named(l, "the logarithm");
    let loss = g.mean_all(l);
    g.set_outputs(vec![loss]);
    (g, line)
}

#[test]
fn the_call_that_made_it_is_found_with_its_line() {
    let (graph, line) = logarithm();
    let mut s = session(&graph, Some(Sgd::new(0.1).into()));
    s.set_input("x", &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    s.set_parameter("w", &[2.0, 3.0, 4.0, -5.0, 6.0, 7.0]);
    let found = s.step_debug().expect("there is one");
    assert!(found.name.contains("the logarithm"), "{found}");
    assert_eq!(found.source.as_deref(), Some(&*format!("{}:{line}", file!())));
    assert_eq!((found.stage, found.defect), (Stage::Forward, Defect::NaN));
    assert_eq!((found.index, found.count, found.len), (3, 1, 4));
    let text = found.to_string();
    assert!(
        text.contains("NaN at element 3 (1 of 4 elements), forward, from "),
        "{text}"
    );
    // The step was rolled back: nothing was trained, and no step was counted.
    assert_eq!(s.read_parameter("w"), [2.0, 3.0, 4.0, -5.0, 6.0, 7.0]);
    assert!(s.try_read_loss().is_err(), "no step was made");
    s.set_parameter("w", &[2.0, 3.0, 4.0, 0.0, 6.0, 7.0]);
    let found = s.step_debug().expect("there is one");
    assert_eq!(
        (found.stage, found.defect, found.index),
        (Stage::Forward, Defect::Infinity, 3)
    );
    s.set_parameter("w", &[2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    assert_eq!(s.step_debug(), None);
    assert!(
        s.read_loss().is_finite() && s.read_parameter("w")[0] < 2.0,
        "a step like any other"
    );
}

#[test]
fn backward_and_update_are_told_apart() {
    let mut g = Graph::new();
    let w = g.parameter("w", &[2]);
    let root = g.sqrt(w);
    let loss = g.sum_all(root);
    g.set_outputs(vec![loss]);
    let mut s = session(&g, None);
    s.set_parameter("w", &[4.0, 0.0]);
    let found = s.step_debug().expect("the derivative at zero");
    assert_eq!(
        (found.stage, found.defect),
        (Stage::Backward, Defect::Infinity),
        "{found}"
    );

    let mut g = Graph::new();
    let w = g.parameter("w", &[2]);
    let large = g.scalar(1e30);
    let scaled = g.mul(w, large);
    let loss = g.sum_all(scaled);
    g.set_outputs(vec![loss]);
    let mut s = session(&g, Some(Sgd::new(1e30).into()));
    s.set_parameter("w", &[1.0, 2.0]);
    let found = s.step_debug().expect("the update overflows");
    assert_eq!(
        (found.stage, found.defect),
        (Stage::Update, Defect::Infinity),
        "{found}"
    );
    assert_eq!(found.source, None, "updates are the library's own");
    assert_eq!(s.read_parameter("w"), [1.0, 2.0]);
}

#[test]
fn what_is_there_before_the_step_is_looked_at_too() {
    let (graph, _) = logarithm();
    let mut s = session(&graph, None);
    s.set_parameter("w", &[1.0; 6]);
    s.set_input("x", &[1.0, f32::NAN, 1.0, 1.0, f32::NAN, 1.0]);
    let found = s.step_debug().expect("in the input");
    assert_eq!(found.stage, Stage::Before(TensorKind::Input));
    assert_eq!((&*found.name, found.index, found.count), ("x", 1, 2));
    s.set_input("x", &[1.0; 6]);
    s.set_parameter("w", &[1.0, 1.0, f32::INFINITY, 1.0, 1.0, 1.0]);
    let found = s.step_debug().expect("in the parameter");
    assert_eq!(found.stage, Stage::Before(TensorKind::Parameter));
    let mut unset = session(&graph, None);
    let error = unset.try_step_debug().expect_err("no input").to_string();
    assert!(error.contains("input 'x' was never set"), "{error}");
}

#[test]
fn infinities_that_are_passed_on_are_nobodys_fault() {
    let mut g = Graph::new();
    let x = g.parameter("x", &[1, 3]);
    let mask = g.constant(vec![0.0, f32::NEG_INFINITY, 0.0], &[1, 3]);
    let masked = g.add(x, mask);
    let p = g.softmax(masked, 1);
    let squares = g.mul(p, p);
    let loss = g.sum_all(squares);
    g.set_outputs(vec![loss]);
    let mut s = session(&g, None);
    s.set_parameter("x", &[1.0, 2.0, 3.0]);
    assert_eq!(s.step_debug(), None);
    let masked_out = g.add(mask, mask);
    let nan = g.sub(masked_out, mask);
    g.named(nan, "difference");
    let sum = g.sum_all(nan);
    let both = g.add(loss, sum);
    g.set_outputs(vec![both]);
    let mut s = session(&g, None);
    s.set_parameter("x", &[1.0, 2.0, 3.0]);
    let found = s.step_debug().expect("infinity less infinity");
    assert_eq!(found.defect, Defect::NaN, "{found}");
}

#[test]
fn steps_that_are_looked_at_have_the_same_results() {
    let update = || {
        Update::new(Adam::adamw(1e-2, 0.1))
            .clip(GradientClip::Norm(1.0))
            .accumulate(2)
    };
    // Dropout: the sequence of random numbers continues as well.
    let graph = mlp_classifier(4, 6, 3);
    let run = |debug: bool| {
        let mut s = session(&graph, Some(update()));
        s.initialize_parameters(2);
        s.set_seed(9);
        s.set_input("x", &(0..24).map(|i| (i as f32).sin()).collect::<Vec<_>>());
        s.set_input_u32("labels", &[0, 2, 1, 1]);
        let mut bits = Vec::new();
        for step in 0..5 {
            match step {
                1 if debug => assert_eq!(s.step_debug(), None),
                3 if debug => assert!(!s.step_statistics().is_empty()),
                _ => s.step(),
            }
            bits.push(s.read_loss().to_bits());
        }
        for view in s.plan().parameters() {
            bits.extend(s.read_parameter(&view.name).iter().map(|v| v.to_bits()));
            bits.extend(s.read_grad(&view.name).iter().map(|v| v.to_bits()));
        }
        assert_eq!(s.progress().updates, 2);
        bits
    };
    assert!(run(true) == run(false));
}

#[test]
fn results_parameters_and_gradients_have_statistics() {
    let (graph, line) = logarithm();
    let mut s = session(&graph, None);
    assert!(s.try_statistics(TensorKind::Gradient).is_err(), "no step was made");
    assert!(s.try_statistics(TensorKind::Input).is_err(), "inputs are the caller's");
    s.set_input("x", &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    // The product is [[1, 4], [0, 2]].
    s.set_parameter("w", &[1.0, 4.0, 0.0, 2.0, 3.0, 3.0]);
    let results = s.step_statistics();
    let logarithm = results.iter().find(|r| r.name.contains("the logarithm"));
    let logarithm = logarithm.expect("its result");
    assert_eq!(logarithm.source.as_deref(), Some(&*format!("{}:{line}", file!())));
    assert_eq!(logarithm.stage, Stage::Forward);
    let found = &logarithm.statistics;
    assert_eq!(
        (found.len, found.negative_infinities, found.zeros),
        (4, 1, 1),
        "{found:?}"
    );
    let finite = found.finite.as_ref().expect("three numbers");
    assert_eq!((finite.min, finite.max, finite.count()), (0.0, f64::from(4f32.ln()), 3));
    assert!(results.iter().any(|r| r.stage == Stage::Backward), "{results:?}");
    let [w] = &s.statistics(TensorKind::Parameter)[..] else {
        panic!("one parameter")
    };
    assert_eq!((&*w.name, w.kind, w.statistics.zeros), ("w", TensorKind::Parameter, 1));
    let [gradient] = &s.statistics(TensorKind::Gradient)[..] else {
        panic!("one gradient")
    };
    // One over zero, times the ones and zeros of x.
    assert!(gradient.statistics.not_finite() > 0, "{gradient:?}");
}

/// Builds the same graph on other source lines.
fn moved() -> (Graph, u32) {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 3]);
    let w = g.parameter("w", &[3, 2]);

    let h = g.matmul(x, w);

    let line = line!() + 1;
    let l = g.log(h);
    g.named(l, "the logarithm");
    let loss = g.mean_all(l);
    g.set_outputs(vec![loss]);
    (g, line)
}

#[test]
fn plans_from_files_know_the_present_lines() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plan.ron");
    for (i, (graph, line)) in [logarithm(), moved()].into_iter().enumerate() {
        let device: Arc<dyn Device> = Arc::new(CpuDevice::new(2));
        let rewrite = RewriteConfig::default();
        let built = Builder::on(device)
            .rewrite(rewrite.clone())
            .cache(&path)
            .build(&graph)
            .expect("builds");
        let (mut s, report) = built;
        assert_eq!(report.from_cache, i == 1);
        s.set_parameter("w", &[0.0; 6]);
        s.set_input("x", &[1.0; 6]);
        let found = s.step_debug().expect("the logarithm of zero");
        assert_eq!(found.source.as_deref(), Some(&*format!("{}:{line}", file!())));
    }
}
