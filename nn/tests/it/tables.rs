//! Tests of training on a table, saving and loading: classification and regression.

use std::fmt::Write as _;
use std::path::Path;

use crate::common::config;
use meganeura_core::Graph;
use meganeura_nn::data::{
    Column, ColumnKind, Dataset, FeatureColumn, MissingCells, Parts, Remainder, SplitOptions, Standardiser,
    TableOptions, TableReadOptions, TrainingTable, read_table, read_table_parts,
};
use meganeura_nn::layers::Activation;
use meganeura_nn::model::{
    Architecture, Features, Loss, Model, ModelError, PredictionReport, PredictorOptions, Preprocessing, Task,
};
use meganeura_nn::models::{MlpConfig, classifier, regressor, soft_classifier};
use meganeura_nn::trainer::{
    Checkpoints, EarlyStopping, JsonLinesLog, Metric, OptimizerChoice, PartsReport, Schedule, SilentObserver,
    TrainConfig, TrainError, Trainer,
};

/// Returns houses whose price is `50 rooms + 100 (in the north) + 0.5 area`, with a column for their size.
fn houses(rows: usize) -> String {
    let mut text = "id,rooms,district,area,price,size\n".to_owned();
    for i in 0..rows {
        let (rooms, north, area) = (1 + i * 7 % 5, i * 3 % 2, 40 + i * 13 % 60);
        let price = 50 * rooms + 100 * north + area / 2;
        let district = ["south", "north"][north];
        let size = if area >= 70 { "large" } else { "small" };
        let area = if i == 5 { "?".to_owned() } else { area.to_string() };
        writeln!(text, "h{i},{rooms},{district},{area},{price}.5,{size}").expect("a string");
    }
    text
}

fn table(path: &Path, target: &str, ignore: &[&str]) -> TrainingTable {
    let options = TableOptions {
        target: Column::name(target),
        ignore: ignore.iter().map(|name| Column::name(*name)).collect(),
        missing: MissingCells::Mean,
        ..TableOptions::default()
    };
    read_table(path, &options).expect("a table")
}

fn predictor_options() -> PredictorOptions {
    PredictorOptions {
        device: Some("cpu".into()),
        batch: 16,
        ..PredictorOptions::default()
    }
}

/// Splits, scales, trains with early stopping on the validation part, and creates a model.
fn train(table: &TrainingTable, target: &str) -> (Model, Parts, PartsReport) {
    let raw = table
        .data
        .split_parts(SplitOptions {
            validation: 0.2,
            ..SplitOptions::default()
        })
        .expect("splits");
    let scale = table.schema.standardiser(&raw.train);
    let mut parts = raw.clone().standardised(&scale).expect("scales");
    let task = if table.data.is_regression() {
        let scale = Standardiser::fit_targets(&parts.train);
        parts = parts.standardised_targets(&scale).expect("scales");
        let targets = vec![target.to_owned()];
        Task::Regression { targets, scale }
    } else {
        let (target, classes) = (target.to_owned(), table.class_names.clone());
        Task::Classification { target, classes }
    };
    let architecture = Architecture::Mlp {
        features: vec![table.schema.width()],
        hidden: vec![32],
        activation: Activation::Tanh,
        dropout: 0.0,
        outputs: task.outputs(),
    };
    let config = TrainConfig {
        epochs: 60,
        batch_size: 16,
        learning_rate: 0.02,
        early_stopping: Some(EarlyStopping {
            patience: 20,
            ..EarlyStopping::default()
        }),
        ..config()
    };
    let graph = architecture
        .training_graph(config.batch_size, task.loss())
        .expect("valid");
    let mut trainer = Trainer::from_graph(&graph, config).expect("builds");
    let report = trainer.fit_parts(&parts, &mut SilentObserver).expect("trains");
    let preprocessing = Preprocessing::Table {
        schema: table.schema.clone(),
        scale: Some(scale),
    };
    let model = Model::from_trainer(&mut trainer, architecture, task, preprocessing).expect("fits");
    (model, raw, report)
}

