//! Tests that the suite accepts a correct backend, even without some kernels, and detects incorrect ones.

use std::sync::Arc;

use meganeura_conformance::{
    ExpectedFailure, Hook, Options, Outcome, ReferenceBackend, Report, Section, run, run_with,
};
use meganeura_core::error::{Error, Result};
use meganeura_core::ops::RefTensor;
use meganeura_core::plan::Dispatch;

mod every_kernel {
    use super::ReferenceBackend;

    meganeura_conformance::conformance!(ReferenceBackend::new());
}

mod primitives_only {
    use super::ReferenceBackend;

    meganeura_conformance::conformance!(ReferenceBackend::new().primitives_only().without_half_arithmetic());
}

type Outcomes = Result<Vec<RefTensor>>;

/// Returns a backend that passes the results of one kernel through `fault`.
fn broken(kernel: &'static str, fault: fn(Outcomes) -> Outcomes) -> ReferenceBackend {
    let hook: Hook = Arc::new(move |dispatch: &Dispatch, outcome| {
        if dispatch.kernel.name == kernel {
            fault(outcome)
        } else {
            outcome
        }
    });
    ReferenceBackend::new().with_hook(hook)
}

fn run_part(backend: &ReferenceBackend, section: Section, filter: &str) -> Report {
    let options = Options {
        filter: Some(filter.to_owned()),
        sections: vec![section],
        seeds: 0..1,
        ..Options::default()
    };
    run(backend.device(), &options)
}

/// Checks that exactly the cases with these prefixes fail.
fn assert_fails_on(report: &Report, prefixes: &[&str]) {
    assert!(!report.is_ok());
    for prefix in prefixes {
        let meant = report.cases.iter().any(|c| c.id.starts_with(prefix));
        assert!(meant, "there is no case {prefix}");
    }
    for case in &report.cases {
        let meant = prefixes.iter().any(|p| case.id.starts_with(p));
        assert_eq!(case.outcome.is_failure(), meant, "{case}");
    }
}

#[test]
fn a_relu_that_ignores_nan_is_caught() {
    let backend = broken("core.relu", |outcome| {
        let mut tensors = outcome?;
        for v in &mut tensors[0].data {
            *v = v.max(0.0);
        }
        Ok(tensors)
    });
    let report = run_part(&backend, Section::Operators, "core.relu/");
    assert_fails_on(&report, &["core.relu/special/"]);
}

#[test]
fn an_addition_off_by_one_is_caught() {
    let backend = broken("core.add", |outcome| {
        let mut tensors = outcome?;
        tensors[0].data.iter_mut().for_each(|v| *v += 1.0);
        Ok(tensors)
    });
    let report = run_part(&backend, Section::Operators, "/forward/");
    assert_fails_on(&report, &["core.add/forward/"]);
}

#[test]
fn a_slightly_wrong_gradient_is_caught() {
    // One element of one gradient is changed, by an error that would be invisible in a training curve.
    let backend = broken("core.conv2d_weight_grad", |outcome| {
        let mut tensors = outcome?;
        if let Some(last) = tensors[0].data.last_mut() {
            *last += 0.01;
        }
        Ok(tensors)
    });
    let report = run_part(&backend, Section::Training, "training/");
    assert_fails_on(&report, &["training/convolutions/"]);
}

#[test]
fn a_lost_write_is_caught() {
    let backend = broken("core.assign", |_| Ok(Vec::new()));
    let report = run_part(&backend, Section::Operators, "/forward/");
    assert_fails_on(&report, &["core.assign/forward/"]);
    let backend = broken("optim.sgd", |_| Ok(Vec::new()));
    let report = run_part(&backend, Section::Training, "training/mlp/");
    assert_fails_on(&report, &["training/mlp/sgd"]);
}

#[test]
fn an_index_that_is_not_reported_is_caught() {
    let backend = broken("core.gather", |outcome| match outcome {
        Err(Error::IndexOutOfRange { .. }) => Ok(Vec::new()),
        other => other,
    });
    let report = run_part(&backend, Section::Errors, "errors/");
    assert_fails_on(&report, &["errors/index/gather", "errors/index/several at once"]);
}

#[test]
fn a_panic_is_a_failure_of_its_case() {
    let backend = broken("core.sin", |_| panic!("no sine today"));
    let report = run_part(&backend, Section::Operators, "core.si");
    assert_fails_on(&report, &["core.sin/"]);
    let first = report.failures().next().map(|c| c.outcome.detail().to_owned());
    assert_eq!(first.as_deref(), Some("panicked: no sine today"));
}

