//! Command `meganeura quantize`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use meganeura::onnx::{Dim, Model, Port, QuantizeOptions, Quantizer, SharedRunner, Tensor};
use meganeura::random::SplitMix64;
use serde_json::json;

use super::{DeviceOptions, DimOptions, Result, arrays, failed};
use crate::commands::Outcome;
use crate::commands::precision::Choice;
use crate::output::{line, notice};

const EXAMPLES: &str = "\
Examples:
  meganeura quantize classifier.onnx -o classifier-int8.onnx --data samples
  meganeura quantize detector.onnx -o detector-int8.onnx --data samples --percentile 99.99
  meganeura quantize classifier.onnx -o fast.onnx --random 8 --dim batch=1

The folder of --data contains one folder for each sample, or the inputs of a single sample. A sample contains `NAME.npy` for each \
input of the model, or `input_0.npy`, `input_1.npy` and so on. Use 50 to 500 samples that are typical for the model's use.

Inputs and weights of convolutions and matrix products become 8-bit integers: weights with a scale for each output channel, \
activations with one scale. Convolutions with groups stay floats. The result contains QuantizeLinear and DequantizeLinear nodes, \
which ONNX Runtime also runs. Devices without integer kernels compute the same numbers with floats.

The report compares the results of the quantized model with those of the original model on the samples. SNR is the ratio of \
the original results to the differences, in decibels: 40 dB is a difference of 1 %.

Exit code: 0 if the file was written, 2 if the model is broken, 3 if it is not supported, 1 for other errors.";

/// Options of `quantize`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// ONNX file.
    model: PathBuf,

    /// File to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Folder of samples to calibrate with, as described below.
    #[arg(
        long,
        value_name = "DIR",
        required_unless_present = "random",
        conflicts_with = "random"
    )]
    data: Option<PathBuf>,

    /// Calibrate with this many random samples (normal numbers; zeros for integers), to measure speed. The ranges are then
    /// arbitrary.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    random: Option<u32>,

    /// Percentage of the activations in the range of the integers (50 to 100); larger magnitudes are clamped.
    #[arg(long, value_name = "P", default_value_t = 100.0)]
    percentile: f64,

    /// Quantize each weight with one scale instead of a scale for each output channel.
    #[arg(long)]
    per_tensor: bool,

    /// Size of an open (dynamic) dimension of random samples, by its name or as INPUT.AXIS (`x.0`); 1 by default. May be
    /// repeated.
    #[arg(long = "dim", value_name = "NAME=SIZE", value_parser = super::dim, requires = "random")]
    dims: Vec<(String, usize)>,

    /// Device to run on; see `meganeura devices`.
    #[arg(long, value_name = "SELECTOR")]
    device: Option<String>,

    /// Precision of matmuls and convolutions [default: from the configuration file, else from the device]
    #[arg(long, value_enum)]
    precision: Option<Choice>,

    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn sizes(&self) -> DimOptions {
        DimOptions {
            dims: self.dims.clone(),
            constants: Vec::new(),
        }
    }
}

/// Returns the folders in `data`, each with a sample, in the order of their names. Returns `data` itself if it contains no
/// folder.
fn sample_folders(data: &Path) -> Result<Vec<PathBuf>> {
    let failed = |e: std::io::Error| format!("{}: {e}", data.display());
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(data).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    if folders.is_empty() {
        return Ok(vec![data.to_owned()]);
    }
    folders.sort();
    Ok(folders)
}

/// Inputs of a run, and their name for messages.
struct Sample {
    name: String,
    inputs: Vec<Tensor>,
}

/// Returns random inputs. Open dimensions have the size that `--dim` sets, or 1.
fn random_inputs(model: &Model, args: &Args, rng: &mut SplitMix64) -> Result<Vec<Tensor>> {
    let dims = args.sizes().dims();
    let size = |port: &Port, axis: usize, dim: &Dim| match dim {
        Dim::Size(size) => *size,
        Dim::Name(name) => dims
            .get(name)
            .or_else(|| dims.get(&format!("{}.{axis}", port.name)))
            .unwrap_or(1),
    };
    let mut inputs = Vec::new();
    for port in model.inputs() {
        let Some(declared) = &port.dims else {
            return Err(format!("the number of dimensions of the input {port} is unknown: use --data").into());
        };
        let shape: Vec<usize> = declared
            .iter()
            .enumerate()
            .map(|(axis, dim)| size(port, axis, dim))
            .collect();
        let count = shape.iter().product();
        inputs.push(if port.element.is_float() {
            Tensor::floats(port.element, &shape, (0..count).map(|_| rng.normal()).collect())
        } else {
            Tensor::integers(port.element, &shape, vec![0; count])
        });
    }
    Ok(inputs)
}

/// Differences of a result of the quantized model from that of the original one, over all samples.
#[derive(Default)]
struct Accuracy {
    signal: f64,
    noise: f64,
    largest: f64,
    magnitude: f64,
    /// Rows whose largest element is the same, and all rows, of a result with rows.
    same: [usize; 2],
}