#[test]
fn regression_from_a_table_and_back() {
    let home = tempfile::tempdir().expect("a folder");
    let csv = home.path().join("houses.csv");
    std::fs::write(&csv, houses(300)).expect("writes");
    let table = table(&csv, "price", &["id", "size"]);
    assert!(table.data.is_regression() && table.filled == 1);
    let (model, raw, report) = train(&table, "price");
    let test = report.test.expect("measured");
    let metrics = test.regression.expect("of regression");
    assert!(
        metrics.r2 > 0.98 && metrics.rmse < 15.0 && metrics.mae <= metrics.rmse,
        "{test}"
    );
    assert_eq!((test.accuracy(), test.class_accuracy(), test.examples), (0.0, None, 60));
    assert!(test.to_string().contains("RMSE"), "{test}");

    let folder = home.path().join("prices.model");
    model.save(&folder).expect("saves");
    let model = Model::load(&folder).expect("loads");
    let mut predictor = model.predictor(&predictor_options()).expect("builds");
    // The trainer measured the same, from raw data.
    let again = predictor
        .evaluate(raw.test.as_ref().expect("there"))
        .expect("evaluates");
    let PredictionReport::Regression { metrics: again, .. } = again else {
        panic!("regression");
    };
    assert!((again.rmse - metrics.rmse).abs() < 1e-3 && (again.r2 - metrics.r2).abs() < 1e-5);
    // Other order of the columns, no target, no identifier.
    let new = home.path().join("new.csv");
    std::fs::write(&new, "district,area,rooms\nnorth,60,3\nsouth,?,1\n").expect("writes");
    let rows = model.read_table(&new, TableReadOptions::default()).expect("reads");
    let predictions = predictor.predict(&Features::from(&rows)).expect("predicts");
    let prices: Vec<f64> = predictions.iter().map(|p| p.values()[0]).collect();
    assert!(
        (prices[0] - 280.0).abs() < 30.0 && (prices[1] - 85.0).abs() < 30.0,
        "{prices:?}"
    );
    // This model does not predict classes.
    let classes = Dataset::new("c", vec![0.0; 4], vec![4], vec![0], 2).expect("valid");
    assert!(matches!(predictor.evaluate(&classes), Err(ModelError::Features { .. })));
}

/// Returns the columns of a table without fill values.
fn without_fill(table: &TrainingTable) -> Vec<FeatureColumn> {
    let mut columns = table.schema.columns.clone();
    for column in &mut columns {
        match &mut column.kind {
            ColumnKind::Number { fill } => *fill = None,
            ColumnKind::Categorical { fill, .. } => *fill = None,
            _ => {}
        }
    }
    columns
}

