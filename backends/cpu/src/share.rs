//! Work cut into shares.

use std::ops::Range;

/// The `index`-th of `parts` shares of `0..total` that differ by one at most.
pub(crate) fn share(total: usize, parts: usize, index: usize) -> Range<usize> {
    let (base, extra) = (total / parts, total % parts);
    let start = index * base + index.min(extra);
    start..start + base + usize::from(index < extra)
}
