//! Leaves: inputs, parameters, states, scalars and constants.

use std::panic::Location;
use std::sync::Arc;

use super::{ConstantData, FOREIGN_HELP, Graph, Node, NodeId, NodeKind};
use crate::dtype::DType;
use crate::init::Init;
use crate::shape::{Shape, TensorType};

const OVERFLOW_HELP: &str = "check the dimensions: a tensor must fit in memory";

impl Graph {
    /// Adds an `f32` input of this shape, fed with `set_input` before each step.
    #[track_caller]
    pub fn input(&mut self, name: &str, shape: &[usize]) -> NodeId {
        self.input_typed(name, shape, DType::F32)
    }

    /// Adds a `u32` input (token ids, class ids, positions), fed with `set_input_u32`.
    #[track_caller]
    pub fn input_u32(&mut self, name: &str, shape: &[usize]) -> NodeId {
        self.input_typed(name, shape, DType::U32)
    }

    /// Adds an input of any dtype.
    #[track_caller]
    pub fn input_typed(&mut self, name: &str, shape: &[usize], dtype: DType) -> NodeId {
        self.leaf(NodeKind::Input, name, shape, dtype)
    }

    /// Adds a trainable `f32` parameter, zero until it is set.
    #[track_caller]
    pub fn parameter(&mut self, name: &str, shape: &[usize]) -> NodeId {
        self.parameter_with(name, shape, Init::Zeros)
    }

    /// Adds a parameter of any dtype that is not trained, zero until it is set: weights in a narrow
    /// type, or packed ones.
    #[track_caller]
    pub fn parameter_typed(&mut self, name: &str, shape: &[usize], dtype: DType) -> NodeId {
        let kind = NodeKind::Parameter {
            trainable: false,
            init: Init::Zeros,
            packing: None,
        };
        self.leaf(kind, name, shape, dtype)
    }

    /// Adds a trainable `f32` parameter that `Session::initialize_parameters` fills by `init`.
    #[track_caller]
    pub fn parameter_with(&mut self, name: &str, shape: &[usize], init: Init) -> NodeId {
        let kind = NodeKind::Parameter {
            trainable: true,
            init,
            packing: None,
        };
        self.leaf(kind, name, shape, DType::F32)
    }

    /// Freezes (`false`) or unfreezes a parameter: a frozen one gets no gradient, no update and no
    /// optimizer state.
    #[track_caller]
    pub fn trainable(&mut self, parameter: NodeId, trainable: bool) -> NodeId {
        let location = Location::caller();
        if let Err(message) = self.check_owner(parameter) {
            self.reject("trainable", location, message, FOREIGN_HELP);
            return parameter;
        }
        let is_f32 = self.dtype(parameter) == DType::F32;
        match self.nodes.get_mut(parameter.index()).map(|n| &mut n.kind) {
            Some(NodeKind::Parameter { .. }) if trainable && !is_f32 => self.reject(
                "trainable",
                location,
                format!("expected an f32 parameter, found {parameter}: only f32 parameters can be trained"),
                "keep the parameter that is trained in f32",
            ),
            Some(NodeKind::Parameter { trainable: t, .. }) => *t = trainable,
            Some(NodeKind::Poison) => {}
            _ => self.reject(
                "trainable",
                location,
                format!("{parameter} is not a parameter"),
                "pass the value that `parameter` returned",
            ),
        }
        parameter
    }

    /// Adds persistent `f32` data that is not trained, zero in a fresh session.
    #[track_caller]
    pub fn state(&mut self, name: &str, shape: &[usize]) -> NodeId {
        self.state_filled(name, shape, 0.0)
    }

    /// Adds persistent `f32` data with another initial value in every element.
    #[track_caller]
    pub fn state_filled(&mut self, name: &str, shape: &[usize], fill: f32) -> NodeId {
        self.leaf(NodeKind::State { fill }, name, shape, DType::F32)
    }

    /// Adds a scalar that the session supplies at each step; one node per name.
    #[track_caller]
    pub fn scalar_input(&mut self, name: &str, dtype: DType) -> NodeId {
        match self.leaf_names.get(name) {
            Some(&id) if matches!(self.nodes[id.index()].kind, NodeKind::Scalar) && self.dtype(id) == dtype => id,
            _ => self.leaf(NodeKind::Scalar, name, &[], dtype),
        }
    }

    /// Adds an `f32` constant in row-major order.
    #[track_caller]
    pub fn constant(&mut self, data: Vec<f32>, shape: &[usize]) -> NodeId {
        self.constant_data(ConstantData::from_f32(data), shape)
    }

    /// Adds a `u32` constant in row-major order.
    #[track_caller]
    pub fn constant_u32(&mut self, data: Vec<u32>, shape: &[usize]) -> NodeId {
        self.constant_data(ConstantData::from_u32(data), shape)
    }

    /// Adds an `f32` constant of shape `[]`.
    #[track_caller]
    pub fn scalar(&mut self, value: f32) -> NodeId {
        self.constant(vec![value], &[])
    }

    /// Adds a constant scalar of a given dtype (rounded or truncated to it).
    #[track_caller]
    pub fn scalar_of(&mut self, dtype: DType, value: f64) -> NodeId {
        self.constant_data(ConstantData::splat(dtype, value), &[])
    }

    /// Adds a constant of any dtype and shape; `data` must have as many elements as the shape.
    #[track_caller]
    pub fn constant_data(&mut self, data: ConstantData, shape: &[usize]) -> NodeId {
        let location = Location::caller();
        let ty = match Shape::new(shape) {
            Ok(shape) => TensorType::new(data.dtype(), shape),
            Err(message) => return self.poison("constant", location, message, OVERFLOW_HELP),
        };
        if ty.numel() != data.len() {
            let message = format!(
                "shape {} has {} elements, but the data has {}",
                ty.shape,
                ty.numel(),
                data.len()
            );
            return self.poison(
                "constant",
                location,
                message,
                "pass data with the number of elements of the shape",
            );
        }
        self.push(Node {
            kind: NodeKind::Constant(Arc::new(data)),
            inputs: Vec::new(),
            outputs: vec![ty],
            name: None,
            location: Some(location.into()),
        })
    }

    #[track_caller]
    fn leaf(&mut self, kind: NodeKind, name: &str, shape: &[usize], dtype: DType) -> NodeId {
        let location = Location::caller();
        let what = kind.noun();
        let shape = match Shape::new(shape) {
            Ok(s) => s,
            Err(m) => return self.poison(&format!("{what} '{name}'"), location, m, OVERFLOW_HELP),
        };
        if name.is_empty() {
            return self.poison(what, location, "the name is empty".into(), "give it a name");
        }
        let name: Arc<str> = name.into();
        if let Some(&other) = self.leaf_names.get(&name) {
            let message = format!("the name is already taken by {}", self.label(other));
            return self.poison(
                &format!("{what} '{name}'"),
                location,
                message,
                "names of inputs, parameters and states are unique in a graph",
            );
        }
        let id = self.push(Node {
            kind,
            inputs: Vec::new(),
            outputs: vec![TensorType::new(dtype, shape)],
            name: Some(name.clone()),
            location: Some(location.into()),
        });
        self.leaf_names.insert(name, id);
        id
    }
}
