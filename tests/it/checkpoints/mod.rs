//! Tests that an interrupted and resumed run gives the same result as an uninterrupted one.

mod refused;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::files;
use meganeura::nn::data::{Augmentation, Dataset};
use meganeura::nn::models::mlp_classifier;
use meganeura::nn::trainer::{Checkpoints, EarlyStopping, Observer, OptimizerChoice, StepInfo, TrainBegin, TrainError};
use meganeura::precision::Precision;
use meganeura::random::SplitMix64;
use meganeura::{Error, GradientClip, ParameterGroup, TrainConfig, Trainer};

/// Creates three classes of points around three centres.
fn data(examples: usize, seed: u64) -> Dataset {
    let mut rng = SplitMix64::new(seed);
    let labels: Vec<u32> = (0..examples).map(|_| rng.below(3) as u32).collect();
    let features = labels.iter().flat_map(|&l| [l as f32, (l as f32 - 1.0).abs(), 0.5]);
    let features: Vec<f32> = features.map(|f| f + 0.3 * rng.normal() as f32).collect();
    Dataset::new("points", features, vec![3], labels, 3).expect("valid")
}

/// Returns settings with 10 steps per epoch, and with every feature that has a state.
fn config(folder: Option<&Path>) -> TrainConfig {
    TrainConfig {
        epochs: 3,
        batch_size: 6,
        optimizer: OptimizerChoice::AdamW { weight_decay: 0.1 },
        clip: Some(GradientClip::Norm(0.5)),
        accumulate: 3,
        groups: vec![ParameterGroup::new(["*.bias"]).weight_decay(0.0)],
        seed: 11,
        device: Some("cpu".into()),
        evaluate_every_steps: 4,
        early_stopping: Some(EarlyStopping {
            patience: 50,
            ..EarlyStopping::default()
        }),
        loss_every: 1,
        augmentation: Augmentation::new().noise(0.05),
        prefetch: 2,
        checkpoints: folder.map(|folder| Checkpoints {
            folder: folder.to_owned(),
            every: 7,
            resume: true,
            allow_changes: Vec::new(),
        }),
        ..TrainConfig::default()
    }
}

fn trainer(config: TrainConfig) -> Trainer {
    Trainer::new(|batch| mlp_classifier(batch, 3, 3), config).expect("builds")
}

/// Observer that records losses, and ends the run after a step.
#[derive(Default)]
struct Watch {
    losses: Vec<(u64, u32)>,
    end_at: Option<u64>,
    resumed: u64,
}

