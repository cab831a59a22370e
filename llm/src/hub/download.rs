//! Downloads of files from the Hub.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use meganeura_core::files::sha256;

use super::wanted::wanted;
use super::{Progress, PullError, PullRequest, cache_folder, home};
use crate::tensors::shard::map;

/// Default address of the Hub; `HF_ENDPOINT` overrides it.
const ENDPOINT: &str = "https://huggingface.co";
/// Maximum attempts to download a file whose connection breaks off.
const TRIES: usize = 4;

/// A repository, and its description in errors.
struct Source<'a> {
    request: &'a PullRequest,
    endpoint: String,
    folder: PathBuf,
    has_token: bool,
    api: Api,
    cache: Cache,
}

pub(super) fn pull(request: &PullRequest, progress: &mut dyn Progress) -> Result<PathBuf, PullError> {
    let source = Source::new(request)?;
    let revision = request.revision.as_deref().unwrap_or("main");
    let asked = source.repository(revision);
    let info = source
        .api
        .repo(asked.clone())
        .info()
        .map_err(|e| source.error(e, true))?;
    let is_commit = !info.sha.is_empty() && info.sha.bytes().all(|c| c.is_ascii_alphanumeric());
    if !is_commit {
        return Err(source.failed("the Hub names no commit"));
    }
    let names: Vec<String> = info.siblings.into_iter().map(|file| file.rfilename).collect();
    let (files, is_gguf) = wanted(request, &names)?;
    // All files are those of one commit, even if the branch changes meanwhile.
    let commit = source.repository(&info.sha);
    let repository = source.api.repo(commit.clone());
    let snapshot = source.cache.repo(commit).pointer_path(&info.sha);
    for file in &files {
        // Links with missing targets do not count as files.
        if !snapshot.join(file).exists() {
            source.fetch(&repository, file, progress)?;
        }
    }
    let cached = source.cache.repo(asked);
    cached
        .create_ref(&info.sha)
        .map_err(|e| source.error(e.into(), false))?;
    match files.first().filter(|_| is_gguf) {
        Some(first) => Ok(snapshot.join(first)),
        None => Ok(snapshot),
    }
}

