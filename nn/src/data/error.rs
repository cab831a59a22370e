//! Errors of data sets.

use std::io;
use std::path::{Path, PathBuf};

/// An error while building, loading or iterating over a data set.
///
/// Every message names the data set or file, the expected and the found value, and often a remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file could not be opened or read.
    #[error("{name}: the file cannot be read")]
    Io {
        /// The file.
        name: String,
        /// Error of the operating system.
        source: io::Error,
    },

    /// A data set needs at least one example.
    #[error("{name}: no examples; a data set needs at least one")]
    Empty {
        /// The data set.
        name: String,
    },

    /// A text that is shorter than one example.
    #[error(
        "{name}: the text has {tokens} tokens, but an example of {rows} tokens and its next token need {}; use a \
         longer text, or shorter sequences",
        rows + 1
    )]
    ShortText {
        /// The text.
        name: String,
        /// Number of tokens of the text.
        tokens: usize,
        /// Number of tokens of an example.
        rows: usize,
    },

    /// A feature shape is empty, has a zero dimension, holds more elements
    /// than this machine can address, or does not match the features.
    #[error("{name}: feature shape {shape:?} is not usable: {reason}")]
    FeatureShape {
        /// The data set.
        name: String,
        /// Requested shape, without the example dimension.
        shape: Vec<usize>,
        /// Reason why it is invalid.
        reason: &'static str,
    },

    /// The number of features is not examples × feature elements.
    #[error(
        "{name}: {labels} labels with feature shape {shape:?} need {expected} feature values, \
         found {found}"
    )]
    LengthMismatch {
        /// The data set.
        name: String,
        /// Number of labels, which is the number of examples.
        labels: usize,
        /// Shape of one example.
        shape: Vec<usize>,
        /// Number of feature values needed.
        expected: usize,
        /// Number of feature values given.
        found: usize,
    },

    /// A data set needs at least one class.
    #[error("{name}: the number of classes is 0; it must be the largest label plus 1, or more")]
    NoClasses {
        /// The data set.
        name: String,
    },

    /// A label is not below the number of classes.
    #[error(
        "{name}: label {label} in row {row} is out of range, expected 0 to {}, for {classes} classes; correct the \
         label or raise the number of classes",
        classes.saturating_sub(1)
    )]
    LabelOutOfRange {
        /// The data set or label file.
        name: String,
        /// Zero-based row of the label.
        row: usize,
        /// The label found.
        label: u32,
        /// The number of classes.
        classes: usize,
    },

    /// A feature is NaN or infinite.
    #[error(
        "{name}: feature {feature} of row {row} is {value}; remove the row or replace the value, \
         one such value turns every weight into NaN"
    )]
    NonFinite {
        /// The data set.
        name: String,
        /// Zero-based row (example).
        row: usize,
        /// Zero-based feature within the row (column), in row-major order.
        feature: usize,
        /// The value found.
        value: f32,
    },

    /// A row index is not below the number of examples.
    #[error("{name}: row {index} does not exist, there are {len} examples (rows count from 0)")]
    RowOutOfRange {
        /// The data set.
        name: String,
        /// Requested index.
        index: usize,
        /// The number of examples.
        len: usize,
    },

    /// A split would leave one part empty, or its fraction is not between 0 and 1.
    #[error(
        "{name}: cannot hold out a fraction of {fraction} of {len} examples; the fraction must \
         lie between 0 and 1 and leave at least one example on either side"
    )]
    Split {
        /// The data set.
        name: String,
        /// Requested test fraction.
        fraction: f64,
        /// The number of examples.
        len: usize,
    },

    /// A value to divide by is zero, NaN or infinite.
    #[error("{name}: cannot divide features by {scale}; use a finite value other than 0")]
    Scale {
        /// The data set.
        name: String,
        /// Requested divisor.
        scale: f32,
    },

    /// A [`super::Standardiser`] was fitted on examples of another size.
    #[error(
        "{name}: the standardiser was fitted on {fitted} features per example, these have \
         {found}; fit it on data of the same shape"
    )]
    StandardiserShape {
        /// The data set.
        name: String,
        /// Number of features per example that it was fitted on.
        fitted: usize,
        /// Number of features per example found.
        found: usize,
    },

    /// The targets of regression cannot be used.
    #[error("{name}: targets: {reason}")]
    Targets {
        /// The data set.
        name: String,
        /// Reason why they are invalid.
        reason: String,
    },

    /// Means and deviations that a [`super::Standardiser`] cannot have.
    #[error("standardiser: {reason}")]
    Standardiser {
        /// Reason why they are invalid.
        reason: String,
    },

    /// An array would not fit into memory.
    #[error("{name}: cannot allocate a [{rows}, {columns}] array of f32; ask for fewer rows")]
    OutOfMemory {
        /// The data set.
        name: String,
        /// Number of requested rows.
        rows: usize,
        /// Number of values per row.
        columns: usize,
    },

    /// Compressed data that would take more memory than available.
    #[error(
        "{name}: {stored} compressed bytes need {needed} bytes of memory, but only {free} are free\n  help: if the \
         size is correct, train on less data, or on a machine with more memory"
    )]
    Expansion {
        /// The file or array.
        name: String,
        /// Bytes in the file.
        stored: u64,
        /// Bytes in memory, with the copies that training takes.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },

    /// A batch size of 0.
    #[error("{name}: the batch size is 0; use a size from 1 to {len}, the number of examples")]
    ZeroBatch {
        /// The data set.
        name: String,
        /// The number of examples.
        len: usize,
    },

    /// A batch size above the number of examples.
    #[error(
        "{name}: a batch of {batch} is larger than the data set of {len} examples; use a batch \
         size of at most {len}"
    )]
    BatchTooLarge {
        /// The data set.
        name: String,
        /// Requested batch size.
        batch: usize,
        /// The number of examples.
        len: usize,
    },

    /// A field of a CSV file violates the format.
    #[error("{name}: line {line}, column {column}: {reason}")]
    Csv {
        /// The file.
        name: String,
        /// One-based line.
        line: usize,
        /// One-based column (field).
        column: usize,
        /// Expected and found value.
        reason: String,
    },

    /// Images cannot be read.
    #[error("{}: {message}", path.display())]
    Images {
        /// The file or folder.
        path: PathBuf,
        /// Reason of the error.
        message: String,
    },

    /// Preprocessing of images that is not possible.
    #[error("preprocessing of images: {message}")]
    ImageTransform {
        /// Reason of the error.
        message: String,
    },

    /// A folder without images.
    #[error("{}: the folder contains no images (PNG, JPEG, BMP){}", folder.display(), other_folder(folder, subfolder.as_deref()))]
    NoImages {
        /// The folder.
        folder: PathBuf,
        /// First subfolder that contains images.
        subfolder: Option<String>,
    },

    /// A table does not have the columns of the training data.
    #[error(
        "{name}: the columns differ from those of the training data; missing: {}; unknown: {}; repeated: {}",
        listed(missing),
        listed(unknown),
        listed(twice)
    )]
    Columns {
        /// The file.
        name: String,
        /// Columns of the training data that the table lacks.
        missing: Vec<String>,
        /// Columns that the training data did not have.
        unknown: Vec<String>,
        /// Names that more than one column has.
        twice: Vec<String>,
    },

    /// A file has no column or array with this name.
    #[error("{name}: there is no {what} '{wanted}'; there are {}", listed(there))]
    NotFound {
        /// The file.
        name: String,
        /// Kind of the requested object: a column or an array.
        what: &'static str,
        /// Requested name.
        wanted: String,
        /// Existing names.
        there: Vec<String>,
    },

    /// A NumPy file is damaged, or has unsupported contents.
    #[error("{name}: {reason}")]
    Npy {
        /// The file, and the array if it holds several.
        name: String,
        /// Expected and found value.
        reason: String,
    },

    /// An augmentation with an invalid setting, or for examples of another shape.
    #[error("augmentation '{transform}': {reason}")]
    Augment {
        /// The transform.
        transform: String,
        /// Reason of the error, and a remedy.
        reason: String,
    },

    /// A file does not start like an IDX file.
    #[error(
        "{name}: not an IDX file: expected the first two bytes 00 00, found {:02x} {:02x}; \
         download it again (a common cause is a web page saved under the file's name)",
        found[0], found[1]
    )]
    NotIdx {
        /// The file.
        name: String,
        /// The first two bytes.
        found: [u8; 2],
    },

    /// The element type byte of an IDX header is none of the six defined.
    #[error(
        "{name}: unknown IDX element type 0x{code:02x}; expected 08 (u8), 09 (i8), 0b (i16), \
         0c (i32), 0d (f32) or 0e (f64); the file is damaged or not IDX"
    )]
    IdxType {
        /// The file.
        name: String,
        /// The type byte found.
        code: u8,
    },

    /// An IDX header declares no dimensions, or one of size 0.
    #[error(
        "{name}: IDX header declares the shape {shape:?}; expected at least one dimension and \
         none of size 0; the file is damaged or holds no data"
    )]
    IdxEmpty {
        /// The file.
        name: String,
        /// The declared shape.
        shape: Vec<usize>,
    },

    /// An IDX header declares more data than the reader accepts.
    #[error(
        "{name}: IDX header declares the shape {shape:?} of {element_bytes}-byte elements; at \
         most {limit} bytes are accepted; the file is damaged, or split it into smaller ones"
    )]
    IdxTooLarge {
        /// The file.
        name: String,
        /// The declared shape.
        shape: Vec<usize>,
        /// Bytes per element.
        element_bytes: usize,
        /// Maximum number of bytes accepted.
        limit: usize,
    },

    /// Data ends before the end that its header declares.
    #[error(
        "{name}: truncated: expected {expected} bytes (uncompressed), found {found}; \
         download or copy the file again"
    )]
    Truncated {
        /// The file.
        name: String,
        /// Bytes declared, header included, after decompression.
        expected: u64,
        /// Bytes found, after decompression.
        found: u64,
    },

    /// Data continues after the end that its header declares.
    #[error(
        "{name}: expected {expected} bytes (uncompressed), found {found} or more; the header or \
         the file is damaged, download it again"
    )]
    TrailingBytes {
        /// The file.
        name: String,
        /// Bytes declared, header included, after decompression.
        expected: u64,
        /// Bytes found, as far as they were read; compressed input is not read further than one
        /// byte past the end.
        found: u64,
    },

    /// A gzip stream is cut, has a wrong checksum, or is otherwise invalid.
    #[error("{name}: damaged gzip data: {source}; download or copy the file again")]
    Gzip {
        /// The file.
        name: String,
        /// Error of the decompressor.
        source: io::Error,
    },

    /// An IDX array is valid but not of the kind that is needed here.
    #[error("{name}: expected {expected}, found {found}; is this the right file?")]
    IdxKind {
        /// The file.
        name: String,
        /// The kind needed, such as `u8 labels of shape [n]`.
        expected: &'static str,
        /// The kind found: element type and shape.
        found: String,
    },

    /// An image file and its label file hold different numbers of examples.
    #[error(
        "{images_name} holds {images} images but {labels_name} holds {labels} labels; \
         the two files must come from the same set"
    )]
    CountMismatch {
        /// The image file.
        images_name: String,
        /// The label file.
        labels_name: String,
        /// Number of images.
        images: usize,
        /// Number of labels.
        labels: usize,
    },

    /// Training and test images differ in size.
    #[error("{dir}: training images have shape {train:?} but test images {test:?}; \
             the files must come from the same set", dir = dir.display())]
    ImageShapeMismatch {
        /// The folder.
        dir: PathBuf,
        /// Shape of one training image.
        train: Vec<usize>,
        /// Shape of one test image.
        test: Vec<usize>,
    },

    /// MNIST files were not found.
    #[error(
        "{dir}: {count} of the 4 MNIST files are missing: {list}. Download exactly these original MNIST files, from \
         Yann LeCun's MNIST page (http://yann.lecun.com/exdb/mnist/) or any mirror such as \
         https://ossci-datasets.s3.amazonaws.com/mnist/, and put them into the folder {dir}, packed or unpacked. The \
         Fashion-MNIST files have the same names and format and also work.",
        dir = dir.display(), count = missing.len(), list = missing.join(", ")
    )]
    MnistMissing {
        /// Searched folder.
        dir: PathBuf,
        /// The files to download, by their usual names.
        missing: Vec<String>,
    },
}

/// Returns the remedy for a folder that only contains folders of images.
fn other_folder(folder: &Path, subfolder: Option<&str>) -> String {
    let help = |name| {
        let other = folder.join(name);
        format!(
            ", only folders of images\n  help: use one of them, such as '{}'",
            other.display()
        )
    };
    subfolder.map(help).unwrap_or_default()
}

/// Returns the names with commas between them, unless they are too many to help.
pub(super) fn listed(names: &[String]) -> String {
    const MAX: usize = 20;
    let mut text = names
        .iter()
        .take(MAX)
        .map(|n| format!("'{n}'"))
        .collect::<Vec<_>>()
        .join(", ");
    if names.is_empty() {
        text.push_str("none");
    } else if names.len() > MAX {
        text.push_str(&format!(" and {} more", names.len() - MAX));
    }
    text
}