impl Observer for Watch {
    fn on_train_begin(&mut self, begin: &TrainBegin) -> ControlFlow<()> {
        self.resumed = begin.resumed_steps;
        ControlFlow::Continue(())
    }
    fn on_step(&mut self, info: &StepInfo) -> ControlFlow<()> {
        self.losses
            .extend(info.loss.map(|loss| (info.total_step, loss.to_bits())));
        if self.end_at == Some(info.total_step) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// Returns the parameters and states, as bits.
fn weights(trainer: &mut Trainer) -> Vec<(String, Vec<u32>)> {
    let session = trainer.session_mut();
    let bits = |values: Vec<f32>| values.iter().map(|v| v.to_bits()).collect();
    let mut all = Vec::new();
    for view in session.plan().parameters() {
        all.push((view.name.clone(), bits(session.read_parameter(&view.name))));
    }
    for view in session.plan().states() {
        all.push((view.name.clone(), bits(session.read_state(&view.name))));
    }
    all
}

type Outcome = (Vec<(String, Vec<u32>)>, Vec<(u64, u32)>, Vec<String>);

/// Returns all results of a run except its times.
fn run(config: TrainConfig, end_at: Option<u64>) -> (Outcome, u64) {
    let (train, test) = (data(60, 1), data(20, 2));
    let mut trainer = trainer(config);
    let mut watch = Watch {
        end_at,
        ..Watch::default()
    };
    let report = trainer.fit(&train, Some(&test), &mut watch).expect("trains");
    let mut words: Vec<String> = report
        .epochs
        .iter()
        .map(|e| {
            format!(
                "{} {} {:?} {:?}",
                e.epoch,
                e.train_loss.to_bits(),
                e.evaluation,
                e.learning_rate
            )
        })
        .collect();
    words.push(format!(
        "{:?} {:?} {} {}",
        report.evaluation, report.best, report.total_steps, report.early_stopped
    ));
    ((weights(&mut trainer), watch.losses, words), watch.resumed)
}

fn assert_same(found: &[(String, Vec<u32>)], expected: &[(String, Vec<u32>)], what: &str) {
    let other = found.iter().zip(expected).filter(|(a, b)| a != b);
    let names: Vec<&str> = other.map(|((name, _), _)| name.as_str()).collect();
    assert!(names.is_empty() && found.len() == expected.len(), "{what}: {names:?}");
}

#[test]
fn an_ended_run_goes_on_as_if_it_had_not_been() {
    let (whole, _) = run(config(None), None);
    assert_eq!(whole.1.len(), 30);
    // Ends within an accumulation, at the end of an epoch with and without a checkpoint there, twice, and after the
    // end.
    for ends in [&[9][..], &[14], &[20], &[21], &[2, 16, 29], &[30], &[100]] {
        let folder = tempfile::tempdir().expect("a folder");
        let checkpoints = || {
            let mut config = config(Some(folder.path()));
            // The thread that assembles the batches makes no difference.
            config.prefetch = ends.len() % 2;
            config
        };
        for &end in ends {
            run(checkpoints(), Some(end));
        }
        let (resumed, steps) = run(checkpoints(), None);
        let last = *ends.last().expect("one");
        assert_eq!(steps, last.min(30), "{ends:?}");
        assert_same(&resumed.0, &whole.0, &format!("{ends:?}"));
        assert_eq!(resumed.1, whole.1[steps as usize..], "{ends:?}");
        assert_eq!(resumed.2, whole.2, "{ends:?}");
        let names = files(folder.path());
        assert!(names.len() == 2 && names[0] == "checkpoint.json", "{names:?}");
    }
}

/// Returns settings of early stopping for which no evaluation improves on the first one enough.
fn impatient(folder: Option<&Path>, patience: usize) -> TrainConfig {
    TrainConfig {
        early_stopping: Some(EarlyStopping {
            patience,
            min_delta: 100.0,
            ..EarlyStopping::default()
        }),
        ..config(folder)
    }
}

#[test]
fn a_resumed_run_stops_early_where_the_whole_one_does() {
    // Evaluations come after steps 4, 8, 10 (the end of an epoch), 12, 16, ...
    for (patience, stop) in [(1, 8), (2, 10), (3, 12)] {
        let (whole, _) = run(impatient(None, patience), None);
        assert_eq!(whole.1.len(), stop, "patience {patience}");
        // At the best evaluation, between it and the end, at the end, and after it.
        for end in [4, 7, 8, 9, 10, 12] {
            let folder = tempfile::tempdir().expect("a folder");
            run(impatient(Some(folder.path()), patience), Some(end));
            let (resumed, steps) = run(impatient(Some(folder.path()), patience), None);
            let what = format!("patience {patience}, ended at {end}");
            assert_eq!(steps, end.min(stop as u64), "{what}");
            assert_same(&resumed.0, &whole.0, &what);
            assert_eq!(resumed.1, whole.1[steps as usize..], "{what}");
            assert_eq!(resumed.2, whole.2, "{what}");
        }
    }
}

/// A resumed run in mixed precision continues with the loss scale of the checkpoint, and its counters. (The scale grows
/// every second update.)
#[test]
fn a_run_in_mixed_precision_goes_on_with_its_scale() {
    let mixed = |folder: Option<&Path>, scale: &str| TrainConfig {
        precision: Some(Precision::Mixed),
        loss_scale: Some(scale.parse().expect("a scale")),
        ..config(folder)
    };
    let (whole, _) = run(mixed(None, "dynamic:1024:2"), None);
    let scale = whole
        .0
        .iter()
        .find(|(name, _)| name == "loss_scale.scale")
        .expect("a scale");
    assert_eq!(f32::from_bits(scale.1[0]), 32_768.0, "after ten updates");
    let folder = tempfile::tempdir().expect("a folder");
    run(mixed(Some(folder.path()), "dynamic:1024:2"), Some(14));
    for other in [config(Some(folder.path())), mixed(Some(folder.path()), "1024")] {
        let error = resume(other, &data(60, 1)).expect_err("another precision or scale");
        assert!(
            error.to_string().contains("was mixed") || error.to_string().contains("loss scale was"),
            "{error}"
        );
    }
    let (resumed, steps) = run(mixed(Some(folder.path()), "dynamic:1024:2"), None);
    assert_eq!(steps, 14);
    assert_same(&resumed.0, &whole.0, "mixed");
    assert_eq!((&resumed.1[..], resumed.2), (&whole.1[14..], whole.2));
}

/// Returns a folder with a checkpoint after step 14, and its two files.
fn saved() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    run(config(Some(folder.path())), Some(14));
    let names = files(folder.path());
    let paths = [0, 1].map(|i| folder.path().join(&names[i]));
    let [manifest, tensors] = paths;
    (folder, manifest, tensors)
}

/// Tries to resume a run from its folder. A refusal must leave the trainer unchanged.
fn resume(config: TrainConfig, train: &Dataset) -> Result<(), TrainError> {
    let mut trainer = trainer(config);
    let before = weights(&mut trainer);
    let progress = trainer.session().progress();
    let result = trainer.fit(
        train,
        Some(&data(20, 2)),
        &mut Watch {
            end_at: Some(16),
            ..Watch::default()
        },
    );
    if result.is_err() {
        assert!(
            weights(&mut trainer) == before,
            "a refused checkpoint changed something"
        );
        assert_eq!(trainer.session().progress(), progress);
    }
    result.map(drop)
}

#[test]
fn damaged_checkpoints_change_nothing() {
    let (folder, manifest, tensors) = saved();
    let good = [fs::read(&manifest).expect("there"), fs::read(&tensors).expect("there")];
    let train = data(60, 1);
    let mut rng = SplitMix64::new(3);
    for round in 0..60 {
        let which = round % 2;
        let mut bytes = good[which].clone();
        let at = rng.below(bytes.len());
        match rng.below(4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, b'7'),
            _ => bytes[at] ^= 1 << rng.below(8),
        }
        let path = [&manifest, &tensors][which];
        fs::write(path, &bytes).expect("writes");
        // Whitespace in the manifest is no reason to refuse it.
        if let Err(error) = resume(config(Some(folder.path())), &train) {
            let text = error.to_string();
            assert!(text.contains("help: "), "{text}");
        } else {
            assert_eq!(which, 0, "round {round}");
        }
        for entry in files(folder.path()) {
            fs::remove_file(folder.path().join(entry)).expect("there");
        }
        fs::write(&manifest, &good[0]).expect("writes");
        fs::write(&tensors, &good[1]).expect("writes");
    }
    fs::remove_file(&tensors).expect("there");
    let error = resume(config(Some(folder.path())), &train)
        .expect_err("gone")
        .to_string();
    assert!(
        error.contains("could not be read") && error.contains("nothing was changed"),
        "{error}"
    );
}

