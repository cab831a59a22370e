//! Tests of `bench --suite`: measurements, comparisons, drawings, and refused options.

use std::path::Path;

use serde_json::Value;

use super::{meganeura, run};

/// Measures small workloads of one suite on the CPU.
fn measured(suite: &str, more: &[&str]) -> (Value, String) {
    let base = [
        "bench",
        "--suite",
        suite,
        "--device",
        "cpu",
        "--sizes",
        "small",
        "--samples",
        "3",
        "--json",
    ];
    let (output, out, err) = run(&mut meganeura(&[&base[..], more].concat()));
    assert!(output.status.success(), "{err}");
    (serde_json::from_str(&out).expect("one record"), err)
}

fn failure(args: &[&str]) -> String {
    let (output, out, err) = run(&mut meganeura(&[&["bench"], args].concat()));
    assert!(!output.status.success(), "{args:?}: {out}");
    err
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("written");
    path.to_string_lossy().into_owned()
}

#[test]
fn every_result_has_its_time_and_its_floor() {
    let (record, told) = measured("matmul,norm,session", &[]);
    assert_eq!(
        (&record["format"], &record["version"]),
        (&"meganeura-bench".into(), &2.into())
    );
    assert_eq!(
        (&record["sizes"], &record["skipped"]),
        (&"small".into(), &Value::Array(Vec::new()))
    );
    let device = &record["devices"][0];
    let peak_rates = &device["peak_rates"];
    assert_eq!(device["selector"], "cpu");
    for rate in ["launch_seconds", "bytes_per_second", "flops_per_second"] {
        assert!(
            peak_rates[rate].as_f64().is_some_and(|rate| rate > 0.0),
            "{rate} in {peak_rates}"
        );
    }
    let results = record["results"].as_array().expect("a list");
    for suite in ["matmul", "norm", "session"] {
        assert!(results.iter().any(|r| r["suite"] == suite), "{suite}");
    }
    for result in results {
        let seconds = |key: &str| result["seconds"][key].as_f64().expect("a number");
        assert!(0.0 < seconds("low") && seconds("low") <= seconds("median"), "{result}");
        assert!(seconds("median") <= seconds("high"), "{result}");
        // Builds and transfers have no roofline.
        let workload = result["workload"].as_str().expect("a name");
        let has_none = [": plan", ": session", "upload", "read-back"]
            .iter()
            .any(|part| workload.contains(part));
        assert_eq!(result["roofline"].is_null(), has_none, "{result}");
    }
    // Two operations for a multiplication and an addition, three matrices, and one launch.
    let product = results
        .iter()
        .find(|r| r["workload"] == "matmul 64x64x64")
        .expect("a product");
    let cost =
        serde_json::json!({ "flops": 2 * 64 * 64 * 64, "bytes": 3 * 4 * 64 * 64, "launches": 1, "dispatches": 1 });
    assert_eq!(product["cost"], cost);
    let of = |of: &str| peak_rates[of].as_f64().expect("a rate");
    let arithmetic = f64::from(2 * 64 * 64 * 64) / of("flops_per_second");
    let memory = f64::from(3 * 4 * 64 * 64) / of("bytes_per_second");
    let roofline = product["roofline"]["seconds"].as_f64().expect("a roofline");
    let expected = arithmetic.max(memory) + of("launch_seconds");
    assert!((roofline / expected - 1.0).abs() < 1e-9, "{roofline}, {expected}");
    let chain = results
        .iter()
        .find(|r| r["workload"] == "a step of 100 matmuls of 2x2")
        .expect("a chain");
    assert_eq!(chain["cost"]["launches"], 100, "{chain}");
    // The same notes are printed for users, on standard error, separate from the record.
    assert!(
        told.contains("workloads are small") && told.contains("matmul 64x64x64"),
        "{told}"
    );
}

#[test]
fn measuring_that_is_broken_off_gives_what_there_is() {
    use std::ops::ControlFlow;

    use meganeura_bench::{BenchDevice, Options, Progress, Sizes, Suite, run};

    let device = BenchDevice::open(Some("cpu"), &meganeura::config::Config::default()).expect("the CPU");
    let options = Options {
        suites: vec![Suite::Pointwise],
        sizes: Some(Sizes::Small),
        samples: 1,
        ..Options::default()
    };
    let mut begun = 0;
    let record = run(&[device], &options, &mut |progress| match progress {
        Progress::Begins(_) => {
            begun += 1;
            ControlFlow::Continue(())
        }
        Progress::Measured(_) | Progress::Skipped(_) => ControlFlow::Break(()),
    });
    assert_eq!((record.expect("a record").results.len(), begun), (1, 1));
}

