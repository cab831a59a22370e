//! Numbers that are set for each step.

use super::Session;
use crate::dtype::DType;
use crate::error::{Error, Result, TensorKind, unwrap_report};
use crate::ops::{SEED_SCALAR, STEP_SCALAR};
use crate::storage::scalar_bytes;

impl Session {
    /// Sets a scalar of the graph for all following steps.
    ///
    /// # Errors
    /// Unknown name; a scalar of the optimizer; a value that the scalar's dtype cannot hold.
    pub fn try_set_scalar(&mut self, name: &str, value: f64) -> Result<()> {
        let found = self.plan.scalar_buffers.iter().find(|(n, _)| n == name);
        let Some((_, buffer)) = found else {
            let known = self.plan.scalar_buffers.iter().map(|(n, _)| n.as_str());
            return Err(Error::unknown_tensor(TensorKind::Scalar, name, known));
        };
        if self.optimizer.is_some() && name.starts_with("optimizer.") {
            return Err(Error::misuse(
                format!("scalar '{name}' belongs to the optimizer, which sets it in every step"),
                "change the optimizer: `adjust_learning_rate`, or `set_optimizer` with other numbers",
            ));
        }
        let dtype = self.plan.buffer_types[buffer.index()].dtype;
        let fits = match dtype {
            DType::U32 => value >= 0.0 && value <= f64::from(u32::MAX),
            DType::I32 => value >= f64::from(i32::MIN) && value <= f64::from(i32::MAX),
            _ => true,
        };
        if !fits {
            return Err(Error::misuse(
                format!("scalar '{name}' is {dtype}, which cannot hold {value}"),
                "give a number in the range of the type",
            ));
        }
        self.user_scalars.insert(name.to_owned(), value);
        Ok(())
    }

    /// Calls [`Session::try_set_scalar`], and panics on errors.
    #[track_caller]
    pub fn set_scalar(&mut self, name: &str, value: f64) {
        unwrap_report(self.try_set_scalar(name, value));
    }

    /// Collects the values of all scalars for the next step, in reusable memory.
    pub(super) fn gather_scalars(&mut self) -> Result<()> {
        let plan = &self.plan;
        self.scalars.clear();
        for (name, buffer) in &plan.scalar_buffers {
            let value = match name.as_str() {
                SEED_SCALAR => f64::from(self.seed),
                STEP_SCALAR => f64::from(self.steps as u32),
                name => match self.user_scalars.get(name) {
                    Some(&value) => value,
                    // Set below, or unused while updates are paused.
                    None if name.starts_with("optimizer.") => 0.0,
                    None => {
                        return Err(Error::InputNotSet {
                            names: vec![name.to_owned()],
                        });
                    }
                },
            };
            let dtype = plan.buffer_types[buffer.index()].dtype;
            self.scalars.push((*buffer, scalar_bytes(dtype, value)));
        }
        let Some(active) = &self.optimizer else { return Ok(()) };
        let slots = plan.scalar_buffers.iter().zip(&mut self.scalars);
        for ((name, buffer), slot) in slots.filter(|((name, _), _)| name.starts_with("optimizer.")) {
            if let Some(value) = active.scalar(name) {
                slot.1 = scalar_bytes(plan.buffer_types[buffer.index()].dtype, value);
            }
        }
        Ok(())
    }
}
