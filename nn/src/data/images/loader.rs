//! Batches of image files, which threads decode ahead of their use.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::transform::ImageTransform;
use crate::data::error::DataError;

/// Images of a batch, preprocessed on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageBatch {
    /// Index of the first image among the files.
    pub first: usize,
    /// Number of images, at least 1; less than the batch size for the last batch.
    pub count: usize,
    /// `[batch, words]`: bytes of each image, four in a word, for [`ImageTransform::apply`]. Rows without an image are zeros.
    pub words: Vec<u32>,
}

/// Batches of image files in their order. Threads decode the images of the next batch while the caller uses one.
///
/// ```no_run
/// use meganeura_nn::data::{ImageLoader, ImageTransform, image_files};
///
/// # fn main() -> Result<(), meganeura_nn::data::DataError> {
/// let transform = ImageTransform::imagenet([224, 224]);
/// for batch in ImageLoader::new(image_files("photos")?, transform, 32)? {
///     let batch = batch?;
///     println!("{} images from file {}", batch.count, batch.first);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ImageLoader {
    shared: Arc<Shared>,
    batch: usize,
    threads: Vec<JoinHandle<()>>,
}

/// State that the threads share.
#[derive(Debug)]
struct Shared {
    files: Vec<PathBuf>,
    transform: ImageTransform,
    /// Maximum number of images that are decoded and not taken.
    ahead: usize,
    threads: usize,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Progress {
    /// Index of the next file to decode.
    next: usize,
    /// Number of images that the caller has taken.
    taken: usize,
    decoded: BTreeMap<usize, Result<Vec<u8>, DataError>>,
    is_cancelled: bool,
}

impl Shared {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        // A panic while the lock is held cannot leave the progress half changed.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'g>(&self, progress: MutexGuard<'g, Progress>) -> MutexGuard<'g, Progress> {
        self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner)
    }

    /// Decodes files until none is left.
    fn decode(&self) {
        let mut progress = self.progress();
        loop {
            let next = progress.next;
            if progress.is_cancelled || next >= self.files.len() {
                return;
            }
            if next >= progress.taken + self.ahead {
                progress = self.wait(progress);
                continue;
            }
            progress.next += 1;
            drop(progress);
            let file = &self.files[next];
            let read = || self.transform.read_with(file, self.threads);
            // Decoders of hostile files must not end the program or leave the caller waiting.
            let image = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read))
                .unwrap_or_else(|_| Err(super::refuse(file, "the decoder failed on it")));
            progress = self.progress();
            progress.decoded.insert(next, image);
            self.changed.notify_all();
        }
    }
}

impl ImageLoader {
    /// Starts to decode `files`, in batches of `batch` images, with one thread for each processor.
    ///
    /// # Errors
    /// [`DataError::ImageTransform`] for an invalid transform or a batch of 0; [`DataError::OutOfMemory`] if a batch does not
    /// fit into memory.
    pub fn new(files: Vec<PathBuf>, transform: ImageTransform, batch: usize) -> Result<Self, DataError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        ImageLoader::with_threads(files, transform, batch, threads)
    }

    /// Starts to decode with this number of threads (at least 1).
    ///
    /// # Errors
    /// Those of [`ImageLoader::new`].
    pub fn with_threads(
        files: Vec<PathBuf>,
        transform: ImageTransform,
        batch: usize,
        threads: usize,
    ) -> Result<Self, DataError> {
        transform.check()?;
        if batch == 0 {
            return Err(DataError::ImageTransform {
                message: "a batch has at least one image".into(),
            });
        }
        let threads = threads.clamp(1, files.len().max(1));
        // The batch of the caller, the next one, and an image of each thread.
        let bytes = (2 * batch.min(files.len()).max(1) + threads).saturating_mul(transform.bytes());
        drop(crate::data::dataset::reserve(
            "a batch of images",
            1,
            bytes.div_ceil(4),
        )?);
        let shared = Arc::new(Shared {
            files,
            transform,
            ahead: batch.saturating_mul(2).max(threads),
            threads,
            progress: Mutex::default(),
            changed: Condvar::new(),
        });
        let start = |_| {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name("images".into())
                .spawn(move || shared.decode())
        };
        let threads: Vec<_> = (0..threads).map_while(|i| start(i).ok()).collect();
        if threads.is_empty() {
            return Err(DataError::ImageTransform {
                message: "the system starts no thread that decodes images".into(),
            });
        }
        Ok(ImageLoader { shared, batch, threads })
    }

    /// Returns the number of files.
    pub fn images(&self) -> usize {
        self.shared.files.len()
    }

    /// Waits for the next image, and returns it with its index. Ends after the first error.
    pub(super) fn next_image(&mut self) -> Option<Result<(usize, Vec<u8>), DataError>> {
        let mut progress = self.shared.progress();
        let at = progress.taken;
        if progress.is_cancelled || at >= self.shared.files.len() {
            return None;
        }
        let image = loop {
            match progress.decoded.remove(&at) {
                Some(image) => break image,
                None => progress = self.shared.wait(progress),
            }
        };
        progress.taken += 1;
        progress.is_cancelled = image.is_err();
        drop(progress);
        self.shared.changed.notify_all();
        Some(image.map(|bytes| (at, bytes)))
    }
}

impl Iterator for ImageLoader {
    type Item = Result<ImageBatch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let words_of_image = self.shared.transform.words();
        let mut batch: Option<ImageBatch> = None;
        while batch.as_ref().is_none_or(|batch| batch.count < self.batch) {
            let (index, bytes) = match self.next_image() {
                Some(Ok(image)) => image,
                Some(Err(error)) => return Some(Err(error)),
                None => break,
            };
            let batch = batch.get_or_insert_with(|| ImageBatch {
                first: index,
                count: 0,
                words: Vec::with_capacity(self.batch * words_of_image),
            });
            let word = |bytes: &[u8]| {
                let mut word = [0; 4];
                word[..bytes.len()].copy_from_slice(bytes);
                u32::from_le_bytes(word)
            };
            batch.words.extend(bytes.chunks(4).map(word));
            batch.count += 1;
        }
        let mut batch = batch?;
        batch.words.resize(self.batch * words_of_image, 0);
        Some(Ok(batch))
    }
}

impl Drop for ImageLoader {
    fn drop(&mut self) {
        self.shared.progress().is_cancelled = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // Its panic was caught, and became an error.
            let _ = thread.join();
        }
    }
}
