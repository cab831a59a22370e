//! Export of recurrent layers as ONNX nodes, which include the product with the input weight.

use std::collections::HashMap;

use meganeura_core::attrs::Attrs;
use meganeura_core::graph::{Graph, NodeKind, Value};
use meganeura_core::{DType, NodeId};

use super::{Writer, int, string};
use crate::element::ElementType;

/// A recurrent operator of graphs that an ONNX node can replace.
struct Kind {
    name: &'static str,
    onnx: &'static str,
    /// Indices of the operator's gate blocks in the order of ONNX.
    order: &'static [i64],
    /// Number of operands before the lengths. The last ones are the initial states.
    operands: usize,
    states: usize,
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "core.gru",
        onnx: "GRU",
        order: &[1, 0, 2],
        operands: 4,
        states: 1,
    },
    Kind {
        name: "core.lstm",
        onnx: "LSTM",
        order: &[0, 3, 1, 2],
        operands: 4,
        states: 2,
    },
    Kind {
        name: "core.rnn",
        onnx: "RNN",
        order: &[0],
        operands: 3,
        states: 1,
    },
];

/// The contribution of the inputs to the gates: `x weight^T + bias`.
struct Projection {
    /// Inputs `[steps, batch, inputs]`, or the same elements with the first two axes merged.
    x: Value,
    /// Weight `[blocks * hidden, inputs]`, or its transpose.
    weight: Value,
    transposed: bool,
    bias: Option<Value>,
}

/// Returns the attributes and operands of the node that computes a value, if it is a call of this operator.
fn call_of<'a>(graph: &'a Graph, value: Value, name: &str) -> Option<(&'a Attrs, &'a [Value])> {
    let node = graph.nodes().get(value.node.index())?;
    match &node.kind {
        NodeKind::Op { op, attrs } if op.name() == name => Some((attrs, &node.inputs)),
        _ => None,
    }
}

/// Finds the product of inputs and weight that `gates` is computed from, followed by reshapes and at most one bias.
fn projection(graph: &Graph, gates: Value, width: usize) -> Option<Projection> {
    let is_bias = |v: Value| graph.shape(v).iter().product::<usize>() == width && graph.shape(v).last() == Some(&width);
    let (mut value, mut bias) = (gates, None);
    // At most a reshape, a bias and another reshape.
    for _ in 0..3 {
        if let Some((_, &[x])) = call_of(graph, value, "core.reshape") {
            if graph.shape(x).last() != Some(&width) {
                return None;
            }
            value = x;
        } else if let Some((_, &[a, b])) = call_of(graph, value, "core.add").filter(|_| bias.is_none()) {
            let wide = graph.shape(value);
            (value, bias) = match () {
                () if graph.shape(a) == wide && is_bias(b) => (a, Some(b)),
                () if graph.shape(b) == wide && is_bias(a) => (b, Some(a)),
                () => return None,
            };
        }
    }
    let (attrs, &[x, weight]) = call_of(graph, value, "core.matmul")? else {
        return None;
    };
    let transposed = !attrs.bool("transpose_b").ok()?;
    if attrs.bool("transpose_a").ok()? || graph.shape(weight).len() != 2 {
        return None;
    }
    Some(Projection {
        x,
        weight,
        transposed,
        bias,
    })
}

/// Returns true if a node is the slice of one step of a sequence.
fn is_step(graph: &Graph, id: NodeId, sequence: Value, step: usize) -> bool {
    let Some((attrs, &[x])) = call_of(graph, id.into(), "core.slice") else {
        return false;
    };
    let starts = attrs.ints("starts").is_ok_and(|s| s.first() == Some(&(step as i64)));
    let dims = graph.shape(sequence);
    x == sequence && starts && graph.shape(id).first() == Some(&1) && graph.shape(id).get(1..) == dims.get(1..)
}

