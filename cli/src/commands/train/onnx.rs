//! Option `meganeura train --onnx`: fine-tuning of a classifier from a file.

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;

use meganeura::Graph;
use meganeura::nn::data::Dataset;
use meganeura::nn::model::{Loss, Task};
use meganeura::nn::models::{classifier, soft_classifier};
use meganeura::nn::trainer::Trainer;
use meganeura::onnx::{self, Dim, Dims, ExportOptions, Import, ImportOptions, Model};
use meganeura::pattern::matches;

use super::{Args, NamedExamples};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A model for fine-tuning.
pub(super) struct OnnxModel {
    model: Model,
    freeze: Vec<String>,
    /// Sizes of its input, without the batch.
    shape: Vec<usize>,
    import: Import,
}

/// Returns an error if a file name does not end like that of an ONNX model.
pub(super) fn check_out(file: &Path) -> Result<()> {
    if file.extension().is_some_and(|e| e == "onnx") && !file.is_dir() {
        Ok(())
    } else {
        Err(format!(
            "--out {}: with --onnx, expected a file name that ends with .onnx",
            file.display()
        )
        .into())
    }
}

/// Imports the model, and reshapes the examples to its input.
pub(super) fn open(path: &Path, args: &Args, loaded: &mut NamedExamples) -> Result<OnnxModel> {
    if !matches!(loaded.task, Task::Classification { .. }) {
        return Err("--onnx trains only classifiers, but the examples have numbers as targets".into());
    }
    let model = Model::open(path)?;
    let [input] = model.inputs() else {
        let names: Vec<&str> = model.inputs().iter().map(|i| i.name.as_str()).collect();
        return Err(format!(
            "expected a classifier with one input, found the inputs {}",
            names.join(", ")
        )
        .into());
    };
    let example = loaded.parts.train.feature_shape().to_vec();
    let declared = input.dims.as_deref().and_then(|dims| dims.get(1..)).unwrap_or(&[]);
    let shape = shape_of(declared, &example)
        .ok_or_else(|| format!("the examples have the shape {example:?}, but the model expects {input}"))?;
    let reshaped = |data: Dataset| data.with_feature_shape(shape.clone());
    let parts = &mut loaded.parts;
    parts.train = reshaped(parts.train.clone())?;
    parts.validation = parts.validation.take().map(reshaped).transpose()?;
    parts.test = parts.test.take().map(reshaped).transpose()?;

    let mut imported = OnnxModel {
        import: Import::default(),
        freeze: args.freeze.clone(),
        model,
        shape,
    };
    // Classes and parameters do not depend on the batch size; one example suffices if the file leaves the batch open.
    let batch = imported.batch().unwrap_or(1);
    imported.import = imported.at(batch)?;
    let classes = imported
        .import
        .outputs
        .first()
        .and_then(|o| o.dims.last().copied())
        .unwrap_or(0);
    if classes != loaded.task.outputs() {
        return Err(format!(
            "the examples have {} classes, but the model has {classes}",
            loaded.task.outputs()
        )
        .into());
    }
    let known = |pattern: &&String| imported.import.parameters.iter().any(|p| matches(pattern, &p.name));
    if let Some(pattern) = args.freeze.iter().find(|pattern| !known(pattern)) {
        let names: Vec<&str> = imported
            .import
            .parameters
            .iter()
            .map(|p| p.name.as_str())
            .take(8)
            .collect();
        return Err(format!(
            "--freeze {pattern}: no parameter matches; there are {}...",
            names.join(", ")
        )
        .into());
    }
    Ok(imported)
}

/// Returns the sizes of an example for the model: those of the examples where the model leaves them open, with the same number of
/// elements.
fn shape_of(declared: &[Dim], example: &[usize]) -> Option<Vec<usize>> {
    let sizes: Option<Vec<usize>> = declared
        .iter()
        .map(|dim| match dim {
            Dim::Size(size) => Some(*size),
            Dim::Name(_) => None,
        })
        .collect();
    match sizes {
        Some(sizes) => (sizes.iter().product::<usize>() == example.iter().product::<usize>()).then_some(sizes),
        None => {
            let fits = declared.len() == example.len()
                && declared.iter().zip(example).all(|(dim, size)| match dim {
                    Dim::Size(s) => s == size,
                    Dim::Name(_) => true,
                });
            fits.then(|| example.to_vec())
        }
    }
}

