//! What `meganeura train` trains on.

use std::error::Error;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use meganeura::nn::data::{self, Column, CsvOptions, Dataset, Header, Standardiser, Table};
use meganeura::nn::model::{Columns, Input, Scaling};

use super::Model;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Where the examples come from; one of the first three is given.
#[derive(Debug, clap::Args)]
#[group(id = "source", required = true, multiple = false, args = ["data_set", "csv", "npz"])]
pub(super) struct Source {
    /// Data set: digits ships with the program; mnist is read from a folder.
    pub(super) data_set: Option<DataSet>,

    /// Train on a CSV file: one example a line, one column the class, all others numbers.
    #[arg(long, value_name = "FILE", help_heading = "Your own data")]
    pub(super) csv: Option<PathBuf>,

    /// Train on a .npz file of NumPy with features [examples, ...] and labels [examples].
    #[arg(long, value_name = "FILE", help_heading = "Your own data")]
    pub(super) npz: Option<PathBuf>,
}

/// Options for files of the user. Those for one kind of file conflict with the other kinds: clap does not look
/// at `requires` when what is required conflicts with what is there.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Your own data")]
pub(super) struct FileOptions {
    /// Column of the class in the CSV file, by its name or its number from 1 [default: the last one]
    #[arg(long, value_name = "COLUMN", conflicts_with_all = ["data_set", "npz"])]
    label: Option<String>,

    /// Columns of the CSV file to leave out, such as a row number: names or numbers, separated by commas.
    #[arg(long, value_name = "COLUMNS", conflicts_with_all = ["data_set", "npz"], value_delimiter = ',')]
    ignore: Vec<String>,

    /// Whether the first line of the CSV file names the columns; auto: if none of its fields is a number.
    #[arg(long, value_enum, default_value_t = HeaderChoice::Auto, conflicts_with_all = ["data_set", "npz"])]
    header: HeaderChoice,

    /// Character between the fields of the CSV file; `tab` for tabs.
    #[arg(long, value_name = "CHAR", default_value = ",", value_parser = delimiter, conflicts_with_all = ["data_set", "npz"])]
    delimiter: u8,

    /// CSV file of test examples, instead of a fraction of the first file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["data_set", "npz", "test_fraction"])]
    test_csv: Option<PathBuf>,

    /// Array of the .npz file that holds the features.
    #[arg(long, value_name = "NAME", default_value = "x", conflicts_with_all = ["data_set", "csv"])]
    x: String,

    /// Array of the .npz file that holds the labels.
    #[arg(long, value_name = "NAME", default_value = "y", conflicts_with_all = ["data_set", "csv"])]
    y: String,

    /// Array of the features of test examples, instead of a fraction of the others.
    #[arg(long, value_name = "NAME", requires = "test_y", conflicts_with_all = ["data_set", "csv", "test_fraction"])]
    test_x: Option<String>,

    /// Array of the labels of test examples.
    #[arg(long, value_name = "NAME", requires = "test_x", conflicts_with_all = ["data_set", "csv"])]
    test_y: Option<String>,

    /// Fraction of the examples that is held out for testing, between 0 and 1 [default: 0.2]
    #[arg(long, value_name = "FRACTION", conflicts_with = "data_set")]
    test_fraction: Option<f64>,

    /// Seed of the split into training and test examples; `--seed` does not change it.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "data_set")]
    split_seed: u64,

