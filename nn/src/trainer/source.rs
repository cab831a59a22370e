//! Sources of a run's batches: assembled between the steps, or ahead of them on a thread.

use std::io;
use std::mem;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};

use super::{TrainConfig, TrainError};
use crate::data::{Augmentation, Batches, DataError, Dataset, Remainder};

/// Memory of one batch.
#[derive(Debug, Default)]
pub(super) struct BatchBuffer {
    /// Features of the examples, `[batch, feature_shape...]`.
    pub(super) features: Vec<f32>,
    /// Class ids of the examples, `[batch]`.
    pub(super) labels: Vec<u32>,
    /// Targets of regression, `[batch, outputs]`.
    pub(super) targets: Vec<f32>,
    /// Number of leading rows that are trained on, and their weight in the mean over the batch.
    pub(super) weighted: usize,
    pub(super) weight: f32,
}

/// A builder of batches, for one epoch after the other.
#[derive(Debug)]
pub(super) struct Maker<'d> {
    data: &'d Dataset,
    batch_size: usize,
    seed: u64,
    shuffle: bool,
    remainder: Remainder,
    augmentation: Augmentation,
    /// Rows of each batch on this rank.
    part: Range<usize>,
    /// Number of the next epoch, over all runs of a trainer.
    epoch: u64,
    /// Number of batches of that epoch that were used before.
    skip: usize,
}

impl<'d> Maker<'d> {
    /// Checks that the data can be iterated and augmented with these settings. `skip` batches of
    /// the first epoch were used before.
    pub(super) fn new(data: &'d Dataset, config: &TrainConfig, epoch: u64, skip: usize) -> Result<Self, DataError> {
        config.augmentation.check(data.feature_shape())?;
        let maker = Maker {
            data,
            batch_size: config.batch_size,
            seed: config.seed,
            shuffle: config.shuffle,
            remainder: config.remainder,
            augmentation: config.augmentation.clone(),
            part: config.local_rows(),
            epoch,
            skip,
        };
        Ok(maker)
    }

    /// Returns the number of steps in an epoch.
    pub(super) fn steps(&self) -> Result<usize, DataError> {
        Ok(Batches::sequential(self.data, self.batch_size, self.remainder)?.len())
    }

    /// Returns the number of examples in an epoch; `Remainder::Wrap` counts the repeated ones.
    pub(super) fn examples(&self) -> Result<usize, DataError> {
        let all = self.steps()? * self.batch_size;
        Ok(match self.remainder {
            Remainder::Keep => all.min(self.data.len()),
            Remainder::Drop | Remainder::Wrap => all,
        })
    }

    /// Begins the next epoch.
    fn epoch(&mut self) -> Result<Epoch<'d>, DataError> {
        let number = self.epoch;
        self.epoch += 1;
        let batches = if self.shuffle {
            Batches::new(self.data, self.batch_size, self.seed, number, self.remainder)
        } else {
            Batches::sequential(self.data, self.batch_size, self.remainder)
        };
        let mut batches = batches?;
        batches.take_part(self.part.clone());
        batches.skip_batches(mem::take(&mut self.skip));
        Ok(Epoch { batches, number })
    }

    /// Fills the buffer with the epoch's next batch; returns false after the last one.
    fn fill(&self, epoch: &mut Epoch, buffer: &mut BatchBuffer) -> Result<bool, DataError> {
        let Epoch { batches, number } = epoch;
        batches.reserve(&mut buffer.features, &mut buffer.labels, &mut buffer.targets)?;
        let Some(fresh) = batches.next_into(&mut buffer.features, &mut buffer.labels) else {
            return Ok(false);
        };
        (buffer.weighted, buffer.weight) = match self.remainder {
            // The mean over all ranks divides by the batch size.
            Remainder::Keep => (fresh, self.batch_size as f32 / batches.fresh_rows().max(1) as f32),
            Remainder::Drop | Remainder::Wrap => (buffer.labels.len(), 1.0),
        };
        batches.targets_into(&mut buffer.targets);
        if !self.augmentation.is_empty() {
            let examples = buffer.features.chunks_exact_mut(self.data.feature_len());
            for (row, example) in batches.rows().zip(examples) {
                let shape = self.data.feature_shape();
                self.augmentation.apply(example, shape, self.seed, *number, row);
            }
        }
        Ok(true)
    }
}

