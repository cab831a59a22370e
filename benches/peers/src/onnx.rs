//! Workloads as ONNX models, which tract and ONNX Runtime read. Messages are declared as far as they are used, with the numbers of
//! fields of `onnx.proto`.

use prost::Message;

use crate::images::{self, Calls};
use crate::problem::{Kind, Operand, Problem};

/// The version of the operators, the first that has GELU.
const OPERATORS: i64 = 20;
/// The version of the format that belongs to it.
const FORMAT: i64 = 9;

/// Of `TensorProto.DataType`.
const FLOAT: i32 = 1;

#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(float, tag = "2")]
    f: f32,
    #[prost(int64, tag = "3")]
    i: i64,
    #[prost(int64, repeated, tag = "8")]
    ints: Vec<i64>,
    /// Of `AttributeProto.AttributeType`: a float is 1, an integer 2, several integers are 7.
    #[prost(int32, tag = "20")]
    kind: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Node {
    #[prost(string, repeated, tag = "1")]
    inputs: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    outputs: Vec<String>,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    operator: String,
    #[prost(message, repeated, tag = "5")]
    attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
struct Constant {
    #[prost(int64, repeated, tag = "1")]
    dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    data_type: i32,
    #[prost(string, tag = "8")]
    name: String,
    #[prost(bytes = "vec", tag = "9")]
    data: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Dimension {
    /// Written where it is zero, too, as a choice.
    #[prost(int64, optional, tag = "1")]
    size: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Shape {
    #[prost(message, repeated, tag = "1")]
    dims: Vec<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorType {
    #[prost(int32, tag = "1")]
    element: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<Shape>,
}

#[derive(Clone, PartialEq, Message)]
struct Type {
    #[prost(message, optional, tag = "1")]
    tensor: Option<TensorType>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    r#type: Option<Type>,
}

#[derive(Clone, PartialEq, Message)]
struct Graph {
    #[prost(message, repeated, tag = "1")]
    nodes: Vec<Node>,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, repeated, tag = "5")]
    constants: Vec<Constant>,
    #[prost(message, repeated, tag = "11")]
    inputs: Vec<Value>,
    #[prost(message, repeated, tag = "12")]
    outputs: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct OperatorSet {
    #[prost(int64, tag = "2")]
    version: i64,
}

/// A model with `x` as its only input; all other operands are constants in it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Model {
    #[prost(int64, tag = "1")]
    format: i64,
    #[prost(message, optional, tag = "7")]
    graph: Option<Graph>,
    #[prost(message, repeated, tag = "8")]
    operators: Vec<OperatorSet>,
}

impl Model {
    /// A single call.
    pub(crate) fn of(problem: &Problem) -> Self {
        let mut nodes = Nodes::default();
        let y = match problem.kind {
            Kind::Matmul => nodes.node("MatMul", &["x", "w1"], []),
            Kind::Mlp => {
                let h = nodes.node("MatMul", &["x", "w1"], []);
                let h = nodes.node("Relu", &[&h], []);
                nodes.node("MatMul", &[&h, "w2"], [])
            }
            Kind::Softmax => nodes.node("Softmax", &["x"], [int("axis", -1)]),
            Kind::LayerNorm => {
                let attributes = [int("axis", -1), float("epsilon", crate::kernels::EPS)];
                nodes.node("LayerNormalization", &["x", "w1", "w2"], attributes)
            }
            Kind::Gelu => nodes.node("Gelu", &["x"], []),
            Kind::Conv => nodes.node("Conv", &["x", "w1"], [ints("pads", &[1; 4])]),
        };
        nodes.model(&problem.operands, &y)
    }

    /// ResNet-50 with an image and its parameters.
    pub(crate) fn resnet50(operands: &[Operand]) -> Self {
        let mut nodes = Nodes::default();
        let y = images::resnet50(&mut nodes, "x".to_owned());
        nodes.model(operands, &y)
    }

    /// The contents of a file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.encode_to_vec()
    }
}

/// Nodes so far, each with one result.
#[derive(Default)]
struct Nodes(Vec<Node>);

impl Nodes {
    /// Adds a node; the name of its result.
    fn node<const N: usize>(&mut self, operator: &str, inputs: &[&str], attributes: [Attribute; N]) -> String {
        let result = format!("v{}", self.0.len());
        self.0.push(Node {
            name: result.clone(),
            operator: operator.to_owned(),
            inputs: inputs.iter().map(|&name| name.to_owned()).collect(),
            outputs: vec![result.clone()],
            attributes: attributes.into(),
        });
        result
    }

    fn model(self, operands: &[Operand], result: &str) -> Model {
        let (inputs, constants): (Vec<_>, Vec<_>) = operands.iter().partition(|o| o.name == "x");
        let graph = Graph {
            nodes: self.0,
            name: "workload".to_owned(),
            constants: constants.into_iter().map(constant).collect(),
            inputs: inputs.iter().map(|o| value(&o.name, Some(&o.shape))).collect(),
            outputs: vec![value(result, None)],
        };
        Model {
            format: FORMAT,
            graph: Some(graph),
            operators: vec![OperatorSet { version: OPERATORS }],
        }
    }
}

impl Calls for Nodes {
    type Value = String;

    fn conv(&mut self, x: String, name: &str, stride: usize, padding: usize) -> String {
        let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
        let attributes = [ints("strides", &[stride; 2]), ints("pads", &[padding; 4])];
        self.node("Conv", &[&x, &weight, &bias], attributes)
    }

    fn max_pool(&mut self, x: String) -> String {
        let attributes = [
            ints("kernel_shape", &[3; 2]),
            ints("strides", &[2; 2]),
            ints("pads", &[1; 4]),
        ];
        self.node("MaxPool", &[&x], attributes)
    }

    fn relu(&mut self, x: String) -> String {
        self.node("Relu", &[&x], [])
    }

    fn add(&mut self, x: String, y: String) -> String {
        self.node("Add", &[&x, &y], [])
    }

    fn classify(&mut self, x: String, name: &str) -> String {
        let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
        let x = self.node("GlobalAveragePool", &[&x], []);
        let x = self.node("Flatten", &[&x], []);
        self.node("Gemm", &[&x, &weight, &bias], [])
    }
}

fn int(name: &str, value: i64) -> Attribute {
    Attribute {
        name: name.to_owned(),
        i: value,
        kind: 2,
        ..Attribute::default()
    }
}

fn float(name: &str, value: f32) -> Attribute {
    Attribute {
        name: name.to_owned(),
        f: value,
        kind: 1,
        ..Attribute::default()
    }
}

fn ints(name: &str, values: &[usize]) -> Attribute {
    Attribute {
        name: name.to_owned(),
        ints: values.iter().map(|&value| value as i64).collect(),
        kind: 7,
        ..Attribute::default()
    }
}

fn constant(operand: &Operand) -> Constant {
    Constant {
        name: operand.name.clone(),
        dims: operand.shape.iter().map(|&size| size as i64).collect(),
        data_type: FLOAT,
        data: operand.bytes(),
    }
}

/// A value of the graph; its shape is found where none is given.
fn value(name: &str, shape: Option<&[usize]>) -> Value {
    let dimension = |&size: &usize| Dimension {
        size: Some(size as i64),
    };
    let tensor = TensorType {
        element: FLOAT,
        shape: shape.map(|shape| Shape {
            dims: shape.iter().map(dimension).collect(),
        }),
    };
    Value {
        name: name.to_owned(),
        r#type: Some(Type { tensor: Some(tensor) }),
    }
}
