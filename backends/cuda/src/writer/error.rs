//! Errors of the translation of a module.

/// The reason why a module cannot be translated to CUDA C++.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The module has no compute entry point of this name.
    #[error("the module has no compute entry point `{0}`")]
    NoEntryPoint(String),
    /// The module uses a feature of WGSL that is not supported in CUDA. The text names the feature.
    #[error("CUDA kernels do not have {0}")]
    Unsupported(String),
    /// The overrides could not be replaced by their values. The text contains the reason.
    #[error("overrides: {0}")]
    Override(String),
    /// The module does not match its validation info, so it is not the module that was validated.
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
