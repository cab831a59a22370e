//! Positions in sequences as operands: one number for each sequence.

use crate::NodeId;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

/// Checks that positions are `u32`, with one for each sequence: `[1]` if there are no leading axes.
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

/// Returns the positions through a lookup that makes the step fail if one is not below the bound. Decompositions use it
/// to implement [`Operator::index_bound`](super::Operator::index_bound).
pub(super) fn checked(g: &mut Graph, positions: Value, bound: usize) -> NodeId {
    let all = g.constant_u32((0..bound).map(|i| i as u32).collect(), &[bound]);
    g.gather(all, positions)
}

/// Returns the number of positions at which `rows` consecutive rows can begin in a sequence of `capacity` rows.
pub(super) fn first_rows(capacity: usize, rows: usize) -> usize {
    (capacity + 1).saturating_sub(rows)
}
