//! Comparison of public ONNX models in Meganeura and in ONNX Runtime, with the inputs and tolerances that
//! `scripts/verify-external/onnx_public_models.py` has written next to them.

use std::fs;
use std::path::{Path, PathBuf};

use meganeura::nn::data::{NpyArray, NpyType, read_npy};
use meganeura::onnx::{ElementType, Model, Runner, Tensor};
use serde_json::json;

use crate::comparison::{Comparison, ReadsBack, Result};
use crate::problem::Handout;
use crate::{Setup, python};

/// Name of the only other framework that runs all public models.
pub(crate) const RUNTIME: &str = "onnxruntime";

/// Returns the files with this extension in a folder, or its folders if the extension is empty, by name.
fn entries(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let listed = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut paths = Vec::new();
    for entry in listed {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == extension) || extension.is_empty() && path.is_dir() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Returns the models in `FOLDER/models/PACKAGE`.
pub(crate) fn models(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for package in entries(&folder.join("models"), "")? {
        found.extend(entries(&package, "onnx")?);
    }
    match found.is_empty() {
        true => Err(format!("{} has no models", folder.display()).into()),
        false => Ok(found),
    }
}

fn tensor(array: &NpyArray) -> Result<Tensor> {
    let data = array.to_f64();
    let integers = || data.iter().map(|&v| v as i64).collect();
    Ok(match array.dtype() {
        NpyType::F32 => Tensor::f32(array.shape(), data.iter().map(|&v| v as f32).collect()),
        NpyType::I32 => Tensor::integers(ElementType::I32, array.shape(), integers()),
        NpyType::I64 => Tensor::integers(ElementType::I64, array.shape(), integers()),
        other => return Err(format!("arrays of {other:?} are not used by these models").into()),
    })
}

/// Compares a model of the folder in both frameworks. A run includes setting the inputs and reading all results.
pub(crate) fn comparison(folder: &Path, path: &Path, setup: &Setup) -> Result<Comparison<'static>> {
    let (Some(package), Some(name)) = (path.parent().and_then(Path::file_name), path.file_stem()) else {
        return Err(format!("{} is no model of a package", path.display()).into());
    };
    let references = folder.join("references").join(package).join(name);
    let text = fs::read_to_string(references.join("tolerance")).map_err(|e| {
        format!(
            "{}: {e}; scripts/verify-external/onnx_public_models.py makes inputs and tolerances",
            references.display()
        )
    })?;
    let tolerance: f32 = text.trim().parse()?;
    let model = Model::open(path)?;
    let files: Vec<PathBuf> = (0..model.inputs().len())
        .map(|i| references.join(format!("input_{i}.npy")))
        .collect();
    let inputs: Result<Vec<Tensor>> = files.iter().map(|file| tensor(&read_npy(file)?)).collect();
    let inputs = inputs?;
    let title = format!("{}/{}", package.to_string_lossy(), name.to_string_lossy());
    let mut comparison = Comparison::new(title);
    for entrant in setup.meganeura(tolerance)? {
        let (name, tolerance) = (entrant.name.clone(), entrant.tolerance);
        let mut runner = Runner::for_inputs(&model, &inputs, &entrant.builder())?;
        let inputs = inputs.clone();
        let run = ReadsBack::new(move |read| {
            let results = runner.run(&inputs)?;
            Ok(if read {
                results.iter().flat_map(Tensor::to_f32).collect()
            } else {
                Vec::new()
            })
        });
        comparison.add(name, tolerance, Box::new(run));
    }
    let handout = Handout {
        kind: "PublicModel".to_owned(),
        operands: &[],
        settings: json!({ "model": fs::canonicalize(path)?, "inputs": files }),
        onnx: None,
    };
    python::add(&mut comparison, setup, &[RUNTIME], tolerance, &handout);
    Ok(comparison)
}

/// Returns the median and minimum of ONNX Runtime's times divided by Meganeura's.
pub(crate) fn summary(mut ratios: Vec<f64>) -> String {
    ratios.sort_by(f64::total_cmp);
    let Some(least) = ratios.first() else {
        return "no model was compared".to_owned();
    };
    let middle = ratios.len() / 2;
    let median = match ratios.len() % 2 {
        0 => (ratios[middle - 1] + ratios[middle]) / 2.0,
        _ => ratios[middle],
    };
    format!(
        "{} models, ONNX Runtime's time divided by Meganeura's: median {median:.2}, least {least:.2}",
        ratios.len()
    )
}
