//! Data sets from arrays of NumPy: `.npz` archives, and pairs of `.npy` files.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use meganeura_core::files::open_regular;
use zip::ZipArchive;

use super::classes::{Labels, of_numbers};
use super::dataset::Dataset;
use super::error::DataError;
use super::npy::{NpyArray, NpyLabels, Raw, numbers_of, parse_raw, read_npy, read_npy_labels};
use super::stream::Stream;

type Archive = ZipArchive<BufReader<File>>;

/// The data set built from two arrays.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrays {
    /// The examples.
    pub data: Dataset,
    /// Labels as they are in the file, by class id.
    pub class_names: Vec<String>,
}

/// Returns the names of the arrays in the `.npz` file at `path`, sorted.
///
/// # Errors
///
/// [`DataError::Io`], or [`DataError::Npy`] for a file that is not an archive.
pub fn npz_names(path: impl AsRef<Path>) -> Result<Vec<String>, DataError> {
    let path = path.as_ref();
    Ok(names(&open(path, &path.display().to_string())?))
}

/// Reads one array of the `.npz` file at `path`, as `numpy.savez` and `numpy.savez_compressed` write them.
///
/// # Errors
///
/// [`DataError::NotFound`] when it holds no such array; [`DataError::Io`]; [`DataError::Npy`] for a file that
/// is not an archive, or damaged, and as [`parse_npy`](super::parse_npy).
pub fn read_npz(path: impl AsRef<Path>, array: &str) -> Result<NpyArray, DataError> {
    numbers_of(raw(path.as_ref(), array)?)
}

/// Reads an array like [`read_npz`], but also accepts text (`<U10` and `|S10`).
///
/// # Errors
///
/// The errors of [`read_npz`], except that text is accepted.
pub fn read_npz_labels(path: impl AsRef<Path>, array: &str) -> Result<NpyLabels, DataError> {
    Ok(NpyLabels::of(raw(path.as_ref(), array)?))
}

fn raw(path: &Path, array: &str) -> Result<Raw, DataError> {
    let name = path.display().to_string();
    let mut archive = open(path, &name)?;
    let there = names(&archive);
    // NumPy takes names with and without the ending.
    let array = array.strip_suffix(".npy").unwrap_or(array);
    if !there.iter().any(|n| n == array) {
        return Err(DataError::NotFound {
            name,
            what: "array",
            wanted: array.into(),
            there,
        });
    }
    let entry = archive
        .by_name(&format!("{array}.npy"))
        .map_err(|e| damaged(&name, &e))?;
    let (size, stored) = (entry.size(), entry.compressed_size());
    let full_name = format!("{name}: array '{array}'");
    parse_raw(Stream::from_reader(entry, size, stored, &full_name)?)
}

/// Builds a data set from two arrays of the `.npz` file at `path`: `x` holds the features, `[n,
/// feature_shape...]` or `[n]`, `y` the labels, `[n]` or `[n, 1]`, whole numbers of any type and range, or text.
///
/// Features become `f32` and are not scaled. `classes` are the labels by class id, such as those of
/// the training data for the test data. Without them, classes are the numbers that occur, in their
/// order, or the texts, in the order of their characters.
///
/// # Errors
///
/// The errors of [`read_npz`]; [`DataError::Npy`] for arrays of other shapes, and for labels that
/// are not whole numbers, empty, or none of the given classes; [`DataError::CountMismatch`]; the
/// errors of [`Dataset::new`].
///
/// # Example
///
/// ```no_run
/// use meganeura_nn::data::{Standardiser, npz_dataset};
///
/// # fn main() -> Result<(), meganeura_nn::data::DataError> {
/// // In Python: numpy.savez("images.npz", x=images, y=labels)
/// let arrays = npz_dataset("images.npz", "x", "y", None)?;
/// let (train, test) = arrays.data.split(0.2, 0)?;
/// let scale = Standardiser::fit_global(&train);
/// let (train, test) = (train.standardised(&scale)?, test.standardised(&scale)?);
/// # let _ = (train, test);
/// # Ok(())
/// # }
/// ```
pub fn npz_dataset(path: impl AsRef<Path>, x: &str, y: &str, classes: Option<&[String]>) -> Result<Arrays, DataError> {
    let path = path.as_ref();
    combine(&read_npz(path, x)?, &read_npz_labels(path, y)?, classes)
}

