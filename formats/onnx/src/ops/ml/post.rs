//! Transforms of scores.

use meganeura_core::graph::{Graph, NodeId, Value};

use crate::import::Call;

/// Transform of the scores of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PostTransform {
    None,
    Softmax,
    Logistic,
    SoftmaxZero,
    Probit,
}

/// Score of the first class, if a model computes only the score `s` of the second one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstScore {
    /// `1 - s`.
    Complement,
    /// `-s`.
    Negative,
}

/// The transforms in the order of their numbers in TreeEnsemble, with their names in other operators.
const TRANSFORMS: [(PostTransform, &str); 5] = [
    (PostTransform::None, "NONE"),
    (PostTransform::Softmax, "SOFTMAX"),
    (PostTransform::Logistic, "LOGISTIC"),
    (PostTransform::SoftmaxZero, "SOFTMAX_ZERO"),
    (PostTransform::Probit, "PROBIT"),
];

impl PostTransform {
    /// Returns the transform that the attribute `post_transform` names.
    pub(super) fn read(call: &Call) -> Result<Self, String> {
        let name = call.string("post_transform", "NONE")?;
        let found = TRANSFORMS.iter().find(|(_, known)| *known == name);
        found.map(|(transform, _)| *transform).ok_or_else(|| {
            let known = TRANSFORMS.map(|(_, name)| name).join(", ");
            format!("post_transform: expected one of {known}, found `{name}`")
        })
    }

    /// Returns the transform with a number of TreeEnsemble.
    pub(super) fn from_number(number: i64) -> Result<Self, String> {
        let found = usize::try_from(number).ok().and_then(|i| TRANSFORMS.get(i));
        found
            .map(|(transform, _)| *transform)
            .ok_or_else(|| format!("post_transform: expected 0 to 4, found {number}"))
    }

    /// Transforms `scores [rows, columns]`. Of a single column, only PROBIT changes the score, as in ONNX Runtime.
    pub(super) fn apply(self, graph: &mut Graph, scores: Value) -> Value {
        let is_single = graph.shape(scores).last() == Some(&1);
        match self {
            PostTransform::Probit => probit(graph, scores).into(),
            _ if is_single => scores,
            PostTransform::None => scores,
            PostTransform::Softmax => graph.softmax(scores, -1).into(),
            PostTransform::Logistic => graph.sigmoid(scores).into(),
            PostTransform::SoftmaxZero => softmax_zero(graph, scores).into(),
        }
    }

    /// Returns the scores `[rows, 2]` of two classes from the score `[rows, 1]` of the second one. LOGISTIC transforms both
    /// scores; the other transforms have no effect.
    ///
    /// # Errors
    /// The transform is PROBIT, for which ONNX Runtime leaves a score undefined.
    pub(super) fn two_classes(self, graph: &mut Graph, score: Value, first: FirstScore) -> Result<Value, String> {
        let negative = graph.neg(score);
        let pair = match (self, first) {
            (PostTransform::Probit, _) => {
                return Err("post_transform PROBIT of one column of scores for two classes is not supported".into());
            }
            (PostTransform::Logistic, _) => [graph.sigmoid(negative), graph.sigmoid(score)],
            (_, FirstScore::Negative) => return Ok(graph.concat(&[negative.into(), score], 1).into()),
            (_, FirstScore::Complement) => {
                let one = graph.scalar(1.0);
                let rest = graph.sub(one, score);
                return Ok(graph.concat(&[rest.into(), score], 1).into());
            }
        };
        Ok(graph.concat(&pair, 1).into())
    }
}

/// Returns the inverse of the normal distribution function: Winitzki's approximation of the inverse error function (2008),
/// as in ONNX Runtime.
fn probit(graph: &mut Graph, x: Value) -> NodeId {
    const A: f32 = 0.147;
    let numbers = [
        0.0,
        1.0,
        2.0,
        0.5,
        2.0 / (std::f32::consts::PI * A),
        1.0 / A,
        std::f32::consts::SQRT_2,
    ];
    let [zero, one, two, half, offset, factor, scale] = numbers.map(|v| graph.scalar(v));
    let doubled = graph.mul(x, two);
    let y = graph.sub(doubled, one);
    let (below, above) = (graph.sub(one, y), graph.add(one, y));
    let product = graph.mul(below, above);
    let log = graph.log(product);
    let half_log = graph.mul(log, half);
    let v = graph.add(half_log, offset);
    let square = graph.square(v);
    let shift = graph.mul(log, factor);
    let inner = graph.sub(square, shift);
    let root = graph.sqrt(inner);
    let difference = graph.sub(root, v);
    let size = graph.sqrt(difference);
    let size = graph.mul(size, scale);
    let opposite = graph.neg(size);
    let negative = graph.less_than(y, zero);
    graph.select(negative, opposite, size)
}

/// Returns a softmax of the scores that are not 0; scores of 0 remain.
fn softmax_zero(graph: &mut Graph, x: Value) -> NodeId {
    let [zero, small] = [0.0, 1e-7].map(|v| graph.scalar(v));
    let most = graph.max(x, &[-1], true);
    let size = graph.abs(x);
    let counts = graph.greater_than(size, small);
    let shifted = graph.sub(x, most);
    let exponential = graph.exp(shifted);
    let summands = graph.select(counts, exponential, zero);
    let sum = graph.sum(summands, &[-1], true);
    let lowest = graph.neg(most);
    let factor = graph.exp(lowest);
    let rest = graph.mul(x, factor);
    let y = graph.select(counts, exponential, rest);
    graph.div(y, sum)
}
