//! Random graphs of elementwise calls, with views, reductions, norms, products and values that several calls use.

use std::collections::HashMap;

use meganeura_core::graph::{Graph, NodeId};
use meganeura_core::random::SplitMix64;
use meganeura_core::{DType, Shape};

/// A graph and values of its inputs.
pub(crate) struct Dag {
    pub(crate) graph: Graph,
    pub(crate) feeds: HashMap<String, Vec<f64>>,
}

/// Sizes at which kernels change their behaviour: empty loops, odd sizes, and more than one run of elements.
const SIZES: [usize; 9] = [1, 2, 3, 5, 7, 16, 31, 33, 61];

struct Maker<'a> {
    rng: &'a mut SplitMix64,
    graph: Graph,
    feeds: HashMap<String, Vec<f64>>,
    values: Vec<NodeId>,
}

impl Maker<'_> {
    fn pick(&mut self) -> NodeId {
        // Prefers recent values, so that chains are formed.
        let n = self.values.len();
        let back = self.rng.below(n).min(self.rng.below(n));
        self.values[n - 1 - back]
    }

    fn input(&mut self, shape: &[usize]) -> NodeId {
        let name = format!("x{}", self.feeds.len());
        let len = shape.iter().product();
        let rng = &mut *self.rng;
        let data = (0..len).map(|_| f64::from((2.0 * rng.unit() - 1.0) as f32)).collect();
        self.feeds.insert(name.clone(), data);
        self.graph.input(&name, shape)
    }

    /// Returns an operand that broadcasts to the shape of `with`.
    fn partner(&mut self, with: NodeId) -> NodeId {
        let shape = self.graph.shape(with).to_vec();
        let fitting: Vec<NodeId> = (self.values.iter().copied())
            .filter(|&v| Shape::broadcast(self.graph.shape(v), &shape).is_ok_and(|s| s.dims() == shape))
            .collect();
        if !fitting.is_empty() && self.rng.below(4) > 0 {
            return fitting[self.rng.below(fitting.len())];
        }
        let skip = self.rng.below(shape.len() + 1);
        let mut own = shape[skip..].to_vec();
        for d in &mut own {
            if self.rng.below(3) == 0 {
                *d = 1;
            }
        }
        self.input(&own)
    }

    fn call(&mut self) {
        let x = self.pick();
        let shape = self.graph.shape(x).to_vec();
        let rank = shape.len();
        let new = match self.rng.below(16) {
            0 => self.graph.relu(x),
            1 => self.graph.tanh(x),
            2 => self.graph.sigmoid(x),
            3 => self.graph.neg(x),
            4..=6 => {
                let y = self.partner(x);
                match self.rng.below(3) {
                    0 => self.graph.add(x, y),
                    1 => self.graph.sub(y, x),
                    _ => {
                        let product = self.graph.mul(x, y);
                        self.graph.tanh(product)
                    }
                }
            }
            7 => {
                let zero = self.graph.scalar_of(DType::F32, 0.0);
                let (condition, other) = (self.graph.greater_than(x, zero), self.partner(x));
                self.graph.select(condition, x, other)
            }
            8 => {
                let len: usize = shape.iter().product();
                let other = if rank > 1 {
                    vec![len / shape[rank - 1], shape[rank - 1]]
                } else {
                    vec![1, len]
                };
                self.graph.reshape(x, &other)
            }
            9 if rank > 1 => {
                let mut axes: Vec<i32> = (0..rank as i32).collect();
                let shift = 1 + self.rng.below(rank - 1);
                axes.rotate_left(shift);
                self.graph.permute(x, &axes)
            }
            10 if rank > 0 => {
                let axis = [0, rank as i32 - 1][self.rng.below(2)];
                self.graph.mean(x, &[axis], true)
            }
            11 if rank > 1 => {
                let axes: Vec<i32> = (0..rank as i32 - 1).collect();
                let sum = self.graph.sum(x, &axes, false);
                self.graph.tanh(sum)
            }
            12 if rank > 1 => {
                let (k, n) = (shape[rank - 1], SIZES[self.rng.below(SIZES.len())]);
                let weight = self.input(&[k, n]);
                let product = self.graph.matmul(x, weight);
                let bias = self.input(&[n]);
                self.graph.add(product, bias)
            }
            13 if rank > 0 => {
                let softmax = self.graph.softmax(x, -1);
                self.graph.mul(softmax, x)
            }
            14 if rank > 0 => {
                let width = shape[rank - 1];
                let [weight, bias] = [0, 1].map(|_| self.input(&[width]));
                match self.rng.below(2) {
                    0 => self.graph.rms_norm(x, weight, 1e-2),
                    _ => self.graph.layer_norm(x, weight, bias, 1e-2),
                }
            }
            _ => {
                let wide: Vec<usize> = [&[1 + self.rng.below(4)], &shape[..]].concat();
                let wide = if rank < 3 { wide } else { shape };
                self.graph.expand(x, &wide)
            }
        };
        self.values.push(new);
    }
}

/// Returns a random graph that depends only on the state of the generator.
pub(crate) fn dag(rng: &mut SplitMix64) -> Dag {
    let rank = 1 + rng.below(3);
    let shape: Vec<usize> = (0..rank).map(|_| SIZES[rng.below(SIZES.len())]).collect();
    let mut maker = Maker {
        rng,
        graph: Graph::new(),
        feeds: HashMap::new(),
        values: Vec::new(),
    };
    let first = maker.input(&shape);
    maker.values.push(first);
    for _ in 0..4 + maker.rng.below(14) {
        maker.call();
    }
    let mut outputs: Vec<NodeId> = vec![maker.pick(), maker.pick()];
    outputs.extend(maker.values.last());
    outputs.dedup();
    let Maker { mut graph, feeds, .. } = maker;
    graph.set_outputs(outputs);
    Dag { graph, feeds }
}
