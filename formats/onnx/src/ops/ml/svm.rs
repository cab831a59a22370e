//! Support vector machines.

use meganeura_core::DType;
use meganeura_core::graph::{Graph, NodeId, Value};

use super::labels::ClassLabels;
use super::post::{FirstScore, PostTransform};
use super::{Built, expect_len, floats, ints, ml, probability, rows, transposed};
use crate::element::ElementType;
use crate::import::Call;
use crate::ops::{OnnxOp, limits};

pub(in crate::ops) const OPS: &[OnnxOp] = &[
    ml("SVMClassifier", classifier).partly("probabilities of more than 32 classes"),
    ml("SVMRegressor", regressor).partly("`post_transform` other than NONE"),
];

/// Maximum degree of a polynomial that is computed by multiplications.
const MAX_DEGREE: f32 = 16.0;

#[derive(Clone, Copy)]
enum KernelKind {
    Linear,
    Poly,
    Rbf,
    Sigmoid,
}

/// Kernel function of support vectors.
struct Kernel {
    kind: KernelKind,
    gamma: f32,
    coef0: f32,
    degree: f32,
}

impl Kernel {
    fn read(call: &Call) -> Result<Self, String> {
        let name = call.string("kernel_type", "LINEAR")?;
        let kind = match &*name {
            "LINEAR" => KernelKind::Linear,
            "POLY" => KernelKind::Poly,
            "RBF" => KernelKind::Rbf,
            "SIGMOID" => KernelKind::Sigmoid,
            other => {
                return Err(format!(
                    "kernel_type: expected LINEAR, POLY, RBF or SIGMOID, found `{other}`"
                ));
            }
        };
        let [gamma, coef0, degree] = match floats(call, "kernel_params")? {
            [] => [0.0; 3],
            [gamma, coef0, degree] => [*gamma, *coef0, *degree],
            other => return Err(format!("kernel_params: expected 3 elements, found {}", other.len())),
        };
        Ok(Kernel {
            kind,
            gamma,
            coef0,
            degree,
        })
    }

    /// Returns the kernel of each row of `x [rows, features]` and each of `vectors [count, features]`, as `[rows, count]`.
    fn apply(&self, graph: &mut Graph, x: Value, vectors: &[f32], [count, features]: [usize; 2]) -> Value {
        if let KernelKind::Rbf = self.kind {
            let rows = graph.shape(x).first().copied().unwrap_or(1);
            let x = graph.reshape(x, &[rows, 1, features]);
            let vectors = graph.constant(vectors.to_vec(), &[1, count, features]);
            // The expansion into squares and products would lose digits of small distances.
            let difference = graph.sub(x, vectors);
            let squares = graph.square(difference);
            let distance = graph.sum(squares, &[2], false);
            let factor = graph.scalar(-self.gamma);
            let exponent = graph.mul(distance, factor);
            return graph.exp(exponent).into();
        }
        let vectors = graph.constant(transposed(vectors, features), &[features, count]);
        let product = graph.matmul(x, vectors);
        let shifted = |graph: &mut Graph| {
            let (gamma, coef0) = (graph.scalar(self.gamma), graph.scalar(self.coef0));
            let scaled = graph.mul(product, gamma);
            graph.add(scaled, coef0)
        };
        match self.kind {
            KernelKind::Poly => {
                let base = shifted(graph);
                power(graph, base, self.degree)
            }
            KernelKind::Sigmoid => {
                let y = shifted(graph);
                graph.tanh(y).into()
            }
            KernelKind::Linear | KernelKind::Rbf => product.into(),
        }
    }
}

/// Returns `base` to the power of a constant. Negative bases with a fractional exponent give NaN.
fn power(graph: &mut Graph, base: NodeId, exponent: f32) -> Value {
    if exponent.fract() == 0.0 && (1.0..=MAX_DEGREE).contains(&exponent) {
        let mut y = base;
        for _ in 1..exponent as usize {
            y = graph.mul(y, base);
        }
        return y.into();
    }
    let exponent = graph.scalar(exponent);
    graph.pow(base, exponent).into()
}

/// Returns the number of features per support vector, which must be `features`.
fn check_vectors(name: &str, found: usize, count: usize, features: usize) -> Result<(), String> {
    let expected = limits::elements(&[count, features], name)?;
    expect_len(name, found, expected)
}

fn first_rho(rho: &[f32]) -> Result<f32, String> {
    rho.first()
        .copied()
        .ok_or_else(|| "rho: expected at least 1 element, found 0".into())
}

