//! Command `meganeura predict`: a model that `train --out` saved, on new examples. `meganeura evaluate` reads the same
//! examples.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use meganeura::files::write_atomically;
use meganeura::nn::data::{self, Column, Dataset, TableReadOptions, TextEncoding};
use meganeura::nn::model::{Features, Model, Prediction, Predictor, PredictorOptions, Preprocessing, Task};
use serde_json::{Value, json};

use super::Outcome;
use super::precision::Choice;
use super::train::targets;
use crate::commands::outputs::keep_inputs;
use crate::output::{line, notice};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PREDICT_EXAMPLES: &str = "\
Examples:
  meganeura train --csv flowers.csv --label species --out flowers
  meganeura predict --model flowers --csv new.csv
  meganeura predict --model flowers --csv new.csv --top 3 --output classes.csv
  meganeura predict --model photos-model --image cat.jpg dog.png --top 2";

/// The model and its examples.
#[derive(Debug, clap::Args)]
pub(super) struct ModelAndExamples {
    /// Model folder, written by `train --out`.
    #[arg(long, value_name = "DIR")]
    pub(super) model: PathBuf,

    #[command(flatten)]
    source: Source,

    /// If a word in a column of categories does not occur in the training data, encode it as zeros instead of reporting
    /// an error.
    #[arg(long, conflicts_with = "npz")]
    unknown_words: bool,

    /// Skip rows with missing cells if the model has no value to fill them with, instead of reporting an error.
    #[arg(long, conflicts_with = "npz")]
    drop_missing: bool,

    /// Character encoding of the CSV file, such as windows-1252 [default: guessed]
    #[arg(long, value_name = "NAME", conflicts_with_all = ["npz", "image", "images"])]
    encoding: Option<TextEncoding>,

    /// Name of the array of features in the .npz file.
    #[arg(long, value_name = "NAME", default_value = "x", conflicts_with = "csv")]
    x: String,

    /// Number of examples per step.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,

    /// Device to run on; see `meganeura devices`.
    #[arg(long, value_name = "SELECTOR")]
    device: Option<String>,

    /// Precision of matmuls and convolutions [default: from the configuration file, else from the device]
    #[arg(long, value_enum)]
    precision: Option<Choice>,
}

impl ModelAndExamples {
    /// Returns the files and folders that are read.
    pub(super) fn inputs(&self) -> impl Iterator<Item = &Path> {
        let Source {
            csv,
            npz,
            image,
            images: _,
        } = &self.source;
        let files = csv.iter().chain(npz).chain(image);
        std::iter::once(&self.model).chain(files).map(PathBuf::as_path)
    }

    /// Returns the image files, if the examples are images without labels.
    fn image_files(&self) -> Result<Option<Vec<PathBuf>>> {
        match &self.source {
            Source { images: Some(path), .. } => Ok(Some(data::image_files(path)?)),
            Source { image, .. } if !image.is_empty() => Ok(Some(image.clone())),
            _ => Ok(None),
        }
    }

    fn options(&self) -> PredictorOptions {
        PredictorOptions {
            device: self.device.clone(),
            batch: self.batch as usize,
            precision: self.precision.map(Into::into),
        }
    }
}

/// Source of the examples.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Source {
    /// CSV file with the columns that the model was trained with, in any order.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// NumPy file (.npz) with features [examples, ...].
    #[arg(long, value_name = "FILE")]
    npz: Option<PathBuf>,

    /// Image files (PNG, JPEG, BMP).
    #[arg(long, value_name = "FILE", num_args = 1..)]
    image: Vec<PathBuf>,

    /// Folder of images; for `evaluate`, with one subfolder per class.
    #[arg(long, value_name = "DIR")]
    images: Option<PathBuf>,
}

/// Options of `predict`.
#[derive(Debug, clap::Args)]
#[command(after_help = PREDICT_EXAMPLES)]
pub(crate) struct PredictArgs {
    #[command(flatten)]
    shared: ModelAndExamples,

    /// Number of classes to print per example, the most probable first; ignored for models that predict numbers.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    top: u32,

