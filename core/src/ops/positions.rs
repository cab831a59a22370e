//! Positions in sequences that a step is given as data: one for each sequence.

use crate::NodeId;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

/// Accepts `u32` positions of sequences with these leading axes: one for each, `[1]` where there are no such axes.
pub(super) fn expect_positions(what: &str, positions: &TensorType, leading: &[usize]) -> Result<(), String> {
    if positions.dtype != DType::U32 {
        return Err(format!("{what} must be u32, not {positions}; feed it with `input_u32`"));
    }
    let wanted = if leading.is_empty() { &[1] } else { leading };
    if positions.shape.dims() != wanted {
        return Err(format!(
            "{what} is {positions}, but there is one position for each sequence: u32 {wanted:?}"
        ));
    }
    Ok(())
}

/// The positions, after a look-up that is an error of the step for one that is not below the bound: how decompositions
/// keep what [`Operator::index_bound`](super::Operator::index_bound) promises.
pub(super) fn checked(g: &mut Graph, positions: Value, bound: usize) -> NodeId {
    let all = g.constant_u32((0..bound).map(|i| i as u32).collect(), &[bound]);
    g.gather(all, positions)
}

/// Rows that fit behind each other into a sequence of that many.
pub(super) fn first_rows(capacity: usize, rows: usize) -> usize {
    (capacity + 1).saturating_sub(rows)
}
