//! Files of checkpoints: their texts, and errors about them.

use std::path::Path;

use meganeura_core::files::read_text_limited;
use meganeura_core::{Error, Result};

/// Texts that describe a checkpoint; the largest tokenizers have some tens of millions.
const MAX_BYTES: u64 = 1 << 28;

/// The text of a file of a checkpoint.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    read_text_limited(path, MAX_BYTES).map_err(|e| {
        let remedy = "give the folder of a checkpoint: config.json, *.safetensors and tokenizer.json";
        Error::file(path, format!("cannot be read: {e}"), remedy)
    })
}

/// A file of a checkpoint that holds something else than it should.
pub(crate) fn damaged(path: &Path, message: impl std::fmt::Display) -> Error {
    Error::file(
        path,
        format!("is damaged or of another format: {message}"),
        "download the file again",
    )
}
