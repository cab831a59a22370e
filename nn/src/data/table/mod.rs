//! Tables whose columns are numbers or texts: [`read_table`] for training, [`TableSchema::read`] for the trained model.

mod apply;
mod cells;
mod fit;
mod parts;
mod schema;

pub use apply::{TableReadOptions, TableRows, TableTargets};
pub use cells::RawTable;
pub use fit::{MissingCells, TableOptions, TaskChoice, TrainingTable, fit_table, parse_table, read_table};
pub use parts::{TableParts, fit_table_parts, read_table_parts};
pub use schema::{ColumnKind, FeatureColumn, TableSchema};

#[cfg(test)]
mod tests;
