//! Checkpoints by the names that they have on the Hugging Face Hub.

use std::path::{Path, PathBuf};

use meganeura_core::{Error, Result};

/// The folder of a checkpoint: one that exists, or else, of a name such as `org/model`, the one that it is downloaded to.
/// Other paths are returned as they are, for whoever opens them to say what is missing.
///
/// # Errors
/// [`Error::InvalidUse`] for a name where the crate was built without the feature `hub`; [`Error::File`] for one that
/// cannot be downloaded.
pub fn locate(model: &Path) -> Result<PathBuf> {
    match name(model) {
        Some(name) if !model.exists() => fetch(name),
        _ => Ok(model.to_owned()),
    }
}

/// The path as a name on the Hub, if it can be one: two words of letters, digits, `-`, `_` and `.`.
fn name(model: &Path) -> Option<&str> {
    let text = model.to_str()?;
    let (org, own) = text.split_once('/')?;
    let is_word = |word: &str| {
        let mut chars = word.chars();
        chars.next().is_some_and(|c| c.is_ascii_alphanumeric())
            && chars.all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    (is_word(org) && is_word(own)).then_some(text)
}

#[cfg(not(feature = "hub"))]
fn fetch(name: &str) -> Result<PathBuf> {
    Err(Error::misuse(
        format!(
            "there is no folder '{name}', and this program was built without the feature `hub`, which downloads models"
        ),
        "build it with `--features hub`, or download the model and name its folder",
    ))
}

/// Downloads what a checkpoint consists of into the cache that other programs for the Hub have, too. Files that are there
/// are not downloaded again.
#[cfg(feature = "hub")]
fn fetch(name: &str) -> Result<PathBuf> {
    use hf_hub::api::sync::{ApiBuilder, ApiError};

    let failed = |e: ApiError| {
        let remedy = "check the name, the connection and, for models that are not public, the variable HF_TOKEN";
        Error::file(Path::new(name), format!("could not be downloaded: {e}"), remedy)
    };
    let mut builder = ApiBuilder::from_env();
    if let Ok(token) = std::env::var("HF_TOKEN") {
        builder = builder.with_token(Some(token));
    }
    let repository = builder.build().map_err(failed)?.model(name.to_owned());
    let files = repository.info().map_err(failed)?.siblings;
    for file in files
        .iter()
        .map(|f| f.rfilename.as_str())
        .filter(|file| is_wanted(file))
    {
        repository.get(file).map_err(failed)?;
    }
    let config = repository.get("config.json").map_err(failed)?;
    Ok(config.parent().map(Path::to_owned).unwrap_or_default())
}

/// Whether a file belongs to a checkpoint as this crate reads it.
#[cfg(any(feature = "hub", test))]
fn is_wanted(file: &str) -> bool {
    let is_kind = |end: &str| file.ends_with(end);
    // What sentence-transformers does with the rows of an encoder.
    let is_pooling = file
        .strip_suffix("_Pooling/config.json")
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()));
    is_pooling || !file.contains('/') && [".json", ".safetensors", ".jinja"].into_iter().any(is_kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_paths() {
        for yes in ["org/model", "HuggingFaceTB/SmolLM2-135M", "a/b.c_d"] {
            assert_eq!(name(Path::new(yes)), Some(yes));
        }
        for no in [
            "model",
            "/org/model",
            "./model",
            "../model",
            "a/b/c",
            "a/",
            "~/model",
            "a b/c",
            "",
        ] {
            assert_eq!(name(Path::new(no)), None, "{no}");
            assert_eq!(locate(Path::new(no)).expect("a path"), Path::new(no));
        }
    }

    #[cfg(not(feature = "hub"))]
    #[test]
    fn names_need_the_feature() {
        let error = locate(Path::new("org/model")).expect_err("no such folder").to_string();
        assert!(
            error.contains("'org/model'") && error.contains("--features hub"),
            "{error}"
        );
    }

    #[test]
    fn what_belongs_to_a_checkpoint() {
        for yes in [
            "config.json",
            "model-00001-of-00002.safetensors",
            "chat_template.jinja",
            "1_Pooling/config.json",
        ] {
            assert!(is_wanted(yes), "{yes}");
        }
        for no in [
            "onnx/model.onnx",
            "pytorch_model.bin",
            "runs/config.json",
            "README.md",
            "x/1_Pooling/config.json",
        ] {
            assert!(!is_wanted(no), "{no}");
        }
    }
}
