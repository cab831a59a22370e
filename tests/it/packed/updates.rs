//! Tests of updates that change while a session trains, of rules that need whole parameters, and of other access to weights.

use meganeura::plan::optimizer::{Optimizer, UpdateCx};
use meganeura::{Adam, NodeId, ParameterGroup, Session, Sgd, Update, Value};

use super::models::{Model, Packed, check_equal, device, feed, session};

fn pair(model: &Model) -> [Session; 2] {
    let graph = model.graph();
    [session(&graph, Packed::Never), session(&graph, Packed::AfterAutodiff)]
}

fn steps(sessions: &mut [Session; 2], range: std::ops::Range<u64>, what: &str) {
    for step in range {
        for s in &mut *sessions {
            feed(s, step);
            s.step();
        }
    }
    let [plain, packed] = sessions;
    check_equal(plain, packed, 0.0, what);
}

#[test]
fn moments_outlive_a_change_of_groups() {
    for model in Model::all().into_iter().filter(|m| !m.frozen) {
        let mut sessions = pair(&model);
        let whole = Update::new(Adam::adamw(0.01, 0.1));
        let divided = whole.clone().group(ParameterGroup::new(["p0", "b1"]).weight_decay(0.0));
        // Together, separate, and together again: joint moments become separate ones, and back.
        for (i, update) in [&whole, &divided, &whole].into_iter().enumerate() {
            for s in &mut sessions {
                s.set_optimizer(update.clone());
            }
            let first = 4 * i as u64;
            steps(&mut sessions, first..first + 4, &format!("{model:?}, part {i}"));
        }
    }
}

/// Gradient descent along the normalized gradient, which needs the whole parameter at once.
#[derive(Clone, Copy, Debug)]
struct NormalizedSgd(f32);

impl Optimizer for NormalizedSgd {
    fn kind(&self) -> String {
        "normalized".into()
    }

    fn scalars(&self, _: u64, set: &mut dyn FnMut(&'static str, f64)) {
        set("optimizer.lr", self.0.into());
        set("optimizer.weight_decay", 0.0);
    }

    fn update(&self, cx: &mut UpdateCx, parameter: NodeId, gradient: Value) {
        let (lr, decay) = (cx.scalar("optimizer.lr"), cx.scalar("optimizer.weight_decay"));
        let squares = cx.sum_squares(gradient);
        let norm = cx.sqrt(squares);
        let direction = cx.div(gradient, norm);
        cx.sgd_update([parameter.into(), direction.into()], [lr, decay]);
    }

    fn learning_rate(&self) -> f32 {
        self.0
    }

    fn set_learning_rate(&mut self, lr: f32) {
        self.0 = lr;
    }

    fn set_weight_decay(&mut self, _: f32) {}

    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    fn clone_box(&self) -> Box<dyn Optimizer> {
        Box::new(*self)
    }
}

#[test]
fn rules_that_look_at_whole_parameters_see_each_source() {
    for model in Model::all() {
        let mut sessions = pair(&model);
        for s in &mut sessions {
            s.set_optimizer(NormalizedSgd(0.01));
        }
        steps(&mut sessions, 0..5, &format!("{model:?}"));
    }
}

#[test]
fn weights_go_between_packed_and_unpacked_sessions() {
    for model in Model::all() {
        let [mut plain, mut packed] = pair(&model);
        plain.initialize_parameters(5);
        packed.try_copy_weights_from(&mut plain).expect("copies");
        let mut sessions = [plain, packed];
        steps(&mut sessions, 0..1, &format!("{model:?}, to packed"));
        let [plain, packed] = &mut sessions;
        packed.initialize_parameters(6);
        plain.try_copy_weights_from(packed).expect("copies");
        steps(&mut sessions, 0..1, &format!("{model:?}, from packed"));
    }
}

#[test]
fn setting_a_source_leaves_the_others() {
    for model in Model::all() {
        let [_, mut s] = pair(&model);
        let before: Vec<Vec<f32>> = model.sources().iter().map(|n| s.read_parameter(n)).collect();
        for (i, name) in model.sources().iter().enumerate() {
            let mine: Vec<f32> = (0..before[i].len()).map(|k| (100 * i + k) as f32).collect();
            s.upload_param(name, &mine);
            for (j, other) in model.sources().iter().enumerate() {
                let expected = if i == j { &mine } else { &before[j] };
                assert_eq!(&s.read_parameter(other), expected, "{model:?} {name} {other}");
            }
            s.set_parameter(name, &before[i]);
        }
    }
}

#[test]
fn plans_with_packed_parameters_survive_serialisation() {
    for model in Model::all() {
        let graph = model.graph();
        let mut first = session(&graph, Packed::BeforeAutodiff);
        first.set_optimizer(Adam::new(0.01));
        let text = serde_json::to_string(first.plan()).expect("serialises");
        let plan: meganeura::ExecutionPlan = serde_json::from_str(&text).expect("reads");
        assert_eq!(&plan, first.plan());
        let mut second = Session::on(device(), plan).expect("opens");
        second.set_optimizer(Adam::new(0.01));
        second.try_copy_weights_from(&mut first).expect("copies");
        let mut sessions = [first, second];
        steps(&mut sessions, 0..3, &format!("{model:?}"));
    }
}

#[test]
fn removing_the_optimizer_stops_updates_of_every_source() {
    let model = Model::all().swap_remove(0);
    let [_, mut s] = pair(&model);
    s.set_optimizer(Update::new(Sgd::new(0.1)).group(ParameterGroup::new(["p1"]).learning_rate_scale(0.0)));
    let read = |s: &mut Session| (s.read_parameter("p0"), s.read_parameter("p1"));
    let before = read(&mut s);
    feed(&mut s, 0);
    s.step();
    let after = read(&mut s);
    assert_ne!(before.0, after.0);
    assert_eq!(before.1, after.1, "a rate of 0 freezes its group");
    s.clear_optimizer();
    s.step();
    assert_eq!(read(&mut s), after);
}
