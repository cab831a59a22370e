//! The backend test cases of the `onnx` package: models of one or a few operators, with inputs and expected results.
//!
//! `scripts/verify-external/write_onnx_cases.py FOLDER` writes them, and `MEGANEURA_ONNX_CASES` names the folder. Without it
//! the tests are skipped, or fail if `MEGANEURA_REQUIRE_ONNX` is 1. `MEGANEURA_ONNX_FILTER` selects cases whose names contain
//! its value. The CPU runs all cases. Vulkan runs a sample, and all cases if `MEGANEURA_ONNX_ALL` is 1.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meganeura_blade::BladeBackend;
use meganeura_compiler::Builder;
use meganeura_core::backend::{Backend as _, Device};
use meganeura_core::config::Config;
use meganeura_onnx::{ElementType, Error, Model, Runner, Tensor};

/// Outcome of a case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Passed,
    /// The importer does not support it.
    Refused(String),
    Failed(String),
}

/// Parts of error messages, with the descriptions of the reasons in `docs/onnx.md`.
const REASONS: [(&str, &str); 9] = [
    ("strings are not supported", "strings"),
    (
        "sequences, maps, optional values and sparse tensors are not supported",
        "sequences, maps or optional values as inputs or results of the model",
    ),
    ("ImageDecoder", "`ImageDecoder`"),
    (
        "Bernoulli",
        "random numbers: of `Bernoulli` only types and shapes are compared; `Dropout` in training is not supported",
    ),
    (
        "does not fit into f32",
        "`float64` inputs of 1e198 and more, which `float32` does not hold",
    ),
    ("floats of 8 bits without a mantissa", "floats of the type `float8e8m0`"),
    (
        "ai.onnx.preview.training.Gradient",
        "`ai.onnx.preview.training.Gradient`",
    ),
    (
        "does not fit into i32",
        "`BitCast` to an integer that needs more than 32 bits",
    ),
    ("", "others"),
];

/// Returns the entry of [`REASONS`] for a refusal.
fn reason(message: &str) -> &'static str {
    let message = if message.starts_with("Dropout") {
        "Bernoulli"
    } else {
        message
    };
    let found = REASONS.iter().find(|(said, _)| message.contains(said));
    found.map_or("others", |(_, reason)| reason)
}

/// Returns the lines of `docs/onnx.md` with the number of cases that pass, and the reasons why others do not.
fn lines(counts: &BTreeMap<&str, [usize; 3]>, refusals: &BTreeMap<&str, usize>) -> Vec<String> {
    let kinds = counts.iter().map(|(kind, [passed, refused, failed])| {
        let kind = match *kind {
            "node" => "node cases of the package `onnx` 1.23.2".into(),
            kind => format!("`{kind}`"),
        };
        format!("| {kind} | {passed} | {refused} | {failed} |")
    });
    let reasons = refusals.iter().map(|(reason, count)| format!("| {count} | {reason} |"));
    kinds.chain(reasons).collect()
}

pub(super) fn device() -> Arc<dyn Device> {
    meganeura_compiler::link_plugins!(meganeura_cpu, meganeura_rules).expect("they are linked");
    Arc::new(meganeura_cpu::CpuDevice::new(2))
}

fn folder() -> Option<PathBuf> {
    let found = std::env::var_os("MEGANEURA_ONNX_CASES").map(PathBuf::from);
    if found.is_none() {
        println!("ONNX-NOT-TESTED: MEGANEURA_ONNX_CASES names no folder of cases");
        assert_ne!(
            std::env::var("MEGANEURA_REQUIRE_ONNX").as_deref(),
            Ok("1"),
            "the cases of ONNX are required"
        );
    }
    found
}

/// Vulkan runs one case out of this number of cases, unless all are requested.
const SAMPLE: usize = 20;

/// Returns the cases in a folder, sorted by name.
fn cases(folder: &Path) -> Vec<(String, PathBuf)> {
    let filter = std::env::var("MEGANEURA_ONNX_FILTER").unwrap_or_default();
    let mut found = Vec::new();
    for kind in KINDS {
        for entry in std::fs::read_dir(folder.join(kind)).expect("a folder of cases") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            if name.contains(&filter) {
                found.push((format!("{kind}/{name}"), path));
            }
        }
    }
    found.sort();
    found
}

