//! Tests of the choice of parameters that are packed, and of the resulting graphs.

use std::collections::HashMap;

use meganeura::autodiff::try_differentiate;
use meganeura::graph::NodeKind;
use meganeura::random::SplitMix64;
use meganeura::reference::evaluate;
use meganeura::rewrite::pack_parameters;
use meganeura::{Graph, NodeId};

use super::models::{Model, Packed, check_equal, feed, pack, session};

/// Returns the names of the parameters as stored.
fn stored(graph: &Graph) -> Vec<String> {
    let parameters = graph
        .nodes()
        .iter()
        .filter(|n| matches!(n.kind, NodeKind::Parameter { .. }));
    parameters
        .map(|n| n.name.as_deref().unwrap_or_default().to_owned())
        .collect()
}

fn parameters<const N: usize>(g: &mut Graph, names: [&str; N], shape: &[usize]) -> [NodeId; N] {
    names.map(|name| g.parameter(name, shape))
}

#[test]
fn packed_graphs_mean_the_same() {
    for model in Model::all() {
        let graph = model.graph();
        let mut rng = SplitMix64::new(3);
        let mut feeds = HashMap::new();
        for node in graph.nodes().iter().filter(|n| n.is_named_leaf()) {
            let values = (0..node.outputs[0].numel()).map(|_| rng.normal()).collect();
            feeds.insert(node.name.as_deref().unwrap_or_default().to_owned(), values);
        }
        let full = try_differentiate(&graph).expect("differentiates");
        let expected = evaluate(&full, &feeds).expect("evaluates");
        let loss = |graph: &Graph, values: &meganeura::reference::Evaluation| {
            values.get(graph.outputs()[0]).expect("a loss").data[0]
        };
        let before = try_differentiate(&pack(&graph)).expect("differentiates");
        for packed in [before, pack(&full)] {
            let found = evaluate(&packed, &feeds).expect("evaluates");
            assert_eq!(loss(&packed, &found), loss(&full, &expected), "{model:?}");
            // The squares of all gradients, however they are stored.
            let norm = |graph: &Graph, values: &meganeura::reference::Evaluation| -> f64 {
                let all = graph.gradients().iter().filter_map(|&(_, v)| values.get(v));
                all.flat_map(|t| t.data.iter()).map(|v| v * v).sum()
            };
            let (a, b) = (norm(&packed, &found), norm(&full, &expected));
            assert!((a - b).abs() <= 1e-12 * b, "{model:?}: {a} {b}");
        }
    }
}

#[test]
fn parts_of_one_value_are_one_gradient() {
    // One product instead of two and a copy: the gradient of the packed weights is not assembled.
    let graph = Model::new(&[&[7, 3], &[7, 2]], 1).graph();
    let packed = pack(&try_differentiate(&graph).expect("differentiates"));
    let names = stored(&packed);
    assert_eq!(names, ["p0+p1", "b0+b1", "out.weight"]);
    assert_eq!(packed.gradients().len(), 3);
    let joins = packed
        .nodes()
        .iter()
        .filter(|n| n.op().is_some_and(|(op, a)| op.packs(a).is_some()));
    assert_eq!(joins.count(), 0, "{packed}");
    let parts = packed
        .nodes()
        .iter()
        .filter(|n| n.op().is_some_and(|(op, _)| op.name() == "core.slice"));
    assert_eq!(parts.count(), 0, "{packed}");
}

#[test]
fn of_two_packings_of_one_parameter_the_larger_is_stored() {
    let mut g = Graph::new();
    let [a, b, c] = parameters(&mut g, ["a", "b", "c"], &[2, 3]);
    let small = g.concat(&[a, b], 1);
    let large = g.concat(&[b, c, a], 0);
    let again = g.concat(&[b, c, a], -2);
    let other = g.concat(&[a, c, b], 0);
    g.set_outputs(vec![small, large, again, other]);
    let packed = pack(&g);
    assert_eq!(stored(&packed), ["b+c+a"]);
    let outputs = packed.outputs();
    assert_eq!(outputs[1], outputs[2]);
    assert!(packed.nodes()[outputs[1].node.index()].packing().is_some());
    let value = |k: f64| (0..6).map(|i| k + f64::from(i)).collect::<Vec<_>>();
    let feeds: HashMap<String, Vec<f64>> = [("a", 0.0), ("b", 10.0), ("c", 20.0)]
        .map(|(name, k)| (name.to_owned(), value(k)))
        .into();
    let (expected, found) = (
        evaluate(&g, &feeds).expect("plain"),
        evaluate(&packed, &feeds).expect("packed"),
    );
    for (a, b) in g.outputs().iter().zip(outputs) {
        assert_eq!(
            expected.get(*a).expect("plain").data,
            found.get(*b).expect("packed").data
        );
    }
}

