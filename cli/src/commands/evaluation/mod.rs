//! Command `meganeura evaluate`: the quality of a saved model on labelled examples.

mod charts;
mod page;

use std::path::PathBuf;
use std::process::ExitCode;

use meganeura::files::write_atomically;
use meganeura::nn::data::Dataset;
use meganeura::nn::model::{
    FeatureGroup, Features, Importance, Prediction, PredictionReport, Preprocessing, Task, calibration, class_curves,
};
use serde_json::{Value, json};

use super::Outcome;
use super::predict::{Examples, ModelAndExamples, open, printable};
use super::ranks::{RankOptions, Ranks};
use crate::commands::outputs::keep_inputs;
use crate::output::{line, notice};
use page::Evaluated;

const EXAMPLES: &str = "\
Examples:
  meganeura evaluate --model flowers --csv labelled.csv
  meganeura evaluate --model flowers --csv labelled.csv --importance
  meganeura evaluate --model photos-model --images more-photos
  meganeura evaluate --model digits --npz test.npz --json
  meganeura evaluate --model digits --npz test.npz --html digits.html
  mpirun -n 4 meganeura evaluate --model digits --npz test.npz --distributed mpi";

/// Number of permutations of each column for the page.
const PAGE_REPEATS: u32 = 5;

/// Options of `evaluate`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EvaluateArgs {
    #[command(flatten)]
    shared: ModelAndExamples,

    /// Name of the array in the .npz file with the labels (classes) or targets (regression).
    #[arg(long, value_name = "NAME", default_value = "y", conflicts_with = "csv")]
    y: String,

    /// Print the importance of each column of a table: the mean decrease of the accuracy (R² for regression) if the
    /// values of the column are permuted N times [default for N: 5]
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "5", require_equals = true,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    importance: Option<u32>,

    /// Write an HTML page. Classification: metrics of each class, confusion matrix, ROC and precision-recall curves,
    /// calibration. Regression: predicted numbers and residuals. Tables: importance of the columns, partial dependence.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    #[command(flatten)]
    ranks: RankOptions,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn evaluate(args: &EvaluateArgs) -> Outcome {
    let ranks = Ranks::join(&args.ranks)?;
    ranks.end(evaluate_as_rank(args, &ranks))
}

