//! Tests that training with and without packing gives the same numbers.

use meganeura::{Adam, GradientClip, ParameterGroup, Sgd, Update};

use super::models::{Model, Packed, check_equal, feed, session};

const STEPS: u64 = 20;

/// Returns updates with the required accuracy of their results. A norm sums squares in another order with packing.
fn updates() -> Vec<(Update, f32)> {
    let momentum = Sgd {
        momentum: 0.9,
        nesterov: true,
        weight_decay: 0.01,
        ..Sgd::new(0.05)
    };
    let common = || ParameterGroup::new(["b*"]).weight_decay(0.0);
    vec![
        (Sgd::new(0.1).into(), 0.0),
        (momentum.into(), 0.0),
        (Adam::new(0.01).into(), 0.0),
        (
            Update::new(Adam::adamw(0.01, 0.1))
                .group(common())
                .clip(GradientClip::Value(0.05)),
            0.0,
        ),
        (
            Update::new(Adam::adamw(0.01, 0.1))
                .group(common())
                .clip(GradientClip::Norm(0.1)),
            1e-5,
        ),
        (Update::new(momentum).accumulate(3), 0.0),
    ]
}

/// Returns updates with parameter groups that separate the sources of packed parameters.
fn dividing_updates() -> Vec<(Update, f32)> {
    let divide = |rule: Update| {
        rule.group(ParameterGroup::new(["p1"]).learning_rate_scale(0.25))
            .group(ParameterGroup::new(["b0", "out*"]).weight_decay(0.0))
    };
    vec![
        (divide(Sgd::new(0.1).into()), 0.0),
        (divide(Adam::adamw(0.01, 0.1).into()).accumulate(2), 0.0),
        (
            divide(Adam::adamw(0.01, 0.1).into()).clip(GradientClip::Value(0.05)),
            0.0,
        ),
        (divide(Adam::new(0.01).into()).clip(GradientClip::Norm(0.1)), 1e-5),
    ]
}

fn compare(model: &Model, update: &Update, limit: f32) {
    let graph = model.graph();
    for packed in [Packed::BeforeAutodiff, Packed::AfterAutodiff] {
        let what = format!("{model:?}, packed {packed:?}, {update:?}");
        let mut plain = session(&graph, Packed::Never);
        let mut other = session(&graph, packed);
        for s in [&mut plain, &mut other] {
            s.set_optimizer(update.clone());
        }
        for step in 0..STEPS {
            for s in [&mut plain, &mut other] {
                feed(s, step);
                s.step();
            }
            if step == 0 || step + 1 == STEPS {
                check_equal(&mut plain, &mut other, limit, &format!("{what}, step {step}"));
            }
        }
        let bytes = |s: &meganeura::Session| s.memory_summary().adam_state_bytes;
        assert_eq!(bytes(&plain), bytes(&other), "{what}");
    }
}

#[test]
fn packed_parameters_train_as_unpacked_ones() {
    for model in Model::all() {
        for (update, limit) in updates() {
            compare(&model, &update, limit);
        }
    }
}

#[test]
fn sources_in_different_groups_keep_their_own_rules() {
    for model in Model::all().into_iter().filter(|m| !m.frozen) {
        for (update, limit) in dividing_updates() {
            compare(&model, &update, limit);
        }
    }
}
