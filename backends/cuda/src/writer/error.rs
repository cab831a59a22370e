//! Errors that occur while a module is written.

/// The reason why a module cannot be written as CUDA C++.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The module has no compute entry point of this name.
    #[error("the module has no compute entry point `{0}`")]
    NoEntryPoint(String),
    /// The module uses a feature of WGSL that is not supported in CUDA; the text names the feature.
    #[error("CUDA kernels do not have {0}")]
    Unsupported(String),
    /// The overrides could not be replaced by their values; the text gives the reason.
    #[error("overrides: {0}")]
    Override(String),
    /// The module does not match its validation info: it is not the validated module.
    #[error("the module is not valid: {0}")]
    Invalid(String),
}

impl WriteError {
    pub(super) fn unsupported(what: impl Into<String>) -> Self {
        WriteError::Unsupported(what.into())
    }

    pub(super) fn invalid(what: impl Into<String>) -> Self {
        WriteError::Invalid(what.into())
    }
}

pub(super) type Result<T> = std::result::Result<T, WriteError>;
