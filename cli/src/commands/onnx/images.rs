//! Option `meganeura run --images`: image files as the input of an ONNX model.
//!
//! Threads decode, resize and crop the files of the next batch while the device computes. The plan contains the rest of the
//! preprocessing: conversion of bytes, normalization and order of the axes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::ValueEnum;
use meganeura::nn::data::{ChannelOrder, ImageFit, ImageLayout, ImageLoader, ImageTransform, image_files};
use meganeura::nn::model::softmax;
use meganeura::onnx::{
    Dim, Dims, ElementType, Import, ImportOptions, LabelKind, Model, Port, Runner, Tensor, TensorInfo,
};
use serde_json::json;

use super::{DeviceOptions, DimOptions, Result, arrays, failed};
use crate::commands::Outcome;
use crate::commands::predict::{best, printable};
use crate::commands::train::image_size;
use crate::output::{line, notice};

/// Key of the metadata with the preprocessing of an exported model.
pub(super) const TRANSFORM: &str = "image_transform";
/// Key of the metadata with the names of classes.
pub(super) const CLASSES: &str = "classes";
/// Default number of images per step, if the model accepts any number.
const BATCH: usize = 32;
/// Default height and width, if the model accepts any size.
const SIZE: usize = 224;

/// Image files, and their preprocessing.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Images")]
pub(super) struct ImageOptions {
    /// Image files (PNG, JPEG, BMP) instead of arrays, for a model with one input [batch, channels, height, width] or
    /// [batch, height, width, channels].
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["inputs", "inputs_dir", "images"])]
    image: Vec<PathBuf>,

    /// Folder of image files, like --image.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["inputs", "inputs_dir"])]
    images: Option<PathBuf>,

    /// Number of images per step [default: the model's, else 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    batch: Option<u16>,

    /// Values of the pixels [default: from the metadata of a file that `meganeura export` wrote, else imagenet]
    #[arg(long, value_name = "KIND")]
    normalize: Option<Normalize>,

    /// Method to resize images to the size of the model [default: stretch with metadata, else crop]
    #[arg(long, value_name = "KIND")]
    fit: Option<Fit>,

    /// Height and width, if the model accepts any size, such as 224 or 480x640 [default: 224]
    #[arg(long, value_name = "SIZE", value_parser = image_size)]
    image_size: Option<[usize; 2]>,

    /// Channels in the order blue, green, red
    #[arg(long)]
    bgr: bool,

    /// Number of classes to print per image, the most probable first
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    top: u32,

    /// Text file with the name of a class in each line [default: the names in the metadata, else numbers]
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,
}

/// Values of the pixels, from bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Normalize {
    /// 0 to 1, minus the mean of ImageNet, divided by its standard deviation
    Imagenet,
    /// 0 to 1
    Unit,
    /// -1 to 1
    Symmetric,
    /// 0 to 255
    Bytes,
}

/// A method to resize images to the size of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fit {
    /// Resize until the shorter side is 8/7 of the size (256 for 224), and cut the middle out
    Crop,
    /// Resize to exactly this size, which may change the ratio of height and width
    Stretch,
    /// Resize until the image fits, and fill the margins with grey
    Pad,
}

impl ImageOptions {
    /// Returns true if the input is image files.
    pub(super) fn any(&self) -> bool {
        !self.image.is_empty() || self.images.is_some()
    }

    /// Returns an error if options of images are given without images.
    pub(super) fn check_unused(&self) -> Result<()> {
        let given = [
            ("--batch", self.batch.is_some()),
            ("--normalize", self.normalize.is_some()),
            ("--fit", self.fit.is_some()),
            ("--image-size", self.image_size.is_some()),
            ("--bgr", self.bgr),
            ("--labels", self.labels.is_some()),
            ("--top", self.top != 1),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => Err(format!("{name} is only for --image or --images").into()),
            None => Ok(()),
        }
    }

    fn files(&self) -> Result<Vec<PathBuf>> {
        match &self.images {
            Some(folder) => Ok(image_files(folder)?),
            None => Ok(self.image.clone()),
        }
    }

