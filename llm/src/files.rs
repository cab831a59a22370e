//! Files of checkpoints: their texts, and errors about them.

use std::path::Path;

use meganeura_core::files::read_text_limited;
use meganeura_core::{Error, Result};

/// Texts that describe a checkpoint; the largest tokenizers have some tens of millions.
const MAX_BYTES: u64 = 1 << 28;

/// Name of the file that describes adapters.
pub(crate) const ADAPTER_CONFIG: &str = "adapter_config.json";
/// Remedy for folders without adapters.
pub(crate) const NO_ADAPTERS: &str = "give the folder of adapters: adapter_config.json and adapter_model.safetensors";

/// Reads the text of a file of a checkpoint or of adapters.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    read_text_limited(path, MAX_BYTES).map_err(|e| {
        let remedy = if path.ends_with(ADAPTER_CONFIG) {
            NO_ADAPTERS
        } else if path.with_file_name(ADAPTER_CONFIG).exists() {
            "this folder has adapters: give the folder of their model (config.json, *.safetensors and tokenizer.json), \
             and this folder as its adapters (`--lora`)"
        } else {
            "give the folder of a checkpoint: config.json, *.safetensors and tokenizer.json"
        };
        Error::file(path, format!("cannot be read: {e}"), remedy)
    })
}

/// Creates the error for a file of a checkpoint with invalid contents.
pub(crate) fn damaged(path: &Path, message: impl std::fmt::Display) -> Error {
    Error::file(
        path,
        format!("is damaged or of another format: {message}"),
        "download the file again",
    )
}
