//! The backend test cases of the `onnx` package: models of one operator or a few, with inputs and results that were
//! computed by somebody else.
//!
//! `scripts/verify-external/write_onnx_cases.py FOLDER` writes them; MEGANEURA_ONNX_CASES names the folder, and
//! MEGANEURA_REQUIRE_ONNX=1 makes it an error that there is none. MEGANEURA_ONNX_FILTER runs cases whose names contain it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meganeura_compiler::Builder;
use meganeura_core::backend::Device;
use meganeura_onnx::{ElementType, Error, Model, Runner, Tensor};

/// What became of a case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Passed,
    /// The importer says that it does not support it.
    Refused(String),
    Failed(String),
}

/// What refusals say, and how `docs/onnx.md` says it.
const REASONS: [(&str, &str); 10] = [
    ("strings are not supported", "strings"),
    (
        "sequences, maps, optional values and sparse tensors are not supported",
        "sequences, maps or optional values as inputs or results of the model",
    ),
    ("ImageDecoder", "`ImageDecoder`"),
    (
        "Bernoulli",
        "random numbers that only NumPy's generator gives: `Bernoulli`, `RandomUniformLike`, `Dropout` in training",
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
    ("ai.onnx.ml.TreeEnsemble", "`ai.onnx.ml.TreeEnsemble`"),
    (
        "does not fit into i32",
        "`BitCast` to an integer that needs more than 32 bits",
    ),
    ("", "others"),
];

/// Which of [`REASONS`] a refusal has.
fn reason(message: &str) -> &'static str {
    let random = ["RandomUniformLike", "Dropout"]
        .iter()
        .any(|op| message.starts_with(op));
    let message = if random { "Bernoulli" } else { message };
    let found = REASONS.iter().find(|(said, _)| message.contains(said));
    found.map_or("others", |(_, reason)| reason)
}

/// The lines of `docs/onnx.md` that say how many cases pass, and why others do not.
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

/// Cases in a folder, by name.
fn cases(folder: &Path) -> Vec<(String, PathBuf)> {
    let filter = std::env::var("MEGANEURA_ONNX_FILTER").unwrap_or_default();
    let mut found = Vec::new();
    for kind in ["node", "simple", "pytorch-converted", "pytorch-operator"] {
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

/// `PREFIX_0.pb`, `PREFIX_1.pb`... in a folder.
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

/// Relative and absolute tolerance of a case.
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
    // Sums in f32 that cancel are not exact to a part of their result, and types of 16 bits are rounded in other places than
    // by whoever computed the case.
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
            // Numbers of 64 bits that a graph does not have.
            Err(Error::Input(message)) if message.contains("does not fit into") => return Outcome::Refused(message),
            Err(e) => return Outcome::Failed(e.to_string()),
        };
        for (i, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            if let Some(message) = differs(found, wanted, tolerance) {
                return Outcome::Failed(format!("output {i}: {message}"));
            }
        }
    }
    Outcome::Passed
}

#[test]
fn cases_of_the_onnx_package_pass() {
    let Some(folder) = folder() else { return };
    let device = device();
    let mut failures = Vec::new();
    let mut counts: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    let mut refusals: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, path) in cases(&folder) {
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&path, &device)));
        let outcome = outcome.unwrap_or_else(|_| Outcome::Failed("it panicked".into()));
        let kind = ["node", "simple", "pytorch-converted", "pytorch-operator"]
            .into_iter()
            .find(|kind| name.starts_with(&format!("{kind}/")))
            .expect("a kind");
        let count = counts.entry(kind).or_default();
        match outcome {
            Outcome::Passed => count[0] += 1,
            Outcome::Refused(message) => {
                count[1] += 1;
                *refusals.entry(reason(&message)).or_default() += 1;
                println!("REFUSED {name}: {message}");
            }
            Outcome::Failed(message) => {
                count[2] += 1;
                println!("FAILED {name}: {message}");
                failures.push(name);
            }
        }
    }
    for (kind, [passed, refused, failed]) in &counts {
        println!("{kind}: {passed} passed, {refused} refused, {failed} failed");
    }
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