impl<'a> Source<'a> {
    fn new(request: &'a PullRequest) -> Result<Self, PullError> {
        let failed = |message: String| PullError::Failed {
            name: request.name.clone(),
            message,
        };
        let folder = cache_folder().ok_or_else(|| failed("neither HF_HOME nor HOME names a folder for it".into()))?;
        let endpoint = text_of("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let in_file = || fs::read_to_string(home()?.join("token")).ok();
        let token = text_of("HF_TOKEN")
            .or_else(in_file)
            .map(|token| token.trim().to_owned());
        let token = token.filter(|token| !token.is_empty());
        let has_token = token.is_some();
        let cache = Cache::new(folder.clone());
        let builder = ApiBuilder::from_cache(cache.clone()).with_endpoint(endpoint.clone());
        let api = builder.with_token(token).with_progress(false).build();
        Ok(Source {
            request,
            endpoint,
            folder,
            has_token,
            api: api.map_err(|e| failed(e.to_string()))?,
            cache,
        })
    }

    fn repository(&self, revision: &str) -> Repo {
        Repo::with_revision(self.request.name.clone(), RepoType::Model, revision.to_owned())
    }

    /// Downloads a file, or the missing part of it.
    fn fetch(&self, repository: &ApiRepo, file: &str, progress: &mut dyn Progress) -> Result<(), PullError> {
        let mut tries = 1;
        loop {
            let mut size = 0;
            let told = ProgressAdapter {
                progress: &mut *progress,
                size: &mut size,
            };
            match repository.download_with_progress(file, told) {
                Ok(path) => return check(&path, file, size),
                Err(error) if tries < TRIES && self.may_go_on(repository, file, &error) => tries += 1,
                Err(error) => return Err(self.error(error, false)),
            }
        }
    }

    /// Returns true if a retry makes sense: the connection broke off, or an earlier partial
    /// download cannot be continued. This also removes such a partial download.
    fn may_go_on(&self, repository: &ApiRepo, file: &str, error: &ApiError) -> bool {
        const NOTHING_LEFT: u16 = 416;
        let is_left = match error {
            ApiError::InvalidResume => true,
            ApiError::RequestError(e) => matches!(**e, ureq::Error::StatusCode(NOTHING_LEFT)),
            _ => false,
        };
        if !is_left {
            return matches!(error, ApiError::IoError(e) if matches!(
                e.kind(),
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::TimedOut
            ));
        }
        let Ok(metadata) = self.api.metadata(&repository.url(file)) else {
            return false;
        };
        let blob = self.cache.repo(self.repository("main")).blob_path(metadata.etag());
        fs::remove_file(blob.with_extension("part")).is_ok()
    }

    fn failed(&self, message: impl Into<String>) -> PullError {
        PullError::Failed {
            name: self.request.name.clone(),
            message: message.into(),
        }
    }

    /// Converts an error of the client: of a question about the repository, or of the download of a
    /// file.
    fn error(&self, error: ApiError, is_question: bool) -> PullError {
        let unreachable = |message: String| PullError::Unreachable {
            endpoint: self.endpoint.clone(),
            message,
        };
        let of_io = |e: &std::io::Error| match e.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => PullError::NoSpace {
                folder: self.folder.clone(),
            },
            ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::BrokenPipe
            | ErrorKind::TimedOut => unreachable(e.to_string()),
            _ => self.failed(e.to_string()),
        };
        match &error {
            ApiError::IoError(e) => of_io(e),
            ApiError::LockAcquisition(_) => self.failed("another program downloads the same file"),
            ApiError::RequestError(e) => match &**e {
                ureq::Error::StatusCode(401 | 403 | 404) if is_question => PullError::NotFound {
                    name: match &self.request.revision {
                        Some(revision) => format!("{}@{revision}", self.request.name),
                        None => self.request.name.clone(),
                    },
                    endpoint: self.endpoint.clone(),
                },
                ureq::Error::StatusCode(401 | 403) => PullError::Gated {
                    name: self.request.name.clone(),
                    page: format!("{}/{}", self.endpoint, self.request.name),
                    has_token: self.has_token,
                },
                ureq::Error::StatusCode(status) => {
                    self.failed(format!("{} answers with status {status}", self.endpoint))
                }
                ureq::Error::Io(e) => of_io(e),
                ureq::Error::HostNotFound | ureq::Error::ConnectionFailed | ureq::Error::Timeout(_) => {
                    unreachable(e.to_string())
                }
                other => self.failed(other.to_string()),
            },
            other => self.failed(other.to_string()),
        }
    }
}

/// Checks that a file has its size, and its SHA-256 if its name is one. A damaged file is removed.
fn check(path: &Path, file: &str, size: u64) -> Result<(), PullError> {
    const SHA256_DIGITS: usize = 64;
    let blob = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = blob.file_name().unwrap_or_default().to_string_lossy();
    let is_sum = name.len() == SHA256_DIGITS && name.bytes().all(|digit| digit.is_ascii_hexdigit());
    let is_right = || {
        if fs::metadata(&blob).map_err(drop)?.len() != size {
            return Err(());
        }
        let is_other = is_sum && size > 0 && sha256([&map(&blob, "").map_err(drop)?[..]]) != name.to_lowercase();
        if is_other { Err(()) } else { Ok(()) }
    };
    is_right().map_err(|()| {
        // The download has already failed, so errors of the removal are ignored.
        let _ = fs::remove_file(path);
        let _ = fs::remove_file(&blob);
        PullError::Damaged { file: file.to_owned() }
    })
}

/// Returns the value of a variable, unless it is empty.
fn text_of(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// An adapter that forwards the client's progress, and keeps the size of the file.
struct ProgressAdapter<'a> {
    progress: &'a mut dyn Progress,
    size: &'a mut u64,
}

impl hf_hub::api::Progress for ProgressAdapter<'_> {
    fn init(&mut self, size: usize, file: &str) {
        *self.size = size as u64;
        self.progress.begin(file, size as u64);
    }

    fn update(&mut self, size: usize) {
        self.progress.advance(size as u64);
    }

    fn finish(&mut self) {
        self.progress.finish();
    }
}
