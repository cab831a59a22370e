//! Views: operators that only change the locations of elements. Kernels read their operands directly.

use meganeura_core::ops::Call;

use super::emit::Emitter;
use super::location::{self, Index, Location};

/// Returns the location in operand 0 of the element at `location` in the result.
pub(super) fn location(emitter: &mut Emitter, name: &str, call: &Call, location: &[Index]) -> Result<Location, String> {
    let shape = &call.inputs[0].shape;
    match name {
        "core.reshape" => emitter.reshape(location, &call.outputs[0].shape, shape),
        "core.expand" => Ok(location::broadcast(location, shape)),
        "core.permute" => {
            let mut inner = vec![Index::Zero; shape.rank()];
            for (index, &axis) in location.iter().zip(call.attrs.ints("axes")?) {
                inner[shape.axis(axis)?] = index.clone();
            }
            Ok(inner)
        }
        "core.slice" => {
            let (starts, steps) = (call.attrs.ints("starts")?, call.attrs.ints("steps")?);
            let parts = location.iter().zip(starts.iter().zip(steps));
            parts
                .map(|(index, (&start, &step))| slice(emitter, index, start, step))
                .collect()
        }
        "core.flip" => {
            let mut inner = location.to_vec();
            for axis in shape.axes(call.attrs.ints("axes")?)? {
                if shape[axis] > 1 {
                    let index = emitter.index(&location[axis])?;
                    let from_end = emitter.bind(&format!("{}u - {index}", shape[axis] - 1))?;
                    inner[axis] = Index::text(from_end);
                }
            }
            Ok(inner)
        }
        _ => Err(format!("{name} is no view")),
    }
}

fn slice(emitter: &mut Emitter, index: &Index, start: i64, step: i64) -> Result<Index, String> {
    let text = match (index, start, step) {
        (_, 0, 1) | (Index::Zero, 0, _) => return Ok(index.clone()),
        (Index::Zero, ..) => return Ok(Index::text(format!("{start}u"))),
        (_, _, 1) => format!("{} + {start}u", emitter.index(index)?),
        _ => format!("{} * {step}u + {start}u", emitter.index(index)?),
    };
    Ok(Index::text(emitter.bind(&text)?))
}
