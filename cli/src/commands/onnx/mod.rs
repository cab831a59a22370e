//! `meganeura check`, `meganeura run` and `meganeura export`: ONNX models.

mod arrays;
mod check;
mod export;
mod run;

pub(crate) use check::{Args as CheckArgs, run as check};
pub(crate) use export::{Args as ExportArgs, run as export};
pub(crate) use run::{Args as RunArgs, run};

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use meganeura::backend::Device;
use meganeura::config::Config;
use meganeura::onnx::{self, Dim, Dims, ImportOptions, IssueKind, Model, Port, Report, Tensor};
use meganeura::{Builder, select};

use super::precision::Choice;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Ends a command whose model cannot be imported.
const UNSUPPORTED: u8 = 3;

/// Ends a command whose file is broken.
const BROKEN: u8 = 2;

/// Sizes of a model's open dimensions.
#[derive(Debug, clap::Args)]
pub(super) struct DimOptions {
    /// Size of a dimension that the model leaves open, by its name; one without a name is INPUT.AXIS (`x.0`). May be repeated.
    #[arg(long = "dim", value_name = "NAME=SIZE", value_parser = dim)]
    dims: Vec<(String, usize)>,

    /// Value of an input with one element, which becomes a constant: branches and shapes can depend on it. May be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = set)]
    constants: Vec<(String, f64)>,
}

fn set(text: &str) -> std::result::Result<(String, f64), String> {
    let wrong = || format!("'{text}' is not NAME=VALUE, such as rate=16000");
    let (name, value) = text.rsplit_once('=').ok_or_else(wrong)?;
    match value.parse() {
        Ok(value) if !name.is_empty() => Ok((name.to_owned(), value)),
        _ => Err(wrong()),
    }
}

fn dim(text: &str) -> std::result::Result<(String, usize), String> {
    let wrong = || format!("'{text}' is not NAME=SIZE, such as batch=4");
    let (name, size) = text.rsplit_once('=').ok_or_else(wrong)?;
    let size = size.parse().map_err(|_| wrong())?;
    if name.is_empty() {
        return Err(wrong());
    }
    Ok((name.to_owned(), size))
}

/// Whether a workload's name is that of an ONNX file.
pub(super) fn is_file(name: &str) -> bool {
    name.ends_with(".onnx")
}

/// The graph of a file, for commands that measure or explain it.
pub(super) fn graph(path: &str, options: &DimOptions) -> Result<meganeura::Graph> {
    let model = Model::open(path)?;
    options.check(&model)?;
    match model.import(&options.import_options(&model)?) {
        Ok(import) => Ok(import.graph),
        Err(onnx::Error::Unsupported(report)) => Err(with_help(&report).into()),
        Err(error) => Err(error.into()),
    }
}

/// A report, and the options that remove what is in the way, if there are some.
fn with_help(report: &Report) -> String {
    let mut text = report.to_string();
    let mut open: Vec<&str> = Vec::new();
    for issue in &report.issues {
        // A number of dimensions is no size of one.
        let is_size = issue.kind == IssueKind::UnboundDimension && !issue.message.contains(".rank");
        if is_size && !open.contains(&issue.place.as_str()) {
            open.push(&issue.place);
        }
    }
    if !open.is_empty() {
        let options: Vec<String> = open.iter().map(|name| format!("--dim {name}=SIZE")).collect();
        text += &format!("\n  help: {}", options.join(" "));
    }
    if report.depends_on_data() {
        let single = |port: &&Port| {
            let one = |dim: &Dim| matches!(dim, Dim::Size(1) | Dim::Name(_));
            !port.element.is_float() && port.dims.as_ref().is_some_and(|dims| dims.iter().all(one))
        };
        let inputs: Vec<&str> = report.inputs.iter().filter(single).map(|p| p.name.as_str()).collect();
        let options: Vec<String> = match inputs.as_slice() {
            [] => vec!["--set NAME=VALUE".into()],
            inputs => inputs.iter().map(|name| format!("--set {name}=VALUE")).collect(),
        };
        text += &format!(
            "\n  help: an input with one element can be a constant: {}",
            options.join(" ")
        );
    }
    text
}

