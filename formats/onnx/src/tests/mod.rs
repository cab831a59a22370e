//! Models that are made here, most of them wrong in one way.

mod sizes;

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

/// `y = relu(x w)` with `x [2, 3]`.
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

/// The only issue of a model.
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
        assert_eq!(notes.contains("those after 28 are not known"), is_newer, "{notes}");
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

    // A cycle: nothing that a node needs comes before it.
    let (_, message) = issue(|g| g.node[0].input[0] = "y".into());
    assert!(message.contains("`y` is made by no node before it"), "{message}");

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
    // As many elements of 64 bits as would take eight bytes if the count of bits began anew at 2^64.
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
    assert_eq!(kind, IssueKind::Unsupported);
    assert!(message.contains("strings"), "{message}");
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

/// A model in a folder whose weights are in another file.
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
        assert!(report.to_string().contains("not in the model's folder"), "{report}");
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(outer.path().join("secret"), folder.join("link")).expect("writable");
        let report = external(&folder, "link", None);
        assert!(report.to_string().contains("out of the model's folder"), "{report}");
    }
    let report = external(&folder, "absent", None);
    assert_eq!(report.issues[0].kind, IssueKind::MissingData, "{report}");
    // Shorter than it takes, and another length than the shape says.
    fs::write(folder.join("short"), [0; 27]).expect("writable");
    assert_eq!(external(&folder, "short", None).issues[0].kind, IssueKind::MissingData);
    assert!(
        external(&folder, "weights", Some("20"))
            .to_string()
            .contains("takes 24 bytes")
    );
}

/// The cache of the Hub has all files of a snapshot as links.
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

    // Another repository, another folder of the same one, and a folder that only has the names.
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
    assert!(message.contains("axis 7 does not exist in 2 dimensions"), "{message}");
}

/// An LSTM of one unit without inputs' weights: `x [rounds, 2, 4]` and the given lengths.
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

/// More rounds than are unrolled, and lengths that only a step knows.
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
    // What no operator computes is unrolled, and so has to be short.
    let forget = lstm(600, vec![int_attribute("input_forget", 1)]);
    let message = forget.preflight(&Dims::new()).to_string();
    assert!(
        message.contains("600 rounds with `input_forget` are not supported, only 1 to 512"),
        "{message}"
    );
}

/// Files with changed, removed, doubled and inserted bytes are refused or imported, and nothing else.
///
/// MEGANEURA_FUZZ_RUNS says how many of each of four models; as many in all are made of more.
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
    // With the cases of the `onnx` package every operator is met.
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
    // Both occur: most changes hit a number of a weight.
    assert!(refused > 0 && supported > 0, "{refused} refused, {supported} supported");
}

/// Returns the results of a model with the given inputs, on the CPU.
fn results(model: &Model, inputs: &[Tensor]) -> Vec<Tensor> {
    constant_results(model, inputs, &[])
}

/// The same with constants.
fn constant_results(model: &Model, inputs: &[Tensor], constants: &[(&str, Tensor)]) -> Vec<Tensor> {
    meganeura_compiler::link_plugins!(meganeura_cpu, meganeura_rules).expect("they are linked");
    let builder = meganeura_compiler::Builder::on(Arc::new(meganeura_cpu::CpuDevice::new(2)));
    let constants = constants.iter().map(|(name, t)| ((*name).to_owned(), t.clone()));
    let runner = Runner::with_constants(model, inputs, &constants.collect(), &builder);
    runner.expect("supported").run(inputs).expect("it runs")
}

