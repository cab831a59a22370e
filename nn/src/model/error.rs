//! What can go wrong with models in folders.

use std::io;
use std::path::PathBuf;

use meganeura_core::files::FolderError;

use crate::data::DataError;

/// Why a model could not be made, saved, loaded or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The graph, the device or a step failed.
    #[error(transparent)]
    Core(#[from] meganeura_core::Error),

    /// The data cannot be read, or are not for this model.
    #[error(transparent)]
    Data(#[from] DataError),

    /// A file or folder could not be read or written.
    #[error("{}: could not be {action}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the operating system said.
        source: io::Error,
    },

    /// There is no model in the folder.
    #[error(
        "{}: there is no model: {message}\n  help: name a folder that a model was saved in; it holds model.json and \
         model.safetensors",
        folder.display()
    )]
    NotFound {
        /// The folder.
        folder: PathBuf,
        /// What is there instead.
        message: String,
    },

    /// The folder is not one that a model may replace; it is as it was.
    #[error(
        "{}: not replaced, as it is no folder of a model alone: {message}\n  help: save the model in another folder",
        folder.display()
    )]
    NotReplaced {
        /// The folder.
        folder: PathBuf,
        /// What is in it.
        message: String,
    },

    /// A model of a format that this program does not read.
    #[error(
        "{}, field 'format': it is {found}, this program reads {supported}\n  help: use the program that wrote it, or a \
         newer one",
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

    /// A field of a file is not what it has to be.
    #[error("{}, field '{field}': {message}", file.display())]
    Field {
        /// The file.
        file: PathBuf,
        /// The field.
        field: String,
        /// What is wrong with it.
        message: String,
    },

    /// A tensor of a file is not what the model needs.
    #[error("{}, tensor '{tensor}': {message}", file.display())]
    Tensor {
        /// The file.
        file: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// What is wrong with it.
        message: String,
    },

    /// A file is not what was written.
    #[error("{}: is damaged: {message}\n  help: restore it from a copy, or train the model again", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What was found.
        message: String,
    },

    /// The parts of a model do not fit together.
    #[error("the model, {field}: {message}")]
    Invalid {
        /// The part.
        field: &'static str,
        /// What is wrong with it.
        message: String,
    },

    /// Features of another shape than the model takes, or that are not finite.
    #[error("{name}: {message}")]
    Features {
        /// Where the features came from.
        name: String,
        /// What is wrong with them.
        message: String,
    },

    /// The model's output for an example is NaN or infinite.
    #[error(
        "{name}: the model's output for row {row} is not finite\n  help: look for values that are far from those of the \
         training data; if there are none, the weights are unusable"
    )]
    NonFinite {
        /// Where the features came from.
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