/// An epoch in progress.
#[derive(Debug)]
struct Epoch<'d> {
    batches: Batches<'d>,
    number: u64,
}

/// A source of the batches of a run in order, the same ones in either form.
#[derive(Debug)]
pub(super) struct Source<'d>(SourceForm<'d>);

#[derive(Debug)]
enum SourceForm<'d> {
    /// Assembles each batch when it is requested.
    Direct { maker: Maker<'d>, epoch: Option<Epoch<'d>> },
    /// Takes batches from a thread, and returns buffers to it. Dropping the channels ends the
    /// thread.
    Thread {
        filled: Receiver<Result<BatchBuffer, DataError>>,
        empty: SyncSender<BatchBuffer>,
    },
}

impl<'d> Source<'d> {
    /// Creates a source without a thread.
    pub(super) fn direct(maker: Maker<'d>) -> Self {
        Source(SourceForm::Direct { maker, epoch: None })
    }

    /// Creates a source with a thread that assembles the batches of `epochs` epochs, at most
    /// `ahead` of them in advance.
    pub(super) fn thread<'scope>(
        scope: &'scope Scope<'scope, '_>,
        maker: Maker<'d>,
        epochs: usize,
        ahead: usize,
    ) -> io::Result<(Self, ScopedJoinHandle<'scope, ()>)>
    where
        'd: 'scope,
    {
        // In addition to the queued buffers, one is being filled, and the step reads another one.
        let buffers = ahead + 2;
        let (empty, to_fill) = sync_channel(buffers);
        let (full, filled) = sync_channel(ahead);
        for _ in 0..buffers - 1 {
            // The channel has enough capacity for all of them, and the receiver exists.
            let _ = empty.try_send(BatchBuffer::default());
        }
        let thread = Builder::new()
            .name("meganeura-batches".into())
            .spawn_scoped(scope, move || produce(maker, epochs, &to_fill, &full))?;
        Ok((Source(SourceForm::Thread { filled, empty }), thread))
    }

    /// Puts the next batch into the buffer, whose memory is reused. After the last batch of an epoch comes the
    /// first of the next one.
    pub(super) fn next(&mut self, buffer: &mut BatchBuffer) -> Result<(), TrainError> {
        match &mut self.0 {
            SourceForm::Direct { maker, epoch } => loop {
                let current = match epoch {
                    Some(current) => current,
                    None => epoch.insert(maker.epoch()?),
                };
                if maker.fill(current, buffer)? {
                    return Ok(());
                }
                *epoch = None;
            },
            SourceForm::Thread { filled, empty } => {
                let batch = filled.recv().map_err(|_| ended())??;
                let used = mem::replace(buffer, batch);
                // A thread that has finished needs no more buffers.
                let _ = empty.try_send(used);
                Ok(())
            }
        }
    }
}

/// Returns the error of a thread that panicked (joining it reports the panic), or from which more batches were
/// requested than planned.
fn ended() -> TrainError {
    TrainError::Prefetch(io::Error::other("the thread that assembles batches has ended"))
}

