//! Tests of the table of operators.

use meganeura_onnx::{markdown, operators};

#[test]
fn the_documentation_lists_what_is_supported() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/onnx-operators.md");
    let found = std::fs::read_to_string(path).expect("the document");
    assert_eq!(
        found.trim_end(),
        markdown(operators()).trim_end(),
        "write it anew: cargo run -p meganeura-cli -- check --operators > docs/onnx-operators.md"
    );
}

#[test]
fn every_operator_is_listed_once() {
    let mut names: Vec<_> = operators().map(|op| (op.domain, op.name)).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}
