//! Tests of training in mixed precision with loss scaling: on the CPU, which rounds nothing, and on a reference backend
//! that rounds like cooperative matrices.

use std::sync::Arc;

use meganeura::backend::Device;
use meganeura::builder::Builder;
use meganeura::cpu::CpuDevice;
use meganeura::precision::Precision;
use meganeura::rewrite::RewriteConfig;
use meganeura::{Adam, GradientClip, Graph, LossScaling, ParameterGroup, Session, Sgd, Update};
use meganeura_conformance::ReferenceBackend;

const ROWS: usize = 4;

/// Builds a perceptron with class ids, whose loss is multiplied by a factor.
fn perceptron(factor: f32) -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[ROWS, 6]);
    let labels = g.input_u32("labels", &[ROWS]);
    let w1 = g.parameter("w1", &[6, 8]);
    let b1 = g.parameter("b1", &[8]);
    let w2 = g.parameter("w2", &[8, 3]);
    let h = g.matmul(x, w1);
    let h = g.bias_add(h, b1);
    let h = g.relu(h);
    let logits = g.matmul(h, w2);
    let loss = g.cross_entropy_loss(logits, labels);
    let factor = g.scalar(factor);
    let loss = g.mul(loss, factor);
    g.set_outputs(vec![loss]);
    g
}

fn noise(count: usize, seed: u32) -> Vec<f32> {
    let word = |i: usize| {
        (i as u32 + 1)
            .wrapping_mul(2_654_435_761)
            .wrapping_add(seed.wrapping_mul(40_503))
            >> 8
    };
    (0..count).map(|i| word(i) as f32 / (1u32 << 23) as f32 - 1.0).collect()
}

fn cpu() -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(2))
}

fn rounding() -> Arc<dyn Device> {
    ReferenceBackend::new().rounding_products().device()
}

fn session(device: Arc<dyn Device>, graph: &Graph, scaling: Option<&str>, update: impl Into<Update>) -> Session {
    let rewrite = RewriteConfig {
        precision: scaling.map(|_| Precision::Mixed),
        loss_scale: scaling.map(|text| text.parse().expect("a scale")),
        ..RewriteConfig::default()
    };
    let built = Builder::on(device)
        .optimizer(update)
        .rewrite(rewrite.clone())
        .build(graph);
    let (mut session, _) = built.expect("a session");
    for (i, name) in ["w1", "b1", "w2"].into_iter().enumerate() {
        let len = session.read_parameter(name).len();
        session.set_parameter(name, &noise(len, i as u32));
    }
    feed(&mut session, 0);
    session
}

fn feed(session: &mut Session, step: u32) {
    session.set_input("x", &noise(ROWS * 6, 100 + step));
    let labels: Vec<u32> = (0..ROWS as u32).map(|i| (i + step) % 3).collect();
    session.set_input_u32("labels", &labels);
}

/// Returns the parameters and states, as bits.
fn contents(session: &mut Session) -> Vec<(String, Vec<u32>)> {
    let states: Vec<String> = session.plan().states().into_iter().map(|s| s.name).collect();
    let scaling = [
        "loss_scale.",
        "optimizer.skipped",
        "optimizer.good",
        "optimizer.non_finite",
    ];
    let mut found = Vec::new();
    for name in states.into_iter().filter(|n| !scaling.iter().any(|s| n.starts_with(s))) {
        let bits = session.read_state(&name).iter().map(|v| v.to_bits()).collect();
        found.push((name, bits));
    }
    for name in ["w1", "b1", "w2"] {
        let bits = session.read_parameter(name).iter().map(|v| v.to_bits()).collect();
        found.push((name.to_owned(), bits));
    }
    found
}

fn updates() -> Vec<Update> {
    let sgd = Sgd {
        momentum: 0.9,
        ..Sgd::new(0.1)
    };
    let group = ParameterGroup::new(["b*"]).learning_rate_scale(0.5);
    vec![
        Update::new(Sgd::new(0.1)),
        Update::new(sgd).clip(GradientClip::Norm(0.2)),
        Update::new(sgd)
            .clip(GradientClip::Value(0.02))
            .accumulate(3)
            .group(group),
    ]
}

/// Steps with a loss scale give the same bits if nothing is rounded, because powers of two change no digit.
#[test]
fn scaled_steps_are_the_same_bits_where_nothing_is_rounded() {
    for update in updates() {
        let graph = perceptron(1.0);
        let mut plain = session(cpu(), &graph, None, update.clone());
        let mut scaled = session(cpu(), &graph, Some("dynamic:1024:2"), update);
        for step in 0..9 {
            for session in [&mut plain, &mut scaled] {
                feed(session, step);
                session.step();
            }
            assert_eq!(plain.read_loss(), scaled.read_loss(), "step {step}");
            for name in ["w1", "b1", "w2"] {
                assert_eq!(plain.read_grad(name), scaled.read_grad(name), "{name}, step {step}");
            }
        }
        assert_eq!(contents(&mut plain), contents(&mut scaled));
        assert_eq!(scaled.skipped_updates(), 0);
        assert_eq!((plain.loss_scale(), plain.skipped_updates()), (None, 0));
        assert!(scaled.loss_scale() > Some(1024.0), "it grows every two updates");
    }
}

