//! Index arithmetic of kernels that broadcast or permute. It runs once, when a plan is compiled.

use crate::kernel::CHUNK;

/// Maximum number of outer dimensions whose indices are incremented from row to row: the innermost of the outer
/// dimensions. Typical plans have one or two outer dimensions after collapsing. The indices of further dimensions are
/// computed by division, once for many rows.
const COUNTED: usize = 8;

/// A loop nest over an output in row-major order. Each dimension has a stride for each operand, in elements; it is 0
/// along broadcast axes. The innermost dimension is the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Nest<const N: usize> {
    pub(super) dims: Vec<usize>,
    pub(super) strides: [Vec<isize>; N],
}

impl<const N: usize> Nest<N> {
    /// Creates a nest without dimensions of size 1. Neighbouring dimensions are merged if one stride per operand
    /// describes both.
    pub(super) fn collapsed(dims: &[usize], strides: [Vec<isize>; N]) -> Self {
        let mut nest = Nest {
            dims: Vec::new(),
            strides: std::array::from_fn(|_| Vec::new()),
        };
        for (axis, &size) in dims.iter().enumerate() {
            if size == 1 {
                continue;
            }
            let mergeable = nest.dims.last().is_some()
                && (0..N).all(|o| {
                    nest.strides[o]
                        .last()
                        .is_some_and(|&outer| outer == strides[o][axis] * size as isize)
                });
            if mergeable {
                if let Some(last) = nest.dims.last_mut() {
                    *last *= size;
                }
                for (own, all) in nest.strides.iter_mut().zip(&strides) {
                    if let Some(last) = own.last_mut() {
                        *last = all[axis];
                    }
                }
            } else {
                nest.dims.push(size);
                for (own, all) in nest.strides.iter_mut().zip(&strides) {
                    own.push(all[axis]);
                }
            }
        }
        if nest.dims.is_empty() {
            nest.dims.push(1);
            nest.strides.iter_mut().for_each(|s| s.push(0));
        }
        nest
    }

    /// Returns the size of the innermost dimension.
    pub(super) fn inner(&self) -> usize {
        self.dims.last().copied().unwrap_or(1)
    }

    /// Returns the number of rows; a row is one pass over the innermost dimension.
    pub(super) fn rows(&self) -> usize {
        let outer = self.dims.len().saturating_sub(1);
        self.dims[..outer].iter().product()
    }

    /// Returns the stride of an operand in the innermost dimension.
    pub(super) fn inner_stride(&self, operand: usize) -> isize {
        self.strides[operand].last().copied().unwrap_or(0)
    }

    /// Calls `visit(row, offsets)` for each row of a range. `offsets` are the element offsets of the row in the
    /// operands.
    pub(super) fn for_rows(&self, rows: std::ops::Range<usize>, mut visit: impl FnMut(usize, [isize; N])) {
        let outer = self.dims.len().saturating_sub(1);
        let counted = outer.saturating_sub(COUNTED)..outer;
        let period: usize = self.dims[counted.clone()].iter().product();
        let mut row = rows.start;
        // A nest with a dimension of size 0 has no rows, so this never divides by 0.
        while row < rows.end {
            let end = rows.end.min((row / period + 1) * period);
            self.count_rows(row..end, counted.clone(), &mut visit);
            row = end;
        }
    }

    /// Calls `visit` like [`Nest::for_rows`], for rows that differ only in the `counted` dimensions.
    fn count_rows(
        &self,
        rows: std::ops::Range<usize>,
        counted: std::ops::Range<usize>,
        visit: &mut impl FnMut(usize, [isize; N]),
    ) {
        let first = counted.start;
        let mut index = [0usize; COUNTED];
        let mut offsets = [0isize; N];
        let mut rest = rows.start;
        for axis in (0..counted.end).rev() {
            let at = rest % self.dims[axis];
            rest /= self.dims[axis];
            if axis >= first {
                index[axis - first] = at;
            }
            for (offset, strides) in offsets.iter_mut().zip(&self.strides) {
                *offset += at as isize * strides[axis];
            }
        }
        for row in rows {
            visit(row, offsets);
            for axis in counted.clone().rev() {
                let index = &mut index[axis - first];
                *index += 1;
                for (offset, strides) in offsets.iter_mut().zip(&self.strides) {
                    *offset += strides[axis];
                }
                if *index < self.dims[axis] {
                    break;
                }
                for (offset, strides) in offsets.iter_mut().zip(&self.strides) {
                    *offset -= strides[axis] * self.dims[axis] as isize;
                }
                *index = 0;
            }
        }
    }
}

/// Division of the rows of a nest among tasks. Long rows are cut into pieces, short rows are grouped.
pub(super) struct RowDivision {
    inner: usize,
    rows: usize,
    rows_per_task: usize,
    pieces: usize,
}

