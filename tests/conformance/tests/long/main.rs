//! Tests of the suite that take minutes without optimization. `cargo test --release --test long` runs them.

use meganeura_conformance::{Options, ReferenceBackend, Section, run};
use meganeura_core::precision::Precision;

/// Checks that all matmuls (plain, quantized, of experts) pass on a device that rounds their operands to f16.
#[test]
#[ignore = "takes minutes without optimization; `--include-ignored` runs it"]
fn all_rounded_matmuls_pass() {
    let options = Options {
        filter: Some("matmul".to_owned()),
        sections: vec![Section::Operators],
        seeds: 0..1,
        precision: Precision::Mixed,
        ..Options::default()
    };
    let report = run(ReferenceBackend::new().rounding_products().device(), &options);
    assert!(report.is_ok() && report.on_tensor_cores > 0, "{report}");
}
