//! Commands `meganeura predict` and `meganeura evaluate`: a model that `train --out` saved, on new examples.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use meganeura::files::write_atomically;
use meganeura::nn::data::{self, Dataset, TableReadOptions};
use meganeura::nn::model::{
    Features, Model, Prediction, PredictionReport, Predictor, PredictorOptions, Preprocessing, Task,
};
use serde_json::{Value, json};

use super::Outcome;
use super::evaluation::evaluation_page;
use super::precision::Choice;
use super::ranks::{RankOptions, Ranks};
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

const EVALUATE_EXAMPLES: &str = "\
Examples:
  meganeura evaluate --model flowers --csv labelled.csv
  meganeura evaluate --model photos-model --images more-photos
  meganeura evaluate --model digits --npz test.npz --json
  meganeura evaluate --model digits --npz test.npz --html digits.html
  mpirun -n 4 meganeura evaluate --model digits --npz test.npz --distributed mpi";

/// The model and its examples.
#[derive(Debug, clap::Args)]
struct ModelAndExamples {
    /// Model folder, written by `train --out`.
    #[arg(long, value_name = "DIR")]
    model: PathBuf,

    #[command(flatten)]
    source: Source,

    /// If a word in a column of categories does not occur in the training data, encode it as zeros instead of reporting
    /// an error.
    #[arg(long, conflicts_with = "npz")]
    unknown_words: bool,

