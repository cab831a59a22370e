//! Limits for the tensors and nodes that an import creates from sizes in a model, because a file of a few bytes can
//! specify any size.

use meganeura_core::graph::{Graph, Value};

/// Maximum number of elements of a constant.
pub(super) const MAX_ELEMENTS: usize = 1 << 24;
/// Maximum number of parts of one node: slices that are summed, taps of a kernel.
pub(super) const MAX_PARTS: usize = 1 << 10;
/// Maximum number of axes of a tensor.
pub(super) const MAX_RANK: usize = 64;

/// Returns the number of elements along some axes, if a constant may have this size.
///
/// # Errors
/// The constant is too large; `what` is its description, such as "an axis".
pub(super) fn elements(dims: &[usize], what: &str) -> Result<usize, String> {
    let count = crate::tensor::element_count(dims).filter(|&count| count <= MAX_ELEMENTS);
    count.ok_or_else(|| {
        format!("{what} of {dims:?} is too large: an import makes constants of at most {MAX_ELEMENTS} elements")
    })
}

/// Returns the number of parts, if one node may consist of this number.
///
/// # Errors
/// There are too many parts; `what` is their description in the plural.
pub(super) fn parts(count: usize, what: &str) -> Result<usize, String> {
    if count <= MAX_PARTS {
        Ok(count)
    } else {
        Err(format!("{count} {what} exceed the maximum of {MAX_PARTS} per node"))
    }
}

/// Returns `0, 1, 2...` as `u32`, in a shape.
///
/// # Errors
/// The same errors as [`elements`].
pub(super) fn counting(graph: &mut Graph, shape: &[usize]) -> Result<Value, String> {
    let count = elements(shape, "a list")?;
    Ok(graph.constant_u32((0..count as u32).collect(), shape).into())
}
