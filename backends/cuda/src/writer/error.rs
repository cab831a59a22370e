//! Why a module was not written.

/// Why a module was not written as CUDA.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// There is no compute entry point of this name.
    #[error("the module has no compute entry point `{0}`")]
    NoEntryPoint(String),
    /// Something of WGSL that is not written as CUDA; the text names it.
    #[error("CUDA kernels do not have {0}")]
    Unsupported(String),
    /// Overrides could not be replaced by their values.
    #[error("overrides: {0}")]
    Override(String),
    /// The module is not what the information about it says: it is not the one that was validated.
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
