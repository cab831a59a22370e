//! Draws from categorical distributions.

use super::random::{mix, random_word};
use super::sample::{Sample, SampleInput, Sizes};
use super::{Arity, Call, ChannelsLast, Cost, Doc, FusionRole, Gradient, OpRef, Operator, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::TensorType;

pub(super) struct AddGumbelNoise;

/// Distance between neighbouring 32-bit fractions.
const STEP: f64 = 1.0 / 4_294_967_296.0;

/// Checks the logits of a call. Returns the shape of operands with one value for each row, and the number of categories.
pub(super) fn check_logits(call: &Call) -> Result<(Vec<usize>, usize), String> {
    let logits = &call.inputs[0];
    let [rows @ .., categories] = logits.shape.dims() else {
        return Err(format!("the logits need an axis of categories, but are {logits}"));
    };
    if logits.dtype != DType::F32 {
        return Err(format!(
            "the logits must be f32, not {logits}; use `cast` to convert them"
        ));
    }
    Ok(([rows, &[1]].concat(), *categories))
}

/// Checks that the operands after the logits have one value of their type for each row.
pub(super) fn check_columns(call: &Call, column: &[usize], operands: &[(&str, DType)]) -> Result<(), String> {
    for ((what, dtype), ty) in operands.iter().zip(&call.inputs[1..]) {
        if ty.dtype != *dtype || ty.shape.dims() != column {
            return Err(format!(
                "{what} are {ty}, but there is one for each row of the logits: {dtype} {column:?}"
            ));
        }
    }
    Ok(())
}

/// Checks a call: logits, then a temperature and two seeds for each row.
fn check(call: &Call) -> Result<(), String> {
    let (column, categories) = check_logits(call)?;
    if u32::try_from(categories).is_err() {
        return Err(format!("{} has more categories than a u32 can number", call.inputs[0]));
    }
    let operands = [
        ("the temperatures", DType::F32),
        ("the first seeds", DType::U32),
        ("the second seeds", DType::U32),
    ];
    check_columns(call, &column, &operands)
}

/// Returns the random word of a category, in a row with these seeds.
fn word(category: u32, seeds: [u32; 2]) -> u32 {
    mix(mix(random_word(0, 0, 0, category) ^ seeds[0]) ^ seeds[1])
}

/// Applies [`mix`] to each word with a seed.
fn mixed(g: &mut Graph, words: NodeId, seed: Value) -> NodeId {
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

impl Operator for AddGumbelNoise {
    fn name(&self) -> &'static str {
        "core.add_gumbel_noise"
    }

    fn signature(&self) -> String {
        "g.add_gumbel_noise(logits, temperature, first_seed, second_seed)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "logits f32 [rows..., categories], temperature f32 [rows..., 1], first_seed and second_seed u32 [rows..., 1] -> logits",
            formula: "logits[c] - temperature ln(-ln(1 - v[c])), where v[c] in (0, 1) is a hash of c and the row's seeds. The argmax of a row is c with probability softmax(logits / temperature)[c]",
            source: "the Gumbel-max trick (Gumbel, 1954; Maddison et al., 2014), with lowbias32 as hash; `g.categorical` calls it",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(4)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        check(call)?;
        Ok(vec![call.inputs[0].clone()])
    }

    fn fusing(&self) -> FusionRole {
        FusionRole::Pointwise
    }

    fn channels_last(&self) -> ChannelsLast<'_> {
        // Noise depends on the indices of categories.
        ChannelsLast::No
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Decomposed
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::both(
            |call| {
                let [logits, temperature, first, second] = [0, 1, 2, 3].map(|i| &call.inputs[i].data);
                let categories = call.inputs[0].ty.shape.dims().last().copied().unwrap_or(1).max(1);
                let noisy = logits.iter().enumerate().map(|(i, logit)| {
                    let (row, category) = (i / categories, i % categories);
                    let word = word(category as u32, [first[row] as u32, second[row] as u32]);
                    let v = (f64::from(word) + 0.5) * STEP;
                    logit - temperature[row] * (-(-v).ln_1p()).ln()
                });
                vec![noisy.collect()]
            },
            |cx| {
                let &[logits, temperature, first, second] = cx.inputs else {
                    return Err("takes logits, temperatures and seeds".into());
                };
                let g = &mut *cx.graph;
                let categories = g.shape(logits).last().copied().unwrap_or(1);
                // Random words of the categories, which all rows share, and then of the rows' seeds.
                let none = g.scalar_of(DType::U32, 0.0).into();
                let words = g.random_bits_of(none, none, 0, &[categories]);
                let words = mixed(g, words, first);
                let words = mixed(g, words, second);
                // Numbers close to 1 are too coarse in f32 to subtract them from 1. Therefore,
                // `1 - x` is computed directly there.
                let fraction = |g: &mut Graph, words: NodeId| {
                    let words = g.cast(words, DType::F32);
                    let [step, half] = [STEP, 0.5 * STEP].map(|x| g.scalar(x as f32));
                    let fraction = g.mul(words, step);
                    g.add(fraction, half)
                };
                let v = fraction(g, words);
                let rest = g.bit_not(words);
                let rest = fraction(g, rest);
                let below = g.neg(v);
                let small = g.log1p(below);
                let large = g.log(rest);
                let half = g.scalar(0.5);
                let is_small = g.less_than(v, half);
                let exponential = g.select(is_small, small, large);
                let exponential = g.neg(exponential);
                let noise = g.log(exponential);
                let noise = g.mul(noise, temperature);
                Ok(vec![g.sub(logits, noise).into()])
            },
        )
    }

    fn cost(&self, call: &Call) -> Cost {
        Cost::streaming(call, 40)
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let shapes = [vec![1], vec![300], vec![3, 70], vec![2, 2, 9], sizes.shape(2, 60)];
        let sample = |shape: Vec<usize>| {
            let column = [&shape[..shape.len() - 1], &[1]].concat();
            let inputs = vec![
                SampleInput::f32(&shape),
                SampleInput::range(&column, 0.1, 1.5),
                SampleInput::below(&column, u32::MAX as usize),
                SampleInput::below(&column, u32::MAX as usize),
            ];
            Sample::new(format!("{shape:?}"), inputs, Attrs::new())
        };
        shapes.into_iter().map(sample).collect()
    }
}

