//! Tests of `meganeura bench`.

use super::{json_lines, meganeura, run};

#[test]
fn utilization_is_a_share_of_the_rate_of_a_matmul() {
    let args = [
        "bench",
        "--device",
        "cpu",
        "--steps",
        "2",
        "--json",
        "--utilization",
        "256x256x256",
    ];
    let (output, out, err) = run(&mut meganeura(&args));
    assert!(output.status.success(), "{err}");
    let report = &json_lines(&out)[0];
    let number = |key: &str| report[key].as_f64().expect(key);
    let share = number("tflops") / number("matmul_tflops");
    assert!((number("utilization") - share).abs() < 1e-9 && share > 0.0, "{out}");
}

#[test]
fn products_and_models_are_measured() {
    let (output, out, err) = run(&mut meganeura(&[
        "bench", "--device", "cpu", "--steps", "2", "--json", "mlp", "8x9x10",
    ]));
    assert!(output.status.success(), "{err}");
    let [mlp, product] = &json_lines(&out)[..] else {
        panic!("a line for each: {out}")
    };
    assert!(mlp["step_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{mlp}");
    assert!(mlp["tflops"].as_f64().is_some_and(|rate| rate > 0.0), "{mlp}");
    assert!(mlp["tokens_per_second"].is_null(), "{mlp}");
    assert!(
        mlp["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 500_000),
        "{mlp}"
    );
    assert!(product["tflops"].as_f64().is_some_and(|rate| rate > 0.0), "{product}");
    assert_eq!(product["dispatches"], 1);
}

#[test]
fn products_of_halves_are_measured() {
    let base = ["bench", "--device", "cpu", "--steps", "1", "--json", "--operands"];
    for dtype in ["f16", "bf16"] {
        let (output, out, err) = run(&mut meganeura(&[&base[..], &[dtype, "8x9x10"]].concat()));
        assert!(output.status.success(), "{err}");
        assert!(
            json_lines(&out)[0]["tflops"].as_f64().is_some_and(|rate| rate > 0.0),
            "{out}"
        );
    }
    for (more, message) in [
        (["f16", "mlp"], "and 'mlp' is not one; see --weights"),
        (["f8", "8x9x10"], "expected f32, f16 or bf16"),
    ] {
        let (output, _, err) = run(&mut meganeura(&[&base[..], &more].concat()));
        assert!(!output.status.success() && err.contains(message), "{more:?}: {err}");
    }
}

/// With a cache, a step reads the cached rows, and only the logits of a chunk's last row are computed.
#[test]
fn language_models_are_measured_behind_what_is_cached() {
    let base = [
        "bench",
        "--device",
        "cpu",
        "--steps",
        "1",
        "--json",
        "--cache",
        "40",
        "--weights",
        "q4",
        "smollm2-135m",
    ];
    let (output, out, err) = run(&mut meganeura(&[&base[..], &["--cached", "38", "--seq", "2"]].concat()));
    assert!(output.status.success(), "{err}");
    assert!(
        json_lines(&out)[0]["step_ms"].as_f64().is_some_and(|ms| ms > 0.0),
        "{out}"
    );
    for (more, message) in [
        (&["--cached", "39", "--seq", "2"][..], "raise --cache"),
        (&["--seq", "0"], "0 more"),
        (&["--sequences", "0"], "0 is not in 1.."),
        (&["--layers", "31"], "'smollm2-135m' has 30 layers"),
        (&["mlp"], "'mlp' is not"),
        (&["4x4x4"], "'4x4x4' is not"),
    ] {
        let workloads: Vec<&str> = base.iter().copied().filter(|&arg| arg != "smollm2-135m").collect();
        let model: &[&str] = if more[0].starts_with("--") {
            &["smollm2-135m"]
        } else {
            &[]
        };
        let (output, _, err) = run(&mut meganeura(&[&workloads[..], more, model].concat()));
        assert!(!output.status.success() && err.contains(message), "{more:?}: {err}");
    }
}

/// A checkpoint folder and a preset, trained whole or with adapters of frozen weights.
#[test]
fn training_of_language_models_is_measured() {
    let checkpoint = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/transformers/llama");
    let base = [
        "bench", "--device", "cpu", "--steps", "1", "--json", "--train", "--seq", "8",
    ];
    let measured = |more: &[&str]| {
        let (output, out, err) = run(&mut meganeura(&[&base[..], more].concat()));
        assert!(output.status.success(), "{more:?}: {err}");
        json_lines(&out).remove(0)
    };
    let whole = measured(&[checkpoint, "--sequences", "3", "--optimizer", "adamw"]);
    let (seconds, rate) = (
        &whole["step_ms"],
        whole["tokens_per_second"].as_f64().expect("a number"),
    );
    let tokens = rate * seconds.as_f64().expect("a number") * 1e-3;
    assert!((tokens - 24.0).abs() < 1e-6, "{whole}");
    let adapted = measured(&[checkpoint, "--lora", "2", "--lora-targets", "all", "--weights", "q4"]);
    // Two of three gradients are computed: FLOPs of a step without those of the adapters.
    assert!(adapted["tflops"].as_f64().is_some_and(|rate| rate > 0.0), "{adapted}");
    let first = measured(&["smollm2-135m", "--layers", "1", "--lora", "4"]);
    let second = measured(&["smollm2-135m", "--layers", "2", "--lora", "4"]);
    assert!(
        first["memory_bytes"].as_u64() < second["memory_bytes"].as_u64(),
        "{first} {second}"
    );
    for (more, message) in [
        (&[checkpoint, "--weights", "q4"][..], "add --lora RANK"),
        (&["mlp", "--lora", "2"], "--lora works only with language models"),
        (
            &["8x8x8", "--sequences", "2"],
            "--sequences works only with language models",
        ),
        (&["nowhere"], "neither an ONNX file, a checkpoint folder"),
    ] {
        let (output, _, err) = run(&mut meganeura(&[&base[..], more].concat()));
        assert!(!output.status.success() && err.contains(message), "{more:?}: {err}");
    }
    let curve = ["bench", "mlp", "--train", "--curve", "2", "--optimizer", "sgd"];
    let (output, _, err) = run(&mut meganeura(&curve));
    assert!(
        !output.status.success() && err.contains("leave out --optimizer"),
        "{err}"
    );
    let (output, _, err) = run(&mut meganeura(&["bench", "--suite", "matmul", "--weights", "q4"]));
    assert!(!output.status.success() && err.contains("not with --suite"), "{err}");
}
