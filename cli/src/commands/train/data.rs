//! Training data of `meganeura train`.

use std::error::Error;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use meganeura::nn::data::{
    self, Column, Dataset, DecimalMark, MissingCells, NpyArray, Parts, RawTable, SplitOptions, Standardiser,
    TableFormat, TableOptions, TableProfile, TableReadOptions, TableSchema, TaskChoice, TextEncoding, TypeChoice,
};
use meganeura::nn::model::{Preprocessing, Task};

use super::Model;
use super::data_set::{DataSet, DataSetParser};
use crate::commands::data::{HeaderChoice, check_text_options, column_type, decimal, delimiter, typed_columns};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Source of the examples; exactly one is given.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "source", required = true, multiple = false, args = ["data_set", "csv", "npz", "images"])]
pub(super) struct Source {
    /// Data set: digits is included in the program; mnist is read from the folder of --data.
    #[arg(value_parser = DataSetParser)]
    pub(super) data_set: Option<DataSet>,

    /// Train on a CSV file with one example per line: one column is the class or number to predict, the others are
    /// numbers or words.
    #[arg(long, value_name = "FILE", help_heading = "Your own data")]
    pub(super) csv: Option<PathBuf>,

    /// Train on a NumPy file (.npz) with features [examples, ...] and class labels [examples] (whole numbers or text),
    /// or numbers to predict.
    #[arg(long, value_name = "FILE", help_heading = "Your own data")]
    pub(super) npz: Option<PathBuf>,

    /// Train on a folder of images (PNG, JPEG, BMP) with one subfolder per class.
    #[arg(long, value_name = "DIR", help_heading = "Your own data")]
    pub(super) images: Option<PathBuf>,
}

impl Source {
    /// Returns the files that are read.
    pub(super) fn inputs<'a>(&'a self, files: &'a FileOptions) -> impl Iterator<Item = &'a Path> {
        let inputs = self.csv.iter().chain(&self.npz).chain(&files.test_csv);
        inputs.map(PathBuf::as_path)
    }
}

/// Options for files of the user. Options for one kind of file explicitly conflict with the other kinds, because clap
/// ignores `requires` if the required option conflicts with a given one.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Your own data")]
pub(super) struct FileOptions {
    /// Column of the CSV file to predict, by its name or its number from 1 [default: the last column]
    #[arg(long, visible_alias = "label", value_name = "COLUMN", conflicts_with_all = ["data_set", "npz", "images"])]
    target: Option<String>,

    /// Kind of the target. `guess` selects classification if the target has words or few different whole numbers, else
    /// regression.
    #[arg(long, value_enum, default_value_t = TaskOption::Guess, conflicts_with_all = ["data_set", "images"])]
    task: TaskOption,

    /// Columns of the CSV file to leave out: names or numbers, separated by commas. Identifiers, constant columns and texts that
    /// rarely repeat are always left out; --type keeps such a column.
    #[arg(long, visible_alias = "drop", value_name = "COLUMNS", conflicts_with_all = ["data_set", "npz", "images"], value_delimiter = ',')]
    ignore: Vec<String>,

    /// Type of a column of the CSV file, instead of the guessed one: number, category, date, date:FORMAT such as
    /// date:%d/%m/%Y, or text:N, which hashes its words to N features (`text` uses 64). May be repeated. `meganeura data FILE`
    /// prints the guessed types.
    #[arg(long = "type", value_name = "COLUMN=TYPE", conflicts_with_all = ["data_set", "npz", "images"], value_parser = column_type)]
    types: Vec<(String, TypeChoice)>,

    /// Numeric columns of the CSV file to treat as categories, such as postal codes; columns of words are always
    /// categories.
    #[arg(long, value_name = "COLUMNS", conflicts_with_all = ["data_set", "npz", "images"], value_delimiter = ',')]
    categorical: Vec<String>,

    /// Handling of missing cells (empty, NA, N/A, NaN, NULL, ?): `refuse` reports an error, `mean` fills in the mean of the column
    /// (for words, the most frequent one), `drop` removes the row.
    #[arg(long, value_enum, default_value_t = MissingOption::Refuse, conflicts_with_all = ["data_set", "npz", "images"])]
    missing: MissingOption,

    /// Words for missing cells of the CSV file, separated by commas, in addition to those of --missing.
    #[arg(long, value_name = "WORDS", conflicts_with_all = ["data_set", "npz", "images"], value_delimiter = ',')]
    missing_words: Vec<String>,

