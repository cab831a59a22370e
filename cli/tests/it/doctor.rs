//! Tests of `meganeura doctor`, with and without drivers.

use super::{meganeura, run};

#[test]
fn a_machine_without_drivers_is_described() {
    let mut command = meganeura(&["doctor"]);
    command.env("VK_DRIVER_FILES", "/no/such/driver.json");
    let (output, out, err) = run(&mut command);
    assert!(output.status.success(), "{out}{err}");
    for part in [
        "cpu, from crate meganeura-cpu",
        "self-test: 6 of 6 cases agree with the reference",
        "NaN and infinity: kept",
        "measured: a step of one call",
        "GFLOP/s",
        "automatic choice: cpu",
        "in use: cpu",
    ] {
        assert!(out.contains(part), "{part} in {out}");
    }
    if cfg!(feature = "blade") {
        let text = out.replace('\n', " ");
        assert!(text.contains("blade, from crate meganeura-blade"), "{out}");
        assert!(
            text.contains("no devices: no usable Vulkan or Metal driver found"),
            "{out}"
        );
        if cfg!(target_os = "linux") {
            assert!(out.contains("/no/such/driver.json (no such file)"), "{out}");
            assert!(out.contains("Vulkan loader"), "{out}");
        }
    }
}

#[test]
fn every_device_is_tested_and_measured() {
    let (output, out, err) = run(&mut meganeura(&["doctor", "--json"]));
    assert!(output.status.success(), "{out}{err}");
    let report: serde_json::Value = serde_json::from_str(&out).expect("one object");
    assert!(report["automatic"]["selector"].is_string(), "{report}");
    assert_eq!(report["in_use"]["chosen_by"], "the default");
    let backends = report["backends"].as_array().expect("backends");
    let devices: Vec<_> = backends
        .iter()
        .flat_map(|b| b["devices"].as_array().expect("devices"))
        .collect();
    assert!(devices.iter().any(|d| d["selector"] == "cpu"), "{report}");
    if std::env::var("MEGANEURA_REQUIRE_VULKAN").as_deref() == Ok("1") {
        let gpu = devices.iter().find(|d| d["selector"] == "blade:0").expect("a device");
        assert!(gpu["details"]["timestamps"].is_string(), "{gpu}");
        assert!(gpu["details"]["cooperative tiles, f16"].is_string(), "{gpu}");
    }
    for device in devices.iter().filter(|d| d["rejected"].is_null()) {
        assert_eq!(device["self_test"]["passed"], device["self_test"]["cases"], "{device}");
        assert_ne!(device["self_test"]["cases"], 0);
        let wrong = device["wrong_special_values"].as_array().expect("expressions");
        assert!(device["selector"] != "cpu" || wrong.is_empty(), "{device}");
        let rate = |name: &str| device["measured"][name].as_f64().unwrap_or_default();
        assert!(rate("step_us") > 0.0, "{device}");
        assert!(
            rate("copy_bytes_per_second") > 1e6 && rate("matmul_flops_per_second") > 1e6,
            "{device}"
        );
    }
}

#[test]
fn a_wrong_choice_is_reported_at_the_end() {
    let mut command = meganeura(&["doctor", "--list"]);
    let (output, out, _) = run(command.env("MEGANEURA_DEVICE_ID", "nonsense"));
    assert!(!output.status.success());
    assert!(
        out.contains("automatic choice: ") && out.contains("in use: none"),
        "{out}"
    );
    assert!(out.contains("nonsense") && !out.contains("self-test"), "{out}");
}
