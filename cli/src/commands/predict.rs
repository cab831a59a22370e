//! `meganeura predict` and `meganeura evaluate`: a model that `train --out` saved, on new examples.

use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use meganeura::files::write_atomically;
use meganeura::nn::data::{self, FeatureOptions, Header};
use meganeura::nn::model::{ClassificationReport, Description, Input, Model, Prediction, Predictor, PredictorOptions};
use serde_json::{Value, json};

use super::Outcome;
use super::precision::Choice;
use crate::output::{line, notice};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PREDICT_EXAMPLES: &str = "\
Examples:
  meganeura train --csv flowers.csv --label species --out flowers
  meganeura predict --model flowers --csv new.csv
  meganeura predict --model flowers --csv new.csv --top 3 --output classes.csv";

const EVALUATE_EXAMPLES: &str = "\
Examples:
  meganeura evaluate --model flowers --csv labelled.csv
  meganeura evaluate --model digits --npz test.npz --json";

/// The model and its examples.
#[derive(Debug, clap::Args)]
struct Shared {
    /// Folder of the model, as `train --out` wrote it.
    #[arg(long, value_name = "DIR")]
    model: PathBuf,

    #[command(flatten)]
    source: Source,

    /// Columns of the CSV file to leave out, besides those that training left out.
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',', conflicts_with = "npz")]
    ignore: Vec<String>,

    /// Character between the fields of the CSV file; `tab` for tabs.
    #[arg(long, value_name = "CHAR", default_value = ",", value_parser = super::train::delimiter, conflicts_with = "npz")]
    delimiter: u8,

    /// Array of the .npz file that holds the features.
    #[arg(long, value_name = "NAME", default_value = "x", conflicts_with = "csv")]
    x: String,

    /// Examples in a step of the device.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,

    /// Device to use; `meganeura devices` lists them.
    #[arg(long, value_name = "SELECTOR")]
    device: Option<String>,

    /// Precision of matmuls and convolutions [default: the device's]
    #[arg(long, value_enum)]
    precision: Option<Choice>,
}

/// Where the examples are.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Source {
    /// CSV file with the columns that the model was trained with, in any order.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// File of NumPy (.npz) with features [examples, ...].
    #[arg(long, value_name = "FILE")]
    npz: Option<PathBuf>,
}

/// Options of `predict`.
#[derive(Debug, clap::Args)]
#[command(after_help = PREDICT_EXAMPLES)]
pub(crate) struct PredictArgs {
    #[command(flatten)]
    shared: Shared,

    /// Classes to print of each example, the most probable first.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    top: u32,

    /// Write a CSV file instead of printing: label, probability, and so on for --top.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Print one JSON object a line, with the probability of every class.
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

/// Options of `evaluate`.
#[derive(Debug, clap::Args)]
#[command(after_help = EVALUATE_EXAMPLES)]
pub(crate) struct EvaluateArgs {
    #[command(flatten)]
    shared: Shared,

