//! A log of a run as an event file, which TensorBoard shows.
//!
//! The format is that of TensorFlow's summaries: records (length, checksum, message, checksum, as in
//! `tensorflow/core/lib/io/record_writer.h`) of protocol buffers (`tensorflow/core/util/event.proto` and
//! `tensorflow/core/framework/summary.proto`).

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use meganeura_core::error::TensorKind;
use meganeura_core::statistics::FiniteStatistics;
use prost::Message;

use super::observer::TEST;
use super::sink::ErrorKeepingWriter;
use super::{EpochReport, EvaluationInfo, Observer, RegressionMetrics, StatisticsInfo, StepInfo, TrainBegin};

/// An event file for TensorBoard: `tensorboard --logdir DIR` shows it during the run.
///
/// | Tag | Value | Time |
/// |---|---|---|
/// | `train/loss` | mean loss of the batch | after each step whose loss was read |
/// | `train/gradient_norm` | norm of all gradients, if it is limited | the same |
/// | `train/loss_scale`, `train/skipped_updates` | scale of gradients, updates skipped so far, in mixed precision | the same |
/// | `train/learning_rate` | learning rate of the step | the same |
/// | `train/examples_per_second` | examples per second since the epoch began | the same |
/// | `epoch/loss` | mean loss of all steps of an epoch | after each epoch |
/// | `parameter/NAME`, `gradient/NAME` | histograms of the finite elements | after steps whose statistics are requested |
/// | `not_finite/parameter`, `not_finite/gradient` | how many elements of all tensors are not finite | the same |
/// | `test/loss`, `test/accuracy` | quality on the test data, accuracy from 0 to 1 | after each evaluation |
/// | `test/rmse`, `test/mae`, `test/r2` | errors of regression, instead of the accuracy | the same |
/// | `validation/loss`, `validation/accuracy` and so on | the same on the validation data, if evaluations use these | the same |
///
/// The step of every value is the number of completed steps of the run. Values are f32, as the
/// format requires.
///
/// A run that resumes from a checkpoint marks its start: TensorBoard then drops later steps of the
/// interrupted run. A new run in the folder of another one drops all values of that run.
#[derive(Debug)]
pub struct EventLog<W: Write = BufWriter<File>> {
    sink: ErrorKeepingWriter<W>,
    /// Name of the examples that evaluations use, `test` or `validation`.
    on: &'static str,
}