/// Computes `[rows, 1]`; for a model of one class, 1 for inliers and -1 for outliers.
fn regressor(call: &mut Call) -> Built {
    let (x, [rows, features]) = rows(call)?;
    let mut kernel = Kernel::read(call)?;
    if PostTransform::read(call)? != PostTransform::None {
        return Err("post_transform: expected NONE, found another one, which is not supported".into());
    }
    let (coefficients, vectors) = (floats(call, "coefficients")?, floats(call, "support_vectors")?);
    let rho = first_rho(floats(call, "rho")?)?;
    let is_one_class = call.int("one_class", 0)? != 0;
    let supports = call.int("n_supports", 0)?;
    let supports =
        usize::try_from(supports).map_err(|_| format!("n_supports: expected at least 0, found {supports}"))?;
    let graph_sizes = if supports > 0 { supports } else { features };
    expect_len("coefficients", coefficients.len(), graph_sizes)?;
    let y = if supports > 0 {
        check_vectors("support_vectors", vectors.len(), supports, features)?;
        let graph = call.graph();
        let kernels = kernel.apply(graph, x, vectors, [supports, features]);
        let weights = graph.constant(coefficients.to_vec(), &[supports, 1]);
        graph.matmul(kernels, weights).into()
    } else {
        kernel.kind = KernelKind::Linear;
        kernel.apply(call.graph(), x, coefficients, [1, features])
    };
    let graph = call.graph();
    let rho = graph.scalar(rho);
    let mut y = graph.add(y, rho);
    if is_one_class {
        let [zero, one, minus] = [0.0, 1.0, -1.0].map(|v| graph.scalar(v));
        let positive = graph.greater_than(y, zero);
        let sign = graph.select(positive, one, minus);
        y = graph.reshape(sign, &[rows, 1]);
    }
    call.one(y, ElementType::F32)
}

fn classifier(call: &mut Call) -> Built {
    let kernel = Kernel::read(call)?;
    let post = PostTransform::read(call)?;
    let labels = ClassLabels::read(call, "classlabels_ints", "classlabels_strings")?;
    let classes = labels.as_ref().map_or(0, ClassLabels::len);
    let Some(labels) = labels.filter(|_| classes >= 2) else {
        return Err(format!("class labels: expected at least 2, found {classes}"));
    };
    let counts = ints(call, "vectors_per_class")?;
    let (at, scores) = if counts.iter().all(|&count| count == 0) {
        linear(call, kernel, post, classes)?
    } else {
        let mut sizes = Vec::with_capacity(classes);
        for &count in counts {
            let size = usize::try_from(count).ok().filter(|&n| n <= limits::MAX_ELEMENTS);
            let wrong = || {
                format!(
                    "vectors_per_class: expected at most {} vectors, found {count}",
                    limits::MAX_ELEMENTS
                )
            };
            sizes.push(size.ok_or_else(wrong)?);
        }
        expect_len("vectors_per_class", sizes.len(), classes)?;
        let machine = Machine { kernel, post, sizes };
        machine.build(call)?
    };
    let label = labels.select(call, at)?;
    Ok(vec![label, call.result(scores, ElementType::F32)])
}

/// Builds a model without support vectors: one line of coefficients for each class.
fn linear(call: &mut Call, mut kernel: Kernel, post: PostTransform, classes: usize) -> Result<(Value, Value), String> {
    let (x, [_, features]) = rows(call)?;
    let coefficients = floats(call, "coefficients")?;
    check_vectors("coefficients", coefficients.len(), classes, features)?;
    let rho = first_rho(floats(call, "rho")?)?;
    let are_positive = coefficients.iter().all(|&v| v >= 0.0);
    kernel.kind = KernelKind::Linear;
    let graph = call.graph();
    let scores = kernel.apply(graph, x, coefficients, [classes, features]);
    let rho = graph.scalar(rho);
    let scores = graph.add(scores, rho);
    let mut at = graph.argmax(scores, 1);
    if classes == 2 {
        // ONNX Runtime chooses the second class if a score exceeds the threshold.
        let most = graph.max(scores, &[1], false);
        let threshold = graph.scalar(if are_positive { 0.5 } else { 0.0 });
        let is_second = if are_positive {
            graph.greater_equal(most, threshold)
        } else {
            graph.greater_than(most, threshold)
        };
        at = graph.maximum(at, is_second);
    }
    let scores = post.apply(graph, scores.into());
    Ok((at.into(), scores))
}

/// A model with support vectors: a decision for each pair of classes.
struct Machine {
    kernel: Kernel,
    post: PostTransform,
    /// Number of support vectors of each class.
    sizes: Vec<usize>,
}