/// Writes the tensors with a valid manifest.
fn sign(manifest: &Path, tensors: &Path, bytes: &[u8]) {
    fs::write(tensors, bytes).expect("writes");
    let text = serde_json::json!({
        "format": 1,
        "file": tensors.file_name().expect("a name").to_string_lossy(),
        "bytes": bytes.len(),
        "sha256": meganeura::files::sha256([bytes]),
    });
    fs::write(manifest, text.to_string()).expect("writes");
}

#[test]
fn forged_checkpoints_are_refused_or_harmless() {
    let (folder, manifest, tensors) = saved();
    let good = fs::read(&tensors).expect("there");
    let header = 8 + u64::from_le_bytes(good[..8].try_into().expect("eight bytes")) as usize;
    let mut rng = SplitMix64::new(8);
    let train = data(60, 1);
    let (mut refused, mut taken) = (0, 0);
    for _ in 0..120 {
        let mut bytes = good.clone();
        let at = rng.below(header);
        match rng.below(4) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => drop(bytes.drain(at..at + 1)),
            _ => {
                let digit = bytes[at..header].iter().position(u8::is_ascii_digit);
                bytes[at + digit.unwrap_or(0)] = b'0' + rng.below(10) as u8;
            }
        }
        sign(&manifest, &tensors, &bytes);
        match resume(config(Some(folder.path())), &train) {
            Ok(()) => taken += 1,
            Err(_) => refused += 1,
        }
        for entry in files(folder.path()) {
            fs::remove_file(folder.path().join(entry)).expect("there");
        }
    }
    assert!(refused > 10 && taken > 0, "{refused} {taken}");
    // A file of another folder, a manifest of another version, and a file that is not a manifest.
    sign(&manifest, &tensors, &good);
    let text = fs::read_to_string(&manifest).expect("there");
    for (change, why) in [
        (text.replace("\"step-", "\"../step-"), "another folder"),
        (text.replace("\"format\":1", "\"format\":9"), "has format 9"),
        ("x".repeat(100_000), "at most 65536"),
    ] {
        fs::write(&manifest, change).expect("writes");
        let error = resume(config(Some(folder.path())), &train).expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn folders_that_cannot_be_written_are_errors_before_the_first_step() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "notes").expect("writes");
    let mut watch = Watch::default();
    let mut trainer = trainer(config(Some(&file.join("run"))));
    let error = trainer
        .fit(&data(60, 1), Some(&data(20, 2)), &mut watch)
        .expect_err("no folder");
    assert!(matches!(error, TrainError::Core(Error::File { .. })), "{error}");
    assert!(error.to_string().contains("could not be created"), "{error}");
    assert!(watch.losses.is_empty());
    let never = Checkpoints {
        folder: folder.path().to_owned(),
        every: 0,
        resume: false,
        allow_changes: Vec::new(),
    };
    let config = TrainConfig {
        checkpoints: Some(never),
        ..config(None)
    };
    assert!(Trainer::new(|batch| mlp_classifier(batch, 3, 3), config).is_err());
}