/// Reads `PREFIX_0.pb`, `PREFIX_1.pb`... in a folder.
fn tensors(folder: &Path, prefix: &str) -> Result<Vec<Tensor>, String> {
    let mut found = Vec::new();
    loop {
        let path = folder.join(format!("{prefix}_{}.pb", found.len()));
        if !path.exists() {
            return Ok(found);
        }
        let bytes = std::fs::read(&path).expect("a file of data");
        found.push(Tensor::from_proto(&bytes).map_err(|e| format!("{prefix} {}: {e}", found.len()))?);
    }
}

/// Returns the relative and absolute tolerance of a case.
fn tolerance(case: &Path) -> (f64, f64) {
    let Ok(text) = std::fs::read_to_string(case.join("tolerance.json")) else {
        return (1e-3, 1e-7);
    };
    let values: BTreeMap<String, f64> = serde_json::from_str(&text).expect("tolerances");
    (values["rtol"], values["atol"])
}

fn differs(found: &Tensor, wanted: &Tensor, (rtol, atol): (f64, f64)) -> Option<String> {
    if found.dims() != wanted.dims() {
        return Some(format!("shape {:?} instead of {:?}", found.dims(), wanted.dims()));
    }
    if found.element() != wanted.element() {
        return Some(format!("{} instead of {}", found.element(), wanted.element()));
    }
    // `f32` sums with cancellation have no small relative error, and 16-bit types are rounded at other steps than in the
    // reference.
    let (rtol, floor) = match found.element() {
        ElementType::BF16 => (rtol.max(1.0 / 128.0), 1.0 / 128.0),
        ElementType::F16 => (rtol.max(1.0 / 512.0), 1.0 / 1024.0),
        element if element.is_float() => (rtol, atol.max(1e-6)),
        _ => (0.0, 0.0),
    };
    let (a, b) = (found.to_f64(), wanted.to_f64());
    let wrong = a.iter().zip(&b).position(|(&a, &b)| {
        let same = a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= floor + rtol * b.abs();
        !same
    })?;
    Some(format!("element {wrong} is {} instead of {}", a[wrong], b[wrong]))
}

/// Returns true for a case whose results are random numbers of NumPy's generator.
fn is_random(case: &Path) -> bool {
    case.file_name()
        .is_some_and(|name| name.to_string_lossy().contains("bernoulli"))
}

fn run(case: &Path, device: &Arc<dyn Device>) -> Outcome {
    let model = match Model::open(case.join("model.onnx")) {
        Ok(model) => model,
        Err(e) if e.to_string().contains("not supported") => return Outcome::Refused(e.to_string()),
        Err(e) => return Outcome::Failed(e.to_string()),
    };
    let builder = Builder::on(device.clone());
    let tolerance = tolerance(case);
    for set in 0.. {
        let data = case.join(format!("test_data_set_{set}"));
        if !data.exists() {
            break;
        }
        let (inputs, wanted) = match (tensors(&data, "input"), tensors(&data, "output")) {
            (Ok(inputs), Ok(wanted)) => (inputs, wanted),
            (Err(e), _) | (_, Err(e)) => return Outcome::Refused(e),
        };
        let mut runner = match Runner::for_inputs(&model, &inputs, &builder) {
            Ok(runner) => runner,
            Err(Error::Unsupported(report)) => {
                let issues: Vec<String> = report.issues.iter().map(|i| i.to_string()).collect();
                return Outcome::Refused(issues.join("; "));
            }
            Err(e) => return Outcome::Failed(e.to_string()),
        };
        let found = match runner.run(&inputs) {
            Ok(found) => found,
            // 64-bit numbers that a graph does not support.
            Err(Error::Input(message)) if message.contains("does not fit into") => return Outcome::Refused(message),
            Err(e) => return Outcome::Failed(e.to_string()),
        };
        if is_random(case) {
            let shape_of = |t: &Tensor| (t.dims().to_vec(), t.element());
            let shapes = found.iter().map(shape_of).eq(wanted.iter().map(shape_of));
            return if shapes {
                Outcome::Refused("Bernoulli: only types and shapes are compared".into())
            } else {
                Outcome::Failed("types or shapes of random numbers differ".into())
            };
        }
        for (i, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            if let Some(message) = differs(found, wanted, tolerance) {
                return Outcome::Failed(format!("output {i}: {message}"));
            }
        }
    }
    Outcome::Passed
}

