//! ONNX models as graphs of Meganeura.
//!
//! A [`Model`] is a file as it stands. [`Model::preflight`] says what importing it would meet, [`Model::import`] makes a
//! graph of it, whose weights are parameters with the names of the file, and a [`Runner`] runs it:
//!
//! ```no_run
//! use meganeura_compiler::Builder;
//! use meganeura_onnx::{Dims, Model, Runner, Tensor};
//!
//! # fn main() -> meganeura_onnx::Result<()> {
//! let model = Model::open("classifier.onnx")?;
//! let mut runner = Runner::new(&model, &Dims::new().bind("batch", 1), &Builder::new())?;
//! let image = Tensor::f32(&[1, 3, 224, 224], vec![0.0; 3 * 224 * 224]);
//! let results = runner.run(&[image])?;
//! println!("{:?}", results[0].dims());
//! # Ok(())
//! # }
//! ```
//!
//! Dimensions with names get numbers before anything else ([`Dims`]); all shapes follow from them, because arithmetic on
//! shapes is computed while importing.

mod attributes;
mod document;
mod element;
mod error;
mod export;
mod import;
mod model;
mod ops;
mod preflight;
mod proto;
mod read;
mod runner;
mod small;
mod tensor;
#[cfg(test)]
mod tests;

pub use document::markdown;
pub use element::ElementType;
pub use error::{Error, Issue, IssueKind, Result};
pub use export::{ExportOptions, export};
pub use import::{Call, Import, ImportOptions, Operand, Parameter, TensorInfo};
pub use model::{Dim, Dims, Model, Port};
pub use ops::{Build, Fold, OnnxOp, Registration, Support, operators};
pub use preflight::Report;
pub use runner::Runner;
pub use tensor::Tensor;
