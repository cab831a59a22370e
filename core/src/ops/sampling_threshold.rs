//! The smallest logit that sampling with top-k, top-p and min-p keeps.

use super::categorical::{check_columns, check_logits};
use super::sample::{Fill, Sample, SampleInput, Sizes};
use super::{Arity, Call, Cost, Doc, Gradient, OpRef, Operator, RefCall, Semantics};
use crate::NodeId;
use crate::attrs::Attrs;
use crate::dtype::DType;
use crate::graph::{Graph, Value};
use crate::shape::{Shape, TensorType};

pub(super) struct SamplingThreshold;

/// Minimum total weight for top-p, so that the most likely token (weight 1) is kept in any case.
const LEAST_LIMIT: f64 = 1e-30;

/// Operands after the logits, with their element types.
const OPTIONS: [(&str, DType); 4] = [
    ("the temperatures", DType::F32),
    ("the values of top-k", DType::U32),
    ("the values of top-p", DType::F32),
    ("the values of min-p", DType::F32),
];

/// Checks a call, and returns the shape of the result.
fn check(call: &Call) -> Result<Vec<usize>, String> {
    let (column, categories) = check_logits(call)?;
    if categories == 0 {
        return Err(format!("{} has no categories", call.inputs[0]));
    }
    check_columns(call, &column, &OPTIONS)?;
    Ok(column)
}

/// Options of a row.
struct Options {
    temperature: f64,
    top_k: usize,
    top_p: f64,
    min_p: f64,
}

/// Returns the threshold of a row.
fn threshold(logits: &[f64], options: &Options) -> f64 {
    let mut sorted = logits.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let most = sorted[0];
    if most.is_nan() {
        return most;
    }
    if options.temperature == 0.0 {
        return f64::NEG_INFINITY;
    }
    let mut least = match options.top_k {
        0 => f64::NEG_INFINITY,
        k => sorted.get(k - 1).copied().unwrap_or(f64::NEG_INFINITY),
    };
    if options.top_p < 1.0 {
        let weights = sorted.iter().take_while(|logit| **logit >= least);
        let weights: Vec<f64> = weights
            .map(|logit| ((logit - most) / options.temperature).exp())
            .collect();
        let limit = (options.top_p * weights.iter().sum::<f64>()).max(LEAST_LIMIT);
        let mut sum = 0.0;
        let enough = |weight: &f64| {
            sum += weight;
            sum >= limit
        };
        let last = weights
            .iter()
            .position(enough)
            .unwrap_or(weights.len().saturating_sub(1));
        least = sorted[last];
    }
    if options.min_p > 0.0 {
        least = least.max(most + options.temperature * options.min_p.ln());
    }
    least
}

fn reference(call: &RefCall) -> Vec<f64> {
    let [logits, temperature, top_k, top_p, min_p] = [0, 1, 2, 3, 4].map(|i| &call.inputs[i].data);
    let categories = call.inputs[0].ty.shape.dims().last().copied().unwrap_or(1).max(1);
    let rows = logits.chunks_exact(categories).enumerate();
    rows.map(|(row, logits)| {
        let options = Options {
            temperature: temperature[row],
            top_k: top_k[row] as usize,
            top_p: top_p[row],
            min_p: min_p[row],
        };
        threshold(logits, &options)
    })
    .collect()
}

/// Computes the threshold from sorted logits.
fn decompose(g: &mut Graph, [logits, temperature, top_k, top_p, min_p]: [Value; 5]) -> NodeId {
    let categories = g.shape(logits).last().copied().unwrap_or(1);
    let sorted = Value::from(g.top_k(logits, -1, categories));
    let [zero, one, infinity] = [0.0, 1.0, f32::INFINITY].map(|x| g.scalar(x));
    let lowest = g.scalar(f32::NEG_INFINITY);
    // The smallest of the logits that are kept.
    let least_of = |g: &mut Graph, is_kept: NodeId| {
        let kept = g.select(is_kept, sorted, infinity);
        g.min(kept, &[-1], true)
    };
    let ranks = (1..=categories).map(|rank| rank as u32).collect();
    let ranks = g.constant_u32(ranks, &[categories]);
    let is_kept = g.less_equal(ranks, top_k);
    let by_k = least_of(g, is_kept);
    let most_k = g.scalar_of(DType::U32, categories as f64);
    let none = g.scalar_of(DType::U32, 0.0);
    let is_unlimited = g.equal(top_k, none);
    let by_k = g.select(is_unlimited, lowest, by_k);
    let is_unlimited = g.greater_than(top_k, most_k);
    let by_k = g.select(is_unlimited, lowest, by_k);
    // Weights of the kept logits, relative to the largest one.
    let most = g.slice_axis(sorted, -1, 0, 1);
    let is_greedy = g.equal(temperature, zero);
    let divisor = g.select(is_greedy, one, temperature);
    let below = g.sub(sorted, most);
    let scaled = g.div(below, divisor);
    let weights = g.exp(scaled);
    let is_kept = g.greater_equal(sorted, by_k);
    let weights = g.select(is_kept, weights, zero);
    let total = g.sum(weights, &[-1], true);
    let limit = g.mul(total, top_p);
    let least_limit = g.scalar(LEAST_LIMIT as f32);
    let limit = g.maximum(limit, least_limit);
    let before = g.cumsum(weights, -1, true, false);
    let is_needed = g.less_than(before, limit);
    let is_needed = g.select(is_kept, is_needed, none);
    let by_p = least_of(g, is_needed);
    let is_unlimited = g.greater_equal(top_p, one);
    let least = g.select(is_unlimited, by_k, by_p);
    // A minimum of 0 has the logarithm -inf.
    let distance = g.log(min_p);
    let distance = g.mul(distance, divisor);
    let by_min = g.add(most, distance);
    let least = g.maximum(least, by_min);
    // The logarithm of 1 may be rounded to more than 0.
    let least = g.minimum(least, most);
    g.select(is_greedy, lowest, least)
}