/// The bias correction of Adam uses the number of updates counted by the device in f32, and agrees with the host's
/// correction.
#[test]
fn corrections_of_adam_are_those_of_the_host() {
    let graph = perceptron(1.0);
    let group = ParameterGroup::new(["w2"]).learning_rate_scale(0.5);
    let update = Update::new(Adam::adamw(0.01, 0.05)).group(group);
    let mut plain = session(cpu(), &graph, None, update.clone());
    let mut scaled = session(cpu(), &graph, Some("dynamic"), update);
    for step in 0..20 {
        for session in [&mut plain, &mut scaled] {
            feed(session, step);
            session.step();
        }
        for name in ["w1", "b1", "w2"] {
            let (a, b) = (plain.read_parameter(name), scaled.read_parameter(name));
            let close = a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 2e-6);
            assert!(close, "{name}, step {step}: {a:?} {b:?}");
        }
    }
    assert_eq!(scaled.read_state("optimizer.updates"), [20.0]);
}

/// Gradients of about 1e-9, which underflow in `f16`, are only kept with a loss scale.
#[test]
fn small_gradients_survive_only_with_a_scale() {
    let graph = perceptron(1e-8);
    let mut exact = session(rounding(), &graph, None, Sgd::new(0.0));
    exact.step();
    let mut lost = session(rounding(), &graph, Some("1"), Sgd::new(0.0));
    lost.step();
    let mut kept = session(rounding(), &graph, Some("dynamic"), Sgd::new(0.0));
    kept.step();
    assert!(lost.read_grad("w1").iter().all(|&g| g == 0.0));
    for name in ["w1", "w2"] {
        let (want, got) = (exact.read_grad(name), kept.read_grad(name));
        let largest = want.iter().fold(0f32, |m, g| m.max(g.abs()));
        assert!(largest > 0.0 && largest < 1e-8, "{largest}");
        for (want, got) in want.iter().zip(&got) {
            // Some consecutive products, each with a relative error of at most 2^-10.
            assert!((want - got).abs() < 4e-3 * largest, "{name}: {got} {want}");
        }
    }
    assert_eq!(kept.skipped_updates(), 0);
    // The loss is the unscaled loss of the model.
    assert!((kept.read_loss() - exact.read_loss()).abs() < 1e-2 * exact.read_loss());
}

/// Updates are skipped if gradients overflow: gradients of about 100, scaled by 65536, are infinite in `f16`.
#[test]
fn updates_whose_gradients_overflow_are_left_out() {
    let graph = perceptron(400.0);
    let update = || Update::new(Adam::new(0.01)).clip(GradientClip::Norm(1.0));
    let mut mixed = session(rounding(), &graph, Some("dynamic"), update());
    let before = contents(&mut mixed);
    let mut scale = 65_536.0;
    let mut skipped = 0;
    loop {
        mixed.step();
        if mixed.skipped_updates() == skipped {
            break;
        }
        skipped += 1;
        scale /= 2.0;
        assert_eq!(mixed.loss_scale(), Some(scale));
        assert_eq!(
            contents(&mut mixed),
            before,
            "after {skipped} updates that were left out"
        );
        assert!(skipped < 20, "the scale falls until gradients are finite");
    }
    assert!(skipped > 0, "the first scale is too large for these gradients");
    assert_ne!(contents(&mut mixed), before);
    // It is the first update, regardless of the host's counter.
    let mut exact = session(rounding(), &graph, None, update());
    exact.step();
    for name in ["w1", "b1", "w2"] {
        let (want, got) = (exact.read_parameter(name), mixed.read_parameter(name));
        let close = want.iter().zip(&got).all(|(a, b)| (a - b).abs() < 2e-4);
        assert!(close, "{name}: {got:?} {want:?}");
    }
}

#[test]
fn a_fixed_scale_stays() {
    let graph = perceptron(400.0);
    let mut mixed = session(rounding(), &graph, Some("65536"), Sgd::new(0.1));
    let before = contents(&mut mixed);
    for _ in 0..3 {
        mixed.step();
    }
    assert_eq!((mixed.loss_scale(), mixed.skipped_updates()), (Some(65_536.0), 3));
    assert_eq!(contents(&mut mixed), before);
}

#[test]
fn the_scale_grows_after_good_updates_alone() {
    let graph = perceptron(1.0);
    let mut mixed = session(cpu(), &graph, Some("dynamic:4:3"), Sgd::new(0.0));
    let mut scales = Vec::new();
    for step in 0..10 {
        feed(&mut mixed, step);
        if step == 4 {
            mixed.set_input("x", &[f32::INFINITY; ROWS * 6]);
        }
        mixed.step();
        scales.extend(mixed.loss_scale());
    }
    assert_eq!(scales, [4.0, 4.0, 8.0, 8.0, 4.0, 4.0, 4.0, 8.0, 8.0, 8.0]);
    assert_eq!(mixed.skipped_updates(), 1);
}

