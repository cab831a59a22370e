//! Rotary position embedding.

mod cache_write;
mod dynamic;
mod scaling;
mod speeds;

pub(super) use cache_write::RopeCacheWrite;
pub(super) use dynamic::{RopeDynamicOffset, attrs as dynamic_attrs};
pub use scaling::RopeScaling;

use super::sample::{Sample, SampleInput, Sizes};
use super::{
    Arity, AttrDecls, AttrKind, Call, Cost, Doc, FusionRole, Gradient, OpRef, Operator, Semantics, expect_float,
};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct Rope;

/// Sizes and angles of a `core.rope` or `core.rope_dynamic_offset` call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeDims {
    /// Product of the leading axes.
    pub batch: usize,
    /// Number of positions.
    pub rows: usize,
    /// Number of heads in a row.
    pub heads: usize,
    /// Number of pairs in a head: half the head's width.
    pub half: usize,
    /// Base of the angles.
    pub theta: f64,
    /// Position of the first row; 0 if it is an operand.
    pub offset: usize,
    /// Rotates backwards if `true`.
    pub inverse: bool,
    /// Scaling of the frequencies (radians per position) for longer contexts.
    pub scaling: RopeScaling,
}

impl RopeDims {
    /// Reads the dimensions of a call.
    ///
    /// # Errors
    /// An operand and attributes that do not match.
    pub fn of(call: &Call) -> Result<Self, String> {
        RopeDims::with(call, call.attrs.size("offset")?, RopeScaling::None)
    }

    /// Reads the dimensions of a `core.rope_dynamic_offset` call.
    ///
    /// # Errors
    /// As [`RopeDims::of`].
    pub fn of_dynamic(call: &Call) -> Result<Self, String> {
        RopeDims::with(call, 0, RopeScaling::of(call.attrs)?)
    }

    fn with(call: &Call, offset: usize, scaling: RopeScaling) -> Result<Self, String> {
        expect_float(call, 0, "the operand")?;
        let x = &call.inputs[0];
        let [batch @ .., rows, width] = x.shape.dims() else {
            return Err(format!("{x} needs at least two axes: [..., rows, heads * head_dim]"));
        };
        let head_dim = call.attrs.size("head_dim")?;
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(format!(
                "a head of {head_dim} elements does not consist of pairs; head_dim must be even and above 0"
            ));
        }
        if !width.is_multiple_of(head_dim) {
            return Err(format!(
                "rows of {width} elements ({x}) are no whole number of heads of {head_dim}"
            ));
        }
        let theta = call.attrs.float("theta")?;
        if !(theta > 0.0 && theta.is_finite()) {
            return Err(format!(
                "theta is {theta}, but the base of the angles must be positive and finite"
            ));
        }
        Ok(RopeDims {
            batch: batch.iter().product(),
            rows: *rows,
            heads: width / head_dim,
            half: head_dim / 2,
            theta,
            offset,
            inverse: call.attrs.bool("inverse")?,
            scaling,
        })
    }

    /// Returns the rotation of each pair of a head per position, in radians; negative if `inverse`.
    pub fn speeds(&self) -> Vec<f64> {
        let sign = if self.inverse { -1.0 } else { 1.0 };
        let speed = |i| self.theta.powf(-(i as f64) / self.half as f64);
        (0..self.half).map(|i| sign * self.scaling.apply(speed(i))).collect()
    }

    /// Returns cosines and sines of all pairs of all rows, computed in `f64`: `rows * half` each.
    pub fn tables(&self) -> [Vec<f32>; 2] {
        let speeds = self.speeds();
        let mut tables = [(); 2].map(|()| Vec::with_capacity(self.rows * self.half));
        for row in 0..self.rows {
            let position = row as f64 + self.offset as f64;
            for speed in &speeds {
                let (sin, cos) = (position * speed).sin_cos();
                tables[0].push(cos as f32);
                tables[1].push(sin as f32);
            }
        }
        tables
    }

    /// Returns `true` if there is nothing to rotate.
    pub fn is_empty(&self) -> bool {
        self.batch == 0 || self.rows == 0 || self.heads == 0
    }
}