impl Graph {
    /// Adds Gumbel noise, multiplied by the row's `temperature`, `f32 [rows..., 1]`, to `logits`,
    /// `f32 [rows..., categories]`. The same seeds, `u32 [rows..., 1]`, give the same noise. The argmax of a row is
    /// then a draw from the softmax of `logits / temperature`.
    #[track_caller]
    pub fn add_gumbel_noise(
        &mut self,
        logits: impl Into<Value>,
        temperature: impl Into<Value>,
        first_seed: impl Into<Value>,
        second_seed: impl Into<Value>,
    ) -> NodeId {
        let operands = vec![logits.into(), temperature.into(), first_seed.into(), second_seed.into()];
        self.call(OpRef::new(&AddGumbelNoise), Attrs::new(), operands)
    }

    /// Draws a category, `u32 [rows...]`, for each row of `logits`, `f32 [rows..., categories]`. The probabilities are
    /// the softmax of the row's logits divided by its `temperature`, `f32 [rows...]`; a temperature of 0 selects the
    /// most likely category (the first of equals). Equal `seeds`, `u32 [rows..., 2]`, give equal draws. No gradient
    /// flows.
    #[track_caller]
    pub fn categorical(
        &mut self,
        logits: impl Into<Value>,
        temperature: impl Into<Value>,
        seeds: impl Into<Value>,
    ) -> NodeId {
        let (logits, seeds) = (logits.into(), seeds.into());
        let temperature = temperature.into();
        let [column, pairs] = [1, 2].map(|last| [self.shape(temperature), &[last]].concat());
        if self.shape(seeds) != pairs {
            let message = format!(
                "the seeds are {:?}, but there are two for each row: {pairs:?}",
                self.shape(seeds)
            );
            return self.report("categorical", message, "give two random words for each row");
        }
        let temperature = self.reshape(temperature, &column);
        let [first, second] = [0, 1].map(|i| self.slice_axis(seeds, -1, i, i + 1));
        let noisy = self.add_gumbel_noise(logits, temperature, first, second);
        self.argmax(noisy, -1)
    }
}