    /// Header of the CSV file: `yes` if its first line contains the column names, `no` if not. `auto` decides by the first
    /// lines.
    #[arg(long, value_enum, default_value_t = HeaderChoice::Auto, conflicts_with_all = ["data_set", "npz", "images"])]
    header: HeaderChoice,

    /// Character encoding of the CSV file, such as windows-1252 [default: guessed]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["data_set", "npz", "images"])]
    encoding: Option<TextEncoding>,

    /// Field separator of the CSV file, such as ';'; `tab` for tabs [default: guessed]
    #[arg(long, value_name = "CHAR", value_parser = delimiter, conflicts_with_all = ["data_set", "npz", "images"])]
    delimiter: Option<u8>,

    /// Decimal mark of numbers in the CSV file: . or , [default: guessed]
    #[arg(long, value_name = "MARK", value_parser = decimal, conflicts_with_all = ["data_set", "npz", "images"])]
    decimal: Option<DecimalMark>,

    /// CSV file of test examples, instead of --test-fraction.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["data_set", "npz", "images", "test_fraction"])]
    test_csv: Option<PathBuf>,

    /// Name of the array of features in the .npz file.
    #[arg(long, value_name = "NAME", default_value = "x", conflicts_with_all = ["data_set", "csv", "images"])]
    x: String,

    /// Name of the array of labels, or of numbers to predict, in the .npz file.
    #[arg(long, value_name = "NAME", default_value = "y", conflicts_with_all = ["data_set", "csv", "images"])]
    y: String,

    /// Name of the array with the features of test examples, instead of --test-fraction.
    #[arg(long, value_name = "NAME", requires = "test_y", conflicts_with_all = ["data_set", "csv", "images", "test_fraction"])]
    test_x: Option<String>,

    /// Name of the array with the labels of test examples.
    #[arg(long, value_name = "NAME", requires = "test_x", conflicts_with_all = ["data_set", "csv", "images"])]
    test_y: Option<String>,

    /// Size that images are resized to, in pixels: one number, or HEIGHTxWIDTH.
    #[arg(long, value_name = "SIZE", default_value = "32", value_parser = image_size, conflicts_with_all = ["data_set", "csv", "npz"])]
    image_size: [usize; 2],

    /// Convert images to grey: one channel instead of three.
    #[arg(long, conflicts_with_all = ["data_set", "csv", "npz"])]
    grey: bool,

    /// Folder of test images with the layout of --images, instead of --test-fraction.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["data_set", "csv", "npz", "test_fraction"])]
    test_images: Option<PathBuf>,

    /// Fraction of the examples to hold out for testing, between 0 and 1 [default: 0.2]
    #[arg(long, value_name = "FRACTION", conflicts_with = "data_set")]
    test_fraction: Option<f64>,

    /// Fraction of the examples to hold out for validation. Early stopping uses these; the test examples are used only
    /// for the final result [default: 0; 0.1 with --patience]
    #[arg(long, value_name = "FRACTION")]
    validation: Option<f64>,

    /// Seed of the split into training, validation and test examples; `--seed` does not change it.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) split_seed: u64,

