//! Tests with generated models, most of which have one error.

mod functions;
mod int64;
mod ml;
mod ml_strings;
mod results;
mod sizes;
mod stages;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use meganeura_core::random::SplitMix64;
use prost::Message;

use crate::proto::{
    AttributeProto, DimensionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto,
    TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto, attribute_type, dimension_proto,
    type_proto,
};
use crate::{Dims, ElementType, Error, IssueKind, Model, Report, Runner, Tensor};

fn value(name: &str, dims: &[i64]) -> ValueInfoProto {
    let dim = dims.iter().map(|&size| DimensionProto {
        value: Some(dimension_proto::Value::DimValue(size)),
    });
    let tensor = TensorTypeProto {
        elem_type: 1,
        shape: Some(TensorShapeProto { dim: dim.collect() }),
    };
    ValueInfoProto {
        name: name.into(),
        r#type: Some(TypeProto {
            value: Some(type_proto::Value::Tensor(tensor)),
        }),
    }
}

fn node(op: &str, name: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: op.into(),
        name: name.into(),
        input: inputs.iter().map(|s| (*s).to_owned()).collect(),
        output: outputs.iter().map(|s| (*s).to_owned()).collect(),
        ..NodeProto::default()
    }
}

fn floats(name: &str, dims: &[i64], data: &[f32]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: dims.to_vec(),
        data_type: 1,
        float_data: data.to_vec(),
        ..TensorProto::default()
    }
}

fn ints(name: &str, data: &[i64]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: vec![data.len() as i64],
        data_type: 7,
        int64_data: data.to_vec(),
        ..TensorProto::default()
    }
}

fn int_attribute(name: &str, i: i64) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        i,
        r#type: attribute_type::INT,
        ..AttributeProto::default()
    }
}

fn graph_attribute(name: &str, graph: GraphProto) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        g: Some(Box::new(graph)),
        r#type: attribute_type::GRAPH,
        ..AttributeProto::default()
    }
}

/// Returns the model `y = relu(x w)` with `x [2, 3]`.
fn small() -> ModelProto {
    ModelProto {
        ir_version: 8,
        opset_import: vec![OperatorSetIdProto {
            domain: String::new(),
            version: 17,
        }],
        graph: Some(Box::new(GraphProto {
            node: vec![
                node("MatMul", "product", &["x", "w"], &["p"]),
                node("Relu", "relu", &["p"], &["y"]),
            ],
            initializer: vec![floats("w", &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])],
            input: vec![value("x", &[2, 3])],
            output: vec![value("y", &[2, 2])],
            ..GraphProto::default()
        })),
        ..ModelProto::default()
    }
}

fn changed(change: impl FnOnce(&mut GraphProto)) -> Model {
    let mut model = small();
    change(model.graph.as_mut().expect("a graph"));
    Model::from_bytes(model.encode_to_vec()).expect("a model")
}

fn report(change: impl FnOnce(&mut GraphProto)) -> Report {
    changed(change).preflight(&Dims::new())
}

/// Returns the only issue of a model.
fn issue(change: impl FnOnce(&mut GraphProto)) -> (IssueKind, String) {
    let report = report(change);
    let [issue] = report.issues.as_slice() else {
        panic!("{report}")
    };
    (issue.kind, issue.to_string())
}

#[test]
fn operators_that_are_newer_than_this_version_are_noted() {
    for (version, is_newer) in [(28, false), (9999, true)] {
        let mut model = small();
        model.opset_import[0].version = version;
        let model = Model::from_bytes(model.encode_to_vec()).expect("a model");
        let notes = model.preflight(&Dims::new()).notes.join("\n");
        assert_eq!(notes.contains("versions after 28 are unknown"), is_newer, "{notes}");
    }
}

#[test]
fn a_model_is_imported_with_the_names_of_its_file() {
    let model = changed(|_| {});
    let import = model.import(&crate::ImportOptions::default()).expect("supported");
    assert_eq!(
        import.graph.leaf_named("w").map(|id| import.graph.shape(id).to_vec()),
        Some(vec![3, 2])
    );
    assert_eq!(
        (import.inputs[0].name.as_str(), import.outputs[0].dims.as_slice()),
        ("x", &[2, 2][..])
    );
    let names: Vec<_> = import
        .graph
        .nodes()
        .iter()
        .filter(|n| n.is_op())
        .map(|n| n.name.clone())
        .collect();
    assert_eq!(names, [Some("product".into()), Some("relu".into())]);
}