impl RowDivision {
    pub(super) fn new<const N: usize>(nest: &Nest<N>) -> Self {
        let inner = nest.inner();
        RowDivision {
            inner,
            rows: nest.rows(),
            rows_per_task: crate::kernel::rows_per_task(inner),
            pieces: inner.div_ceil(CHUNK),
        }
    }

    /// Returns the number of tasks; 0 without elements.
    pub(super) fn tasks(&self) -> usize {
        self.rows.div_ceil(self.rows_per_task) * self.pieces
    }

    /// Returns the range of rows of a task, and the range of elements within each row.
    pub(super) fn part(&self, task: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let (group, piece) = (task / self.pieces, task % self.pieces);
        let first = group * self.rows_per_task;
        let start = piece * CHUNK;
        (
            first..(first + self.rows_per_task).min(self.rows),
            start..(start + CHUNK).min(self.inner),
        )
    }
}

/// Returns the row-major strides of a shape.
pub(super) fn row_major(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1isize; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i].max(1) as isize;
    }
    strides
}

/// Returns the strides for reading an operand of shape `shape` that is broadcast to `to`.
pub(super) fn broadcast_strides(shape: &[usize], to: &[usize]) -> Vec<isize> {
    let own = row_major(shape);
    let missing = to.len() - shape.len();
    (0..to.len())
        .map(|axis| match axis.checked_sub(missing) {
            Some(i) if shape[i] != 1 => own[i],
            _ => 0,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_operands_collapse_to_one_row() {
        let shape = [2, 3, 4];
        let nest = Nest::collapsed(&shape, [row_major(&shape), row_major(&shape)]);
        assert_eq!(nest.dims, [24]);
        assert_eq!(nest.inner_stride(0), 1);
    }

    #[test]
    fn rows_are_visited_with_the_right_offsets() {
        let to = [2, 3, 4];
        let nest = Nest::collapsed(
            &to,
            [broadcast_strides(&[3, 1], &to), broadcast_strides(&[2, 1, 4], &to)],
        );
        let mut seen = Vec::new();
        nest.for_rows(1..5, |row, offsets| seen.push((row, offsets)));
        assert_eq!(nest.inner(), 4);
        assert_eq!(seen, [(1, [1, 0]), (2, [2, 0]), (3, [0, 4]), (4, [1, 4])]);
    }

    #[test]
    fn deep_nests_resolve_the_outermost_dimensions_by_division() {
        // Alternating broadcast axes do not collapse.
        let to: Vec<usize> = (0..13).map(|axis| 2 + axis % 2).collect();
        let own: Vec<usize> = (0..13).map(|axis| if axis % 2 == 0 { 1 } else { to[axis] }).collect();
        let nest = Nest::collapsed(&to, [broadcast_strides(&own, &to)]);
        assert_eq!(nest.dims.len(), 13);
        let strides = broadcast_strides(&own, &to);
        let expected = |row: usize| {
            let mut rest = row;
            let offsets = (0..12).rev().map(|axis| {
                let at = rest % to[axis];
                rest /= to[axis];
                at as isize * strides[axis]
            });
            offsets.sum::<isize>()
        };
        for rows in [0..nest.rows(), 5..3000, nest.rows() - 1..nest.rows(), 7..7] {
            let mut next = rows.start;
            nest.for_rows(rows.clone(), |row, [offset]| {
                assert_eq!((row, offset), (next, expected(row)));
                next += 1;
            });
            assert_eq!(next, rows.end);
        }
    }

    #[test]
    fn empty_nests_have_no_rows_and_no_tasks() {
        for to in [&[0, 3][..], &[3, 0], &[2, 0, 3], &[0]] {
            let nest = Nest::collapsed(to, [broadcast_strides(&vec![1; to.len()], to), row_major(to)]);
            assert_eq!(RowDivision::new(&nest).tasks(), 0, "{to:?}");
            if nest.inner() > 0 {
                nest.for_rows(0..nest.rows(), |_, _| panic!("there are no rows"));
            }
        }
    }

    #[test]
    fn tasks_cover_every_element_once() {
        for (rows, inner) in [(1, 1), (1, CHUNK + 1), (3, 2 * CHUNK), (100_003, 3), (7, CHUNK - 1)] {
            let nest = Nest {
                dims: vec![rows, inner],
                strides: [vec![0, 1], vec![inner as isize, 1]],
            };
            let split = RowDivision::new(&nest);
            let mut seen = vec![0u8; rows * inner];
            for task in 0..split.tasks() {
                let (rows, piece) = split.part(task);
                assert!(rows.len() * piece.len() <= CHUNK);
                rows.for_each(|row| seen[row * inner..][piece.clone()].iter_mut().for_each(|s| *s += 1));
            }
            assert!(seen.iter().all(|&s| s == 1), "{rows} rows of {inner}");
        }
    }
}
