//! Mini-batches of a data set.

use std::iter::FusedIterator;
use std::ops::Range;

use super::{
    dataset::Dataset,
    error::DataError,
    prng::{EPOCH_DOMAIN, Shuffler},
};

/// The handling of the remaining examples if the batch size does not divide the number of examples.
/// Every batch has the full size in either case, so that a graph compiled for one batch size serves
/// the whole epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remainder {
    /// They are skipped in this epoch. Another epoch has another order, so it skips different ones.
    Drop,
    /// The last batch is filled with examples from the start of the epoch's order.
    Wrap,
    /// The last batch is filled in the same way, but only its remaining examples are trained on, as in PyTorch with
    /// `drop_last=False`. For that, the trainer gives the other rows the weight 0, so that loss and gradient are means
    /// over the remaining rows. The model needs weights of rows: [`crate::models::soft_classifier`] or
    /// [`crate::models::weighted_regressor`]. Batch norms normalize by all rows of the filled batch.
    Keep,
}

/// One mini-batch; see [`Batches`].
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Features of the examples, `[batch_size, feature_shape...]`, row-major.
    pub features: Vec<f32>,
    /// Class ids of the examples, `[batch_size]`.
    pub labels: Vec<u32>,
    /// Number of leading rows that are new in this epoch; see [`Batches::next_into`].
    pub fresh: usize,
}

/// The mini-batches of one epoch.
///
/// As an [`Iterator`] it allocates each [`Batch`]; in a training loop
/// [`next_into`](Self::next_into) refills the same two vectors.
#[derive(Clone, Debug)]
pub struct Batches<'a> {
    data: &'a Dataset,
    order: Vec<usize>,
    batch_size: usize,
    /// Range of the rows of each batch that are returned, as indices in the batch.
    part: Range<usize>,
    /// Number of batches in the epoch, and number of batches returned so far.
    total: usize,
    done: usize,
}

impl<'a> Batches<'a> {
    /// Creates the batches of epoch number `epoch`, in shuffled order.
    ///
    /// The order depends only on the number of examples, `seed` and `epoch`. [`Dataset::split_indices`] describes the
    /// algorithm; here, the initial state is `mix(mix(seed ^ 0x65706f6368) + epoch)`.
    ///
    /// # Errors
    ///
    /// [`DataError::ZeroBatch`], or [`DataError::BatchTooLarge`] when
    /// `batch_size` exceeds the number of examples.
    pub fn new(
        data: &'a Dataset,
        batch_size: usize,
        seed: u64,
        epoch: u64,
        remainder: Remainder,
    ) -> Result<Self, DataError> {
        let mut batches = Self::sequential(data, batch_size, remainder)?;
        Shuffler::derive(seed, EPOCH_DOMAIN, epoch).shuffle(&mut batches.order);
        Ok(batches)
    }

