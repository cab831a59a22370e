//! Tests of `meganeura bench`.

use super::{json_lines, meganeura, run};

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
    assert!(mlp["tflops"].is_null(), "{mlp}");
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
        (&["--sequences", "0"], "0 sequences"),
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
