//! Tests of ensembles of perceptrons for tables, and of the influence of columns on their predictions.

use meganeura_core::Graph;
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::evaluate;
use meganeura_nn::data::{Dataset, Standardiser, quantile_edges};
use meganeura_nn::model::{
    Architecture, FeatureGroup, Loss, Model, ModelError, PredictionReport, PredictorOptions, Preprocessing, Task,
};
use meganeura_nn::models::{TabM, TabMConfig};
use meganeura_nn::trainer::{SilentObserver, TrainConfig, Trainer};

use crate::common::config;

/// Returns 600 examples of three features: the target is a step function of the first one plus the second one, and does not
/// depend on the third.
fn steps(classifies: bool) -> Dataset {
    let mut rng = SplitMix64::new(4);
    let features: Vec<f32> = (0..1800).map(|_| (2.0 * rng.unit() - 1.0) as f32).collect();
    let step = |x: f32| if (x * 4.0).floor() as i32 % 2 == 0 { 0.7 } else { -0.7 };
    let targets: Vec<f32> = features.chunks_exact(3).map(|row| step(row[0]) + row[1]).collect();
    if classifies {
        let labels = targets.iter().map(|target| u32::from(*target > 0.0)).collect();
        Dataset::new("steps", features, vec![3], labels, 2).expect("a data set")
    } else {
        Dataset::regression("steps", features, vec![3], targets, 1).expect("a data set")
    }
}

fn trained(data: &Dataset, loss: Loss) -> Model {
    let classifies = !data.is_regression();
    let scale = Standardiser::fit_per_feature(data);
    let mut train = data.clone().standardised(&scale).expect("standardised");
    let task = if classifies {
        Task::Classification {
            target: "y".into(),
            classes: vec!["no".into(), "yes".into()],
        }
    } else {
        let scale = Standardiser::fit_targets(&train);
        train = train.standardised_targets(&scale).expect("standardised");
        Task::Regression {
            targets: vec!["y".into()],
            scale,
        }
    };
    let mut architecture = Architecture::tabm(3, quantile_edges(&train, 16), classifies, task.outputs());
    if let Architecture::TabM { members, hidden, .. } = &mut architecture {
        (*members, *hidden) = (4, vec![32, 32]);
    }
    let config = TrainConfig { epochs: 60, ..config() };
    let graph = architecture.training_graph(config.batch_size, loss).expect("a graph");
    let mut trainer = Trainer::from_graph(&graph, config).expect("a trainer");
    trainer.fit(&train, None, &mut SilentObserver).expect("trains");
    let preprocessing = Preprocessing::Array { scale: Some(scale) };
    Model::from_trainer(&mut trainer, architecture, task, preprocessing).expect("a model")
}

fn options() -> PredictorOptions {
    PredictorOptions {
        device: Some("cpu".into()),
        ..PredictorOptions::default()
    }
}

#[test]
fn steps_are_learned_and_survive_saving() {
    for (classifies, loss) in [
        (true, Loss::Classes),
        (true, Loss::SoftClasses),
        (false, Loss::Regression),
        (false, Loss::WeightedRegression),
    ] {
        let data = steps(classifies);
        let model = trained(&data, loss);
        let folder = tempfile::tempdir().expect("a folder");
        model.save(folder.path().join("m")).expect("saved");
        let loaded = Model::load(folder.path().join("m")).expect("loaded");
        assert_eq!(loaded.architecture(), model.architecture());
        let mut predictor = loaded.predictor(&options()).expect("a predictor");
        match predictor.evaluate(&data).expect("a report") {
            PredictionReport::Classification { report, .. } => assert!(report.accuracy() > 0.9, "{report}"),
            PredictionReport::Regression { metrics, .. } => assert!(metrics.r2 > 0.8, "{metrics}"),
            other => panic!("{other:?}"),
        }
        // The influence of the third feature is missing.
        let groups = ["step", "slope", "noise"]
            .iter()
            .enumerate()
            .map(|(at, name)| FeatureGroup {
                name: (*name).into(),
                features: at..at + 1,
            });
        let groups: Vec<FeatureGroup> = groups.collect();
        let found = predictor.importances(&data, &groups, 3, 1).expect("importances");
        let names: Vec<&str> = found.iter().map(|importance| importance.name.as_str()).collect();
        assert_eq!(names, ["step", "slope", "noise"], "{found:?}");
        assert!(found[0].mean > 0.2 && found[2].mean < 0.15, "{found:?}");
        assert_eq!(found, predictor.importances(&data, &groups, 3, 1).expect("the same"));
        let beyond = FeatureGroup {
            name: "x".into(),
            features: 2..4,
        };
        let error = predictor.importances(&data, &[beyond], 1, 0).expect_err("beyond");
        assert!(
            error.to_string().contains("expected features below 3, found 2..4"),
            "{error}"
        );
        // A larger second feature means a larger prediction.
        let dependence = predictor.partial_dependence(&data, 1, 5).expect("a dependence");
        assert_eq!(dependence.values.len(), 5);
        let last = task_output(classifies);
        let ends = [0, 4].map(|at| dependence.predictions[at][last]);
        assert!(ends[1] > ends[0] + 0.1, "{dependence:?}");
        assert!(predictor.partial_dependence(&data, 3, 5).is_err());
    }
}