#[test]
fn expected_failures_are_accounted_for() {
    let options = Options {
        filter: Some("core.relu/forward".into()),
        seeds: 0..1,
        ..Options::default()
    };
    let known = [ExpectedFailure::new("core.relu/*", "for this test").expect("it has a reason")];
    let mut seen = 0;
    let good = run_with(ReferenceBackend::new().device(), &options, &known, &mut |_| seen += 1);
    assert_eq!((seen, good.failed()), (good.cases.len(), good.cases.len()));
    let unexpected = |o: &Outcome| matches!(o, Outcome::UnexpectedPass { .. });
    assert!(good.cases.iter().all(|c| unexpected(&c.outcome)));

    let backend = broken("core.relu", |_| Ok(Vec::new()));
    let bad = run_with(backend.device(), &options, &known, &mut |_| {});
    assert!(bad.is_ok() && bad.passed() == 0, "{bad}");
}

#[test]
fn an_expected_failure_without_a_case_is_a_failure() {
    let options = Options {
        seeds: 0..0,
        max_work: 0,
        ..Options::default()
    };
    let known = [ExpectedFailure::new("core.typo/*", "for this test").expect("it has a reason")];
    let report = run_with(ReferenceBackend::new().device(), &options, &known, &mut |_| {});
    let found = report.failures().any(|c| c.id == "expected failures/core.typo/*");
    assert!(found, "{report}");
}

#[test]
fn reports_are_json_lines() {
    let report = run_part(&ReferenceBackend::new(), Section::Operators, "core.relu/forward");
    assert!(report.is_ok() && report.skipped() > 0, "{report}");
    let text = report.to_json_lines().expect("it serialises");
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|l| serde_json::from_str(l).expect("a line is JSON"))
        .collect();
    assert_eq!(lines.len(), report.cases.len() + 1);
    assert_eq!(lines[0]["outcome"], "pass");
    assert_eq!(lines[report.cases.len()]["passed"], report.passed());
}

#[test]
fn lists_of_expected_failures_are_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("expected.toml");
    let read = |text: &str| {
        std::fs::write(&file, text).expect("written");
        ExpectedFailure::read(&file)
    };
    let list = read("[[expected]]\ncases = 'core.sin/*'\nreason = 'imprecise'\n").expect("a list");
    assert!(list.len() == 1 && list[0].matches("core.sin/forward/x") && list[0].reason() == "imprecise");
    for (wrong, word) in [
        ("[[expected]]\ncases = 'x'\n", "reason"),
        ("[[expected]]\ncases = 'x'\nreason = ' '\n", "no pattern or no reason"),
        ("[[expected]]\ncases = 'x'\nreason = 'y'\nwhy = 'z'\n", "why"),
        ("[expected", "expected.toml"),
    ] {
        let error = read(wrong).expect_err("it is no list").to_string();
        assert!(error.contains(word), "{error}");
    }
    let absent = ExpectedFailure::read(&folder.path().join("absent.toml")).expect_err("it is not there");
    assert!(absent.to_string().contains("absent.toml"), "{absent}");
}

#[test]
fn pages_say_what_lines_say() {
    let options = Options {
        filter: Some("core.relu/forward".into()),
        seeds: 0..1,
        ..Options::default()
    };
    let known = [ExpectedFailure::new("core.relu/*", "<for this test>").expect("it has a reason")];
    let good = run_with(ReferenceBackend::new().device(), &options, &[], &mut |_| {});
    let page = good.to_html();
    assert!(
        page.contains("passes") && page.contains(&format!("{} cases passed, 0 failed", good.passed())),
        "{page}"
    );
    let bad = run_with(ReferenceBackend::new().device(), &options, &known, &mut |_| {});
    let page = bad.to_html();
    assert!(
        page.contains("UNEXPECTED PASS") && page.contains("&lt;for this test&gt;"),
        "{page}"
    );
    assert!(!page.contains("<for this test>"), "{page}");
}

#[test]
fn several_cases_at_a_time_give_the_same_report() {
    let found = |jobs: usize| {
        let options = Options {
            filter: Some("core.s".into()),
            sections: vec![Section::Operators],
            seeds: 0..1,
            jobs,
            ..Options::default()
        };
        let mut seen = 0;
        // A failing kernel, so that there are failures as well.
        let device = broken("core.sin", |_| Err(Error::misuse("it is broken", "mend it"))).device();
        let report = run_with(device, &options, &[], &mut |_| seen += 1);
        assert_eq!(seen, report.cases.len(), "each is seen once");
        let cases = report.cases.iter().map(|case| (case.id.clone(), case.outcome.clone()));
        cases.collect::<Vec<_>>()
    };
    let alone = found(1);
    assert!(alone.len() > 100, "{} cases", alone.len());
    assert!(alone.iter().any(|(_, outcome)| outcome.is_failure()));
    assert!(alone == found(5));
}
