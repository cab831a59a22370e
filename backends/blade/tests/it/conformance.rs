//! Parts of the conformance suite. `meganeura conformance --device` runs all of it. The cases of the operators take
//! minutes on a software device, which compiles thousands of kernels. Tests of other GPU backends include this file,
//! with their own `common`.

use crate::common;
use meganeura_conformance::{Section, run_on_backend};

fn run(section: Section) {
    if common::device().is_none() {
        return;
    }
    match run_on_backend(&common::BACKEND, section, &[]) {
        Ok(report) if report.is_ok() => {}
        Ok(report) => panic!("{report}"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn training() {
    run(Section::Training);
}

#[test]
fn semantics() {
    run(Section::Semantics);
}

#[test]
fn errors() {
    run(Section::Errors);
}

#[test]
#[ignore = "minutes"]
fn operators() {
    run(Section::Operators);
}