#[test]
fn what_contradicts_itself_is_named() {
    let (kind, message) = issue(|g| g.node[0].input[0] = "nothing".into());
    assert_eq!(kind, IssueKind::Broken);
    assert!(
        message.contains("MatMul `product`") && message.contains("`nothing`"),
        "{message}"
    );

    // A cycle: no earlier node computes the operand.
    let (_, message) = issue(|g| g.node[0].input[0] = "y".into());
    assert!(message.contains("no earlier node computes its input `y`"), "{message}");

    let twice = report(|g| g.node[1].output[0] = "p".into()).to_string();
    assert!(
        twice.contains("Relu `relu`: another value has the name of its result `p`"),
        "{twice}"
    );

    let report = report(|g| {
        g.initializer.push(floats("w", &[3, 2], &[0.0; 6]));
        g.output[0].name = "z".into();
    });
    assert!(report.is_broken(), "{report}");
    assert_eq!(report.issues.len(), 2, "{report}");
}

#[test]
fn data_that_do_not_fit_are_named() {
    let (kind, message) = issue(|g| g.initializer[0].dims = vec![3, 3]);
    assert_eq!(kind, IssueKind::Broken);
    assert!(message.contains("`w`") && message.contains("9 elements"), "{message}");
    let (_, message) = issue(|g| g.initializer[0].dims = vec![1 << 62, 4]);
    assert!(message.contains("larger than any memory"), "{message}");
    // The number of 64-bit elements would need only eight bytes if the count of bits wrapped at 2^64.
    let (_, message) = issue(|g| {
        g.initializer[0] = TensorProto {
            name: "w".into(),
            dims: vec![(1 << 58) + 1],
            data_type: 11,
            raw_data: vec![0; 8].into(),
            ..TensorProto::default()
        };
    });
    assert!(message.contains("larger than any memory"), "{message}");
    let (_, message) = issue(|g| g.initializer[0].dims = vec![-1, 4]);
    assert!(message.contains("negative"), "{message}");
    let (kind, message) = issue(|g| g.initializer[0].data_type = 8);
    assert_eq!(kind, IssueKind::Broken);
    assert!(
        message.contains("string [3, 2]: expected 6 elements, found 0"),
        "{message}"
    );
    let (_, message) = issue(|g| g.input[0] = value("x", &[1 << 31, 1 << 31, 1 << 31]));
    assert!(message.contains("`x`"), "{message}");
}

#[test]
fn everything_that_is_missing_is_named_at_once() {
    let report = report(|g| {
        g.node.insert(0, node("Wobble", "first", &["x"], &["a"]));
        g.node.insert(1, node("Relu", "skipped", &["a"], &["b"]));
        let mut foreign = node("Relu", "second", &["b"], &["c"]);
        foreign.domain = "com.example".into();
        g.node.insert(2, foreign);
        let branch = GraphProto {
            node: vec![node("Wibble", "inner", &["a"], &["r"])],
            output: vec![value("r", &[])],
            ..GraphProto::default()
        };
        let mut choose = node("If", "choose", &["b"], &["d"]);
        choose.attribute = vec![
            graph_attribute("then_branch", branch.clone()),
            graph_attribute("else_branch", branch),
        ];
        g.node.insert(3, choose);
    });
    let named: Vec<&str> = report.issues.iter().map(|i| i.place.as_str()).collect();
    assert_eq!(named, ["first", "inner", "second"], "{report}");
    assert!(!report.is_broken() && !report.is_supported());
    let text = report.to_string();
    assert!(text.contains("com.example.Relu `second`"), "{text}");
}

#[test]
fn shapes_that_depend_on_data_are_refused_with_the_operand() {
    let (kind, message) = issue(|g| {
        g.input.push(ValueInfoProto {
            name: "shape".into(),
            ..value("shape", &[1])
        });
        g.node[1] = node("Reshape", "reshape", &["p", "shape"], &["y"]);
    });
    assert_eq!(kind, IssueKind::Unsupported);
    assert!(
        message.contains("`reshape`") && message.contains("`shape`") && message.contains("depends on the data"),
        "{message}"
    );
}

