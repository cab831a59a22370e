//! Errors of models in folders.

use std::io;
use std::path::PathBuf;

use meganeura_core::files::FolderError;

use crate::data::DataError;

/// An error while building, saving, loading or using a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The graph, the device or a step failed.
    #[error(transparent)]
    Core(#[from] meganeura_core::Error),

    /// The data cannot be read, or do not fit this model.
    #[error(transparent)]
    Data(#[from] DataError),

    /// A file or folder could not be read or written.
    #[error("{}: could not be {action}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Failed action.
        action: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },

    /// There is no model in the folder.
    #[error(
        "{}: there is no model: {message}\n  help: name a model folder, which contains model.json and \
         model.safetensors",
        folder.display()
    )]
    NotFound {
        /// The folder.
        folder: PathBuf,
        /// Contents of the folder that are no model.
        message: String,
    },

    /// The folder is not one that a model may replace; it was not changed.
    #[error(
        "{}: not replaced, because it is not only a model folder: {message}\n  help: save the model in another folder",
        folder.display()
    )]
    NotReplaced {
        /// The folder.
        folder: PathBuf,
        /// Contents that prevent the replacement.
        message: String,
    },

    /// The format of a model is not supported by this program.
    #[error(
        "{}, field 'format': expected {supported}, found {found}\n  help: use the program that wrote it, or a newer \
         one",
        file.display()
    )]
    Version {
        /// The file.
        file: PathBuf,
        /// Format of the file.
        found: u64,
        /// Format of this program.
        supported: u64,
    },

    /// A field of a file is invalid.
    #[error("{}, field '{field}': {message}", file.display())]
    Field {
        /// The file.
        file: PathBuf,
        /// The field.
        field: String,
        /// Reason why it is invalid.
        message: String,
    },

    /// A tensor of a file does not fit the model.
    #[error("{}, tensor '{tensor}': {message}", file.display())]
    Tensor {
        /// The file.
        file: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Reason why it does not fit.
        message: String,
    },

    /// The contents of a file differ from what was written.
    #[error("{}: is damaged: {message}\n  help: restore it from a copy, or train the model again", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Description of the difference.
        message: String,
    },

    /// The parts of a model do not fit together.
    #[error("the model, {field}: {message}")]
    Invalid {
        /// The part.
        field: &'static str,
        /// Reason why it does not fit.
        message: String,
    },

    /// Features whose shape differs from the model's, or that are not finite.
    #[error("{name}: {message}")]
    Features {
        /// Origin of the features.
        name: String,
        /// Reason why they are invalid.
        message: String,
    },

    /// The model's output for an example is NaN or infinite.
    #[error(
        "{name}: the model's output for row {row} is not finite\n  help: check for values far from those of the \
         training data; if there are none, the weights are unusable"
    )]
    NonFinite {
        /// Origin of the features.
        name: String,
        /// Zero-based row.
        row: usize,
    },
}

impl From<FolderError> for ModelError {
    fn from(error: FolderError) -> Self {
        match error {
            FolderError::NotReplaced { folder, message } => ModelError::NotReplaced { folder, message },
            FolderError::Io { path, action, source } => ModelError::Io { path, action, source },
            other => ModelError::Core(other.into_error()),
        }
    }
}

impl ModelError {
    pub(super) fn io(path: &std::path::Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| ModelError::Io { path, action, source }
    }
}
