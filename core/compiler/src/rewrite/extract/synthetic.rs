//! Synthetic problems for tests and benchmarks.

use super::super::problem::{Choice, Problem};

/// Returns a problem in the shape of a transformer's training graph after rewriting: projections
/// that can be packed (in two ways that exclude each other), fused attention, norms and additions,
/// transpositions that undo each other, a backward pass that shares the packings, and an
/// optimizer's update in primitive operators. About 225 classes a layer.
pub fn layered(layers: usize) -> Problem {
    let mut b = Builder::default();
    let mut x = b.leaf();
    let mut kept = Vec::new();
    for _ in 0..layers {
        let layer = b.forward(x);
        x = layer.out;
        kept.push(layer);
    }
    let mut gradient = b.op(90, 900, &[x]);
    b.problem.roots.push(gradient);
    for layer in kept.iter().rev() {
        gradient = b.backward(layer, gradient);
    }
    b.problem
}

/// Builder of a problem from classes and choices.
#[derive(Default)]
struct Builder {
    problem: Problem,
}

/// Values of a layer that the backward pass needs.
struct Layer {
    input: u32,
    normed: u32,
    weights: Vec<u32>,
    packed: u32,
    qkv: [u32; 3],
    attention: u32,
    middle: u32,
    gates: [u32; 2],
    gated: u32,
    packed_gates: u32,
    out: u32,
}

impl Builder {
    fn op(&mut self, label: u32, cost: u64, children: &[u32]) -> u32 {
        self.problem.classes.push(Vec::new());
        let class = self.problem.classes.len() as u32 - 1;
        self.or(class, label, cost, children);
        class
    }

    fn leaf(&mut self) -> u32 {
        self.op(0, 0, &[])
    }

    fn or(&mut self, class: u32, label: u32, cost: u64, children: &[u32]) {
        let mut children = children.to_vec();
        children.sort_unstable();
        children.dedup();
        self.problem.classes[class as usize].push(Choice { label, cost, children });
    }

    /// Adds a packing of parameters; costs nothing by itself.
    fn pack(&mut self, weights: &[u32]) -> u32 {
        self.op(1, 0, weights)
    }

    /// Adds a norm with two choices: from its primitives, or as one call.
    fn norm(&mut self, x: u32) -> u32 {
        let square = self.op(2, 210, &[x]);
        let mean = self.op(3, 150, &[square]);
        let root = self.op(4, 110, &[mean]);
        let normed = self.op(5, 320, &[x, root]);
        self.or(normed, 6, 260, &[x]);
        normed
    }

    /// Adds a transposition of a class; transposing it again gives the class.
    fn transposed(&mut self, x: u32) -> u32 {
        let t = self.op(7, 140, &[x]);
        self.or(x, 7, 140, &[t]);
        t
    }

    /// Adds `x + a·b` with two choices: in two kernels, or in one.
    fn matmul_add(&mut self, cost: u64, x: u32, operands: &[u32]) -> u32 {
        let product = self.op(10, cost, operands);
        let sum = self.op(11, 230, &[x, product]);
        let mut all = operands.to_vec();
        all.push(x);
        self.or(sum, 12, cost + 40, &all);
        sum
    }

    fn forward(&mut self, x: u32) -> Layer {
        let weights: Vec<u32> = (0..9).map(|_| self.leaf()).collect();
        let normed = self.norm(x);
        let mut qkv = [0; 3];
        for (i, q) in qkv.iter_mut().enumerate() {
            *q = self.op(10, 600, &[normed, weights[i]]);
        }
        let packed = self.pack(&weights[..3]);
        let pair = self.pack(&weights[..2]);
        self.problem.exclusive.push(vec![packed, pair]);
        for (weight, used, cost) in [(packed, 3, 1300), (pair, 2, 950)] {
            let product = self.op(10, cost, &[normed, weight]);
            for (i, &q) in qkv.iter().take(used).enumerate() {
                self.or(q, 20 + i as u32, 0, &[product]);
            }
        }
        let kt = self.transposed(qkv[1]);
        let scores = self.op(10, 500, &[qkv[0], kt]);
        self.or(scores, 13, 480, &[qkv[0], qkv[1]]);
        let weighted = self.op(14, 400, &[scores]);
        let attention = self.op(10, 500, &[weighted, qkv[2]]);
        self.or(attention, 15, 800, &qkv);
        let middle = self.matmul_add(500, x, &[attention, weights[3]]);
        let normed2 = self.norm(middle);
        let gates = [4, 5].map(|i| self.op(10, 900, &[normed2, weights[i]]));
        let packed_gates = self.pack(&weights[4..6]);
        let both = self.op(10, 1600, &[normed2, packed_gates]);
        self.or(gates[0], 20, 0, &[both]);
        self.or(gates[1], 21, 0, &[both]);
        let silu = self.op(16, 200, &[gates[0]]);
        let gated = self.op(17, 220, &[silu, gates[1]]);
        self.or(gated, 18, 250, &gates);
        self.or(gated, 19, 240, &[both]);
        let out = self.matmul_add(900, middle, &[gated, weights[6]]);
        Layer {
            input: x,
            normed,
            weights,
            packed,
            qkv,
            attention,
            middle,
            gates,
            gated,
            packed_gates,
            out,
        }
    }

