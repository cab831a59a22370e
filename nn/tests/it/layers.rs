//! Tests of layers against values computed by hand, with the oracle of the core.

use std::collections::HashMap;

use meganeura_compiler::optimize::for_inference;
use meganeura_core::autodiff::try_differentiate;
use meganeura_core::graph::{NodeKind, Value};
use meganeura_core::reference::evaluate;
use meganeura_core::{Graph, Init, NodeId};
use meganeura_nn::layers::{
    Activation, BatchNorm, BatchNormConfig, Conv2d, Conv2dConfig, Dropout, Embedding, EmbeddingConfig, LayerNorm,
    LayerNormConfig, Linear, LinearConfig,
};

type Build = fn(&mut Graph);
type Feeds = HashMap<String, Vec<f64>>;

fn feeds(values: &[(&str, &[f64])]) -> Feeds {
    values.iter().map(|(n, v)| ((*n).to_owned(), v.to_vec())).collect()
}

fn result(g: &Graph, node: impl Into<Value>, feeds: &Feeds) -> Vec<f64> {
    g.verify().expect("a valid graph");
    let node = node.into();
    evaluate(g, feeds)
        .expect("evaluates")
        .get(node)
        .expect("a value")
        .data
        .clone()
}

fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{found:?}");
    let near = found.iter().zip(expected).all(|(f, e)| (f - e).abs() < 1e-6);
    assert!(near, "{found:?} is not {expected:?}");
}

/// Returns names, shapes and initial distributions of all parameters.
fn parameters(g: &Graph) -> Vec<(String, Vec<usize>, Init)> {
    let described = g.nodes().iter().filter_map(|node| match node.kind {
        NodeKind::Parameter { init, .. } => {
            let name = node.name.as_deref().unwrap_or_default().to_owned();
            Some((name, node.outputs[0].shape.to_vec(), init))
        }
        _ => None,
    });
    described.collect()
}

/// Returns the text of the only error of a graph.
fn only_error(g: &Graph) -> String {
    assert_eq!(g.errors().len(), 1, "{:?}", g.errors());
    g.errors()[0].to_string()
}

fn name_of(g: &Graph, node: NodeId) -> &str {
    g.nodes()[node.index()].name.as_deref().unwrap_or_default()
}

#[test]
fn linear_is_x_times_w_plus_b() {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 3]);
    let y = Linear::new(&mut g, "fc", 3, 2).forward(&mut g, x);
    g.set_outputs(vec![y]);
    assert_eq!(name_of(&g, y), "fc");
    let values = feeds(&[
        ("x", &[1.0, 2.0, 3.0, 0.0, -1.0, 0.5]),
        ("fc.weight", &[1.0, 10.0, 2.0, 20.0, 3.0, 30.0]),
        ("fc.bias", &[0.5, -0.5]),
    ]);
    close(&result(&g, y, &values), &[14.5, 139.5, 0.0, -5.5]);
    let expected = vec![
        ("fc.weight".to_owned(), vec![3, 2], Init::kaiming_uniform(3)),
        ("fc.bias".to_owned(), vec![2], Init::Zeros),
    ];
    assert_eq!(parameters(&g), expected);
}

#[test]
fn linear_options_and_leading_axes() {
    let mut g = Graph::new();
    let x = g.input("x", &[5, 4, 3]);
    let config = LinearConfig::new(3, 7).bias(false).init(Init::Ones);
    let layer = config.build(&mut g, "fc");
    let y = layer.forward(&mut g, x);
    assert_eq!(g.shape(y), [5, 4, 7]);
    assert_eq!(parameters(&g), [("fc.weight".to_owned(), vec![3, 7], Init::Ones)]);
    assert!(layer.bias.is_none());
    let again = layer.forward(&mut g, x);
    assert_eq!(g.shape(again), [5, 4, 7], "weights are shared by a second use");
    assert!(g.errors().is_empty());
}