    /// Skip rows with missing cells if the model has no value to fill them with, instead of reporting an error.
    #[arg(long, conflicts_with = "npz")]
    drop_missing: bool,

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
    fn inputs(&self) -> impl Iterator<Item = &Path> {
        let Source {
            csv,
            npz,
            image,
            images: _,
        } = &self.source;
        let files = csv.iter().chain(npz).chain(image);
        std::iter::once(&self.model).chain(files).map(PathBuf::as_path)
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

    /// Write a CSV file instead of printing. Each row identifies an example by its line or file, followed by label and
    /// probability of the --top most probable classes, or by the predicted numbers.
    #[arg(long, visible_alias = "out", value_name = "FILE")]
    output: Option<PathBuf>,

    /// Print one JSON object per line, with the probabilities of all classes or the predicted numbers.
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

/// Options of `evaluate`.
#[derive(Debug, clap::Args)]
#[command(after_help = EVALUATE_EXAMPLES)]
pub(crate) struct EvaluateArgs {
    #[command(flatten)]
    shared: ModelAndExamples,

    /// Name of the array in the .npz file with the labels (classes) or targets (regression).
    #[arg(long, value_name = "NAME", default_value = "y", conflicts_with = "csv")]
    y: String,

    /// Write an HTML page with precision, recall and F1 per class, and the confusion matrix; only for classifiers.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    #[command(flatten)]
    ranks: RankOptions,

    /// Print one JSON object.
    #[arg(long)]
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
struct Examples {
    features: Features,
    /// Name of each example: its line in a table or its index in an array, both from 1, or its file.
    names: Vec<Name>,
    /// The examples with labels or true numbers, if the file has them.
    labelled: Option<Dataset>,
}

pub(crate) fn predict(args: &PredictArgs) -> Outcome {
    keep_inputs(&[("--output", args.output.as_deref())], args.shared.inputs())?;
    let (mut predictor, examples) = open(&args.shared, None)?;
    let predictions = predictor.predict(&examples.features)?;
    let rows = || examples.names.iter().zip(&predictions);
    let (task, top) = (predictor.task(), args.top as usize);
    if let Some(path) = &args.output {
        write_atomically(path, |file| write_csv(file, rows(), task, top))?;
        notice(format_args!("{} predictions in {}", predictions.len(), path.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    for (name, prediction) in rows() {
        if args.json {
            line(object(name, prediction, task))?;
            continue;
        }
        let text: Vec<String> = match (task, prediction) {
            (Task::Classification { classes, .. }, Prediction::Class { probabilities, .. }) => best(probabilities, top)
                .map(|(class, p)| format!("{} {:.1} %", printable(&classes[class]), 100.0 * p))
                .collect(),
            _ => prediction.values().iter().map(|v| format!("{v:.6}")).collect(),
        };
        line(format_args!("{name}: {}", text.join(", ")))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn evaluate(args: &EvaluateArgs) -> Outcome {
    let ranks = Ranks::join(&args.ranks)?;
    ranks.end(evaluate_as_rank(args, &ranks))
}

fn evaluate_as_rank(args: &EvaluateArgs, ranks: &Ranks) -> Outcome {
    keep_inputs(&[("--html", args.html.as_deref())], args.shared.inputs())?;
    let (mut predictor, examples) = open(&args.shared, Some(&args.y))?;
    let Some(labelled) = &examples.labelled else {
        let file = printable(examples.features.name());
        let name = match predictor.task() {
            Task::Classification { target, .. } => target.clone(),
            Task::Regression { targets, .. } => targets.join(", "),
            _ => String::new(),
        };
        return Err(match args.shared.source.csv {
            Some(_) => format!(
                "{file}: there is no column '{name}' to compare with; `meganeura predict` works \
                without it"
            ),
            None => "single images have no labels; use --images DIR with one subfolder per class".to_owned(),
        }
        .into());
    };
    if args.html.is_some() && !matches!(predictor.task(), Task::Classification { .. }) {
        return Err(
            "--html works only with classifiers, and the model predicts numbers; --json prints its errors".into(),
        );
    }
    let report = match ranks.others() {
        None => predictor.evaluate(labelled)?,
        Some(others) => predictor.evaluate_on_ranks(labelled, others)?,
    };
    if !ranks.is_first() {
        return Ok(ExitCode::SUCCESS);
    }
    if let (Some(path), PredictionReport::Classification { loss, report }) = (&args.html, &report) {
        let title = format!("{} on {}", args.shared.model.display(), examples.features.name());
        let page = evaluation_page(&title, *loss, report);
        write_atomically(path, |file| file.write_all(page.as_bytes()))?;
        notice(format_args!("The page is in {}", path.display()))?;
    }
    if args.json {
        line(report_object(&report))?;
        return Ok(ExitCode::SUCCESS);
    }
    match &report {
        PredictionReport::Classification { loss, report } => {
            // The report contains the accuracy.
            line(format_args!("loss {loss:.4}\n"))?;
            line(report.to_string().trim_end())?;
        }
        PredictionReport::Regression { metrics, examples } => {
            line(format_args!("{metrics} of {examples} examples"))?;
        }
        other => line(format_args!("{other:?}"))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens the model on its device, and reads the examples. `y` is the array of labels, if they are needed.
fn open(args: &ModelAndExamples, y: Option<&str>) -> Result<(Predictor, Examples)> {
    let model = Model::load(&args.model)?;
    // Files are read before the device is opened, so that their errors are reported sooner.
    let examples = match &args.source {
        Source { csv: Some(path), .. } => csv(path, args, &model, y.is_some())?,
        Source { npz: Some(path), .. } => npz(path, args, y, &model)?,
        Source { images: Some(path), .. } => image_folder(path, y.is_some(), &model)?,
        Source { image, .. } => images(image.clone(), &model)?,
    };
    let predictor = model.predictor(&PredictorOptions {
        device: args.device.clone(),
        batch: args.batch as usize,
        precision: args.precision.map(Into::into),
    })?;
    Ok((predictor, examples))
}

fn csv(path: &Path, args: &ModelAndExamples, model: &Model, labels: bool) -> Result<Examples> {
    let rows = model.read_table(
        path,
        TableReadOptions {
            unknown_as_zeros: args.unknown_words,
            drop_missing: args.drop_missing,
            ignore_target: !labels,
        },
    )?;
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
        names: rows.lines.iter().copied().map(Name::Row).collect(),
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
    })
}

fn images(files: Vec<PathBuf>, model: &Model) -> Result<Examples> {
    Ok(Examples {
        features: model.read_images(&files)?,
        names: files.iter().map(|f| Name::File(f.display().to_string())).collect(),
        labelled: None,
    })
}

/// Reads a folder of images or, with labels, a folder of folders of images.
fn image_folder(path: &Path, labels: bool, model: &Model) -> Result<Examples> {
    if !labels {
        return images(data::image_files(path)?, model);
    }
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
    })
}

/// Returns the most probable classes with their probabilities; equal ones keep their order.
fn best(probabilities: &[f64], top: usize) -> impl Iterator<Item = (usize, f64)> {
    let mut all: Vec<(usize, f64)> = probabilities.iter().copied().enumerate().collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all.into_iter().take(top)
}

/// Returns a text from a file without control characters.
fn printable(text: &str) -> String {
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

fn report_object(report: &PredictionReport) -> Value {
    match report {
        PredictionReport::Classification { loss, report } => {
            let count = report.classes.len();
            let row = |class: usize| {
                (0..count)
                    .map(|predicted| report.count(class, predicted))
                    .collect::<Vec<_>>()
            };
            let average = &report.macro_average;
            let classes: serde_json::Map<String, Value> = report
                .classes
                .iter()
                .map(|m| {
                    let metrics =
                        json!({"precision": m.precision, "recall": m.recall, "f1": m.f1, "examples": m.examples});
                    (m.name.clone(), metrics)
                })
                .collect();
            json!({
                "examples": report.examples,
                "correct": report.correct,
                "accuracy": report.accuracy(),
                "loss": loss,
                "macro_average": {"precision": average.precision, "recall": average.recall, "f1": average.f1},
                "classes": classes,
                "confusion": (0..count).map(row).collect::<Vec<_>>(),
            })
        }
        PredictionReport::Regression { metrics, examples } => json!({
            "examples": examples,
            "rmse": metrics.rmse,
            "mae": metrics.mae,
            "r2": metrics.r2,
        }),
        other => json!(format!("{other:?}")),
    }
}

fn write_csv<'p>(
    file: &mut dyn Write,
    rows: impl Iterator<Item = (&'p Name, &'p Prediction)>,
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
    let mut rows = rows.peekable();
    let first = match rows.peek() {
        Some((Name::File(_), _)) => "file",
        _ => "row",
    };
    writeln!(file, "{first},{}", header.join(","))?;
    for (name, prediction) in rows {
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
        writeln!(file, "{name},{}", fields.join(","))?;
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
