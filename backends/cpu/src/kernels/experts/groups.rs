//! Sorting of rows by their experts.

use std::ops::Range;

use crate::kernel::{Kernel, RunCx, Task};
use crate::memory::{View, aligned};

/// Maximum number of rows of a segment. A matmul with at most this number of rows has one phase, in which tasks share
/// no scratch.
pub(super) const SEGMENT_ROWS: usize = 128;

/// Consecutive rows of one expert, counted in the order of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) expert: usize,
    pub(super) start: usize,
    pub(super) len: usize,
}

impl Segment {
    pub(super) fn rows(self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// The rows of a call, sorted by expert. The first phase sorts the rows, and writes to shared scratch: the first row
/// of each expert, the order of rows, and the [`Segment`]s. Rows without an expert come last.
#[derive(Clone, Copy)]
pub(super) struct Groups {
    indices: View<u32>,
    experts: usize,
}

impl Groups {
    pub(super) fn new(indices: View<u32>, experts: usize) -> Self {
        Groups { indices, experts }
    }

    pub(super) fn rows(&self) -> usize {
        self.indices.len()
    }

    pub(super) fn experts(&self) -> usize {
        self.experts
    }

    /// Returns the maximum number of segments.
    pub(super) fn most_segments(&self) -> usize {
        self.rows().min(self.experts) + self.rows() / SEGMENT_ROWS
    }

    /// Returns the offsets of the sections of shared scratch: first rows of the experts, order of rows, and the number
    /// of segments followed by the segments.
    fn parts(&self) -> [usize; 3] {
        let rows = aligned(self.experts + 2);
        [0, rows, rows + aligned(self.rows())]
    }

    /// Returns the number of `f32`s of the shared scratch.
    pub(super) fn shared_len(&self) -> usize {
        self.parts()[2] + aligned(1 + 3 * self.most_segments())
    }

    /// Creates the first phase. Its only task is a counting sort, which keeps the order of the rows of one expert.
    pub(super) fn phase(self, dispatch: usize) -> Box<dyn Kernel> {
        let experts = self.experts;
        Box::new(Task {
            tasks: 1,
            nanos: (2 * self.rows() + experts) as u64,
            body: move |_: usize, cx: &RunCx| {
                let [starts, order, segments] = self.parts();
                // SAFETY: the scratch has these parts, and no other task runs. This dispatch does not write indices.
                let (ids, starts, order, segments) = unsafe {
                    (
                        self.indices.all(),
                        words_mut(cx.shared, starts, experts + 2),
                        words_mut(cx.shared, order, self.rows()),
                        words_mut(cx.shared, segments, 1 + 3 * self.most_segments()),
                    )
                };
                let of = |id: u32| (id as usize).min(experts);
                // Rows are counted at the index after their expert. After the summation, each entry is the end of its
                // expert's rows. Writing the order backwards decrements it to their start.
                starts.fill(0);
                for &id in ids {
                    if id as usize >= experts {
                        cx.index_out_of_range(dispatch, id, experts);
                    }
                    starts[of(id) + 1] += 1;
                }
                let mut end = 0;
                for start in starts.iter_mut() {
                    end += *start;
                    *start = end;
                }
                for (row, &id) in ids.iter().enumerate().rev() {
                    let place = &mut starts[of(id) + 1];
                    *place -= 1;
                    order[*place as usize] = row as u32;
                }
                // Entry `i + 1` is now the start of expert `i`.
                starts.copy_within(1.., 0);
                starts[experts + 1] = ids.len() as u32;
                let (count, segments) = segments.split_at_mut(1);
                let mut places = segments.as_chunks_mut::<3>().0.iter_mut();
                count[0] = 0;
                for expert in 0..experts {
                    let rows = starts[expert] as usize..starts[expert + 1] as usize;
                    for start in rows.clone().step_by(SEGMENT_ROWS) {
                        let len = SEGMENT_ROWS.min(rows.end - start);
                        if let Some(place) = places.next() {
                            *place = [expert as u32, start as u32, len as u32];
                            count[0] += 1;
                        }
                    }
                }
            },
        })
    }

    /// Returns the segment with index `number`, if it exists.
    ///
    /// # Safety
    /// The first phase must have written the scratch and must have ended.
    pub(super) unsafe fn segment(&self, shared: *mut f32, number: usize) -> Option<Segment> {
        // SAFETY: passed on to the caller.
        let segments = unsafe { words(shared, self.parts()[2], 1 + 3 * self.most_segments()) };
        let place = segments.get(1 + 3 * number..4 + 3 * number)?;
        (number < segments[0] as usize).then(|| Segment {
            expert: place[0] as usize,
            start: place[1] as usize,
            len: place[2] as usize,
        })
    }

    /// Returns the range of an expert's rows in the order of experts. The index after the last expert selects the
    /// rows without an expert.
    ///
    /// # Safety
    /// As [`Groups::segment`].
    pub(super) unsafe fn of_expert(&self, shared: *mut f32, expert: usize) -> Range<usize> {
        // SAFETY: passed on to the caller.
        let starts = unsafe { words(shared, self.parts()[0], self.experts + 2) };
        starts[expert] as usize..starts[expert + 1] as usize
    }

    /// Returns the row numbers in a range of the order of experts.
    ///
    /// # Safety
    /// As [`Groups::segment`]; no code may write the scratch during the borrow.
    pub(super) unsafe fn order<'a>(&self, shared: *mut f32, places: Range<usize>) -> &'a [u32] {
        // SAFETY: passed on to the caller.
        let order = unsafe { words(shared, self.parts()[1], self.rows()) };
        &order[places]
    }
}

/// Returns a range of the shared scratch as words, for reading.
///
/// # Safety
/// The scratch must have `len` words from `start` on, which no code writes during the borrow.
unsafe fn words<'a>(shared: *mut f32, start: usize, len: usize) -> &'a [u32] {
    // SAFETY: passed on to the caller; every bit pattern is a valid word.
    unsafe { std::slice::from_raw_parts(shared.add(start).cast(), len) }
}

/// Returns a range of the shared scratch as words, for writing.
///
/// # Safety
/// The scratch must have `len` words from `start` on, which no other code accesses during the borrow.
unsafe fn words_mut<'a>(shared: *mut f32, start: usize, len: usize) -> &'a mut [u32] {
    // SAFETY: passed on to the caller; every bit pattern is a valid word.
    unsafe { std::slice::from_raw_parts_mut(shared.add(start).cast(), len) }
}

/// Copies the rows with the numbers `order` to `to`. Each row has `width` elements.
///
/// # Safety
/// `to` must have room for the rows, and no other code may access it; the rows must not be written meanwhile.
pub(super) unsafe fn gather(rows: View<f32>, order: &[u32], width: usize, to: *mut f32) {
    for (place, &row) in order.iter().enumerate() {
        let row = row as usize;
        // SAFETY: `slice` checks that the row is within the view, and `to` has room for it by the contract.
        unsafe {
            let from = rows.slice(row * width..(row + 1) * width);
            std::ptr::copy_nonoverlapping(from.as_ptr(), to.add(place * width), width);
        }
    }
}