    /// Array of the .npz file that holds the labels.
    #[arg(long, value_name = "NAME", default_value = "y", conflicts_with = "csv")]
    y: String,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Examples as they are in a file.
struct Examples {
    name: String,
    features: Vec<f32>,
    /// Labels of the examples with their places in the file, where the file has them.
    labels: Option<Vec<(usize, String)>>,
}

pub(crate) fn predict(args: &PredictArgs) -> Outcome {
    let (mut predictor, examples) = open(&args.shared, None)?;
    let predictions = predictor.predict(&examples.features)?;
    let classes = &predictor.description().classes;
    if let Some(path) = &args.output {
        write_atomically(path, |file| write_csv(file, &predictions, classes, args.top as usize))?;
        notice(format_args!("{} predictions in {}", predictions.len(), path.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    for (row, prediction) in predictions.iter().enumerate() {
        if args.json {
            line(object(row, prediction, classes))?;
        } else {
            let top = prediction.top(args.top as usize).into_iter();
            let top: Vec<String> = top
                .map(|(class, p)| format!("{} {:.1} %", printable(&classes[class]), 100.0 * p))
                .collect();
            line(format_args!("{}: {}", row + 1, top.join(", ")))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn evaluate(args: &EvaluateArgs) -> Outcome {
    let (mut predictor, examples) = open(&args.shared, Some(&args.y))?;
    let classes = predictor.description().classes.clone();
    let Some(labels) = &examples.labels else {
        let column = predictor.description().input.columns.as_ref().map(|c| c.label.clone());
        let column = column.unwrap_or_default();
        return Err(format!(
            "{}: there is no column '{column}' with the labels; `meganeura predict` needs none",
            examples.name
        )
        .into());
    };
    let ids = ids(&examples.name, labels, &classes)?;
    let predictions = predictor.predict(&examples.features)?;
    let mut report = ClassificationReport::new(&classes);
    for (prediction, &label) in predictions.iter().zip(&ids) {
        report.add(label, prediction);
    }
    if args.json {
        line(report_object(&report))?;
    } else {
        line(report.to_string().trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The model on its device, and the examples. `y` is the array of the labels, if they are wanted.
fn open(args: &Shared, y: Option<&str>) -> Result<(Predictor, Examples)> {
    let model = Model::load(&args.model)?;
    // Files before devices: their errors come sooner.
    let examples = match (&args.source.csv, &args.source.npz) {
        (Some(path), _) => csv(path, args, model.description())?,
        (None, Some(path)) => npz(path, args, y, &model.description().input)?,
        (None, None) => return Err("name a file of examples by --csv or --npz".into()),
    };
    let predictor = model.predictor(&PredictorOptions {
        device: args.device.clone(),
        batch: args.batch as usize,
        precision: args.precision.map(Into::into),
    })?;
    Ok((predictor, examples))
}

fn csv(path: &Path, args: &Shared, model: &Description) -> Result<Examples> {
    let Some(columns) = &model.input.columns else {
        let shape = &model.input.shape;
        return Err(format!(
            "the model was not trained on a table: its examples have the shape {shape:?}; give them by --npz"
        )
        .into());
    };
    let ignored: Vec<String> = columns.ignored.iter().chain(&args.ignore).cloned().collect();
    let table = data::read_features(
        path,
        &FeatureOptions {
            columns: &columns.features,
            label: &columns.label,
            ignore: &ignored,
            header: Header::Auto,
            delimiter: args.delimiter,
        },
    )?;
    Ok(Examples {
        name: path.display().to_string(),
        features: table.features,
        labels: table.labels,
    })
}

fn npz(path: &Path, args: &Shared, y: Option<&str>, input: &Input) -> Result<Examples> {
    let array = data::read_npz(path, &args.x)?;
    let fits = match array.shape() {
        // A perceptron takes images as rows of numbers.
        [_, shape @ ..] if input.shape.len() == 1 => shape.iter().product::<usize>() == input.len(),
        [_, shape @ ..] => squeezed(shape) == squeezed(&input.shape),
        [] => false,
    };
    if !fits {
        return Err(format!(
            "{}: the array '{}' has the shape {:?}; the model takes [examples, {}]",
            path.display(),
            args.x,
            array.shape(),
            input.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
        )
        .into());
    }
    let labels = y.map(|y| -> Result<_> {
        let labels = data::read_npz(path, y)?;
        let examples = array.shape()[0];
        if labels.shape() != [examples] && labels.shape() != [examples, 1] {
            return Err(format!(
                "{}: the labels '{y}' have the shape {:?}, and there are {examples} examples",
                path.display(),
                labels.shape()
            )
            .into());
        }
        let numbers = labels.to_i64()?.into_iter().enumerate();
        Ok(numbers.map(|(i, number)| (i + 1, number.to_string())).collect())
    });
    Ok(Examples {
        name: path.display().to_string(),
        features: array.to_f32(),
        labels: labels.transpose()?,
    })
}

/// A shape without axes of length 1: images of one channel may have an axis for it or not.
fn squeezed(shape: &[usize]) -> Vec<usize> {
    shape.iter().copied().filter(|&size| size != 1).collect()
}

/// Class ids of labels.
fn ids(file: &str, labels: &[(usize, String)], classes: &[String]) -> Result<Vec<usize>> {
    let id = |(place, label): &(usize, String)| {
        let same = |name: &String| name == label || is_same_number(name, label);
        classes.iter().position(same).ok_or_else(|| {
            let shown: Vec<String> = classes.iter().take(10).map(|c| printable(c)).collect();
            let more = if classes.len() > shown.len() { ", ..." } else { "" };
            format!(
                "{file}, line {place}: '{}' is none of the model's classes: {}{more}",
                printable(label),
                shown.join(", ")
            )
            .into()
        })
    };
    labels.iter().map(id).collect()
}

/// Whether two labels are the same number in different spellings, as 1 and 1.0.
fn is_same_number(a: &str, b: &str) -> bool {
    matches!((a.parse::<f64>(), b.parse::<f64>()), (Ok(a), Ok(b)) if a == b)
}

/// Text of a file for a terminal: without control characters.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn object(row: usize, prediction: &Prediction, classes: &[String]) -> Value {
    let (best, probability) = prediction.best();
    let all: serde_json::Map<String, Value> = classes
        .iter()
        .zip(prediction.probabilities())
        .map(|(class, &p)| (class.clone(), json!(p)))
        .collect();
    json!({
        "row": row + 1,
        "label": classes[best],
        "probability": probability,
        "probabilities": all,
    })
}

fn report_object(report: &ClassificationReport) -> Value {
    let metrics = |m: meganeura::nn::model::ClassMetrics| json!({"precision": m.precision, "recall": m.recall, "f1": m.f1, "examples": m.support});
    let classes = report.classes().iter().enumerate();
    let classes: serde_json::Map<String, Value> = classes
        .map(|(class, name)| (name.clone(), metrics(report.class(class))))
        .collect();
    json!({
        "examples": report.examples(),
        "correct": report.correct(),
        "accuracy": report.accuracy(),
        "loss": report.loss(),
        "macro_average": metrics(report.macro_average()),
        "classes": classes,
        "confusion": report.confusion(),
    })
}

fn write_csv(file: &mut dyn Write, predictions: &[Prediction], classes: &[String], top: usize) -> io::Result<()> {
    let top = top.min(classes.len());
    let header = (1..=top).map(|n| match n {
        1 => "label,probability".to_owned(),
        n => format!("label_{n},probability_{n}"),
    });
    writeln!(file, "{}", header.collect::<Vec<_>>().join(","))?;
    for prediction in predictions {
        let fields = prediction.top(top).into_iter();
        let fields = fields.map(|(class, p)| format!("{},{p}", quoted(&classes[class])));
        writeln!(file, "{}", fields.collect::<Vec<_>>().join(","))?;
    }
    Ok(())
}

/// A field of a CSV file (RFC 4180).
fn quoted(field: &str) -> String {
    match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_owned(),
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
    fn labels_are_found_by_text_and_by_number() {
        let classes = ["1".to_owned(), "2".to_owned()];
        let labels = [(2, "2".to_owned()), (3, "1.0".to_owned())];
        assert_eq!(ids("f", &labels, &classes).unwrap(), [1, 0]);
        let error = ids("f.csv", &[(7, "x\u{1b}[2J".to_owned())], &classes)
            .unwrap_err()
            .to_string();
        assert!(error.contains("f.csv, line 7: 'x?[2J'"), "{error}");
    }
}
