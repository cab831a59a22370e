//! Errors of model downloads.

use std::fmt;
use std::path::{Path, PathBuf};

use meganeura_core::Error;

/// An error of a model download.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PullError {
    /// The program was built without the feature `hub`.
    NotBuilt {
        /// The model.
        name: String,
    },
    /// A text that cannot be a name on the Hub.
    InvalidName {
        /// The text.
        name: String,
    },
    /// There is no such model or revision. The Hub returns the same for private models.
    NotFound {
        /// The model, with its revision if one was requested.
        name: String,
        /// Address of the Hub.
        endpoint: String,
    },
    /// The model's files are given only to users who accepted its terms.
    Gated {
        /// The model.
        name: String,
        /// Page with its terms.
        page: String,
        /// True if a token was sent.
        has_token: bool,
    },
    /// There is no such file in the repository.
    NoFile {
        /// The model.
        name: String,
        /// The file.
        file: String,
        /// GGUF files of the repository.
        files: Vec<String>,
    },
    /// The repository has several GGUF models, and no checkpoint in safetensors files.
    SeveralFiles {
        /// The model.
        name: String,
        /// GGUF files of the repository, the first of each model.
        files: Vec<String>,
    },
    /// The repository has neither safetensors nor GGUF files.
    NoWeights {
        /// The model.
        name: String,
    },
    /// The Hub cannot be reached, or the connection broke off.
    Unreachable {
        /// Address of the Hub.
        endpoint: String,
        /// Message of the network.
        message: String,
    },
    /// There is no room for the files.
    NoSpace {
        /// The cache.
        folder: PathBuf,
    },
    /// A downloaded file differs from that of the Hub.
    Damaged {
        /// The file.
        file: String,
    },
    /// Any other error.
    Failed {
        /// The model.
        name: String,
        /// Description of the error.
        message: String,
    },
}

/// Returns some names of a list.
fn some(names: &[String]) -> String {
    const SHOWN: usize = 30;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

impl fmt::Display for PullError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PullError::NotBuilt { name } => write!(
                f,
                "'{name}' cannot be downloaded: this program was built without the feature `hub`, which downloads models"
            ),
            PullError::InvalidName { name } => write!(f, "'{name}' cannot be the name of a model on the Hub"),
            PullError::NotFound { name, endpoint } => write!(f, "there is no public model '{name}' at {endpoint}"),
            PullError::Gated { name, page, has_token } => {
                let token = match has_token {
                    true => "the account of the token that was sent has not accepted them",
                    false => "no token was sent",
                };
                write!(
                    f,
                    "the files of '{name}' are only for users who accepted its terms at {page}; {token}"
                )
            }
            PullError::NoFile { name, file, files } if files.is_empty() => {
                write!(f, "'{name}' has no file '{file}', and no GGUF files at all")
            }
            PullError::NoFile { name, file, files } => {
                write!(f, "'{name}' has no file '{file}'; its GGUF files are {}", some(files))
            }
            PullError::SeveralFiles { name, files } => {
                write!(f, "'{name}' has {} GGUF models: {}", files.len(), some(files))
            }
            PullError::NoWeights { name } => write!(f, "'{name}' has neither safetensors nor GGUF files"),
            PullError::Unreachable { endpoint, message } => write!(f, "{endpoint} cannot be reached: {message}"),
            PullError::NoSpace { folder } => write!(f, "not enough disk space for the files in '{}'", folder.display()),
            PullError::Damaged { file } => write!(f, "the download of '{file}' does not match its checksum on the Hub"),
            PullError::Failed { name, message } => write!(f, "'{name}' could not be downloaded: {message}"),
        }
    }
}

impl PullError {
    /// Returns the remedy that the error message suggests.
    pub fn remedy(&self) -> &'static str {
        match self {
            PullError::NotBuilt { .. } => {
                "build it with `--features hub`, or download the model (`hf download NAME`) and name its folder"
            }
            PullError::InvalidName { .. } => "give ORG/NAME or ORG/NAME@REVISION, such as HuggingFaceTB/SmolLM2-135M",
            PullError::NotFound { .. } => {
                "check the name and the revision; a private model needs the variable HF_TOKEN"
            }
            PullError::Gated { .. } => "accept the terms on that page, and set HF_TOKEN to a token of that account",
            PullError::NoFile { .. } | PullError::SeveralFiles { .. } => "name one of them with --file",
            PullError::NoWeights { .. } => "use a model that has safetensors or GGUF files",
            PullError::Unreachable { .. } => {
                "check the connection, and HF_ENDPOINT if it is set; the partial download is kept, and the next \
                 attempt continues it"
            }
            PullError::NoSpace { .. } => {
                "free disk space, or set HF_HUB_CACHE to a folder on another disk; the next attempt continues the \
                 download"
            }
            PullError::Damaged { .. } => "try again; the file was removed",
            PullError::Failed { .. } => "try again; the partial download is kept",
        }
    }
}

impl std::error::Error for PullError {}

impl From<PullError> for Error {
    fn from(error: PullError) -> Self {
        match &error {
            PullError::NotBuilt { .. }
            | PullError::InvalidName { .. }
            | PullError::NoFile { .. }
            | PullError::SeveralFiles { .. } => Error::misuse(error.to_string(), error.remedy()),
            PullError::NotFound { name, .. }
            | PullError::Gated { name, .. }
            | PullError::NoWeights { name }
            | PullError::Failed { name, .. } => of(name, &error),
            PullError::Unreachable { endpoint, .. } => of(endpoint, &error),
            PullError::NoSpace { folder } => of(folder, &error),
            PullError::Damaged { file } => of(file, &error),
        }
    }
}

fn of(path: impl AsRef<Path>, error: &PullError) -> Error {
    Error::file(
        path.as_ref(),
        format!("could not be downloaded: {error}"),
        error.remedy(),
    )
}
