//! Recurrent layers: long short-term memory, gated recurrent units and plain recurrences.

use meganeura_core::graph::Value;
use meganeura_core::{Graph, Init, NodeId};

use super::{reject_zero_sizes, scoped};

/// Options of a recurrent layer of one direction: [`Lstm`], [`Gru`] or [`Rnn`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecurrentConfig {
    inputs: usize,
    hidden: usize,
    bias: bool,
    reverse: bool,
    init: Option<Init>,
}

impl RecurrentConfig {
    /// Creates options for `inputs` features to `hidden`, from the first step to the last: with
    /// biases, and weights uniform within `1 / sqrt(hidden)`.
    pub fn new(inputs: usize, hidden: usize) -> Self {
        RecurrentConfig {
            inputs,
            hidden,
            bias: true,
            reverse: false,
            init: None,
        }
    }

    /// Sets whether there are biases (default: true).
    #[must_use]
    pub fn bias(mut self, bias: bool) -> Self {
        self.bias = bias;
        self
    }

    /// Sets whether the steps run in reverse, from the last to the first. Parameter names then end
    /// with `_reverse`.
    #[must_use]
    pub fn reverse(mut self, reverse: bool) -> Self {
        self.reverse = reverse;
        self
    }

    /// Sets the initial distribution of the weights instead of the uniform one.
    #[must_use]
    pub fn init(mut self, init: Init) -> Self {
        self.init = Some(init);
        self
    }

    /// Registers the parameters of an LSTM with the names and shapes that they have in PyTorch:
    /// `{name}.weight_ih_l0 [4 hidden, inputs]`, `{name}.weight_hh_l0 [4 hidden, hidden]` and the biases (zeros)
    /// `{name}.bias_ih_l0 [4 hidden]` and `{name}.bias_hh_l0 [4 hidden]`.
    #[track_caller]
    pub fn lstm(self, g: &mut Graph, name: &str) -> Lstm {
        Lstm(g.at_caller(|g| self.build(g, "lstm", name, 4)))
    }

    /// Registers the parameters of a GRU, as for [`RecurrentConfig::lstm`] with `3 hidden` instead
    /// of `4 hidden`.
    #[track_caller]
    pub fn gru(self, g: &mut Graph, name: &str) -> Gru {
        Gru(g.at_caller(|g| self.build(g, "gru", name, 3)))
    }

    /// Registers the parameters of a plain recurrent layer with this activation, as for
    /// [`RecurrentConfig::lstm`] with `hidden` instead of `4 hidden`.
    #[track_caller]
    pub fn rnn(self, g: &mut Graph, name: &str, activation: RnnActivation) -> Rnn {
        Rnn {
            layer: g.at_caller(|g| self.build(g, "rnn", name, 1)),
            activation,
        }
    }

    fn build(self, g: &mut Graph, kind: &'static str, name: &str, gates: usize) -> Recurrent {
        let (inputs, hidden) = (self.inputs, self.hidden);
        let layer = format!("{kind} '{name}'");
        let sizes = [("inputs", inputs), ("hidden features", hidden)];
        let built = |[weight_ih, weight_hh]: [NodeId; 2], biases| Recurrent {
            kind,
            name: name.to_owned(),
            sizes: [inputs, hidden],
            gates,
            reverse: self.reverse,
            weight_ih,
            weight_hh,
            biases,
        };
        if let Some(poison) = reject_zero_sizes(g, &layer, &sizes) {
            return built([poison; 2], None);
        }
        let Some(rows) = hidden.checked_mul(gates) else {
            let message = format!("the number of hidden features is {hidden}");
            return built([g.report(&layer, message, "use a smaller number"); 2], None);
        };
        let suffix = if self.reverse { "_reverse" } else { "" };
        let own = |parameter: &str| scoped(name, &format!("{parameter}_l0{suffix}"));
        let bound = 1.0 / (hidden as f32).sqrt();
        let init = self.init.unwrap_or(Init::Uniform { bound });
        let weight_ih = g.parameter_with(&own("weight_ih"), &[rows, inputs], init);
        let weight_hh = g.parameter_with(&own("weight_hh"), &[rows, hidden], init);
        let biases = self
            .bias
            .then(|| ["bias_ih", "bias_hh"].map(|bias| g.parameter(&own(bias), &[rows])));
        built([weight_ih, weight_hh], biases)
    }
}

/// The activation of an [`Rnn`]'s step: PyTorch's `nonlinearity`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RnnActivation {
    /// The hyperbolic tangent.
    #[default]
    Tanh,
    /// `max(0, x)`.
    Relu,
}

/// Parameters of a recurrent layer of any kind.
#[derive(Clone, Debug)]
struct Recurrent {
    kind: &'static str,
    name: String,
    sizes: [usize; 2],
    gates: usize,
    reverse: bool,
    weight_ih: NodeId,
    weight_hh: NodeId,
    biases: Option<[NodeId; 2]>,
}

