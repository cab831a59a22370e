//! Tests of models as graphs: names, shapes, wrong sizes.

use meganeura_core::Graph;
use meganeura_core::autodiff::try_differentiate;
use meganeura_core::graph::NodeKind;
use meganeura_nn::layers::Activation;
use meganeura_nn::models::{
    CnnConfig, EfficientNetConfig, MlpConfig, MobileNetConfig, classifier, cnn_classifier, mlp_classifier,
};

fn parameter_names(g: &Graph) -> Vec<&str> {
    let parameters = g
        .nodes()
        .iter()
        .filter(|n| matches!(n.kind, NodeKind::Parameter { .. }));
    parameters.filter_map(|n| n.name.as_deref()).collect()
}

#[test]
fn the_default_mlp() {
    let g = mlp_classifier(32, 64, 10);
    g.verify().expect("a valid graph");
    assert_eq!(
        parameter_names(&g),
        [
            "fc1.weight",
            "fc1.bias",
            "fc2.weight",
            "fc2.bias",
            "fc3.weight",
            "fc3.bias"
        ]
    );
    let leaf = |name| g.leaf_named(name).map(|id| g.shape(id).to_vec());
    assert_eq!(leaf("x"), Some(vec![32, 64]));
    assert_eq!(leaf("labels"), Some(vec![32]));
    assert_eq!(leaf("fc1.weight"), Some(vec![64, 256]));
    assert_eq!(leaf("fc3.weight"), Some(vec![128, 10]));
    let shapes: Vec<&[usize]> = g.outputs().iter().map(|&v| g.shape(v)).collect();
    assert_eq!(shapes, [&[][..], &[32, 10][..]]);
    try_differentiate(&g).expect("differentiates");
}

#[test]
fn the_default_cnn() {
    let g = cnn_classifier(8, [1, 8, 8], 10);
    g.verify().expect("a valid graph");
    let names = parameter_names(&g);
    for name in ["conv1.weight", "bn3.bias", "fc1.weight", "fc2.bias"] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    assert!(!names.contains(&"conv1.bias"));
    let weight = g.leaf_named("fc1.weight").expect("a parameter");
    assert_eq!(g.shape(weight), [256, 64]);
    assert!(g.leaf_named("bn2.running_var").is_some());
    assert_eq!(g.shape(g.outputs()[1]), [8, 10]);
    try_differentiate(&g).expect("differentiates");
}

#[test]
fn images_of_any_size_from_four_by_four() {
    for image in [[3, 4, 4], [1, 7, 9], [3, 28, 32]] {
        let g = cnn_classifier(2, image, 5);
        g.verify().unwrap_or_else(|e| panic!("{image:?}: {e}"));
    }
    for image in [[1, 3, 8], [0, 8, 8]] {
        let error = cnn_classifier(2, image, 5).verify().expect_err("too small").to_string();
        assert!(error.contains("is 0"), "{image:?}: {error}");
    }
}