    fn backward(&mut self, layer: &Layer, d: u32) -> u32 {
        let w = &layer.weights;
        let gated_t = self.transposed(layer.gated);
        let down = self.op(10, 900, &[gated_t, d]);
        self.or(down, 13, 880, &[layer.gated, d]);
        self.update(down, w[6]);
        let d_gated = self.op(13, 900, &[d, w[6]]);
        let d_gates = [0, 1].map(|i| self.op(30 + i, 260, &[d_gated, layer.gates[0], layer.gates[1]]));
        let both = self.op(32, 330, &[d_gated, layer.gates[0], layer.gates[1]]);
        d_gates.iter().for_each(|&g| self.or(g, 20, 0, &[both]));
        self.weight_gradients(layer.middle, &d_gates, both, &w[4..6]);
        let d_normed = self.input_gradient(&d_gates, &w[4..6], both, layer.packed_gates);
        let d_norm = self.op(33, 400, &[d_normed, layer.middle]);
        let d_middle = self.op(11, 230, &[d, d_norm]);
        self.or(d_middle, 34, 450, &[d, d_normed, layer.middle]);
        let attention_t = self.transposed(layer.attention);
        let projection = self.op(10, 500, &[attention_t, d_middle]);
        self.or(projection, 13, 480, &[layer.attention, d_middle]);
        self.update(projection, w[3]);
        let d_attention = self.op(13, 500, &[d_middle, w[3]]);
        let mut operands = layer.qkv.to_vec();
        operands.push(d_attention);
        let fused = self.op(35, 1500, &operands);
        let d_qkv = [0, 1, 2].map(|i| self.op(20 + i, 0, &[fused]));
        d_qkv.iter().for_each(|&g| self.or(g, 36, 800, &operands));
        let concat = self.op(37, 190, &d_qkv);
        self.weight_gradients(layer.normed, &d_qkv, concat, &w[..3]);
        let d_normed = self.input_gradient(&d_qkv, &w[..3], concat, layer.packed);
        self.update(d_normed, w[7]);
        let d_norm = self.op(33, 400, &[d_normed, layer.input]);
        let d_input = self.op(11, 230, &[d_middle, d_norm]);
        self.or(d_input, 34, 450, &[d_middle, d_normed, layer.input]);
        d_input
    }

    /// Adds `xᵀ·d` for each of `d`, with two choices: separately, or all in one product.
    fn weight_gradients(&mut self, x: u32, d: &[u32], together: u32, weights: &[u32]) {
        let at_once = self.op(13, 500 * d.len() as u64, &[x, together]);
        let t = self.transposed(x);
        for (&d, &w) in d.iter().zip(weights) {
            let gradient = self.op(10, 640, &[t, d]);
            self.or(gradient, 13, 620, &[x, d]);
            self.or(gradient, 20, 0, &[at_once]);
            self.update(gradient, w);
        }
    }

    /// Adds `Σ d·wᵀ` with two choices: as a chain of sums, or as one product with a packing.
    fn input_gradient(&mut self, d: &[u32], weights: &[u32], together: u32, packed: u32) -> u32 {
        let mut sum = self.op(13, 600, &[d[0], weights[0]]);
        for (&d, &w) in d.iter().zip(weights).skip(1) {
            sum = self.matmul_add(600, sum, &[d, w]);
        }
        self.or(sum, 13, 560 * d.len() as u64, &[together, packed]);
        sum
    }

    /// Adds an optimizer's update in primitive operators; the only choice is its fusion.
    fn update(&mut self, gradient: u32, weight: u32) {
        let (moment, rate) = (self.leaf(), self.leaf());
        let mut value = gradient;
        for i in 0..16 {
            value = self.op(40 + i, 100, &[value, [moment, rate][i as usize % 2]]);
        }
        let updated = self.op(60, 120, &[value, weight]);
        self.or(updated, 61, 700, &[gradient, weight, moment, rate]);
        self.problem.roots.push(updated);
    }
}
