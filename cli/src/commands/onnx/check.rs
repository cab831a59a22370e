//! Command `meganeura check`.

use std::path::PathBuf;
use std::process::ExitCode;

use meganeura::onnx::{ElementType, Model, Report, Runner, Tensor, operators};
use serde_json::json;

use super::{BROKEN, DeviceOptions, DimOptions, Result, UNSUPPORTED, arrays, failed, with_help};
use crate::commands::Outcome;
use crate::commands::precision::Choice;
use crate::output::line;

const EXAMPLES: &str = "\
Examples:
  meganeura check detector.onnx
  meganeura check detector.onnx --dim batch=1 --dim x.2=640 --dim x.3=640
  meganeura check speech.onnx --dim input.0=1 --dim input.1=512 --dim state.1=1 --set sr=16000
  meganeura check detector.onnx --against reference --device cpu
  meganeura check --operators > onnx.md

Open (dynamic) dimensions need no --dim: the model is then checked with a size that it accepts, and the report names it.

Exit code: 0 if the model can run, 2 if its file is broken, 3 if it contains something unsupported, 1 for other errors and if \
results differ from those of --against.";

/// Options of `check`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// ONNX file.
    #[arg(required_unless_present = "operators")]
    model: Option<PathBuf>,

    #[command(flatten)]
    dims: DimOptions,

    /// Folder of inputs (`NAME.npy`, or `input_0.npy`, `input_1.npy` and so on) and expected results (`output_0.npy`,
    /// `output_1.npy` and so on). The model runs on the inputs, and its results are compared with the expected ones.
    #[arg(long, value_name = "DIR")]
    against: Option<PathBuf>,

    /// Tolerated difference from the results of --against, relative to the largest magnitude in a result.
    /// Without --precision, the model runs in f32 for this comparison.
    #[arg(long, value_name = "X", default_value_t = 1e-4, requires = "against")]
    tolerance: f64,

    #[command(flatten)]
    device: DeviceOptions,

    /// Print only the table of supported operators, as Markdown.
    #[arg(long, conflicts_with_all = ["model", "against"])]
    operators: bool,

    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Outcome {
    if args.operators {
        line(meganeura::onnx::markdown(operators()).trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(path) = &args.model else {
        return Err("name an ONNX file".into());
    };
    let model = match Model::open(path) {
        Ok(model) => model,
        Err(e) => return failed(e),
    };
    args.dims.check(&model)?;
    if let Some(folder) = &args.against {
        return against(args, &model, folder);
    }
    let report = model.preflight_with(&args.dims.import_options(&model)?);
    if args.json {
        line(serde_json::to_string(&report)?)?
    } else {
        line(with_help(&report))?
    }
    Ok(ExitCode::from(code(&report)))
}

fn code(report: &Report) -> u8 {
    match (report.is_supported(), report.is_broken()) {
        (true, _) => 0,
        (false, true) => BROKEN,
        (false, false) => UNSUPPORTED,
    }
}

/// Difference of a result from the reference.
struct Difference {
    name: String,
    /// Largest difference, relative to the largest magnitude of the reference; `None` if the shapes differ.
    relative: Option<f64>,
    message: String,
}

fn difference(name: &str, found: &Tensor, wanted: &Tensor) -> Difference {
    let name = name.to_owned();
    if found.dims() != wanted.dims() {
        let message = format!("found shape {:?}, expected {:?}", found.dims(), wanted.dims());
        return Difference {
            name,
            relative: None,
            message,
        };
    }
    let (a, b) = (found.to_f64(), wanted.to_f64());
    let scale = b
        .iter()
        .filter(|v| v.is_finite())
        .fold(0.0f64, |m, v| m.max(v.abs()))
        .max(f64::MIN_POSITIVE);
    let apart = |a: f64, b: f64| match a == b || (a.is_nan() && b.is_nan()) {
        true => 0.0,
        false if a.is_finite() && b.is_finite() => (a - b).abs(),
        false => f64::INFINITY,
    };
    let largest = a.iter().zip(&b).map(|(&a, &b)| apart(a, b)).fold(0.0, f64::max);
    Difference {
        name,
        relative: Some(largest / scale),
        message: format!(
            "largest difference {largest:.3e}, {:.3e} of the largest magnitude {scale:.3e}",
            largest / scale
        ),
    }
}

fn against(args: &Args, model: &Model, folder: &std::path::Path) -> Outcome {
    if !(args.tolerance.is_finite() && args.tolerance >= 0.0) {
        return Err(format!("--tolerance: expected a number of at least 0, found {}", args.tolerance).into());
    }
    let constants = args.dims.import_options(model)?.constants;
    let arrays::Inputs {
        tensors: inputs,
        constants,
    } = arrays::inputs_of(folder, model, constants)?;
    // The comparison checks the model, so a device must not round operands to be faster.
    let builder = args.device.builder_at(args.device.precision.unwrap_or(Choice::F32))?;
    let mut runner = match Runner::with_constants(model, &inputs, &constants, &builder) {
        Ok(runner) => runner,
        Err(e) => return failed(e),
    };
    let results = runner.run(&inputs)?;
    let mut differences = Vec::new();
    for (i, (info, found)) in runner.outputs().iter().zip(&results).enumerate() {
        let wanted = reference(folder, &info.name, i, info.element)?;
        differences.push(difference(&info.name, found, &wanted));
    }
    let agrees = |d: &Difference| d.relative.is_some_and(|r| r <= args.tolerance);
    let all = differences.iter().all(agrees);
    let device = runner.session().device().capabilities().name.clone();
    if args.json {
        let outputs: Vec<_> = differences
            .iter()
            .map(|d| json!({"name": d.name, "agrees": agrees(d), "relative_difference": d.relative}))
            .collect();
        line(json!({"device": device, "agrees": all, "tolerance": args.tolerance, "outputs": outputs}))?;
    } else {
        for (i, d) in differences.iter().enumerate() {
            let verdict = if agrees(d) { "agrees" } else { "DIFFERS" };
            line(format_args!("output {i} {}: {verdict}, {}", d.name, d.message))?;
        }
    }
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn reference(folder: &std::path::Path, name: &str, i: usize, element: ElementType) -> Result<Tensor> {
    let Some(path) = arrays::file_of(folder, name, "output", i) else {
        return Err(format!(
            "{} has no `output_{i}.npy`, for the result `{name}`: {element}",
            folder.display()
        )
        .into());
    };
    arrays::read(&path)
}