impl Operator for SamplingThreshold {
    fn name(&self) -> &'static str {
        "core.sampling_threshold"
    }

    fn signature(&self) -> String {
        "g.sampling_threshold(logits, temperature, top_k, top_p, min_p)".into()
    }

    fn doc(&self) -> Doc {
        Doc {
            shapes: "logits f32 [rows..., categories], temperature f32 [rows..., 1], top_k u32 [rows..., 1], top_p and min_p f32 [rows..., 1] -> f32 [rows..., 1]",
            formula: "-inf at temperature 0. Else the largest of: the top_k-th largest logit (-inf for 0 and for more than all); if top_p < 1, the logit at which the sum of exp((logit - largest) / temperature), over the logits in descending order, reaches top_p of the sum over all that are at least the first threshold; largest + temperature ln(min_p)",
            source: "top-k (Fan et al., 2018), top-p (Holtzman et al., 2020) and min-p (Nguyen et al., 2024) sampling; logits that equal the threshold are kept",
        }
    }

    fn arity(&self) -> Arity {
        Arity::Exactly(5)
    }

    fn infer(&self, call: &Call) -> Result<Vec<TensorType>, String> {
        Ok(vec![TensorType::new(DType::F32, Shape::new(&check(call)?)?)])
    }

    fn gradient(&self) -> Gradient<'_> {
        Gradient::Zero
    }

    fn semantics(&self) -> Semantics<'_> {
        Semantics::both(
            |call| vec![reference(call)],
            |cx| {
                let operands: [Value; 5] = cx.inputs.try_into().map_err(|_| "takes logits and four options")?;
                Ok(vec![decompose(cx.graph, operands).into()])
            },
        )
    }

    fn cost(&self, call: &Call) -> Cost {
        // A search in two bits of a number at a time reads the logits 16 times, for top-k and for top-p.
        let numel = call.inputs[0].numel() as u64;
        Cost {
            flops: 2 * 16 * 4 * numel,
            ..Cost::streaming(call, 0)
        }
    }

    fn samples(&self, sizes: &mut Sizes) -> Vec<Sample> {
        let shapes = [
            vec![1],
            vec![40],
            vec![3, 70],
            vec![2, 2, 9],
            vec![5, 1009],
            sizes.shape(2, 60),
        ];
        let mut samples = Vec::new();
        for (number, shape) in shapes.into_iter().enumerate() {
            let (column, last) = ([&shape[..shape.len() - 1], &[1]].concat(), shape[shape.len() - 1]);
            let number_of = |value: f64| SampleInput::filled(DType::F32, &column, Fill::Constant(value));
            let count_of = |value: f64| SampleInput::filled(DType::U32, &column, Fill::Constant(value));
            let mut add = |label: &str, temperature, top_k: f64, top_p, min_p| {
                let inputs = vec![
                    SampleInput::filled(DType::F32, &shape, Fill::Distinct),
                    number_of(temperature),
                    count_of(top_k),
                    number_of(top_p),
                    number_of(min_p),
                ];
                samples.push(Sample::new(format!("{label} of {shape:?}"), inputs, Attrs::new()));
            };
            add("top-k", 0.7, (1 + number).min(last) as f64, 1.0, 0.0);
            add("top-p", 0.8, 0.0, 0.613, 0.0);
            add("min-p", 1.1, 0.0, 1.0, 0.217);
            add("top-k, top-p and min-p", 1.5, 7.0, 0.871, 0.031);
            add("more than all", 1.0, 2000.0, 0.5, 0.0);
            add("all", 1.0, last as f64, 1.0, 0.0);
            add("the most likely", 1.0, 0.0, 0.0, 1.0);
        }
        samples
    }
}

impl Graph {
    /// Returns the smallest logit that sampling keeps, `f32 [rows..., 1]`, for each row of `logits`, `f32 [rows...,
    /// categories]`. The options of each row have the shape `[rows..., 1]`: `temperature` (`f32`), `top_k` (`u32`; 0 keeps
    /// all), `top_p` (`f32`; 1 keeps all) and `min_p` (`f32`; 0 keeps all). A temperature of 0 keeps all, too. No gradient
    /// flows.
    ///
    /// Logits below the threshold become minus infinity, before [`categorical`](Graph::categorical) draws.
    #[track_caller]
    pub fn sampling_threshold(
        &mut self,
        logits: impl Into<Value>,
        temperature: impl Into<Value>,
        top_k: impl Into<Value>,
        top_p: impl Into<Value>,
        min_p: impl Into<Value>,
    ) -> NodeId {
        let operands = vec![
            logits.into(),
            temperature.into(),
            top_k.into(),
            top_p.into(),
            min_p.into(),
        ];
        self.call(OpRef::new(&SamplingThreshold), Attrs::new(), operands)
    }
}
