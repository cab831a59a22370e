//! Contexts in which gradient rules run.

use std::ops::{Deref, DerefMut};

use crate::attrs::Attrs;
use crate::graph::{Graph, Value};

/// A call to differentiate.
#[derive(Clone, Debug)]
pub(crate) struct GradCall<'a> {
    pub(crate) attrs: &'a Attrs,
    pub(crate) inputs: Vec<Value>,
    pub(crate) outputs: Vec<Value>,
    pub(crate) grads: Vec<Option<Value>>,
    pub(crate) needs: Vec<bool>,
}

/// Context of a gradient rule: the graph (through deref), the call and the gradients of its
/// results.
pub struct GradCx<'a> {
    pub(crate) graph: &'a mut Graph,
    pub(crate) call: &'a GradCall<'a>,
}

impl GradCx<'_> {
    /// Returns the attributes of the call.
    pub fn attrs(&self) -> &Attrs {
        self.call.attrs
    }

    /// Returns operand `i` of the forward call.
    pub fn operand(&self, i: usize) -> Value {
        self.call.inputs[i]
    }

    /// Returns the number of operands.
    pub fn arity(&self) -> usize {
        self.call.inputs.len()
    }

    /// Returns result `port` of the forward call.
    pub fn result(&self, port: usize) -> Value {
        self.call.outputs[port]
    }

    /// Returns `true` if the gradient of operand `i` will be used; gradients of other operands may
    /// be `None`.
    pub fn needs(&self, i: usize) -> bool {
        self.call.needs[i]
    }

    /// Returns the gradient of a result, `None` if the loss does not depend on it.
    pub fn try_grad(&self, port: usize) -> Option<Value> {
        self.call.grads[port]
    }

    /// Computes the gradient of a result, zeros if the loss does not depend on it.
    pub fn grad(&mut self, port: usize) -> Value {
        if let Some(g) = self.call.grads[port] {
            return g;
        }
        let result = self.result(port);
        let (dtype, shape) = (self.graph.dtype(result), self.graph.shape(result).to_vec());
        self.graph.full(dtype, 0.0, &shape).into()
    }
}

impl Deref for GradCx<'_> {
    type Target = Graph;
    fn deref(&self) -> &Graph {
        self.graph
    }
}

impl DerefMut for GradCx<'_> {
    fn deref_mut(&mut self) -> &mut Graph {
        self.graph
    }
}