impl Machine {
    /// Returns the weight of each support vector in each decision, `[vectors, pairs]`. The attribute has, for each vector of
    /// class `i`, the weights of the decisions against the other classes in their order.
    fn weights(&self, coefficients: &[f32], vectors: usize, pairs: usize) -> Vec<f32> {
        let classes = self.sizes.len();
        let starts: Vec<usize> = self
            .sizes
            .iter()
            .scan(0, |sum, &size| {
                let start = *sum;
                *sum += size;
                Some(start)
            })
            .collect();
        let mut weights = vec![0.0; vectors * pairs];
        let mut pair = 0;
        for i in 0..classes {
            for j in i + 1..classes {
                for (class, line) in [(i, j - 1), (j, i)] {
                    for m in starts[class]..starts[class] + self.sizes[class] {
                        weights[m * pairs + pair] = coefficients[line * vectors + m];
                    }
                }
                pair += 1;
            }
        }
        weights
    }

    /// Returns the index of the class and the scores.
    fn build(&self, call: &mut Call) -> Result<(Value, Value), String> {
        let (x, [rows, features]) = rows(call)?;
        let classes = self.sizes.len();
        let vectors: usize = self.sizes.iter().sum();
        let pairs = limits::elements(&[classes, classes - 1], "decisions")? / 2;
        limits::elements(&[vectors, pairs.max(classes)], "weights")?;
        let support_vectors = floats(call, "support_vectors")?;
        check_vectors("support_vectors", support_vectors.len(), vectors, features)?;
        let coefficients = floats(call, "coefficients")?;
        expect_len("coefficients", coefficients.len(), (classes - 1) * vectors)?;
        let rho = floats(call, "rho")?;
        expect_len("rho", rho.len(), pairs)?;
        let (a, b) = (floats(call, "prob_a")?, floats(call, "prob_b")?);
        let has_probabilities = !a.is_empty() || !b.is_empty();
        if has_probabilities {
            expect_len("prob_a", a.len(), pairs)?;
            expect_len("prob_b", b.len(), pairs)?;
            if classes > probability::MAX_CLASSES {
                let most = probability::MAX_CLASSES;
                return Err(format!(
                    "expected at most {most} classes with probabilities, found {classes}"
                ));
            }
        }
        let weights = self.weights(coefficients, vectors, pairs);
        let graph = call.graph();
        let kernels = self.kernel.apply(graph, x, support_vectors, [vectors, features]);
        let weights = graph.constant(weights, &[vectors, pairs]);
        let decisions = graph.matmul(kernels, weights);
        let rho = graph.constant(rho.to_vec(), &[pairs]);
        let decisions = graph.add(decisions, rho);
        let at = self.votes(graph, decisions, pairs);
        if has_probabilities {
            let (a, b) = (
                graph.constant(a.to_vec(), &[pairs]),
                graph.constant(b.to_vec(), &[pairs]),
            );
            let scaled = graph.mul(decisions, a);
            let shifted = graph.add(scaled, b);
            let opposite = graph.neg(shifted);
            let probabilities = graph.sigmoid(opposite);
            let (low, high) = (graph.scalar(1e-7), graph.scalar(1.0 - 1e-7));
            let bounded = graph.maximum(probabilities, low);
            let bounded = graph.minimum(bounded, high);
            let scores = probability::coupled(graph, bounded.into(), rows, classes);
            return Ok((at, self.post.apply(graph, scores)));
        }
        let scores = if classes > 2 {
            self.post.apply(graph, decisions.into())
        } else {
            let first = match self.post {
                PostTransform::None => FirstScore::Negative,
                _ => FirstScore::Complement,
            };
            self.post.two_classes(graph, decisions.into(), first)?
        };
        Ok((at, scores))
    }

    /// Returns the class that wins most decisions `[rows, pairs]`, the first one in a tie, as `u32 [rows]`.
    fn votes(&self, graph: &mut Graph, decisions: NodeId, pairs: usize) -> Value {
        let classes = self.sizes.len();
        // The second class of each pair gets the vote, unless the decision is positive.
        let (mut moved, mut start) = (vec![0.0; pairs * classes], vec![0.0; classes]);
        let mut pair = 0;
        for i in 0..classes {
            for j in i + 1..classes {
                moved[pair * classes + i] = 1.0;
                moved[pair * classes + j] = -1.0;
                start[j] += 1.0;
                pair += 1;
            }
        }
        let zero = graph.scalar(0.0);
        let positive = graph.greater_than(decisions, zero);
        let positive = graph.cast(positive, DType::F32);
        let moved = graph.constant(moved, &[pairs, classes]);
        let start = graph.constant(start, &[classes]);
        let gained = graph.matmul(positive, moved);
        let votes = graph.add(gained, start);
        graph.argmax(votes, 1).into()
    }
}