#[test]
fn classification_from_a_table_and_back() {
    let home = tempfile::tempdir().expect("a folder");
    let csv = home.path().join("houses.csv");
    std::fs::write(&csv, houses(300)).expect("writes");
    let table = table(&csv, "size", &["id", "price"]);
    assert_eq!(table.class_names, ["large", "small"]);
    let (model, raw, report) = train(&table, "size");
    let test = report.test.expect("measured");
    assert!(test.accuracy() > 0.9, "{test}");
    assert!(report.training.evaluation.is_some_and(|e| e.examples == 60));
    model.save(home.path().join("sizes")).expect("saves");
    let model = Model::load(home.path().join("sizes")).expect("loads");
    let mut predictor = model.predictor(&predictor_options()).expect("builds");
    let report = predictor
        .evaluate(raw.test.as_ref().expect("there"))
        .expect("evaluates");
    let PredictionReport::Classification { loss, report } = &report else {
        panic!("classification");
    };
    assert_eq!((report.correct, report.examples), (test.correct, 60));
    assert!((loss - test.loss).abs() < 1e-5);
    assert!(report.to_string().contains("large"));
    // A file with targets is evaluated, too.
    let rows = model.read_table(&csv, TableReadOptions::default()).expect("reads");
    let data = rows.dataset(2).expect("valid").expect("it has targets");
    assert_eq!(data.labels(), table.data.labels());
    // The columns of only the training part.
    let options = TableOptions {
        target: Column::name("size"),
        ignore: vec![Column::name("id"), Column::name("price")],
        missing: MissingCells::Drop,
        ..TableOptions::default()
    };
    let parts = read_table_parts(&csv, &options, SplitOptions::default()).expect("reads");
    assert_eq!((parts.dropped, parts.unknown, parts.parts.train.len()), (1, 0, 239));
    assert_eq!(parts.schema.columns, without_fill(&table));
    // Errors of the file are reported as those of the table.
    std::fs::write(&csv, "district,area\nwest,60\n").expect("writes");
    let error = model
        .read_table(&csv, TableReadOptions::default())
        .expect_err("a column is missing");
    assert!(error.to_string().contains("missing: 'rooms'"), "{error}");
    let array = Preprocessing::Array { scale: None };
    let mut session = Trainer::from_graph(
        &linear(4, Loss::Classes),
        TrainConfig {
            batch_size: 4,
            ..config()
        },
    );
    let session = session.as_mut().expect("builds").session_mut();
    let task = model.task().clone();
    let plain = Model::from_session(
        session,
        Architecture::Mlp {
            features: vec![3],
            hidden: vec![],
            activation: Activation::Relu,
            dropout: 0.0,
            outputs: 2,
        },
        task,
        array,
    );
    assert!(
        plain
            .expect("fits")
            .read_table(&csv, TableReadOptions::default())
            .is_err()
    );
}

// ---- regression in the trainer ---------------------------------------------------------------------------

/// Builds a linear model from 3 features to 2 outputs.
fn linear(batch: usize, loss: Loss) -> Graph {
    let model = MlpConfig::new(3, 2).hidden([]).dropout(0.0);
    let build = |g: &mut Graph, x| model.build(g, "").forward(g, x);
    match loss {
        Loss::Regression => regressor(batch, &[3], build),
        Loss::SoftClasses => soft_classifier(batch, &[3], build),
        _ => classifier(batch, &[3], build),
    }
}