    /// Standardise features to mean 0 and deviation 1 over the training examples, each feature by itself or all together;
    /// auto: each by itself for tables, all together for images.
    #[arg(long, value_enum, default_value_t = Scale::Auto, conflicts_with = "data_set")]
    scale: Scale,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DataSet {
    /// 1,797 handwritten digits of 8x8 pixels; a fixed fifth is held out.
    Digits,
    /// 70,000 handwritten digits of 28x28 pixels, read from a folder.
    Mnist,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum HeaderChoice {
    Auto,
    Yes,
    No,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scale {
    Auto,
    /// As they are in the file.
    None,
    /// Each feature by itself.
    Feature,
    /// All features together.
    All,
}

pub(crate) fn delimiter(text: &str) -> std::result::Result<u8, String> {
    match text.as_bytes() {
        b"tab" | b"\\t" => Ok(b'\t'),
        [byte] if byte.is_ascii() && !matches!(byte, b'"' | b'\n' | b'\r') => Ok(*byte),
        _ => Err("give one ASCII character other than a quote, such as ';', or tab".into()),
    }
}

/// The examples, and what to call them.
pub(super) struct Loaded {
    pub(super) name: String,
    pub(super) train: Dataset,
    pub(super) test: Dataset,
    /// Labels of the file by class id, if the file is the user's.
    pub(super) class_names: Option<Vec<String>>,
    /// Columns of a table.
    columns: Option<Columns>,
    /// How the features were scaled.
    scaling: Option<Scaling>,
}

impl Loaded {
    /// What the model's examples are.
    pub(super) fn input(&self) -> Input {
        Input {
            columns: self.columns.clone(),
            scaling: self.scaling.clone(),
            ..Input::of(&self.train)
        }
    }

    /// Names of the classes; of data sets that ship, the digits.
    pub(super) fn classes(&self) -> Vec<String> {
        let numbers = || (0..self.train.classes()).map(|class| class.to_string()).collect();
        self.class_names.clone().unwrap_or_else(numbers)
    }
}

/// Loads the examples in the shape that the model takes. With `keep_shape`, images stay images also for a
/// perceptron.
pub(super) fn load(
    source: &Source,
    files: &FileOptions,
    mnist: &Path,
    model: Model,
    keep_shape: bool,
) -> Result<Loaded> {
    let loaded = match source {
        Source { csv: Some(path), .. } => scaled(csv(path, files)?, files.scale)?,
        Source { npz: Some(path), .. } => scaled(npz(path, files)?, files.scale)?,
        Source { data_set, .. } => shipped(data_set.unwrap_or(DataSet::Digits), mnist)?,
    };
    Ok(Loaded {
        train: shaped(loaded.train, model, keep_shape)?,
        test: shaped(loaded.test, model, keep_shape)?,
        ..loaded
    })
}

fn shipped(data_set: DataSet, mnist: &Path) -> Result<Loaded> {
    let (name, (train, test)) = match data_set {
        DataSet::Digits => ("digits", data::digits_split()?),
        DataSet::Mnist => ("mnist", data::mnist(mnist)?),
    };
    Ok(Loaded {
        name: name.into(),
        train,
        test,
        class_names: None,
        columns: None,
        scaling: None,
    })
}

fn csv(path: &Path, files: &FileOptions) -> Result<Loaded> {
    let options = CsvOptions {
        label: files.label.as_ref().map_or(Column::Last, Column::name),
        header: match files.header {
            HeaderChoice::Auto => Header::Auto,
            HeaderChoice::Yes => Header::Yes,
            HeaderChoice::No => Header::No,
        },
        delimiter: files.delimiter,
        ignore: files.ignore.iter().map(Column::name).collect(),
        classes: None,
    };
    let table = data::read_csv(path, &options)?;
    let class_names = Some(table.class_names.clone());
    let columns = Columns {
        features: table.feature_names.clone(),
        label: table.label_name.clone(),
        ignored: files.ignore.clone(),
    };
    let (train, test) = match &files.test_csv {
        None => split(table.data, files)?,
        Some(test_path) => {
            let options = CsvOptions {
                classes: class_names.clone(),
                ..options
            };
            let test = data::read_csv(test_path, &options)?;
            same_columns(&table, &test)?;
            (table.data, test.data)
        }
    };
    Ok(Loaded {
        name: path.display().to_string(),
        train,
        test,
        class_names,
        columns: Some(columns),
        scaling: None,
    })
}

/// Columns in another order would be trained on as if they were each other.
fn same_columns(train: &Table, test: &Table) -> Result<()> {
    if train.feature_names == test.feature_names {
        return Ok(());
    }
    let (a, b) = (train.data.name(), test.data.name());
    let (ours, theirs) = (train.feature_names.join(", "), test.feature_names.join(", "));
    Err(format!(
        "{b}: the feature columns are not those of {a}: {theirs} instead of {ours}; both files need the same \
         columns in the same order"
    )
    .into())
}

fn npz(path: &Path, files: &FileOptions) -> Result<Loaded> {
    let arrays = data::npz_dataset(path, &files.x, &files.y, None)?;
    let (train, test) = match (&files.test_x, &files.test_y) {
        (Some(x), Some(y)) => {
            let test = data::npz_dataset(path, x, y, Some(&arrays.class_names))?;
            (arrays.data, test.data)
        }
        _ => split(arrays.data, files)?,
    };
    Ok(Loaded {
        name: path.display().to_string(),
        train,
        test,
        class_names: Some(arrays.class_names),
        columns: None,
        scaling: None,
    })
}

fn split(data: Dataset, files: &FileOptions) -> Result<(Dataset, Dataset)> {
    Ok(data.split(files.test_fraction.unwrap_or(0.2), files.split_seed)?)
}

fn scaled(loaded: Loaded, scale: Scale) -> Result<Loaded> {
    let image = loaded.train.feature_shape().len() > 1;
    let standardiser = match (scale, image) {
        (Scale::None, _) => return Ok(loaded),
        (Scale::Feature, _) | (Scale::Auto, false) => Standardiser::fit_per_feature(&loaded.train),
        (Scale::All, _) | (Scale::Auto, true) => Standardiser::fit_global(&loaded.train),
    };
    Ok(Loaded {
        scaling: Some(Scaling::from(&standardiser)),
        train: loaded.train.standardised(&standardiser)?,
        test: loaded.test.standardised(&standardiser)?,
        ..loaded
    })
}

fn shaped(data: Dataset, model: Model, keep_shape: bool) -> Result<Dataset> {
    let least = model.least_image();
    match (model, data.feature_shape()) {
        (Model::Cnn | Model::Resnet18, &[_, h, w]) if h >= least && w >= least => Ok(data),
        (Model::Cnn | Model::Resnet18, &[h, w]) if h >= least && w >= least => {
            Ok(data.with_feature_shape(vec![1, h, w])?)
        }
        (Model::Cnn | Model::Resnet18, shape) => Err(format!(
            "{}: --model {} needs images, [channels, height, width] or [height, width], of at least {least}x{least} \
             pixels, but each example has the shape {shape:?}; train --model mlp",
            data.name(),
            model.name()
        )
        .into()),
        (Model::Mlp, _) if keep_shape => Ok(data),
        (Model::Mlp, _) => {
            let len = data.feature_len();
            Ok(data.with_feature_shape(vec![len])?)
        }
    }
}
