//! Commands `meganeura check`, `meganeura run`, `meganeura quantize` and `meganeura export` for ONNX models.

mod arrays;
mod check;
mod export;
mod images;
mod quantize;
mod run;

pub(crate) use check::{Args as CheckArgs, run as check};
pub(crate) use export::{Args as ExportArgs, run as export};
pub(crate) use quantize::{Args as QuantizeArgs, run as quantize};
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

/// Exit code for a model that cannot be imported.
const UNSUPPORTED: u8 = 3;

/// Exit code for a broken file.
const BROKEN: u8 = 2;

/// Sizes of a model's open (dynamic) dimensions, and constant values of inputs.
#[derive(Debug, clap::Args)]
pub(super) struct DimOptions {
    /// Size of an open (dynamic) dimension, by its name or as INPUT.AXIS (`x.0`). May be repeated.
    #[arg(long = "dim", value_name = "NAME=SIZE", value_parser = dim)]
    dims: Vec<(String, usize)>,

    /// Constant value of an input with one element, so that branches and shapes can depend on it. May be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = set)]
    constants: Vec<(String, f64)>,
}

fn set(text: &str) -> std::result::Result<(String, f64), String> {
    let wrong = || format!("expected NAME=VALUE, such as rate=16000, found '{text}'");
    let (name, value) = text.rsplit_once('=').ok_or_else(wrong)?;
    match value.parse() {
        Ok(value) if !name.is_empty() => Ok((name.to_owned(), value)),
        _ => Err(wrong()),
    }
}

fn dim(text: &str) -> std::result::Result<(String, usize), String> {
    let wrong = || format!("expected NAME=SIZE, such as batch=4, found '{text}'");
    let (name, size) = text.rsplit_once('=').ok_or_else(wrong)?;
    let size = size.parse().map_err(|_| wrong())?;
    if name.is_empty() {
        return Err(wrong());
    }
    Ok((name.to_owned(), size))
}

/// Returns true if a workload's name is that of an ONNX file.
pub(super) fn is_file(name: &str) -> bool {
    name.ends_with(".onnx")
}

/// Returns the graph of a file, for commands that measure or explain it.
pub(super) fn graph(path: &str, options: &DimOptions) -> Result<meganeura::Graph> {
    let model = Model::open(path)?;
    options.check(&model)?;
    match model.import(&options.import_options(&model)?) {
        Ok(import) => Ok(import.graph),
        Err(onnx::Error::Unsupported(report)) => Err(with_help(&report).into()),
        Err(error) => Err(error.into()),
    }
}

/// Returns a report with the options that fix its issues, if there are any.
fn with_help(report: &Report) -> String {
    let mut text = report.to_string();
    let mut open: Vec<&str> = Vec::new();
    for issue in &report.issues {
        // A rank is not the size of a dimension.
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
        text += "\n  help: `meganeura run` and `check --against DIR` run a model in stages if its shapes depend on computed data; \
                 it cannot be trained or exported";
    }
    text
}

impl DimOptions {
    /// Returns true if an option is given.
    pub(super) fn any(&self) -> bool {
        !self.dims.is_empty() || !self.constants.is_empty()
    }

    fn dims(&self) -> Dims {
        self.dims
            .iter()
            .fold(Dims::new(), |dims, (name, size)| dims.bind(name, *size))
    }

    /// Returns the dimensions and constants.
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

    /// Returns an error for names that the model does not have.
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
                return Err(if known.is_empty() {
                    format!("the model has no open dimension, and --dim names `{name}`").into()
                } else {
                    format!("the model has no open dimension `{name}`; it has {}", known.join(", ")).into()
                });
            }
        }
        Ok(())
    }
}

/// Device and precision for running a model.
#[derive(Debug, clap::Args)]
struct DeviceOptions {
    /// Device to run on; see `meganeura devices`.
    #[arg(long, value_name = "SELECTOR")]
    device: Option<String>,

    /// Precision of matmuls and convolutions [default: from the configuration file, else from the device]
    #[arg(long, value_enum)]
    precision: Option<Choice>,

    /// Cache file of the plan: later runs load the plan from it instead of compiling the model.
    #[arg(long, value_name = "FILE")]
    cache: Option<std::path::PathBuf>,
}

impl DeviceOptions {
    /// Creates the builder of a runner.
    fn builder(&self) -> Result<Builder> {
        self.built(self.precision)
    }

    /// Creates the builder of a runner with a given precision.
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
