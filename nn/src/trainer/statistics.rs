//! A CSV table of tensor statistics of a run.

use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;

use meganeura_core::statistics::NamedStatistics;
use serde::Serialize;

use super::metrics::{append_table, write_rows};
use super::sink::ErrorKeepingWriter;
use super::{Observer, StatisticsInfo};

/// A table with a row for every parameter and every gradient, whenever the run reports their statistics
/// ([`TrainConfig::statistics_every`](super::TrainConfig::statistics_every)).
///
/// The columns are `epoch`, `step`, `kind`, `name`, `len`, `nan`, `positive_infinities`,
/// `negative_infinities`, `zeros`, `min`, `max`, `mean` and `deviation`. They are defined as in
/// [`TensorStatistics`](meganeura_core::TensorStatistics); the last four are empty if no element is
/// finite. Rows are flushed after each step that has some.
#[derive(Debug)]
pub struct StatisticsLog<W: Write = File>(ErrorKeepingWriter<csv::Writer<W>>);

/// The statistics of a tensor in tables and logs; the fields are the columns.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct StatisticsRow<'a> {
    epoch: usize,
    step: u64,
    kind: &'static str,
    name: &'a str,
    len: usize,
    nan: usize,
    positive_infinities: usize,
    negative_infinities: usize,
    zeros: usize,
    min: Option<f64>,
    max: Option<f64>,
    mean: Option<f64>,
    deviation: Option<f64>,
}

impl<'a> StatisticsRow<'a> {
    /// Returns a row for every tensor.
    pub(super) fn of(info: &'a StatisticsInfo) -> impl Iterator<Item = StatisticsRow<'a>> {
        info.tensors.iter().map(|tensor| {
            let NamedStatistics { kind, name, statistics } = tensor;
            let finite = statistics.finite.as_ref();
            StatisticsRow {
                epoch: info.epoch,
                step: info.total_step,
                kind: kind.name(),
                name,
                len: statistics.len,
                nan: statistics.nan,
                positive_infinities: statistics.positive_infinities,
                negative_infinities: statistics.negative_infinities,
                zeros: statistics.zeros,
                min: finite.map(|f| f.min),
                max: finite.map(|f| f.max),
                mean: finite.map(|f| f.mean),
                deviation: finite.map(|f| f.deviation),
            }
        })
    }
}

impl StatisticsLog {
    /// Creates the file, or empties it if there is one.
    ///
    /// # Errors
    /// A path that cannot be written; checked immediately.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(StatisticsLog::new(File::create(path)?))
    }

    /// Continues the file of a resumed run, or creates it.
    ///
    /// # Errors
    /// A path that cannot be written; checked immediately.
    pub fn append(path: impl AsRef<Path>) -> io::Result<Self> {
        append_table(path.as_ref()).map(|table| StatisticsLog(ErrorKeepingWriter::new(table)))
    }
}

impl<W: Write> StatisticsLog<W> {
    /// Creates a log on any writer; rows are buffered before they are passed on.
    pub fn new(writer: W) -> Self {
        StatisticsLog(ErrorKeepingWriter::new(csv::Writer::from_writer(writer)))
    }

    /// Flushes the rows.
    ///
    /// # Errors
    /// The first error of the writer since the log was made.
    pub fn finish(self) -> io::Result<()> {
        self.0.finish(csv::Writer::flush)
    }
}

impl<W: Write> Observer for StatisticsLog<W> {
    fn on_statistics(&mut self, info: &StatisticsInfo) -> ControlFlow<()> {
        self.0.write(|table| write_rows(table, StatisticsRow::of(info)))
    }
}

#[cfg(test)]
mod tests {
    use meganeura_core::TensorStatistics;
    use meganeura_core::error::TensorKind;

    use super::*;

    #[test]
    fn a_row_for_each_tensor() {
        let named = |kind, values: &[f32]| NamedStatistics {
            kind,
            name: "layer, first".into(),
            statistics: TensorStatistics::of(values),
        };
        let info = StatisticsInfo {
            epoch: 2,
            total_step: 30,
            tensors: vec![
                named(TensorKind::Parameter, &[1.0, 3.0, 0.0, 0.0]),
                named(TensorKind::Gradient, &[f32::NAN, f32::NEG_INFINITY]),
            ],
        };
        let mut file = Vec::new();
        let mut log = StatisticsLog::new(&mut file);
        assert!(log.on_statistics(&info).is_continue());
        log.finish().expect("writes");
        let expected = "epoch,step,kind,name,len,nan,positive_infinities,negative_infinities,zeros,min,max,mean,deviation\n\
            2,30,parameter,\"layer, first\",4,0,0,0,2,0.0,3.0,1.0,1.224744871391589\n\
            2,30,gradient,\"layer, first\",2,1,0,1,0,,,,\n";
        assert_eq!(String::from_utf8(file).expect("text"), expected);
    }
}
