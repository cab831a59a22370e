//! Tests of runs that must not resume from a checkpoint: with other settings or data, or while another run uses it.

use meganeura::nn::trainer::Schedule;

use super::*;

#[test]
fn a_run_goes_on_with_its_own_settings_only() {
    let (folder, ..) = saved();
    let own = || config(Some(folder.path()));
    let changes: Vec<(TrainConfig, Dataset, &str)> = vec![
        (TrainConfig { seed: 12, ..own() }, data(60, 1), "seed was 11, and is 12"),
        (TrainConfig { batch_size: 5, ..own() }, data(60, 1), "batch size"),
        (
            TrainConfig {
                shuffle: false,
                ..own()
            },
            data(60, 1),
            "order of the examples",
        ),
        (
            TrainConfig {
                augmentation: Augmentation::new(),
                ..own()
            },
            data(60, 1),
            "augmentation",
        ),
        (
            TrainConfig {
                early_stopping: None,
                ..own()
            },
            data(60, 1),
            "early stopping was patience 50, at least 0 better by Loss",
        ),
        (
            TrainConfig {
                early_stopping: Some(EarlyStopping {
                    patience: 51,
                    ..EarlyStopping::default()
                }),
                ..own()
            },
            data(60, 1),
            "and is patience 51",
        ),
        (
            TrainConfig {
                evaluate_every_steps: 5,
                ..own()
            },
            data(60, 1),
            "evaluated every 1 epochs and 5 steps",
        ),
        (own(), data(66, 1), "training data was 60 examples"),
        (own(), data(60, 5), "labels of the training data"),
        (
            TrainConfig { accumulate: 1, ..own() },
            data(60, 1),
            "accumulation was 3, and is 1",
        ),
        (
            TrainConfig {
                optimizer: OptimizerChoice::Sgd,
                ..own()
            },
            data(60, 1),
            "optimizer was AdamW { weight_decay: 0.1 }, and is Sgd",
        ),
        (
            TrainConfig {
                learning_rate: 0.01,
                schedule: Schedule::Constant,
                ..own()
            },
            data(60, 1),
            "learning rate was 0.002, and is 0.01; schedule was Cosine { final_fraction: 0.0 }, and is Constant",
        ),
        (
            TrainConfig {
                warmup: "3".parse().expect("a number of steps"),
                ..own()
            },
            data(60, 1),
            "warm-up was",
        ),
        (
            TrainConfig { clip: None, ..own() },
            data(60, 1),
            "limit of the gradients was",
        ),
        (
            TrainConfig {
                groups: Vec::new(),
                ..own()
            },
            data(60, 1),
            "parameter groups was",
        ),
        (own(), shifted(), "features of the training data was"),
    ];
    for (config, train, why) in changes {
        let error = resume(config, &train).expect_err(why).to_string();
        assert!(error.contains(why), "{why}: {error}");
    }
    let mut wider = Trainer::new(
        |batch| {
            meganeura::nn::models::classifier(batch, &[3], |g, x| {
                meganeura::nn::models::MlpConfig::new(3, 3)
                    .hidden([7])
                    .build(g, "")
                    .forward(g, x)
            })
        },
        own(),
    )
    .expect("builds");
    let error = wider
        .fit(&data(60, 1), Some(&data(20, 2)), &mut Watch::default())
        .expect_err("another model");
    assert!(error.to_string().contains("belongs to another run"), "{error}");
    // Without `resume`, an existing run is not overwritten.
    let mut fresh = own();
    fresh.checkpoints.as_mut().expect("some").resume = false;
    let error = resume(fresh, &data(60, 1)).expect_err("it is taken").to_string();
    assert!(error.contains("contains the checkpoint of a run"), "{error}");
    // Changes must be allowed by name; other changes are still refused.
    let allowing = |names: &[&str]| {
        let mut config = TrainConfig {
            learning_rate: 0.01,
            ..own()
        };
        let list = names.iter().map(|&name| name.to_owned()).collect();
        config.checkpoints.as_mut().expect("some").allow_changes = list;
        config
    };
    let error = resume(allowing(&["schedule"]), &data(60, 1))
        .expect_err("not that one")
        .to_string();
    assert!(error.contains("`--allow-changes learning-rate`"), "{error}");
    let error = resume(allowing(&["rate"]), &data(60, 1))
        .expect_err("no setting")
        .to_string();
    assert!(
        error.contains("'rate' is not a setting") && error.contains("learning-rate, schedule"),
        "{error}"
    );
    resume(allowing(&["learning-rate"]), &data(60, 1)).expect("it was allowed");
}

