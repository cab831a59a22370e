//! Rotary position embedding with the first position as an operand.

use std::f64::consts::TAU;

use super::{RopeDims, RopeScaling, turn};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::ops::positions::expect_positions;
use crate::ops::sample::{Sample, SampleInput, Sizes};
use crate::ops::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, FusionRole, Gradient, OpRef, Operator, Semantics};
use crate::shape::TensorType;

pub(in crate::ops) struct RopeDynamicOffset;

/// A full turn as a 32-bit fraction: 2^32.
const WORD: f64 = 4_294_967_296.0;

/// Converts frequencies in radians per position to 48-bit fractions of a turn: the upper 32 bits and the lower 16.
fn fractions(speeds: &[f64]) -> [Vec<u32>; 2] {
    let turns = speeds.iter().map(|speed| (speed / TAU).rem_euclid(1.0) * WORD);
    let upper: Vec<f64> = turns.clone().map(f64::floor).collect();
    let lower = turns.zip(&upper).map(|(turn, upper)| ((turn - upper) * 65536.0) as u32);
    [upper.iter().map(|&upper| upper as u32).collect(), lower.collect()]
}

/// Returns cosines and sines `[batch, rows, 1, half]` of all angles. Products of words wrap, which
/// removes whole turns, so angles of large positions are as exact as angles of small ones.
pub(super) fn tables(g: &mut Graph, offsets: Value, dims: &RopeDims, speeds: &[f64]) -> [NodeId; 2] {
    let word = |g: &mut Graph, value: u32| g.scalar_of(DType::U32, f64::from(value));
    let rows = g.constant_u32((0..dims.rows).map(|i| i as u32).collect(), &[dims.rows, 1, 1]);
    let offsets = g.reshape(offsets, &[dims.batch, 1, 1, 1]);
    let positions = g.add(offsets, rows);
    let [upper, lower] = fractions(speeds).map(|words| g.constant_u32(words, &[dims.half]));
    // positions * (upper + lower / 2^16); the last product is computed in two halves.
    let (sixteen, mask) = (word(g, 16), word(g, 0xffff));
    let high = g.shift_right(positions, sixteen);
    let low = g.bit_and(positions, mask);
    let turns = g.mul(positions, upper);
    let from_high = g.mul(high, lower);
    let from_low = g.mul(low, lower);
    let from_low = g.shift_right(from_low, sixteen);
    let turns = g.add(turns, from_high);
    let turns = g.add(turns, from_low);
    // Add half a turn, and subtract it later, for angles between -pi and pi.
    let half = word(g, 1 << 31);
    let turns = g.add(turns, half);
    let angle = g.cast(turns, DType::F32);
    let (unit, pi) = (g.scalar((TAU / WORD) as f32), g.scalar((TAU / 2.0) as f32));
    let angle = g.mul(angle, unit);
    let angle = g.sub(angle, pi);
    [g.cos(angle), g.sin(angle)]
}

