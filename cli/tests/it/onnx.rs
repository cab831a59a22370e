//! Tests of checking, running and exporting ONNX models.

use std::fs;
use std::path::{Path, PathBuf};

use super::{meganeura, run};

/// Returns the folder of models with inputs, and results of ONNX Runtime.
fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/onnx/tests/data")
}

fn model(name: &str) -> String {
    data().join(name).join("model.onnx").display().to_string()
}

/// Returns the exit code and the text on both streams.
fn call(args: &[&str]) -> (Option<i32>, String, String) {
    let (output, out, err) = run(&mut meganeura(args));
    (output.status.code(), out, err)
}

#[test]
fn results_agree_with_those_of_onnx_runtime() {
    let exact = [
        "convnet",
        "sequence",
        "recurrent",
        "function",
        "decoder",
        "attention",
        "multi_head_attention",
        "group_query_attention",
        "matmul_nbits",
    ]
    .map(|name| (name, "1e-4"));
    // ONNX Runtime rounds inputs and states of a quantised layer to 8 bits; a unit of these is 1/255 of their range.
    let rounded = ["quantized_lstm", "quantized_ops"].map(|name| (name, "1e-2"));
    for (name, tolerance) in exact.into_iter().chain(rounded) {
        let folder = data().join(name).display().to_string();
        let options = ["--against", &folder, "--device", "cpu", "--tolerance", tolerance];
        let (code, out, err) = call(&[&["check", &model(name)], options.as_slice()].concat());
        assert_eq!(code, Some(0), "{out}{err}");
        assert!(out.lines().all(|line| line.contains(": agrees, ")), "{out}");
    }
}

#[test]
fn a_difference_from_the_reference_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["input_0.npy", "output_0.npy"] {
        fs::copy(data().join("function").join(file), folder.path().join(file)).expect("copied");
    }
    let path = folder.path().join("output_0.npy");
    let mut bytes = fs::read(&path).expect("readable");
    // Flips the sign of the last element.
    *bytes.last_mut().expect("elements") ^= 0x80;
    fs::write(&path, bytes).expect("writable");
    let folder = folder.path().display().to_string();
    let (code, out, _) = call(&["check", &model("function"), "--against", &folder, "--device", "cpu"]);
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains("output 0 y: DIFFERS"), "{out}");
}

#[test]
fn everything_that_is_in_the_way_is_reported_at_once() {
    let path = data().join("unsupported.onnx").display().to_string();
    let (code, out, err) = call(&["check", &path]);
    assert_eq!(code, Some(3), "{err}");
    for wanted in [
        "`batch`: dimension 0 of input `x` is open",
        "help: --dim batch=SIZE",
        "com.example.Wobble `first`",
        "StringNormalizer `second`",
        "com.example.Wobble `third`",
    ] {
        assert!(out.contains(wanted), "{out}");
    }
    let (code, out, _) = call(&["check", &path, "--dim", "batch=2", "--json"]);
    assert_eq!(code, Some(3));
    assert!(
        out.contains("\"kind\":\"unsupported\"") && !out.contains("unbound"),
        "{out}"
    );
}

#[test]
fn files_that_are_no_models_end_with_their_own_code() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("text.onnx");
    fs::write(&path, "this is not a model").expect("writable");
    let path = path.display().to_string();
    for command in ["check", "run"] {
        let (code, _, err) = call(&[command, &path]);
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains("text.onnx") && err.contains("not an ONNX model"), "{err}");
    }
    let (code, _, err) = call(&["check", "/nowhere.onnx"]);
    assert_eq!(code, Some(2), "{err}");
}

#[test]
fn sizes_come_from_the_inputs() {
    let (code, out, _) = call(&["check", &model("convnet")]);
    assert_eq!(code, Some(0));
    let checked = "open dimensions, which the inputs determine: checked with batch = 1";
    assert!(out.contains(checked) && out.trim_end().ends_with("supported"), "{out}");
    let (code, out, _) = call(&["check", &model("convnet"), "--dim", "batch=4"]);
    assert_eq!(code, Some(0));
    assert!(out.trim_end().ends_with("supported"), "{out}");
    let (code, _, err) = call(&["check", &model("convnet"), "--dim", "bach=4"]);
    assert_eq!(code, Some(1));
    assert!(
        err.contains("no open dimension `bach`") && err.contains("batch"),
        "{err}"
    );

    let input = data().join("convnet/input_0.npy").display().to_string();
    let given = format!("x={input}");
    let results = tempfile::tempdir().expect("a folder");
    let out_dir = results.path().join("results").display().to_string();
    let (code, out, err) = call(&[
        "run",
        &model("convnet"),
        "--input",
        &given,
        "--output-dir",
        &out_dir,
        "--device",
        "cpu",
    ]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("output 1 probabilities: float32[3, 10]"), "{out}");
    let size = fs::metadata(results.path().join("results/output_1.npy"))
        .expect("a file")
        .len();
    assert_eq!(size, 128 + 3 * 10 * 4);

    let (code, _, err) = call(&[
        "run",
        &model("convnet"),
        "--input",
        &given,
        "--dim",
        "batch=2",
        "--device",
        "cpu",
    ]);
    assert_eq!(code, Some(1));
    assert!(
        err.contains("sets `batch` to 2, but its size in the inputs is 3"),
        "{err}"
    );
}

