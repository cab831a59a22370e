//! Command `meganeura export`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;

use meganeura::host_memory::collected;
use meganeura::nn::data::ImageTransform;
use meganeura::nn::model::{self, ModelError, Preprocessing, Task};
use meganeura::onnx::{self, ExportOptions};

use serde_json::json;

use super::images::{CLASSES, TRANSFORM};
use super::{DimOptions, Result, failed};
use crate::commands::Outcome;
use crate::output::line;

const EXAMPLES: &str = "\
Examples:
  meganeura train --csv flowers.csv --label species --out flowers
  meganeura export flowers --out flowers.onnx
  meganeura export open.onnx --dim batch=8 --out batch8.onnx

The ONNX file of a model folder has the input x (features). Its outputs are probabilities and label (index of the most \
probable class) for a classifier, and predictions for a regression model. It includes the standardisation of the \
features, but not the encoding of words: a column of words becomes one feature of 0 or 1 per category. The metadata has \
the names of the features, of the classes and of the targets as JSON lists, and the preprocessing of images, which `run \
--images` uses.";

/// Options of `export`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Model folder from `train --out`, or an ONNX file, whose imported graph is exported again.
    model: PathBuf,

    /// ONNX file to write.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Batch size of the exported model, for a model folder [default: open, so that each run chooses it]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,

    #[command(flatten)]
    dims: DimOptions,
}

pub(crate) fn run(args: &Args) -> Outcome {
    if args.model.is_dir() {
        folder(args)?
    } else {
        if let Err(error) = file(args) {
            return match error.downcast::<onnx::Error>() {
                Ok(error) => failed(*error),
                Err(other) => Err(other),
            };
        }
    }
    line(format_args!("exported to {}", args.out.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn folder(args: &Args) -> Result<()> {
    if let Some((name, _)) = args.dims.dims.first() {
        return Err(format!("--dim {name} works only with ONNX files; use --batch for a model folder").into());
    }
    if let Some((name, _)) = args.dims.constants.first() {
        return Err(format!("--set {name} works only with ONNX files").into());
    }
    let model = model::Model::load(&args.model)?;
    let values: HashMap<&str, &[f32]> = model.tensors().map(|(name, _, values)| (name, values)).collect();
    let is_classifier = matches!(model.task(), Task::Classification { .. });
    let outputs: &[&str] = if is_classifier {
        &["probabilities", "label"]
    } else {
        &["predictions"]
    };
    let options = ExportOptions {
        name: "model".into(),
        outputs: outputs.iter().map(|name| (*name).to_owned()).collect(),
        metadata: metadata(&model),
        ..ExportOptions::default()
    };
    let graph = |batch: usize| {
        let mut graph = model.graph(batch)?;
        let mut outputs = graph.outputs().to_vec();
        if is_classifier {
            let label = graph.argmax(outputs[0], -1);
            outputs.push(label.into());
            graph.set_outputs(outputs);
        }
        Ok::<_, ModelError>(graph)
    };
    let mut failed = None;
    let mut value = |name: &str| {
        let copy = collected(&format!("a copy of '{name}'"), values.get(name)?.iter().copied());
        copy.map_err(|error| failed = Some(error)).ok()
    };
    let exported = match args.batch {
        Some(batch) => onnx::export(&graph(batch as usize)?, &mut value, &options, &args.out),
        None => {
            let mut graph = |batch: usize| graph(batch).map_err(|e| onnx::Error::Input(e.to_string()));
            onnx::export_open_batch(&mut graph, &mut value, &options, &args.out)
        }
    };
    // The first failure is the cause, not the missing value that follows from it.
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(exported?),
    }
}

/// Returns the names of features, classes and targets, as JSON lists, and the preprocessing of images.
fn metadata(model: &model::Model) -> Vec<(String, String)> {
    let mut metadata = Vec::new();
    if let Preprocessing::Images { size, .. } = model.preprocessing() {
        metadata.push((TRANSFORM.to_owned(), json!(ImageTransform::new(*size)).to_string()));
    }
    let mut add = |key: &str, names: &[String]| metadata.push((key.to_owned(), json!(names).to_string()));
    if let Preprocessing::Table { schema, .. } = model.preprocessing() {
        add("features", &schema.feature_names());
    }
    match model.task() {
        Task::Classification { classes, target } => {
            add("target", std::slice::from_ref(target));
            add(CLASSES, classes);
        }
        Task::Regression { targets, .. } => add("target", targets),
        _ => {}
    }
    metadata
}

fn file(args: &Args) -> Result<()> {
    if args.batch.is_some() {
        return Err("--batch works only with model folders; use --dim NAME=N for an ONNX file".into());
    }
    let model = onnx::Model::open(&args.model)?;
    args.dims.check(&model)?;
    let import = model.import(&args.dims.import_options(&model)?)?;
    let values: HashMap<&str, &onnx::Tensor> = import
        .parameters
        .iter()
        .map(|p| (p.name.as_str(), &*p.tensor))
        .collect();
    let options = ExportOptions {
        outputs: import.outputs.iter().map(|o| o.name.clone()).collect(),
        ..ExportOptions::default()
    };
    let mut value = |name: &str| values.get(name).map(|&tensor| tensor.clone());
    Ok(onnx::export_tensors(&import.graph, &mut value, &options, &args.out)?)
}
