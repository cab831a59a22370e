//! Test of fine-tuning an ONNX model on several ranks.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use meganeura::distributed::{Communicator, ThreadGroup};
use meganeura::nn::data::{Dataset, digits_split};
use meganeura::nn::models::classifier;
use meganeura::nn::trainer::{Evaluation, Observer, StepInfo, TrainConfig, Trainer};
use meganeura::onnx::{Dims, ImportOptions, Model};

const STEPS: usize = 40;
/// Batch size, divisible by 1, 2 and 3 ranks.
const BATCH: usize = 12;

/// Observer that records the losses of the first steps.
#[derive(Default)]
struct Losses(Vec<f32>);

impl Observer for Losses {
    fn on_step(&mut self, step: &StepInfo) -> ControlFlow<()> {
        self.0.extend(step.loss);
        if self.0.len() < STEPS {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }
}

/// Trains the model of a file on digits, as `meganeura train digits --onnx` does. Returns the losses, the evaluation after them and
/// the parameters.
fn train(ranks: Option<Arc<dyn Communicator>>, zero1: bool) -> (Vec<f32>, Evaluation, Vec<Vec<f32>>) {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("formats/onnx/tests/data/convnet/model.onnx");
    let (train, test) = digits_split().expect("they ship");
    let head = |data: &Dataset, count: usize| data.subset(&(0..count).collect::<Vec<_>>()).expect("in range");
    let config = TrainConfig {
        epochs: 100,
        batch_size: BATCH,
        learning_rate: 0.05,
        loss_every: 1,
        device: Some("cpu".into()),
        distributed: ranks,
        zero1,
        ..TrainConfig::default()
    };
    let batch = config.local_batch_size();
    let options = ImportOptions {
        freeze: vec!["fc.bias".into()],
        ..ImportOptions::new(Dims::new().bind("batch", batch))
    };
    let import = Model::open(file).expect("a model").import(&options).expect("supported");
    let graph = classifier(batch, &[1, 8, 8], |g, x| {
        import.logits(g, x).expect("a classifier").node
    });
    let mut trainer = Trainer::from_graph(&graph, config).expect("builds");
    import.set_parameters(trainer.session_mut()).expect("they fit");
    let mut observer = Losses::default();
    let report = trainer.fit(&head(&train, 301), Some(&head(&test, 50)), &mut observer);
    let evaluation = report.expect("trains").evaluation.expect("evaluated");
    let names = import.parameters.iter().map(|parameter| &parameter.name);
    let session = trainer.session_mut();
    let parameters = names.filter_map(|name| session.try_read_parameter(name).ok());
    let parameters: Vec<_> = parameters.collect();
    assert!(parameters.len() >= 4, "{} parameters", parameters.len());
    (observer.0, evaluation, parameters)
}

#[test]
fn an_onnx_file_is_trained_the_same_on_any_number_of_ranks() {
    let (single, evaluation, _) = train(None, false);
    assert_eq!(single.len(), STEPS);
    let sum = |losses: &[f32]| losses.iter().sum::<f32>();
    assert!(sum(&single[30..]) < 0.8 * sum(&single[..10]), "{single:?}");
    let largest = single.iter().copied().fold(0.0, f32::max);
    for (size, zero1) in [(2, false), (3, false), (2, true), (3, true)] {
        let group = ThreadGroup::new(size, Duration::from_secs(120)).into_iter();
        let ranks: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = group
                .map(|rank| scope.spawn(move || train(Some(rank), zero1)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        for (rank, (losses, found, parameters)) in ranks.iter().enumerate() {
            let what = format!("rank {rank} of {size}, zero1 {zero1}");
            assert_eq!(losses.len(), STEPS, "{what}");
            for (found, wanted) in losses.iter().zip(&single) {
                let error = (found - wanted).abs() / largest;
                assert!(error <= 1e-5, "{what}: expected {single:?}, found {losses:?}");
            }
            assert_eq!(found.examples, evaluation.examples, "{what}");
            let error = (found.loss / evaluation.loss - 1.0).abs();
            assert!(error <= 1e-4, "{what}: expected {evaluation}, found {found}");
            assert!(found.correct.abs_diff(evaluation.correct) <= 1, "{what}: {found}");
            assert!(*parameters == ranks[0].2, "{what}: parameters differ");
        }
    }
}
