//! Test of the example of a custom fusion rule, with everything that it registers.
// A separate binary: its rule, operator and kernel are registered for the whole process.

#[path = "../examples/custom_fusion_rule.rs"]
mod example;

use std::sync::Arc;

use meganeura::cpu::CpuDevice;
use meganeura::registry;
use meganeura_conformance::{Options, Section};

#[test]
fn it_runs() {
    example::main().expect("the example runs");
}

#[test]
fn what_it_brings_is_listed_without_problems() {
    let sets = registry::rule_sets();
    let mine = sets.iter().find(|s| s.set.namespace == "mine").expect("the set");
    assert_eq!(mine.rules.len(), 1);
    assert!(registry::op("mine.squared_relu").is_some());
    assert_eq!(meganeura::cpu::registered_kernels(), ["mine.squared_relu"]);
    let problems = [
        registry::problems(),
        registry::op_problems(),
        registry::rule_set_problems(),
    ]
    .concat();
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
fn its_kernel_computes_what_its_decomposition_says() {
    let options = Options {
        filter: Some("mine.squared_relu/".into()),
        sections: vec![Section::Operators],
        ..Options::default()
    };
    let report = meganeura_conformance::run(Arc::new(CpuDevice::new(2)), &options);
    assert!(report.is_ok() && report.passed() > 10, "{report}");
}
