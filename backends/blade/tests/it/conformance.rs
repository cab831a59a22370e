//! Parts of the conformance suite. `meganeura conformance --device blade` runs all of it; the cases of the operators
//! take minutes on a software device.

use crate::common;
use meganeura_blade::BladeBackend;
use meganeura_conformance::{Section, run_on_backend};

fn run(section: Section) {
    if common::device().is_none() {
        return;
    }
    match run_on_backend(&BladeBackend, section, &[]) {
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
#[ignore = "minutes on a software device"]
fn operators() {
    run(Section::Operators);
}
