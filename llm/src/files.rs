//! Files of checkpoints: their texts, and errors about them.

use std::fs;
use std::path::Path;

use meganeura_core::{Error, Result};

/// The text of a file of a checkpoint.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|e| {
        let remedy = "give the folder of a checkpoint: config.json, *.safetensors and tokenizer.json";
        Error::file(path, format!("cannot be read: {e}"), remedy)
    })
}

/// A file of a checkpoint that holds something else than it should.
pub(crate) fn damaged(path: &Path, message: impl std::fmt::Display) -> Error {
    Error::file(
        path,
        format!("is not what it should be: {message}"),
        "fetch the file anew",
    )
}
