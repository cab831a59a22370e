//! Tests of operators and training runs against numbers that PyTorch computed in `f64`.
//!
//! The script `scripts/verify-external/make_torch_fixtures.py` writes the fixtures. Its case files and fixtures are found by
//! their location, so a new operator needs no change here. Every case runs through the oracle, whose results must agree within
//! rounding errors of `f64`, and through a session on the CPU, within those of `f32`.
//!
//! A few definitions differ, as `scripts/verify-external/README.md` lists: the fixtures omit or convert these cases.

mod builders;
mod fixtures;
mod operators;
mod training;

use std::collections::HashMap;
use std::sync::Arc;

use meganeura::DType;
use meganeura::backend::Device;
use meganeura::cpu::CpuDevice;

use fixtures::NamedNumbers;

const ORACLE_LIMIT: f64 = 1e-9;
/// Accepted difference if a constant of a definition or a derivative is not exact in binary32.
const CONSTANT_LIMIT: f64 = 1e-7;

type Feeds = HashMap<String, Vec<f64>>;

/// Returns differences beyond the limit, relative to the largest expected magnitude of each list.
fn differences(case: &str, found: &NamedNumbers, expected: &NamedNumbers, limit: impl Fn(&str) -> f64) -> Vec<String> {
    let names = |n: &NamedNumbers| {
        n.iter()
            .map(|(name, data)| (name.clone(), data.len()))
            .collect::<Vec<_>>()
    };
    if names(found) != names(expected) {
        return vec![format!("{case}: has {:?}, not {:?}", names(found), names(expected))];
    }
    let mut failures = Vec::new();
    for ((name, ours), (_, theirs)) in found.iter().zip(expected) {
        let limit = limit(name);
        let largest = theirs.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
        let scale = if largest == 0.0 { 1.0 } else { largest };
        let errors = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs() / scale);
        // A comparison with `<=` would accept a NaN.
        let wrong = errors.enumerate().find(|(_, e)| e.is_nan() || *e > limit);
        if let Some((i, error)) = wrong {
            failures.push(format!(
                "{case}: {name}[{i}] is {}, not {} ({error:.1e} of the largest, limit {limit:.0e})",
                ours[i], theirs[i]
            ));
        }
    }
    failures
}

fn report(failures: &[String]) {
    assert!(
        failures.is_empty(),
        "{} differences:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

fn device() -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(2))
}

/// Returns numbers as the bytes of a tensor of this type.
fn bytes(dtype: DType, data: &[f64]) -> Vec<u8> {
    let word = |&v: &f64| match dtype {
        DType::U32 => (v as u32).to_le_bytes(),
        DType::I32 => (v as i32).to_le_bytes(),
        _ => (v as f32).to_le_bytes(),
    };
    data.iter().flat_map(word).collect()
}

fn narrow(data: &[f64]) -> Vec<f32> {
    data.iter().map(|&v| v as f32).collect()
}

fn wide(data: &[f32]) -> Vec<f64> {
    data.iter().map(|&v| v.into()).collect()
}