/// Counts of passed, refused and failed cases by kind, counts of the reasons of refusals, and names of failed cases.
#[derive(Default)]
struct Report {
    counts: BTreeMap<&'static str, [usize; 3]>,
    refusals: BTreeMap<&'static str, usize>,
    failures: Vec<String>,
}

const KINDS: [&str; 4] = ["node", "simple", "pytorch-converted", "pytorch-operator"];

/// Runs cases on a device and prints those that do not pass.
fn report(cases: Vec<(String, PathBuf)>, device: &Arc<dyn Device>) -> Report {
    let mut report = Report::default();
    for (name, path) in cases {
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&path, device)));
        let outcome = outcome.unwrap_or_else(|_| Outcome::Failed("it panicked".into()));
        let kind = KINDS.into_iter().find(|kind| name.starts_with(&format!("{kind}/")));
        let count = report.counts.entry(kind.expect("a kind")).or_default();
        match outcome {
            Outcome::Passed => count[0] += 1,
            Outcome::Refused(message) => {
                count[1] += 1;
                *report.refusals.entry(reason(&message)).or_default() += 1;
                println!("REFUSED {name}: {message}");
            }
            Outcome::Failed(message) => {
                count[2] += 1;
                println!("FAILED {name}: {message}");
                report.failures.push(name);
            }
        }
    }
    for (kind, [passed, refused, failed]) in &report.counts {
        println!("{kind}: {passed} passed, {refused} refused, {failed} failed");
    }
    report
}

#[test]
fn cases_of_the_onnx_package_pass() {
    let Some(folder) = folder() else { return };
    let Report {
        counts,
        refusals,
        failures,
    } = report(cases(&folder), &device());
    assert!(failures.is_empty(), "{} cases failed: {failures:?}", failures.len());
    if std::env::var_os("MEGANEURA_ONNX_FILTER").is_some() {
        return;
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/onnx.md");
    let document = std::fs::read_to_string(path).expect("the document");
    let missing: Vec<String> = lines(&counts, &refusals)
        .into_iter()
        .filter(|line| !document.lines().any(|found| found == line))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/onnx.md lacks these lines:\n{}",
        missing.join("\n")
    );
}

/// Returns the first usable Vulkan device. Without one, reports a skipped test, or fails if `MEGANEURA_REQUIRE_VULKAN` is 1.
fn vulkan() -> Option<Arc<dyn Device>> {
    device(); // links the rules and decompositions
    let config = Config::default();
    let devices = BladeBackend.devices(&config).expect("a listing");
    if let Some(usable) = devices.iter().find(|d| d.rejected.is_none()) {
        return Some(BladeBackend.open(usable.index, &config).expect("it opens"));
    }
    println!("VULKAN-NOT-TESTED: the cases of ONNX need a Vulkan device: {devices:?}");
    let required = std::env::var("MEGANEURA_REQUIRE_VULKAN");
    assert_ne!(required.as_deref(), Ok("1"), "a Vulkan device is required");
    None
}

#[test]
fn cases_of_the_onnx_package_pass_on_vulkan() {
    let Some(folder) = folder() else { return };
    let Some(device) = vulkan() else { return };
    let mut chosen = cases(&folder);
    let every = std::env::var("MEGANEURA_ONNX_ALL").as_deref() == Ok("1");
    if !every && std::env::var_os("MEGANEURA_ONNX_FILTER").is_none() {
        // Neighbours in the list are variants of one operator.
        chosen = chosen.into_iter().step_by(SAMPLE).collect();
    }
    let failures = report(chosen, &device).failures;
    assert!(failures.is_empty(), "{} cases failed: {failures:?}", failures.len());
}
