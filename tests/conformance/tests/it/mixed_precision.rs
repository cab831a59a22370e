//! Tests of the suite in mixed precision: it accepts a backend that rounds operands of matmuls as cooperative matrices
//! do, and detects one that rounds more, and one that does not round.

use std::sync::Arc;

use meganeura_conformance::{Hook, Options, ReferenceBackend, Report, Section, run};
use meganeura_core::ops::RefTensor;
use meganeura_core::plan::Dispatch;
use meganeura_core::precision::Precision;

fn run_at(backend: &ReferenceBackend, precision: Precision, section: Section, filter: Option<&str>) -> Report {
    let options = Options {
        filter: filter.map(str::to_owned),
        sections: vec![section],
        seeds: 0..1,
        precision,
        ..Options::default()
    };
    run(backend.device(), &options)
}

fn rounding() -> ReferenceBackend {
    ReferenceBackend::new().rounding_products()
}

/// Runs a section on a device that rounds operands, and checks that it passes.
fn rounded(section: Section, filter: Option<&str>) -> Report {
    let report = run_at(&rounding(), Precision::Mixed, section, filter);
    assert!(report.failures().next().is_none(), "{report}");
    report
}

#[test]
fn training_with_rounded_operands_passes() {
    let report = rounded(Section::Training, None);
    assert!(report.on_tensor_cores > 0, "{report}");
}

#[test]
fn semantics_and_errors_with_rounded_operands_pass() {
    let report = rounded(Section::Semantics, None);
    assert!(report.on_tensor_cores > 0, "{report}");
    rounded(Section::Errors, None);
}

/// Checks that the operators whose names contain `part` pass, and that some of their calls round.
fn rounded_operators(part: &str) {
    let report = rounded(Section::Operators, Some(part));
    assert!(report.is_ok() && report.on_tensor_cores > 0, "{report}");
}

/// The test `long` runs all matmuls.
#[test]
fn rounded_matmuls_pass() {
    rounded_operators("core.matmul/");
}

#[test]
fn rounded_convolutions_pass() {
    rounded_operators("conv");
}

#[test]
fn rounded_attention_passes() {
    rounded_operators("attention");
}

#[test]
fn more_rounding_than_that_fails() {
    // As if operands had seven bits.
    let hook: Hook = Arc::new(|dispatch: &Dispatch, outcome| {
        let mut results: Vec<RefTensor> = outcome?;
        if dispatch.use_coop {
            let values = results.iter_mut().flat_map(|t| &mut t.data);
            values.for_each(|v| *v *= 1.0 + 1.0 / 128.0);
        }
        Ok(results)
    });
    for (section, filter) in [
        (Section::Operators, "core.matmul/forward"),
        (Section::Training, "training/mlp/"),
    ] {
        let report = run_at(
            &rounding().with_hook(hook.clone()),
            Precision::Mixed,
            section,
            Some(filter),
        );
        assert!(report.failed() > 0, "{report}");
    }
}

#[test]
fn full_precision_rounds_nothing() {
    let report = run_at(&rounding(), Precision::F32, Section::Training, Some("training/mlp/"));
    assert!(report.is_ok(), "{report}");
    assert_eq!(report.on_tensor_cores, 0);
}

#[test]
fn mixed_precision_without_tensor_cores_was_not_tested() {
    let plain = ReferenceBackend::new();
    let report = run_at(&plain, Precision::Mixed, Section::Training, Some("training/mlp/"));
    assert!(report.failed() == 0 && !report.is_ok(), "{report}");
    assert!(report.to_string().contains("was not tested"), "{report}");
}
