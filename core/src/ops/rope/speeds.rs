//! Rotary positions with a separate frequency for each pair: a composition of other operators.

use super::{RopeDims, dynamic, turn};
use crate::NodeId;
use crate::graph::{Graph, Value};
use crate::ops::Call;
use crate::ops::positions::expect_positions;
use crate::shape::TensorType;

const FORMULA: &str =
    "pair i of each head is turned by speeds[i] radians for each position; see `Graph::rope_with_speeds`";

impl Graph {
    /// Computes [`Graph::rope_dynamic_offset`] with arbitrary frequencies (`speeds`) instead of the powers of a base,
    /// in radians per position, one for each pair of a head, and with results scaled by `magnitude`: LongRoPE (Ding et
    /// al., 2024) divides the usual frequencies by one factor per pair, and scales queries and keys by a common factor.
    ///
    /// `x [batch..., rows, heads * 2 * speeds.len()] -> as x`; `offset` is `u32 [1]`, or with batch axes
    /// `u32 [batch...]`. Cosines and sines are computed in each step, once for all calls with the same frequencies and
    /// positions.
    ///
    /// Rejected: no frequencies; rows that do not consist of whole heads; a frequency or a magnitude that is not
    /// finite; an offset of another type or shape.
    #[track_caller]
    pub fn rope_with_speeds(
        &mut self,
        x: impl Into<Value>,
        speeds: &[f64],
        offset: impl Into<Value>,
        magnitude: f32,
    ) -> NodeId {
        let (x, offset) = (x.into(), offset.into());
        let (Some(of_x), Some(of_offset)) = (self.ty(x).cloned(), self.ty(offset).cloned()) else {
            // Errors of operands were reported before, or are reported here.
            return self.add(x, offset);
        };
        match sizes(&of_x, &of_offset, speeds, magnitude) {
            Err(message) => self.report("rope_with_speeds", message, FORMULA),
            Ok(dims) if dims.is_empty() => self.reshape(x, &of_x.shape),
            Ok(dims) => self.at_caller(|g| {
                let tables = dynamic::tables(g, offset, &dims, speeds);
                let tables = if magnitude == 1.0 {
                    tables
                } else {
                    tables.map(|table| {
                        let magnitude = g.scalar(magnitude);
                        g.mul(table, magnitude)
                    })
                };
                let y = turn(g, x, tables, &dims);
                g.reshape(y, &of_x.shape)
            }),
        }
    }
}

fn sizes(x: &TensorType, offset: &TensorType, speeds: &[f64], magnitude: f32) -> Result<RopeDims, String> {
    if let Some(speed) = speeds.iter().find(|speed| !speed.is_finite()) {
        return Err(format!("a speed is {speed}, which is no angle"));
    }
    if !magnitude.is_finite() {
        return Err(format!("the magnitude is {magnitude}"));
    }
    let head_dim = u32::try_from(2 * speeds.len()).map_err(|e| e.to_string())?;
    let attrs = dynamic::attrs(1.0, head_dim, super::RopeScaling::None);
    let dims = RopeDims::of_dynamic(&Call {
        attrs: &attrs,
        inputs: &[x.clone(), offset.clone()],
        outputs: &[],
    })?;
    let leading = x.shape.dims().split_last_chunk::<2>();
    expect_positions("the offset", offset, leading.map_or(&[][..], |(leading, _)| leading))?;
    Ok(dims)
}
