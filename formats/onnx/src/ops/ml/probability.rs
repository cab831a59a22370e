//! Class probabilities from probabilities of pairs of classes.

use meganeura_core::graph::{Graph, NodeId, Value};

/// Maximum number of classes: each class adds nodes to each step.
pub(super) const MAX_CLASSES: usize = 32;

/// Number of steps. The largest number that random probabilities of 2 to 10 classes needed was 5.
const STEPS: usize = 8;

/// Returns `[rows, classes]` probabilities from `pairs [rows, classes * (classes - 1) / 2]`: the probability of class `i` in
/// a decision between the classes `i` and `j`, for `i < j`, in the order (0, 1), (0, 2) and so on.
///
/// This is the second method of Wu, Lin and Weng (2004), "Probability estimates for multi-class classification by pairwise
/// coupling". As in LIBSVM and ONNX Runtime, a row is finished if its error is below `0.005 / classes`.
pub(super) fn coupled(graph: &mut Graph, pairs: Value, rows: usize, classes: usize) -> Value {
    let count = classes * (classes - 1) / 2;
    // Positions of the pairs (i, j) and, after all of them, of the pairs (j, i). The diagonal has no pair.
    let mut places = vec![0u32; classes * classes];
    let mut place = 0;
    for i in 0..classes {
        for j in i + 1..classes {
            places[i * classes + j] = place;
            places[j * classes + i] = place + count as u32;
            place += 1;
        }
    }
    let square = [classes, classes];
    let diagonal: Vec<f32> = (0..classes * classes)
        .map(|i| f32::from(u8::from(i % (classes + 1) == 0)))
        .collect();
    let others: Vec<f32> = diagonal.iter().map(|v| 1.0 - v).collect();
    let (diagonal, others) = (graph.constant(diagonal, &square), graph.constant(others, &square));
    let one = graph.scalar(1.0);
    let opposite = graph.sub(one, pairs);
    let all = graph.concat(&[pairs, opposite.into()], 1);
    let places = graph.constant_u32(places, &square);
    // r [rows, i, j]: the probability of i in a decision between i and j.
    let r = graph.gather_axis(all, places, 1);
    let turned = graph.permute(r, &[0, 2, 1]);
    let products = graph.mul(r, turned);
    let products = graph.mul(products, others);
    let squares = graph.square(turned);
    let squares = graph.mul(squares, others);
    let sums = graph.sum(squares, &[2], true);
    let on_diagonal = graph.mul(sums, diagonal);
    let q = graph.sub(on_diagonal, products);
    let zero = graph.scalar(0.0);
    let mut state = State {
        q,
        rows,
        classes,
        is_done: graph.not_equal(zero, zero),
        eps: graph.scalar(0.005 / classes as f32),
    };
    let start = graph.scalar(1.0 / classes as f32);
    let mut p: Value = graph.expand(start, &[rows, classes]).into();
    for _ in 0..STEPS {
        p = state.step(graph, p);
    }
    p
}

struct State {
    /// Matrix of the quadratic form, `[rows, classes, classes]`.
    q: NodeId,
    rows: usize,
    classes: usize,
    /// Rows whose error was small enough, `[rows, 1]` (at first a scalar).
    is_done: NodeId,
    eps: NodeId,
}

impl State {
    /// Updates each probability once.
    fn step(&mut self, graph: &mut Graph, before: Value) -> Value {
        let (rows, classes) = (self.rows, self.classes);
        let row = graph.reshape(before, &[rows, 1, classes]);
        let products = graph.mul(self.q, row);
        let mut qp: Value = graph.sum(products, &[2], false).into();
        let form = graph.mul(before, qp);
        let mut form: Value = graph.sum(form, &[1], true).into();
        let difference = graph.sub(qp, form);
        let size = graph.abs(difference);
        let error = graph.max(size, &[1], true);
        let is_small = graph.less_than(error, self.eps);
        self.is_done = graph.logical_or(self.is_done, is_small);
        let (one, two) = (graph.scalar(1.0), graph.scalar(2.0));
        let mut p = before;
        for i in 0..classes {
            let line = graph.slice_axis(self.q, 1, i, i + 1);
            let line = graph.reshape(line, &[rows, classes]);
            let own = graph.slice_axis(line, 1, i, i + 1);
            let own_qp = graph.slice_axis(qp, 1, i, i + 1);
            let gap = graph.sub(form, own_qp);
            let change = graph.div(gap, own);
            let scale = graph.add(one, change);
            let unit: Vec<f32> = (0..classes).map(|j| f32::from(u8::from(i == j))).collect();
            let unit = graph.constant(unit, &[classes]);
            let added = graph.mul(change, unit);
            let sum = graph.add(p, added);
            p = graph.div(sum, scale).into();
            let twice = graph.mul(own_qp, two);
            let quadratic = graph.mul(change, own);
            let inner = graph.add(quadratic, twice);
            let added = graph.mul(change, inner);
            let sum = graph.add(form, added);
            let once = graph.div(sum, scale);
            form = graph.div(once, scale).into();
            let added = graph.mul(change, line);
            let sum = graph.add(qp, added);
            qp = graph.div(sum, scale).into();
        }
        graph.select(self.is_done, before, p).into()
    }
}