    /// Columns of the CSV file to copy to the output, such as an identifier: names or numbers, separated by commas.
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',', conflicts_with_all = ["npz", "image", "images"])]
    keep: Vec<String>,

    /// Write a CSV file instead of printing. Each row identifies an example by its line or file, followed by the --keep
    /// columns, and by label and probability of the --top most probable classes, or by the predicted numbers.
    #[arg(long, visible_alias = "out", value_name = "FILE")]
    output: Option<PathBuf>,

    /// Print one JSON object per line, with the probabilities of all classes or the predicted numbers.
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

/// Name of an example.
enum Name {
    Row(usize),
    File(String),
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Row(number) => number.fmt(f),
            Name::File(path) => f.write_str(&printable(path)),
        }
    }
}

/// Examples as they are stored in a file.
pub(super) struct Examples {
    pub(super) features: Features,
    /// Name of each example: its line in a table or its index in an array, both from 1, or its file.
    names: Vec<Name>,
    /// The examples with labels or true numbers, if the file has them.
    pub(super) labelled: Option<Dataset>,
    /// Preprocessing of the model's examples.
    pub(super) preprocessing: Preprocessing,
    /// Names of the columns of `--keep`, with their cells for the examples.
    kept: Vec<(String, Vec<String>)>,
}

pub(crate) fn predict(args: &PredictArgs) -> Outcome {
    keep_inputs(&[("--output", args.output.as_deref())], args.shared.inputs())?;
    if let Some(files) = args.shared.image_files()? {
        return predict_images(args, &files);
    }
    let (mut predictor, examples) = open(&args.shared, None, &args.keep)?;
    let predictions = predictor.predict(&examples.features)?;
    let Examples { names, kept, .. } = &examples;
    if args.output.is_some() {
        return save(args, names, kept, &predictions, predictor.task());
    }
    for (example, (name, prediction)) in names.iter().zip(&predictions).enumerate() {
        let kept = kept
            .iter()
            .map(|(name, cells)| (name.as_str(), cells[example].as_str()));
        show(args, predictor.task(), name, kept, prediction)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Predicts for image files. Prints the predictions of a batch before the next one.
fn predict_images(args: &PredictArgs, files: &[PathBuf]) -> Outcome {
    let model = Model::load(&args.shared.model)?;
    if !matches!(model.preprocessing(), Preprocessing::Images { .. }) {
        // An error that names the first file.
        model.read_images(files)?;
    }
    let mut predictor = model.image_predictor(&args.shared.options())?;
    let name = |file: usize| Name::File(files[file].display().to_string());
    let (task, begin) = (predictor.task().clone(), Instant::now());
    let (mut predictions, mut shown) = (Vec::new(), Ok(()));
    predictor.predict(files, |file, prediction| {
        if args.output.is_some() {
            predictions.push(prediction);
        } else if shown.is_ok() {
            shown = show(args, &task, &name(file), std::iter::empty(), &prediction);
        }
    })?;
    shown?;
    if files.len() > 1 {
        let rate = files.len() as f64 / begin.elapsed().as_secs_f64();
        notice(format_args!("{} images, {rate:.0} images/s with decoding", files.len()))?;
    }
    if args.output.is_some() {
        let names: Vec<Name> = (0..files.len()).map(name).collect();
        return save(args, &names, &[], &predictions, &task);
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the predictions to the file of `--output`.
fn save(
    args: &PredictArgs,
    names: &[Name],
    kept: &[(String, Vec<String>)],
    predictions: &[Prediction],
    task: &Task,
) -> Outcome {
    if let Some(path) = &args.output {
        write_atomically(path, |file| {
            write_csv(file, (names, kept), predictions, task, args.top as usize)
        })?;
        notice(format_args!("{} predictions in {}", predictions.len(), path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a prediction.
fn show<'e>(
    args: &PredictArgs,
    task: &Task,
    name: &Name,
    kept: impl Iterator<Item = (&'e str, &'e str)>,
    prediction: &Prediction,
) -> Result<()> {
    if args.json {
        let mut object = object(name, prediction, task);
        if !args.keep.is_empty() {
            object["kept"] = kept.map(|(name, cell)| (name.to_owned(), json!(cell))).collect();
        }
        return Ok(line(object)?);
    }
    let text: Vec<String> = match (task, prediction) {
        (Task::Classification { classes, .. }, Prediction::Class { probabilities, .. }) => {
            best(probabilities, args.top as usize)
                .map(|(class, p)| format!("{} {:.1} %", printable(&classes[class]), 100.0 * p))
                .collect()
        }
        _ => prediction.values().iter().map(|v| format!("{v:.6}")).collect(),
    };
    let kept: String = kept.map(|(_, cell)| format!(" {}", printable(cell))).collect();
    Ok(line(format_args!("{name}{kept}: {}", text.join(", ")))?)
}

/// Opens the model on its device, and reads the examples. `y` is the array of labels, if they are needed, and `keep` contains
/// columns of a table to keep.
pub(super) fn open(args: &ModelAndExamples, y: Option<&str>, keep: &[String]) -> Result<(Predictor, Examples)> {
    let model = Model::load(&args.model)?;
    // Files are read before the device is opened, so that their errors are reported sooner.
    let examples = match &args.source {
        Source { csv: Some(path), .. } => csv(path, args, &model, y.is_some(), keep)?,
        Source { npz: Some(path), .. } => npz(path, args, y, &model)?,
        Source { images: Some(path), .. } => labelled_images(path, &model)?,
        // `predict` does not read them here.
        Source { .. } => {
            return Err("single images have no labels; use --images DIR with one subfolder per class".into());
        }
    };
    let predictor = model.predictor(&args.options())?;
    Ok((predictor, examples))
}

fn csv(path: &Path, args: &ModelAndExamples, model: &Model, labels: bool, keep: &[String]) -> Result<Examples> {
    let options = TableReadOptions {
        unknown_as_zeros: args.unknown_words,
        drop_missing: args.drop_missing,
        ignore_target: !labels,
    };
    let cells = model.read_cells(path, args.encoding)?;
    let rows = model.table_rows(&cells, options)?;
    let kept = |name: &String| {
        let column = cells.column(&Column::name(name))?;
        let of_rows = rows.rows.iter().map(|&row| cells.cell(row, column).to_owned());
        Ok((cells.columns()[column].clone(), of_rows.collect()))
    };
    let kept = keep.iter().map(kept).collect::<Result<_>>()?;
    for (count, what) in [
        (rows.filled, "missing cells were filled with the values from training"),
        (rows.dropped, "rows with missing cells were skipped"),
        (rows.unknown, "words were unknown to the model"),
    ] {
        if count > 0 {
            notice(format_args!("{count} {what}"))?;
        }
    }
    Ok(Examples {
        labelled: rows.dataset(model.task().classes().len())?,
        preprocessing: model.preprocessing().clone(),
        names: rows.lines.iter().copied().map(Name::Row).collect(),
        kept,
        features: Features::from(&rows),
    })
}

fn npz(path: &Path, args: &ModelAndExamples, y: Option<&str>, model: &Model) -> Result<Examples> {
    let x = data::read_npz(path, &args.x)?;
    let count = x.shape().first().copied().unwrap_or(0);
    let labelled = match (y, model.task()) {
        (None, _) => None,
        (Some(y), Task::Regression { .. }) => Some(targets(&x, &data::read_npz(path, y)?)?),
        (Some(y), task) => Some(data::npz_dataset(path, &args.x, y, Some(task.classes()))?.data),
    };
    let shape: Vec<usize> = match x.shape() {
        [_] => vec![1],
        shape => shape.iter().skip(1).copied().collect(),
    };
    Ok(Examples {
        features: Features::new(x.name(), x.to_f32(), shape)?,
        names: (1..=count).map(Name::Row).collect(),
        labelled,
        preprocessing: model.preprocessing().clone(),
        kept: Vec::new(),
    })
}

/// Reads a folder of folders of images.
fn labelled_images(path: &Path, model: &Model) -> Result<Examples> {
    let Preprocessing::Images { size, .. } = *model.preprocessing() else {
        return Err(format!(
            "{}: the model was not trained on image files; pass examples with --csv or --npz",
            path.display()
        )
        .into());
    };
    let folder = data::image_folder(path, size, Some(model.task().classes()))?;
    Ok(Examples {
        features: Features::from(&folder.data),
        names: folder
            .files
            .iter()
            .map(|f| Name::File(f.display().to_string()))
            .collect(),
        labelled: Some(folder.data),
        preprocessing: model.preprocessing().clone(),
        kept: Vec::new(),
    })
}

/// Returns the most probable classes with their probabilities; equal ones keep their order.
pub(super) fn best(probabilities: &[f64], top: usize) -> impl Iterator<Item = (usize, f64)> {
    let mut all: Vec<(usize, f64)> = probabilities.iter().copied().enumerate().collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all.into_iter().take(top)
}

/// Returns a text from a file without control characters.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn object(name: &Name, prediction: &Prediction, task: &Task) -> Value {
    let mut object = match name {
        Name::Row(number) => json!({"row": number}),
        Name::File(path) => json!({"file": path}),
    };
    match (task, prediction) {
        (Task::Classification { classes, .. }, Prediction::Class { class, probabilities }) => {
            let all = classes.iter().zip(probabilities);
            let all: serde_json::Map<String, Value> = all.map(|(class, p)| (class.clone(), json!(p))).collect();
            object["label"] = json!(classes[*class]);
            object["probability"] = json!(probabilities[*class]);
            object["probabilities"] = all.into();
        }
        (Task::Regression { targets, .. }, prediction) => {
            let values = targets.iter().zip(prediction.values());
            let values: serde_json::Map<String, Value> = values.map(|(name, v)| (name.clone(), json!(v))).collect();
            object["values"] = values.into();
        }
        _ => {}
    }
    object
}

fn write_csv(
    file: &mut dyn Write,
    (names, kept): (&[Name], &[(String, Vec<String>)]),
    predictions: &[Prediction],
    task: &Task,
    top: usize,
) -> io::Result<()> {
    let header: Vec<String> = match task {
        Task::Classification { classes, .. } => (1..=top.min(classes.len()))
            .map(|n| match n {
                1 => "label,probability".to_owned(),
                n => format!("label_{n},probability_{n}"),
            })
            .collect(),
        Task::Regression { targets, .. } => targets.iter().map(|name| quoted(name)).collect(),
        _ => Vec::new(),
    };
    let first = match names.first() {
        Some(Name::File(_)) => "file",
        _ => "row",
    };
    let kept_names: String = kept.iter().map(|(name, _)| format!(",{}", quoted(name))).collect();
    writeln!(file, "{first}{kept_names},{}", header.join(","))?;
    for (example, (name, prediction)) in names.iter().zip(predictions).enumerate() {
        let fields: Vec<String> = match (task, prediction) {
            (Task::Classification { classes, .. }, Prediction::Class { probabilities, .. }) => best(probabilities, top)
                .map(|(class, p)| format!("{},{p}", quoted(&classes[class])))
                .collect(),
            _ => prediction.values().iter().map(f64::to_string).collect(),
        };
        let name = match name {
            Name::Row(number) => number.to_string(),
            Name::File(path) => quoted(path),
        };
        let kept = kept.iter().map(|(_, cells)| format!(",{}", quoted(&cells[example])));
        writeln!(file, "{name}{},{}", kept.collect::<String>(), fields.join(","))?;
    }
    Ok(())
}

/// Quotes a field of a CSV file (RFC 4180).
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_commas_and_quotes_are_quoted() {
        assert_eq!(quoted("plain"), "plain");
        assert_eq!(quoted("a, \"b\""), "\"a, \"\"b\"\"\"");
    }

    #[test]
    fn the_most_probable_come_first() {
        let top: Vec<usize> = best(&[0.2, 0.5, 0.2, 0.1], 3).map(|(class, _)| class).collect();
        assert_eq!(top, [1, 0, 2]);
    }
}