#[test]
fn deep_nesting_and_endless_functions_end() {
    let mut inner = GraphProto {
        node: vec![node("Relu", "leaf", &["p"], &["r"])],
        output: vec![value("r", &[])],
        ..GraphProto::default()
    };
    for depth in 0..20 {
        let mut choose = node("If", &format!("if{depth}"), &["condition"], &["r"]);
        choose.attribute = vec![
            graph_attribute("then_branch", inner.clone()),
            graph_attribute("else_branch", inner.clone()),
        ];
        inner = GraphProto {
            node: vec![choose],
            output: vec![value("r", &[])],
            ..GraphProto::default()
        };
        // A graph of 2^20 leaves would be too large to write.
        if depth > 6 {
            inner.node[0].attribute[1].g = Some(Box::new(GraphProto {
                node: vec![node("Relu", "leaf", &["p"], &["r"])],
                output: vec![value("r", &[])],
                ..GraphProto::default()
            }));
        }
    }
    let report = report(|g| {
        let condition = TensorProto {
            name: "condition".into(),
            data_type: 9,
            int32_data: vec![1],
            ..TensorProto::default()
        };
        g.initializer.push(condition);
        let mut choose = node("If", "outer", &["condition"], &["y"]);
        choose.attribute = vec![
            graph_attribute("then_branch", inner.clone()),
            graph_attribute("else_branch", inner),
        ];
        g.node[1] = choose;
    });
    assert!(report.is_supported(), "{report}");

    let mut model = small();
    model.functions = vec![crate::proto::FunctionProto {
        name: "Again".into(),
        domain: "local".into(),
        input: vec!["a".into()],
        output: vec!["b".into()],
        node: vec![NodeProto {
            domain: "local".into(),
            ..node("Again", "again", &["a"], &["b"])
        }],
        ..crate::proto::FunctionProto::default()
    }];
    let graph = model.graph.as_mut().expect("a graph");
    graph.node[1] = NodeProto {
        domain: "local".into(),
        ..node("Again", "call", &["p"], &["y"])
    };
    let model = Model::from_bytes(model.encode_to_vec()).expect("a model");
    let report = model.preflight(&Dims::new());
    assert!(report.to_string().contains("calls itself"), "{report}");
}

/// Returns the report of a model in a folder whose weights are in another file.
fn external(folder: &Path, location: &str, length: Option<&str>) -> Report {
    let mut model = small();
    let graph = model.graph.as_mut().expect("a graph");
    let entry = |key: &str, value: &str| StringStringEntryProto {
        key: key.into(),
        value: value.into(),
    };
    graph.initializer[0] = TensorProto {
        name: "w".into(),
        dims: vec![3, 2],
        data_type: 1,
        data_location: 1,
        external_data: vec![entry("location", location), entry("offset", "4")],
        ..TensorProto::default()
    };
    if let Some(length) = length {
        graph.initializer[0].external_data.push(entry("length", length));
    }
    let path = folder.join("model.onnx");
    fs::write(&path, model.encode_to_vec()).expect("writable");
    Model::open(path).expect("a model").preflight(&Dims::new())
}

#[test]
fn external_data_come_from_the_folder_of_the_model_alone() {
    let outer = tempfile::tempdir().expect("a folder");
    let folder = outer.path().join("model");
    fs::create_dir(&folder).expect("writable");
    fs::write(outer.path().join("secret"), [0; 64]).expect("writable");
    fs::write(folder.join("weights"), [0; 28]).expect("writable");
    assert!(external(&folder, "weights", None).is_supported());
    assert!(external(&folder, "./weights", Some("24")).is_supported());

    for location in ["../secret", "/etc/passwd", "a/../../secret", ""] {
        let report = external(&folder, location, None);
        assert!(report.is_broken(), "{location}: {report}");
        assert!(report.to_string().contains("outside of the model's folder"), "{report}");
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(outer.path().join("secret"), folder.join("link")).expect("writable");
        let report = external(&folder, "link", None);
        assert!(report.to_string().contains("out of the model's folder"), "{report}");
    }
    let report = external(&folder, "absent", None);
    assert_eq!(report.issues[0].kind, IssueKind::MissingData, "{report}");
    // A file that is too short, and a length that does not match the shape.
    fs::write(folder.join("short"), [0; 27]).expect("writable");
    assert_eq!(external(&folder, "short", None).issues[0].kind, IssueKind::MissingData);
    assert!(
        external(&folder, "weights", Some("20"))
            .to_string()
            .contains("expected 24 bytes")
    );
}