#[test]
fn missing_and_unknown_inputs_are_named() {
    let (code, _, err) = call(&["run", &model("convnet")]);
    assert_eq!(code, Some(1));
    assert!(
        err.contains("no file for the input x: float32[batch, 1, 8, 8]"),
        "{err}"
    );
    let (_, _, err) = call(&["run", &model("convnet"), "--input", "y=a.npy"]);
    assert!(err.contains("no input `y`; it has x"), "{err}");
    // An input of another type.
    let ids = data().join("sequence/input_0.npy").display().to_string();
    let (_, _, err) = call(&["run", &model("convnet"), "--input", &format!("x={ids}")]);
    assert!(err.contains("found an input of shape [4, 2]"), "{err}");
}

/// Runs a model on the CPU, and writes its results to a folder.
fn run_on_cpu(model: &str, input: &str, results: &str) {
    let run = [
        "run",
        model,
        "--input",
        input,
        "--output-dir",
        results,
        "--device",
        "cpu",
    ];
    let (code, _, err) = call(&run);
    assert_eq!(code, Some(0), "{err}");
}

#[test]
fn a_trained_classifier_is_exported_and_predicts_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let mut rows = String::from("a,b,kind\n");
    for i in 0..60 {
        let (x, kind) = if i % 2 == 0 { (1.0, "low") } else { (3.0, "high") };
        rows += &format!("{},{},{kind}\n", x + f64::from(i % 7) * 0.1, f64::from(i % 5));
    }
    fs::write(path.join("rows.csv"), rows).expect("writable");
    let at = |name: &str| path.join(name).display().to_string();
    let train = [
        "train",
        "--csv",
        &at("rows.csv"),
        "--label",
        "kind",
        "--out",
        &at("m"),
        "--epochs",
        "30",
        "--device",
        "cpu",
    ];
    let (code, _, err) = call(&train);
    assert_eq!(code, Some(0), "{err}");
    fs::write(path.join("new.csv"), "a,b\n1.1,2\n3.2,1\n").expect("writable");
    let new = at("new.csv");
    let predict = [
        "predict",
        "--model",
        &at("m"),
        "--csv",
        &new,
        "--json",
        "--device",
        "cpu",
    ];
    let (code, predicted, err) = call(&predict);
    assert_eq!(code, Some(0), "{err}");
    meganeura::nn::data::write_npy(path.join("x.npy"), &[2, 2], &[1.1, 2.0, 3.2, 1.0]).expect("writable");
    // With a fixed and with an open batch size.
    for batch in [&["--batch", "2"][..], &[]] {
        let (code, out, err) = call(&[&["export", &at("m"), "--out", &at("m.onnx")], batch].concat());
        assert_eq!(code, Some(0), "{err}");
        assert!(out.contains("exported to"), "{out}");
        let (code, out, err) = call(&["check", &at("m.onnx")]);
        assert_eq!(code, Some(0), "{err}");
        assert_eq!(out.contains("batch"), batch.is_empty(), "{out}");
        let results = at("r");
        let input = format!("x={}", at("x.npy"));
        run_on_cpu(&at("m.onnx"), &input, &results);
        let read = |output: &str| {
            let array = meganeura::nn::data::read_npy(path.join("r").join(output)).expect("results");
            array.to_f32()
        };
        let (ours, labels) = (read("output_0.npy"), read("output_1.npy"));
        for (i, line) in predicted.lines().enumerate() {
            let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let probabilities = value["probabilities"].as_object().expect("probabilities");
            // Classes are in the order of their names.
            for (p, (_, wanted)) in ours[2 * i..].iter().zip(probabilities) {
                let wanted = wanted.as_f64().expect("a number") as f32;
                assert!((p - wanted).abs() < 1e-5, "{line} and {ours:?}");
            }
            let names: Vec<&String> = probabilities.keys().collect();
            assert_eq!(value["label"], names[labels[i] as usize].as_str(), "{labels:?}");
        }
        let file = fs::read(path.join("m.onnx")).expect("a file");
        let has = |text: &str| file.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(has("[\"high\",\"low\"]") && has("[\"a\",\"b\"]"));
    }
}