    /// Returns the preprocessing for an input of this shape (batch, then the axes of an image, `None` if open).
    fn transform(&self, model: &Model, port: &Port) -> Result<(Option<usize>, ImageTransform)> {
        let open = |dim: &Dim| match dim {
            Dim::Size(size) => Some(*size),
            Dim::Name(_) => None,
        };
        let dims: Option<Vec<_>> = port.dims.as_ref().map(|dims| dims.iter().map(open).collect());
        let Some([batch, axes @ ..]) = dims.as_deref() else {
            return Err(no_images(port));
        };
        let (layout, [channels, height, width]) = match *axes {
            [Some(channels @ (1 | 3)), height, width] => (ImageLayout::ChannelsFirst, [Some(channels), height, width]),
            [height, width, Some(channels @ (1 | 3))] => (ImageLayout::ChannelsLast, [Some(channels), height, width]),
            [None, height, width] => (ImageLayout::ChannelsFirst, [None, height, width]),
            _ => return Err(no_images(port)),
        };
        let wanted = |axis: usize, found: Option<usize>, name: &str| match (self.image_size, found) {
            (Some(size), Some(found)) if size[axis] != found => Err(format!(
                "--image-size has {name} {}, but the model accepts only {found}",
                size[axis]
            )),
            (Some(size), _) => Ok(size[axis]),
            (None, found) => Ok(found.unwrap_or(SIZE)),
        };
        let [height, width] = [wanted(0, height, "height")?, wanted(1, width, "width")?];
        let size = [channels.unwrap_or(3), height, width];
        let stored = metadata(model, TRANSFORM).map(serde_json::from_str::<ImageTransform>);
        let mut transform = match stored {
            Some(Ok(stored)) if stored.size == size => stored,
            Some(Ok(stored)) => {
                let message = format!(
                    "the metadata of the file is for images of {:?}, but its input is {port}",
                    stored.size
                );
                return Err(message.into());
            }
            Some(Err(error)) => {
                return Err(format!("the metadata `{TRANSFORM}` of the file is damaged: {error}").into());
            }
            None => ImageTransform {
                fit: crop([height, width]),
                ..normalized(ImageTransform::new(size), Normalize::Imagenet)
            },
        };
        if let Some(normalize) = self.normalize {
            transform = normalized(transform, normalize);
        }
        match self.fit {
            Some(Fit::Crop) => transform.fit = crop([height, width]),
            Some(Fit::Stretch) => transform.fit = ImageFit::Stretch,
            Some(Fit::Pad) => transform.fit = ImageFit::Pad,
            None => {}
        }
        if self.bgr {
            transform.order = ChannelOrder::Bgr;
            // Statistics belong to channels.
            transform.mean.reverse();
            transform.std.reverse();
        }
        transform.layout = layout;
        transform.check()?;
        Ok((*batch, transform))
    }

    /// Returns the names of the classes.
    fn labels(&self, model: &Model) -> Result<Option<Vec<String>>> {
        let Some(path) = &self.labels else {
            let names = metadata(model, CLASSES).map(serde_json::from_str);
            return Ok(names.and_then(std::result::Result::ok));
        };
        let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Some(text.lines().map(|line| line.trim().to_owned()).collect()))
    }
}

fn metadata<'m>(model: &'m Model, key: &str) -> Option<&'m str> {
    model.metadata().find(|(name, _)| *name == key).map(|(_, value)| value)
}

fn no_images(port: &Port) -> Box<dyn std::error::Error> {
    format!(
        "images need an input of shape [batch, channels, height, width] or [batch, height, width, channels] with 1 or 3 \
         channels, found {port}; pass arrays with --input"
    )
    .into()
}

fn crop(size: [usize; 2]) -> ImageFit {
    ImageTransform::imagenet(size).fit
}

/// Returns the transform with other statistics.
fn normalized(transform: ImageTransform, normalize: Normalize) -> ImageTransform {
    let channels = transform.size[0];
    let same = |mean: f32, std: f32| (vec![mean; channels], vec![std; channels]);
    let (mean, std) = match normalize {
        Normalize::Imagenet if channels == 3 => {
            let ImageTransform { mean, std, .. } = ImageTransform::imagenet([1, 1]);
            (mean, std)
        }
        // Grey images, for which ImageNet has no statistics.
        Normalize::Imagenet | Normalize::Unit => same(0.0, 1.0),
        Normalize::Symmetric => same(0.5, 0.5),
        Normalize::Bytes => same(0.0, 1.0 / 255.0),
    };
    ImageTransform { mean, std, ..transform }
}

/// The other options of `run`.
pub(super) struct Context<'a> {
    pub(super) dims: &'a DimOptions,
    pub(super) device: &'a DeviceOptions,
    pub(super) output_dir: Option<&'a Path>,
    pub(super) json: bool,
}