#[test]
fn conv2d_adds_a_bias_to_every_channel() {
    let mut g = Graph::new();
    let x = g.input("x", &[1, 1, 2, 3]);
    let y = Conv2d::new(&mut g, "conv", 1, 2, [2, 2]).forward(&mut g, x);
    g.set_outputs(vec![y]);
    assert_eq!((g.shape(y), name_of(&g, y)), (&[1, 2, 1, 2][..], "conv"));
    let values = feeds(&[
        ("x", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        ("conv.weight", &[1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0]),
        ("conv.bias", &[0.5, -1.0]),
    ]);
    // 1 + 5 and 2 + 6; 2 + 4 and 3 + 5
    close(&result(&g, y, &values), &[6.5, 8.5, 5.0, 7.0]);
    let expected = vec![
        ("conv.weight".to_owned(), vec![2, 1, 2, 2], Init::kaiming_uniform(4)),
        ("conv.bias".to_owned(), vec![2], Init::Zeros),
    ];
    assert_eq!(parameters(&g), expected);
}

#[test]
fn conv2d_geometry() {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 4, 9, 11]);
    let config = Conv2dConfig::new(4, 6, [3, 5]).stride([2, 3]).padding([1, 2]).groups(2);
    let y = config.bias(false).build(&mut g, "a").forward(&mut g, x);
    assert_eq!(g.shape(y), [2, 6, 5, 4]);
    let y = Conv2dConfig::new(4, 1, [3, 3])
        .dilation([2, 4])
        .init(Init::Zeros)
        .build(&mut g, "b")
        .forward(&mut g, x);
    assert_eq!(g.shape(y), [2, 1, 5, 3]);
    let parameters = parameters(&g);
    assert_eq!(
        parameters[0],
        ("a.weight".to_owned(), vec![6, 2, 3, 5], Init::kaiming_uniform(30))
    );
    assert_eq!(parameters[1].2, Init::Zeros);
    assert!(g.errors().is_empty());
}