#[test]
fn what_may_not_be_packed_is_not() {
    let unpacked = |build: &dyn Fn(&mut Graph) -> NodeId, group_of: &dyn Fn(&str) -> u64| {
        let mut g = Graph::new();
        let y = build(&mut g);
        g.set_outputs(vec![y]);
        let packed = pack_parameters(&g, group_of).expect("valid");
        assert!(stored(&packed).iter().all(|n| !n.contains('+')), "{packed}");
        assert_eq!(packed.to_string(), g.to_string());
    };
    let one = |_: &str| 0;
    // Refused: a parameter with itself, a single source, other operands, written or partly frozen parameters, and
    // groups.
    unpacked(
        &|g| {
            let [a] = parameters(g, ["a"], &[3]);
            g.concat(&[a, a], 0)
        },
        &one,
    );
    unpacked(
        &|g| {
            let [a] = parameters(g, ["a"], &[3]);
            g.concat(&[a], 0)
        },
        &one,
    );
    unpacked(
        &|g| {
            let [a] = parameters(g, ["a"], &[3]);
            let s = g.state("s", &[3]);
            g.concat(&[a, s], 0)
        },
        &one,
    );
    unpacked(
        &|g| {
            let [a, b] = parameters(g, ["a", "b"], &[3]);
            let y = g.concat(&[a, b], 0);
            let doubled = g.add(a, a);
            g.assign(a, doubled);
            y
        },
        &one,
    );
    unpacked(
        &|g| {
            let [a, b] = parameters(g, ["a", "b"], &[3]);
            g.trainable(a, false);
            g.concat(&[a, b], 0)
        },
        &one,
    );
    unpacked(
        &|g| {
            let [a, b] = parameters(g, ["a", "b"], &[3]);
            g.concat(&[a, b], 0)
        },
        &|name| u64::from(name == "a"),
    );
}

#[test]
fn names_stay_unique() {
    let mut g = Graph::new();
    let [a, b, taken] = parameters(&mut g, ["a", "b", "a+b"], &[3]);
    let joined = g.concat(&[a, b], 0);
    g.set_outputs(vec![joined, taken]);
    let mut packed = pack(&g);
    let mut names = stored(&packed);
    names.sort();
    assert_eq!(names, ["a+b", "a+b'"]);
    // The sources' names are still reserved.
    packed.input("a", &[1]);
    let error = packed.verify().expect_err("taken").to_string();
    assert!(
        error.contains("the name is already taken by parameter 'a+b''"),
        "{error}"
    );
}

#[test]
fn frozen_sources_have_no_gradient_even_if_asked_for() {
    let model = Model {
        frozen: true,
        tied: true,
        ..Model::new(&[&[5, 3], &[5, 1]], 1)
    };
    let mut graph = model.graph();
    for name in model.sources() {
        let leaf = graph.leaf_named(&name).expect("a parameter");
        graph.require_grad(leaf);
    }
    for packed in [Packed::BeforeAutodiff, Packed::AfterAutodiff] {
        let mut sessions = [session(&graph, Packed::Never), session(&graph, packed)];
        assert!(
            sessions[1]
                .plan()
                .parameters()
                .iter()
                .any(|p| p.name == "p0" && p.part.is_some())
        );
        let mut errors = Vec::new();
        for s in &mut sessions {
            s.set_learning_rate(0.1);
            feed(s, 1);
            s.step();
            errors.push(s.try_read_grad("p1").expect_err("frozen").to_string());
        }
        assert_eq!(errors[0], errors[1]);
        let [plain, other] = &mut sessions;
        check_equal(plain, other, 0.0, &format!("{packed:?}"));
    }
}

#[test]
fn asking_for_the_gradient_of_one_source_keeps_it_apart_from_frozen_others() {
    let mut g = Graph::new();
    let [a, b] = parameters(&mut g, ["a", "b"], &[3]);
    for p in [a, b] {
        g.trainable(p, false);
    }
    g.require_grad(a);
    let joined = g.concat(&[a, b], 0);
    g.set_outputs(vec![joined]);
    assert_eq!(stored(&pack(&g)), ["a", "b"]);
    g.require_grad(b);
    assert_eq!(stored(&pack(&g)), ["a+b"]);
}