impl OnnxModel {
    /// Returns the batch size that the file fixes.
    fn batch(&self) -> Option<usize> {
        match self.model.inputs()[0].dims.as_deref().and_then(<[Dim]>::first) {
            Some(Dim::Size(size)) => Some(*size),
            _ => None,
        }
    }

    /// Imports the model for a batch size.
    fn at(&self, batch: usize) -> Result<Import> {
        if let Some(fixed) = self.batch().filter(|fixed| *fixed != batch) {
            return Err(format!("the batch size of the file is fixed to {fixed}: use --batch {fixed}").into());
        }
        let input = &self.model.inputs()[0].name;
        let sizes = [&[batch], self.shape.as_slice()].concat();
        let dims = sizes.iter().enumerate().fold(Dims::new(), |dims, (axis, size)| {
            dims.bind(format!("{input}.{axis}"), *size)
        });
        let options = ImportOptions {
            freeze: self.freeze.clone(),
            ..ImportOptions::new(dims)
        };
        Ok(self.model.import(&options)?)
    }

    /// Returns the graph for the trainer.
    pub(super) fn training_graph(&self, batch: usize, shape: &[usize], loss: Loss) -> Result<Graph> {
        let import = self.at(batch)?;
        let mut failed = None;
        let logits = |g: &mut Graph, x| match import.logits(g, x) {
            Ok(logits) => logits.node,
            Err(error) => {
                failed = Some(error);
                x
            }
        };
        let graph = match loss {
            Loss::SoftClasses => soft_classifier(batch, shape, logits),
            _ => classifier(batch, shape, logits),
        };
        match failed {
            Some(error) => Err(error.into()),
            None => Ok(graph),
        }
    }

    /// Sets the parameters of the trainer to the values of the file.
    pub(super) fn set_parameters(&self, trainer: &mut Trainer) -> Result<()> {
        Ok(self.import.set_parameters(trainer.session_mut())?)
    }

    /// Writes the trained model, from unscaled features to probabilities.
    pub(super) fn save(&self, file: &Path, trainer: &mut Trainer, loaded: &NamedExamples) -> Result<()> {
        let batch = self.batch().unwrap_or(1);
        let import = self.at(batch)?;
        let mut graph = Graph::new();
        let x = graph.input(
            &self.model.inputs()[0].name,
            &[&[batch], self.shape.as_slice()].concat(),
        );
        let scaled = match loaded.preprocessing.scale() {
            Some(scale) => scale.standardise_in(&mut graph, x),
            None => x,
        };
        let logits = import.logits(&mut graph, scaled)?;
        let probabilities = graph.softmax(logits, -1);
        graph.set_outputs(vec![probabilities]);
        let mut values: HashMap<String, onnx::Tensor> = HashMap::new();
        for parameter in &import.parameters {
            let tensor = &parameter.tensor;
            // Integers, such as weights of 8 bits, are not trained.
            let trained = tensor
                .element()
                .is_float()
                .then(|| trainer.session_mut().try_read_parameter(&parameter.name));
            let value = match trained {
                Some(Ok(trained)) => onnx::Tensor::f32(tensor.dims(), trained),
                // Parameters that rewriting removed from the plan are unchanged, too.
                _ => onnx::Tensor::clone(tensor),
            };
            values.insert(parameter.name.clone(), value);
        }
        let options = ExportOptions {
            outputs: vec!["probabilities".into()],
            ..ExportOptions::default()
        };
        Ok(onnx::export_tensors(
            &graph,
            &mut |name| values.get(name).cloned(),
            &options,
            file,
        )?)
    }
}
