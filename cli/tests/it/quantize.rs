//! Tests of quantizing ONNX models.

use std::fs;
use std::path::Path;

use super::{meganeura, run};

/// Returns the exit code and the text on both streams.
fn call(args: &[&str]) -> (Option<i32>, String, String) {
    let (output, out, err) = run(&mut meganeura(args));
    (output.status.code(), out, err)
}

#[test]
fn a_model_is_quantized_checked_and_run() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/onnx/tests/data/convnet");
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (model, output) = (data.join("model.onnx").display().to_string(), path("small.onnx"));
    for sample in ["samples/sample_2", "samples/sample_10"] {
        fs::create_dir_all(path(sample)).expect("a folder");
        fs::copy(data.join("input_0.npy"), folder.path().join(sample).join("input_0.npy")).expect("a sample");
    }
    let samples = path("samples");
    let (code, out, err) = call(&["quantize", &model, "-o", &output, "--data", &samples, "--device", "cpu"]);
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(
        out.contains("2 of 2 convolutions and matrix products are quantized"),
        "{out}"
    );
    assert!(out.contains("results of 2 samples"), "{out}");
    assert!(
        out.contains("  logits: SNR ") && out.contains("the same in 6 of 6 rows"),
        "{out}"
    );

    // The quantized model does not have exactly the results of the original one.
    let reference = data.display().to_string();
    let check = |tolerance: &str| {
        call(&[
            "check",
            &output,
            "--against",
            &reference,
            "--device",
            "cpu",
            "--tolerance",
            tolerance,
        ])
    };
    assert_eq!(check("0.05").0, Some(0));
    assert_eq!(check("1e-5").0, Some(1));

    let (code, out, err) = call(&[
        "quantize",
        &model,
        "-o",
        &output,
        "--random",
        "3",
        "--per-tensor",
        "--json",
        "--device",
        "cpu",
    ]);
    assert_eq!(code, Some(0), "{out}{err}");
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(report["quantized"], 2);
    assert!(
        report["results"][0]["snr_db"].as_f64().is_some_and(|db| db > 25.0),
        "{report}"
    );
}

#[test]
fn what_cannot_be_quantized_says_why() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/onnx/tests/data");
    let model = |name: &str| data.join(name).join("model.onnx").display().to_string();
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("small.onnx").display().to_string();
    let convnet = model("convnet");
    let nan = folder.path().join("nan");
    fs::create_dir(&nan).expect("a folder");
    let mut bytes = fs::read(data.join("convnet/input_0.npy")).expect("an array");
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(nan.join("input_0.npy"), bytes).expect("an array");
    let (nan, empty) = (nan.display().to_string(), folder.path().join("empty"));
    fs::create_dir(&empty).expect("a folder");
    let empty = empty.display().to_string();
    let cases: [(&[&str], &str); 6] = [
        (&[&convnet, "--data", &nan], "nan: `"),
        (
            &[&model("distances"), "--random", "1"],
            "no convolution or matrix product",
        ),
        (&[&convnet], "--data <DIR>"),
        (&[&convnet, "--data", &empty], "has neither `x.npy` nor `input_0.npy`"),
        (
            &[&convnet, "--random", "1", "--percentile", "20"],
            "from 50 to 100, found 20",
        ),
        (
            &[&convnet, "--random", "1", "--dim", "other=1"],
            "no open dimension `other`",
        ),
    ];
    for (options, said) in cases {
        let (code, out, err) = call(&[&["quantize", "-o", &output, "--device", "cpu"], options].concat());
        assert!(code != Some(0) && err.contains(said), "{options:?}: {out}{err}");
        assert!(!Path::new(&output).exists(), "{options:?}");
    }
    let (code, _, err) = call(&["quantize", "-o", &convnet, &convnet, "--random", "1"]);
    assert!(code != Some(0) && err.contains("would overwrite an input"), "{err}");
}