/// External data may be links to blobs of the same Hub repository, as in the snapshots of the Hub's cache.
#[cfg(unix)]
#[test]
fn external_data_may_be_blobs_of_the_same_hub_repository() {
    use std::os::unix::fs::symlink;

    let outer = tempfile::tempdir().expect("a folder");
    let repository = outer.path().join("models--owner--name");
    let folder = repository.join("snapshots/0123abcd/onnx");
    fs::create_dir_all(&folder).expect("writable");
    fs::create_dir(repository.join("blobs")).expect("writable");
    fs::write(repository.join("blobs/c0ffee"), [0; 28]).expect("writable");
    symlink("../../../blobs/c0ffee", folder.join("model.onnx_data")).expect("writable");
    let report = external(&folder, "model.onnx_data", None);
    assert!(report.is_supported(), "{report}");

    // Another repository, another folder of the same one, and a folder with the same names.
    let other = outer.path().join("models--owner--other/blobs");
    fs::create_dir_all(&other).expect("writable");
    fs::write(other.join("c0ffee"), [0; 28]).expect("writable");
    symlink(other.join("c0ffee"), folder.join("other")).expect("writable");
    fs::write(repository.join("secret"), [0; 28]).expect("writable");
    symlink("../../../secret", folder.join("secret")).expect("writable");
    for location in ["other", "secret"] {
        let report = external(&folder, location, None).to_string();
        assert!(
            report.contains("out of the model's folder") && report.contains("models--*/blobs"),
            "{report}"
        );
    }
    let plain = outer.path().join("name");
    fs::create_dir_all(plain.join("snapshots/h")).expect("writable");
    fs::create_dir(plain.join("blobs")).expect("writable");
    fs::write(plain.join("blobs/c0ffee"), [0; 28]).expect("writable");
    symlink("../../blobs/c0ffee", plain.join("snapshots/h/weights")).expect("writable");
    let report = external(&plain.join("snapshots/h"), "weights", None);
    assert!(report.is_broken(), "{report}");
}

#[test]
fn files_that_are_no_models_are_said_to_be_none() {
    for bytes in [&b""[..], b"not a model", b"\xff\xff\xff\xff\xff\xff"] {
        let error = Model::from_bytes(bytes).expect_err("no model");
        assert!(matches!(error, Error::Broken { .. }), "{error}");
    }
    let mut old = small();
    old.ir_version = 2;
    let error = Model::from_bytes(old.encode_to_vec()).expect_err("too old");
    assert!(error.to_string().contains("version 2"), "{error}");
    assert!(matches!(Model::open("/nowhere/model.onnx"), Err(Error::Io { .. })));
}

#[test]
fn attributes_of_another_type_are_named() {
    let (_, message) = issue(|g| {
        let mut softmax = node("Softmax", "soft", &["p"], &["y"]);
        softmax.attribute = vec![AttributeProto {
            r#type: attribute_type::STRING,
            ..int_attribute("axis", 1)
        }];
        g.node[1] = softmax;
    });
    assert!(message.contains("attribute `axis` is not an integer"), "{message}");
    let (_, message) = issue(|g| {
        let mut softmax = node("Softmax", "soft", &["p"], &["y"]);
        softmax.attribute = vec![int_attribute("axis", 7)];
        g.node[1] = softmax;
    });
    assert!(message.contains("axis 7 is out of range for 2 dimensions"), "{message}");
}

/// Returns an LSTM of one unit without input weights: `x [rounds, 2, 4]` and the lengths as an input.
fn lstm(rounds: i64, attributes: Vec<AttributeProto>) -> Model {
    changed(|g| {
        let mut lstm = node("LSTM", "lstm", &["x", "w", "r", "", "lengths"], &["y", "h"]);
        lstm.attribute = vec![int_attribute("hidden_size", 1)];
        lstm.attribute.extend(attributes);
        let mut lengths = value("lengths", &[2]);
        if let Some(type_proto::Value::Tensor(tensor)) = lengths.r#type.as_mut().and_then(|t| t.value.as_mut()) {
            tensor.elem_type = 6;
        }
        let identity = |row: usize| (0..4).map(move |column| f32::from(u8::from(row == column)));
        let w: Vec<f32> = (0..4).flat_map(identity).collect();
        g.node = vec![lstm];
        g.initializer = vec![
            floats("w", &[1, 4, 4], &w),
            floats("r", &[1, 4, 1], &[0.5, -0.25, 0.75, 1.0]),
        ];
        g.input = vec![value("x", &[rounds, 2, 4]), lengths];
        g.output = vec![value("y", &[rounds, 1, 2, 1]), value("h", &[1, 2, 1])];
    })
}