#[test]
fn efficientnet_has_the_layers_and_shapes_of_the_published_network() {
    let g = classifier(2, &[3, 224, 224], |g, x| {
        EfficientNetConfig::b0(1000).build(g, "").forward(g, x)
    });
    g.verify().unwrap_or_else(|e| panic!("{e}"));
    let names = parameter_names(&g);
    let sizes = names.iter().filter_map(|name| Some(g.shape(g.leaf_named(name)?)));
    // The count of torchvision's efficientnet_b0.
    assert_eq!(sizes.map(|s| s.iter().product::<usize>()).sum::<usize>(), 5_288_548);
    for (name, shape) in [
        ("features.0.0.weight", &[32, 3, 3, 3][..]),
        ("features.1.0.block.0.0.weight", &[32, 1, 3, 3]),
        ("features.1.0.block.1.fc1.weight", &[8, 32, 1, 1]),
        ("features.1.0.block.2.1.bias", &[16]),
        ("features.2.1.block.2.fc2.bias", &[144]),
        ("features.6.3.block.1.0.weight", &[1152, 1, 5, 5]),
        ("features.7.0.block.3.0.weight", &[320, 1152, 1, 1]),
        ("features.8.0.weight", &[1280, 320, 1, 1]),
        ("classifier.1.weight", &[1280, 1000]),
    ] {
        let leaf = g.leaf_named(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(g.shape(leaf), shape, "{name}");
    }
    assert_eq!(g.shape(g.outputs()[1]), [2, 1000]);
    // Other images, and sizes that no layer supports.
    for image in [[1, 1, 1], [4, 65, 33]] {
        let config = EfficientNetConfig::b0(3).channels(image[0]).dropout(0.0);
        let g = classifier(1, &image, |g, x| config.build(g, "net").forward(g, x));
        g.verify().unwrap_or_else(|e| panic!("{image:?}: {e}"));
    }
    let g = classifier(1, &[3, 32, 32], |g, x| {
        EfficientNetConfig::b0(0).build(g, "").forward(g, x)
    });
    assert!(g.verify().expect_err("no classes").to_string().contains("is 0"));
}

#[test]
fn mobilenet_has_the_layers_and_shapes_of_the_published_network() {
    let graph = |config: MobileNetConfig, image: [usize; 3]| {
        let g = classifier(2, &image, |g, x| config.build(g, "").forward(g, x));
        g.verify().unwrap_or_else(|e| panic!("{image:?}: {e}"));
        g
    };
    let count = |g: &Graph| {
        let names = parameter_names(g);
        let sizes = names.iter().filter_map(|name| Some(g.shape(g.leaf_named(name)?)));
        sizes.map(|shape| shape.iter().product::<usize>()).sum::<usize>()
    };
    let g = graph(MobileNetConfig::new(1000), [3, 224, 224]);
    // The count of torchvision's mobilenet_v2.
    assert_eq!(count(&g), 3_504_872);
    for (name, shape) in [
        ("features.0.0.weight", &[32, 3, 3, 3][..]),
        ("features.1.conv.0.0.weight", &[32, 1, 3, 3]),
        ("features.1.conv.1.weight", &[16, 32, 1, 1]),
        ("features.1.conv.2.bias", &[16]),
        ("features.2.conv.1.0.weight", &[96, 1, 3, 3]),
        ("features.17.conv.2.weight", &[320, 960, 1, 1]),
        ("features.18.0.weight", &[1280, 320, 1, 1]),
        ("classifier.1.weight", &[1280, 1000]),
    ] {
        let leaf = g.leaf_named(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(g.shape(leaf), shape, "{name}");
    }
    assert_eq!(g.shape(g.outputs()[1]), [2, 1000]);
    // Sizes before the pooling.
    let last = |g: &Graph| {
        let pooled = g.nodes().iter().zip(g.node_ids());
        let shapes = pooled
            .map(|(_, id)| g.shape(id).to_vec())
            .filter(|s| s.len() == 4 && s[1] == 1280);
        shapes.last().expect("the last features")
    };
    assert_eq!(last(&g), [2, 1280, 7, 7]);
    let small = graph(MobileNetConfig::new(10).small_images(true), [3, 32, 32]);
    assert_eq!(last(&small), [2, 1280, 4, 4]);
    assert_eq!(count(&small), count(&graph(MobileNetConfig::new(10), [3, 32, 32])));
    // torchvision's counts at other widths, and images of one pixel.
    assert_eq!(
        count(&graph(MobileNetConfig::new(1000).width(0.5), [3, 1, 1])),
        1_968_680
    );
    assert_eq!(
        count(&graph(MobileNetConfig::new(1000).width(1.4), [3, 64, 96])),
        6_108_776
    );
    for config in [
        MobileNetConfig::new(0),
        MobileNetConfig::new(10).channels(0),
        MobileNetConfig::new(10).channels(4),
        MobileNetConfig::new(10).width(f32::INFINITY),
        MobileNetConfig::new(10).dropout(1.0),
    ] {
        let g = classifier(2, &[3, 32, 32], |g, x| config.build(g, "").forward(g, x));
        assert!(g.verify().is_err(), "{config:?}");
    }
}

#[test]
fn options_change_the_model() {
    let mut g = Graph::new();
    let x = g.input("x", &[3, 4]);
    let config = MlpConfig::new(4, 2)
        .hidden([5])
        .activation(Activation::Tanh)
        .dropout(0.0);
    let mlp = config.build(&mut g, "mlp");
    let y = mlp.forward(&mut g, x);
    assert_eq!((g.shape(y), mlp.layers().len()), (&[3, 2][..], 2));
    assert_eq!(
        parameter_names(&g),
        ["mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias"]
    );
    let linear = MlpConfig::new(4, 2).hidden([]).build(&mut g, "linear");
    assert_eq!(linear.layers().len(), 1);

    let image = g.input("image", &[2, 3, 8, 8]);
    let config = CnnConfig::new([3, 8, 8], 7).channels([2, 4, 6]).hidden(9).dropout(0.0);
    let y = config.build(&mut g, "cnn").forward(&mut g, image);
    assert_eq!(g.shape(y), [2, 7]);
    assert!(g.errors().is_empty());
}

#[test]
fn wrong_models_reject_the_graph() {
    let classes = mlp_classifier(2, 3, 0).verify().expect_err("no classes").to_string();
    assert!(classes.contains("linear 'fc3'"), "{classes}");
    let wrong = classifier(2, &[5], |g, x| MlpConfig::new(4, 3).build(g, "").forward(g, x));
    let error = wrong.verify().expect_err("features do not fit").to_string();
    assert!(
        error.contains("inner dimensions") && error.contains("models.rs"),
        "{error}"
    );
    let dropout = classifier(2, &[4], |g, x| {
        MlpConfig::new(4, 3).dropout(1.0).build(g, "").forward(g, x)
    });
    assert!(dropout.verify().is_err());
}