impl EventLog {
    /// Creates a new event file in a folder, which is created if it does not exist. TensorBoard
    /// treats the files of a folder as one run, in the order of their names, which begin with the
    /// time.
    ///
    /// # Errors
    /// A folder or file that cannot be written; checked immediately.
    pub fn create_in(folder: impl AsRef<Path>) -> io::Result<Self> {
        let folder = folder.as_ref();
        fs::create_dir_all(folder)?;
        let (seconds, process) = (wall_time() as u64, std::process::id());
        // If the name is taken by another file of this second and process, another number is used.
        for number in 0.. {
            let name = format!("events.out.tfevents.{seconds:010}.meganeura.{process}.{number}");
            match File::create_new(folder.join(name)) {
                Ok(file) => return Ok(EventLog::new(BufWriter::new(file))),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

impl<W: Write> EventLog<W> {
    /// Creates a log on any writer; first writes the event with the version of the file.
    pub fn new(writer: W) -> Self {
        let mut log = EventLog {
            sink: ErrorKeepingWriter::new(writer),
            on: TEST,
        };
        // An error is kept for the next event.
        let _ = log.event(0, EventBody::FileVersion("brain.Event:2".into()));
        log
    }

    /// Flushes the events.
    ///
    /// # Errors
    /// The first error of the writer since the log was made.
    pub fn finish(self) -> io::Result<()> {
        self.sink.finish(W::flush)
    }

    fn scalars(&mut self, step: u64, values: &[(&str, f32)]) -> ControlFlow<()> {
        let value = values
            .iter()
            .map(|&(tag, value)| SummaryValue::scalar(tag, value))
            .collect();
        self.event(step, EventBody::Summary(Summary { value }))
    }

    fn event(&mut self, step: u64, what: EventBody) -> ControlFlow<()> {
        let event = Event {
            wall_time: wall_time(),
            step: i64::try_from(step).unwrap_or(i64::MAX),
            what: Some(what),
        };
        self.sink.write(|writer| {
            write_record(writer, &event.encode_to_vec())?;
            writer.flush()
        })
    }
}

impl<W: Write> Observer for EventLog<W> {
    fn on_train_begin(&mut self, run: &TrainBegin) -> ControlFlow<()> {
        self.on = run.evaluated();
        // Readers drop values of this step and later ones. The values of the checkpoint's step
        // stay.
        let first = match run.resumed_steps {
            0 => 0,
            steps => steps + 1,
        };
        let start = SessionLog {
            status: SessionStatus::Start.into(),
        };
        let flow = self.event(first, EventBody::Session(start));
        match run.resumed_steps {
            0 => self.scalars(0, &[("train/learning_rate", run.learning_rate)]),
            // It has a learning rate at this step.
            _ => flow,
        }
    }

    fn on_step(&mut self, step: &StepInfo) -> ControlFlow<()> {
        let Some(loss) = step.loss else {
            return ControlFlow::Continue(());
        };
        let mut values = vec![
            ("train/loss", loss),
            ("train/learning_rate", step.learning_rate),
            ("train/examples_per_second", step.examples_per_second as f32),
        ];
        values.extend(step.gradient_norm.map(|norm| ("train/gradient_norm", norm)));
        if let Some((scale, skipped)) = step.loss_scale {
            values.extend([("train/loss_scale", scale), ("train/skipped_updates", skipped as f32)]);
        }
        self.scalars(step.total_step, &values)
    }

    fn on_statistics(&mut self, info: &StatisticsInfo) -> ControlFlow<()> {
        let mut value = Vec::with_capacity(info.tensors.len() + 2);
        for kind in [TensorKind::Parameter, TensorKind::Gradient] {
            let own = || info.tensors.iter().filter(|t| t.kind == kind);
            let not_finite: usize = own().map(|t| t.statistics.not_finite()).sum();
            value.push(SummaryValue::scalar(&format!("not_finite/{kind}"), not_finite as f32));
            value.extend(own().filter_map(|t| {
                let histogram = Histogram::of(t.statistics.finite.as_ref()?);
                Some(SummaryValue::histogram(&format!("{kind}/{}", t.name), histogram))
            }));
        }
        self.event(info.total_step, EventBody::Summary(Summary { value }))
    }

    fn on_evaluation(&mut self, info: &EvaluationInfo) -> ControlFlow<()> {
        let evaluation = &info.evaluation;
        let values = match evaluation.regression {
            None => vec![("loss", evaluation.loss), ("accuracy", evaluation.accuracy())],
            Some(RegressionMetrics { rmse, mae, r2 }) => {
                vec![("loss", evaluation.loss), ("rmse", rmse), ("mae", mae), ("r2", r2)]
            }
        };
        let tags: Vec<String> = values.iter().map(|(what, _)| format!("{}/{what}", self.on)).collect();
        let values = tags
            .iter()
            .zip(&values)
            .map(|(tag, (_, value))| (tag.as_str(), *value as f32));
        self.scalars(info.total_step, &values.collect::<Vec<_>>())
    }

    fn on_epoch_end(&mut self, report: &EpochReport) -> ControlFlow<()> {
        self.scalars(report.total_steps, &[("epoch/loss", report.train_loss as f32)])
    }
}

/// Returns the seconds since 1970.
fn wall_time() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    // A clock before 1970 is wrong in any case.
    since.map_or(0.0, |d| d.as_secs_f64())
}

/// One entry of a file.
#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(oneof = "EventBody", tags = "3, 5, 7")]
    what: Option<EventBody>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum EventBody {
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
    #[prost(message, tag = "7")]
    Session(SessionLog),
}

/// The information about a process.
#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    #[prost(enumeration = "SessionStatus", tag = "1")]
    status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
enum SessionStatus {
    Unspecified = 0,
    Start = 1,
}

/// The values of one step.
#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<SummaryValue>,
}

#[derive(Clone, PartialEq, Message)]
struct SummaryValue {
    #[prost(string, tag = "1")]
    tag: String,
    // A member of a `oneof` in the original, so that a zero is written too.
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
    #[prost(message, optional, tag = "5")]
    histogram: Option<Histogram>,
}

impl SummaryValue {
    fn scalar(tag: &str, value: f32) -> Self {
        SummaryValue {
            tag: tag.to_owned(),
            simple_value: Some(value),
            histogram: None,
        }
    }

    fn histogram(tag: &str, histogram: Histogram) -> Self {
        SummaryValue {
            tag: tag.to_owned(),
            simple_value: None,
            histogram: Some(histogram),
        }
    }
}

/// A histogram: the number of elements between each limit and the previous one.
#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(double, tag = "1")]
    min: f64,
    #[prost(double, tag = "2")]
    max: f64,
    #[prost(double, tag = "3")]
    num: f64,
    #[prost(double, tag = "4")]
    sum: f64,
    #[prost(double, tag = "5")]
    sum_squares: f64,
    #[prost(double, repeated, tag = "6")]
    bucket_limit: Vec<f64>,
    #[prost(double, repeated, tag = "7")]
    bucket: Vec<f64>,
}

impl Histogram {
    fn of(finite: &FiniteStatistics) -> Self {
        let num = finite.count() as f64;
        let mean_square = finite.deviation * finite.deviation + finite.mean * finite.mean;
        Histogram {
            min: finite.min,
            max: finite.max,
            num,
            sum: finite.mean * num,
            sum_squares: mean_square * num,
            bucket_limit: (0..finite.histogram.len()).map(|bin| finite.right_edge(bin)).collect(),
            bucket: finite.histogram.iter().map(|&count| count as f64).collect(),
        }
    }
}

/// Writes a record: length, its checksum, the bytes, their checksum.
fn write_record(writer: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let length = (bytes.len() as u64).to_le_bytes();
    writer.write_all(&length)?;
    writer.write_all(&checksum(&length).to_le_bytes())?;
    writer.write_all(bytes)?;
    writer.write_all(&checksum(bytes).to_le_bytes())
}

/// Computes CRC-32C, masked because the checksum of data that contain checksums would be weak.
fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use meganeura_core::TensorStatistics;
    use meganeura_core::statistics::NamedStatistics;