#[test]
fn a_trained_regression_is_exported_and_predicts_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let mut rows = String::from("a,b,price\n");
    for i in 0..60 {
        rows += &format!("{},{},{}\n", i % 7, i % 5, 1000 + 20 * (i % 7) - 30 * (i % 5));
    }
    fs::write(at("rows.csv"), rows).expect("writable");
    let csv = at("rows.csv");
    let train = ["train", "--csv", &csv, "--target", "price", "--task", "regression"];
    let (code, _, err) = call(&[&train[..], &["--out", &at("m"), "--epochs", "20", "--device", "cpu"]].concat());
    assert_eq!(code, Some(0), "{err}");
    let (code, _, err) = call(&["export", &at("m"), "--out", &at("m.onnx")]);
    assert_eq!(code, Some(0), "{err}");
    fs::write(at("new.csv"), "a,b\n1,2\n6,0\n").expect("writable");
    let model = at("m");
    let predict = [
        "predict",
        "--model",
        &model,
        "--csv",
        &at("new.csv"),
        "--json",
        "--device",
        "cpu",
    ];
    let (code, predicted, err) = call(&predict);
    assert_eq!(code, Some(0), "{err}");
    meganeura::nn::data::write_npy(at("x.npy"), &[2, 2], &[1.0, 2.0, 6.0, 0.0]).expect("writable");
    let (input, results) = (format!("x={}", at("x.npy")), at("r"));
    run_on_cpu(&at("m.onnx"), &input, &results);
    let found = meganeura::nn::data::read_npy(at("r/output_0.npy"))
        .expect("results")
        .to_f32();
    for (line, found) in predicted.lines().zip(&found) {
        let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let wanted = value["values"]["price"].as_f64().expect("a number") as f32;
        assert!((found / wanted - 1.0).abs() < 1e-5, "{found}, not {wanted}");
    }
    assert_eq!((predicted.lines().count(), found.len()), (2, 2));
    // It has no classes for fine-tuning.
    let (_, _, err) = call(
        &[
            &train[..],
            &["--onnx", &at("m.onnx"), "--batch", "2", "--device", "cpu"],
        ]
        .concat(),
    );
    assert!(err.contains("--onnx trains only classifiers"), "{err}");
}

#[test]
fn classes_of_other_numbers_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    for (name, classes) in [("two.csv", 2), ("three.csv", 3), ("four.csv", 4)] {
        let rows = (0..48).map(|i| format!("{},{},{}\n", i % classes * 2, i % 5, ["a", "b", "c", "d"][i % classes]));
        fs::write(at(name), format!("a,b,kind\n{}", rows.collect::<String>())).expect("writable");
    }
    let train = |csv: &str, more: &[&str]| {
        let csv = at(csv);
        let usual = [
            "train", "--csv", &csv, "--label", "kind", "--epochs", "1", "--device", "cpu",
        ];
        call(&[&usual[..], more].concat())
    };
    let (code, _, err) = train("three.csv", &["--out", &at("m")]);
    assert_eq!(code, Some(0), "{err}");
    let (code, _, err) = call(&["export", &at("m"), "--out", &at("m.onnx"), "--batch", "8"]);
    assert_eq!(code, Some(0), "{err}");
    for (csv, classes) in [("two.csv", 2), ("four.csv", 4)] {
        let (code, _, err) = train(csv, &["--onnx", &at("m.onnx"), "--batch", "8"]);
        let said = format!("the examples have {classes} classes, but the model has 3");
        assert!(code == Some(1) && err.contains(&said), "{err}");
    }
    let evaluate = |csv: &str| call(&["evaluate", "--model", &at("m"), "--csv", &at(csv), "--device", "cpu"]);
    let (code, _, err) = evaluate("four.csv");
    assert!(
        code == Some(1) && err.contains("'d' is none of the 3 known classes"),
        "{err}"
    );
    // A model can be evaluated on two of its three classes.
    assert_eq!(evaluate("two.csv").0, Some(0));
}