impl DimOptions {
    /// Whether an option is given.
    pub(super) fn any(&self) -> bool {
        !self.dims.is_empty() || !self.constants.is_empty()
    }

    fn dims(&self) -> Dims {
        self.dims
            .iter()
            .fold(Dims::new(), |dims, (name, size)| dims.bind(name, *size))
    }

    /// Dimensions and constants.
    fn import_options(&self, model: &Model) -> Result<ImportOptions> {
        let mut options = ImportOptions::new(self.dims());
        for (name, value) in &self.constants {
            let mut ports = model.inputs().iter().chain(model.defaults());
            let Some(port) = ports.find(|p| p.name == *name) else {
                let names: Vec<&str> = model.inputs().iter().map(|p| p.name.as_str()).collect();
                return Err(format!("the model has no input `{name}`; it has {}", names.join(", ")).into());
            };
            let rank = port.dims.as_ref().map_or(0, Vec::len);
            let tensor = match port.element.is_float() {
                true => Tensor::floats(port.element, &vec![1; rank], vec![*value]),
                false if value.fract() != 0.0 => return Err(format!("input {port} cannot be {value}").into()),
                false => Tensor::integers(port.element, &vec![1; rank], vec![*value as i64]),
            };
            options.constants.insert(name.clone(), tensor);
        }
        Ok(options)
    }

    /// Refuses names that the model does not have.
    fn check(&self, model: &Model) -> Result<()> {
        let mut known: Vec<String> = Vec::new();
        for input in model.inputs() {
            let Some(dims) = &input.dims else { return Ok(()) };
            for (axis, dim) in dims.iter().enumerate() {
                if let Dim::Name(name) = dim {
                    known.extend([name.clone(), format!("{}.{axis}", input.name)]);
                }
            }
        }
        known.sort();
        known.dedup();
        for (name, _) in &self.dims {
            if !known.contains(name) {
                return Err(match known.is_empty() {
                    true => format!("the model has no open dimension, and --dim names `{name}`").into(),
                    false => format!("the model has no open dimension `{name}`; it has {}", known.join(", ")).into(),
                });
            }
        }
        Ok(())
    }
}

/// Where a model runs.
#[derive(Debug, clap::Args)]
struct DeviceOptions {
    /// Device to use; `meganeura devices` lists them.
    #[arg(long, value_name = "SELECTOR")]
    device: Option<String>,

    /// Precision of matmuls and convolutions [default: the device's]
    #[arg(long, value_enum)]
    precision: Option<Choice>,

    /// Keep the plan in this file, and take it from there the next time.
    #[arg(long, value_name = "FILE")]
    cache: Option<std::path::PathBuf>,
}

impl DeviceOptions {
    /// How a runner is built.
    fn builder(&self) -> Result<Builder> {
        self.built(self.precision)
    }

    /// The same in a given precision.
    fn builder_at(&self, precision: Choice) -> Result<Builder> {
        self.built(Some(precision))
    }

    fn built(&self, precision: Option<Choice>) -> Result<Builder> {
        let config = Config::load()?;
        let device: Arc<dyn Device> = select::select(self.device.as_deref(), &config)?.open(&config)?;
        let mut builder = Builder::on(device).config(config);
        if let Some(precision) = precision {
            builder = builder.precision(precision.into());
        }
        if let Some(path) = &self.cache {
            builder = builder.cache(path);
        }
        Ok(builder)
    }
}

/// Reports an error of a model with the exit code of its kind.
fn failed(error: onnx::Error) -> super::Outcome {
    let code = match &error {
        onnx::Error::Unsupported(report) if report.is_broken() => BROKEN,
        onnx::Error::Unsupported(_) => UNSUPPORTED,
        onnx::Error::Broken { .. } | onnx::Error::Io { .. } => BROKEN,
        _ => return Err(error.into()),
    };
    match &error {
        onnx::Error::Unsupported(report) => crate::output::notice(format_args!("error: {}", with_help(report)))?,
        _ => crate::output::report(&error),
    }
    Ok(ExitCode::from(code))
}
