//! Tests of errors with packed parameters, and of invalid plans with them.

use meganeura::plan::{BufferRef, compile};
use meganeura::{Adam, Error, ExecutionPlan, ParameterGroup, Session, Update};

use super::models::{Model, Packed, device, feed, names, pack, session};

fn model() -> Model {
    Model::new(&[&[5, 3], &[5, 1]], 1)
}

fn message<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.expect_err("an error").to_string()
}

#[test]
fn listings_name_the_sources() {
    let mut s = session(&model().graph(), Packed::AfterAutodiff);
    s.set_optimizer(Adam::new(0.1));
    let [parameters, gradients, states] = names(&s);
    assert_eq!(parameters, ["b0", "b1", "out.weight", "p0", "p1"]);
    assert_eq!(gradients, parameters);
    let moments = ["m", "v"].map(|m| parameters.iter().map(move |p| format!("optimizer.{m}.{p}")));
    assert_eq!(states, moments.into_iter().flatten().collect::<Vec<_>>());
    let list = s.plan().param_buffers.iter().map(|(n, _)| n.as_str());
    assert_eq!(list.collect::<Vec<_>>(), ["p0+p1", "b0+b1", "out.weight"]);
}

#[test]
fn the_packed_name_is_an_error_that_names_the_sources() {
    let mut s = session(&model().graph(), Packed::BeforeAutodiff);
    s.set_optimizer(Adam::new(0.1));
    feed(&mut s, 0);
    s.step();
    let errors = [
        message(s.try_set_parameter("p0+p1", &[0.0; 20])),
        message(s.try_upload_param("p0+p1", &[0.0; 20])),
        message(s.try_read_parameter("p0+p1")),
        message(s.try_read_grad("p0+p1")),
        message(s.try_read_state("optimizer.m.p0+p1")),
        message(s.try_set_state("optimizer.m.p0+p1", &[0.0; 20])),
    ];
    for (i, error) in errors.iter().enumerate() {
        assert!(error.contains("p0+p1' is the common storage"), "{error}");
        let prefix = if i < 4 { "" } else { "optimizer.m." };
        assert!(error.contains(&format!("'{prefix}p0', '{prefix}p1'")), "{error}");
    }
}

#[test]
fn unknown_names_and_lengths_speak_of_the_sources() {
    let mut s = session(&model().graph(), Packed::BeforeAutodiff);
    let error = message(s.try_read_parameter("p2"));
    assert!(error.contains("'p0', 'p1'") && !error.contains('+'), "{error}");
    let error = message(s.try_set_parameter("p1", &[0.0; 20]));
    assert!(error.contains("parameter 'p1' has shape [5, 1]"), "{error}");
    let groups = |pattern| Update::new(Adam::new(0.1)).group(ParameterGroup::new([pattern]));
    let error = message(s.try_set_optimizer(groups("p0+p1")));
    assert!(error.contains("p0, p1"), "{error}");
    s.try_set_optimizer(groups("p1")).expect("a source's name");
}

#[test]
fn plans_that_lie_about_packed_parameters_are_refused() {
    let honest = || {
        let mut g = model().graph();
        g.set_outputs(g.outputs().to_vec());
        compile(&pack(&g))
    };
    honest().verify().expect("an honest plan");
    let refused = |change: &dyn Fn(&mut ExecutionPlan), expected: &str| {
        let mut plan = honest();
        change(&mut plan);
        let error = Session::on(device(), plan).map(|_| ()).expect_err(expected);
        assert!(matches!(error, Error::InvalidPlan { .. }), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
    };
    refused(&|p| p.derived_params[0].1[0].1 = 2, "not filled");
    refused(&|p| p.derived_params[0].1[1].1 = usize::MAX, "not filled");
    refused(&|p| p.derived_params[0].1.clear(), "not filled");
    refused(&|p| p.derived_info[0].axis = 0, "not filled");
    refused(&|p| p.derived_info[0].axis = 9, "not filled");
    refused(&|p| p.derived_info[0].init.clear(), "not filled");
    refused(&|p| p.derived_info.clear(), "different lengths");
    refused(&|p| p.derived_params[0].0 = BufferRef(9999), "is not a parameter");
    refused(&|p| p.derived_params[0].1[0].0 = "p1".into(), "named 'p1'");
    refused(&|p| p.derived_params[0].1[0].0 = "x".into(), "named 'x'");
    refused(&|p| p.derived_params[0].1[0].0 = "p0+p1".into(), "named 'p0+p1'");
    refused(&|p| p.derived_params[1].0 = p.derived_params[0].0, "not filled");
    refused(
        &|p| {
            p.derived_params[1] = p.derived_params[0].clone();
            p.derived_info[1] = p.derived_info[0].clone();
        },
        "packed twice",
    );
}

#[test]
fn states_that_lie_about_their_layout_are_refused() {
    let mut s = session(&model().graph(), Packed::BeforeAutodiff);
    s.set_optimizer(Adam::new(0.1));
    let plan = s.plan().clone();
    let packed = plan
        .state_buffers
        .iter()
        .position(|s| s.packed.is_some())
        .expect("moments");
    for change in [
        (|p, i| p.state_buffers[i].packed = Some(p.derived_params[1].0)) as fn(&mut ExecutionPlan, usize),
        |p, i| p.state_buffers[i].packed = Some(p.param_buffers[2].1),
        |p, i| p.state_buffers[i].packed = Some(BufferRef(9999)),
        |p, i| p.state_buffers[i].name = "optimizer.m".into(),
    ] {
        let mut plan = plan.clone();
        change(&mut plan, packed);
        let error = plan.verify().expect_err("a lie");
        assert!(error.to_string().contains("does not have the layout"), "{error}");
    }
}
