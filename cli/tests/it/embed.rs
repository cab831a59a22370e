//! Tests of `embed` with a small encoder.

use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;

use super::{json_lines, meganeura, run};

fn model(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures/embeddings")
        .join(name)
}

fn command(args: &[&str]) -> std::process::Command {
    let mut command = meganeura(&["embed", "--device", "cpu", "--no-plan-cache", "--model"]);
    command.arg(model("bert")).args(args);
    command
}

#[test]
fn vectors_are_printed_line_by_line() {
    let (output, out, err) = run(&mut command(&["Alice was not a bit hurt.", "Rabbit"]));
    assert!(output.status.success(), "{err}");
    let lines = json_lines(&out);
    assert_eq!(lines.len(), 2);
    assert_eq!(
        (lines[1]["text"].as_str(), lines[1]["tokens"].as_u64()),
        (Some("Rabbit"), Some(3))
    );
    let text = std::fs::read_to_string(model("bert").join("expected.json")).expect("a fixture");
    let expected: serde_json::Value = serde_json::from_str(&text).expect("json");
    for (line, mean) in lines.iter().zip(expected["mean"].as_array().expect("vectors")) {
        let numbers = |value: &serde_json::Value| -> Vec<f64> {
            let list = value.as_array().expect("a vector").iter();
            list.map(|x| x.as_f64().expect("a number")).collect()
        };
        let (found, wanted) = (numbers(&line["embedding"]), numbers(mean));
        let length = wanted.iter().map(|x| x * x).sum::<f64>().sqrt();
        for (found, wanted) in found.iter().zip(&wanted) {
            assert!(
                (found - wanted / length).abs() < 1e-5,
                "{found}, not {}",
                wanted / length
            );
        }
    }
    assert!(err.contains("2 texts of 15 tokens, 24 numbers each, on cpu"), "{err}");
}

#[test]
fn a_gguf_file_gives_the_vectors_of_the_folder() {
    let vectors = |model: PathBuf| {
        let mut command = meganeura(&["embed", "--device", "cpu", "--no-plan-cache", "Rabbit", "--model"]);
        let (output, out, err) = run(command.arg(model));
        assert!(output.status.success(), "{err}");
        json_lines(&out)
    };
    assert_eq!(vectors(model("../gguf/bert_f32.gguf")), vectors(model("bert")));
}

#[test]
fn lines_of_standard_input_are_compared() {
    let mut child = command(&["--similarity"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(b"Rabbit\nAlice\nRabbit\n")
        .expect("written");
    let output = child.wait_with_output().expect("it ends");
    let out = String::from_utf8_lossy(&output.stdout);
    let rows: Vec<Vec<f64>> = out
        .lines()
        .map(|line| line.split_whitespace().filter_map(|word| word.parse().ok()).collect())
        .collect();
    assert_eq!(rows.len(), 3, "{out}");
    assert!(
        (rows[0][0] - 1.0).abs() < 1e-3 && (rows[0][2] - 1.0).abs() < 1e-3,
        "{out}"
    );
    assert!(rows[0][1] < 0.999 && (rows[0][1] - rows[1][0]).abs() < 1e-9, "{out}");
}

#[test]
fn mistakes_are_named() {
    let long = "down ".repeat(100);
    let (output, _, err) = run(&mut command(&[&long]));
    assert!(!output.status.success() && err.contains("at most 60 tokens"), "{err}");
    let (output, _, err) = run(&mut command(&["--truncate", &long]));
    assert!(output.status.success(), "{err}");
    let (output, _, err) = run(&mut command(&["--pooling", "max", "a"]));
    assert!(!output.status.success() && err.contains("use mean, or cls"), "{err}");
    let mut of_text = meganeura(&["embed", "--device", "cpu", "a", "--model"]);
    of_text.arg(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/transformers/llama"));
    let (output, _, err) = run(&mut of_text);
    assert!(
        !output.status.success() && err.contains("a model of type 'llama'"),
        "{err}"
    );
}