impl Accuracy {
    fn add(&mut self, wanted: &Tensor, found: &Tensor) {
        let width = wanted.dims().last().copied().unwrap_or(1);
        let (wanted, found) = (wanted.to_f64(), found.to_f64());
        for (a, b) in wanted.iter().zip(&found) {
            self.signal += a * a;
            self.noise += (a - b) * (a - b);
            self.largest = self.largest.max((a - b).abs());
            self.magnitude = self.magnitude.max(a.abs());
        }
        if width > 1 {
            let largest = |row: &[f64]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(i, _)| i);
            for (a, b) in wanted.chunks(width).zip(found.chunks(width)) {
                self.same[0] += usize::from(largest(a) == largest(b));
                self.same[1] += 1;
            }
        }
    }

    /// Returns the ratio of the results to the differences in decibels; infinite without differences.
    fn decibels(&self) -> f64 {
        match self.noise {
            0.0 => f64::INFINITY,
            noise => 10.0 * (self.signal / noise).log10(),
        }
    }
}

pub(crate) fn run(args: &Args) -> Outcome {
    let model = match Model::open(&args.model) {
        Ok(model) => model,
        Err(e) => return failed(e),
    };
    args.sizes().check(&model)?;
    let samples = samples(args, &model)?;
    let device = DeviceOptions {
        device: args.device.clone(),
        precision: args.precision,
        cache: None,
    };
    let builder = device.builder()?;
    let mut quantizer = Quantizer::new(&model, &builder)?;
    for (i, Sample { name, inputs }) in samples.iter().enumerate() {
        match quantizer.calibrate(inputs) {
            Ok(()) => {}
            Err(e @ meganeura::onnx::Error::Unsupported(_)) => return failed(e),
            Err(e) => return Err(format!("{name}: {e}").into()),
        }
        if (i + 1) % 50 == 0 {
            notice(format_args!("calibrated with {} of {} samples", i + 1, samples.len()))?;
        }
    }
    let mut options = QuantizeOptions::default();
    options.percentile = args.percentile;
    options.per_channel = !args.per_tensor;
    let (quantized, report) = quantizer.finish(&options)?;
    let runners = [
        SharedRunner::new(&model, &builder)?,
        SharedRunner::new(&quantized, &builder)?,
    ];
    let mut accuracy: Vec<Accuracy> = Vec::new();
    for Sample { inputs, .. } in &samples {
        let [wanted, found] = [runners[0].run(inputs)?, runners[1].run(inputs)?];
        accuracy.resize_with(wanted.len(), Accuracy::default);
        for (accuracy, (wanted, found)) in accuracy.iter_mut().zip(wanted.iter().zip(&found)) {
            accuracy.add(wanted, found);
        }
    }
    quantized.save(&args.output)?;
    let names = model.outputs().iter().map(|port| port.name.as_str());
    if args.json {
        let results: Vec<_> = names
            .zip(&accuracy)
            .map(|(name, a)| {
                json!({
                    "name": name,
                    "snr_db": a.decibels(),
                    "largest_difference": a.largest,
                    "largest_magnitude": a.magnitude,
                    "same_largest_element": (a.same[1] > 0).then(|| a.same[0] as f64 / a.same[1] as f64),
                })
            })
            .collect();
        let skipped: HashMap<&str, &str> = report.skipped.iter().map(|(n, r)| (n.as_str(), r.as_str())).collect();
        line(json!({
            "output": args.output,
            "samples": samples.len(),
            "quantized": report.quantized,
            "not_quantized": skipped,
            "weight_bytes": report.weight_bytes,
            "results": results,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    line(&report)?;
    let count = match samples.len() {
        1 => "1 sample".to_owned(),
        count => format!("{count} samples"),
    };
    line(format_args!("results of {count}, compared with the original model:"))?;
    for (name, accuracy) in names.zip(&accuracy) {
        let mut text = format!(
            "  {name}: SNR {:.1} dB, largest difference {:.3e} of {:.3e}",
            accuracy.decibels(),
            accuracy.largest,
            accuracy.magnitude
        );
        let [same, rows] = accuracy.same;
        if rows > 0 {
            text += &format!(", largest element the same in {same} of {rows} rows");
        }
        line(text)?;
    }
    line(format_args!("written to {}", args.output.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Reads or draws the inputs of all samples.
fn samples(args: &Args, model: &Model) -> Result<Vec<Sample>> {
    if let Some(count) = args.random {
        let mut rng = SplitMix64::new(1);
        let mut sample = |number| -> Result<Sample> {
            Ok(Sample {
                name: format!("random sample {number}"),
                inputs: random_inputs(model, args, &mut rng)?,
            })
        };
        return (1..=count).map(&mut sample).collect();
    }
    let data = args.data.as_deref().ok_or("--data or --random is missing")?;
    let mut samples = Vec::new();
    for folder in sample_folders(data)? {
        let inputs = arrays::inputs_of(&folder, model, HashMap::new())?;
        if let Some(name) = inputs.constants.keys().next() {
            return Err(format!(
                "{}: `{name}` has a default, which samples cannot replace",
                folder.display()
            )
            .into());
        }
        samples.push(Sample {
            name: folder.display().to_string(),
            inputs: inputs.tensors,
        });
    }
    Ok(samples)
}
