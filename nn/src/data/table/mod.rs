//! Tables whose columns are numbers or texts: [`read_table`] for training, [`TableSchema::read`] for the trained model.

mod apply;
mod cells;
mod dates;
mod encoding;
mod fit;
mod format;
mod json_lines;
mod numbers;
mod parquet;
mod parts;
mod profile;
mod roles;
mod schema;

pub use apply::{TableReadOptions, TableRows, TableTargets};
pub use cells::RawTable;
pub use encoding::TextEncoding;
pub use fit::{
    MissingCells, TableOptions, TaskChoice, TrainingTable, fit_table, parse_table, profile_table, read_table,
};
pub use format::{DecimalMark, TableFormat};
pub use parts::{TableParts, fit_table_parts, read_table_parts};
pub use profile::{ColumnProfile, ColumnType, ColumnUse, TableProfile, TypeChoice};
pub use schema::{ColumnKind, FeatureColumn, TableSchema};

#[cfg(test)]
mod tests;