#[test]
fn models_of_files_are_explained_and_measured() {
    let model = model("convnet");
    let (code, out, err) = call(&["explain", &model, "--dim", "batch=2", "--device", "cpu"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("inference, 2 rows") && out.contains("Plan: "), "{out}");
    let (code, out, err) = call(&[
        "bench", &model, "--dim", "batch=2", "--device", "cpu", "--steps", "2", "--json",
    ]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("\"step_ms\""), "{out}");
    let (_, _, err) = call(&["bench", &model, "--train", "--dim", "batch=2", "--device", "cpu"]);
    assert!(err.contains("do not work with ONNX files"), "{err}");
    let (_, _, err) = call(&["explain", "mlp", "--dim", "batch=2"]);
    assert!(err.contains("--dim and --set work only with ONNX files"), "{err}");
}

/// Writes rows of two kinds, distinguished by the number `a`.
fn write_rows(path: &Path) {
    let mut rows = String::from("a,b,kind\n");
    for i in 0..64 {
        let (x, kind) = if i % 2 == 0 { (1.0, "low") } else { (3.0, "high") };
        rows += &format!("{},{},{kind}\n", x + f64::from(i % 7) * 0.1, f64::from(i % 5));
    }
    fs::write(path, rows).expect("writable");
}

#[test]
fn a_classifier_from_a_file_is_trained_further() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    write_rows(&path.join("rows.csv"));
    let at = |name: &str| path.join(name).display().to_string();
    let csv = at("rows.csv");
    let train = ["train", "--csv", &csv, "--label", "kind", "--device", "cpu"];
    // A model with almost no training.
    let options = ["--out", &at("m"), "--epochs", "1", "--lr", "1e-6", "--hidden", "8"];
    let (code, _, err) = call(&[&train[..], &options].concat());
    assert_eq!(code, Some(0), "{err}");
    let (code, _, err) = call(&["export", &at("m"), "--out", &at("m.onnx"), "--batch", "16"]);
    assert_eq!(code, Some(0), "{err}");

    let further = [
        "--onnx",
        &at("m.onnx"),
        "--batch",
        "16",
        "--epochs",
        "60",
        "--lr",
        "0.02",
    ];
    let (code, out, err) = call(
        &[
            &train[..],
            &further,
            &["--out", &at("n.onnx"), "--freeze", "*.bias", "--json"],
        ]
        .concat(),
    );
    assert_eq!(code, Some(0), "{err}");
    let summary: serde_json::Value = serde_json::from_str(out.lines().last().expect("a line")).expect("JSON");
    assert_eq!(summary["test_accuracy"].as_f64(), Some(1.0), "{out}");

    // Frozen parameters are unchanged, others are trained, and the file is an ordinary model.
    let parameters = |name: &str| -> Vec<(String, Vec<f32>)> {
        let model = meganeura::onnx::Model::open(path.join(name)).expect("a model");
        let import = model
            .import(&meganeura::onnx::ImportOptions::default())
            .expect("supported");
        import
            .parameters
            .iter()
            .map(|p| (p.name.clone(), p.tensor.to_f32()))
            .collect()
    };
    let (before, after) = (parameters("m.onnx"), parameters("n.onnx"));
    assert_eq!(before.len(), after.len());
    for (name, values) in &before {
        let (_, new) = after.iter().find(|(n, _)| n == name).expect("the same names");
        assert_eq!(values == new, name.ends_with(".bias"), "{name}");
    }
    let (code, out, err) = call(&["check", &at("n.onnx")]);
    assert_eq!(code, Some(0), "{out}{err}");
}

#[test]
fn what_cannot_be_trained_further_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    write_rows(&path.join("rows.csv"));
    let csv = path.join("rows.csv").display().to_string();
    let train = |rest: &[&str]| call(&[&["train", "--csv", &csv, "--device", "cpu"], rest].concat());
    let (_, _, err) = train(&["--label", "kind", "--onnx", &model("convnet"), "--out", "folder"]);
    assert!(err.contains("ends with .onnx"), "{err}");
    let (_, _, err) = train(&["--label", "kind", "--onnx", &model("convnet")]);
    assert!(
        err.contains("the examples have the shape [2]") && err.contains("x: float32[batch, 1, 8, 8]"),
        "{err}"
    );
    let (_, _, err) = train(&["--target", "b", "--task", "regression", "--onnx", &model("convnet")]);
    assert!(err.contains("--onnx trains only classifiers"), "{err}");
    let (_, _, err) = train(&["--label", "kind", "--onnx", &model("convnet"), "--dropout", "0.1"]);
    assert!(err.contains("cannot be used with"), "{err}");
    let (_, _, err) = call(&[
        "train",
        "digits",
        "--onnx",
        &model("convnet"),
        "--freeze",
        "backbone.*",
        "--device",
        "cpu",
    ]);
    assert!(
        err.contains("--freeze backbone.*: no parameter matches") && err.contains("conv.weight"),
        "{err}"
    );
}