/// Builds a data set like [`npz_dataset`] from two `.npy` files.
///
/// # Errors
///
/// The errors of [`npz_dataset`].
pub fn npy_dataset(x: impl AsRef<Path>, y: impl AsRef<Path>, classes: Option<&[String]>) -> Result<Arrays, DataError> {
    combine(&read_npy(x)?, &read_npy_labels(y)?, classes)
}

fn combine(x: &NpyArray, y: &NpyLabels, classes: Option<&[String]>) -> Result<Arrays, DataError> {
    let (images, feature_shape) = match *x.shape() {
        [n] => (n, vec![1]),
        [n, ref shape @ ..] => (n, shape.to_vec()),
        [] => {
            return Err(refuse(
                x.name(),
                "features need a shape [examples, ...], this is a single number".into(),
            ));
        }
    };
    let labels = match *y.shape() {
        [n] | [n, 1] => n,
        ref shape => {
            let reason = format!(
                "labels need the shape [examples], found {shape:?}; make class ids of one-hot rows with numpy.argmax"
            );
            return Err(refuse(y.name(), reason));
        }
    };
    if images != labels {
        return Err(DataError::CountMismatch {
            images_name: x.name().into(),
            labels_name: y.name().into(),
            images,
            labels,
        });
    }
    let (labels, class_names) = match (y, classes) {
        (NpyLabels::Numbers(y), None) => of_numbers(&y.to_i64()?),
        (NpyLabels::Numbers(y), Some(classes)) => known(y, &y.to_i64()?, classes)?,
        (NpyLabels::Text(y), classes) => {
            let mut labels = Labels::of_texts(classes);
            for (row, text) in y.texts().enumerate() {
                let pushed = labels.push(&text?);
                pushed.map_err(|reason| refuse(y.name(), format!("row {row}: {reason}")))?;
            }
            labels.finish().map_err(|reason| refuse(y.name(), reason))?
        }
    };
    let data = Dataset::new(x.name(), x.to_f32(), feature_shape, labels, class_names.len().max(1))?;
    Ok(Arrays { data, class_names })
}

/// Returns the ids of labels that must be among the given classes.
fn known(y: &NpyArray, numbers: &[i64], classes: &[String]) -> Result<(Vec<u32>, Vec<String>), DataError> {
    let mut labels = Labels::of(classes);
    for (row, number) in numbers.iter().enumerate() {
        let pushed = labels.push(&number.to_string());
        pushed.map_err(|reason| refuse(y.name(), format!("row {row}: {reason}")))?;
    }
    labels.finish().map_err(|reason| refuse(y.name(), reason))
}

fn refuse(name: &str, reason: String) -> DataError {
    DataError::Npy {
        name: name.into(),
        reason,
    }
}

fn open(path: &Path, name: &str) -> Result<Archive, DataError> {
    let file = open_regular(path).map_err(|source| DataError::Io {
        name: name.into(),
        source,
    })?;
    ZipArchive::new(BufReader::new(file)).map_err(|e| damaged(name, &e))
}

fn damaged(name: &str, error: &zip::result::ZipError) -> DataError {
    DataError::Npy {
        name: name.into(),
        reason: format!("not a .npz file, or a damaged one: {error}; save the arrays with numpy.savez"),
    }
}

fn names(archive: &Archive) -> Vec<String> {
    let files = archive.file_names().filter_map(Result::ok);
    let mut names: Vec<String> = files
        .filter_map(|n| n.strip_suffix(".npy").map(str::to_owned))
        .collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests;
