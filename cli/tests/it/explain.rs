//! Tests of `meganeura explain`.

use super::{meganeura, run};

/// Returns the report of `explain` as JSON, after checks of the properties of every report.
pub(super) fn explained(args: &[&str]) -> serde_json::Value {
    let args = [&["explain"], args, &["--json"]].concat();
    let (output, out, err) = run(&mut meganeura(&args));
    assert!(output.status.success(), "{args:?}: {err}");
    let report: serde_json::Value = serde_json::from_str(&out).expect("one object");
    let number = |key: &str| {
        report[key]
            .as_u64()
            .unwrap_or_else(|| panic!("{args:?}: {key} in {report}"))
    };
    for key in ["nodes_before", "nodes_after", "num_eclasses", "dispatches", "levels"] {
        assert!(number(key) > 0, "{args:?}: {key}");
    }
    assert!(number("num_enodes") >= number("num_eclasses"), "{args:?}");
    assert!(report["rewrite_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{args:?}");
    assert_eq!(report["extraction_exact"], true, "{args:?}");
    assert!(report["budget_hit"].is_null(), "{args:?}: {}", report["budget_hit"]);
    assert!(number("cost_after_ps") <= number("cost_before_ps"), "{args:?}");
    assert!(number("cost_after_ps") <= number("greedy_cost_ps"), "{args:?}");
    let bytes = ["lower_bound", "planned", "unplanned"].map(|what| number(&format!("peak_bytes_{what}")));
    assert!(0 < bytes[0] && bytes.is_sorted(), "{args:?}: {bytes:?}");
    assert!(report["build_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{args:?}");
    let fusions = report["fusions"].as_array().expect("a list");
    for fusion in fusions {
        for key in ["rule", "rule_set", "name"] {
            assert!(
                fusion[key].as_str().is_some_and(|t| !t.is_empty()),
                "{args:?}: {fusion}"
            );
        }
        // Nodes that were fused before differentiation have no number in the final graph.
        let node = &fusion["node"];
        assert!(node.is_u64() || node.is_null(), "{args:?}: {fusion}");
        assert!(fusion["saving_ps"].is_i64(), "{args:?}: {fusion}");
    }
    let placed = fusions.iter().any(|f| f["node"].is_u64());
    assert!(placed || fusions.is_empty(), "{args:?}: no fusion has a place");
    report
}

/// Returns the number of fusions of a set.
fn fusions_of(report: &serde_json::Value, set: &str) -> usize {
    let fusions = report["fusions"].as_array().expect("a list");
    fusions.iter().filter(|f| f["rule_set"] == set).count()
}

#[test]
fn rewriting_is_explained() {
    let report = explained(&["mlp", "--train", "--device", "cpu"]);
    assert_eq!((&report["model"], &report["mode"]), (&"mlp".into(), &"training".into()));
    assert_eq!(report["device"], "cpu");
    assert!(
        report["cost_after_ps"].as_u64() < report["cost_before_ps"].as_u64(),
        "{report}"
    );
    assert!(fusions_of(&report, "matmul") > 0, "{report}");
    let inference = explained(&["mlp", "--seq", "3", "--simulated-gpu"]);
    assert_eq!(
        (&inference["mode"], &inference["rows"]),
        (&"inference".into(), &3.into())
    );

    let (output, out, err) = run(&mut meganeura(&["explain", "mlp", "--train", "--device", "cpu"]));
    assert!(output.status.success(), "{err}");
    for part in [
        "mlp, training step, 32 rows, for cpu",
        "Optimization Report",
        "Savings by rule",
        "exact",
    ] {
        assert!(out.contains(part), "{part} in {out}");
    }
    let (output, out, err) = run(&mut meganeura(&["explain", "mlp", "--device", "cpu", "--program"]));
    assert!(output.status.success(), "{err}");
    assert!(out.contains("(sort T)") && out.contains("core.matmul"), "{out}");
}

#[test]
fn disabling_a_rule_set_changes_the_report() {
    let base = ["smollm2-135m", "--train", "--simulated-gpu"];
    let with = explained(&base);
    let without = explained(&[&base[..], &["--disable", "packing"]].concat());
    assert!(fusions_of(&with, "packing") > 0);
    assert_eq!(fusions_of(&without, "packing"), 0);
    assert!(with["cost_after_ps"].as_u64() < without["cost_after_ps"].as_u64());
    let names = |report: &serde_json::Value| -> Vec<String> {
        let fired = report["rules_fired"].as_object().expect("an object");
        fired.keys().filter(|k| k.contains("Packed")).cloned().collect()
    };
    assert!(
        !names(&with).is_empty() && names(&without).is_empty(),
        "{:?}",
        names(&without)
    );
    // A disabled set need not apply to the model.
    explained(&["cnn", "--disable", "swiglu", "--device", "cpu"]);
}

#[test]
fn what_cannot_be_explained_is_said() {
    let (output, out, _) = run(&mut meganeura(&["explain"]));
    assert!(output.status.success());
    for model in ["mlp", "cnn", "resnet50", "smollm2-135m"] {
        assert!(out.contains(model), "{model} in {out}");
        let (output, _, err) = run(&mut meganeura(&["explain", "nosuch"]));
        assert!(!output.status.success(), "{err}");
        assert!(err.contains("'nosuch'") && err.contains(model), "{err}");
    }
    for (args, expected) in [
        (vec!["explain", "mlp", "--disable", "nosuch"], "no rule set 'nosuch'"),
        (vec!["explain", "mlp", "--device", "nosuch"], "nosuch"),
        (
            vec!["explain", "mlp", "--device", "cpu", "--simulated-gpu"],
            "cannot be used with",
        ),
        (vec!["explain", "mlp", "--json", "--program"], "cannot be used with"),
    ] {
        let (output, _, err) = run(&mut meganeura(&args));
        assert!(!output.status.success(), "{args:?}");
        assert!(err.contains(expected), "{args:?}: {err}");
    }
}

#[test]
fn the_page_has_the_numbers_of_the_terminal() {
    let folder = tempfile::tempdir().expect("a folder");
    for mode in [&["mlp", "--train"][..], &["cnn"], &["smollm2-135m", "--seq", "2"]] {
        let file = folder.path().join("page.html");
        let args = [&["explain"], mode, &["--device", "cpu", "--json", "--html"]].concat();
        let (output, out, err) = run(meganeura(&args).arg(&file));
        assert!(output.status.success(), "{err}");
        let terminal: serde_json::Value = serde_json::from_str(&out).expect("one object");
        let page = std::fs::read_to_string(&file).expect("a page");
        let plan = super::report::data(&page)["plan"].clone();
        assert_eq!(plan["step_dispatches"], terminal["dispatches"], "{mode:?}");
        assert_eq!(plan["prepared_dispatches"], terminal["prepared_dispatches"], "{mode:?}");
        assert_eq!(plan["step_levels"], terminal["levels"], "{mode:?}");
        assert_eq!(plan["is_recomputed"], !terminal["recomputation"].is_null(), "{mode:?}");
        let all = plan["dispatches"].as_array().expect("a list").len() as u64;
        let parts = ["step_dispatches", "prepared_dispatches"].map(|key| plan[key].as_u64().expect("a number"));
        assert_eq!(parts.iter().sum::<u64>(), all, "{mode:?}");
        assert!(
            !page.contains("data.plan.dispatches.length}"),
            "the tile counts all segments"
        );
    }
}