impl Operator for RopeDynamicOffset {
    fn name(&self) -> &'static str {
        "core.rope_dynamic_offset"
    }

    fn signature(&self) -> String {
        "g.rope_dynamic_offset(x, theta, offset, head_dim)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "x [batch..., rows, heads * head_dim], offset (u32) [batch...], or [1] without batch -> as x",
            formula: "core.rope with the position row + offset; speeds theta^(-2i / head_dim) are divided by factor, but where original_context is not 0 only those of pairs that turn less than low_freq_factor times in it, none of those that turn more than high_freq_factor times, and something between of the others",
            source: "Su et al., 2021; factor: Chen et al., 2023; by frequency: Dubey et al., 2024 (Llama 3.1)",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn attributes(&self) -> AttrDecls {
        vec![
            ("theta", AttrKind::Float),
            ("head_dim", AttrKind::Int),
            ("inverse", AttrKind::Bool),
            ("factor", AttrKind::Float),
            ("low_freq_factor", AttrKind::Float),
            ("high_freq_factor", AttrKind::Float),
            ("original_context", AttrKind::Int),
        ]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        let [x, offsets] = call.inputs else {
            return Err("takes rows and offsets".into());
        };
        RopeDims::of_dynamic(call)?;
        let leading = x
            .shape
            .dims()
            .split_last_chunk::<2>()
            .map_or(&[][..], |(leading, _)| leading);
        expect_positions("the offset", offsets, leading)?;
        Ok(vec![x.clone()])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::rule(|cx| {
            let inverse = cx.attrs().bool("inverse")?;
            let attrs = cx.attrs().clone().with("inverse", !inverse);
            let operands = vec![cx.grad(0), cx.operand(1)];
            let dx = cx.call(OpRef::new(&RopeDynamicOffset), attrs, operands);
            Ok(vec![Some(dx.into()), None])
        })
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::both(
            |call| {
                let types: Vec<TensorType> = call.inputs.iter().map(|t| t.ty.clone()).collect();
                let dims = RopeDims::of_dynamic(&Call {
                    attrs: call.attrs,
                    inputs: &types,
                    outputs: call.outputs,
                });
                let (Ok(dims), [x, offsets]) = (dims, call.inputs) else {
                    return Vec::new();
                };
                let (speeds, half) = (dims.speeds(), dims.half);
                let mut out = x.data.clone();
                for (i, head) in out.chunks_exact_mut(2 * half).enumerate() {
                    let (sequence, row) = (i / dims.heads / dims.rows, i / dims.heads % dims.rows);
                    // Positions are words.
                    let position = f64::from((offsets.data[sequence] as u32).wrapping_add(row as u32));
                    let (first, second) = head.split_at_mut(half);
                    for ((a, b), speed) in first.iter_mut().zip(second).zip(&speeds) {
                        let (sin, cos) = (position * speed).sin_cos();
                        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                    }
                }
                vec![out]
            },
            |cx| {
                let dims = cx.with_call(RopeDims::of_dynamic)?;
                let (g, x, offsets) = (&mut *cx.graph, cx.inputs[0], cx.inputs[1]);
                if dims.is_empty() {
                    return Ok(vec![x]);
                }
                let tables = tables(g, offsets, &dims, &dims.speeds());
                Ok(vec![turn(g, x, tables, &dims)])
            },
        )
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::OfPart
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 3)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let (rows, heads, half) = (sizes.dim(30), sizes.dim(9), sizes.dim(40));
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 64,
        };
        let cases: [(Vec<usize>, usize, usize, RopeScaling); 6] = [
            (vec![1, 2], 2, 1, RopeScaling::None),
            (vec![1, 12], 4, 2000, RopeScaling::None),
            (vec![2, 3, 8], 8, 100_000, RopeScaling::None),
            (vec![2, 1, 4, 6], 2, 50, RopeScaling::Linear { factor: 4.0 }),
            (vec![5, 32], 16, 300, llama3),
            (vec![3, rows, heads * 2 * half], 2 * half, 4000, RopeScaling::None),
        ];
        cases
            .into_iter()
            .map(|(shape, head_dim, below, scaling)| {
                let inverse = shape.len() == 4;
                let leading = shape.split_last_chunk::<2>().map_or(&[][..], |(leading, _)| leading);
                let offsets = if leading.is_empty() { &[1] } else { leading };
                let inputs = vec![SampleInput::f32(&shape), SampleInput::below(offsets, below)];
                let label = format!("{shape:?} in heads of {head_dim} from below {below}, {scaling:?}");
                let attrs = attrs(10_000.0, head_dim as u32, scaling).with("inverse", inverse);
                Sample::new(label, inputs, attrs)
            })
            .collect()
    }
}

pub(in crate::ops) fn attrs(theta: f32, head_dim: u32, scaling: RopeScaling) -> Attrs {
    let attrs = Attrs::new()
        .with("theta", theta)
        .with("head_dim", head_dim)
        .with("inverse", false);
    scaling.write(attrs)
}

impl Graph {
    /// Computes [`Graph::rope`] with the first position as an operand: row `r` of
    /// `x [batch..., rows, heads * head_dim]` is at position `r + offset`, where `offset` is
    /// `u32 [1]`, or with batch axes one number for each sequence, `u32 [batch...]`.
    #[track_caller]
    pub fn rope_dynamic_offset(
        &mut self,
        x: impl Into<Value>,
        theta: f32,
        offset: impl Into<Value>,
        head_dim: u32,
    ) -> NodeId {
        self.rope_scaled(x, theta, offset, head_dim, RopeScaling::None)
    }

    /// Computes [`Graph::rope_dynamic_offset`] with scaled frequencies, for longer contexts.
    #[track_caller]
    pub fn rope_scaled(
        &mut self,
        x: impl Into<Value>,
        theta: f32,
        offset: impl Into<Value>,
        head_dim: u32,
        scaling: RopeScaling,
    ) -> NodeId {
        let operands = vec![x.into(), offset.into()];
        self.call(
            OpRef::new(&RopeDynamicOffset),
            attrs(theta, head_dim, scaling),
            operands,
        )
    }
}
