//! Random bits computed from counters: the same on every backend, reproducible, and recomputable.

use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, AttrDecls, AttrKind, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

/// Name of the scalar that holds the session's seed.
pub const SEED_SCALAR: &str = "random.seed";
/// Name of the scalar that holds the number of the step.
pub const STEP_SCALAR: &str = "random.step";

pub(super) struct RandomBits;

/// Computes the random word of one element: 32-bit integer arithmetic only, so that every backend
/// agrees.
///
/// Seed, call, step and element are combined one after the other by a full-avalanche mixing
/// function (`lowbias32`, found by Chris Wellons' hash prospector, 2018).
pub fn random_word(seed: u32, uid: u32, step: u32, element: u32) -> u32 {
    let mut h = mix(seed ^ 0x9e37_79b9);
    h = mix(h ^ uid.wrapping_mul(0x85eb_ca6b));
    h = mix(h ^ step);
    mix(h ^ element)
}

/// Mixes the bits of a word by the function lowbias32.
pub(super) fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

impl Operator for RandomBits {
    fn name(&self) -> &'static str {
        "core.random_bits"
    }

    fn signature(&self) -> String {
        "g.random_bits(shape)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "seed, step: []; shape -> that shape",
            formula: "u32 hash of (seed, uid, step, element index)",
            source: "counter-based generator with the lowbias32 mixing function",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(2)
    }

    fn attributes(&self) -> AttrDecls {
        vec![("uid", AttrKind::Int), ("shape", AttrKind::Ints)]
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        for (what, ty) in ["seed", "step"].iter().zip(call.inputs) {
            if ty.dtype != DType::U32 || ty.numel() != 1 {
                return Err(format!("the {what} must be one u32, not {ty}"));
            }
        }
        call.attrs.size("uid")?;
        let dims = call.attrs.dims("shape")?;
        let shape = Shape::new(&dims)?;
        if u32::try_from(shape.numel()).is_err() {
            return Err(format!("{shape} has more elements than a u32 counter can number"));
        }
        Ok(vec![TensorType::new(DType::U32, shape)])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Zero
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::primitive(|call| {
            let (seed, step) = (call.inputs[0].data[0] as u32, call.inputs[1].data[0] as u32);
            let uid = call.int("uid") as u32;
            let count = call.outputs[0].numel() as u32;
            vec![(0..count).map(|i| random_word(seed, uid, step, i).into()).collect()]
        })
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 20)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        [vec![], vec![33], sizes.shape(2, 60)]
            .iter()
            .map(|s| {
                let inputs = vec![SampleInput::below(&[], 1 << 30), SampleInput::below(&[], 100)];
                let attrs = Attrs::new().with("uid", 7i64).with("shape", s.as_slice());
                Sample::new(format!("{s:?}"), inputs, attrs)
            })
            .collect()
    }
}

impl Graph {
    /// Returns seed and step as operands of random operators.
    pub(super) fn random_scalars(&mut self) -> [Value; 2] {
        [SEED_SCALAR, STEP_SCALAR].map(|name| self.scalar_input(name, DType::U32).into())
    }

    /// Draws independent uniform `u32` words, new ones in every step. Two calls give different words.
    #[track_caller]
    pub fn random_bits(&mut self, shape: &[usize]) -> NodeId {
        let [seed, step] = self.random_scalars();
        let uid = self.fresh_uid();
        self.random_bits_of(seed, step, uid, shape)
    }

    #[track_caller]
    pub(super) fn random_bits_of(&mut self, seed: Value, step: Value, uid: u32, shape: &[usize]) -> NodeId {
        let attrs = Attrs::new().with("uid", uid).with("shape", shape);
        self.call(OpRef::new(&RandomBits), attrs, vec![seed, step])
    }
}

#[cfg(test)]
mod tests {
    use super::random_word;

    #[test]
    fn words_are_uniform_and_uncorrelated() {
        let n = 1 << 16;
        let unit = |w: u32| f64::from(w) / 4_294_967_296.0;
        let mut bits = [0u32; 32];
        let (mut sum, mut along, mut across) = (0.0, 0.0, 0.0);
        for i in 0..n {
            let w = random_word(1, 2, 3, i);
            for (b, count) in bits.iter_mut().enumerate() {
                *count += (w >> b) & 1;
            }
            let x = unit(w) - 0.5;
            sum += x;
            along += x * (unit(random_word(1, 2, 3, i + 1)) - 0.5);
            across += x * (unit(random_word(1, 2, 4, i)) - 0.5);
        }
        // Standard errors: mean 0.0011, products 0.00033; five of them allowed.
        let n = f64::from(n);
        assert!((sum / n).abs() < 0.006, "{}", sum / n);
        assert!((along / n).abs() < 0.0017 && (across / n).abs() < 0.0017);
        assert!(bits.iter().all(|&c| (f64::from(c) / n - 0.5).abs() < 0.01), "{bits:?}");
    }
}
