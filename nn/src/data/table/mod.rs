//! Tables whose columns are numbers or texts.

mod schema;

pub use schema::{ColumnKind, FeatureColumn, TableSchema};
