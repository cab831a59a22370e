//! Command `meganeura run`.

use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use meganeura::onnx::{LabelKind, Model, OutputLabels, Runner, SharedRunner, Tensor, TensorInfo};
use serde_json::json;

use super::arrays::{self, Inputs};
use super::images::{self, ImageOptions};
use super::{DeviceOptions, DimOptions, Result, failed};
use crate::commands::Outcome;
use crate::output::line;

const EXAMPLES: &str = "\
Examples:
  meganeura run classifier.onnx --input x=image.npy
  meganeura run detector.onnx --inputs-dir inputs --output-dir results --device cpu
  meganeura run resnet50.onnx --images photos --labels imagenet-classes.txt --top 5

A folder of inputs contains `NAME.npy` for each input of the model, or `input_0.npy`, `input_1.npy` and so on in the order of \
`meganeura check MODEL.onnx`. Results are `output_0.npy`, `output_1.npy` and so on. Other `.npy` files are an error.

An input with an initializer needs no file: the initializer is its default. In files of IR version 3, each weight is such \
an input.

Exit code: 0 if the model ran, 2 if its file is broken, 3 if it is not supported, 1 for other errors.";

/// Options of `run`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// ONNX file.
    model: PathBuf,

    /// NumPy file (.npy) of an input. May be repeated.
    #[arg(long = "input", value_name = "NAME=FILE", value_parser = input, conflicts_with = "inputs_dir")]
    inputs: Vec<(String, PathBuf)>,

    /// Folder with one `.npy` file per input, named as described below.
    #[arg(long, value_name = "DIR")]
    inputs_dir: Option<PathBuf>,

    /// Folder for the results; created if missing.
    #[arg(long, value_name = "DIR")]
    output_dir: Option<PathBuf>,

    #[command(flatten)]
    dims: DimOptions,

    #[command(flatten)]
    device: DeviceOptions,

    /// Repeat the run for this many seconds, and report the median time.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: Option<u32>,

    /// Repeat the run from this many threads at the same time, which share the weights, and report the runs per second.
    #[arg(long, value_name = "N", requires = "repeat", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// Print a JSON object with shapes, types and times, or one for each image; results are written only to --output-dir.
    #[arg(long)]
    json: bool,

    // Its heading would also be that of later options.
    #[command(flatten)]
    images: ImageOptions,
}

fn input(text: &str) -> std::result::Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok((name.to_owned(), path.into())),
        _ => Err(format!("expected NAME=FILE, such as x=image.npy, found '{text}'")),
    }
}

/// Reads all inputs from files and options.
fn inputs(args: &Args, model: &Model) -> Result<Inputs> {
    let mut constants = args.dims.import_options(model)?.constants;
    if let Some(folder) = &args.inputs_dir {
        return arrays::inputs_of(folder, model, constants);
    }
    let all = || model.inputs().iter().chain(model.defaults());
    let names: Vec<&str> = all().map(|p| p.name.as_str()).collect();
    if let Some((name, _)) = args.inputs.iter().find(|(name, _)| !names.contains(&name.as_str())) {
        return Err(format!("the model has no input `{name}`; it has {}", names.join(", ")).into());
    }
    let mut tensors = Vec::new();
    for (i, port) in all().enumerate() {
        let mut given = args.inputs.iter().filter(|(name, _)| *name == port.name);
        let path = given.next().map(|(_, path)| path);
        if given.next().is_some() || path.is_some() && constants.contains_key(&port.name) {
            return Err(format!("--input or --set sets `{}` twice", port.name).into());
        }
        let has_default = i >= model.inputs().len();
        match path {
            Some(path) if has_default => drop(constants.insert(port.name.clone(), arrays::read(path)?)),
            Some(path) => tensors.push(arrays::read(path)?),
            None if has_default || constants.contains_key(&port.name) => {}
            None => {
                return Err(format!("no file for the input {port}: add --input {}=FILE.npy", port.name).into());
            }
        }
    }
    Ok(Inputs { tensors, constants })
}

