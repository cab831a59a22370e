//! Draws from categorical distributions.

use super::random::{mix, random_word};
use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, Call, Cost, Doc, Gradient, OpRef, Operator, Semantics, expect_float};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct Categorical;

/// The largest `f32` below 1, and the distance of neighbours among 32-bit fractions.
const BELOW_ONE: f64 = 1.0 - 1.0 / 16_777_216.0;
const STEP: f64 = 1.0 / 4_294_967_296.0;

/// Sizes of a call: rows and categories.
fn sizes(call: &Call) -> Result<[usize; 2], String> {
    let [logits, temperature, seeds] = call.inputs else {
        return Err("takes logits, temperatures and seeds".into());
    };
    let [rows @ .., categories] = logits.shape.dims() else {
        return Err(format!("the logits need an axis of categories, but are {logits}"));
    };
    expect_float(call, 0, "the logits")?;
    if *categories == 0 || u32::try_from(*categories).is_err() {
        return Err(format!("there must be 1 to 2^32 - 1 categories, not those of {logits}"));
    }
    if temperature.dtype != DType::F32 || temperature.shape.dims() != rows {
        return Err(format!(
            "the temperatures are {temperature}, but there is one for each row of the logits: f32 {rows:?}"
        ));
    }
    let two = [rows, &[2]].concat();
    if seeds.dtype != DType::U32 || seeds.shape.dims() != two {
        return Err(format!(
            "the seeds are {seeds}, but there are two words for each row of the logits: u32 {two:?}"
        ));
    }
    Ok([rows.iter().product(), *categories])
}

/// The random word of a category in a row with these seeds.
fn word(category: u32, seeds: [u32; 2]) -> u32 {
    mix(mix(random_word(0, 0, 0, category) ^ seeds[0]) ^ seeds[1])
}

/// [`mix`] of each word.
fn mixed(g: &mut Graph, words: NodeId, seed: NodeId) -> NodeId {
    let shifted = |g: &mut Graph, x: NodeId, by: f64| {
        let by = g.scalar_of(DType::U32, by);
        let high = g.shift_right(x, by);
        g.bit_xor(x, high)
    };
    let times = |g: &mut Graph, x: NodeId, factor: u32| {
        let factor = g.scalar_of(DType::U32, factor.into());
        g.mul(x, factor)
    };
    let x = g.bit_xor(words, seed);
    let x = shifted(g, x, 16.0);
    let x = times(g, x, 0x7feb_352d);
    let x = shifted(g, x, 15.0);
    let x = times(g, x, 0x846c_a68b);
    shifted(g, x, 16.0)
}

impl Operator for Categorical {
    fn name(&self) -> &'static str {
        "core.categorical"
    }

    fn signature(&self) -> String {
        "g.categorical(logits, temperature, seeds)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "logits [rows..., categories], temperature f32 [rows...], seeds u32 [rows..., 2] -> u32 [rows...]",
            formula: "argmax over c of logits[c] - temperature ln(-ln(1 - v[c])), where v[c] in (0, 1) is a hash of c and the seeds: category c with probability softmax(logits / temperature)[c], and the first of the largest for a temperature of 0; a NaN counts as largest",
            source: "the Gumbel-max trick (Gumbel, 1954; Maddison et al., 2014), with lowbias32 as hash",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(3)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        sizes(call)?;
        let dims = call.inputs[1].shape.to_vec();
        Ok(vec![TensorType::new(DType::U32, Shape::new(&dims)?)])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Zero
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::both(
            |call| {
                let [logits, temperature, seeds] = [0, 1, 2].map(|i| &call.inputs[i]);
                let categories = logits.data.len() / temperature.data.len().max(1);
                let rows = logits.data.chunks_exact(categories.max(1));
                let rows = rows.zip(&temperature.data).zip(seeds.data.chunks_exact(2));
                let drawn = rows.map(|((logits, temperature), seeds)| {
                    let seeds = [seeds[0] as u32, seeds[1] as u32];
                    let score = |category: usize| {
                        let v = f64::from(word(category as u32, seeds)) * STEP + 0.5 * STEP;
                        logits[category] - temperature * (-(-v.min(BELOW_ONE)).ln_1p()).ln()
                    };
                    let (mut best, mut most) = (0, score(0));
                    for category in 1..logits.len() {
                        let score = score(category);
                        if score > most || (score.is_nan() && !most.is_nan()) {
                            (best, most) = (category, score);
                        }
                    }
                    best as f64
                });
                vec![drawn.collect()]
            },
            |cx| {
                let &[logits, temperature, seeds] = cx.inputs else {
                    return Err("takes logits, temperatures and seeds".into());
                };
                let [_, categories] = cx.with_call(sizes)?;
                let g = &mut *cx.graph;
                let rows = g.shape(temperature).to_vec();
                let column = [&rows[..], &[1]].concat();
                let last = rows.len() as i32;
                let seeds = [0, 1].map(|i| g.slice_axis(seeds, last, i, i + 1));
                // Random words of the categories, which all rows share, and then of the rows' seeds.
                let none = g.scalar_of(DType::U32, 0.0);
                let words = g.random_bits_of(none.into(), none.into(), 0, &[categories]);
                let words = mixed(g, words, seeds[0]);
                let words = mixed(g, words, seeds[1]);
                let v = g.cast(words, DType::F32);
                let [step, half] = [STEP, 0.5 * STEP].map(|x| g.scalar(x as f32));
                let v = g.mul(v, step);
                let v = g.add(v, half);
                // Words round up to 1.
                let most = g.scalar(BELOW_ONE as f32);
                let v = g.minimum(v, most);
                let v = g.neg(v);
                let v = g.log1p(v);
                let v = g.neg(v);
                let noise = g.log(v);
                let temperature = g.reshape(temperature, &column);
                let noise = g.mul(noise, temperature);
                let logits = g.cast(logits, DType::F32);
                let scores = g.sub(logits, noise);
                Ok(vec![g.argmax(scores, -1).into()])
            },
        )
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost {
            flops: 40 * call.inputs[0].numel() as u64,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let shapes = [vec![1], vec![300], vec![3, 70], sizes.shape(3, 40)];
        let mut samples = Vec::new();
        for shape in shapes {
            let rows = &shape[..shape.len() - 1];
            for temperature in [0.0, 0.7] {
                let inputs = vec![
                    SampleInput::filled(DType::F32, &shape, Fill::Distinct),
                    SampleInput::filled(DType::F32, rows, Fill::Constant(temperature)),
                    SampleInput::below(&[rows, &[2]].concat(), u32::MAX as usize),
                ];
                let label = format!("{shape:?} at a temperature of {temperature}");
                samples.push(Sample::new(label, inputs, Attrs::new()));
            }
        }
        samples
    }
}

impl Graph {
    /// Draws a category, `u32 [rows...]`, for each row of `logits [rows..., categories]`: with the probabilities of their
    /// softmax at the row's `temperature`, `f32 [rows...]`, or the most likely one (the first of equals) where that is 0. The
    /// same `seeds`, `u32 [rows..., 2]`, draw the same. No gradient flows.
    #[track_caller]
    pub fn categorical(
        &mut self,
        logits: impl Into<Value>,
        temperature: impl Into<Value>,
        seeds: impl Into<Value>,
    ) -> NodeId {
        let operands = vec![logits.into(), temperature.into(), seeds.into()];
        self.call(OpRef::new(&Categorical), Attrs::new(), operands)
    }
}