#[test]
fn an_initializer_that_is_an_input_is_its_default() {
    let model = changed(|g| g.input.push(value("w", &[3, 2])));
    assert_eq!(model.defaults()[0].name, "w");
    let x = Tensor::f32(&[2, 3], vec![1.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    let found = results(&model, std::slice::from_ref(&x));
    assert_eq!(found[0].to_f32(), [1.0, 2.0, 5.0, 6.0]);
    let w = Tensor::f32(&[3, 2], vec![10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
    let found = constant_results(&model, std::slice::from_ref(&x), &[("w", w)]);
    assert_eq!(found[0].to_f32(), [10.0, 20.0, 50.0, 60.0]);
}

#[test]
fn float_initializers_of_any_size_decide_shapes() {
    let data: Vec<f32> = (0..40).map(|i| (i % 5) as f32).collect();
    let unique = changed(|g| {
        g.node = vec![
            node("Mul", "twice", &["m", "m"], &["p"]),
            node("Unique", "unique", &["p"], &["y"]),
        ];
        g.initializer = vec![floats("m", &[40], &data)];
        g.input.clear();
        g.output = vec![value("y", &[5])];
    });
    assert_eq!(results(&unique, &[])[0].to_f32(), [0.0, 1.0, 4.0, 9.0, 16.0]);
    let large: Vec<f32> = (0..100_000).map(|i| f32::from(u8::from(i == 77_777))).collect();
    let non_zero = changed(|g| {
        g.node = vec![node("NonZero", "non_zero", &["m"], &["y"])];
        g.initializer = vec![floats("m", &[100_000], &large)];
        g.input.clear();
        g.output = vec![value("y", &[1, 1])];
    });
    assert_eq!(results(&non_zero, &[])[0].to_i64(), [77_777]);
}

#[test]
fn scales_of_a_layer_norm_broadcast() {
    for (dims, scale) in [(vec![3, 1], [1.0, 10.0, 100.0]), (vec![2, 1, 1], [1.0, 10.0, 0.0])] {
        let count: i64 = dims.iter().product();
        let model = changed(|g| {
            let mut norm = node("LayerNormalization", "norm", &["x", "scale"], &["y"]);
            norm.attribute = vec![int_attribute("axis", 1)];
            g.node = vec![norm];
            g.initializer = vec![floats("scale", &dims, &scale[..count as usize])];
            g.input = vec![value("x", &[2, 3, 2])];
            g.output = vec![value("y", &[2, 3, 2])];
        });
        let row = [1.0, -1.0, 1.0, -1.0, 1.0, -1.0];
        let found = results(&model, &[Tensor::f32(&[2, 3, 2], [row, row].concat())]);
        for (i, (y, x)) in found[0].to_f32().iter().zip([row, row].concat()).enumerate() {
            let scale = if dims.len() == 2 {
                scale[i / 2 % 3]
            } else {
                scale[i / 6]
            };
            assert!((y - x * scale).abs() < 1e-3 * scale, "{i}: {y}");
        }
    }
}

#[test]
fn a_softmax_over_nothing_is_empty() {
    for op in ["Softmax", "LogSoftmax", "Hardmax"] {
        for (dims, axis) in [([0, 3], 0), ([3, 0], 1)] {
            let model = changed(|g| {
                let mut softmax = node(op, "softmax", &["x"], &["y"]);
                softmax.attribute = vec![int_attribute("axis", axis)];
                g.node = vec![softmax];
                g.initializer.clear();
                g.input = vec![value("x", &dims)];
                g.output = vec![value("y", &dims)];
            });
            let dims = dims.map(|d| d as usize);
            let found = results(&model, &[Tensor::f32(&dims, Vec::new())]);
            assert_eq!((found[0].dims(), found[0].len()), (&dims[..], 0), "{op}");
        }
    }
}

#[test]
fn loops_of_no_rounds_collect_nothing() {
    let body = GraphProto {
        node: vec![
            node("Identity", "go", &["condition"], &["going"]),
            node("Add", "add", &["v", "v"], &["next"]),
            node("Concat", "rows", &["v", "v"], &["collected"]),
        ],
        input: vec![value("i", &[]), value("condition", &[]), value("v", &[3])],
        output: vec![value("going", &[]), value("next", &[3]), value("collected", &[6])],
        ..GraphProto::default()
    };
    let mut body = body;
    body.node[2].attribute = vec![int_attribute("axis", 0)];
    let model = changed(|g| {
        let mut repeat = node("Loop", "loop", &["count", "", "x"], &["last", "all"]);
        repeat.attribute = vec![graph_attribute("body", body)];
        g.node = vec![repeat];
        g.initializer = vec![ints("count", &[0])];
        g.input = vec![value("x", &[3])];
        g.output = vec![value("last", &[3]), value("all", &[0, 6])];
    });
    let found = results(&model, &[Tensor::f32(&[3], vec![1.0, 2.0, 3.0])]);
    assert_eq!(found[0].to_f32(), [1.0, 2.0, 3.0]);
    assert_eq!((found[1].dims(), found[1].element()), (&[0, 6][..], ElementType::F32));
}

/// A bin has a sample for each pixel. The largest is that of the weighted neighbours of the samples.
#[test]
fn regions_decide_their_samples() {
    for (mode, expected) in [("avg", [2.5, 7.5]), ("max", [1.25, 10.0])] {
        let model = changed(|g| {
            let mut align = node("RoiAlign", "align", &["x", "rois", "batch"], &["y"]);
            align.attribute = vec![AttributeProto {
                name: "mode".into(),
                s: mode.as_bytes().to_vec().into(),
                r#type: attribute_type::STRING,
                ..AttributeProto::default()
            }];
            g.node = vec![align];
            // The first region is one pixel between four, the second has four pixels of the lower right corner.
            g.initializer = vec![
                floats("rois", &[2, 4], &[0.5, 0.5, 1.5, 1.5, 1.0, 1.0, 3.0, 3.0]),
                ints("batch", &[0, 0]),
            ];
            g.input = vec![value("x", &[1, 1, 4, 4])];
            g.output = vec![value("y", &[2, 1, 1, 1])];
        });
        let x: Vec<f32> = (0..16).map(|i| i as f32).collect();
        let found = results(&model, &[Tensor::f32(&[1, 1, 4, 4], x)]);
        assert_eq!(found[0].to_f32(), expected, "{mode}");
    }
}

#[test]
fn integers_beyond_32_bits_are_refused_in_a_graph() {
    // The sum of constants is exact, and compared exactly.
    let exact = changed(|g| {
        let mut cast = node("Cast", "cast", &["less"], &["y"]);
        cast.attribute = vec![int_attribute("to", 1)];
        g.node = vec![
            node("Add", "add", &["a", "b"], &["sum"]),
            node("Less", "less", &["b", "sum"], &["less"]),
            cast,
        ];
        g.initializer = vec![ints("a", &[1]), ints("b", &[1 << 40])];
        g.input.clear();
        g.output = vec![value("y", &[1])];
    });
    assert_eq!(results(&exact, &[])[0].to_f32(), [1.0]);
    let (_, message) = issue(|g| {
        g.node = vec![node("Gather", "gather", &["table", "index"], &["y"])];
        g.initializer = vec![ints("table", &[1 << 40, 7])];
        let mut index = value("index", &[1]);
        if let Some(type_proto::Value::Tensor(tensor)) = index.r#type.as_mut().and_then(|t| t.value.as_mut()) {
            tensor.elem_type = 7;
        }
        g.input = vec![index];
        g.output = vec![value("y", &[1])];
    });
    assert!(
        message.contains("`table`: 1099511627776 does not fit into i32"),
        "{message}"
    );
}