#[test]
fn a_convolutional_classifier_learns_the_digits_further() {
    let (code, out, err) = call(&[
        "train",
        "digits",
        "--onnx",
        &model("convnet"),
        "--epochs",
        "20",
        "--lr",
        "0.02",
        "--device",
        "cpu",
        "--json",
    ]);
    assert_eq!(code, Some(0), "{err}");
    let summary: serde_json::Value = serde_json::from_str(out.lines().last().expect("a line")).expect("JSON");
    let accuracy = summary["test_accuracy"].as_f64().expect("a number");
    assert!(accuracy > 0.9, "{accuracy}");
}

/// Returns a field of a protocol buffer that contains bytes.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).expect("a short field");
    assert!(length < 128, "a short field");
    [&[number << 3 | 2, length], content].concat()
}

/// Returns a field of a protocol buffer that contains a small number.
fn number(number: u8, value: u8) -> Vec<u8> {
    vec![number << 3, value]
}

/// Writes the file of `y = (x + w) * k` with two floats in `x` and `w` and one in `k`; `w` has a default.
fn write_sum(path: &Path) {
    let value = |name: &str, size: u8| {
        let shape = field(2, &field(1, &number(1, size)));
        let ty = field(1, &[number(1, 1), shape].concat());
        [field(1, name.as_bytes()), field(2, &ty)].concat()
    };
    let node = |op: &str, inputs: [&str; 2], output: &str| {
        let inputs: Vec<u8> = inputs.iter().flat_map(|i| field(1, i.as_bytes())).collect();
        [inputs, field(2, output.as_bytes()), field(4, op.as_bytes())].concat()
    };
    let data: Vec<u8> = [1.0f32, 2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let weight = [number(1, 2), number(2, 1), field(8, b"w"), field(9, &data)].concat();
    let graph = [
        field(1, &node("Add", ["x", "w"], "s")),
        field(1, &node("Mul", ["s", "k"], "y")),
        field(2, b"g"),
        field(5, &weight),
    ];
    let ports = ["x", "w", "k"].map(|name| field(11, &value(name, if name == "k" { 1 } else { 2 })));
    let graph = [graph.concat(), ports.concat(), field(12, &value("y", 2))].concat();
    let length = [(graph.len() % 128) as u8 | 128, (graph.len() / 128) as u8];
    let opset = field(8, &number(2, 9));
    let model = [number(1, 3), vec![7 << 3 | 2], length.to_vec(), graph, opset].concat();
    fs::write(path, model).expect("writable");
}

#[test]
fn files_and_options_give_inputs_with_and_without_defaults() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    write_sum(&folder.path().join("m.onnx"));
    fs::create_dir(folder.path().join("in")).expect("writable");
    let write = |name: &str, data: &[f32]| {
        meganeura::nn::data::write_npy(folder.path().join(name), &[data.len()], data).expect("writable");
    };
    let run = |options: &[&str]| {
        let (results, inputs) = (at("out"), at("in"));
        let mut args = vec!["run", "MODEL", "--output-dir", &results, "--device", "cpu"];
        let model = at("m.onnx");
        args[1] = &model;
        if !options.contains(&"--input") {
            args.extend(["--inputs-dir", &inputs]);
        }
        args.extend(options);
        let (code, _, err) = call(&args);
        match code {
            Some(0) => {
                let found = meganeura::nn::data::read_npy(folder.path().join("out/output_0.npy"));
                Ok(found.expect("results").to_f32())
            }
            _ => Err(err),
        }
    };
    write("in/x.npy", &[10.0, 20.0]);
    assert!(run(&[]).expect_err("k is missing").contains("k.npy"));
    assert_eq!(run(&["--set", "k=3"]), Ok(vec![33.0, 66.0]));
    write("in/w.npy", &[100.0, 200.0]);
    assert_eq!(run(&["--set", "k=1"]), Ok(vec![110.0, 220.0]));
    let (x, w) = (format!("x={}", at("in/x.npy")), format!("w={}", at("in/w.npy")));
    let given = ["--input", &x, "--input", &w, "--set", "k=2"];
    assert_eq!(run(&given), Ok(vec![220.0, 440.0]));
    let error = run(&["--set", "x=1", "--set", "k=1"]).expect_err("x.npy is of no use");
    assert!(error.contains("x.npy") && error.contains("--set"), "{error}");
    write("in/weight.npy", &[0.0]);
    let error = run(&["--set", "k=1"]).expect_err("no input has this name");
    assert!(error.contains("weight.npy") && error.contains("x, k, w"), "{error}");
}
