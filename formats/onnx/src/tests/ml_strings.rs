//! Tests of strings: constants, class labels, and the refusal of inputs.

use std::sync::Arc;

use super::ml::{ints, model, parsed, strings};
use super::{int_attribute, node, value};
use crate::proto::{ModelProto, TensorProto, type_proto};
use crate::{Dims, ElementType, IssueKind, LabelKind, Runner, Tensor};

const STRING: i32 = 8;

fn set_type(value: &mut crate::proto::ValueInfoProto, number: i32) {
    if let Some(type_proto::Value::Tensor(tensor)) = value.r#type.as_mut().and_then(|t| t.value.as_mut()) {
        tensor.elem_type = number;
    }
}

fn texts(name: &str, list: &[&str]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: vec![list.len() as i64],
        data_type: STRING,
        string_data: list.iter().map(|text| text.as_bytes().to_vec().into()).collect(),
        ..TensorProto::default()
    }
}

fn runner(model: &ModelProto, inputs: &[Tensor]) -> Runner {
    meganeura_compiler::link_plugins!(meganeura_cpu, meganeura_rules).expect("they are linked");
    let builder = meganeura_compiler::Builder::on(Arc::new(meganeura_cpu::CpuDevice::new(2)));
    Runner::for_inputs(&parsed(model), inputs, &builder).expect("supported")
}

#[test]
fn inputs_of_strings_are_refused_at_the_nodes_that_read_them() {
    for operator in ["OneHotEncoder", "LabelEncoder"] {
        let attributes = [
            strings("cats_strings", &["a", "b"]),
            strings("keys_strings", &["a", "b"]),
        ];
        let mut model = model(operator, &attributes);
        let graph = model.graph.as_mut().expect("a graph");
        set_type(&mut graph.input[0], STRING);
        let model = parsed(&model);
        assert_eq!(model.inputs()[0].element, ElementType::Text);
        let report = model.preflight(&Dims::new());
        let [issue] = report.issues.as_slice() else {
            panic!("{report}")
        };
        assert_eq!((issue.kind, issue.place.as_str()), (IssueKind::Unsupported, "wrong"));
        assert_eq!(issue.operator, format!("ai.onnx.ml.{operator}"));
        assert!(
            issue
                .message
                .contains("expected numbers, found the input `x` of strings"),
            "{issue}"
        );
        assert!(
            issue.message.contains("help: ") && issue.message.contains("OrdinalEncoder"),
            "{issue}"
        );
    }
}

#[test]
fn selected_strings_are_indices_with_labels() {
    // The largest of three columns, as the name of the column, in the shape [2, 1].
    let mut model = model("ArrayFeatureExtractor", &[]);
    let graph = model.graph.as_mut().expect("a graph");
    let mut best = node("ArgMax", "best", &["x"], &["at"]);
    best.attribute = vec![int_attribute("axis", 1)];
    graph.node[0].input = vec!["names".into(), "at".into()];
    graph.node[0].output = vec!["name".into()];
    graph.node.insert(0, best);
    graph.node.push(node("Reshape", "shape", &["name", "sizes"], &["y"]));
    graph.initializer = vec![
        texts("names", &["setosa", "virginica", "setosa"]),
        super::ints("sizes", &[2, 1]),
    ];
    set_type(&mut graph.output[0], STRING);
    let x = Tensor::f32(&[2, 3], vec![0.0, 5.0, 1.0, 2.0, 1.0, 3.0]);
    let mut runner = runner(&model, std::slice::from_ref(&x));
    let found = runner.run(&[x]).expect("it runs");
    assert_eq!(found, [Tensor::i64(&[2, 1], vec![1, 0])]);
    let [labels] = runner.labels() else {
        panic!("{:?}", runner.labels())
    };
    assert_eq!((labels.output.as_str(), labels.kind), ("y", LabelKind::Elements));
    assert_eq!(labels.labels, ["setosa", "virginica"]);
}

#[test]
fn casts_of_strings_are_computed_at_import() {
    // The labels 0 and 1 of a classifier, as strings, and as numbers again.
    let mut model = model("Binarizer", &[]);
    let graph = model.graph.as_mut().expect("a graph");
    let cast = |name: &str, from: &str, to: &str, number: i64| {
        let mut cast = node("Cast", name, &[from], &[to]);
        cast.attribute = vec![int_attribute("to", number)];
        cast
    };
    let mut best = node("ArgMax", "best", &["x"], &["at"]);
    best.attribute = vec![int_attribute("axis", 1)];
    let mut gather = node("Gather", "gather", &["numbers", "at"], &["number"]);
    gather.attribute = vec![int_attribute("axis", 0)];
    graph.node = vec![
        best,
        cast("text", "at", "text", STRING.into()),
        cast("back", "text", "back", 1),
        cast("known", "constant", "numbers", 7),
        gather,
        cast("third", "floats", "names", STRING.into()),
    ];
    graph.initializer = vec![
        texts("constant", &["100", "-7", "2.0"]),
        super::floats("floats", &[2], &[0.5, 3.0]),
    ];
    graph.output = ["text", "back", "number", "names"]
        .map(|name| value(name, &[]))
        .to_vec();
    let x = Tensor::f32(&[2, 3], vec![0.0, 5.0, 1.0, 2.0, 1.0, 3.0]);
    let mut runner = runner(&model, std::slice::from_ref(&x));
    let found = runner.run(&[x]).expect("it runs");
    assert_eq!(found[0].to_i64(), [1, 2]);
    assert_eq!(found[1].to_f32(), [1.0, 2.0]);
    assert_eq!(found[2].to_i64(), [-7, 2]);
    let labels: Vec<&[String]> = runner.labels().iter().map(|l| l.labels.as_slice()).collect();
    assert_eq!(
        labels,
        [
            &["0", "1", "2"].map(String::from)[..],
            &["0.5", "3"].map(String::from)[..]
        ]
    );
}

#[test]
fn strings_are_refused_by_other_operators() {
    let mut model = model(
        "LabelEncoder",
        &[ints("keys_int64s", &[1]), strings("values_strings", &["a"])],
    );
    let graph = model.graph.as_mut().expect("a graph");
    set_type(&mut graph.input[0], 7);
    graph.node.push(node("Add", "sum", &["y", "y"], &["s"]));
    graph.output = vec![value("s", &[])];
    let report = parsed(&model).preflight(&Dims::new());
    let [issue] = report.issues.as_slice() else {
        panic!("{report}")
    };
    assert_eq!(issue.place, "sum");
    assert!(issue.message.contains("expected numbers, found strings"), "{issue}");
}
