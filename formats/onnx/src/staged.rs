//! Models that run in stages, because shapes depend on computed data.

use std::collections::{HashMap, HashSet};

use meganeura_compiler::{Builder, OptimizeReport};
use meganeura_core::Session;

use crate::error::{Error, Result};
use crate::import::{Guard, Import, ImportOptions, Progress, Stage, import_stage};
use crate::model::Model;
use crate::runner::{read_results, set_input};
use crate::tensor::Tensor;

/// A stage with its session.
#[derive(Debug)]
struct OpenStage {
    /// Values that the stage was imported for.
    progress: Progress,
    stage: Stage,
    /// Session of the stage, and the report of its optimization; `None` if the stage computes nothing on the device.
    session: Option<(Session, OptimizeReport)>,
}

/// A model and the sessions of its stages.
#[derive(Debug)]
pub(crate) struct StagedModel {
    model: Model,
    options: ImportOptions,
    builder: Builder,
    /// Stages of the last run. The next run uses them again as long as the data that determine shapes stay the same.
    opened: Vec<OpenStage>,
}

impl StagedModel {
    pub(crate) fn new(model: &Model, options: ImportOptions, builder: &Builder) -> Self {
        StagedModel {
            model: model.clone(),
            options,
            builder: builder.clone().inference(),
            opened: Vec::new(),
        }
    }

    /// Returns the number of stages of the last run.
    pub(crate) fn len(&self) -> usize {
        self.opened.len()
    }

    /// Returns session and report of the last stage that computes something. There is such a stage after a run.
    pub(crate) fn last(&self) -> &(Session, OptimizeReport) {
        let mut sessions = self.opened.iter().rev().filter_map(|opened| opened.session.as_ref());
        sessions.next().expect("a run without a session is an error")
    }

    /// Returns the session of [`StagedModel::last`].
    pub(crate) fn last_session(&mut self) -> &mut Session {
        let sessions = self.opened.iter_mut().rev();
        let mut sessions = sessions.filter_map(|opened| opened.session.as_mut());
        &mut sessions.next().expect("a run without a session is an error").0
    }

    /// Runs all stages on inputs by name, and returns the outputs of the model.
    ///
    /// # Errors
    /// Those of importing a stage, of building and running its session; [`Error::Overflow`].
    pub(crate) fn run(&mut self, inputs: &HashMap<&str, &Tensor>) -> Result<Vec<Tensor>> {
        let outputs: Vec<String> = self.model.outputs().iter().map(|port| port.name.clone()).collect();
        let names: HashSet<&str> = outputs.iter().map(String::as_str).collect();
        let mut progress = Progress::default();
        for number in 0.. {
            self.open(number, &progress)?;
            let OpenStage { stage, session, .. } = &mut self.opened[number];
            let results = match session {
                Some((session, _)) => step(session, &stage.import, &progress, inputs)?,
                None => Vec::new(),
            };
            progress = stage.advance(&progress, results, inputs, &names);
            if stage.is_last() {
                self.opened.truncate(number + 1);
                break;
            }
        }
        if self.opened.iter().all(|opened| opened.session.is_none()) {
            return Err(Error::Input(
                "all outputs of the model are constants, so there is no graph to run".into(),
            ));
        }
        let result = |name: &String| match progress.carried.get(name) {
            Some(carried) => Ok((*carried.tensor).clone()),
            None => match inputs.get(name.as_str()) {
                Some(tensor) => Ok((*tensor).clone()),
                None => Err(Error::Input(format!("no node computes the output `{name}`"))),
            },
        };
        outputs.iter().map(result).collect()
    }

    /// Opens a stage for the values of earlier ones, unless it is open.
    fn open(&mut self, number: usize, progress: &Progress) -> Result<()> {
        if let Some(opened) = self.opened.get_mut(number)
            && Stage::serves(&opened.progress, progress)
        {
            return Ok(());
        }
        self.opened.truncate(number);
        let mut options = self.options.clone();
        for port in self.model.inputs() {
            if let Some(carried) = progress.carried.get(&port.name) {
                options.constants.insert(port.name.clone(), (*carried.tensor).clone());
            }
        }
        let stage = import_stage(&self.model, &options, progress)?;
        let session = if stage.import.outputs.is_empty() {
            None
        } else {
            // One file keeps one plan. Later stages change with the data.
            let builder = if number == 0 {
                self.builder.clone()
            } else {
                self.builder.clone().uncached()
            };
            let (mut session, report) = builder.build(&stage.import.checked_graph())?;
            stage.import.set_parameters(&mut session)?;
            Some((session, report))
        };
        log::debug!(
            "stage {number} computes {} values{}",
            stage.import.outputs.len(),
            if stage.is_last() { ", the last ones" } else { "" }
        );
        self.opened.push(OpenStage {
            progress: progress.clone(),
            stage,
            session,
        });
        Ok(())
    }
}

/// Runs a stage on values of earlier ones and inputs of the model.
fn step(
    session: &mut Session,
    import: &Import,
    progress: &Progress,
    inputs: &HashMap<&str, &Tensor>,
) -> Result<Vec<Tensor>> {
    for info in &import.inputs {
        let name = info.name.as_str();
        let earlier = progress.carried.get(name).map(|carried| &*carried.tensor);
        let tensor = earlier.or_else(|| inputs.get(name).copied());
        let tensor = tensor.ok_or_else(|| Error::Input(format!("input `{name}` is missing")))?;
        set_input(session, info, tensor)?;
    }
    session.try_step()?;
    session.try_wait()?;
    let guards: &[Guard] = &import.guards;
    read_results(session, &import.outputs, guards)
}
