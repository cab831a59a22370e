//! Predictions for image files, which threads decode while the device computes.

use std::path::{Path, PathBuf};

use meganeura_core::Session;

use super::predictor::predictions;
use super::{Model, ModelError, Prediction, PredictorOptions, Preprocessing, Task};
use crate::data::{ImageLoader, ImageTransform};
use crate::models::FEATURES;

/// A model that is ready to predict for image files. Normalization and the order of the axes are part of its plan, and only the
/// images of two batches are in memory.
#[derive(Debug)]
pub struct ImagePredictor {
    session: Session,
    task: Task,
    transform: ImageTransform,
    batch: usize,
    outputs: Vec<f32>,
}

impl ImagePredictor {
    pub(super) fn new(model: &Model, options: &PredictorOptions) -> Result<Self, ModelError> {
        let Preprocessing::Images { size, scale } = &model.preprocessing else {
            return Err(model.refuse(Path::new("images"), "image files"));
        };
        let transform = ImageTransform::new(*size);
        transform.check()?;
        let of_batch = |batch: usize| {
            model.architecture.graph_of(|graph| {
                let words = graph.input_u32(FEATURES, &[batch, transform.words()]);
                let x = transform.apply(graph, words);
                scale.as_ref().map_or(x, |scale| scale.standardise_in(graph, x))
            })
        };
        let session = options.session(model, of_batch)?;
        Ok(ImagePredictor {
            session,
            task: model.task.clone(),
            outputs: vec![0.0; options.batch * model.architecture.outputs()],
            transform,
            batch: options.batch,
        })
    }

    /// Returns the task of the model.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// Predicts for the images of files, and calls `each` with the index and the prediction of each file, in order.
    ///
    /// # Errors
    /// [`ModelError::Data`] for the first file that cannot be read or is no image, after the predictions of earlier batches;
    /// [`ModelError::NonFinite`]; [`ModelError::Core`] if a step fails.
    pub fn predict(&mut self, files: &[PathBuf], mut each: impl FnMut(usize, Prediction)) -> Result<(), ModelError> {
        let outputs = self.task.outputs();
        for batch in ImageLoader::new(files.to_vec(), self.transform.clone(), self.batch)? {
            let batch = batch?;
            self.session.try_set_input_u32(FEATURES, &batch.words)?;
            self.session.try_step()?;
            self.session.try_read_output_by_index(0, &mut self.outputs)?;
            let found = &self.outputs[..batch.count * outputs];
            if let Some(at) = found.iter().position(|v| !v.is_finite()) {
                return Err(ModelError::NonFinite {
                    name: files[batch.first + at / outputs].display().to_string(),
                    row: batch.first + at / outputs,
                });
            }
            for (i, prediction) in predictions(&self.task, found).into_iter().enumerate() {
                each(batch.first + i, prediction);
            }
        }
        Ok(())
    }
}