pub(crate) fn run(args: &Args) -> Outcome {
    let model = match Model::open(&args.model) {
        Ok(model) => model,
        Err(e) => return failed(e),
    };
    args.dims.check(&model)?;
    if args.images.any() {
        return run_images(args, &model);
    }
    args.images.check_unused()?;
    let Inputs {
        tensors: inputs,
        constants,
    } = inputs(args, &model)?;
    let mut dims = args.dims.dims();
    // The shapes of the inputs must match --dim.
    let shapes = model
        .inputs()
        .iter()
        .filter(|p| !constants.contains_key(&p.name))
        .zip(&inputs)
        .map(|(p, t)| (p.name.as_str(), t.dims()));
    let found = model.dims_of(shapes)?;
    for (name, size) in found.iter() {
        if dims.get(name).is_some_and(|given| given != size) {
            let given = dims.get(name).unwrap_or(0);
            return Err(format!("--dim sets `{name}` to {given}, but its size in the inputs is {size}").into());
        }
        dims = dims.bind(name, size);
    }
    let builder = args.device.builder()?;
    let begin = Instant::now();
    let mut runner = match Runner::with_constants(&model, &inputs, &constants, &builder) {
        Ok(runner) => runner,
        Err(e) => return failed(e),
    };
    let build = begin.elapsed();
    let begin = Instant::now();
    let results = runner.run(&inputs)?;
    let step = begin.elapsed();
    if let Some(folder) = &args.output_dir {
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for (i, tensor) in results.iter().enumerate() {
            arrays::write(&folder.join(format!("output_{i}.npy")), tensor)?;
        }
    }
    let median = args
        .repeat
        .map(|seconds| repeated(&mut runner, &inputs, seconds))
        .transpose()?;
    let rate = match (args.threads, args.repeat) {
        (Some(threads), Some(seconds)) => {
            let shared = SharedRunner::with_constants(&model, constants, &builder)?;
            Some(runs_per_second(&shared, &inputs, threads, seconds)?)
        }
        _ => None,
    };
    let device = runner.session().device().capabilities().name.clone();
    if args.json {
        let outputs: Vec<_> = runner
            .outputs()
            .iter()
            .map(|info| json!({"name": info.name, "type": info.element.name(), "shape": info.dims}))
            .collect();
        let report = json!({
            "device": device,
            "stages": runner.stages(),
            "outputs": outputs,
            "labels": runner.labels(),
            "build_ms": build.as_secs_f64() * 1e3,
            "first_run_ms": step.as_secs_f64() * 1e3,
            "run_ms": median,
            "runs_per_second": rate,
        });
        line(report)?;
        return Ok(ExitCode::SUCCESS);
    }
    let stages = match runner.stages() {
        1 => String::new(),
        count => format!(" in {count} stages, because shapes depend on computed data"),
    };
    line(format_args!(
        "ran on {device}{stages}: built in {:.0} ms, first run {:.1} ms",
        build.as_secs_f64() * 1e3,
        step.as_secs_f64() * 1e3
    ))?;
    if let Some(median) = median {
        line(format_args!("median of a run: {median:.3} ms"))?;
    }
    if let (Some(rate), Some(threads)) = (rate, args.threads) {
        line(format_args!("{threads} threads: {rate:.1} runs per second"))?;
    }
    for (i, (info, tensor)) in runner.outputs().iter().zip(&results).enumerate() {
        line(summary(i, info, tensor))?;
        for labels in runner.labels().iter().filter(|labels| labels.output == info.name) {
            line(label_list(labels))?;
        }
    }
    if let Some(folder) = &args.output_dir {
        line(format_args!("results are in {}", folder.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the model on image files.
fn run_images(args: &Args, model: &Model) -> Outcome {
    if args.repeat.is_some() {
        return Err("--repeat measures runs with arrays (--input); a run with images prints images/s".into());
    }
    let context = images::Context {
        dims: &args.dims,
        device: &args.device,
        output_dir: args.output_dir.as_deref(),
        json: args.json,
    };
    images::run(model, &args.images, &context)
}

/// Returns the median time of a run in milliseconds, including the transfer of inputs and results.
fn repeated(runner: &mut Runner, inputs: &[Tensor], seconds: u32) -> Result<f64> {
    let begin = Instant::now();
    let mut times = Vec::new();
    while times.len() < 3 || begin.elapsed().as_secs() < u64::from(seconds) {
        let start = Instant::now();
        runner.run(inputs)?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Returns the number of runs per second from several threads.
fn runs_per_second(runner: &SharedRunner, inputs: &[Tensor], threads: u16, seconds: u32) -> Result<f64> {
    // Each thread makes its context before the time begins.
    let (ready, limit) = (
        Barrier::new(usize::from(threads)),
        Duration::from_secs(u64::from(seconds)),
    );
    let repeat = || -> meganeura::onnx::Result<(u64, Duration)> {
        let first = runner.run(inputs);
        ready.wait();
        first?;
        let (begin, mut runs) = (Instant::now(), 0);
        while begin.elapsed() < limit {
            runner.run(inputs)?;
            runs += 1;
        }
        Ok((runs, begin.elapsed()))
    };
    let counts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(repeat)).collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        joined.collect::<meganeura::onnx::Result<Vec<_>>>()
    })?;
    Ok(counts
        .iter()
        .map(|(runs, time)| *runs as f64 / time.as_secs_f64())
        .sum())
}

/// Number of printed elements of each result.
const SHOWN: usize = 8;

/// Number of printed labels of each result.
const SHOWN_LABELS: usize = 100;

/// Returns the meaning of the elements or columns of a result.
fn label_list(labels: &OutputLabels) -> String {
    let of = match labels.kind {
        LabelKind::Elements => "element",
        LabelKind::Columns => "column",
    };
    let shown = labels.labels.iter().take(SHOWN_LABELS).enumerate();
    let shown: Vec<String> = shown.map(|(i, label)| format!("{i} = {label:?}")).collect();
    let more = if labels.labels.len() > SHOWN_LABELS {
        ", ..."
    } else {
        ""
    };
    format!("  {of} {}{more}", shown.join(", "))
}

/// Returns the type, shape, range and first elements of a result.
fn summary(i: usize, info: &TensorInfo, tensor: &Tensor) -> String {
    let data = tensor.to_f64();
    let mut text = format!("output {i} {}: {}{:?}", info.name, info.element, info.dims);
    if data.is_empty() {
        return text;
    }
    let least = data.iter().copied().fold(f64::INFINITY, f64::min);
    let most = data.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let digits = |v: f64| {
        if info.element.is_float() {
            format!("{v:.6}")
        } else {
            format!("{v}")
        }
    };
    let first: Vec<String> = data.iter().take(SHOWN).map(|&v| digits(v)).collect();
    let more = if data.len() > SHOWN { ", ..." } else { "" };
    text.push_str(&format!(
        " from {} to {}: {}{more}",
        digits(least),
        digits(most),
        first.join(", ")
    ));
    text
}
