//! Tests of the page of `meganeura explain --html`, and of the graph for Graphviz.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use meganeura::backend::KernelSource;
use meganeura::{ExecutionPlan, Graph};
use meganeura_cli::report;
use serde_json::Value;

fn explain(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meganeura"));
    command.arg("explain").args(args).env_remove("MEGANEURA_DEVICE_ID");
    command.output().expect("the program runs")
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Returns the data that a page contains.
pub(super) fn data(page: &str) -> Value {
    let begin = page
        .split_once(r#"<script type="application/json" id="data">"#)
        .expect("data")
        .1;
    let text = begin.split_once("</script>").expect("an end").0;
    serde_json::from_str(text).expect(text)
}

#[test]
fn the_page_holds_both_graphs_and_the_plan() {
    let file = folder("page").join("mlp.html");
    let path = file.to_str().expect("a path");
    let output = explain(&["mlp", "--train", "--device", "cpu", "--html", path, "--profile", "2"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("The page is in"));
    let page = std::fs::read_to_string(&file).expect("a page");
    assert!(!page.contains("{{"), "a part is missing");
    // The page must open without a network.
    for reference in ["http://", "https://", "src=", "@import", "<link"] {
        assert!(!page.contains(reference), "{reference}");
    }
    let data = data(&page);
    let count = |side: &str| data[side]["nodes"].as_array().expect("nodes").len();
    assert!(
        count("before") > count("after"),
        "{} and {}",
        count("before"),
        count("after")
    );
    for side in ["before", "after"] {
        let texts = data[side]["texts"].as_array().expect("texts").len();
        for (id, node) in data[side]["nodes"].as_array().expect("nodes").iter().enumerate() {
            assert!(
                node.as_array().expect("a node")[..6]
                    .iter()
                    .all(|t| t.as_u64().is_some_and(|t| t < texts as u64))
            );
            for input in node[8].as_array().expect("operands") {
                let input = input.as_u64().expect("a number") as usize;
                let y = |i: usize| data[side]["nodes"][i][7].as_u64();
                assert!(y(input) < y(id), "{side}: {input} above {id}");
            }
        }
    }
    let dispatches = data["plan"]["dispatches"].as_array().expect("dispatches");
    assert!(
        dispatches.iter().all(|d| d["ps"].as_u64() > Some(0)),
        "each has a price"
    );
    let in_segments: u64 = data["plan"]["segments"]
        .as_array()
        .expect("segments")
        .iter()
        .map(|s| s["count"].as_u64().expect("a count"))
        .sum();
    assert_eq!(in_segments, dispatches.len() as u64);
    let timings = data["timings"].as_array().expect("measured passes");
    assert!(
        timings
            .iter()
            .all(|t| t["count"].as_u64() >= Some(2) && t["us"].as_f64() > Some(0.0)),
        "{timings:?}"
    );
    let tensors = data["tensors"].as_array().expect("tensors");
    for kind in ["parameter", "gradient", "activation"] {
        let own: Vec<&Value> = tensors.iter().filter(|t| t["kind"] == kind).collect();
        assert!(own.len() >= 4, "{kind}: {own:?}");
        for tensor in own {
            let counts = tensor["finite"]["counts"].as_array().expect("a histogram");
            let sum: u64 = counts.iter().filter_map(Value::as_u64).sum();
            assert!(sum > 0 && Some(sum) == tensor["len"].as_u64(), "{tensor}");
        }
    }
    assert!(page.contains("class TensorTable"));
    // Kernels of the forward pass are not named after the comparison that they store for the gradient.
    let labels = dispatches.iter().map(|d| d["label"].as_str().expect("a label"));
    let forward: Vec<&str> = labels.take_while(|label| !label.starts_with("loss.grad")).collect();
    assert!(forward.len() >= 3 && forward.len() < dispatches.len(), "{forward:?}");
    assert!(forward.iter().all(|label| !label.contains(".grad")), "{forward:?}");
    // Narrow pages have a separate layout, and the wheel scrolls.
    for part in [
        "name=\"viewport\"",
        "@media (max-width: 640px)",
        "Ctrl (or ⌘) and the wheel",
        "if (!e.ctrlKey && !e.metaKey) return;",
        "id=\"map-legend\"",
    ] {
        assert!(page.contains(part), "{part}");
    }
    // The page contains its origin.
    let facts = data["environment"].to_string();
    assert!(
        facts.contains("rule sets") && facts.contains(env!("CARGO_PKG_VERSION")),
        "{facts}"
    );
    let left = std::fs::read_dir(file.parent().expect("a folder"))
        .expect("a listing")
        .count();
    assert_eq!(left, 1, "nothing but the page stays");
}

/// Returns a page about a small graph, with kernels.
fn page_with(title: &str, plan: &ExecutionPlan, g: &Graph, kernels: &[KernelSource]) -> String {
    let page = report::Report {
        title: title.into(),
        environment: Vec::new(),
        before: g,
        after: g,
        optimization: &meganeura::OptimizeReport::default(),
        plan,
        kernels,
        target: &meganeura::rewrite::SimulatedDevice::discrete_gpu(),
        timings: None,
        tensors: &[],
    };
    page.html().expect("a page")
}

#[test]
fn kernels_are_written_once_and_named_by_their_dispatches() {
    let mut g = Graph::new();
    let mut x = g.input("x", &[2]);
    for _ in 0..3 {
        x = g.relu(x);
    }
    g.set_outputs(vec![x]);
    let mut plan = meganeura::plan::try_compile(&g).expect("a plan");
    plan.dispatches[0].variant = Some("rows".into());
    plan.dispatches[1].use_coop = true;
    let kernel = |dispatch, part, text: &str| KernelSource {
        dispatch,
        part,
        language: "wgsl",
        text: text.into(),
        variant: None,
        why: None,
    };
    let shared = "let a: vec4<f32> = b < c; // </script>{{data}}";
    let chosen = KernelSource {
        variant: Some("tiles".into()),
        why: Some("Tuning measured it to be 1.5 times as fast.".into()),
        ..kernel(1, 1, "other")
    };
    // The kernel of a missing dispatch is omitted.
    let kernels = [
        kernel(0, 0, shared),
        kernel(1, 0, shared),
        chosen,
        kernel(99, 0, "none"),
    ];
    let page = page_with("a graph", &plan, &g, &kernels);
    assert_eq!(page.matches("</script>").count(), 2, "the data's and the program's");
    assert_eq!(page.matches("let a: vec4").count(), 1, "equal texts are there once");
    assert!(page.contains("class KernelCard") && page.contains(r#"id="kernel""#));
    let data = data(&page);
    assert_eq!(data["kernels"], serde_json::json!([shared, "other"]));
    let dispatches = data["plan"]["dispatches"].as_array().expect("dispatches");
    let own = |i: usize| dispatches[i]["kernels"].as_array().expect("a list");
    assert_eq!(own(0)[0]["text"], own(1)[0]["text"]);
    assert_eq!((own(0).len(), own(1).len(), own(2).len()), (1, 2, 0));
    // The plan's variant is used if the text has none.
    assert_eq!(
        (&own(0)[0]["variant"], &own(1)[1]["variant"]),
        (&"rows".into(), &"tiles".into())
    );
    assert!(own(1)[1]["why"].as_str().is_some_and(|why| why.contains("1.5 times")));
    assert_eq!(
        (&dispatches[0]["coop"], &dispatches[1]["coop"]),
        (&false.into(), &true.into())
    );
}

#[test]
fn pages_of_devices_without_texts_have_no_kernels() {
    let file = folder("textless").join("mlp.html");
    let path = file.to_str().expect("a path");
    let output = explain(&["mlp", "--device", "cpu", "--html", path]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let data = data(&std::fs::read_to_string(&file).expect("a page"));
    assert_eq!(data["kernels"], serde_json::json!([]));
    let dispatches = data["plan"]["dispatches"].as_array().expect("dispatches");
    assert!(dispatches.iter().all(|d| d["kernels"] == serde_json::json!([])));
}

#[test]
#[cfg(feature = "blade")]
fn pages_of_gpus_have_the_kernels_of_every_dispatch() {
    let file = folder("kernels").join("mlp.html");
    let path = file.to_str().expect("a path");
    let output = explain(&["mlp", "--train", "--device", "blade", "--html", path]);
    if !super::ran_on_vulkan(&output, "texts of kernels") {
        return;
    }
    let data = data(&std::fs::read_to_string(&file).expect("a page"));
    let texts = data["kernels"].as_array().expect("texts");
    let distinct: std::collections::HashSet<&str> = texts.iter().filter_map(Value::as_str).collect();
    assert_eq!(distinct.len(), texts.len(), "equal texts are there once");
    for dispatch in data["plan"]["dispatches"].as_array().expect("dispatches") {
        let kernels = dispatch["kernels"].as_array().expect("a list");
        assert!(!kernels.is_empty(), "{dispatch}");
        assert!(
            kernels
                .iter()
                .all(|k| k["text"].as_u64().is_some_and(|n| n < texts.len() as u64)),
            "{dispatch}"
        );
    }
}

#[test]
fn names_cannot_break_the_page() {
    let name = "</script><b>\"bold\"</b>{{program}}{{data}}";
    let mut g = Graph::new();
    let x = g.input(name, &[2]);
    let y = g.relu(x);
    g.set_outputs(vec![y]);
    let plan = meganeura::plan::try_compile(&g).expect("a plan");
    let page = page_with(name, &plan, &g, &[]);
    assert_eq!(page.matches("</script>").count(), 2, "the data's and the program's");
    let data = data(&page);
    assert!(
        data["before"]["texts"]
            .as_array()
            .expect("texts")
            .contains(&Value::from(name))
    );
}

#[test]
fn graphviz_gets_every_node_and_edge() {
    let output = explain(&["mlp", "--device", "cpu", "--dot"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("digraph") && text.trim_end().ends_with('}'), "{text}");
    assert!(text.contains("core.fused") && text.contains("f32["), "{text}");
    assert!(
        text.matches(" -> ").count() >= text.matches("[label=").count() - 1,
        "{text}"
    );
}

#[test]
fn a_page_that_cannot_be_written_is_an_error() {
    let missing = folder("nowhere").join("absent").join("page.html");
    let output = explain(&["mlp", "--device", "cpu", "--html", missing.to_str().expect("a path")]);
    assert!(!output.status.success());
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.contains("could not be written") && err.contains("absent"), "{err}");
    let output = explain(&["mlp", "--device", "cpu", "--profile", "3"]);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("--html"),
        "profiling is for the page"
    );
}
