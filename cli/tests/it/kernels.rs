//! Tests of `explain --kernels`: the source texts of a plan's kernels.

#[cfg(feature = "blade")]
use serde_json::Value;

#[cfg(feature = "blade")]
use super::ran_on_vulkan;
use super::{meganeura, run};

/// Returns the output of `explain MODEL --device blade --kernels`. Without a Vulkan device, prints a note and returns `None`, or
/// fails if one is required.
#[cfg(feature = "blade")]
fn on_a_gpu(model: &str, args: &[&str]) -> Option<String> {
    let all = [&["explain", model, "--device", "blade", "--kernels"], args].concat();
    let (output, out, _) = run(&mut meganeura(&all));
    ran_on_vulkan(&output, "texts of kernels").then_some(out)
}

#[cfg(feature = "blade")]
fn objects(text: &str) -> Vec<Value> {
    let list: Value = serde_json::from_str(text).expect(text);
    list.as_array().expect("an array").clone()
}

#[test]
#[cfg(feature = "blade")]
fn objects_have_what_is_known_of_every_kernel() {
    let Some(out) = on_a_gpu("mlp", &["--train", "--json"]) else {
        return;
    };
    let kernels = objects(&out);
    for kernel in &kernels {
        assert!(kernel["dispatch"].is_u64() && kernel["part"].is_u64(), "{kernel}");
        assert!(kernel["cooperative_matrices"].is_boolean(), "{kernel}");
        assert_eq!(kernel["language"], "wgsl");
        for key in ["label", "kernel", "text"] {
            assert!(kernel[key].as_str().is_some_and(|t| !t.is_empty()), "{key} in {kernel}");
        }
        for key in ["variant", "why"] {
            let known = kernel.get(key).expect("a key");
            assert!(known.is_null() || known.is_string(), "{key} in {kernel}");
        }
        assert!(
            kernel["text"].as_str().is_some_and(|t| t.contains("fn main")),
            "{kernel}"
        );
    }
    // Each dispatch of the plan has one.
    let plan = run(&mut meganeura(&[
        "explain", "mlp", "--device", "blade", "--train", "--json",
    ]))
    .1;
    let plan: Value = serde_json::from_str(&plan).expect("one object");
    let mut numbers: Vec<u64> = kernels.iter().filter_map(|k| k["dispatch"].as_u64()).collect();
    numbers.dedup();
    assert!(numbers.is_sorted());
    assert_eq!(Some(numbers.len() as u64), plan["dispatches"].as_u64());
}

#[test]
#[cfg(feature = "blade")]
fn equal_texts_are_printed_once_with_their_dispatches() {
    let Some(out) = on_a_gpu("resnet50", &[]) else { return };
    let kernels = objects(&on_a_gpu("resnet50", &["--json"]).expect("a device"));
    // Printed texts, and the dispatches that are listed above them.
    let (mut printed, mut listed) = (Vec::new(), Vec::new());
    let mut is_head = false;
    for line in out.lines() {
        let Some(head) = line.strip_prefix("== dispatch") else {
            if is_head {
                printed.push(String::new());
            }
            is_head = false;
            printed.last_mut().expect("a head first").extend([line, "\n"]);
            continue;
        };
        is_head = true;
        assert!(head.contains("; cooperative matrices: "), "{head}");
        let numbers = head.split_once(':').expect("a label").0;
        let numbers = numbers.strip_prefix("es").unwrap_or(numbers).trim();
        listed.extend(numbers.split(", ").map(|n| n.parse::<u64>().expect(n)));
    }
    let mut printed: Vec<&str> = printed.iter().map(|text| text.trim_end()).collect();
    let mut texts: Vec<&str> = kernels.iter().filter_map(|k| k["text"].as_str()).collect();
    texts.iter_mut().for_each(|text| *text = text.trim_end());
    texts.sort_unstable();
    texts.dedup();
    printed.sort_unstable();
    assert!(printed == texts, "{out}");
    assert!(texts.len() < kernels.len() / 2, "blocks are alike");
    listed.sort_unstable();
    let own: Vec<u64> = kernels.iter().filter_map(|k| k["dispatch"].as_u64()).collect();
    assert_eq!(listed, own);
}

#[test]
#[cfg(feature = "blade")]
fn one_dispatch_is_named_by_its_number() {
    let Some(out) = on_a_gpu("mlp", &["--dispatch", "1"]) else {
        return;
    };
    assert!(out.starts_with("== dispatch 1: ") && out.contains("(core."), "{out}");
    assert_eq!(
        out.matches("== dispatch").count(),
        out.matches("fn main").count(),
        "{out}"
    );
    let kernels = objects(&on_a_gpu("mlp", &["--dispatch", "1", "--json"]).expect("a device"));
    assert!(
        !kernels.is_empty() && kernels.iter().all(|k| k["dispatch"] == 1),
        "{kernels:?}"
    );
}

#[test]
fn what_cannot_be_printed_is_said() {
    for (args, expected) in [
        (&["--device", "cpu"][..], "try --device blade"),
        (&["--device", "cpu", "--json"], "no generated kernel sources"),
        (
            &["--device", "cpu", "--dispatch", "9999"],
            "there is no dispatch 9999: the plan for ",
        ),
        (&["--simulated-gpu"], "cannot be used with"),
        (&["--device", "cpu", "--program"], "cannot be used with"),
        (&["--device", "cpu", "--dot"], "cannot be used with"),
        (&["--device", "cpu", "--dispatch", "last"], "invalid value 'last'"),
    ] {
        let all = [&["explain", "mlp", "--kernels"], args].concat();
        let (output, out, err) = run(&mut meganeura(&all));
        assert!(!output.status.success() && out.is_empty(), "{all:?}: {out}");
        assert!(err.contains(expected), "{all:?}: {err}");
        assert!(!err.contains("panicked"), "{err}");
    }
    let (output, _, err) = run(&mut meganeura(&[
        "explain",
        "mlp",
        "--device",
        "cpu",
        "--dispatch",
        "0",
    ]));
    assert!(!output.status.success() && err.contains("--kernels"), "{err}");
    let (_, help, _) = run(&mut meganeura(&["explain", "--help"]));
    assert!(help.contains("--kernels") && help.contains("--dispatch <N>"), "{help}");
}
