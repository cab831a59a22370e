//! Tests that every row of a data set is trained on, or that the output reports the omitted rows.

use std::path::Path;

use super::{flowers, json_lines, meganeura, run};

#[test]
fn rows_that_do_not_fill_a_batch_are_trained_on() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("flowers.csv"), flowers(63)).expect("written");
    let args = [
        "train",
        "--csv",
        "flowers.csv",
        "--ignore",
        "id",
        "--test-fraction",
        "0",
        "--validation",
        "0.2",
        "--batch",
        "32",
        "--epochs",
        "1",
        "--device",
        "cpu",
        "--log",
        "run.jsonl",
    ];
    let (output, out, err) = run(meganeura(&args).current_dir(folder.path()));
    assert!(output.status.success(), "{out}{err}");
    let log = std::fs::read_to_string(folder.path().join("run.jsonl")).expect("a log");
    let begin = json_lines(&log)
        .into_iter()
        .find(|l| l["event"] == "train_begin")
        .expect("begins");
    let examples = begin["examples"].as_u64().expect("a number");
    assert!(examples % 32 != 0, "{begin}");
    assert_eq!(begin["examples_per_epoch"], begin["examples"], "{begin}");
    assert_eq!(
        begin["steps_per_epoch"].as_u64(),
        Some(examples.div_ceil(32)),
        "{begin}"
    );
}

#[test]
fn pieces_of_text_that_are_left_out_are_counted() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/alice/alice.txt");
    let text: String = std::fs::read_to_string(data)
        .expect("ships")
        .chars()
        .take(6000)
        .collect();
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("text.txt"), text).expect("written");
    let args = [
        "train",
        "text",
        "--data",
        "text.txt",
        "--model",
        "tiny",
        "--vocab",
        "300",
        "--steps",
        "1",
        "--batch",
        "7",
        "--seq",
        "16",
        "--device",
        "cpu",
        "--log",
        "run.jsonl",
    ];
    let (output, out, err) = run(meganeura(&args).current_dir(folder.path()));
    assert!(output.status.success(), "{out}{err}");
    let log = std::fs::read_to_string(folder.path().join("run.jsonl")).expect("a log");
    let begin = json_lines(&log)
        .into_iter()
        .find(|l| l["event"] == "train_begin")
        .expect("begins");
    let number = |key: &str| begin[key].as_u64().expect("a number");
    let left = number("examples") - number("examples_per_epoch");
    assert_eq!(left, number("examples") % 7);
    assert_eq!(
        left > 0,
        out.contains(&format!("{left} examples do not fill a batch of 7")),
        "{out}"
    );
}

#[test]
fn numbers_that_are_not_known_are_not_printed() {
    let (output, out, err) = run(&mut meganeura(&["train", "digits", "--epochs", "0", "--device", "cpu"]));
    assert!(output.status.success(), "{err}");
    assert!(!out.contains("NaN") && !out.contains("train loss"), "{out}");
}