/// Rotates the pairs of `x` by angles whose cosines and sines, in `f32`, broadcast to
/// `[batch, rows, heads, half]`.
fn turn(g: &mut Graph, x: Value, tables: [NodeId; 2], dims: &RopeDims) -> Value {
    let (dtype, shape) = (g.dtype(x), g.shape(x).to_vec());
    let [cos, sin] = tables.map(|table| g.cast(table, dtype));
    let split = g.reshape(x, &[dims.batch, dims.rows, dims.heads, 2 * dims.half]);
    let first = g.slice_axis(split, -1, 0, dims.half);
    let second = g.slice_axis(split, -1, dims.half, 2 * dims.half);
    let [first_cos, second_cos] = [first, second].map(|x| g.mul(x, cos));
    let [first_sin, second_sin] = [first, second].map(|x| g.mul(x, sin));
    let first = g.sub(first_cos, second_sin);
    let second = g.add(second_cos, first_sin);
    let joined = g.concat(&[first, second], -1);
    g.reshape(joined, &shape).into()
}

impl Operator for Rope {
    fn name(&self) -> &'static str {
        "core.rope"
    }

    fn signature(&self) -> String {
        "g.rope(x, theta, head_dim)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [..., rows, heads * head_dim] -> the same",
            formula: "pair i of a head (elements i and i + head_dim / 2) turns by (row + offset) * theta^(-2i / head_dim): (x1 cos - x2 sin, x2 cos + x1 sin); backwards if inverse",
            source: "Su et al., 2021; pairs half a head apart as in GPT-NeoX and Llama",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(1)
    }

    fn attributes(&self) -> AttrDecls {
        vec![
            ("theta", AttrKind::Float),
            ("offset", AttrKind::Int),
            ("head_dim", AttrKind::Int),
            ("inverse", AttrKind::Bool),
        ]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        RopeDims::of(call)?;
        Ok(vec![call.inputs[0].clone()])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            // The transpose of a rotation is its inverse.
            let inverse = cx.attrs().bool("inverse")?;
            let attrs = cx.attrs().clone().with("inverse", !inverse);
            let dy = cx.grad(0);
            Ok(vec![Some(cx.call(OpRef::new(&Rope), attrs, vec![dy]).into())])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::composite(|cx| {
            let dims = cx.with_call(RopeDims::of)?;
            let (g, x) = (&mut *cx.graph, cx.inputs[0]);
            if dims.is_empty() {
                return Ok(vec![x]);
            }
            let tables = dims.tables();
            let [cos, sin] = tables.map(|table| g.constant(table, &[dims.rows, 1, dims.half]));
            Ok(vec![turn(g, x, [cos, sin], &dims)])
        })
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::OfPart
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 3)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let (rows, heads, half) = (sizes.dim(70), sizes.dim(9), sizes.dim(40));
        let cases = [
            (vec![1, 2], 2, 0, false),
            (vec![5, 12], 4, 0, false),
            (vec![2, 3, 8], 8, 7, false),
            (vec![2, 1, 4, 6], 2, 1000, true),
            (vec![33, 3 * 34], 34, 3, true),
            (vec![rows, heads * 2 * half], 2 * half, sizes.below(50), false),
        ];
        cases
            .into_iter()
            .map(|(shape, head_dim, offset, inverse)| {
                let attrs = attrs(10_000.0, offset as i64, head_dim as i64).with("inverse", inverse);
                let direction = if inverse { "backwards, " } else { "" };
                let label = format!("{direction}{shape:?} in heads of {head_dim} from {offset}");
                Sample::new(label, vec![SampleInput::f32(&shape)], attrs)
            })
            .collect()
    }
}

fn attrs(theta: f32, offset: i64, head_dim: i64) -> Attrs {
    Attrs::new()
        .with("theta", theta)
        .with("offset", offset)
        .with("head_dim", head_dim)
        .with("inverse", false)
}

impl Graph {
    /// Computes the rotary position embedding (Su et al., 2021) of `x [..., rows, heads * head_dim]`, shaped as `x`: in
    /// row `r`, elements `i` and `i + head_dim / 2` of each head are rotated as a pair by the angle
    /// `r * theta^(-2i / head_dim)`. `head_dim` must be even and divide the last axis, `theta` be positive.
    #[track_caller]
    pub fn rope(&mut self, x: impl Into<Value>, theta: f32, head_dim: u32) -> NodeId {
        self.rope_with_offset(x, theta, 0, head_dim)
    }

    /// Computes [`Graph::rope`] of rows that begin at position `offset`.
    #[track_caller]
    pub fn rope_with_offset(&mut self, x: impl Into<Value>, theta: f32, offset: u32, head_dim: u32) -> NodeId {
        let attrs = attrs(theta, offset.into(), head_dim.into());
        self.call(OpRef::new(&Rope), attrs, vec![x.into()])
    }
}
