//! Tests of porting a model by hand: parameters with their shapes, outputs by name.

use std::sync::Arc;

use meganeura::builder::Builder;
use meganeura::cpu::CpuDevice;
use meganeura::graph::Graph;
use meganeura::{Error, Session, cache};

fn session(graph: &Graph) -> Session {
    Builder::on(Arc::new(CpuDevice::new(2))).build(graph).expect("builds").0
}

/// Builds `x w`, with its mean as the loss.
fn model(name: impl FnOnce(&mut Graph, [meganeura::NodeId; 2])) -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", &[1, 2]);
    let w = g.parameter("w", &[2, 3]);
    let y = g.matmul(x, w);
    let loss = g.mean_all(y);
    name(&mut g, [loss, y]);
    g
}

fn named(g: &mut Graph, [loss, y]: [meganeura::NodeId; 2]) {
    g.set_named_outputs([("loss", loss), ("logits", y)]);
}

#[test]
fn an_array_has_to_have_the_shape_of_the_parameter() {
    let mut s = session(&model(named));
    let data = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    s.set_parameter_array("w", &[2, 3], &data);
    assert_eq!(s.read_parameter("w"), data);
    let error = s.try_set_parameter_array("w", &[3, 2], &data).expect_err("transposed");
    assert!(
        matches!(&error, Error::WrongShape { found, .. } if found == &[3, 2]),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains("'w' has shape [2, 3]") && text.contains("[3, 2] was given"),
        "{text}"
    );
    assert!(text.contains("transpose it"), "{text}");
    let flat = s
        .try_set_parameter_array("w", &[6], &data)
        .expect_err("flat")
        .to_string();
    assert!(
        flat.contains("pass an array of that shape") && !flat.contains("transpose"),
        "{flat}"
    );
    let short = s.try_set_parameter_array("w", &[2, 3], &data[..5]).expect_err("short");
    assert!(matches!(short, Error::WrongLength { found: 5, .. }), "{short}");
    let unknown = s.try_set_parameter_array("v", &[2, 3], &data).expect_err("unknown");
    assert!(unknown.to_string().contains("there are 'w'"), "{unknown}");
    assert_eq!(s.read_parameter("w"), data, "what was refused changed nothing");
}

#[test]
fn outputs_are_read_by_their_names() {
    let mut s = session(&model(named));
    s.set_parameter("w", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    s.set_input("x", &[1.0, 10.0]);
    let early = s.try_read_output_named("logits").expect_err("no step").to_string();
    assert!(early.contains("no step"), "{early}");
    s.step();
    assert_eq!(s.read_output_named("logits"), [41.0, 52.0, 63.0]);
    assert_eq!(s.read_output_named("loss"), [52.0]);
    assert_eq!(s.read_loss(), 52.0);
    assert_eq!(s.try_output_index("logits").expect("named"), 1);
    let error = s.try_read_output_named("logit").expect_err("unknown").to_string();
    assert!(
        error.contains("no output named 'logit'") && error.contains("'logits', 'loss'"),
        "{error}"
    );
    let short = s
        .try_read_output_by_index(1, &mut [0.0; 2])
        .expect_err("short")
        .to_string();
    assert!(
        short.contains("output 'logits'") && short.contains("read it into a buffer of 3"),
        "{short}"
    );
    assert!(!short.contains("give"), "{short}");
}

#[test]
fn outputs_without_names_go_by_their_numbers() {
    let mut s = session(&model(|g, outputs| g.set_outputs(outputs.to_vec())));
    s.set_parameter("w", &[1.0; 6]);
    s.set_input("x", &[1.0, 2.0]);
    s.step();
    assert_eq!(s.read_output_named("1"), [3.0; 3]);
    assert!(s.try_read_output_named("loss").is_err());
    // The last call applies.
    let g = model(|g, outputs| {
        named(g, outputs);
        g.set_outputs(outputs.to_vec());
    });
    assert_eq!(g.output_names().len(), 0);
}

#[test]
fn names_of_outputs_are_not_empty_and_differ() {
    let twice = model(|g, [loss, y]| g.set_named_outputs([("y", loss), ("y", y)]));
    let error = twice.verify().expect_err("twice").to_string();
    assert!(
        error.contains("two outputs are called 'y'") && error.contains("porting.rs"),
        "{error}"
    );
    let empty = model(|g, [loss, y]| g.set_named_outputs([("loss", loss), ("", y)]));
    let error = empty.verify().expect_err("empty").to_string();
    assert!(error.contains("output 1 has an empty name"), "{error}");
}

#[test]
fn names_of_outputs_are_part_of_plans_in_files() {
    let plan = |g: &Graph| {
        let full = meganeura::autodiff::differentiate(&meganeura::optimize::optimize(g).toposort());
        meganeura::compile::compile(&meganeura::optimize::optimize(&full))
    };
    let g = model(named);
    let made = plan(&g);
    assert_eq!(made.output_names, ["loss", "logits"]);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plan.ron");
    cache::save_plan(&made, &g, &path).expect("written");
    let read = cache::load_plan(&g, &path).expect("readable").expect("of this graph");
    assert_eq!(read.output_names, made.output_names);
    // Other names give another plan, and so do missing names.
    let other = model(|g, [loss, y]| g.set_named_outputs([("loss", loss), ("y", y)]));
    assert!(cache::load_plan(&other, &path).expect("readable").is_none());
    let none = model(|g, outputs| g.set_outputs(outputs.to_vec()));
    assert!(cache::load_plan(&none, &path).expect("readable").is_none());
    let mut damaged = made.clone();
    damaged.output_names.pop();
    assert!(
        damaged
            .verify()
            .expect_err("one is missing")
            .to_string()
            .contains("names of outputs")
    );
}
