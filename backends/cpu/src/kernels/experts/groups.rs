//! Rows in the order of their experts.

use std::ops::Range;

use crate::kernel::{Kernel, RunCx, Task};
use crate::memory::{View, aligned};

/// Rows of a segment, at most: a matmul of no more has one phase, in which tasks share nothing.
pub(super) const SEGMENT_ROWS: usize = 128;

/// Rows that follow each other in the order of experts and have the same one.
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

/// Rows in the order of their experts, which a first phase finds out and leaves in shared scratch: where the rows of each
/// expert begin, which rows they are, and the segments. Rows without an expert are behind all others.
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

    /// So many segments there are at most.
    pub(super) fn most_segments(&self) -> usize {
        self.rows().min(self.experts) + self.rows() / SEGMENT_ROWS
    }

    /// Where the parts of the scratch begin: starts of experts, rows, the number of segments and what they are.
    fn parts(&self) -> [usize; 3] {
        let rows = aligned(self.experts + 2);
        [0, rows, rows + aligned(self.rows())]
    }

    /// `f32`s of shared scratch.
    pub(super) fn shared_len(&self) -> usize {
        self.parts()[2] + aligned(1 + 3 * self.most_segments())
    }

    /// The first phase, of one task: a counting sort, which keeps rows of one expert in their order.
    pub(super) fn phase(self, dispatch: usize) -> Box<dyn Kernel> {
        let experts = self.experts;
        Box::new(Task {
            tasks: 1,
            nanos: (2 * self.rows() + experts) as u64,
            body: move |_: usize, cx: &RunCx| {
                let [starts, order, segments] = self.parts();
                // SAFETY: the scratch has these parts, and no other task runs; indices are not written by this dispatch.
                let (ids, starts, order, segments) = unsafe {
                    (
                        self.indices.all(),
                        words_mut(cx.shared, starts, experts + 2),
                        words_mut(cx.shared, order, self.rows()),
                        words_mut(cx.shared, segments, 1 + 3 * self.most_segments()),
                    )
                };
                let of = |id: u32| (id as usize).min(experts);
                // Counted one place further, so that the start of each expert has moved to its end in the end, which is the
                // start of the next one.
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
                // What was the end of each is its start now.
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

    /// A segment, if there are so many.
    ///
    /// # Safety
    /// The scratch is that of the first phase, which is over.
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

    /// Places of an expert's rows in the order of experts; those of rows without one for the number behind the last.
    ///
    /// # Safety
    /// As [`Groups::segment`].
    pub(super) unsafe fn of_expert(&self, shared: *mut f32, expert: usize) -> Range<usize> {
        // SAFETY: passed on to the caller.
        let starts = unsafe { words(shared, self.parts()[0], self.experts + 2) };
        starts[expert] as usize..starts[expert + 1] as usize
    }

    /// The rows at some places.
    ///
    /// # Safety
    /// As [`Groups::segment`]; nobody writes the scratch during the borrow.
    pub(super) unsafe fn order<'a>(&self, shared: *mut f32, places: Range<usize>) -> &'a [u32] {
        // SAFETY: passed on to the caller.
        let order = unsafe { words(shared, self.parts()[1], self.rows()) };
        &order[places]
    }
}

/// # Safety
/// The scratch has so many words from there on, which nobody writes during the borrow.
unsafe fn words<'a>(shared: *mut f32, start: usize, len: usize) -> &'a [u32] {
    // SAFETY: passed on to the caller; every word is a number.
    unsafe { std::slice::from_raw_parts(shared.add(start).cast(), len) }
}

/// # Safety
/// The scratch has so many words from there on, which nobody else accesses during the borrow.
unsafe fn words_mut<'a>(shared: *mut f32, start: usize, len: usize) -> &'a mut [u32] {
    // SAFETY: passed on to the caller; every word is a number.
    unsafe { std::slice::from_raw_parts_mut(shared.add(start).cast(), len) }
}

/// Copies rows of `width` numbers to their places in `to`, which begins with the first of the places.
///
/// # Safety
/// `to` has room for the rows, and nobody else accesses it; nobody writes the rows.
pub(super) unsafe fn gather(rows: View<f32>, order: &[u32], width: usize, to: *mut f32) {
    for (place, &row) in order.iter().enumerate() {
        let row = row as usize;
        // SAFETY: the row is one of the view, which `slice` checks; room by the contract.
        unsafe {
            let from = rows.slice(row * width..(row + 1) * width);
            std::ptr::copy_nonoverlapping(from.as_ptr(), to.add(place * width), width);
        }
    }
}