impl Recurrent {
    fn what(&self) -> String {
        let ([inputs, hidden], kind, name) = (self.sizes, self.kind, &self.name);
        format!("{kind} '{name}' ({inputs} to {hidden} features)")
    }

    /// Computes the contributions of the inputs to the gates, without biases: one matmul for all
    /// steps.
    fn project(&self, g: &mut Graph, x: Value) -> NodeId {
        let [inputs, hidden] = self.sizes;
        if g.ty(x).is_none() {
            // The operand was rejected before.
            return x.node;
        }
        let dims = g.shape(x).to_vec();
        let &[steps, batch, width] = dims.as_slice() else {
            let message = format!("the operand is {dims:?}");
            return g.report(&self.what(), message, "expected the axes [steps, batch, inputs]");
        };
        if width != inputs {
            let message = format!("the operand has {width} features, and the layer {inputs} inputs");
            return g.report(
                &self.what(),
                message,
                "the last axis of [steps, batch, inputs] must match the layer",
            );
        }
        let rows = g.reshape(x, &[steps * batch, inputs]);
        let gates = g.matmul_bt(rows, self.weight_ih);
        g.reshape(gates, &[steps, batch, self.gates * hidden])
    }

    /// Computes the contributions of the inputs to the gates, with both biases added.
    fn project_biased(&self, g: &mut Graph, x: Value) -> NodeId {
        let gates = self.project(g, x);
        let Some([input, recurrent]) = self.biases else {
            return gates;
        };
        let bias = g.add(input, recurrent);
        g.add(gates, bias)
    }

    /// Returns zeros `[batch, hidden]` for a sequence `[steps, batch, inputs]`.
    fn zeros(&self, g: &mut Graph, x: Value) -> Value {
        let batch = g.shape(x).get(1).copied().unwrap_or(1);
        g.full(g.dtype(x), 0.0, &[batch, self.sizes[1]]).into()
    }

    /// Returns the state after the step that is computed last.
    fn last(&self, g: &mut Graph, states: Value) -> NodeId {
        let dims = g.shape(states).to_vec();
        let &[steps, batch, hidden] = dims.as_slice() else {
            // The call was rejected, and so are its consumers.
            return states.node;
        };
        let at = if self.reverse { 0 } else { steps - 1 };
        let state = g.slice_axis(states, 0, at, at + 1);
        g.reshape(state, &[batch, hidden])
    }
}

/// Long short-term memory over a sequence, as PyTorch `LSTM` with one layer; see [`Graph::lstm`].
#[derive(Clone, Debug)]
pub struct Lstm(Recurrent);

/// The results of an [`Lstm`].
#[derive(Clone, Copy, Debug)]
pub struct LstmStates {
    /// The hidden state after each step, `[steps, batch, hidden]`.
    pub steps: NodeId,
    /// The hidden state after the step that is computed last, `[batch, hidden]`.
    pub hidden: NodeId,
    /// The cell state after that step, `[batch, hidden]`.
    pub cell: NodeId,
}

impl Lstm {
    /// Creates a layer with the defaults of [`RecurrentConfig`].
    #[track_caller]
    pub fn new(g: &mut Graph, name: &str, inputs: usize, hidden: usize) -> Self {
        RecurrentConfig::new(inputs, hidden).lstm(g, name)
    }

    /// Applies the layer to `x [steps, batch, inputs]`, from states of zeros.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> LstmStates {
        let x = x.into();
        g.within(self.0.what(), |g| {
            let zeros = self.0.zeros(g, x);
            self.steps(g, x, [zeros, zeros], None)
        })
    }

    /// Applies the layer to `x [steps, batch, inputs]` from a hidden and a cell state
    /// `[batch, hidden]`. With `lengths [batch]` (`u32` or `i32`) a sequence keeps its states from
    /// its length on.
    #[track_caller]
    pub fn forward_from(
        &self,
        g: &mut Graph,
        x: impl Into<Value>,
        hidden: impl Into<Value>,
        cell: impl Into<Value>,
        lengths: Option<Value>,
    ) -> LstmStates {
        let (x, states) = (x.into(), [hidden.into(), cell.into()]);
        g.within(self.0.what(), |g| self.steps(g, x, states, lengths))
    }

    fn steps(&self, g: &mut Graph, x: Value, [hidden, cell]: [Value; 2], lengths: Option<Value>) -> LstmStates {
        let layer = &self.0;
        let gates = layer.project_biased(g, x);
        let steps = g.lstm(gates, layer.weight_hh, hidden, cell, lengths, layer.reverse);
        g.named(steps, &layer.name);
        let cells = g.port(steps, 1);
        LstmStates {
            steps,
            hidden: layer.last(g, steps.into()),
            cell: layer.last(g, cells),
        }
    }
}

/// Gated recurrent units over a sequence, as PyTorch `GRU` with one layer; see [`Graph::gru`].
#[derive(Clone, Debug)]
pub struct Gru(Recurrent);

