//! Which features of a device kernels use: those that its driver lists, and that compute what they should.

use half::f16;
use meganeura_core::plan::try_compile;
use meganeura_core::random::SplitMix64;
use meganeura_core::{DType, Error, Graph, Result};

use super::custom::CustomKernels;
use super::device::Host;
use super::dispatch::{F16Storage, With};
use super::draft::Draft;
use super::once::{Word, run_once};
use crate::Features;

/// Rows, terms and columns of the product that is tried: lanes of subgroups have several terms and sums each, and some have none.
const SIZES: [usize; 3] = [3, 580, 70];

/// Of the features that a driver lists, those that pass their test on the device. A failure is logged.
pub fn test_features(device: &dyn Host, listed: Features) -> Features {
    let mut passed = Features::default();
    let mut try_one = |what: &str, feature: Features, test: fn(&dyn Host, Features) -> Result<()>| {
        if feature == Features::default() {
            return;
        }
        match test(device, feature) {
            Ok(()) => {
                passed.subgroup_size = passed.subgroup_size.or(feature.subgroup_size);
                passed.exact_f16 |= feature.exact_f16;
            }
            Err(error) => log::warn!("{}: {what} are not used, they fail their test: {error}", device.name()),
        }
    };
    let subgroups = Features {
        subgroup_size: listed.subgroup_size,
        ..Features::default()
    };
    let halves = Features {
        exact_f16: listed.exact_f16,
        ..Features::default()
    };
    try_one("sums over subgroups", subgroups, test_subgroups);
    try_one("the driver's conversions of f16", halves, test_f16);
    log::info!("{}: kernels use {passed:?}", device.name());
    passed
}

/// The words of a graph's only output.
fn run(device: &dyn Host, features: Features, graph: &Graph, words: impl Fn(&str) -> Vec<Word>) -> Result<Vec<Word>> {
    // Compiled for the device, it would ask for the features that are being tested.
    let plan = try_compile(graph)?;
    let with = With {
        backend: device.backend(),
        library: None,
        coop: None,
        features,
        custom: &CustomKernels::new(),
        choices: None,
        f16_storage: F16Storage::No,
    };
    let mut executable = device.executable(&plan, Draft::of(&plan, &with)?)?;
    Ok(run_once(&mut *executable, &plan, words)?.swap_remove(0))
}

/// A product of few rows, whose columns are summed by subgroups.
fn test_subgroups(device: &dyn Host, features: Features) -> Result<()> {
    let [m, k, n] = SIZES;
    let mut graph = Graph::new();
    let (a, b) = (graph.input("a", &[m, k]), graph.input("b", &[n, k]));
    let product = graph.matmul_bt(a, b);
    graph.set_outputs(vec![product]);
    let mut rng = SplitMix64::new(23);
    let mut numbers = |count: usize| -> Vec<f32> { (0..count).map(|_| (2.0 * rng.unit() - 1.0) as f32).collect() };
    let (a, b) = (numbers(m * k), numbers(n * k));
    let found = run(device, features, &graph, |name| {
        let values = if name == "a" { &a } else { &b };
        values.iter().map(|v| v.to_le_bytes()).collect()
    })?;
    for (i, word) in found.iter().take(m * n).enumerate() {
        let (row, column) = (i / n, i % n);
        let terms = a[row * k..][..k].iter().zip(&b[column * k..][..k]);
        let want: f64 = terms.map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
        let got = f64::from(f32::from_le_bytes(*word));
        if got.is_nan() || (got - want).abs() > 1e-4 {
            let what = format!("element [{row}, {column}] of a matmul is {got}, not {want}");
            return Err(Error::backend(device.backend(), what));
        }
    }
    Ok(())
}

/// Every half there is.
fn test_f16(device: &dyn Host, features: Features) -> Result<()> {
    let count = 1 << 16;
    let mut graph = Graph::new();
    let halves = graph.input_typed("halves", &[count], DType::F16);
    let floats = graph.cast(halves, DType::F32);
    graph.set_outputs(vec![floats]);
    let found = run(device, features, &graph, |_| {
        let pair = |i: usize| (2 * i as u32) | (2 * i as u32 + 1) << 16;
        (0..count / 2).map(|i| pair(i).to_le_bytes()).collect()
    })?;
    for (bits, word) in (0..=u16::MAX).zip(&found) {
        let (want, got) = (f16::from_bits(bits).to_f32(), f32::from_le_bytes(*word));
        if want.to_bits() != got.to_bits() && !(want.is_nan() && got.is_nan()) {
            let what = format!("the half 0x{bits:04x} becomes {got}, not {want}");
            return Err(Error::backend(device.backend(), what));
        }
    }
    Ok(())
}