    /// Standardise features to mean 0 and standard deviation 1 over the training examples. The default `auto` selects
    /// `feature` for tables and `all` for images.
    #[arg(long, value_enum, default_value_t = Scale::Auto, conflicts_with = "data_set")]
    scale: Scale,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TaskOption {
    Guess,
    Classification,
    Regression,
}

impl From<TaskOption> for TaskChoice {
    fn from(option: TaskOption) -> Self {
        match option {
            TaskOption::Guess => TaskChoice::Guess,
            TaskOption::Classification => TaskChoice::Classification,
            TaskOption::Regression => TaskChoice::Regression,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MissingOption {
    Refuse,
    Mean,
    Drop,
}

impl From<MissingOption> for MissingCells {
    fn from(option: MissingOption) -> Self {
        match option {
            MissingOption::Refuse => MissingCells::Refuse,
            MissingOption::Mean => MissingCells::Mean,
            MissingOption::Drop => MissingCells::Drop,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scale {
    Auto,
    /// No standardisation.
    None,
    /// Each feature separately.
    Feature,
    /// All features together.
    All,
}

/// Reads height and width of images: one number, or `HEIGHTxWIDTH`.
pub(crate) fn image_size(text: &str) -> std::result::Result<[usize; 2], String> {
    let number = |part: &str| part.trim().parse::<usize>().ok().filter(|&n| n > 0);
    let size = match text.split_once(['x', 'X']) {
        Some((height, width)) => number(height).zip(number(width)),
        None => number(text).zip(number(text)),
    };
    size.map(<[usize; 2]>::from)
        .ok_or_else(|| "give a number such as 32, or HEIGHTxWIDTH such as 48x64".to_owned())
}

/// The loaded examples, with a name for output.
pub(super) struct NamedExamples {
    pub(super) name: String,
    /// Scaled examples, in the shape of the model's input.
    pub(super) parts: Parts,
    pub(super) task: Task,
    pub(super) preprocessing: Preprocessing,
    /// Format and columns of a CSV file.
    pub(super) profile: Option<TableProfile>,
    /// Notes for the user about how the file was read.
    pub(super) notes: Vec<String>,
    /// True if the data set ships with the program.
    pub(super) ships: bool,
}

/// Examples as they are stored in a file, split into parts.
struct Raw {
    name: String,
    parts: Parts,
    /// Names of the classes; none for regression.
    classes: Vec<String>,
    target: String,
    schema: Option<TableSchema>,
    /// Size of images after resizing, for files of images.
    image: Option<[usize; 3]>,
    /// Format and columns of a CSV file.
    profile: Option<TableProfile>,
    notes: Vec<String>,
}

/// Requested form of the examples.
pub(super) struct ExampleFormat {
    pub(super) model: Model,
    /// True if images keep their shape even for a perceptron.
    pub(super) keep_shape: bool,
    /// True if features are standardised only if an option requests it.
    pub(super) unscaled: bool,
    /// Default fraction for validation.
    pub(super) validation: f64,
}

/// Loads the examples in the shape of the model's input.
pub(super) fn load(
    source: &Source,
    files: &FileOptions,
    mnist: &Path,
    reading: &ExampleFormat,
) -> Result<NamedExamples> {
    let (model, keep_shape) = (reading.model, reading.keep_shape);
    let validation = files.validation.unwrap_or(reading.validation);
    let (raw, ships) = match source {
        Source { csv: Some(path), .. } => (csv(path, files, validation)?, false),
        Source { npz: Some(path), .. } => (npz(path, files, validation)?, false),
        Source { images: Some(path), .. } => (images(path, files, validation)?, false),
        Source { data_set, .. } => {
            let data_set = data_set.unwrap_or(DataSet::Digits);
            (shipped(data_set, mnist, validation, files.split_seed)?, true)
        }
    };
    let scale = match (ships, files.scale) {
        (true, _) => None,
        (false, Scale::Auto) if reading.unscaled => None,
        (false, scale) => standardiser(&raw, scale),
    };
    let mut parts = raw.parts;
    if let Some(scale) = &scale {
        parts = parts.standardised(scale)?;
    }
    let task = if parts.train.is_regression() {
        let scale = Standardiser::fit_targets(&parts.train);
        parts = parts.standardised_targets(&scale)?;
        let targets = match parts.train.outputs() {
            1 => vec![raw.target],
            outputs => (1..=outputs).map(|n| format!("{}[{n}]", raw.target)).collect(),
        };
        Task::Regression { targets, scale }
    } else {
        Task::Classification {
            target: raw.target,
            classes: raw.classes,
        }
    };
    let keep_shape = keep_shape || raw.image.is_some();
    let shape = |data: Dataset| shaped(data, model, keep_shape);
    Ok(NamedExamples {
        name: raw.name,
        parts: Parts {
            train: shape(parts.train)?,
            validation: parts.validation.map(shape).transpose()?,
            test: parts.test.map(shape).transpose()?,
        },
        task,
        preprocessing: match (raw.schema, raw.image) {
            (Some(schema), _) => Preprocessing::Table { schema, scale },
            (None, Some(size)) => Preprocessing::Images { size, scale },
            (None, None) => Preprocessing::Array { scale },
        },
        profile: raw.profile,
        notes: raw.notes,
        ships,
    })
}

fn shipped(data_set: DataSet, mnist: &Path, validation: f64, seed: u64) -> Result<Raw> {
    let (name, (train, test)) = match data_set {
        DataSet::Digits => ("digits", data::digits_split()?),
        DataSet::Mnist => ("mnist", data::mnist(mnist)?),
    };
    Ok(Raw {
        name: name.into(),
        classes: (0..train.classes()).map(|class| class.to_string()).collect(),
        parts: with_test(train, test, validation, seed)?,
        target: "digit".into(),
        schema: None,
        image: None,
        profile: None,
        notes: Vec::new(),
    })
}

/// Returns the parts for given test examples.
fn with_test(train: Dataset, test: Dataset, validation: f64, seed: u64) -> Result<Parts> {
    if validation == 0.0 {
        return Ok(Parts {
            train,
            validation: None,
            test: Some(test),
        });
    }
    let parts = train.split_parts(SplitOptions {
        validation,
        test: 0.0,
        seed,
        stratify: true,
    })?;
    Ok(Parts {
        test: Some(test),
        ..parts
    })
}

fn split(data: &Dataset, files: &FileOptions, validation: f64) -> Result<Parts> {
    Ok(data.split_parts(SplitOptions {
        validation,
        test: files.test_fraction.unwrap_or(0.2),
        seed: files.split_seed,
        stratify: true,
    })?)
}

/// Reads a CSV file. Categories and fill values are determined only from the training rows.
fn csv(path: &Path, files: &FileOptions, validation: f64) -> Result<Raw> {
    let columns = |names: &[String]| names.iter().map(Column::name).collect();
    let options = TableOptions {
        target: files.target.as_ref().map_or(Column::Last, Column::name),
        task: files.task.into(),
        format: TableFormat {
            encoding: files.encoding,
            header: files.header.into(),
            delimiter: files.delimiter,
            decimal: files.decimal,
            missing: files.missing_words.clone(),
        },
        ignore: columns(&files.ignore),
        categorical: columns(&files.categorical),
        types: typed_columns(&files.types),
        missing: files.missing.into(),
    };
    let split = SplitOptions {
        validation,
        test: match &files.test_csv {
            None => files.test_fraction.unwrap_or(0.2),
            Some(_) => 0.0,
        },
        seed: files.split_seed,
        stratify: true,
    };
    let table = data::read_table_parts(path, &options, split)?;
    check_text_options(&table.profile, &options.format)?;
    let mut parts = table.parts;
    let (mut filled, mut dropped, mut unknown) = (table.filled, table.dropped, table.unknown);
    if let Some(test) = &files.test_csv {
        // Uses the same options as for the parts of one file.
        let options = TableReadOptions {
            unknown_as_zeros: true,
            drop_missing: files.missing == MissingOption::Drop,
            ..TableReadOptions::default()
        };
        let format = TableFormat {
            encoding: files.encoding,
            ..table.schema.format()
        };
        let rows = table
            .schema
            .apply(&RawTable::read(test, &format)?, &table.class_names, options)?;
        let data = rows.dataset(table.class_names.len())?.ok_or_else(|| {
            let target = &table.schema.target;
            format!("{}: there is no target column '{target}'", test.display())
        })?;
        parts.test = Some(data);
        filled += rows.filled;
        dropped += rows.dropped;
        unknown += rows.unknown;
    }
    let mut notes: Vec<String> = table.guess.into_iter().collect();
    if filled > 0 {
        notes.push(format!(
            "{} filled",
            counted(filled, "missing cell was", "missing cells were")
        ));
    }
    if dropped > 0 {
        let rows = counted(dropped, "row with missing cells was", "rows with missing cells were");
        notes.push(format!("{rows} left out"));
    }
    if unknown > 0 {
        let cells = counted(unknown, "cell", "cells");
        notes.push(format!(
            "{cells} of validation or test rows with a category that no training row has: encoded as zeros"
        ));
    }
    Ok(Raw {
        name: path.display().to_string(),
        parts,
        classes: table.class_names,
        target: table.schema.target.clone(),
        schema: Some(table.schema),
        image: None,
        profile: Some(table.profile),
        notes,
    })
}

/// Returns a number with a singular or plural noun.
fn counted(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

fn npz(path: &Path, files: &FileOptions, validation: f64) -> Result<Raw> {
    let is_regression = match files.task {
        TaskOption::Regression => true,
        TaskOption::Classification => false,
        TaskOption::Guess => !data::read_npz_labels(path, &files.y)?.are_classes(),
    };
    let mut notes = Vec::new();
    if is_regression && files.task == TaskOption::Guess {
        notes.push(format!(
            "'{}' contains fractions, so the task is regression; --task changes that",
            files.y
        ));
    }
    let (data, classes) = if is_regression {
        let (x, y) = (data::read_npz(path, &files.x)?, data::read_npz(path, &files.y)?);
        (targets(&x, &y)?, Vec::new())
    } else {
        let arrays = data::npz_dataset(path, &files.x, &files.y, None)?;
        (arrays.data, arrays.class_names)
    };
    let parts = match (&files.test_x, &files.test_y) {
        (Some(x), Some(y)) => {
            let test = if is_regression {
                targets(&data::read_npz(path, x)?, &data::read_npz(path, y)?)?
            } else {
                data::npz_dataset(path, x, y, Some(&classes))?.data
            };
            with_test(data, test, validation, files.split_seed)?
        }
        _ => split(&data, files, validation)?,
    };
    Ok(Raw {
        name: path.display().to_string(),
        parts,
        classes,
        target: files.y.clone(),
        schema: None,
        image: None,
        profile: None,
        notes,
    })
}

fn images(path: &Path, files: &FileOptions, validation: f64) -> Result<Raw> {
    let [height, width] = files.image_size;
    let size = [if files.grey { 1 } else { 3 }, height, width];
    let folder = data::image_folder(path, size, None)?;
    let mut notes = Vec::new();
    if folder.skipped > 0 {
        notes.push(format!("{} files that are not images were skipped", folder.skipped));
    }
    let parts = match &files.test_images {
        None => split(&folder.data, files, validation)?,
        Some(test) => {
            let test = data::image_folder(test, size, Some(&folder.class_names))?;
            with_test(folder.data, test.data, validation, files.split_seed)?
        }
    };
    Ok(Raw {
        name: path.display().to_string(),
        parts,
        classes: folder.class_names,
        target: "class".into(),
        schema: None,
        image: Some(size),
        profile: None,
        notes,
    })
}

/// Converts arrays `[n, ...]` and `[n]` or `[n, outputs]` to a data set for regression.
pub(crate) fn targets(x: &NpyArray, y: &NpyArray) -> Result<Dataset> {
    let wrong = || {
        let (x_shape, y_shape) = (x.shape(), y.shape());
        format!(
            "{} has the shape {x_shape:?}, and {} the shape {y_shape:?}; features are [examples, ...], numbers to predict \
             [examples] or [examples, outputs]",
            x.name(),
            y.name()
        )
    };
    let (outputs, rows) = match *y.shape() {
        [rows] => (1, rows),
        [rows, outputs] => (outputs, rows),
        _ => return Err(wrong().into()),
    };
    let shape = match x.shape() {
        [count] if *count == rows => vec![1],
        [count, shape @ ..] if *count == rows => shape.to_vec(),
        _ => return Err(wrong().into()),
    };
    Ok(Dataset::regression(x.name(), x.to_f32(), shape, y.to_f32(), outputs)?)
}

/// Returns the standardiser of the features, fitted to the training examples.
fn standardiser(raw: &Raw, scale: Scale) -> Option<Standardiser> {
    let train = &raw.parts.train;
    let image = train.feature_shape().len() > 1;
    match (scale, image, &raw.schema) {
        (Scale::None, ..) => None,
        (Scale::All, ..) | (Scale::Auto, true, _) => Some(Standardiser::fit_global(train)),
        (_, _, Some(schema)) => Some(schema.standardiser(train)),
        (_, _, None) => Some(Standardiser::fit_per_feature(train)),
    }
}

fn shaped(data: Dataset, model: Model, keep_shape: bool) -> Result<Dataset> {
    let least = model.least_image();
    match (model, data.feature_shape()) {
        // The model in a folder takes images, not vectors.
        (Model::Mlp | Model::Tabm, _) if keep_shape => Ok(data),
        (Model::Mlp | Model::Tabm, _) => {
            let len = data.feature_len();
            Ok(data.with_feature_shape(vec![len])?)
        }
        (_, &[_, h, w]) if h >= least && w >= least => Ok(data),
        (_, &[h, w]) if h >= least && w >= least => Ok(data.with_feature_shape(vec![1, h, w])?),
        (_, shape) => Err(format!(
            "{}: --model {} needs images, [channels, height, width] or [height, width], of at least {least}x{least} \
             pixels, but each example has the shape {shape:?}; train --model mlp",
            data.name(),
            model.name()
        )
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::image_size;

    #[test]
    fn sizes_as_text() {
        assert_eq!(image_size("224"), Ok([224, 224]));
        assert_eq!(image_size("480x640"), Ok([480, 640]));
        for wrong in ["0", "x", "3x", "-1x4"] {
            assert!(image_size(wrong).is_err(), "{wrong}");
        }
    }
}
