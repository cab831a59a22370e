//! Statistics of a session's tensors.

use std::ops::ControlFlow;

use super::Session;
use super::levels::Stage;
use crate::error::{Error, Result, TensorKind, unwrap_report};
use crate::shape::TensorType;
use crate::statistics::{NamedStatistics, TensorStatistics};

/// Statistics of a result that a step computed.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultStatistics {
    /// Name of the call: name or number of its node, and the operator.
    pub name: String,
    /// File and line of the call, if it came from one.
    pub source: Option<String>,
    /// Part of the step.
    pub stage: Stage,
    /// Index of the result.
    pub result: usize,
    /// Dtype and shape of the result.
    pub ty: TensorType,
    /// Statistics of the result.
    pub statistics: TensorStatistics,
}

impl Session {
    /// Computes the statistics of all parameters, all states (the optimizer's included) or all
    /// gradients of the last step, in the order of the plan. The host reads each of them, which
    /// costs time.
    ///
    /// # Errors
    /// Another kind of tensor; gradients before the first step; errors of the step.
    pub fn try_statistics(&mut self, kind: TensorKind) -> Result<Vec<NamedStatistics>> {
        let views = match kind {
            TensorKind::Parameter => self.plan.parameters(),
            TensorKind::State => self.plan.states(),
            TensorKind::Gradient => {
                self.check_stepped()?;
                self.plan.gradients()
            }
            TensorKind::Input | TensorKind::Output | TensorKind::Scalar => {
                return Err(Error::misuse(
                    format!("statistics are not available for an {kind}"),
                    "request parameters, states or gradients, or use `TensorStatistics::of` on its elements",
                ));
            }
        };
        let mut bytes = Vec::new();
        let mut all = Vec::with_capacity(views.len());
        for view in views {
            let tensor = self.tensors.find(kind, &view.name)?;
            bytes.resize(tensor.ty.bytes(), 0);
            tensor.read(&mut *self.executable, &mut bytes)?;
            all.push(NamedStatistics {
                kind,
                statistics: TensorStatistics::of_bytes(tensor.ty.dtype, &bytes),
                name: view.name,
            });
        }
        Ok(all)
    }

    /// Calls [`Session::try_statistics`], and panics on errors.
    #[track_caller]
    pub fn statistics(&mut self, kind: TensorKind) -> Vec<NamedStatistics> {
        unwrap_report(self.try_statistics(kind))
    }

    /// Runs a step, and returns statistics of every result that it computed, in the order of
    /// execution: activations and their gradients, results of clusters and packed products, and
    /// writes of the update. Intermediate results within clusters are not included.
    ///
    /// It is an ordinary step with the same results, but runs like [`Session::try_step_debug`]: on a copy of the
    /// session's memory in which no buffers share memory, so it needs memory for this copy, and takes many times as
    /// long.
    ///
    /// # Errors
    /// Those of [`Session::try_step`]; not enough memory.
    pub fn try_step_statistics(&mut self) -> Result<Vec<ResultStatistics>> {
        let mut all = Vec::new();
        self.step_by_levels(&mut |level| {
            let plan = level.plan;
            for i in level.segment.into_iter().flat_map(|segment| segment.range()) {
                let dispatch = &plan.dispatches[i];
                for (result, output) in dispatch.outputs.iter().enumerate() {
                    let bytes = level.read(output.buffer)?;
                    all.push(ResultStatistics {
                        name: dispatch.label.clone(),
                        source: plan.source_of(dispatch).map(ToString::to_string),
                        stage: level.stage(i),
                        result,
                        statistics: TensorStatistics::of_bytes(output.ty.dtype, &bytes[..output.ty.bytes()]),
                        ty: output.ty.clone(),
                    });
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(all)
    }

    /// Calls [`Session::try_step_statistics`], and panics on errors.
    #[track_caller]
    pub fn step_statistics(&mut self) -> Vec<ResultStatistics> {
        unwrap_report(self.try_step_statistics())
    }
}