fn targets(n: usize) -> Dataset {
    let features: Vec<f32> = (0..3 * n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let rows = features.chunks_exact(3);
    let targets = rows
        .flat_map(|x| [1000.0 + 200.0 * x[0] - 100.0 * x[1], 0.01 * x[2]])
        .collect();
    Dataset::regression("linear", features, vec![3], targets, 2).expect("valid")
}

#[test]
fn a_linear_regression_is_found_and_reported_in_original_units() {
    let data = targets(203);
    let scale = Standardiser::fit_targets(&data);
    let scaled = data.clone().standardised_targets(&scale).expect("scales");
    let config = TrainConfig {
        epochs: 80,
        learning_rate: 0.05,
        optimizer: OptimizerChoice::Adam,
        remainder: Remainder::Wrap,
        prefetch: 2,
        ..config()
    };
    let mut trainer = Trainer::new(|batch| linear(batch, Loss::Regression), config).expect("builds");
    let mut log = JsonLinesLog::new(Vec::new());
    let report = trainer.fit(&scaled, Some(&scaled), &mut log).expect("trains");
    let evaluation = report.evaluation.expect("evaluated");
    let metrics = evaluation.regression.expect("regression");
    assert!(metrics.r2 > 0.9999 && evaluation.loss < 1e-4, "{evaluation}");
    assert_eq!(evaluation.examples, 203);
    // The weights in units of the standardised target.
    let weights = trainer.session_mut().read_parameter("fc1.weight");
    assert!((weights[0] * scale.std()[0] - 200.0).abs() < 2.0, "{weights:?}");
    // A part that is smaller than a batch, computed by hand.
    let few = scaled.subset(&[0, 1, 2]).expect("in range");
    let few = trainer.evaluate(&few).expect("evaluates");
    assert!(few.examples == 3 && few.regression.expect("regression").rmse < 5.0);
}

#[test]
fn a_regression_goes_on_from_a_checkpoint() {
    let home = tempfile::tempdir().expect("a folder");
    let data = targets(96);
    let config = |epochs, folder: Option<&str>| TrainConfig {
        epochs,
        schedule: Schedule::Constant,
        checkpoints: folder.map(|name| Checkpoints {
            folder: home.path().join(name),
            every: 2,
            resume: true,
            allow_changes: Vec::new(),
        }),
        ..config()
    };
    let run = |config, data: &Dataset| {
        let mut trainer = Trainer::new(|batch| linear(batch, Loss::Regression), config).expect("builds");
        let report = trainer.fit(data, Some(data), &mut SilentObserver)?;
        Ok::<_, TrainError>((trainer.session_mut().read_parameter("fc1.weight"), report.evaluation))
    };
    let whole = run(config(4, None), &data).expect("trains");
    run(config(2, Some("run")), &data).expect("trains");
    assert_eq!(run(config(4, Some("run")), &data).expect("goes on"), whole);
    // Other targets make it another run.
    let scaled = data
        .clone()
        .standardised_targets(&Standardiser::fit_targets(&data))
        .expect("scales");
    let error = run(config(5, Some("run")), &scaled)
        .expect_err("other targets")
        .to_string();
    assert!(error.contains("labels of the training data"), "{error}");
    // A new setting and a missing setting do, too.
    let soft = |label_smoothing| {
        let config = TrainConfig {
            label_smoothing,
            ..config(1, Some("soft"))
        };
        let data = Dataset::new("c", vec![0.0; 192], vec![3], vec![1; 64], 2).expect("valid");
        let mut trainer = Trainer::new(|batch| linear(batch, Loss::SoftClasses), config).expect("builds");
        trainer.fit(&data, None, &mut SilentObserver).map(|_| ())
    };
    soft(0.1).expect("trains");
    let error = soft(0.0).expect_err("no smoothing").to_string();
    assert!(error.contains("label smoothing was 0.1, and is not set"), "{error}");
    let error = soft(0.2).expect_err("more").to_string();
    assert!(error.contains("label smoothing was 0.1, and is 0.2"), "{error}");
}

#[test]
fn data_and_models_of_other_tasks_are_refused() {
    let data = targets(64);
    let classes = Dataset::new("c", vec![0.0; 192], vec![3], vec![0; 64], 2).expect("valid");
    let mut regression = Trainer::new(|batch| linear(batch, Loss::Regression), config()).expect("builds");
    let mut classification = Trainer::new(|batch| linear(batch, Loss::Classes), config()).expect("builds");
    let is_targets = |error: TrainError| assert!(matches!(error, TrainError::Targets { .. }), "{error}");
    is_targets(
        regression
            .fit(&classes, None, &mut SilentObserver)
            .expect_err("classes"),
    );
    is_targets(
        classification
            .fit(&data, None, &mut SilentObserver)
            .expect_err("targets"),
    );
    is_targets(regression.evaluate(&classes).expect_err("classes"));
    let one = Dataset::regression("one", vec![0.0; 192], vec![3], vec![0.0; 64], 1).expect("valid");
    is_targets(regression.fit(&one, None, &mut SilentObserver).expect_err("one output"));
    // Training and test data in different units.
    let scaled = data
        .clone()
        .standardised_targets(&Standardiser::fit_targets(&data))
        .expect("scales");
    is_targets(
        regression
            .fit(&scaled, Some(&data), &mut SilentObserver)
            .expect_err("units"),
    );
    let parts = Parts {
        train: scaled,
        validation: None,
        test: Some(data.clone()),
    };
    is_targets(regression.fit_parts(&parts, &mut SilentObserver).expect_err("units"));
    let by_accuracy = TrainConfig {
        early_stopping: Some(EarlyStopping {
            metric: Metric::Accuracy,
            ..EarlyStopping::default()
        }),
        ..config()
    };
    let mut trainer = Trainer::new(|batch| linear(batch, Loss::Regression), by_accuracy).expect("builds");
    let error = trainer
        .fit(&data, Some(&data), &mut SilentObserver)
        .expect_err("no accuracy");
    assert!(
        matches!(
            error,
            TrainError::Config {
                field: "early_stopping",
                ..
            }
        ),
        "{error}"
    );
}

// ---- class weights and label smoothing -------------------------------------------------------------------

/// Returns the gradient of the bias after one step without an update, and the loss.
fn bias_gradient(config: TrainConfig) -> (Vec<f32>, f64) {
    let data = Dataset::new("c", vec![0.0; 12], vec![3], vec![0, 0, 0, 1], 2).expect("valid");
    let config = TrainConfig {
        epochs: 1,
        batch_size: 4,
        learning_rate: 0.0,
        schedule: Schedule::Constant,
        optimizer: OptimizerChoice::Sgd,
        ..config
    };
    let mut trainer = Trainer::new(|batch| linear(batch, Loss::SoftClasses), config).expect("builds");
    let bias = [0.5, -0.25];
    trainer.session_mut().set_parameter("fc1.bias", &bias);
    let report = trainer.fit(&data, None, &mut SilentObserver).expect("trains");
    (trainer.session_mut().read_grad("fc1.bias"), report.epochs[0].train_loss)
}

#[test]
fn class_weights_and_smoothing_have_the_gradients_of_the_formula() {
    // All features are 0, so the logits are the bias.
    let logits = [0.5_f64, -0.25];
    let loss = |logits: [f64; 2], weights: [f64; 2], smoothing: f64| {
        let log_sum = (logits[0].exp() + logits[1].exp()).ln();
        let of = |label: usize| {
            let target = |class: usize| (1.0 - smoothing) * f64::from(u8::from(class == label)) + smoothing / 2.0;
            -weights[label] * (target(0) * (logits[0] - log_sum) + target(1) * (logits[1] - log_sum))
        };
        (3.0 * of(0) + of(1)) / 4.0
    };
    let weights = Dataset::new("c", vec![0.0; 4], vec![1], vec![0, 0, 0, 1], 2).expect("valid");
    let weights = weights.balanced_class_weights();
    assert!((weights[0] - 2.0 / 3.0).abs() < 1e-6 && weights[1] == 2.0);
    let balanced = [f64::from(weights[0]), 2.0];
    for (class_weights, w, smoothing) in [
        (None, [1.0; 2], 0.0),
        (None, [1.0; 2], 0.2),
        (Some(weights.clone()), balanced, 0.0),
        (Some(weights), balanced, 0.2),
    ] {
        let config = TrainConfig {
            class_weights,
            label_smoothing: smoothing as f32,
            ..config()
        };
        let (gradient, found) = bias_gradient(config);
        assert!((found - loss(logits, w, smoothing)).abs() < 1e-6);
        for i in 0..2 {
            let at = |step: f64| {
                let mut logits = logits;
                logits[i] += step;
                loss(logits, w, smoothing)
            };
            let expected = (at(1e-5) - at(-1e-5)) / 2e-5;
            assert!(
                (f64::from(gradient[i]) - expected).abs() < 1e-6,
                "{gradient:?} {expected}"
            );
        }
    }
}

#[test]
fn class_weights_need_a_model_that_takes_them() {
    let smoothed = TrainConfig {
        label_smoothing: 0.1,
        ..config()
    };
    for loss in [Loss::Classes, Loss::Regression] {
        let error = Trainer::new(|batch| linear(batch, loss), smoothed.clone()).expect_err("refused");
        assert!(error.to_string().contains("soft_classifier"), "{error}");
    }
    let three = TrainConfig {
        class_weights: Some(vec![1.0; 3]),
        ..config()
    };
    let error = Trainer::new(|batch| linear(batch, Loss::SoftClasses), three).expect_err("two classes");
    assert!(
        matches!(
            error,
            TrainError::Config {
                field: "class_weights",
                ..
            }
        ),
        "{error}"
    );
}
