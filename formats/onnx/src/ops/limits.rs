//! What an import makes of its own accord is bounded, whatever sizes a model names: a file of some bytes can name any.

use meganeura_core::graph::{Graph, Value};

/// Elements of a constant.
pub(super) const MAX_ELEMENTS: usize = 1 << 24;
/// Parts that one node is made of: slices that are summed, taps of a kernel.
pub(super) const MAX_PARTS: usize = 1 << 10;
/// Axes of a tensor.
pub(super) const MAX_RANK: usize = 64;

/// The number of elements along some axes, if a constant may have so many.
///
/// # Errors
/// It may not; `what` names what is too large, such as "an axis".
pub(super) fn elements(dims: &[usize], what: &str) -> Result<usize, String> {
    let count = crate::tensor::element_count(dims).filter(|&count| count <= MAX_ELEMENTS);
    count.ok_or_else(|| {
        format!("{what} of {dims:?} is too large: an import makes constants of at most {MAX_ELEMENTS} elements")
    })
}

/// So many parts, if one node may be made of them.
///
/// # Errors
/// It may not; `what` names them in the plural.
pub(super) fn parts(count: usize, what: &str) -> Result<usize, String> {
    match count <= MAX_PARTS {
        true => Ok(count),
        false => Err(format!(
            "{count} {what} are more than the {MAX_PARTS} that one node is made of"
        )),
    }
}

/// `0, 1, 2...` as `u32`, in a shape.
///
/// # Errors
/// As of [`elements`].
pub(super) fn counting(graph: &mut Graph, shape: &[usize]) -> Result<Value, String> {
    let count = elements(shape, "a list")?;
    Ok(graph.constant_u32((0..count as u32).collect(), shape).into())
}
