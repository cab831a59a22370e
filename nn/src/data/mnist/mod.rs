//! MNIST, Fashion-MNIST, and other labelled images in IDX files.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use super::{
    dataset::{Dataset, check_labels},
    error::DataError,
    idx::{IdxArray, IdxData, read_idx},
};

/// Digits, or the ten kinds of clothing of Fashion-MNIST.
const CLASSES: usize = 10;

/// The largest value of an 8-bit pixel.
const FULL_SCALE: f32 = 255.0;

/// The name of one of the four files, as its two halves.
type FileName = (&'static str, &'static str);

/// Images and labels of the training set, then of the test set.
const FILES: [FileName; 4] = [
    ("train-images", "idx3-ubyte"),
    ("train-labels", "idx1-ubyte"),
    ("t10k-images", "idx3-ubyte"),
    ("t10k-labels", "idx1-ubyte"),
];

/// Loads `(train, test)` from the four MNIST files in the folder `dir`: images
/// scaled to 0..1 with feature shape `[1, 28, 28]` (channels, height, width),
/// and 10 classes. MNIST has 60,000 and 10,000 examples.
///
/// The files may be plain or gzip-compressed, and named `train-images-idx3-ubyte` or
/// `train-images.idx3-ubyte`, with `.gz` or without; a plain name is preferred if several exist.
/// Nothing is downloaded: the error for missing files lists them and their source. Fashion-MNIST
/// has the same names and format and is loaded in the same way.
///
/// # Errors
///
/// [`DataError::MnistMissing`], [`DataError::ImageShapeMismatch`] if the two sets differ in image
/// size, and the errors of [`idx_dataset`].
pub fn mnist(dir: impl AsRef<Path>) -> Result<(Dataset, Dataset), DataError> {
    let dir = dir.as_ref();
    let [train_images, train_labels, test_images, test_labels] = find_files(dir)?;
    let train = idx_dataset(train_images, train_labels, CLASSES)?;
    let test = idx_dataset(test_images, test_labels, CLASSES)?;
    if train.feature_shape() != test.feature_shape() {
        return Err(DataError::ImageShapeMismatch {
            dir: dir.into(),
            train: train.feature_shape().to_vec(),
            test: test.feature_shape().to_vec(),
        });
    }
    Ok((train, test))
}

/// Builds a data set from a `u8` image file of shape `[n, height, width]` and a `u8` label file of shape `[n]`. Pixels
/// are divided by 255; the feature shape is `[1, height, width]`; the data set has the name of the image file.
///
/// # Errors
///
/// The errors of [`read_idx`], [`DataError::IdxKind`] for another element type or number of
/// dimensions, [`DataError::CountMismatch`], and [`DataError::LabelOutOfRange`] for a label that is
/// not below `classes`.
pub fn idx_dataset(images: impl AsRef<Path>, labels: impl AsRef<Path>, classes: usize) -> Result<Dataset, DataError> {
    let images_name = images.as_ref().display().to_string();
    let labels_name = labels.as_ref().display().to_string();

    let (label_shape, labels) = read_u8(labels.as_ref(), 1, "u8 labels of shape [n]")?;
    let (image_shape, pixels) = read_u8(images.as_ref(), 3, "u8 images of shape [n, h, w]")?;
    if image_shape[0] != label_shape[0] {
        return Err(DataError::CountMismatch {
            images_name,
            labels_name,
            images: image_shape[0],
            labels: label_shape[0],
        });
    }
    let labels: Vec<u32> = labels.into_iter().map(u32::from).collect();
    // `Dataset::new` checks this too, but would blame the image file.
    check_labels(&labels_name, &labels, classes)?;

    let features = pixels.into_iter().map(|pixel| f32::from(pixel) / FULL_SCALE).collect();
    let feature_shape = vec![1, image_shape[1], image_shape[2]];
    log::debug!("{images_name}: {} images of {feature_shape:?}", labels.len());
    Dataset::new(images_name, features, feature_shape, labels, classes)
}

/// Returns shape and elements of the file at `path`, which must hold `u8` of `rank` dimensions;
/// `expected` describes that in the error.
fn read_u8(path: &Path, rank: usize, expected: &'static str) -> Result<(Vec<usize>, Vec<u8>), DataError> {
    let array: IdxArray = read_idx(path)?;
    let found = format!("{} of shape {:?}", array.dtype(), array.shape());
    match array.into_parts() {
        (shape, IdxData::U8(data)) if shape.len() == rank => Ok((shape, data)),
        _ => Err(DataError::IdxKind {
            name: path.display().to_string(),
            expected,
            found,
        }),
    }
}

/// Returns the paths of [`FILES`] in `dir`, or an error with all missing files.
fn find_files(dir: &Path) -> Result<[PathBuf; 4], DataError> {
    let [a, b, c, d] = FILES.map(|file| find_file(dir, file));
    match [a?, b?, c?, d?] {
        [Some(a), Some(b), Some(c), Some(d)] => Ok([a, b, c, d]),
        found => {
            let absent = FILES.iter().zip(found).filter(|(_, path)| path.is_none());
            Err(DataError::MnistMissing {
                dir: dir.into(),
                missing: absent
                    .map(|((stem, suffix), _)| format!("{stem}-{suffix}.gz"))
                    .collect(),
            })
        }
    }
}

/// Returns the first variant of the file's name that exists in `dir`.
fn find_file(dir: &Path, (stem, suffix): FileName) -> Result<Option<PathBuf>, DataError> {
    for extension in ["", ".gz"] {
        for separator in ['-', '.'] {
            let path = dir.join(format!("{stem}{separator}{suffix}{extension}"));
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_file() => return Ok(Some(path)),
                Ok(_) => {} // a folder: some tools unpack into one of that name
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
                // A file that exists but cannot be accessed is not missing.
                Err(source) => {
                    return Err(DataError::Io {
                        name: path.display().to_string(),
                        source,
                    });
                }
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