#[test]
fn embedding_looks_up_rows() {
    let mut g = Graph::new();
    let ids = g.input_u32("ids", &[2, 2]);
    let y = Embedding::new(&mut g, "table", 3, 2).forward(&mut g, ids);
    g.set_outputs(vec![y]);
    assert_eq!((g.shape(y), name_of(&g, y)), (&[2, 2, 2][..], "table"));
    let values = feeds(&[
        ("ids", &[2.0, 0.0, 1.0, 2.0]),
        ("table.weight", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
    ]);
    close(&result(&g, y, &values), &[5.0, 6.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    EmbeddingConfig::new(5, 8)
        .init(Init::Normal { std: 0.02 })
        .build(&mut g, "small");
    let inits: Vec<Init> = parameters(&g).into_iter().map(|p| p.2).collect();
    assert_eq!(inits, [Init::Normal { std: 1.0 }, Init::Normal { std: 0.02 }]);
}

#[test]
fn layer_norm_normalises_the_last_axis() {
    let mut g = Graph::new();
    let x = g.input("x", &[1, 1, 2]);
    let y = LayerNormConfig::new(2).eps(0.0).build(&mut g, "ln").forward(&mut g, x);
    g.set_outputs(vec![y]);
    let values = feeds(&[("x", &[1.0, 5.0]), ("ln.weight", &[2.0, 3.0]), ("ln.bias", &[0.0, 1.0])]);
    close(&result(&g, y, &values), &[-2.0, 4.0]);
    assert_eq!(parameters(&g)[0].2, Init::Ones);
    let default = LayerNorm::new(&mut g, "other", 2).forward(&mut g, x);
    let values = feeds(&[("x", &[1.0, 1.0]), ("other.weight", &[1.0, 1.0])]);
    g.set_outputs(vec![default]);
    close(&result(&g, default, &values), &[0.0, 0.0]);
}

#[test]
fn batch_norm_uses_the_batch_in_training_and_running_statistics_in_inference() {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 2]);
    let y = BatchNormConfig::new(2)
        .eps(0.0)
        .momentum(0.5)
        .build(&mut g, "bn")
        .forward(&mut g, x);
    g.set_outputs(vec![y]);
    let values = feeds(&[
        ("x", &[1.0, 10.0, 3.0, 30.0]),
        ("bn.weight", &[1.0, 2.0]),
        ("bn.bias", &[0.0, 5.0]),
    ]);
    let training = evaluate(&g, &values).expect("evaluates");
    close(&training.get(y).expect("a value").data, &[-1.0, 3.0, 1.0, 7.0]);
    // Half of 0 and the mean; half of 1 and the unbiased variance.
    close(&training.written["bn.running_mean"], &[1.0, 10.0]);
    close(&training.written["bn.running_var"], &[1.5, 100.5]);

    let inference = for_inference(&g).expect("an inference form");
    let mut values = values;
    values.insert("bn.running_mean".into(), vec![1.0, 10.0]);
    values.insert("bn.running_var".into(), vec![4.0, 100.0]);
    close(
        &result(&inference, inference.outputs()[0], &values),
        &[0.0, 5.0, 1.0, 9.0],
    );
    assert!(evaluate(&inference, &values).expect("evaluates").written.is_empty());
}

#[test]
fn batch_norm_takes_any_rank_from_two() {
    for shape in [vec![4, 3], vec![2, 3, 5], vec![2, 3, 5, 5], vec![2, 3, 2, 2, 2]] {
        let mut g = Graph::new();
        let x = g.input("x", &shape);
        let y = BatchNorm::new(&mut g, "bn", 3).forward(&mut g, x);
        assert_eq!(g.shape(y), shape);
    }
    let mut g = Graph::new();
    let x = g.input("x", &[3]);
    BatchNorm::new(&mut g, "bn", 3).forward(&mut g, x);
    assert!(only_error(&g).contains("channel axis"), "{}", only_error(&g));
}

#[test]
fn dropout_of_nothing_adds_nothing_and_of_everything_is_refused() {
    let mut g = Graph::new();
    let x = g.input("x", &[3]);
    assert_eq!(Dropout::new(0.0).forward(&mut g, x), x);
    let y = Dropout::new(0.5).forward(&mut g, x);
    g.set_outputs(vec![y]);
    let inference = for_inference(&g).expect("an inference form");
    // The scalars of the masks remain, but are unused.
    let values = feeds(&[
        ("x", &[1.0, 2.0, 3.0]),
        ("random.seed", &[0.0]),
        ("random.step", &[0.0]),
    ]);
    close(&result(&inference, inference.outputs()[0], &values), &[1.0, 2.0, 3.0]);
    for p in [1.0, -0.1, f32::NAN] {
        let mut g = Graph::new();
        let x = g.input("x", &[3]);
        Dropout::new(p).forward(&mut g, x);
        assert!(only_error(&g).contains("probability"), "{p}");
    }
}

#[test]
fn activations_have_names_and_values() {
    for activation in Activation::ALL {
        assert_eq!(activation.to_string().parse(), Ok(activation));
        let mut g = Graph::new();
        let x = g.input("x", &[2]);
        let y = activation.forward(&mut g, x);
        g.set_outputs(vec![y]);
        let at_one = 1.0 / (1.0 + (-1f64).exp());
        let expected = match activation {
            Activation::Relu => [0.0, 1.0],
            // The two forms differ in the fourth digit.
            Activation::Gelu => [-0.158_655_254, 0.841_344_746],
            Activation::GeluTanh => [-0.158_808, 0.841_192],
            Activation::Silu => [at_one - 1.0, at_one],
            Activation::Tanh => [-(1f64.tanh()), 1f64.tanh()],
            Activation::Sigmoid => [1.0 - at_one, at_one],
            _ => [-1.0, 1.0],
        };
        close(&result(&g, y, &feeds(&[("x", &[-1.0, 1.0])])), &expected);
    }
    let error = "swish".parse::<Activation>().expect_err("unknown");
    assert!(error.contains("silu"), "{error}");
    assert_eq!(Activation::Relu.weight_init(6, 3), Init::kaiming_uniform(6));
    assert_eq!(Activation::Tanh.weight_init(6, 3), Init::xavier_uniform(6, 3));
}

#[test]
fn every_parameter_of_every_layer_has_a_gradient() {
    let mut g = Graph::new();
    let ids = g.input_u32("ids", &[2, 9]);
    let y = Embedding::new(&mut g, "embedding", 5, 4).forward(&mut g, ids);
    let y = LayerNorm::new(&mut g, "ln", 4).forward(&mut g, y);
    let y = g.reshape(y, &[2, 4, 3, 3]);
    let y = Conv2d::new(&mut g, "conv", 4, 3, [2, 2]).forward(&mut g, y);
    let y = BatchNorm::new(&mut g, "bn", 3).forward(&mut g, y);
    let y = Activation::Gelu.forward(&mut g, y);
    let y = Dropout::new(0.3).forward(&mut g, y);
    let y = g.flatten(y);
    let y = Linear::new(&mut g, "fc", 12, 1).forward(&mut g, y);
    let loss = g.mean_all(y);
    g.set_outputs(vec![loss]);
    let full = try_differentiate(&g).expect("differentiates");
    assert_eq!(full.gradients().len(), parameters(&g).len());
}

#[test]
fn initial_values_keep_the_variance_of_relu_networks() {
    let mut g = Graph::new();
    Linear::new(&mut g, "fc", 300, 200);
    Conv2d::new(&mut g, "conv", 32, 64, [3, 3]);
    for (name, shape, init) in parameters(&g) {
        let values = init.values(&name, shape.iter().product(), 3);
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / values.len() as f64;
        let var = values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / values.len() as f64;
        let fan_in = if name.starts_with("fc") { 300.0 } else { 288.0 };
        let expected = if name.ends_with("bias") { 0.0 } else { 2.0 / fan_in };
        assert!((var - expected).abs() <= 0.03 * expected, "{name}: {var}");
    }
}

#[test]
fn wrong_sizes_reject_the_graph_and_name_the_layer() {
    let cases: [(&str, Build); 7] = [
        ("linear 'a'", |g| {
            let x = g.input("x", &[1, 1]);
            Linear::new(g, "a", 0, 3).forward(g, x);
        }),
        ("conv2d 'a'", |g| {
            let x = g.input("x", &[1, 1, 1, 1]);
            Conv2d::new(g, "a", 1, 1, [0, 1]).forward(g, x);
        }),
        ("0", |g| {
            Conv2dConfig::new(4, 4, [1, 1]).groups(0).build(g, "a");
        }),
        ("3 groups do not divide 4", |g| {
            Conv2dConfig::new(4, 4, [1, 1]).groups(3).build(g, "a");
        }),
        ("embedding 'a'", |g| {
            let ids = g.input_u32("ids", &[1]);
            Embedding::new(g, "a", 3, 0).forward(g, ids);
        }),
        ("layer_norm 'a'", |g| {
            let x = g.input("x", &[1]);
            LayerNorm::new(g, "a", 0).forward(g, x);
        }),
        ("batch_norm 'a'", |g| {
            let x = g.input("x", &[1, 1]);
            BatchNorm::new(g, "a", 0).forward(g, x);
        }),
    ];
    for (expected, build) in cases {
        let mut g = Graph::new();
        build(&mut g);
        let error = only_error(&g);
        assert!(
            error.contains(expected) && error.contains("layers.rs"),
            "{expected}: {error}"
        );
    }
}

#[test]
fn operands_that_do_not_fit_reject_the_graph_where_they_are_used() {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 5]);
    Linear::new(&mut g, "fc", 4, 3).forward(&mut g, x);
    let error = only_error(&g);
    assert!(
        error.contains("inner dimensions") && error.contains("layers.rs"),
        "{error}"
    );
}

#[test]
fn two_layers_of_one_name_are_refused() {
    let mut g = Graph::new();
    LinearConfig::new(2, 2).bias(false).build(&mut g, "fc");
    LinearConfig::new(2, 2).bias(false).build(&mut g, "fc");
    assert!(only_error(&g).contains("fc.weight"), "{}", only_error(&g));
}

#[test]
fn absurd_sizes_do_not_overflow() {
    let mut g = Graph::new();
    let huge = usize::MAX / 2;
    Linear::new(&mut g, "fc", huge, huge);
    Conv2d::new(&mut g, "conv", huge, huge, [huge, huge]);
    assert!(g.errors().len() >= 2);
    assert!(g.verify().is_err());
}
