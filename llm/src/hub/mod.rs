//! Models by their names on the Hugging Face Hub: downloads into the cache that programs for the
//! Hub share.
//!
//! [`pull`] needs the feature `hub`; without it, it returns the error [`PullError::NotBuilt`].

#[cfg(feature = "hub")]
mod download;
mod error;
#[cfg(any(feature = "hub", test))]
mod wanted;

use std::path::{Path, PathBuf};

use meganeura_core::Result;

pub use error::PullError;

/// A request for a download.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PullRequest {
    /// The name on the Hub: `ORG/NAME`.
    pub name: String,
    /// A branch, a tag or a commit; the main revision if `None`.
    pub revision: Option<String>,
    /// GGUF file of the repository, which is downloaded instead of a checkpoint; the first one of
    /// several parts selects all. If `None` and there are no safetensors files, it is the only GGUF
    /// model of the repository.
    pub file: Option<String>,
}

impl PullRequest {
    /// Parses a request for `ORG/NAME` or `ORG/NAME@REVISION`.
    ///
    /// # Errors
    /// [`PullError::InvalidName`]: a text that cannot be a name on the Hub.
    pub fn parse(text: &str) -> Result<Self, PullError> {
        let (own, revision) = match text.split_once('@') {
            Some((own, revision)) => (own, Some(revision)),
            None => (text, None),
        };
        let is_revision = |text: &str| {
            let parts = text.split('/');
            let is_part = |part: &str| is_word(part) && !part.contains("..");
            parts.into_iter().all(is_part)
        };
        if name(Path::new(own)).is_none() || !revision.is_none_or(is_revision) {
            return Err(PullError::InvalidName { name: text.to_owned() });
        }
        Ok(PullRequest {
            name: own.to_owned(),
            revision: revision.map(str::to_owned),
            file: None,
        })
    }
}

/// Callbacks with the progress of a download.
pub trait Progress {
    /// Reports that the download of a file of this size begins, or begins again.
    fn begin(&mut self, file: &str, bytes: u64);
    /// Reports that `bytes` more bytes are stored. If an earlier download is continued, its bytes are reported in a
    /// single call.
    fn advance(&mut self, bytes: u64);
    /// Reports that the file is complete.
    fn finish(&mut self);
}

/// A [`Progress`] that only logs.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogOnlyProgress;

impl Progress for LogOnlyProgress {
    fn begin(&mut self, file: &str, bytes: u64) {
        log::info!("downloading '{file}', {bytes} bytes");
    }

    fn advance(&mut self, _: u64) {}

    fn finish(&mut self) {}
}

/// Returns the cache that programs for the Hub share: `HF_HUB_CACHE`, or `HUGGINGFACE_HUB_CACHE`,
/// or `hub` in `HF_HOME`, else `huggingface/hub` in `XDG_CACHE_HOME` or in `.cache` of `HOME`.
/// `None` if none of these variables is set. The folder need not exist.
pub fn cache_folder() -> Option<PathBuf> {
    let cache = variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE"));
    cache.or_else(|| Some(home()?.join("hub")))
}

/// Returns the folder of programs for the Hub.
fn home() -> Option<PathBuf> {
    let caches = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    variable("HF_HOME").or_else(|| Some(caches()?.join("huggingface")))
}

/// Returns the folder in a variable.
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// Downloads the files of a model into the [cache](cache_folder): configuration, tokenizer,
/// templates and safetensors files, or one GGUF model. Existing files are not downloaded again, and
/// an interrupted download is continued. The main revision only changes to the new one when all
/// files are complete. Returns the path to open: a folder, or a GGUF file.
///
/// `HF_ENDPOINT` is another address of the Hub. `HF_TOKEN`, or the file `token` in `HF_HOME`, is
/// for models that are not public.
///
/// # Errors
/// [`PullError`]: no such model or file, one that is not public, no connection, no space.
pub fn pull(request: &PullRequest, progress: &mut dyn Progress) -> Result<PathBuf, PullError> {
    #[cfg(feature = "hub")]
    return download::pull(request, progress);
    #[cfg(not(feature = "hub"))]
    {
        let _ = progress;
        Err(PullError::NotBuilt {
            name: request.name.clone(),
        })
    }
}

/// Returns the folder of a checkpoint: an existing path, or for a name such as `org/model` the path
/// of its [download](pull). Other paths are returned unchanged; opening them reports the error.
///
/// # Errors
/// [`Error::InvalidUse`](meganeura_core::Error::InvalidUse) for a name if the crate was built
/// without the feature `hub`; [`Error::File`](meganeura_core::Error::File) for one that cannot be
/// downloaded.
pub fn locate(model: &Path) -> Result<PathBuf> {
    match name(model) {
        Some(name) if !model.exists() => Ok(pull(&PullRequest::parse(name)?, &mut LogOnlyProgress)?),
        _ => Ok(model.to_owned()),
    }
}

/// Returns the path as a name on the Hub, if it can be one: two words of letters, digits, `-`, `_`
/// and `.`.
pub fn name(model: &Path) -> Option<&str> {
    let text = model.to_str()?;
    let (org, own) = text.split_once('/')?;
    (is_word(org) && is_word(own)).then_some(text)
}

fn is_word(word: &str) -> bool {
    let mut chars = word.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphanumeric())
        && chars.all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
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

    #[test]
    fn requests_are_names_with_revisions() {
        let request = PullRequest::parse("org/model@refs/pr/1").expect("a request");
        assert_eq!(
            (request.name.as_str(), request.revision.as_deref()),
            ("org/model", Some("refs/pr/1"))
        );
        assert_eq!(PullRequest::parse("org/model").expect("a request").revision, None);
        for no in [
            "model",
            "org/model@",
            "org/model@../x",
            "org/model@a..b",
            "org/../x",
            "@main",
            "org/model@a b",
        ] {
            let error = PullRequest::parse(no).expect_err(no);
            assert_eq!(error, PullError::InvalidName { name: no.into() });
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
}