    use super::*;
    use crate::trainer::Evaluation;

    /// Decodes the events of a file, after checking its checksums.
    fn decoded(mut file: &[u8]) -> Vec<Event> {
        let mut events = Vec::new();
        while !file.is_empty() {
            let (head, rest) = file.split_at(12);
            let (length, sum) = head.split_at(8);
            assert_eq!(sum, checksum(length).to_le_bytes());
            let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
            let (bytes, rest) = rest.split_at(length);
            let (sum, rest) = rest.split_at(4);
            assert_eq!(sum, checksum(bytes).to_le_bytes());
            events.push(Event::decode(bytes).unwrap());
            file = rest;
        }
        events
    }

    #[test]
    fn the_checksum_is_that_of_the_format() {
        // "123456789" is the check value of CRC-32C, 0xe3069283; masked by hand.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        let masked = 0xc78a_b0e5;
        assert_eq!(checksum(b"123456789"), masked);
    }

    #[test]
    fn values_come_back_as_they_were_written() {
        let mut file = Vec::new();
        let mut log = EventLog::new(&mut file);
        let step = StepInfo {
            epoch: 1,
            step: 3,
            steps: 10,
            total_step: 3,
            examples: 32,
            loss: Some(0.0),
            gradient_norm: Some(2.5),
            loss_scale: Some((1024.0, 3)),
            learning_rate: 0.125,
            seconds: 1.0,
            examples_per_second: 64.0,
        };
        assert!(log.on_step(&step).is_continue());
        // A step whose loss was not read writes no values.
        assert!(log.on_step(&StepInfo { loss: None, ..step }).is_continue());
        let evaluation = EvaluationInfo {
            epoch: 1,
            total_step: 10,
            evaluation: Evaluation {
                loss: 0.5,
                correct: 3,
                examples: 4,
                regression: None,
            },
            best: true,
            learning_rate: 0.125,
            seconds: 2.0,
            evaluation_seconds: 0.5,
        };
        assert!(log.on_evaluation(&evaluation).is_continue());
        let on_validation = TrainBegin {
            validation_examples: Some(4),
            ..begin(10)
        };
        assert!(log.on_train_begin(&on_validation).is_continue());
        let regression = Some(RegressionMetrics {
            rmse: 1.0,
            mae: 0.75,
            r2: -0.5,
        });
        let evaluation = EvaluationInfo {
            evaluation: Evaluation {
                regression,
                ..evaluation.evaluation
            },
            ..evaluation
        };
        assert!(log.on_evaluation(&evaluation).is_continue());
        log.finish().unwrap();
        let events = decoded(&file);
        assert_eq!(events[0].what, Some(EventBody::FileVersion("brain.Event:2".into())));
        let values = |event: &Event| match &event.what {
            Some(EventBody::Summary(s)) => s
                .value
                .iter()
                .map(|v| (v.tag.clone(), v.simple_value))
                .collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(events.len(), 5);
        assert_eq!((events[1].step, events[2].step), (3, 10));
        assert!(events[1].wall_time > 1.6e9);
        let expected = [
            ("train/loss", 0.0),
            ("train/learning_rate", 0.125),
            ("train/examples_per_second", 64.0),
            ("train/gradient_norm", 2.5),
            ("train/loss_scale", 1024.0),
            ("train/skipped_updates", 3.0),
        ];
        assert_eq!(values(&events[1]), expected.map(|(tag, v)| (tag.to_owned(), Some(v))));
        let expected = [("test/loss", 0.5), ("test/accuracy", 0.75)];
        assert_eq!(values(&events[2]), expected.map(|(tag, v)| (tag.to_owned(), Some(v))));
        let expected = [("loss", 0.5), ("rmse", 1.0), ("mae", 0.75), ("r2", -0.5)];
        assert_eq!(
            values(&events[4]),
            expected.map(|(tag, v)| (format!("validation/{tag}"), Some(v)))
        );
    }

    fn begin(resumed_steps: u64) -> TrainBegin {
        TrainBegin {
            epochs: 1,
            steps: 1,
            batch_size: 1,
            examples: 1,
            examples_per_epoch: 1,
            test_examples: None,
            validation_examples: None,
            learning_rate: 0.1,
            seed: 0,
            resumed_steps,
        }
    }

    #[test]
    fn statistics_are_histograms() {
        let named = |kind, name: &str, values: &[f32]| NamedStatistics {
            kind,
            name: name.into(),
            statistics: TensorStatistics::of(values),
        };
        let info = StatisticsInfo {
            epoch: 1,
            total_step: 7,
            tensors: vec![
                named(TensorKind::Parameter, "w", &[1.0, 2.0, 2.0, f32::NAN, 33.0]),
                named(TensorKind::Parameter, "b", &[f32::INFINITY, f32::NAN]),
                named(TensorKind::Gradient, "w", &[0.5; 3]),
            ],
        };
        let mut file = Vec::new();
        let mut log = EventLog::new(&mut file);
        assert!(log.on_statistics(&info).is_continue());
        log.finish().unwrap();
        let event = &decoded(&file)[1];
        let Some(EventBody::Summary(Summary { value })) = &event.what else {
            panic!("{event:?}")
        };
        let tags: Vec<&str> = value.iter().map(|v| v.tag.as_str()).collect();
        // Nothing of `b` is finite, so that it has no histogram.
        assert_eq!(
            tags,
            [
                "not_finite/parameter",
                "parameter/w",
                "not_finite/gradient",
                "gradient/w"
            ]
        );
        assert_eq!((event.step, value[0].simple_value), (7, Some(3.0)));
        let w = value[1].histogram.as_ref().unwrap();
        assert_eq!((w.min, w.max, w.num, w.sum), (1.0, 33.0, 4.0, 38.0));
        assert!((w.sum_squares - 1098.0).abs() < 1e-9, "{w:?}");
        assert_eq!((w.bucket_limit[0], w.bucket[0], w.bucket[1]), (2.0, 1.0, 2.0));
        assert_eq!((w.bucket_limit[31], w.bucket[31]), (33.0, 1.0));
        let gradient = value[3].histogram.as_ref().unwrap();
        assert_eq!(
            (&gradient.bucket_limit[..], &gradient.bucket[..]),
            (&[0.5][..], &[3.0][..])
        );
    }

    #[test]
    fn a_run_says_from_where_it_goes_on() {
        let start = Some(EventBody::Session(SessionLog { status: 1 }));
        // Dropped values begin after the checkpoint.
        for (resumed, step, events) in [(0, 0, 3), (14, 15, 2)] {
            let mut file = Vec::new();
            let mut log = EventLog::new(&mut file);
            assert!(log.on_train_begin(&begin(resumed)).is_continue());
            log.finish().unwrap();
            let found = decoded(&file);
            assert_eq!((found.len(), found[1].step, &found[1].what), (events, step, &start));
        }
        // In the file format: field 7, of two bytes, in which field 1 is 1.
        let event = Event {
            wall_time: 0.0,
            step: 15,
            what: start,
        };
        assert_eq!(event.encode_to_vec(), [0x10, 15, 0x3a, 2, 0x08, 1]);
    }

    #[test]
    fn files_of_one_second_do_not_meet() {
        let folder = tempfile::tempdir().unwrap();
        let logs = [(); 3].map(|()| EventLog::create_in(folder.path().join("a/b")).unwrap());
        logs.into_iter().for_each(|log| log.finish().unwrap());
        assert_eq!(fs::read_dir(folder.path().join("a/b")).unwrap().count(), 3);
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        EventLog::create_in(&file).unwrap_err();
    }

    #[test]
    fn a_full_disk_ends_the_run() {
        let mut room = [0u8; 60];
        let mut log = EventLog::new(&mut room[..]);
        let flows: Vec<_> = (0..3).map(|_| log.on_train_begin(&begin(0)).is_break()).collect();
        assert!(flows.contains(&true), "{flows:?}");
        assert_eq!(log.finish().unwrap_err().kind(), io::ErrorKind::WriteZero);
    }
}