/// Environment variable that makes the test below run as the child process that is killed.
const CHILD: &str = "MEGANEURA_TEST_CHECKPOINTS";

/// Returns settings of a run that saves after every step.
fn hurried(folder: &Path) -> TrainConfig {
    let mut config = config(Some(folder));
    config.checkpoints.as_mut().expect("some").every = 1;
    config
}

#[test]
fn a_killed_run_goes_on_as_if_it_had_not_been() {
    if let Some(folder) = std::env::var_os(CHILD) {
        run(hurried(Path::new(&folder)), None);
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let manifest = folder.path().join("checkpoint.json");
    let mut rng = SplitMix64::new(6);
    let mut kills = 0;
    loop {
        let before = fs::read(&manifest).ok();
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "checkpoints::a_killed_run_goes_on_as_if_it_had_not_been"])
            .env(CHILD, folder.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("starts");
        // Waits a while after it has begun to save, to interrupt it anywhere in this work.
        while fs::read(&manifest).ok() == before && child.try_wait().expect("a child").is_none() {
            std::hint::spin_loop();
        }
        for _ in 0..rng.below(2_000_000) {
            std::hint::spin_loop();
        }
        // An error means that it has ended.
        let _ = child.kill();
        if child.wait().expect("a child").success() {
            break;
        }
        kills += 1;
        assert!(kills < 100, "no progress");
    }
    assert!(kills > 0, "it was never killed");
    let (resumed, steps) = run(hurried(folder.path()), None);
    let (whole, _) = run(config(None), None);
    assert_eq!(steps, 30);
    assert_same(&resumed.0, &whole.0, &format!("{kills} kills"));
    assert_eq!(resumed.2, whole.2);
    assert_eq!(files(folder.path()).len(), 2, "{:?}", files(folder.path()));
}
