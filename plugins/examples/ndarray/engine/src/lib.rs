//! Engine that runs plans on [`ndarray`], with kernels for all primitive operators.
//!
//! The engine does not depend on the source of plans, the program that it is linked into or the C interface: both provide
//! [`PlanView`]s.

mod indexed;
mod kernels;
mod moves;
mod tensor;
mod windows;

use std::collections::HashMap;

use meganeura_plugin_abi::BUFFER_STATE;
use meganeura_plugin_abi::author::Failure;
use meganeura_plugin_abi::view::{DType, DispatchView, PlanView};
use tensor::Data;

pub use kernels::supports;

/// A plan with its memory: an array for each buffer.
pub struct Engine {
    plan: PlanView,
    buffers: Vec<Data>,
    /// Buffers whose contents must be restored after a failed step.
    exposed: Vec<usize>,
}

impl Engine {
    /// Allocates the memory of a plan.
    pub fn new(mut plan: PlanView) -> Result<Self, Failure> {
        for (i, dispatch) in plan.dispatches.iter().enumerate() {
            supports(dispatch).map_err(|reason| Failure::unsupported(i, reason))?;
        }
        let mut buffers = Vec::with_capacity(plan.buffers.len());
        for buffer in &mut plan.buffers {
            let mut data = Data::zeros(buffer.dtype, buffer.bytes / buffer.dtype.bytes());
            if buffer.flags & BUFFER_STATE != 0 && buffer.dtype == DType::F32 {
                data = Data::F32(vec![buffer.fill; buffer.bytes / 4]);
            }
            data.write(0, &std::mem::take(&mut buffer.data));
            buffers.push(data);
        }
        let exposed = (0..buffers.len()).filter(|&i| plan.buffers[i].is_exposed()).collect();
        Ok(Engine { plan, buffers, exposed })
    }

    fn checked(&mut self, buffer: u32, offset: u64, len: usize) -> Result<(&mut Data, usize), Failure> {
        let size = self.plan.buffers.get(buffer as usize).map(|b| b.bytes);
        let start = usize::try_from(offset).ok();
        let end = start.and_then(|start| start.checked_add(len));
        match (start, end, size) {
            (Some(start), Some(end), Some(size)) if end <= size => Ok((&mut self.buffers[buffer as usize], start)),
            _ => Err(Failure::out_of_bounds(buffer, offset, len)),
        }
    }

    /// Writes bytes of a buffer.
    pub fn write(&mut self, buffer: u32, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        let (data, start) = self.checked(buffer, offset, bytes.len())?;
        data.write(start, bytes);
        Ok(())
    }

    /// Reads bytes of a buffer.
    pub fn read(&mut self, buffer: u32, offset: u64, bytes: &mut [u8]) -> Result<(), Failure> {
        let (data, start) = self.checked(buffer, offset, bytes.len())?;
        data.read(start, bytes);
        Ok(())
    }

    /// Sets scalars and runs segments.
    pub fn run(&mut self, segments: &[u32], scalars: &[(u32, [u8; 4])]) -> Result<(), Failure> {
        for (buffer, bytes) in scalars {
            let size = self.plan.buffers.get(*buffer as usize).map_or(0, |b| b.bytes.min(4));
            self.write(*buffer, 0, &bytes[..size])?;
        }
        let before: HashMap<usize, Data> = self.exposed.iter().map(|&i| (i, self.buffers[i].clone())).collect();
        let outcome = segments.iter().try_for_each(|&s| self.segment(s as usize));
        if outcome.is_err() {
            // A failed step must have no effect.
            for (i, data) in before {
                self.buffers[i] = data;
            }
        }
        outcome
    }

    fn segment(&mut self, segment: usize) -> Result<(), Failure> {
        let Some(segment) = self.plan.segments.get(segment) else {
            return Err(Failure::failed(format!("there is no segment {segment}")));
        };
        if segment
            .skip_if
            .is_some_and(|b| matches!(&self.buffers[b as usize], Data::F32(v) if v[0] != 0.0))
        {
            return Ok(());
        }
        for i in segment.dispatches.clone() {
            let dispatch = &self.plan.dispatches[i];
            check_indices(dispatch, &self.buffers).map_err(|(index, rows)| Failure::index(i, index, rows))?;
            let results = kernels::run(dispatch, &self.buffers).map_err(Failure::failed)?;
            for (operand, data) in dispatch.outputs.iter().zip(results) {
                // Aliases may be longer than the written data.
                let buffer = &mut self.buffers[operand.buffer as usize];
                buffer.overwrite(data).map_err(Failure::failed)?;
            }
        }
        Ok(())
    }
}

fn check_indices(dispatch: &DispatchView, buffers: &[Data]) -> Result<(), (u32, u64)> {
    let Some((operand, rows)) = dispatch.index else {
        return Ok(());
    };
    let operand = &dispatch.inputs[operand];
    let Data::U32(indices) = &buffers[operand.buffer as usize] else {
        return Ok(());
    };
    match indices[..operand.elements()].iter().find(|&&i| u64::from(i) >= rows) {
        Some(&index) => Err((index, rows)),
        None => Ok(()),
    }
}
