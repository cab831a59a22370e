//! Division of work into shares of nearly equal size.

use std::ops::Range;

/// Returns share `index` of `parts` shares of `0..total`. Their sizes differ by at most one.
pub(crate) fn share(total: usize, parts: usize, index: usize) -> Range<usize> {
    let (base, extra) = (total / parts, total % parts);
    let start = index * base + index.min(extra);
    start..start + base + usize::from(index < extra)
}