/// Returns the index of the output that increases with the second feature.
fn task_output(classifies: bool) -> usize {
    usize::from(classifies)
}

#[test]
fn outputs_are_the_means_of_members() {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 1]);
    let config = TabMConfig::new(1, 2)
        .members(3)
        .hidden([])
        .dropout(0.0)
        .edges(vec![vec![0.0, 1.0, 3.0]]);
    let members = config.build(&mut g, "").forward(&mut g, x);
    let logits = TabM::mean_logits(&mut g, members);
    let values = TabM::mean_values(&mut g, members);
    g.set_outputs(vec![members, logits, values]);
    g.verify().expect("valid");
    // Three features: the number and two bins. Shares: -0.5 below the first bin, and 0.25 of the second one.
    let feeds = [
        ("x", vec![-0.5, 1.5]),
        ("scale", vec![1.0, 1.0, 1.0, 2.0, 0.0, 0.0, 0.0, 1.0, -1.0]),
        ("shift", vec![0.0; 9]),
        ("out.weight", [1.0, 0.0, 0.0, 1.0, 0.0, 1.0].repeat(3)),
        ("out.bias", vec![0.0, 0.0, 0.5, 0.0, 0.0, 0.0]),
    ];
    let feeds = feeds
        .into_iter()
        .map(|(name, values)| (name.to_owned(), values))
        .collect();
    let evaluation = evaluate(&g, &feeds).expect("computed");
    let found = [members, logits, values].map(|node| evaluation.get(node).expect("a value").data.clone());
    // Encoded rows: [-0.5, -0.5, 0] and [1.5, 1, 0.25].
    let expected = [[-0.5, -0.5, 1.5, 1.25], [-0.5, 0.0, 3.5, 0.0], [0.0, -0.5, 0.0, 0.75]].concat();
    let close = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6) && a.len() == b.len();
    assert!(close(&found[0], &expected), "{found:?}");
    let means: Vec<f64> = (0..4)
        .map(|at| (expected[at] + expected[at + 4] + expected[at + 8]) / 3.0)
        .collect();
    assert!(close(&found[2], &means), "{found:?}");
    let probability = |a: f64, b: f64| a.exp() / (a.exp() + b.exp());
    let first = (0..3)
        .map(|m| probability(expected[4 * m], expected[4 * m + 1]))
        .sum::<f64>()
        / 3.0;
    assert!((found[1][0] - first.ln()).abs() < 1e-6, "{found:?}");
}

#[test]
fn wrong_bins_are_refused() {
    for (edges, said) in [
        (vec![vec![0.0, 1.0]; 2], "expected 3 lists or none, found 2"),
        (vec![vec![1.0], vec![], vec![]], "at least two ascending finite numbers"),
        (
            vec![vec![1.0, 1.0], vec![], vec![]],
            "at least two ascending finite numbers",
        ),
        (
            vec![vec![0.0, f32::INFINITY], vec![], vec![]],
            "at least two ascending finite numbers",
        ),
        (
            vec![vec![f32::NAN, 0.0], vec![], vec![]],
            "at least two ascending finite numbers",
        ),
    ] {
        let architecture = Architecture::tabm(3, edges.clone(), true, 2);
        for result in [
            architecture.inference_graph(1),
            architecture.training_graph(1, Loss::Classes),
        ] {
            let Err(ModelError::Invalid { message, .. }) = result else {
                panic!("{edges:?} are accepted");
            };
            assert!(message.contains(said), "{message}");
        }
        let mut g = Graph::new();
        let x = g.input("x", &[1, 3]);
        let y = TabMConfig::new(3, 2).edges(edges).build(&mut g, "").forward(&mut g, x);
        g.set_outputs(vec![y]);
        let error = g.verify().expect_err("invalid");
        assert!(error.to_string().contains(said), "{error}");
    }
}