    /// Iterates over the batches in the data set's own order, for evaluation; use
    /// [`Remainder::Wrap`] and [`Batch::fresh`] to count each example once.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn sequential(data: &'a Dataset, batch_size: usize, remainder: Remainder) -> Result<Self, DataError> {
        let len = data.len();
        if batch_size == 0 {
            return Err(DataError::ZeroBatch {
                name: data.name().into(),
                len,
            });
        }
        if batch_size > len {
            let name = data.name().into();
            return Err(DataError::BatchTooLarge {
                name,
                batch: batch_size,
                len,
            });
        }
        let total = match remainder {
            Remainder::Drop => len / batch_size,
            Remainder::Wrap | Remainder::Keep => len.div_ceil(batch_size),
        };
        Ok(Self {
            data,
            order: (0..len).collect(),
            batch_size,
            part: 0..batch_size,
            total,
            done: 0,
        })
    }

    /// Returns the rows of the data set in the order of this epoch, `[len]`.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Returns the number of rows in every batch.
    pub fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// Restricts the following batches to these rows, as positions in the batch: the part of one
    /// rank of a distributed run. Positions outside of the batch are ignored.
    pub fn take_part(&mut self, part: Range<usize>) {
        let end = part.end.min(self.batch_size);
        self.part = part.start.min(end)..end;
    }

    /// Skips `count` batches, or all remaining ones.
    pub fn skip_batches(&mut self, count: usize) {
        self.done = self.done.saturating_add(count).min(self.total);
    }

    /// Writes the next batch into `features`, `[batch_size, feature_shape...]`
    /// row-major, and `labels`, `[batch_size]`.
    ///
    /// Former content is replaced; memory is allocated only when a vector is
    /// too small, so not again after the first call. Returns how many leading
    /// rows are new in this epoch: `batch_size`, or fewer in the last batch
    /// under [`Remainder::Wrap`], whose other rows are repeats that an
    /// evaluation should not count. After the last batch it returns `None`
    /// and leaves both vectors as they are.
    pub fn next_into(&mut self, features: &mut Vec<f32>, labels: &mut Vec<u32>) -> Option<usize> {
        if self.done == self.total {
            return None;
        }
        let start = self.done * self.batch_size;
        self.done += 1;

        features.clear();
        features.reserve(self.part.len() * self.data.feature_len());
        labels.clear();
        labels.reserve(self.part.len());
        for (values, label) in self.rows_from(start).filter_map(|row| self.data.example(row)) {
            features.extend_from_slice(values);
            labels.push(label);
        }
        let fresh = self.fresh_rows();
        Some(fresh.saturating_sub(self.part.start).min(self.part.len()))
    }

    /// Returns the number of rows of the last batch, over all ranks, that are new in this epoch; 0 before the first
    /// batch.
    pub(crate) fn fresh_rows(&self) -> usize {
        let last = self.done.checked_sub(1).map(|batch| batch * self.batch_size);
        last.map_or(0, |start| self.batch_size.min(self.order.len() - start))
    }

    /// Reserves memory for a batch, so that [`Batches::next_into`] allocates nothing.
    pub(crate) fn reserve(
        &self,
        features: &mut Vec<f32>,
        labels: &mut Vec<u32>,
        targets: &mut Vec<f32>,
    ) -> Result<(), DataError> {
        let (rows, columns) = (self.part.len(), self.data.feature_len());
        let outputs = if self.data.is_regression() {
            self.data.outputs()
        } else {
            0
        };
        features.clear();
        labels.clear();
        targets.clear();
        features
            .try_reserve(rows * columns)
            .and_then(|()| labels.try_reserve(rows))
            .and_then(|()| targets.try_reserve(rows * outputs))
            .map_err(|_| DataError::OutOfMemory {
                name: self.data.name().into(),
                rows,
                columns,
            })
    }

    /// Writes the targets of the last batch into `targets`, `[batch_size, outputs]`, for a data set of regression.
    /// Former content is replaced; it is empty before the first batch, and for classification.
    pub fn targets_into(&self, targets: &mut Vec<f32>) {
        targets.clear();
        if self.data.is_regression() {
            targets.reserve(self.part.len() * self.data.outputs());
            targets.extend(self.rows().filter_map(|row| self.data.target(row)).flatten());
        }
    }

    /// Returns the rows of the data set in the last batch, `[batch_size]`; none before the first
    /// batch.
    pub fn rows(&self) -> impl Iterator<Item = usize> + '_ {
        let last = self.done.checked_sub(1).map(|batch| batch * self.batch_size);
        last.into_iter().flat_map(|start| self.rows_from(start))
    }

    /// Returns the rows of the batch that starts at this position of the order. The last batch may
    /// continue at the start of the order.
    fn rows_from(&self, start: usize) -> impl Iterator<Item = usize> + '_ {
        let rows = self.order[start..].iter().chain(&self.order);
        rows.skip(self.part.start).take(self.part.len()).copied()
    }
}