impl Writer {
    /// Writes a recurrent layer as one node, and adds the names of its results and of the slices of its last step.
    /// Returns `false` if it must be decomposed: for types other than `f32`, and if other nodes read the activations or
    /// the cell states of other steps.
    pub(super) fn recurrent(
        &mut self,
        graph: &Graph,
        id: NodeId,
        names: &mut HashMap<Value, String>,
        wanted: &[Value],
    ) -> Result<bool, String> {
        let node = &graph.nodes()[id.index()];
        let NodeKind::Op { op, attrs } = &node.kind else {
            return Ok(false);
        };
        let Some(kind) = KINDS.iter().find(|kind| kind.name == op.name()) else {
            return Ok(false);
        };
        let ports: Vec<Value> = graph.values(id).collect();
        let (&[gates, weight, ..], Some(&hidden)) = (node.inputs.as_slice(), ports.first()) else {
            return Ok(false);
        };
        let &[steps, batch, width] = graph.shape(hidden) else {
            return Ok(false);
        };
        let reverse = attrs.bool("reverse")?;
        let last_step = if reverse { 0 } else { steps - 1 };
        let users = |value: Value| {
            let reads = move |user: &NodeId| graph.nodes()[user.index()].inputs.contains(&value);
            graph.node_ids().filter(reads)
        };
        let only_last =
            |port: &Value| !wanted.contains(port) && users(*port).all(|user| is_step(graph, user, *port, last_step));
        let unread = |port: &Value| !wanted.contains(port) && users(*port).next().is_none();
        let (states, others) = ports.split_at(kind.states.min(ports.len()));
        let given = others.iter().all(unread) && states.iter().skip(1).all(|port| steps == 1 || only_last(port));
        if graph.dtype(hidden) != DType::F32 || !given {
            return Ok(false);
        }
        let name_of = |value: Value| names.get(&value).cloned().ok_or("an operand cannot be exported");

        let blocks = kind.order.len();
        let (x, w, bias) = match projection(graph, gates, blocks * width) {
            Some(of) => {
                let inputs = graph.shape(of.x).last().copied().unwrap_or(0);
                let x = self.reshaped(&name_of(of.x)?, &[steps, batch, inputs]);
                let mut w = name_of(of.weight)?;
                if of.transposed {
                    w = self.call("Transpose", &[&w], Vec::new());
                }
                let w = self.reordered(&w, kind.order, width, inputs);
                (x, w, of.bias.map(name_of).transpose()?)
            }
            None => {
                // Without a projection, the gates are the inputs, and their weight is the identity.
                let size = (blocks * width) as i64;
                let shape = self.int_list(&[size, size]);
                let zeros = self.call("ConstantOfShape", &[&shape], Vec::new());
                let eye = self.call("EyeLike", &[&zeros], Vec::new());
                let w = self.reordered(&eye, kind.order, width, blocks * width);
                (name_of(gates)?, w, None)
            }
        };
        let r = self.reordered(&name_of(weight)?, kind.order, width, width);
        let recurrent_bias = match kind.name {
            "core.gru" => Some(name_of(node.inputs[2])?),
            _ => None,
        };
        let b = self.biases(kind, width, bias, recurrent_bias);
        let initial: Result<Vec<String>, &str> = node.inputs[kind.operands - kind.states..kind.operands]
            .iter()
            .map(|&v| name_of(v))
            .collect();
        let initial: Vec<String> = initial?
            .iter()
            .map(|state| self.reshaped(state, &[1, batch, width]))
            .collect();
        let lengths = match node.inputs.get(kind.operands) {
            None => None,
            Some(&lengths) => {
                // Graphs allow lengths below 0 and above the number of steps, but files do not.
                let wide = self.cast(&name_of(lengths)?, ElementType::I64);
                let (low, high) = (self.int_number(0), self.int_number(steps as i64));
                Some(self.call("Clip", &[&wide, &low, &high], Vec::new()))
            }
        };
        let short = lengths.as_ref().map(|name| self.cast(name, ElementType::I32));

        let mut attributes = vec![int("hidden_size", width as i64)];
        attributes.push(string("direction", if reverse { "reverse" } else { "forward" }));
        if kind.name == "core.gru" {
            attributes.push(int("linear_before_reset", attrs.bool("linear_before_reset")?.into()));
        }
        if kind.name == "core.rnn" {
            let activation = if attrs.bool("relu")? { "Relu" } else { "Tanh" };
            attributes.push(super::strings("activations", &[activation]));
        }
        let mut inputs = vec![
            x.as_str(),
            &w,
            &r,
            b.as_deref().unwrap_or(""),
            short.as_deref().unwrap_or(""),
        ];
        inputs.extend(initial.iter().map(String::as_str));
        let y = self.fresh();
        let mut last: Vec<String> = initial.iter().map(|_| self.fresh()).collect();
        let outputs: Vec<&str> = std::iter::once(&y).chain(&last).map(String::as_str).collect();
        self.node(kind.onnx, &inputs, &outputs, attributes);

        let mut all = self.reshaped(&y, &[steps, batch, width]);
        if let Some(lengths) = &lengths {
            let lengths = self.reshaped(lengths, &[1, batch, 1]);
            // Sequences of length 0 keep the initial states.
            let zero = self.int_number(0);
            let some = self.call("Greater", &[&lengths, &zero], Vec::new());
            for (last, initial) in last.iter_mut().zip(&initial) {
                *last = self.call("Where", &[&some, last, initial], Vec::new());
            }
            // In the graph, steps past the length contain the last state (the initial state if reversed) instead of zeros.
            let numbers: Vec<i64> = (0..steps as i64).collect();
            let numbers = self.int_list(&numbers);
            let numbers = self.reshaped(&numbers, &[steps, 1, 1]);
            let there = self.call("Less", &[&numbers, &lengths], Vec::new());
            let behind = if reverse { &initial[0] } else { &last[0] };
            all = self.call("Where", &[&there, &all, behind], Vec::new());
        }
        names.insert(hidden, all);
        for (port, last) in states.iter().zip(last) {
            for user in users(*port).filter(|&user| is_step(graph, user, *port, last_step)) {
                names.insert(user.into(), last.clone());
            }
            if steps == 1 {
                names.entry(*port).or_insert(last);
            }
        }
        Ok(true)
    }