/// On the CPU, layers may have more rounds than can be unrolled, and lengths that are computed in a step.
#[test]
fn long_sequences_run_on_the_cpu() {
    const ROUNDS: usize = 600;
    meganeura_compiler::link_plugins!(meganeura_cpu, meganeura_rules).expect("they are linked");
    let builder = meganeura_compiler::Builder::on(Arc::new(meganeura_cpu::CpuDevice::new(2)));
    let mut runner = Runner::new(&lstm(ROUNDS as i64, Vec::new()), &Dims::new(), &builder).expect("supported");
    let mut rng = SplitMix64::new(3);
    let x: Vec<f32> = (0..ROUNDS * 8).map(|_| (rng.unit() * 4.0 - 2.0) as f32).collect();
    for lengths in [[600, 513], [7, 0]] {
        let inputs = [
            Tensor::f32(&[ROUNDS, 2, 4], x.clone()),
            Tensor::integers(ElementType::I32, &[2], lengths.to_vec()),
        ];
        let results = runner.run(&inputs).expect("it runs");
        let (y, last) = (results[0].to_f32(), results[1].to_f32());
        for batch in 0..2 {
            let (mut h, mut c) = (0.0f64, 0.0f64);
            for round in 0..ROUNDS {
                let gate = |k: usize, r: f64| f64::from(x[(round * 2 + batch) * 4 + k]) + r * h;
                let open = |x: f64| 1.0 / (1.0 + (-x).exp());
                let there = (round as i64) < lengths[batch];
                if there {
                    let [i, o, f] = [gate(0, 0.5), gate(1, -0.25), gate(2, 0.75)].map(open);
                    c = f * c + i * gate(3, 1.0).tanh();
                    h = o * c.tanh();
                }
                let wanted = if there { h } else { 0.0 };
                let found = f64::from(y[round * 2 + batch]);
                assert!((found - wanted).abs() < 1e-5, "{round}: {found}, not {wanted}");
            }
            assert!((f64::from(last[batch]) - h).abs() < 1e-5, "{}, not {h}", last[batch]);
        }
    }
    // Layers without an operator are unrolled, and so must be short.
    let forget = lstm(600, vec![int_attribute("input_forget", 1)]);
    let message = forget.preflight(&Dims::new()).to_string();
    assert!(
        message.contains("600 rounds with `input_forget` are not supported, only 1 to 512"),
        "{message}"
    );
}

/// Importing files with changed, removed, duplicated or inserted bytes neither panics nor hangs.
///
/// MEGANEURA_FUZZ_RUNS is the number of mutations of each of four models; the same number in total is made of further models.
#[test]
fn mutated_models_neither_panic_nor_hang() {
    let count: usize = std::env::var("MEGANEURA_FUZZ_RUNS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(2000);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut seeds = vec![small().encode_to_vec()];
    for name in [
        "attention",
        "convnet",
        "function",
        "gather_block_quantized",
        "group_query_attention",
        "matmul_nbits",
        "multi_head_attention",
        "quantized_attention",
        "quantized_ops",
        "sequence",
    ] {
        seeds.push(fs::read(folder.join(name).join("model.onnx")).expect("a model"));
    }
    // The cases of the `onnx` package contain every operator.
    if let Some(cases) = std::env::var_os("MEGANEURA_ONNX_CASES") {
        let cases = fs::read_dir(Path::new(&cases).join("node")).expect("a folder of cases");
        for case in cases {
            let path = case.expect("an entry").path().join("model.onnx");
            seeds.push(fs::read(path).expect("a model"));
        }
    }
    let dims = Dims::new().bind("batch", 2).bind("rounds", 3);
    let mut rng = SplitMix64::new(1);
    let (mut refused, mut supported) = (0, 0);
    for seed in &seeds {
        for _ in 0..count.min(4 * count / seeds.len() + 1) {
            let mut bytes = seed.clone();
            for _ in 0..1 + rng.below(4) {
                let at = rng.below(bytes.len());
                match rng.below(5) {
                    0 => bytes[at] = rng.next_u64() as u8,
                    1 => bytes[at] ^= 1 << (rng.below(8)),
                    2 => drop(bytes.remove(at)),
                    3 => bytes.insert(at, rng.next_u64() as u8),
                    _ => {
                        let end = (at + rng.below(32)).min(bytes.len());
                        let part = bytes[at..end].to_vec();
                        bytes.splice(at..at, part);
                    }
                }
            }
            match Model::from_bytes(bytes) {
                Ok(model) if model.preflight(&dims).is_supported() => supported += 1,
                _ => refused += 1,
            }
        }
    }
    // Both outcomes occur, because most changes affect a number of a weight.
    assert!(refused > 0 && supported > 0, "{refused} refused, {supported} supported");
}
