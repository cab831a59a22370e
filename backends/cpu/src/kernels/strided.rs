//! Index arithmetic of broadcasting and permuting kernels, done once when a plan is compiled.

/// Up to this many dimensions after collapsing: real plans have two or three.
pub(super) const MAX_DIMS: usize = 8;

/// A loop nest over an output in row-major order, with an element stride of each operand for each
/// dimension (0 along broadcast axes). The innermost dimension is the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Nest<const N: usize> {
    pub(super) dims: Vec<usize>,
    pub(super) strides: [Vec<isize>; N],
}

impl<const N: usize> Nest<N> {
    /// Merges neighbouring dimensions that every operand steps through as one, and drops those of size 1.
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

    /// Size of the innermost dimension.
    pub(super) fn inner(&self) -> usize {
        self.dims.last().copied().unwrap_or(1)
    }

    /// Number of rows of the innermost dimension.
    pub(super) fn rows(&self) -> usize {
        let outer = self.dims.len().saturating_sub(1);
        self.dims[..outer].iter().product()
    }

    /// Stride of an operand in the innermost dimension.
    pub(super) fn inner_stride(&self, operand: usize) -> isize {
        self.strides[operand].last().copied().unwrap_or(0)
    }

    /// Calls `visit(row, offsets)` for a range of rows, with the element offset of each operand's row.
    pub(super) fn for_rows(&self, rows: std::ops::Range<usize>, mut visit: impl FnMut(usize, [isize; N])) {
        let outer = self.dims.len().saturating_sub(1).min(MAX_DIMS);
        let mut index = [0usize; MAX_DIMS];
        let mut rest = rows.start;
        for axis in (0..outer).rev() {
            index[axis] = rest % self.dims[axis];
            rest /= self.dims[axis];
        }
        let mut offsets: [isize; N] = std::array::from_fn(|o| {
            (0..outer)
                .map(|axis| index[axis] as isize * self.strides[o][axis])
                .sum()
        });
        for row in rows {
            visit(row, offsets);
            for axis in (0..outer).rev() {
                index[axis] += 1;
                for (offset, strides) in offsets.iter_mut().zip(&self.strides) {
                    *offset += strides[axis];
                }
                if index[axis] < self.dims[axis] {
                    break;
                }
                for (offset, strides) in offsets.iter_mut().zip(&self.strides) {
                    *offset -= strides[axis] * self.dims[axis] as isize;
                }
                index[axis] = 0;
            }
        }
    }
}

/// Row-major strides of a shape.
pub(super) fn row_major(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1isize; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i].max(1) as isize;
    }
    strides
}

/// Strides with which an operand is read when it is broadcast to `to`.
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

/// Refuses nests that are deeper than the fixed index array.
pub(super) fn check_depth<const N: usize>(nest: &Nest<N>) -> Result<(), String> {
    if nest.dims.len() > MAX_DIMS {
        return Err(format!("more than {MAX_DIMS} dimensions that cannot be joined"));
    }
    Ok(())
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
}