impl Iterator for Batches<'_> {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        let (mut features, mut labels) = (Vec::new(), Vec::new());
        let fresh = self.next_into(&mut features, &mut labels)?;
        Some(Batch {
            features,
            labels,
            fresh,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.total - self.done;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Batches<'_> {}
impl FusedIterator for Batches<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates `n` examples whose two features and label all identify the row.
    fn rows(n: u32) -> Dataset {
        let features = (0..n).flat_map(|i| [i as f32, -(i as f32)]).collect();
        Dataset::new("rows", features, vec![2], (0..n).collect(), n as usize).unwrap()
    }

    #[test]
    fn drop_leaves_out_the_remainder() {
        let data = rows(10);
        let batches: Vec<Batch> = Batches::new(&data, 4, 1, 0, Remainder::Drop).unwrap().collect();
        assert_eq!(batches.len(), 2);
        let mut seen: Vec<u32> = batches.iter().flat_map(|b| b.labels.clone()).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 8, "no example twice");
        assert!(batches.iter().all(|b| b.fresh == 4));
    }

    #[test]
    fn wrap_fills_from_the_start_and_says_so() {
        let data = rows(10);
        let batches = Batches::new(&data, 4, 1, 0, Remainder::Wrap).unwrap();
        let order: Vec<u32> = batches.order().iter().map(|&i| i as u32).collect();
        let batches: Vec<Batch> = batches.collect();
        assert_eq!(batches.iter().map(|b| b.fresh).collect::<Vec<_>>(), [4, 4, 2]);
        assert_eq!(batches[2].labels, [order[8], order[9], order[0], order[1]]);
    }

    #[test]
    fn both_modes_agree_when_nothing_remains() {
        let data = rows(8);
        let collect = |mode| Batches::new(&data, 4, 1, 0, mode).unwrap().collect::<Vec<_>>();
        assert_eq!(collect(Remainder::Drop), collect(Remainder::Wrap));
    }

    #[test]
    fn parts_of_all_ranks_are_the_batch() {
        let data = rows(10);
        let whole: Vec<Batch> = Batches::new(&data, 4, 1, 3, Remainder::Wrap).unwrap().collect();
        let part = |range| {
            let mut batches = Batches::new(&data, 4, 1, 3, Remainder::Wrap).unwrap();
            batches.take_part(range);
            batches.collect::<Vec<_>>()
        };
        for ((whole, first), second) in whole.iter().zip(part(0..1)).zip(part(1..4)) {
            assert_eq!(whole.labels, [first.labels, second.labels].concat());
            assert_eq!(whole.features, [first.features, second.features].concat());
            assert_eq!(whole.fresh, first.fresh + second.fresh);
        }
    }

    #[test]
    fn features_follow_their_labels() {
        let data = rows(9);
        for batch in Batches::new(&data, 3, 5, 2, Remainder::Drop).unwrap() {
            for (pair, &label) in batch.features.chunks_exact(2).zip(&batch.labels) {
                assert_eq!(pair, [label as f32, -(label as f32)]);
            }
        }
    }

    #[test]
    fn next_into_reuses_memory_and_leaves_buffers_at_the_end() {
        let data = rows(12);
        let mut batches = Batches::new(&data, 4, 1, 0, Remainder::Drop).unwrap();
        let (mut features, mut labels) = (vec![9.0; 3], vec![7; 99]);
        assert_eq!(batches.next_into(&mut features, &mut labels), Some(4));
        assert_eq!((features.len(), labels.len()), (8, 4));
        let pointers = (features.as_ptr(), labels.as_ptr());
        assert_eq!(batches.len(), 2);
        while batches.next_into(&mut features, &mut labels).is_some() {
            assert_eq!((features.as_ptr(), labels.as_ptr()), pointers);
        }
        let before = (features.clone(), labels.clone());
        assert_eq!(batches.next_into(&mut features, &mut labels), None);
        assert_eq!((features, labels), before);
        assert_eq!(batches.len(), 0);
    }

    #[test]
    fn order_depends_on_seed_and_epoch_only() {
        let data = rows(50);
        let order = |batch, seed, epoch| {
            Batches::new(&data, batch, seed, epoch, Remainder::Drop)
                .unwrap()
                .order()
                .to_vec()
        };
        assert_eq!(order(5, 3, 4), order(7, 3, 4));
        assert_ne!(order(5, 3, 4), order(5, 3, 5));
        assert_ne!(order(5, 3, 4), order(5, 4, 4));
    }

    #[test]
    fn sequential_keeps_the_order() {
        let data = rows(5);
        let batches: Vec<Batch> = Batches::sequential(&data, 2, Remainder::Wrap).unwrap().collect();
        let labels: Vec<_> = batches.iter().map(|b| b.labels.clone()).collect();
        assert_eq!(labels, [[0, 1], [2, 3], [4, 0]]);
        assert_eq!(batches[2].fresh, 1);
    }

    #[test]
    fn rows_tell_where_a_batch_came_from() {
        let data = rows(7);
        let mut batches = Batches::new(&data, 3, 4, 1, Remainder::Wrap).unwrap();
        assert_eq!(batches.rows().count(), 0);
        let (mut features, mut labels) = (Vec::new(), Vec::new());
        while batches.next_into(&mut features, &mut labels).is_some() {
            assert!(batches.rows().eq(labels.iter().map(|&label| label as usize)));
        }
    }

    #[test]
    fn whole_set_and_single_examples_are_valid_batches() {
        let data = rows(5);
        assert_eq!(Batches::new(&data, 5, 0, 0, Remainder::Wrap).unwrap().count(), 1);
        assert_eq!(Batches::new(&data, 1, 0, 0, Remainder::Drop).unwrap().count(), 5);
    }

    #[test]
    fn impossible_sizes_are_refused_with_a_remedy() {
        let data = rows(5);
        let message = |size| {
            Batches::new(&data, size, 0, 0, Remainder::Wrap)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            message(6),
            "rows: a batch of 6 is larger than the data set of 5 examples; \
             use a batch size of at most 5"
        );
        assert_eq!(
            message(0),
            "rows: the batch size is 0; use a size from 1 to 5, the number of examples"
        );
    }

    /// The order equals the result of an independent implementation of the documented algorithm.
    #[test]
    fn order_of_seed_0_epoch_0_never_changes() {
        let data = rows(1437);
        let batches = Batches::new(&data, 32, 0, 0, Remainder::Drop).unwrap();
        assert_eq!(
            batches.order()[..10],
            [652, 814, 129, 1090, 863, 213, 1197, 798, 1146, 821]
        );
    }
}