    /// Adds a reshape to these dimensions.
    fn reshaped(&mut self, name: &str, dims: &[usize]) -> String {
        let dims: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
        let shape = self.int_list(&dims);
        self.call("Reshape", &[name, &shape], vec![int("allowzero", 1)])
    }

    /// Returns a weight with its blocks of rows reordered, as `[1, blocks * hidden, columns]`.
    fn reordered(&mut self, name: &str, order: &[i64], hidden: usize, columns: usize) -> String {
        let split = self.reshaped(name, &[order.len(), hidden, columns]);
        let order_list = self.int_list(order);
        let gathered = self.call("Gather", &[&split, &order_list], vec![int("axis", 0)]);
        self.reshaped(&gathered, &[1, order.len() * hidden, columns])
    }

    /// Returns the concatenated biases of inputs and states, `[1, 2 * blocks * hidden]`, if there are any. Only the
    /// candidate of a GRU has a bias of the states.
    fn biases(&mut self, kind: &Kind, hidden: usize, own: Option<String>, candidate: Option<String>) -> Option<String> {
        if own.is_none() && candidate.is_none() {
            return None;
        }
        let blocks = kind.order.len();
        let first = match own {
            Some(bias) => self.reordered(&bias, kind.order, hidden, 1),
            None => self.zeros(blocks * hidden),
        };
        let first = self.reshaped(&first, &[blocks * hidden]);
        let mut parts = vec![first];
        match candidate {
            Some(bias) => parts.extend([self.zeros((blocks - 1) * hidden), bias]),
            None => parts.push(self.zeros(blocks * hidden)),
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let joined = self.call("Concat", &parts, vec![int("axis", 0)]);
        Some(self.reshaped(&joined, &[1, 2 * blocks * hidden]))
    }

    fn zeros(&mut self, count: usize) -> String {
        self.constant(ElementType::F32.number(), &[count as i64], vec![0; 4 * count])
    }

    /// Adds a scalar `int64` constant.
    fn int_number(&mut self, value: i64) -> String {
        self.constant(ElementType::I64.number(), &[], value.to_le_bytes().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::export::{ExportOptions, floats, to_proto};

    /// Returns the number of nodes of each operator in the file of a graph.
    fn operators(graph: &Graph) -> BTreeMap<String, usize> {
        let mut values = |name: &str| {
            let id = graph.leaf_named(name)?;
            Some(vec![0.5; graph.shape(id).iter().product()])
        };
        let proto = to_proto(graph, &mut floats(&mut values), &ExportOptions::default()).expect("exported");
        let mut found = BTreeMap::new();
        for node in proto.graph.expect("a graph").node {
            *found.entry(node.op_type).or_default() += 1;
        }
        found
    }

    /// Adds an LSTM with inputs `[4, 2, 3]` and its parameters to a graph.
    fn lstm(g: &mut Graph) -> (Value, NodeId) {
        let x = g.input("x", &[4, 2, 3]);
        let (w, r) = (g.parameter("w", &[20, 3]), g.parameter("r", &[20, 5]));
        let b = g.parameter("b", &[20]);
        let states = [g.input("h", &[2, 5]), g.input("c", &[2, 5])];
        let rows = g.reshape(x, &[8, 3]);
        let gates = g.matmul_bt(rows, w);
        let gates = g.add(gates, b);
        let gates = g.reshape(gates, &[4, 2, 20]);
        let call = g.lstm(gates, r, states[0], states[1], None, false);
        (g.port(call, 1), call)
    }

    #[test]
    fn the_product_of_the_inputs_is_in_the_node() {
        let mut g = Graph::new();
        let (cells, steps) = lstm(&mut g);
        let last = g.slice_axis(cells, 0, 3, 4);
        g.set_outputs(vec![steps, last]);
        let found = operators(&g);
        assert_eq!(found.get("LSTM"), Some(&1), "{found:?}");
        for absent in ["MatMul", "Add", "EyeLike", "Slice", "Tanh"] {
            assert_eq!(found.get(absent), None, "{found:?}");
        }
    }

    #[test]
    fn gates_that_are_no_product_are_inputs_of_an_identity() {
        let mut g = Graph::new();
        let gates = g.input("gates", &[4, 2, 5]);
        let (r, h) = (g.parameter("r", &[5, 5]), g.input("h", &[2, 5]));
        let y = g.rnn(gates, r, h, None, true, true);
        g.set_outputs(vec![y]);
        let found = operators(&g);
        assert_eq!(
            (found.get("RNN"), found.get("EyeLike")),
            (Some(&1), Some(&1)),
            "{found:?}"
        );
    }

    #[test]
    fn cell_states_of_all_steps_need_the_decomposition() {
        let mut g = Graph::new();
        let (cells, steps) = lstm(&mut g);
        let cells = g.square(cells);
        g.set_outputs(vec![steps, cells]);
        let found = operators(&g);
        assert_eq!((found.get("LSTM"), found.get("MatMul")), (None, Some(&5)), "{found:?}");
    }
}