#[test]
fn a_record_is_compared_with_an_earlier_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut record, _) = measured("pointwise", &["--only", "relu of 1024"]);
    let results = record["results"].as_array_mut().expect("a list");
    assert_eq!(results.len(), 1);
    // As if it had taken a thousandth of the time.
    for key in ["low", "median", "high"] {
        let faster = results[0]["seconds"][key].as_f64().expect("a number") / 1000.0;
        results[0]["seconds"][key] = faster.into();
    }
    let file = write(folder.path(), "before.json", &record.to_string());
    let page = folder.path().join("page.html");
    let shown = page.to_string_lossy();
    let more = ["--only", "relu of", "--compare", &file, "--html", &shown];
    let (_, told) = measured("pointwise", &more);
    for part in ["SLOWER", "0 faster, 1 slower", "2 only in this run"] {
        assert!(told.contains(part), "{part} in {told}");
    }
    let page = std::fs::read_to_string(&page).expect("a page");
    for part in [
        "relu of 16384",
        "class=\"slower\"",
        "Roofline of cpu",
        "<!doctype html>",
        "launch",
    ] {
        assert!(page.contains(part), "{part}");
    }
    // Nothing is loaded from other locations, and drawings are closed.
    for part in ["http:", "https:", "src=", "<script", "NaN", "inf"] {
        assert!(!page.contains(part), "{part}");
    }
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert!(page.matches("<svg").count() >= 2);
    // Narrow pages have a separate layout, and wide tables scroll.
    for part in [
        "name=\"viewport\"",
        "@media (max-width: 640px)",
        "<div class=\"scroll\">",
    ] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn bars_beyond_the_limit_are_marked() {
    let (mut record, _) = measured("pointwise", &["--only", "relu of"]);
    let results = record["results"].as_array_mut().expect("a list");
    assert_eq!(results.len(), 3);
    for (result, share) in results.iter_mut().zip([0.5, 1.2, 4.0]) {
        let bound = result["roofline"]["seconds"].as_f64().expect("a bound");
        for key in ["low", "median", "high"] {
            result["seconds"][key] = (bound / share).into();
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = write(folder.path(), "record.json", &record.to_string());
    let page = meganeura_bench::Record::read(Path::new(&file))
        .expect("a record")
        .html(None);
    let bars: Vec<&str> = page.split("class=\"track ").skip(1).collect();
    assert_eq!(bars.len(), 3);
    let has = |bar: usize, part: &str| bars[bar].split("class=\"work\"").next().expect("a part").contains(part);
    assert!(has(0, "width:33.3%") && has(0, ">50 %, ") && !has(0, "beyond"));
    assert!(has(1, "class=\"beyond\" style=\"left:66.7%;width:13.3%\"") && has(1, ">120 %, "));
    assert!(has(2, "class=\"beyond clipped\"") && has(2, ">400 %, "));
    // The page explains the marks.
    assert!(page.contains("beyond the limit: data in a cache") && page.contains("longer than drawn"));
}

#[test]
fn tables_fit_a_terminal_of_80_columns() {
    let args = "bench --suite pointwise --sizes small --samples 3 --only relu --device cpu";
    let mut command = meganeura(&args.split(' ').collect::<Vec<_>>());
    let (output, out, err) = run(command.env("COLUMNS", "80"));
    assert!(output.status.success(), "{err}");
    let rows = out.lines().skip_while(|line| !line.starts_with("workload ")).take(4);
    let rows: Vec<&str> = rows.collect();
    assert_eq!(rows.len(), 4, "{out}");
    for row in &rows {
        assert!(row.chars().count() <= 80, "{row}");
    }
    assert!(rows[0].contains("of peak") && rows[1].contains("relu of 1024"), "{out}");
    assert!(out.contains("columns that need a wider terminal: "), "{out}");
    for args in [&["ops"][..], &["plugins"], &["explain"], &["explain", "mlp", "--train"]] {
        let (output, out, err) = run(meganeura(args).env("COLUMNS", "80"));
        assert!(output.status.success(), "{err}");
        let long = out.lines().find(|line| line.chars().count() > 80);
        assert!(long.is_none(), "{args:?}: {long:?}");
    }
}

#[test]
fn what_cannot_be_measured_or_compared_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let small = [
        "--suite",
        "pointwise",
        "--sizes",
        "small",
        "--device",
        "cpu",
        "--samples",
        "1",
    ];
    for (args, expected) in [
        (vec!["--suite", "matmuls"], "there is no suite 'matmuls'"),
        (vec!["--suite", "matmul", "--sizes", "huge"], "small, medium or large"),
        (vec!["--suite", "matmul", "--device", "nosuch"], "nosuch"),
        (vec!["--suite", "matmul", "--device", "cpu,nosuch"], "nosuch"),
        (vec!["--suite", "matmul", "mlp"], "cannot be used with"),
        (vec!["--suite", "matmul", "--train"], "cannot be used with"),
        (vec!["mlp", "--html", "x.html"], "--suite"),
        (vec!["--compare", "x.json", "mlp"], "--suite"),
        (vec!["--suite", "matmul", "--samples", "0"], "at least 1 sample"),
        (vec![], "WORKLOAD"),
    ] {
        let err = failure(&args);
        assert!(err.contains(expected), "{args:?}: {err}");
    }
    let err = failure(&[&small[..], &["--only", "nosuch"]].concat());
    assert!(err.contains("'nosuch'") && err.contains("relu of 1024"), "{err}");
    // Files are checked before any measurement.
    for (name, text, expected) in [
        ("text.json", "not json", "no record of measurements"),
        ("other.json", "{\"format\": \"else\"}", "no record of measurements"),
        (
            "later.json",
            "{\"format\": \"meganeura-bench\", \"version\": 99}",
            "has version 99",
        ),
        (
            "cut.json",
            "{\"format\": \"meganeura-bench\", \"version\": 2}",
            "damaged record",
        ),
    ] {
        let file = write(path, name, text);
        let err = failure(&[&small[..], &["--compare", &file]].concat());
        assert!(err.contains(expected) && err.contains(name), "{err}");
    }
    let absent = path.join("absent.json");
    let err = failure(&[&small[..], &["--compare", &absent.to_string_lossy()]].concat());
    assert!(err.contains("cannot be read"), "{err}");
    let (other, _) = measured("optimizer", &["--only", "sgd"]);
    let file = write(path, "optimizer.json", &other.to_string());
    let err = failure(&[&small[..], &["--only", "relu of 1024", "--compare", &file]].concat());
    assert!(err.contains("no result in common"), "{err}");
    let nowhere = path.join("nowhere").join("page.html");
    let err = failure(
        &[
            &small[..],
            &["--only", "relu of 1024", "--html", &nowhere.to_string_lossy()],
        ]
        .concat(),
    );
    assert!(err.contains("page.html"), "{err}");
}

#[test]
fn single_works_run_on_every_device_that_is_named() {
    let args = ["bench", "--device", "cpu,cpu", "--steps", "1", "--json", "4x4x4"];
    let (output, out, err) = run(&mut meganeura(&args));
    assert!(output.status.success(), "{err}");
    assert_eq!(out.lines().count(), 2, "{out}");
}

#[test]
fn curves_of_losses_are_compared() {
    let base = ["bench", "--device", "cpu", "--curve", "4"];
    let workloads = [
        "--suite",
        "models",
        "--only",
        "training step of 32",
        "--sizes",
        "small",
        "--json",
    ];
    let (output, out, err) = run(&mut meganeura(&[&base[..], &workloads].concat()));
    assert!(output.status.success(), "{err}");
    let all: Value = serde_json::from_str(&out).expect("a list");
    let names: Vec<_> = all
        .as_array()
        .expect("a list")
        .iter()
        .map(|c| c["workload"].as_str())
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
    for curves in all.as_array().expect("a list") {
        let losses = curves["curves"][0]["losses"].as_array().expect("losses");
        let losses: Vec<f64> = losses.iter().map(|loss| loss.as_f64().expect("a number")).collect();
        assert!(losses.len() == 4 && losses[3] < losses[0], "{curves}");
    }
    // For a named workload: a table, with as many classes as logits, and no reference to compare with.
    let (output, out, err) = run(&mut meganeura(&[&base[..], &["--train", "mlp"]].concat()));
    assert!(output.status.success() && out.contains("cpu f32"), "{out}{err}");
    assert!(out.contains("no other curve to compare with"), "{out}");
    let loss = out.lines().find_map(|line| line.trim().strip_prefix("1 "));
    let loss: f64 = loss.expect("a first step").trim().parse().expect("a loss");
    assert!((loss - 10f64.ln()).abs() < 1.0, "{out}");
    for (args, said) in [
        (&["--curve", "4", "mlp"][..], "add --train"),
        (&["--curve", "0", "--train", "mlp"], "at least 1 step"),
        (
            &["--curve", "4", "--suite", "matmul", "--device", "cpu"],
            "--suite models",
        ),
        (
            &["--curve", "4", "--train", "mlp", "--html", "x.html"],
            "cannot be used",
        ),
    ] {
        let err = failure(args);
        assert!(err.contains(said), "{args:?}: {err}");
    }
}

#[test]
fn results_of_other_devices_say_how_far_they_are_off() {
    use meganeura_bench::{Comparison, Sizes, Suite, workloads};

    let config = meganeura::config::Config::default();
    let open = || meganeura_bench::BenchDevice::open(Some("cpu"), &config).expect("the processor");
    let devices = [open(), open()];
    let workloads = workloads(Suite::Norm, Sizes::Small);
    let mut comparison = Comparison::new(&workloads[0], &devices, None);
    let measured = comparison.measure(1);
    let off: Vec<Option<f64>> = measured.iter().map(|m| m.difference).collect();
    assert_eq!(off, [None, Some(0.0)]);
}
