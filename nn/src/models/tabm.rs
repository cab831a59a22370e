//! Ensemble of perceptrons for tables.

use meganeura_core::graph::Value;
use meganeura_core::{Graph, Init, NodeId};

use crate::layers::{Dropout, Fault, Linear, LinearConfig, check_sizes, reject, scoped};

/// Options of a [`TabM`].
#[derive(Clone, Debug, PartialEq)]
pub struct TabMConfig {
    inputs: usize,
    outputs: usize,
    members: usize,
    hidden: Vec<usize>,
    dropout: f32,
    edges: Vec<Vec<f32>>,
}

impl TabMConfig {
    /// Creates options for `inputs` features and `outputs` values, with 16 members, two hidden layers of 128, dropout of
    /// 0.1, and no bins.
    pub fn new(inputs: usize, outputs: usize) -> Self {
        TabMConfig {
            inputs,
            outputs,
            members: 16,
            hidden: vec![128, 128],
            dropout: 0.1,
            edges: Vec::new(),
        }
    }

    /// Sets the number of perceptrons that share their weights.
    #[must_use]
    pub fn members(mut self, members: usize) -> Self {
        self.members = members;
        self
    }

    /// Sets the sizes of the hidden layers; none makes linear models.
    #[must_use]
    pub fn hidden(mut self, sizes: impl Into<Vec<usize>>) -> Self {
        self.hidden = sizes.into();
        self
    }

    /// Sets the probability of dropout after each hidden layer; 0 for none.
    #[must_use]
    pub fn dropout(mut self, p: f32) -> Self {
        self.dropout = p;
        self
    }

    /// Sets the ascending edges of the bins of each feature; a feature without bins has none. There is a list for every
    /// feature, or no list at all.
    #[must_use]
    pub fn edges(mut self, edges: Vec<Vec<f32>>) -> Self {
        self.edges = edges;
        self
    }

    /// Checks the edges of bins. The error describes the first wrong list.
    pub(crate) fn check_edges(inputs: usize, edges: &[Vec<f32>]) -> Result<(), String> {
        if !edges.is_empty() && edges.len() != inputs {
            return Err(format!("edges: expected {inputs} lists or none, found {}", edges.len()));
        }
        // The reciprocal width of a bin has to be finite.
        let is_bin = |pair: &[f32]| pair[1] - pair[0] >= f32::MIN_POSITIVE && (pair[1] - pair[0]).is_finite();
        let is_wrong = |list: &&Vec<f32>| list.len() == 1 || !list.windows(2).all(is_bin);
        match edges.iter().find(is_wrong) {
            Some(list) => Err(format!(
                "edges: expected at least two ascending finite numbers for a feature with bins, found {list:?}"
            )),
            None => Ok(()),
        }
    }

    /// Registers the parameters under `{name}.`, or without a prefix under an empty name: the layers `fc1` (without bias),
    /// `fc2` ..., `scale` and `shift [members, 1, size]` after `fc1`, and `out.weight [members, size, outputs]` with
    /// `out.bias [members, 1, outputs]`. Without hidden layers, scale and shift apply to the features and bins.
    #[track_caller]
    pub fn build(&self, g: &mut Graph, name: &str) -> TabM {
        g.at_caller(|g| {
            let sizes = [
                ("inputs", self.inputs),
                ("outputs", self.outputs),
                ("members", self.members),
            ];
            let check = TabMConfig::check_edges(self.inputs, &self.edges);
            let check = check.map_err(|message| -> Fault { (message, "give the quantiles of each feature") });
            let invalid = reject(g, "tabm", check_sizes(&sizes).and(check));
            let bins = Bins::of(&self.edges);
            let mut layers = Vec::with_capacity(self.hidden.len());
            let mut inputs = self.inputs + bins.columns.len();
            for &outputs in &self.hidden {
                let config = LinearConfig::new(inputs, outputs).bias(!layers.is_empty());
                layers.push(config.build(g, &scoped(name, &format!("fc{}", layers.len() + 1))));
                inputs = outputs;
            }
            let adapter = [self.members, 1, self.hidden.first().copied().unwrap_or(inputs)];
            let scale = g.parameter_with(&scoped(name, "scale"), &adapter, Init::Normal { std: 1.0 });
            let shift = g.parameter(&scoped(name, "shift"), &adapter);
            let weight = [self.members, inputs, self.outputs];
            let init = Init::xavier_uniform(inputs, self.outputs);
            TabM {
                invalid,
                members: self.members,
                bins,
                layers,
                scale,
                shift,
                dropout: Dropout::new(self.dropout),
                weight: g.parameter_with(&scoped(name, "out.weight"), &weight, init),
                bias: g.parameter(&scoped(name, "out.bias"), &[self.members, 1, self.outputs]),
            }
        })
    }
}

