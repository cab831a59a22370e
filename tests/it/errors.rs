//! Tests of invalid input: each is a typed error with the name, the location and the remedy.

use meganeura::graph::Value;
use meganeura::{
    Error, Graph, Mode, NodeId, ParameterGroup, Session, SessionConfig, Sgd, Update, autodiff, build, compile, optimize,
};

fn cpu() -> SessionConfig {
    SessionConfig {
        device: Some("cpu".into()),
        ..SessionConfig::default()
    }
}

fn error_of(graph: &Graph) -> Error {
    build(graph, cpu()).map(|_| ()).expect_err("the graph is wrong")
}

/// Checks that the message contains this file, so that a user finds the line.
fn assert_located(error: &Error) {
    assert!(error.to_string().contains("tests/it/errors.rs:"), "{error}");
}

#[test]
fn wrong_shapes_name_the_call_its_place_and_both_shapes() {
    let mut g = Graph::new();
    let x = g.input("x", &[4, 784]);
    let w = g.parameter("w", &[100, 10]);
    let y = g.matmul(x, w);
    let z = g.relu(y);
    let loss = g.mean_all(z);
    g.set_outputs(vec![loss]);
    let error = error_of(&g);
    assert!(matches!(error, Error::InvalidOp { .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("core.matmul") && text.contains("f32[4, 784]") && text.contains("f32[100, 10]"),
        "{text}"
    );
    assert_located(&error);
    assert_eq!(g.errors().len(), 1, "what follows a wrong call is not reported again");
}

#[test]
fn wrong_dtypes_say_how_to_convert() {
    let mut g = Graph::new();
    let x = g.input("x", &[3]);
    let ids = g.input_u32("ids", &[3]);
    let y = g.add(x, ids);
    g.set_outputs(vec![y]);
    let error = error_of(&g);
    assert!(error.to_string().contains("cast"), "{error}");
    assert_located(&error);
}

#[test]
fn a_graph_without_outputs_is_an_error() {
    let mut g = Graph::new();
    let x = g.input("x", &[3]);
    g.relu(x);
    assert!(matches!(error_of(&g), Error::NoOutputs));
    assert!(matches!(error_of(&Graph::new()), Error::NoOutputs));
}

#[test]
fn a_loss_that_is_not_scalar_is_named() {
    let mut g = Graph::new();
    let x = g.input("x", &[3, 2]);
    let w = g.parameter("w", &[2, 2]);
    let y = g.matmul(x, w);
    g.named(y, "scores");
    g.set_outputs(vec![y]);
    let error = error_of(&g);
    assert!(matches!(error, Error::NonScalarLoss { .. }), "{error:?}");
    assert!(
        error.to_string().contains("'scores'") && error.to_string().contains("mean_all"),
        "{error}"
    );
    // Inference does not need a loss.
    let config = SessionConfig {
        mode: Mode::Inference,
        ..cpu()
    };
    assert!(build(&g, config).is_ok());
}

#[test]
fn an_integer_loss_is_not_differentiable() {
    let mut g = Graph::new();
    let x = g.parameter("x", &[1, 3]);
    let y = g.argmax(x, 1);
    g.set_outputs(vec![y]);
    assert!(matches!(error_of(&g), Error::NotDifferentiable { .. }));
}

#[test]
fn a_cycle_made_by_hand_is_shown() {
    let mut g = Graph::new();
    let x = g.input("x", &[3]);
    let a = g.relu(x);
    let b = g.exp(a);
    g.named(a, "first");
    g.named(b, "second");
    g.set_outputs(vec![b]);
    g.replace_operand(a, 0, b);
    let error = g.verify().expect_err("a cycle");
    let Error::Cycle { path } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(path.len(), 3, "{path:?}");
    assert!(
        error.to_string().contains("first") && error.to_string().contains("second"),
        "{error}"
    );
    assert!(g.try_toposort().is_err() && optimize::try_optimize(&g).is_err());
    assert!(autodiff::try_differentiate(&g).is_err() && compile::try_compile(&g).is_err());
}

#[test]
fn overflowing_shapes_are_refused_before_anything_is_allocated() {
    let mut g = Graph::new();
    let x = g.input("x", &[usize::MAX, 2]);
    g.set_outputs(vec![x]);
    let error = error_of(&g);
    assert!(
        error.to_string().contains("more elements than memory can address"),
        "{error}"
    );
    assert_located(&error);

    let mut g = Graph::new();
    let a = g.input("a", &[1 << 40, 1]);
    let b = g.input("b", &[1, 1 << 40]);
    let c = g.matmul(a, b);
    g.set_outputs(vec![c]);
    assert!(error_of(&g).to_string().contains("memory"), "the product overflows");
}

#[test]
fn too_large_for_this_machine_is_an_error_with_the_size() {
    let mut g = Graph::new();
    let x = g.input("x", &[1 << 44]);
    let y = g.relu(x);
    g.set_outputs(vec![y]);
    let config = SessionConfig {
        mode: Mode::Inference,
        ..cpu()
    };
    let error = build(&g, config).map(|_| ()).expect_err("140 TB");
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    assert!(error.to_string().contains("MB"), "{error}");
}

#[test]
fn results_that_the_host_has_no_memory_for_are_an_error() {
    let mut g = Graph::new();
    let x = g.input("x", &[2]);
    let y = g.relu(x);
    g.set_outputs(vec![y]);
    let config = SessionConfig {
        mode: Mode::Inference,
        ..cpu()
    };
    let (mut session, _) = build(&g, config).expect("a small session");
    for len in [1 << 60, usize::MAX] {
        let error = session.try_read_output(len).expect_err("more than there is");
        assert!(matches!(error, Error::HostMemory { .. }), "{error}");
    }
}

#[test]
fn duplicate_and_empty_names_are_refused() {
    let mut g = Graph::new();
    let a = g.input("x", &[3]);
    let b = g.parameter("x", &[3]);
    let y = g.add(a, b);
    g.set_outputs(vec![y]);
    assert!(error_of(&g).to_string().contains("already taken by input 'x'"));
    let mut g = Graph::new();
    let a = g.input("", &[3]);
    g.set_outputs(vec![a]);
    assert!(error_of(&g).to_string().contains("name is empty"));
}

#[test]
fn values_of_another_graph_are_refused() {
    let mut g = Graph::new();
    let x = g.input("x", &[3]);
    let y = g.relu(Value::from(NodeId::new(77)));
    g.set_outputs(vec![x, y]);
    assert!(error_of(&g).to_string().contains("not a value of this graph"));
    let mut g = Graph::new();
    let x = g.input("x", &[3]);
    let y = g.relu(g.port(x, 4));
    g.set_outputs(vec![y]);
    assert!(error_of(&g).to_string().contains("no port 4"));
}

/// A node of another graph is refused even in the dangerous case that this graph has a node with the same number.
#[test]
fn a_node_of_another_graph_is_refused_although_its_number_exists() {
    let mut other = Graph::new();
    let foreign = other.input("x", &[3]);
    let graph = || {
        let mut g = Graph::new();
        let x = g.input("x", &[3]);
        let w = g.parameter("w", &[3]);
        (g, x, w)
    };
    let check = |g: &Graph, call: &str| {
        let text = g.verify().unwrap_err().to_string();
        assert!(text.contains("%0 is a node of another graph"), "{text}");
        assert!(text.contains(call) && text.contains("errors.rs:"), "{text}");
        assert!(text.contains("help: pass values of this graph"), "{text}");
    };
    let (mut g, x, _) = graph();
    let y = g.add(x, foreign);
    g.set_outputs(vec![y]);
    check(&g, "core.add");
    // A build reports the same error.
    assert!(error_of(&g).to_string().contains("another graph"));
    let (mut g, ..) = graph();
    g.set_outputs(vec![foreign]);
    check(&g, "set_outputs");
    let (mut g, x, _) = graph();
    g.require_grad(foreign);
    g.set_outputs(vec![x]);
    check(&g, "require_grad");
    let (mut g, x, _) = graph();
    g.trainable(foreign, false);
    g.set_outputs(vec![x]);
    check(&g, "trainable");
    let (mut g, x, _) = graph();
    g.named(foreign, "hidden");
    g.set_outputs(vec![x]);
    check(&g, "'hidden'");
    // A written state is looked up by its number, which must not hide the mistake.
    let (mut g, ..) = graph();
    let count = g.state("count", &[3]);
    let mut elsewhere = Graph::new();
    elsewhere.input("a", &[3]);
    elsewhere.input("b", &[3]);
    let same_number = elsewhere.input("c", &[3]);
    assert_eq!(count, same_number);
    let one = g.constant(vec![1.0; 3], &[3]);
    let more = g.add(count, one);
    g.assign(count, more);
    let y = g.relu(same_number);
    g.set_outputs(vec![y]);
    assert!(
        g.verify()
            .unwrap_err()
            .to_string()
            .contains("%2 is a node of another graph")
    );
    assert_eq!(g.shape(foreign), &[] as &[usize], "a foreign value has no shape here");
}

#[test]
fn nodes_of_a_clone_and_of_its_original_are_the_same() {
    let mut g = Graph::new();
    let x = g.input("x", &[3]);
    let w = g.parameter("w", &[3]);
    let mut copy = g.clone();
    let y = copy.mul(x, w);
    copy.set_outputs(vec![y]);
    copy.verify().unwrap();
    // An id that is created from a number belongs to any graph.
    let z = g.relu(NodeId::new(x.0));
    g.set_outputs(vec![z]);
    g.verify().unwrap();
    // A sorted graph is returned unchanged, so its ids equal the ids of the original.
    let sorted = copy.toposort();
    assert_eq!(sorted.shape(y), [3]);
    // Stages return new graphs.
    let optimized = meganeura::optimize::optimize(&copy);
    let mut continued = optimized.clone();
    let again = continued.relu(y);
    continued.set_outputs(vec![again]);
    assert!(continued.verify().unwrap_err().to_string().contains("another graph"));
}

#[test]
fn malformed_selectors_list_the_candidates() {
    let mut g = Graph::new();
    let x = g.input("x", &[3]);
    let w = g.parameter("w", &[3]);
    let y = g.mul(x, w);
    let loss = g.sum_all(y);
    g.set_outputs(vec![loss]);
    for selector in ["nonsense", "cpu:9", "cpu:name=", "blade:999", "0xzz", ""] {
        let config = SessionConfig {
            device: Some(selector.into()),
            ..SessionConfig::default()
        };
        let error = build(&g, config).map(|_| ()).expect_err(selector);
        assert!(matches!(error, Error::DeviceSelection { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("devices:") && text.contains("cpu"), "{text}");
        assert!(text.contains("the API"), "{text}");
    }
}

fn session() -> Session {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 3]);
    let ids = g.input_u32("ids", &[2]);
    let w = g.parameter("w", &[3, 4]);
    let y = g.matmul(x, w);
    let loss = g.cross_entropy_loss(y, ids);
    g.set_outputs(vec![loss, y]);
    build(&g, cpu()).expect("a right graph").0
}

#[test]
fn session_errors_name_tensor_expectation_and_remedy() {
    let mut s = session();
    let text = s.try_set_input("z", &[0.0]).expect_err("unknown").to_string();
    assert!(text.contains("no input named 'z'") && text.contains("'x'"), "{text}");
    let text = s.try_set_parameter("W", &[0.0]).expect_err("unknown").to_string();
    assert!(text.contains("'w'"), "{text}");
    let text = s.try_set_input("x", &[0.0; 5]).expect_err("too short").to_string();
    assert!(
        text.contains("'x'") && text.contains("[2, 3]") && text.contains("5 were given"),
        "{text}"
    );
    let text = s.try_set_input("ids", &[0.0; 2]).expect_err("a dtype").to_string();
    assert!(text.contains("u32") && text.contains("set_input_u32"), "{text}");
    let text = s.try_step().expect_err("inputs missing").to_string();
    assert!(text.contains("'ids', 'x'") && text.contains("never set"), "{text}");
    let text = s
        .try_read_output_by_index(7, &mut [])
        .expect_err("no output")
        .to_string();
    assert!(text.contains("output"), "{text}");
    let text = s.try_read_grad("x").expect_err("not requested").to_string();
    assert!(text.contains("gradient"), "{text}");
    assert!(s.try_set_learning_rate(f32::NAN).is_err() && s.try_set_adam(0.1, 1.0, 0.9, 1e-8).is_err());
}

#[test]
fn an_id_out_of_range_is_an_error_of_the_step_and_the_session_goes_on() {
    let mut s = session();
    s.set_input("x", &[1.0; 6]);
    s.set_input_u32("ids", &[1, 4]);
    let error = s
        .try_step()
        .and_then(|()| s.try_wait().map(|_| ()))
        .expect_err("4 classes");
    assert!(
        matches!(error, Error::IndexOutOfRange { index: 4, rows: 4, .. }),
        "{error:?}"
    );
    s.set_input_u32("ids", &[1, 3]);
    s.step();
    assert!(s.read_loss().is_finite());
}

#[test]
fn a_parameter_group_must_name_a_parameter() {
    let mut g = Graph::new();
    let w = g.parameter("fc.weight", &[2]);
    let loss = g.sum_all(w);
    g.set_outputs(vec![loss]);
    let mut session = build(&g, cpu()).expect("builds").0;
    session.set_optimizer(Sgd::new(0.5));
    let update = Update::new(Sgd::new(0.5)).group(ParameterGroup::new(["*.weight", "fc.bias"]));
    let error = session.try_set_optimizer(update).expect_err("no fc.bias").to_string();
    assert!(error.contains("'fc.bias'") && error.contains("fc.weight"), "{error}");
    // The earlier rule still applies.
    session.step();
    assert_eq!(session.read_parameter("fc.weight"), [-0.5, -0.5]);
}

#[test]
fn an_optimizer_without_gradients_is_refused() {
    let mut g = Graph::new();
    let x = g.input("x", &[3]);
    let loss = g.sum_all(x);
    g.set_outputs(vec![loss]);
    let (mut s, _) = build(&g, cpu()).expect("no parameters is fine");
    let text = s.try_set_learning_rate(0.1).expect_err("nothing to train").to_string();
    assert!(text.contains("no") && text.contains("gradients"), "{text}");
}

#[test]
fn the_plain_forms_panic_with_the_same_message() {
    let panic = std::panic::catch_unwind(|| session().set_input("nope", &[]));
    let message = panic.expect_err("it panics");
    let text = message.downcast_ref::<String>().expect("a message");
    assert!(text.contains("no input named 'nope'"), "{text}");
}

#[test]
fn errors_are_std_errors() {
    fn check<E: std::error::Error + Send + Sync + 'static>(_: &E) {}
    check(&Error::NoOutputs);
}
