//! Import and export of ONNX models as graphs of Meganeura.
//!
//! A [`Model`] is a parsed file. [`Model::preflight`] reports what an import would encounter. [`Model::import`] converts the
//! model to a graph, whose weights are parameters with the names of the file. A [`Runner`] runs it:
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
//! Named dimensions get sizes first ([`Dims`]); all shapes are derived from them, because shape arithmetic is computed at import.

mod attributes;
mod document;
mod element;
mod error;
mod export;
mod import;
mod model;
mod ops;
mod port;
mod preflight;
mod proto;
mod quantize;
mod read;
mod report;
mod runner;
mod shared;
mod small;
mod staged;
mod tensor;
#[cfg(test)]
mod tests;

pub use document::markdown;
pub use element::ElementType;
pub use error::{Error, Issue, IssueKind, Result};
pub use export::{ExportOptions, export, export_open_batch, export_tensors};
pub use import::{
    Call, Guard, GuardKind, Import, ImportOptions, LabelKind, Operand, OutputLabels, Parameter, TensorInfo,
};
pub use model::Model;
pub use ops::{Build, Fold, OnnxOp, Registration, Support, operators};
pub use port::{Dim, Dims, Port};
pub use quantize::{QuantizeOptions, QuantizeReport, Quantizer};
pub use report::Report;
pub use runner::Runner;
pub use shared::SharedRunner;
pub use tensor::Tensor;