/// The results of a [`Gru`].
#[derive(Clone, Copy, Debug)]
pub struct GruStates {
    /// The state after each step, `[steps, batch, hidden]`.
    pub steps: NodeId,
    /// The state after the step that is computed last, `[batch, hidden]`.
    pub hidden: NodeId,
}

impl Gru {
    /// Creates a layer with the defaults of [`RecurrentConfig`].
    #[track_caller]
    pub fn new(g: &mut Graph, name: &str, inputs: usize, hidden: usize) -> Self {
        RecurrentConfig::new(inputs, hidden).gru(g, name)
    }

    /// Applies the layer to `x [steps, batch, inputs]`, from a state of zeros.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> GruStates {
        let x = x.into();
        g.within(self.0.what(), |g| {
            let zeros = self.0.zeros(g, x);
            self.steps(g, x, zeros, None)
        })
    }

    /// Applies the layer to `x [steps, batch, inputs]` from a state `[batch, hidden]`. With
    /// `lengths [batch]` (`u32` or `i32`) a sequence keeps its state from its length on.
    #[track_caller]
    pub fn forward_from(
        &self,
        g: &mut Graph,
        x: impl Into<Value>,
        hidden: impl Into<Value>,
        lengths: Option<Value>,
    ) -> GruStates {
        let (x, hidden) = (x.into(), hidden.into());
        g.within(self.0.what(), |g| self.steps(g, x, hidden, lengths))
    }

    fn steps(&self, g: &mut Graph, x: Value, hidden: Value, lengths: Option<Value>) -> GruStates {
        let (layer, width) = (&self.0, self.0.sizes[1]);
        let mut gates = layer.project(g, x);
        let mut candidate_bias = g.full(g.dtype(gates), 0.0, &[width]);
        if let Some([input, recurrent]) = layer.biases {
            // The reset gate multiplies the recurrent bias of the candidate.
            let own = g.slice_axis(recurrent, 0, 0, 2 * width);
            let own = g.concat(&[own, candidate_bias], 0);
            candidate_bias = g.slice_axis(recurrent, 0, 2 * width, 3 * width);
            let bias = g.add(input, own);
            gates = g.add(gates, bias);
        }
        let steps = g.gru(
            gates,
            layer.weight_hh,
            candidate_bias,
            hidden,
            lengths,
            true,
            layer.reverse,
        );
        g.named(steps, &layer.name);
        GruStates {
            steps,
            hidden: layer.last(g, steps.into()),
        }
    }
}

/// A plain recurrent layer over a sequence, as PyTorch `RNN` with one layer; see [`Graph::rnn`].
#[derive(Clone, Debug)]
pub struct Rnn {
    layer: Recurrent,
    activation: RnnActivation,
}

/// The results of an [`Rnn`].
#[derive(Clone, Copy, Debug)]
pub struct RnnStates {
    /// The state after each step, `[steps, batch, hidden]`.
    pub steps: NodeId,
    /// The state after the step that is computed last, `[batch, hidden]`.
    pub hidden: NodeId,
}

impl Rnn {
    /// Creates a layer with tanh and the defaults of [`RecurrentConfig`].
    #[track_caller]
    pub fn new(g: &mut Graph, name: &str, inputs: usize, hidden: usize) -> Self {
        RecurrentConfig::new(inputs, hidden).rnn(g, name, RnnActivation::Tanh)
    }

    /// Applies the layer to `x [steps, batch, inputs]`, from a state of zeros.
    #[track_caller]
    pub fn forward(&self, g: &mut Graph, x: impl Into<Value>) -> RnnStates {
        let x = x.into();
        g.within(self.layer.what(), |g| {
            let zeros = self.layer.zeros(g, x);
            self.steps(g, x, zeros, None)
        })
    }

    /// Applies the layer to `x [steps, batch, inputs]` from a state `[batch, hidden]`. With
    /// `lengths [batch]` (`u32` or `i32`) a sequence keeps its state from its length on.
    #[track_caller]
    pub fn forward_from(
        &self,
        g: &mut Graph,
        x: impl Into<Value>,
        hidden: impl Into<Value>,
        lengths: Option<Value>,
    ) -> RnnStates {
        let (x, hidden) = (x.into(), hidden.into());
        g.within(self.layer.what(), |g| self.steps(g, x, hidden, lengths))
    }

    fn steps(&self, g: &mut Graph, x: Value, hidden: Value, lengths: Option<Value>) -> RnnStates {
        let layer = &self.layer;
        let gates = layer.project_biased(g, x);
        let relu = self.activation == RnnActivation::Relu;
        let steps = g.rnn(gates, layer.weight_hh, hidden, lengths, relu, layer.reverse);
        g.named(steps, &layer.name);
        RnnStates {
            steps,
            hidden: layer.last(g, steps.into()),
        }
    }
}