/// If one of several accumulated steps is not finite, their update is skipped, without an effect on later updates.
#[test]
fn a_faulty_part_of_an_average_spoils_it_and_no_other() {
    let graph = perceptron(1.0);
    let update = || Update::new(Sgd::new(0.1)).accumulate(3);
    let mut mixed = session(cpu(), &graph, Some("dynamic"), update());
    let mut plain = session(cpu(), &graph, None, update());
    let before = contents(&mut mixed);
    for step in 0..3 {
        feed(&mut mixed, step);
        if step == 1 {
            mixed.set_input("x", &[f32::NAN; ROWS * 6]);
        }
        mixed.step();
        assert_eq!(mixed.skipped_updates(), u64::from(step == 2), "step {step}");
    }
    assert_eq!(mixed.loss_scale(), Some(32_768.0));
    let parameters =
        |c: Vec<(String, Vec<u32>)>| c.into_iter().filter(|(n, _)| !n.contains("accum")).collect::<Vec<_>>();
    assert_eq!(parameters(contents(&mut mixed)), parameters(before));
    for step in 3..6 {
        for session in [&mut plain, &mut mixed] {
            feed(session, step);
            session.step();
        }
    }
    assert_eq!(contents(&mut plain), contents(&mut mixed));
    assert_eq!(mixed.skipped_updates(), 1);
}

/// A session continues with the same bits if it gets the states of another one, which include the loss scale.
#[test]
fn another_session_goes_on_with_the_same_bits() {
    let graph = perceptron(400.0);
    let update = || Update::new(Adam::new(0.01)).accumulate(2);
    let run = |session: &mut Session, steps: std::ops::Range<u32>| {
        for step in steps {
            feed(session, step);
            session.step();
        }
    };
    let mut whole = session(rounding(), &graph, Some("dynamic:65536:2"), update());
    run(&mut whole, 0..21);
    assert!(whole.skipped_updates() > 0);
    let mut first = session(rounding(), &graph, Some("dynamic:65536:2"), update());
    run(&mut first, 0..11);
    let mut second = session(rounding(), &graph, Some("dynamic:65536:2"), update());
    second.try_set_progress(&first.progress()).expect("the same optimizer");
    for state in first.plan().states() {
        let values = first.read_state(&state.name);
        second.set_state(&state.name, &values);
    }
    for name in ["w1", "b1", "w2"] {
        let values = first.read_parameter(name);
        second.set_parameter(name, &values);
    }
    run(&mut second, 11..21);
    assert_eq!(contents(&mut whole), contents(&mut second));
    assert_eq!(whole.loss_scale(), second.loss_scale());
    assert_eq!(whole.skipped_updates(), second.skipped_updates());
}

#[test]
fn another_update_keeps_the_scale() {
    let graph = perceptron(1.0);
    let mut mixed = session(cpu(), &graph, Some("dynamic:4:1"), Sgd::new(0.1));
    mixed.step();
    assert_eq!(mixed.loss_scale(), Some(8.0));
    mixed.set_optimizer(Update::new(Sgd::new(0.1)).clip(GradientClip::Norm(1.0)));
    mixed.step();
    mixed.set_optimizer(Adam::new(0.1));
    mixed.step();
    assert_eq!(mixed.loss_scale(), Some(32.0));
    mixed.clear_optimizer();
    mixed.step();
    assert_eq!(mixed.loss_scale(), Some(32.0), "without updates it stays");
}

#[test]
fn what_cannot_be_scaled_is_refused() {
    let rewrite = RewriteConfig {
        precision: Some(Precision::Mixed),
        loss_scale: Some(LossScaling::Fixed(3.0)),
        ..RewriteConfig::default()
    };
    let build = |graph: &Graph, rewrite: &RewriteConfig| {
        let built = Builder::on(cpu()).rewrite(rewrite.clone()).build(graph);
        built.map(|_| ()).map_err(|error| error.to_string())
    };
    let message = build(&perceptron(1.0), &rewrite).expect_err("no power of two");
    assert!(message.contains("power of two"), "{message}");
    let mixed = RewriteConfig {
        loss_scale: None,
        ..rewrite
    };
    let mut g = perceptron(1.0);
    g.state("loss_scale.scale", &[]);
    let message = build(&g, &mixed).expect_err("a reserved name");
    assert!(message.contains("belong to loss scaling"), "{message}");
    let mut g = perceptron(1.0);
    let half = g.cast(g.outputs()[0], meganeura::DType::F16);
    g.set_outputs(vec![half]);
    let message = build(&g, &mixed).expect_err("a loss of half precision");
    assert!(message.contains("in f32"), "{message}");
}