/// Runs a model on image files.
pub(super) fn run(model: &Model, options: &ImageOptions, context: &Context) -> Outcome {
    let given = context.dims.import_options(model)?;
    let mut ports = model.inputs().iter().filter(|p| !given.constants.contains_key(&p.name));
    let (Some(port), None) = (ports.next(), ports.next()) else {
        let names: Vec<&str> = model.inputs().iter().map(|p| p.name.as_str()).collect();
        let message = format!(
            "images are for models with one input, found {}; set the others with --set NAME=VALUE",
            names.join(", ")
        );
        return Err(message.into());
    };
    let (own_batch, transform) = options.transform(model, port)?;
    let wanted = options.batch.map(usize::from);
    if let (Some(own), Some(wanted)) = (own_batch, wanted)
        && own != wanted
    {
        return Err(format!("--batch is {wanted}, but the model accepts only batches of {own}").into());
    }
    let files = options.files()?;
    let batch = own_batch.or(wanted).unwrap_or_else(|| BATCH.min(files.len()));
    let labels = options.labels(model)?;
    let shape: Vec<usize> = std::iter::once(batch).chain(transform.shape()).collect();
    let mut import_options = ImportOptions {
        dims: model.dims_of([(port.name.as_str(), shape.as_slice())])?,
        ..given
    };
    for (name, size) in context.dims.dims().iter() {
        import_options.dims = bound(import_options.dims, name, size)?;
    }
    let mut import = match model.import(&import_options) {
        Ok(import) => import,
        Err(error) => return failed(error),
    };
    preprocess(&mut import, port, &transform, &shape)?;
    let mut runner = Runner::of_import(&import, &context.device.builder()?)?;
    let classes = is_classifier(runner.outputs(), batch).then(|| Classes {
        names: labels.or_else(|| columns(&runner)),
        top: options.top as usize,
        json: context.json,
    });
    let mut kept = Vec::new();
    let begin = Instant::now();
    for loaded in ImageLoader::new(files.clone(), transform, batch)? {
        let loaded = loaded?;
        runner.session().try_set_input_u32(&port.name, &loaded.words)?;
        runner.session().try_step()?;
        let results = runner.results()?;
        let of_batch = &files[loaded.first..loaded.first + loaded.count];
        match &classes {
            Some(classes) => classes.show(of_batch, &results[0].to_f32(), batch)?,
            None => {
                for file in of_batch {
                    line(printable(&file.display().to_string()))?;
                }
            }
        }
        if context.output_dir.is_some() {
            kept.push((loaded.count, results));
        }
    }
    let rate = files.len() as f64 / begin.elapsed().as_secs_f64();
    let device = runner.session().device().capabilities().name.clone();
    notice(format_args!(
        "{} images on {device}, {rate:.0} images/s with decoding",
        files.len()
    ))?;
    if let Some(folder) = context.output_dir {
        fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for (i, info) in runner.outputs().iter().enumerate() {
            let parts = kept.iter().map(|(count, results)| (*count, &results[i]));
            arrays::write(&folder.join(format!("output_{i}.npy")), &joined(info, batch, parts)?)?;
        }
        notice(format_args!("results are in {}", folder.display()))?;
    } else if classes.is_none() {
        notice("the results are not those of a classifier; --output-dir writes them as .npy files")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Adds a size of `--dim`, unless the images have another one.
fn bound(dims: Dims, name: &str, size: usize) -> Result<Dims> {
    match dims.get(name) {
        Some(found) if found != size => Err(format!(
            "--dim sets `{name}` to {size}, but the images have {found}; use --batch or --image-size"
        )
        .into()),
        _ => Ok(dims.bind(name, size)),
    }
}

/// Adds the preprocessing to the graph of a model.
fn preprocess(import: &mut Import, port: &Port, transform: &ImageTransform, shape: &[usize]) -> Result<()> {
    let is_float = matches!(port.element, ElementType::F32 | ElementType::F16 | ElementType::BF16);
    if !is_float && port.element != ElementType::U8 {
        return Err(format!("images need an input of floats or bytes, found {port}").into());
    }
    let of_bytes;
    // A model with bytes as its input normalizes them itself.
    let transform = if is_float {
        transform
    } else {
        of_bytes = normalized(transform.clone(), Normalize::Bytes);
        &of_bytes
    };
    import.compute_input(&port.name, |graph, info| {
        let words = [shape[0], transform.words()];
        let input = graph.input_u32(&port.name, &words);
        let value = transform.apply(graph, input);
        let value = graph.cast(value, info.element.dtype());
        let input = TensorInfo {
            name: port.name.clone(),
            element: ElementType::U32,
            dims: words.to_vec(),
        };
        (vec![input], value.into())
    })?;
    Ok(())
}

/// Returns true if the first result has a number for each class of each image.
fn is_classifier(outputs: &[TensorInfo], batch: usize) -> bool {
    let first = outputs.first();
    first.is_some_and(|info| {
        info.element.is_float() && info.dims.len() >= 2 && info.dims[0] == batch && {
            let classes: usize = info.dims[1..].iter().product();
            // Some classifiers have further axes of length 1.
            classes > 1 && info.dims[1..].contains(&classes)
        }
    })
}

/// Returns the labels of the columns of the first result.
fn columns(runner: &Runner) -> Option<Vec<String>> {
    let first = &runner.outputs().first()?.name;
    let labels = runner.labels().iter().find(|labels| labels.output == *first)?;
    (labels.kind == LabelKind::Columns).then(|| labels.labels.clone())
}

/// Returns the results of all images. A result without an axis for the images is the one of the last batch.
fn joined<'r>(
    info: &TensorInfo,
    batch: usize,
    mut parts: impl DoubleEndedIterator<Item = (usize, &'r Tensor)>,
) -> Result<Tensor> {
    if info.dims.first() != Some(&batch) {
        let last = parts.next_back().map(|(_, tensor)| tensor.clone());
        return last.ok_or_else(|| "there are no results".into());
    }
    let width: usize = info.dims[1..].iter().product();
    let (mut images, mut floats, mut integers) = (0, Vec::new(), Vec::new());
    for (count, tensor) in parts {
        images += count;
        if info.element.is_float() {
            floats.extend_from_slice(&tensor.to_f64()[..count * width]);
        } else {
            integers.extend_from_slice(&tensor.to_i64()[..count * width]);
        }
    }
    let dims: Vec<usize> = std::iter::once(images).chain(info.dims[1..].iter().copied()).collect();
    Ok(if info.element.is_float() {
        Tensor::floats(info.element, &dims, floats)
    } else {
        Tensor::integers(info.element, &dims, integers)
    })
}

/// Format of printed classes.
struct Classes {
    names: Option<Vec<String>>,
    top: usize,
    json: bool,
}

impl Classes {
    /// Prints the most probable classes of each file; `results` is `[batch, classes]`.
    fn show(&self, files: &[PathBuf], results: &[f32], batch: usize) -> Result<()> {
        let name = |class: usize| {
            let names = self.names.as_ref();
            names.and_then(|names| names.get(class)).cloned()
        };
        for (file, row) in files.iter().zip(results.chunks_exact(results.len() / batch)) {
            let found: Vec<(usize, f64)> = best(&probabilities(row), self.top).collect();
            if self.json {
                let classes: Vec<_> = found
                    .iter()
                    .map(|(class, p)| json!({"class": class, "label": name(*class), "probability": p}))
                    .collect();
                line(json!({"file": file.display().to_string(), "classes": classes}))?;
                continue;
            }
            let text = |&(class, p): &(usize, f64)| {
                let name = name(class).unwrap_or_else(|| format!("class {class}"));
                format!("{} {:.1} %", printable(&name), 100.0 * p)
            };
            let classes: Vec<String> = found.iter().map(text).collect();
            line(format_args!(
                "{}: {}",
                printable(&file.display().to_string()),
                classes.join(", ")
            ))?;
        }
        Ok(())
    }
}

/// Returns the probabilities of a row of a result, which contains probabilities or logits.
fn probabilities(logits: &[f32]) -> Vec<f64> {
    let row: Vec<f64> = logits.iter().copied().map(f64::from).collect();
    let sum: f64 = row.iter().sum();
    if (sum - 1.0).abs() < 1e-2 && row.iter().all(|p| (0.0..=1.001).contains(p)) {
        return row;
    }
    softmax(logits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_become_probabilities_and_probabilities_stay() {
        assert_eq!(probabilities(&[0.25, 0.75]), [0.25, 0.75]);
        let found = probabilities(&[1.0, 2.0]);
        assert!((found[1] - 1.0 / (1.0 + (-1.0_f64).exp())).abs() < 1e-12, "{found:?}");
    }
}
