//! Errors, and single issues of a model's nodes.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::element::ElementType;
use crate::report::Report;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of reading, importing or running a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read or written.
    #[error("{path} cannot be read", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The bytes are not an ONNX model, or are inconsistent.
    #[error("{path}: {message}", path = path.display())]
    Broken {
        /// The file, or `<memory>`.
        path: PathBuf,
        /// Description and location of the problem.
        message: String,
    },
    /// The model is well-formed, but cannot be imported; the report contains all reasons.
    #[error("{0}")]
    Unsupported(Box<Report>),
    /// An input or its data do not match the model.
    #[error("{0}")]
    Input(String),
    /// A 64-bit integer does not fit into the 32 bits that a graph has for it.
    #[error(
        "{operator} `{place}`: expected {element} results that fit into 32 bits, found one that does not\n  help: give \
         smaller values, or compute in float32 from this node on"
    )]
    Overflow {
        /// Name of the node, or of its first result.
        place: String,
        /// Operator of the node.
        operator: String,
        /// Element type of the node's result.
        element: ElementType,
    },
    /// An element is not a category of a node that accepts only its categories.
    #[error(
        "{operator} `{place}`: expected one of its categories, found another value\n  help: export the encoder such that it \
         ignores unknown categories (handle_unknown='ignore' in scikit-learn), or remove these rows"
    )]
    UnknownCategory {
        /// Name of the node, or of its first result.
        place: String,
        /// Operator of the node.
        operator: String,
    },
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

    /// Returns the error with this file as its location.
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

/// Kind of an [`Issue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum IssueKind {
    /// The file is inconsistent: a value that no node computes, duplicate names, shapes that do not match.
    Broken,
    /// Data in another file are missing.
    MissingData,
    /// A dimension has a name but no size.
    UnboundDimension,
    /// There is no importer for the operator, or for the way in which this node uses it.
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
    /// Kind of the issue.
    pub kind: IssueKind,
    /// The node's name, or that of its first result; otherwise the name of the input, dimension or tensor.
    pub place: String,
    /// Domain and operator, without the domain for `ai.onnx`; empty if the issue does not concern a node.
    pub operator: String,
    /// Description of the problem.
    pub message: String,
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.operator.is_empty() {
            write!(f, "`{}`: {}", self.place, self.message)
        } else {
            write!(f, "{} `{}`: {}", self.operator, self.place, self.message)
        }
    }
}
