//! Data sets: the shipped digits, files in the formats of MNIST, CSV and NumPy, and mini-batches.
//!
//! A [`Dataset`] holds labelled examples in memory: `f32` features of shape
//! `[n, feature_shape...]` and one `u32` class label each, or `f32` targets of
//! regression. Every constructor
//! checks its input, so code that is handed a `Dataset` can rely on matching
//! lengths, labels below [`Dataset::classes`], and finite features.
//!
//! | Source | Function |
//! |---|---|
//! | 1,797 handwritten digits, 8×8, embedded in the crate | [`digits()`], [`digits_split`] |
//! | MNIST or Fashion-MNIST files in a folder | [`mnist()`] |
//! | any pair of IDX files, plain or gzip | [`idx_dataset`] |
//! | a single IDX array | [`read_idx`], [`parse_idx`] |
//! | a table of numbers as CSV | [`read_csv`], [`parse_csv`] |
//! | a table of numbers and texts as CSV, JSON lines or Parquet, for classification or regression | [`read_table`], [`parse_table`], [`read_table_parts`] |
//! | folders of images in PNG, JPEG or BMP, one for each class | [`image_folder`] |
//! | batches of image files, decoded ahead of their use | [`ImageLoader`] |
//! | arrays of NumPy, `.npz` or `.npy` | [`npz_dataset`], [`npy_dataset`] |
//! | a single NumPy array | [`read_npy`], [`parse_npy`], [`read_npz`] |
//! | one that may be text | [`read_npy_labels`], [`parse_npy_labels`], [`read_npz_labels`] |
//! | your own vectors | [`Dataset::new`], [`Dataset::regression`] |
//!
//! [`Batches`] walks a data set in mini-batches of a fixed size, [`Standardiser`] scales features, and
//! [`augment`] changes training examples at random.
//!
//! # Reproducibility
//!
//! Splits and batch orders come from a generator and a shuffle that this
//! module implements and documents (see [`Dataset::split_indices`]), not from
//! a dependency, so equal seeds give equal orders on every platform and in
//! every release.
//!
//! # Example
//!
//! ```
//! use meganeura_nn::data::{Batches, Remainder, digits_split};
//!
//! # fn main() -> Result<(), meganeura_nn::data::DataError> {
//! let (train, test) = digits_split()?;
//! assert_eq!((train.len(), test.len()), (1437, 360));
//!
//! let (mut features, mut labels) = (Vec::new(), Vec::new());
//! let mut batches = Batches::new(&train, 32, 7, 0, Remainder::Drop)?;
//! while batches.next_into(&mut features, &mut labels).is_some() {
//!     assert_eq!(features.len(), 32 * 64); // [32, 1, 8, 8]
//!     assert_eq!(labels.len(), 32);
//! }
//! # Ok(())
//! # }
//! ```

pub mod augment;
mod batches;
mod classes;
mod csv;
mod dataset;
mod digits;
mod error;
mod idx;
mod images;
mod mnist;
mod npy;
mod npz;
mod prng;
mod quantiles;
mod split;
mod standardise;
mod stream;
mod table;

pub use augment::{Augmentation, Transform};
pub use batches::{Batch, Batches, Remainder};
pub use csv::{Column, CsvOptions, Header, Table, parse_csv, read_csv};
pub(crate) use dataset::token_of;
pub use dataset::{Dataset, TokenSequence, one_hot};
pub use digits::{DIGITS_SPLIT_SEED, DIGITS_TEST_FRACTION, digits, digits_split};
pub use error::DataError;
pub use idx::{IDX_MAX_BYTES, IdxArray, IdxData, IdxType, parse_idx, read_idx};
pub use images::{
    ChannelOrder, ImageBatch, ImageFit, ImageFolder, ImageLayout, ImageLoader, ImageTransform, image_files,
    image_folder, read_images,
};
pub use mnist::{idx_dataset, mnist};
pub use npy::{
    NPY_MAX_BYTES, NpyArray, NpyLabels, NpyText, NpyType, parse_npy, parse_npy_labels, read_npy, read_npy_labels,
    write_npy, write_npy_bytes,
};
pub use npz::{Arrays, npy_dataset, npz_dataset, npz_names, read_npz, read_npz_labels};
pub use quantiles::quantile_edges;
pub use split::{Parts, SplitOptions};
pub use standardise::Standardiser;
pub use table::{
    ColumnKind, ColumnProfile, ColumnType, ColumnUse, DecimalMark, FeatureColumn, MissingCells, RawTable, TableFormat,
    TableOptions, TableParts, TableProfile, TableReadOptions, TableRows, TableSchema, TableTargets, TaskChoice,
    TextEncoding, TrainingTable, TypeChoice, fit_table, fit_table_parts, parse_table, profile_table, read_table,
    read_table_parts,
};