fn evaluate_as_rank(args: &EvaluateArgs, ranks: &Ranks) -> Outcome {
    keep_inputs(&[("--html", args.html.as_deref())], args.shared.inputs())?;
    let (mut predictor, examples) = open(&args.shared, Some(&args.y), &[])?;
    let Some(labelled) = &examples.labelled else {
        return Err(unlabelled(&examples, predictor.task()).into());
    };
    let groups = groups(&examples.preprocessing);
    if args.importance.is_some() && groups.is_empty() {
        return Err("--importance works only with tables, and the model was trained on other data".into());
    }
    let (report, predictions) = match ranks.others() {
        None => predictor.evaluate_with_predictions(labelled)?,
        Some(others) => {
            let report = predictor.evaluate_on_ranks(labelled, others)?;
            if !ranks.is_first() {
                return Ok(ExitCode::SUCCESS);
            }
            (report, predictor.predict(&Features::from(labelled))?)
        }
    };
    let repeats = args.importance.or(args.html.as_ref().map(|_| PAGE_REPEATS));
    let importances = match repeats.filter(|_| !groups.is_empty()) {
        Some(repeats) => predictor.importances(labelled, &groups, repeats as usize, 0)?,
        None => Vec::new(),
    };
    if let Some(path) = &args.html {
        let evaluated = Evaluated {
            title: format!("{} on {}", args.shared.model.display(), examples.features.name()),
            report: &report,
            predictions: &predictions,
            data: labelled,
            task: &predictor.task().clone(),
            importances: &importances,
            dependences: page::dependences(&mut predictor, labelled, &groups, &importances)?,
        };
        let page = evaluated.page();
        write_atomically(path, |file| file.write_all(page.as_bytes()))?;
        notice(format_args!("The page is in {}", path.display()))?;
    }
    if args.json {
        line(report_object(&report, &predictions, labelled, &importances))?;
    } else {
        print(&report, &predictions, labelled)?;
        print_importances(&importances, &report)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the message for a table without labels.
fn unlabelled(examples: &Examples, task: &Task) -> String {
    let file = printable(examples.features.name());
    let name = match task {
        Task::Classification { target, .. } => target.clone(),
        Task::Regression { targets, .. } => targets.join(", "),
        _ => String::new(),
    };
    format!("{file}: there is no column '{name}' to compare with; `meganeura predict` works without it")
}

/// Returns the features of each column of a table; none for other data.
fn groups(preprocessing: &Preprocessing) -> Vec<FeatureGroup> {
    let Preprocessing::Table { schema, .. } = preprocessing else {
        return Vec::new();
    };
    let columns = schema.columns.iter().zip(schema.feature_ranges());
    columns
        .map(|(column, features)| FeatureGroup {
            name: column.name.clone(),
            features,
        })
        .collect()
}

/// Prints the quality.
fn print(report: &PredictionReport, predictions: &[Prediction], data: &Dataset) -> std::io::Result<()> {
    match report {
        PredictionReport::Classification { loss, report } => {
            let curves = class_curves(predictions, data.labels());
            let auc = mean(curves.iter().map(|curve| curve.auc));
            let auc = auc.map_or_else(String::new, |auc| format!(", AUC {auc:.4}"));
            let error = calibration(predictions, data.labels()).error;
            // The report contains the accuracy.
            line(format_args!("loss {loss:.4}{auc}, calibration error {error:.4}\n"))?;
            line(report.to_string().trim_end())
        }
        PredictionReport::Regression { metrics, examples } => line(format_args!("{metrics} of {examples} examples")),
        other => line(format_args!("{other:?}")),
    }
}

/// Prints the importance of each column.
fn print_importances(importances: &[Importance], report: &PredictionReport) -> std::io::Result<()> {
    const MAX_NAME: usize = 40;
    if importances.is_empty() {
        return Ok(());
    }
    let score = match report {
        PredictionReport::Regression { .. } => "R²",
        _ => "accuracy",
    };
    let name = |importance: &Importance| crate::output::shortened(&printable(&importance.name), MAX_NAME);
    let width = importances
        .iter()
        .map(|i| name(i).chars().count())
        .max()
        .unwrap_or(0)
        .max(6);
    line(format_args!(
        "\n{:width$}  importance (decrease of the {score}), mean and deviation",
        "column"
    ))?;
    for importance in importances {
        line(format_args!(
            "{:width$}  {:10.4}  ± {:.4}",
            name(importance),
            importance.mean,
            importance.deviation
        ))?;
    }
    Ok(())
}

/// Returns the mean; `None` without values.
fn mean(values: impl ExactSizeIterator<Item = f64>) -> Option<f64> {
    let count = values.len();
    (count > 0).then(|| values.sum::<f64>() / count as f64)
}

fn report_object(
    report: &PredictionReport,
    predictions: &[Prediction],
    data: &Dataset,
    importances: &[Importance],
) -> Value {
    let mut object = match report {
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
            let curves = class_curves(predictions, data.labels());
            json!({
                "examples": report.examples,
                "correct": report.correct,
                "accuracy": report.accuracy(),
                "loss": loss,
                "auc": mean(curves.iter().map(|curve| curve.auc)),
                "average_precision": mean(curves.iter().map(|curve| curve.average_precision)),
                "calibration_error": calibration(predictions, data.labels()).error,
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
    };
    if !importances.is_empty() {
        let of_column = |i: &Importance| json!({"column": i.name, "mean": i.mean, "deviation": i.deviation});
        object["importances"] = importances.iter().map(of_column).collect();
    }
    object
}