/// Runs the thread: ends after the last epoch, after an error, and when the receiver is dropped.
fn produce(
    mut maker: Maker,
    epochs: usize,
    empty: &Receiver<BatchBuffer>,
    filled: &SyncSender<Result<BatchBuffer, DataError>>,
) {
    for _ in 0..epochs {
        let mut epoch = match maker.epoch() {
            Ok(epoch) => epoch,
            Err(error) => {
                // If the send fails, the run has ended already.
                let _ = filled.send(Err(error));
                return;
            }
        };
        for _ in 0..epoch.batches.len() {
            let Ok(mut buffer) = empty.recv() else { return };
            let batch = match maker.fill(&mut epoch, &mut buffer) {
                Ok(true) => Ok(buffer),
                Ok(false) => return,
                Err(error) => Err(error),
            };
            let is_last = batch.is_err();
            if filled.send(batch).is_err() || is_last {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn data() -> Dataset {
        let features = (0..60).map(|i| i as f32).collect();
        Dataset::new("numbers", features, vec![1, 2, 3], (0..10).collect(), 10).expect("valid")
    }

    fn config(prefetch: usize) -> TrainConfig {
        TrainConfig {
            batch_size: 3,
            remainder: Remainder::Wrap,
            augmentation: Augmentation::new().shift(1).noise(0.1),
            prefetch,
            ..TrainConfig::default()
        }
    }

    /// Returns features and labels of all batches of three epochs.
    fn all(mut source: Source) -> Vec<(Vec<u32>, Vec<u32>)> {
        let mut buffer = BatchBuffer::default();
        let mut batches = Vec::new();
        for _ in 0..12 {
            source.next(&mut buffer).expect("a batch");
            let bits = buffer.features.iter().map(|f| f.to_bits()).collect();
            batches.push((bits, buffer.labels.clone()));
        }
        batches
    }

    #[test]
    fn a_thread_gives_the_same_batches() {
        let data = data();
        let maker = |prefetch| Maker::new(&data, &config(prefetch), 5, 0).expect("valid");
        let direct = all(Source::direct(maker(0)));
        for prefetch in [1, 2, 7, 100] {
            let threaded = thread::scope(|scope| {
                let (source, thread) = Source::thread(scope, maker(prefetch), 3, prefetch).expect("a thread");
                let batches = all(source);
                thread.join().expect("no panic");
                batches
            });
            assert_eq!(threaded, direct);
        }
        assert_ne!(direct[0], direct[4], "epochs differ");
    }

    #[test]
    fn skipped_batches_are_those_that_come_first() {
        let data = data();
        let direct = all(Source::direct(Maker::new(&data, &config(0), 5, 0).expect("valid")));
        for skip in [0, 1, 3, 4] {
            let maker = || Maker::new(&data, &config(1), 5, skip).expect("valid");
            let mut buffer = BatchBuffer::default();
            let mut first = |mut source: Source| {
                source.next(&mut buffer).expect("a batch");
                buffer.labels.clone()
            };
            let threaded = thread::scope(|scope| {
                let (source, _) = Source::thread(scope, maker(), 3, 1).expect("a thread");
                first(source)
            });
            assert_eq!(threaded, direct[skip].1, "{skip}");
            assert_eq!(first(Source::direct(maker())), direct[skip].1, "{skip}");
        }
    }

    #[test]
    fn buffers_are_reused() {
        let data = data();
        thread::scope(|scope| {
            let maker = Maker::new(&data, &config(1), 0, 0).expect("valid");
            let (mut source, _) = Source::thread(scope, maker, 5, 1).expect("a thread");
            let mut buffer = BatchBuffer::default();
            let mut seen = Vec::new();
            for _ in 0..20 {
                source.next(&mut buffer).expect("a batch");
                seen.push((buffer.features.as_ptr(), buffer.labels.as_ptr()));
            }
            seen.sort_unstable();
            seen.dedup();
            assert!(seen.len() <= 3, "{}", seen.len());
        });
    }

    #[test]
    fn threads_end_when_their_batches_are_not_wanted_or_used_up() {
        let data = data();
        for wanted in [0, 1, 4] {
            thread::scope(|scope| {
                let maker = Maker::new(&data, &config(2), 0, 0).expect("valid");
                let (mut source, _) = Source::thread(scope, maker, 1000, 2).expect("a thread");
                let mut buffer = BatchBuffer::default();
                for _ in 0..wanted {
                    source.next(&mut buffer).expect("a batch");
                }
            });
        }
        thread::scope(|scope| {
            let maker = Maker::new(&data, &config(2), 0, 0).expect("valid");
            let (mut source, _) = Source::thread(scope, maker, 0, 2).expect("a thread");
            let error = source.next(&mut BatchBuffer::default()).expect_err("no epochs");
            assert!(matches!(error, TrainError::Prefetch(_)), "{error}");
        });
    }

    #[test]
    fn errors_of_the_thread_arrive() {
        let data = data();
        let config = TrainConfig {
            batch_size: 11,
            ..config(2)
        };
        thread::scope(|scope| {
            let maker = Maker::new(&data, &config, 0, 0).expect("the size is not looked at");
            assert!(maker.steps().is_err());
            let (mut source, _) = Source::thread(scope, maker, 3, 2).expect("a thread");
            let error = source.next(&mut BatchBuffer::default()).expect_err("too large");
            assert!(
                matches!(error, TrainError::Data(DataError::BatchTooLarge { .. })),
                "{error}"
            );
        });
    }
}
