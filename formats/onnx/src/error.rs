//! What can go wrong, and one problem of one node.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::preflight::Report;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a model cannot be read, imported or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read or written.
    #[error("{path} cannot be read", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The bytes are no ONNX model, or contradict themselves.
    #[error("{path}: {message}", path = path.display())]
    Broken {
        /// The file, or `<memory>`.
        path: PathBuf,
        /// What is wrong, and where.
        message: String,
    },
    /// The model is well-formed, and cannot be imported as it stands: all reasons at once.
    #[error("{0}")]
    Unsupported(Box<Report>),
    /// An input or its data do not fit the model.
    #[error("{0}")]
    Input(String),
    /// Building, compiling or running the graph failed.
    #[error(transparent)]
    Graph(#[from] meganeura_core::Error),
}

impl Error {
    pub(crate) fn broken(message: impl Into<String>) -> Self {
        Error::Broken {
            path: PathBuf::from("<memory>"),
            message: message.into(),
        }
    }

    /// The same error of that file.
    pub(crate) fn of_file(self, file: &std::path::Path) -> Self {
        match self {
            Error::Broken { message, .. } => Error::Broken {
                path: file.to_owned(),
                message,
            },
            other => other,
        }
    }
}

/// What kind of obstacle an [`Issue`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum IssueKind {
    /// The file contradicts itself: a value that no node makes, two of one name, shapes that do not fit.
    Broken,
    /// Data in another file are not there.
    MissingData,
    /// A dimension has a name and no value.
    UnboundDimension,
    /// No importer for the operator, or for how this node uses it.
    Unsupported,
}

impl fmt::Display for IssueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IssueKind::Broken => "broken",
            IssueKind::MissingData => "missing data",
            IssueKind::UnboundDimension => "unbound dimension",
            IssueKind::Unsupported => "unsupported",
        })
    }
}

/// One obstacle to importing a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Issue {
    /// Its kind.
    pub kind: IssueKind,
    /// The node's name, or that of its first result; the name of the input, dimension or tensor otherwise.
    pub place: String,
    /// Domain and operator, `ai.onnx` written as nothing; empty where no node is concerned.
    pub operator: String,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operator.is_empty() {
            true => write!(f, "`{}`: {}", self.place, self.message),
            false => write!(f, "{} `{}`: {}", self.operator, self.place, self.message),
        }
    }
}
