//! Models by the names that they have on the Hugging Face Hub: downloads into the cache that programs for the Hub share.
//!
//! [`pull`] needs the feature `hub`; without it, it is the error [`PullError::NotBuilt`].

#[cfg(feature = "hub")]
mod download;
mod error;
#[cfg(any(feature = "hub", test))]
mod wanted;

use std::path::{Path, PathBuf};

use meganeura_core::Result;

pub use error::PullError;

/// What is downloaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PullRequest {
    /// The name on the Hub: `ORG/NAME`.
    pub name: String,
    /// A branch, a tag or a commit; the main revision if `None`.
    pub revision: Option<String>,
    /// A GGUF file of the repository, which is downloaded instead of a checkpoint: the first one of several parts stands for
    /// all. If `None` and there are no safetensors files, it is the only GGUF model of the repository.
    pub file: Option<String>,
}

impl PullRequest {
    /// A request for `ORG/NAME` or `ORG/NAME@REVISION`.
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

/// Is told how a download goes on.
pub trait Progress {
    /// The download of a file of so many bytes begins, or begins again.
    fn begin(&mut self, file: &str, bytes: u64);
    /// So many bytes more are there; those of an earlier download that is continued are told at once.
    fn advance(&mut self, bytes: u64);
    /// The file is there.
    fn finish(&mut self);
}

/// Tells nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&mut self, file: &str, bytes: u64) {
        log::info!("downloading '{file}', {bytes} bytes");
    }

    fn advance(&mut self, _: u64) {}

    fn finish(&mut self) {}
}

/// The cache that programs for the Hub share: `HF_HUB_CACHE`, or `HUGGINGFACE_HUB_CACHE`, or `hub` in `HF_HOME`, else
/// `huggingface/hub` in `XDG_CACHE_HOME` or in `.cache` of `HOME`. `None` where there is nothing of that. It need not exist.
pub fn cache_folder() -> Option<PathBuf> {
    let cache = variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE"));
    cache.or_else(|| Some(home()?.join("hub")))
}

/// The folder of programs for the Hub.
fn home() -> Option<PathBuf> {
    let caches = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    variable("HF_HOME").or_else(|| Some(caches()?.join("huggingface")))
}

/// A folder that a variable names.
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// Downloads what a model consists of into the [cache](cache_folder): configuration, tokenizer, templates and safetensors
/// files, or one GGUF model. Files that are there are not downloaded again, a download that was interrupted is continued, and
/// the main revision is not the new one before all of it is there. Returns what is opened: a folder, or a GGUF file.
///
/// `HF_ENDPOINT` is another address of the Hub. `HF_TOKEN`, or the file `token` in `HF_HOME`, is for models that are not
/// public.
///
/// # Errors
/// [`PullError`] says what went wrong: no such model or file, one that is not public, no connection, no space.
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

/// The folder of a checkpoint: one that exists, or else, of a name such as `org/model`, what it is [downloaded](pull) to.
/// Other paths are returned as they are, for whoever opens them to say what is missing.
///
/// # Errors
/// [`Error::InvalidUse`](meganeura_core::Error::InvalidUse) for a name where the crate was built without the feature `hub`;
/// [`Error::File`](meganeura_core::Error::File) for one that cannot be downloaded.
pub fn locate(model: &Path) -> Result<PathBuf> {
    match name(model) {
        Some(name) if !model.exists() => Ok(pull(&PullRequest::parse(name)?, &mut Silent)?),
        _ => Ok(model.to_owned()),
    }
}

/// The path as a name on the Hub, if it can be one: two words of letters, digits, `-`, `_` and `.`.
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