#[test]
fn changes_that_no_checkpoint_can_follow_are_not_offered() {
    let (folder, ..) = saved();
    type Change = fn(&mut TrainConfig);
    let cases: [(&str, Change); 5] = [
        ("optimizer", |c| c.optimizer = OptimizerChoice::Sgd),
        ("limit of the gradients", |c| c.clip = None),
        ("accumulation", |c| c.accumulate = 1),
        ("parameter groups", |c| c.groups = Vec::new()),
        ("loss scale", |c| {
            c.precision = Some(Precision::Mixed);
            c.loss_scale = Some("1024".parse().expect("a scale"));
        }),
    ];
    for (setting, change) in cases {
        for allowed in [&[][..], &["precision", "loss-scale", "optimizer", "accumulation"]] {
            let mut config = config(Some(folder.path()));
            change(&mut config);
            let list = allowed.iter().map(|&name| name.to_owned()).collect();
            config.checkpoints.as_mut().expect("some").allow_changes = list;
            let error = resume(config, &data(60, 1)).expect_err(setting).to_string();
            assert!(
                error.contains(&format!("does not support another value of: {setting}")),
                "{error}"
            );
            assert!(!error.contains("--allow-changes"), "{error}");
        }
    }
    // Numeric settings of the same rules may change.
    let mut config = config(Some(folder.path()));
    config.optimizer = OptimizerChoice::AdamW { weight_decay: 0.2 };
    config.accumulate = 2;
    let list = ["optimizer", "accumulation"].map(str::to_owned);
    config.checkpoints.as_mut().expect("some").allow_changes = list.into();
    resume(config, &data(60, 1)).expect("it was allowed");
}

/// Returns the points with the same labels, at other positions.
fn shifted() -> Dataset {
    let data = data(60, 1);
    let features = data.features().iter().map(|f| f + 1.0).collect();
    Dataset::new("points", features, vec![3], data.labels().to_vec(), 3).expect("valid")
}

#[test]
fn two_runs_in_one_folder_are_refused_and_what_dead_ones_left_is_removed() {
    let (folder, manifest, tensors) = saved();
    let left = folder.path().join(".step-00000012-0badcafe.safetensors.partialAb12Cd");
    fs::write(&left, "half").expect("writes");
    fs::write(folder.path().join(".lock"), "of a run that was killed").expect("writes");
    let before = [&manifest, &tensors].map(|path| fs::read(path).expect("it is there"));
    /// Observer that tries to start another run in the same folder.
    struct SecondRun<'a> {
        folder: &'a Path,
        said: Vec<String>,
    }
    impl Observer for SecondRun<'_> {
        fn on_train_begin(&mut self, _: &TrainBegin) -> ControlFlow<()> {
            let error = resume(config(Some(self.folder)), &data(60, 1)).expect_err("it is in use");
            self.said.push(error.to_string());
            ControlFlow::Break(())
        }
    }
    let mut second = SecondRun {
        folder: folder.path(),
        said: Vec::new(),
    };
    let mut first = trainer(config(Some(folder.path())));
    let ended = first
        .fit(&data(60, 1), Some(&data(20, 2)), &mut second)
        .expect("the first goes on");
    assert!(ended.stopped);
    let own = format!("is in use by process {}", std::process::id());
    assert!(
        second.said.len() == 1 && second.said[0].contains(&own),
        "{:?}",
        second.said
    );
    assert_eq!(
        before,
        [&manifest, &tensors].map(|path| fs::read(path).expect("it is there"))
    );
    resume(config(Some(folder.path())), &data(60, 1)).expect("it was given up");
    assert_eq!(files(folder.path()).len(), 2, "{:?}", files(folder.path()));
}
