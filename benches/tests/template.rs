//! Tests that the backend of `examples/backend-template`, which has two kernels, can be measured.

use meganeura::config::Config;
use meganeura_bench::{BenchDevice, Comparison, Options, Sizes, Suite};

#[path = "../../examples/backend-template/src/lib.rs"]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "a library of its own")]
mod my_backend;

#[test]
fn a_backend_with_two_kernels_is_compared() {
    meganeura::link_plugins!(my_backend).expect("it is linked");
    let config = Config::default();
    let open = |selector| BenchDevice::open(Some(selector), &config).expect("a device");
    let devices = [open("cpu"), open("mine")];
    // Its own rates, because it cannot multiply matrices.
    assert_eq!(devices[1].peak_rates.bytes_per_second, 1e9);
    let options = Options {
        suites: vec![Suite::Pointwise],
        only: Some("relu".into()),
        sizes: Some(Sizes::Small),
        ..Options::default()
    };
    let workloads = options.workloads(&devices).expect("workloads");
    let workload = workloads.first().expect("a workload");
    let mut comparison = Comparison::new(workload, &devices, None);
    comparison.turn();
    let measured = comparison.measurements();
    assert_eq!(measured.len(), 1);
    assert_eq!(measured[0].device, devices[0].selector);
    let [skipped] = &comparison.skipped[..] else {
        panic!("{} devices are skipped", comparison.skipped.len());
    };
    assert_eq!(skipped.device, devices[1].selector);
    assert!(skipped.reason.contains("core.relu"), "{}", skipped.reason);
}
