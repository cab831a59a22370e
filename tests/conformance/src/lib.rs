//! The conformance suite: requirements for every backend, as runnable cases.
//!
//! A backend author adds this crate as a development dependency and writes
//!
//! ```ignore
//! meganeura_conformance::conformance!(MyBackend::default());
//! ```
//!
//! in an integration test. The command line runs the same cases on any device (`meganeura conformance`).
//! [`ReferenceBackend`] is a complete backend of some 400 lines that passes them; read it as an example.
//!
//! # What is checked
//!
//! | Section | Cases |
//! |---|---|
//! | [`Section::Operators`] | every registered operator (plugins included) on its own samples at several seeds: all results, written states, gradients (before and after optimization), half-precision operands, special values |
//! | [`Section::Training`] | whole training steps of four small models by five update rules: loss, gradients, states, parameters |
//! | [`Section::Semantics`] | feeding, persistence, order of reads and writes, optimizer changes, aliases, empty tensors, determinism, threads |
//! | [`Section::Errors`] | typed errors for wrong data, indices out of range, unknown kernels, accesses out of bounds |
//!
//! # When a result is right
//!
//! The oracle evaluates the graph in `f64` by each operator's definition
//! ([`meganeura_core::reference`]). This is the only rule:
//!
//! - Integers are equal.
//! - A NaN meets a NaN, and an infinity (also by overflow of the element type) the same infinity.
//! - For every other element, `|device - oracle| <= limit * scale`, where `scale` is the largest finite
//!   magnitude in the oracle's tensor, but at least 0.01.
//! - `limit` is the tolerance of the case times `sqrt(1 + w / 64)`, `w` being the largest number of
//!   operations for one result element among the calls of the graph: rounding errors of a sum over `k`
//!   elements grow with `sqrt(k)`.
//! - The tolerance of a forward case is the sample's own (`1e-5` by default), that of a gradient
//!   five times the sample's. Half-precision operands accept at least two units in the last place
//!   of the type. Whole training steps accept `5e-5` for the results of the graph, and `3e-6` for
//!   the update, which is compared with the rule applied to the device's own gradients.
//! - In mixed precision, the tolerance is larger for plans that use cooperative matrices. Rounding
//!   changes each operand of a matmul by up to 2^-11 of its value (of 2^-14, if the value is
//!   smaller), so the error of a matmul is up to `2^-10 sum |a| |b|`. The oracle's matmuls are
//!   perturbed by this error, with random signs, four times: twice the largest difference in a
//!   tensor is added to the tolerance.

mod case;
mod compare;
mod errors;
mod harness;
mod html;
mod operators;
mod options;
mod precision;
mod reference_backend;
mod report;
mod runner;
mod semantics;
mod special_values;
mod storage;
mod training;

pub use options::{ExpectedFailure, Options, Section};
pub use reference_backend::{Hook, ReferenceBackend};
pub use report::{CaseResult, Outcome, Report};
pub use runner::{run, run_on_backend, run_with, run_with_fallback};
pub use special_values::wrong_special_values;

/// Defines tests that run the suite, one for each [`Section`], on the first usable device of a
/// backend: `conformance!(MyBackend::default());`.
///
/// Known failures are listed with their reason; a listed case that passes is a failure:
/// `conformance!(MyBackend::default(), expected: [("core.sin/*", "the driver's sine is imprecise")]);`.
///
/// With a fallback, another backend runs operators for which the backend has neither a kernel nor a
/// decomposition: `conformance!(MyBackend::default(), fallback: meganeura_cpu::CpuBackend);`. A
/// list of failures may follow.
#[macro_export]
macro_rules! conformance {
    ($backend:expr) => {
        $crate::conformance!($backend, expected: []);
    };
    ($backend:expr, expected: [$($known:tt),* $(,)?]) => {
        $crate::conformance!(@all [$($known),*], |section, expected| {
            $crate::run_on_backend(&$backend, section, expected)
        });
    };
    ($backend:expr, fallback: $fallback:expr) => {
        $crate::conformance!($backend, fallback: $fallback, expected: []);
    };
    ($backend:expr, fallback: $fallback:expr, expected: [$($known:tt),* $(,)?]) => {
        $crate::conformance!(@all [$($known),*], |section, expected| {
            $crate::run_with_fallback(&$backend, &$fallback, section, expected)
        });
    };
    (@all $known:tt, |$section:ident, $expected:ident| $run:block) => {
        $crate::conformance!(@test conformance_operators, Operators, $known, |$section, $expected| $run);
        $crate::conformance!(@test conformance_training, Training, $known, |$section, $expected| $run);
        $crate::conformance!(@test conformance_semantics, Semantics, $known, |$section, $expected| $run);
        $crate::conformance!(@test conformance_errors, Errors, $known, |$section, $expected| $run);
    };
    (@test $name:ident, $case:ident, [$($known:tt),*], |$section:ident, $expected:ident| $run:block) => {
        #[test]
        fn $name() {
            let $section = $crate::Section::$case;
            let $expected: &[(&str, &str)] = &[$($known),*];
            match $run {
                Ok(report) if report.is_ok() => {}
                Ok(report) => panic!("{report}"),
                Err(error) => panic!("{error}"),
            }
        }
    };
}