/// Ensemble of perceptrons for tables, after TabM by Gorishniy et al., "TabM: Advancing Tabular Deep Learning with
/// Parameter-Efficient Ensembling", 2024.
///
/// The members share the weights of the hidden layers. Each member has its own factors and biases after the first layer,
/// and its own output layer, and is trained with its own loss. A prediction is the mean of all members. The variant "mini"
/// of the paper has factors before the first layer instead, which then has to be computed for each member.
///
/// Features with bins also have a piecewise linear encoding (Gorishniy et al., "On Embeddings for Numerical Features in
/// Tabular Deep Learning", 2022, equation 1): for each bin, the share of it that is below the number.
#[derive(Clone, Debug)]
pub struct TabM {
    invalid: Option<NodeId>,
    members: usize,
    bins: Bins,
    layers: Vec<Linear>,
    scale: NodeId,
    shift: NodeId,
    dropout: Dropout,
    weight: NodeId,
    bias: NodeId,
}

impl TabM {
    /// Applies all members: `x [batch, inputs] -> [members, batch, outputs]`, without activation at the end.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> NodeId {
        if let Some(invalid) = self.invalid {
            return invalid;
        }
        let mut x = self.bins.encode(g, x.into());
        let (first, others) = match self.layers.split_first() {
            Some((first, others)) => (Some(first), others),
            None => (None, &[][..]),
        };
        if let Some(first) = first {
            x = first.forward(g, x);
        }
        // The first layer is computed once for all members.
        let y = g.mul(x, self.scale);
        let y = g.add(y, self.shift);
        let &[members, batch, mut width] = g.shape(y) else {
            return g.report("tabm", "expected features [batch, inputs]", "reshape the features");
        };
        let mut rows = g.reshape(y, &[members * batch, width]);
        if first.is_some() {
            rows = self.activate(g, rows);
        }
        for layer in others {
            let y = layer.forward(g, rows);
            rows = self.activate(g, y);
            width = g.shape(rows).last().copied().unwrap_or(width);
        }
        let rows = g.reshape(rows, &[self.members, batch, width]);
        let y = g.matmul(rows, self.weight);
        g.add(y, self.bias)
    }

    /// Applies ReLU and dropout.
    fn activate(&self, g: &mut Graph, x: NodeId) -> NodeId {
        let y = g.relu(x);
        self.dropout.forward(g, y)
    }

    /// Returns the logarithm of the mean probabilities of the members' logits, `[members, batch, classes] ->
    /// [batch, classes]`.
    #[track_caller]
    pub fn mean_logits(g: &mut Graph, logits: NodeId) -> NodeId {
        let probabilities = g.softmax(logits, -1);
        let mean = g.mean(probabilities, &[0], false);
        // The logarithm of 0 is not finite.
        let least = g.scalar(f32::MIN_POSITIVE);
        let mean = g.maximum(mean, least);
        g.log(mean)
    }

    /// Returns the mean of the members' numbers, `[members, batch, outputs] -> [batch, outputs]`.
    #[track_caller]
    pub fn mean_values(g: &mut Graph, values: NodeId) -> NodeId {
        g.mean(values, &[0], false)
    }
}

/// Bins of features. Each bin is an additional input of the network.
#[derive(Clone, Debug, Default)]
struct Bins {
    /// Feature of each bin.
    columns: Vec<u32>,
    /// Lower edge of each bin.
    low: Vec<f32>,
    /// Reciprocal width of each bin.
    factor: Vec<f32>,
    /// Smallest and largest value of each bin: 0 and 1, but the outer bins of a feature are not bounded outwards.
    bounds: [Vec<f32>; 2],
}

impl Bins {
    fn of(edges: &[Vec<f32>]) -> Self {
        /// Bound of outer bins. The network would not be reliable beyond.
        const FAR: f32 = 10.0;
        let mut bins = Bins::default();
        for (column, edges) in (0u32..).zip(edges) {
            let count = edges.len().saturating_sub(1);
            for (bin, pair) in edges.windows(2).enumerate() {
                bins.columns.push(column);
                bins.low.push(pair[0]);
                bins.factor.push(1.0 / (pair[1] - pair[0]));
                bins.bounds[0].push(if bin == 0 { -FAR } else { 0.0 });
                bins.bounds[1].push(if bin + 1 == count { FAR } else { 1.0 });
            }
        }
        bins
    }

    /// Appends the bins to the features: `x [batch, inputs] -> [batch, inputs + bins]`.
    fn encode(&self, g: &mut Graph, x: Value) -> NodeId {
        let count = self.columns.len();
        if count == 0 {
            return x.node;
        }
        let columns = g.constant_u32(self.columns.clone(), &[count]);
        let chosen = g.gather_axis(x, columns, -1);
        let [low, factor, least, most] = [&self.low, &self.factor, &self.bounds[0], &self.bounds[1]]
            .map(|numbers| g.constant(numbers.clone(), &[count]));
        let above = g.sub(chosen, low);
        let share = g.mul(above, factor);
        let share = g.maximum(share, least);
        let share = g.minimum(share, most);
        g.concat(&[x, share.into()], -1)
    }
}
