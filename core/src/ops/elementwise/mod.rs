//! Elementwise operators, defined as rows of tables. Each kind of row has its own type (`Unary`, `Binary` and so on).
//!
//! A row contains name, formula, scalar definition, derivative and decomposition. Broadcasting, shape rules, costs and
//! sample cases are the same for all rows of a table.

mod activation_table;
mod binary;
mod binary_table;
mod compare;
mod gelu_table;
mod integer;
mod integer_table;
mod precise_table;
mod rounding_table;
mod unary;
mod unary_table;

use super::{OpRef, Operator};
use crate::graph::{Graph, Value};

/// Returns the operators of all tables.
pub(super) fn rows() -> Vec<OpRef> {
    fn table<T: Operator>(rows: &'static [T]) -> impl Iterator<Item = OpRef> {
        rows.iter().map(|r| OpRef::new(r))
    }
    table(unary_table::ROWS)
        .chain(table(activation_table::ROWS))
        .chain(table(gelu_table::ROWS))
        .chain(table(precise_table::ROWS))
        .chain(table(rounding_table::ROWS))
        .chain(table(binary_table::ROWS))
        .chain(table(compare::ROWS))
        .chain(table(integer_table::UNARY))
        .chain(table(integer_table::BINARY))
        .collect()
}

impl Graph {
    /// Sums a gradient over the axes along which its operand was broadcast.
    pub(crate) fn unbroadcast(&mut self, gradient: Value, operand: Value) -> Value {
        let (from, to) = (self.shape(gradient).to_vec(), self.shape(operand).to_vec());
        if from == to {
            return gradient;
        }
        let missing = from.len() - to.len();
        let axes: Vec<i32> = (0..from.len())
            .filter(|&i| i < missing || to[i - missing] != from[i])
            .map(|i| i as i32)
            .collect();
        let summed = if axes.is_empty() {
            gradient
        } else {
            self.sum(gradient, &axes, true).into()
        };
        self.reshape(summed, &to).into()
    }

    /// Returns a tensor whose elements all have the same value: an expanded constant scalar.
    #[track_caller]
    pub fn full(&mut self, dtype: crate::DType, value: f64, shape: &[usize]) -> crate::NodeId {
        let scalar = self.scalar_of(dtype, value);
        if shape.is_empty() {
            return scalar;
        }
        self.expand(scalar, shape)
    }
}
