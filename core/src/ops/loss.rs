//! Shared code of losses: shape rules and samples of a prediction and a target, and means.

use super::sample::{Sample, SampleInput, Sizes};
use super::{Call, expect_float, expect_same_dtype};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

/// Documentation of the shapes of a loss of two tensors.
pub(super) const PAIR_SHAPES: &str = "prediction, target: one shape -> []";

/// Infers the type `[]` of a loss of two tensors of one float type; the names are for errors.
pub(super) fn infer_pair(call: &Call, [first, second]: [&str; 2]) -> Result<Vec<TensorType>, String> {
    expect_same_dtype(call)?;
    expect_float(call, 0, first)?;
    let (p, t) = (&call.inputs[0], &call.inputs[1]);
    if p.shape != t.shape {
        return Err(format!("the {first} {p} and the {second} {t} must have one shape"));
    }
    if p.numel() == 0 {
        return Err(format!("the mean of no elements is not defined: {p}"));
    }
    Ok(vec![TensorType::new(p.dtype, Shape::scalar())])
}

/// Returns samples with a prediction and a target in these ranges.
pub(super) fn pair_samples(sizes: &mut Sizes, ranges: [(f64, f64); 2], attrs: &Attrs) -> Vec<Sample> {
    [vec![1], vec![], vec![4, 3], sizes.shape(3, 30)]
        .iter()
        .map(|s| {
            let inputs = ranges.map(|(low, high)| SampleInput::range(s, low, high)).into();
            Sample::new(format!("{s:?}"), inputs, attrs.clone())
        })
        .collect()
}

/// Returns the factor of each element's derivative: the gradient of the mean, divided by the number of elements.
pub(super) fn element_scale(g: &mut Graph, like: Value, dy: Value) -> NodeId {
    let count: usize = g.shape(like).iter().product();
    let dtype = g.dtype(like);
    let factor = g.scalar_of(dtype, 1.0 / count as f64);
    g.mul(dy, factor)
}
