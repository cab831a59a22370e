//! Execution of cases, one after the other or several at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Instant;

use meganeura_core::backend::{Backend, Device};
use meganeura_core::config::Config;
use meganeura_core::error::{Error, Result};
use meganeura_core::fallback::WithFallback;

use crate::case::{Case, Failure, SharedDevice, fail};
use crate::options::{ExpectedFailure, Options, Section};
use crate::precision::AtPrecision;
use crate::report::{CaseResult, Outcome, Report};
use crate::{errors, operators, semantics, training};

/// Runs the suite on a device.
pub fn run(device: Arc<dyn Device>, options: &Options) -> Report {
    run_with(device, options, &[], &mut |_| {})
}

/// Runs the suite on a device with expected failures. Calls `on_case` after each case.
pub fn run_with(
    device: Arc<dyn Device>,
    options: &Options,
    expected: &[ExpectedFailure],
    on_case: &mut dyn FnMut(&CaseResult),
) -> Report {
    let start = Instant::now();
    let counting = AtPrecision::new(device, options.precision);
    let device: SharedDevice = counting.clone();
    let mut report = Report {
        device: device.capabilities().name.clone(),
        precision: options.precision,
        on_tensor_cores: 0,
        cases: Vec::new(),
        skipped: 0,
        elapsed: start.elapsed(),
    };
    let mut used = vec![false; expected.len()];
    let mut chosen = Vec::new();
    for section in Section::ALL.into_iter().filter(|s| options.sections.contains(s)) {
        for case in cases(section, options) {
            if options.filter.as_ref().is_some_and(|f| !case.id.contains(f)) {
                report.skipped += 1;
                continue;
            }
            let position = expected.iter().position(|e| e.matches(&case.id));
            let known = position.map(|i| {
                used[i] = true;
                &expected[i]
            });
            chosen.push((case, known));
        }
    }
    report.cases = run_all(&device, chosen, options.jobs, on_case);
    if options.is_complete() {
        let unused = expected.iter().zip(&used).filter(|(_, used)| !**used);
        for result in unused.map(|(e, _)| unused_expectation(e)) {
            on_case(&result);
            report.cases.push(result);
        }
    }
    report.on_tensor_cores = counting.on_units();
    report.elapsed = start.elapsed();
    report
}

/// Runs a section on the first usable device of a backend, for
/// [`conformance!`](crate::conformance). `expected` holds patterns and reasons of
/// [`ExpectedFailure`]s.
///
/// # Errors
/// A backend without a usable device; expected failures without a reason.
pub fn run_on_backend(backend: &dyn Backend, section: Section, expected: &[(&str, &str)]) -> Result<Report> {
    run_section(open_first(backend)?, section, expected)
}

/// Runs a section like [`run_on_backend`], with a fallback backend for operators without a kernel
/// and a decomposition ([`WithFallback`]).
///
/// # Errors
/// The errors of [`run_on_backend`], for either backend.
pub fn run_with_fallback(
    backend: &dyn Backend,
    fallback: &dyn Backend,
    section: Section,
    expected: &[(&str, &str)],
) -> Result<Report> {
    let both = WithFallback::new(open_first(backend)?, open_first(fallback)?);
    run_section(Arc::new(both), section, expected)
}

/// Opens the first usable device.
fn open_first(backend: &dyn Backend) -> Result<SharedDevice> {
    let config = Config::default();
    let devices = backend.devices(&config)?;
    let usable = devices.iter().find(|d| d.rejected.is_none()).ok_or_else(|| {
        Error::backend(
            backend.info().name,
            format!("none of {} devices is usable", devices.len()),
        )
    })?;
    backend.open(usable.index, &config)
}

fn run_section(device: SharedDevice, section: Section, expected: &[(&str, &str)]) -> Result<Report> {
    let expected = expected
        .iter()
        .map(|&(pattern, reason)| ExpectedFailure::new(pattern, reason))
        .collect::<Result<Vec<_>>>()?;
    let options = Options {
        sections: vec![section],
        ..Options::default()
    };
    Ok(run_with(device, &options, &expected, &mut |_| {}))
}

fn cases(section: Section, options: &Options) -> Vec<Case> {
    match section {
        Section::Operators => operators::cases(options),
        Section::Training => training::cases(options.precision),
        Section::Semantics => semantics::cases(),
        Section::Errors => errors::cases(),
    }
}

/// Stack size of the threads that run cases: some functions traverse graphs recursively.
const STACK: usize = 16 << 20;

/// Runs cases on `jobs` threads, and returns their results in the order of the cases.
fn run_all(
    device: &SharedDevice,
    cases: Vec<(Case, Option<&ExpectedFailure>)>,
    jobs: usize,
    on_case: &mut dyn FnMut(&CaseResult),
) -> Vec<CaseResult> {
    let mut results: Vec<Option<CaseResult>> = std::iter::repeat_with(|| None).take(cases.len()).collect();
    let queue = Mutex::new(cases.into_iter().enumerate());
    // A panic cannot leave the queue half changed.
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = |done: &mut dyn FnMut(usize, CaseResult)| {
        while let Some((number, (case, known))) = next() {
            done(number, run_case(device, case, known));
        }
    };
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 1..jobs {
            let (sender, work) = (sender.clone(), &work);
            let builder = std::thread::Builder::new().stack_size(STACK);
            // If no further thread can be started, the existing ones do the work.
            let _ = builder.spawn_scoped(scope, move || {
                work(&mut |number, result| {
                    let _ = sender.send((number, result));
                });
            });
        }
        drop(sender);
        let mut take = |number: usize, result: CaseResult| {
            on_case(&result);
            results[number] = Some(result);
        };
        work(&mut |number, result| {
            take(number, result);
            receiver.try_iter().for_each(|(number, result)| take(number, result));
        });
        receiver.iter().for_each(|(number, result)| take(number, result));
    });
    results.into_iter().flatten().collect()
}

fn run_case(device: &SharedDevice, case: Case, expected: Option<&ExpectedFailure>) -> CaseResult {
    let start = Instant::now();
    let run = case.run;
    // A backend that panics fails the case, not the run.
    let result = catch_unwind(AssertUnwindSafe(|| run(device)))
        .unwrap_or_else(|payload| fail(format!("panicked: {}", panic_message(&*payload))));
    let tolerance = result.as_ref().map_or(0.0, |c| c.tolerance);
    let outcome = match (result, expected) {
        (Ok(check), None) => Outcome::Pass { error: check.error },
        (Ok(_), Some(e)) => Outcome::UnexpectedPass {
            reason: e.reason().to_owned(),
        },
        (Err(Failure::Wrong(message) | Failure::Unsupported { reason: message, .. }), Some(e)) => {
            Outcome::ExpectedFailure {
                reason: e.reason().to_owned(),
                message,
            }
        }
        (Err(Failure::Wrong(message)), None) => Outcome::Fail { message },
        (Err(Failure::Unsupported { reason, kernels }), None) => Outcome::Unsupported { reason, kernels },
    };
    CaseResult {
        id: case.id,
        outcome,
        tolerance,
        elapsed: start.elapsed(),
    }
}

fn panic_message(payload: &(dyn std::any::Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}

fn unused_expectation(expected: &ExpectedFailure) -> CaseResult {
    CaseResult {
        id: format!("expected failures/{}", expected.pattern()),
        outcome: Outcome::Fail {
            message: "no case matches this pattern".into(),
        },
        tolerance: 0.0,
        elapsed: std::time::Duration::ZERO,
    }
}
