//! ONNX files of the workloads, for tract and ONNX Runtime. Only the needed messages of the format are declared, with
//! the field numbers of `onnx.proto`.

use prost::Message;

use crate::images::{self, Calls};
use crate::problem::{Kind, Operand, Problem};

/// Version of the operator set, the first one with GELU.
const OPERATORS: i64 = 20;
/// Version of the file format that corresponds to the operator set.
const FORMAT: i64 = 9;

/// Number of the type float in `TensorProto.DataType`.
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
    /// Number in `AttributeProto.AttributeType`: a float is 1, an integer 2, a list of integers 7.
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
    /// Size of a dimension. It is optional so that the encoder writes zero, too.
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

/// Model with `x` as its only input. All other operands are constants in the file.
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
    /// Returns the model of a single call.
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

    /// Returns the model of ResNet-50 with its parameters.
    pub(crate) fn resnet50(operands: &[Operand]) -> Self {
        let mut nodes = Nodes::default();
        let y = images::resnet50(&mut nodes, "x".to_owned());
        nodes.model(operands, &y)
    }

    /// Returns the contents of the ONNX file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.encode_to_vec()
    }
}

/// Nodes that were added so far, each with one result.
#[derive(Default)]
struct Nodes(Vec<Node>);

impl Nodes {
    /// Adds a node; returns the name of its result.
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

/// Returns a value of the graph; without a shape, the shape is inferred.
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
