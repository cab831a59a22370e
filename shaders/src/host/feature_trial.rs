//! Selection of the device features that kernels use. Listed features must pass a test.

use half::f16;
use meganeura_core::backend::SharedBuffers;
use meganeura_core::plan::try_compile;
use meganeura_core::random::SplitMix64;
use meganeura_core::{DType, Error, Graph, Result};

use super::custom::CustomKernels;
use super::device::Host;
use super::dispatch::{F16Storage, KernelOptions};
use super::draft::LaunchPlan;
use super::once::{Word, run_once};
use crate::Features;

/// Number of rows, terms and columns of the tested matmul. Lanes of subgroups have several terms and sums each, and
/// some lanes have none.
const SIZES: [usize; 3] = [3, 580, 70];

/// Function that returns the words of a graph's only output, with a feature enabled. Its argument returns the words
/// of an input by name.
type Run<'a> = dyn Fn(&Graph, &dyn Fn(&str) -> Vec<Word>) -> Result<Vec<Word>> + 'a;

/// Returns the listed features that pass their test on the device. Failures are logged.
pub fn test_features(device: &dyn Host, listed: Features) -> Features {
    let passed = choose(device.name(), listed, |features| {
        move |graph, words| run(device, features, graph, words)
    });
    log::info!("{}: kernels use {passed:?}", device.name());
    passed
}

/// Implements [`test_features`]. `run` returns a function that evaluates a graph with some features enabled.
fn choose<R>(device: &str, listed: Features, run: impl Fn(Features) -> R) -> Features
where
    R: Fn(&Graph, &dyn Fn(&str) -> Vec<Word>) -> Result<Vec<Word>>,
{
    let passes = |what: &str, features: Features, test: fn(&Run) -> Result<()>| match test(&run(features)) {
        Ok(()) => true,
        Err(error) => {
            log::warn!("{device}: {what} are not used, because their test fails: {error}");
            false
        }
    };
    let none = Features::default();
    let subgroups = |size| Features {
        subgroup_size: Some(size),
        ..none
    };
    Features {
        subgroup_size: listed
            .subgroup_size
            .filter(|&size| passes("sums over subgroups", subgroups(size), test_subgroups)),
        exact_f16: listed.exact_f16
            && passes(
                "the driver's conversions of f16",
                Features {
                    exact_f16: true,
                    ..none
                },
                test_f16,
            ),
        workgroup_bytes: listed.workgroup_bytes,
    }
}

fn run(device: &dyn Host, features: Features, graph: &Graph, words: &dyn Fn(&str) -> Vec<Word>) -> Result<Vec<Word>> {
    // Compiling a plan for the device would query the features that are being tested.
    let plan = try_compile(graph)?;
    let with = KernelOptions {
        backend: device.backend(),
        library: None,
        coop: None,
        features,
        custom: &CustomKernels::new(),
        choices: None,
        f16_storage: F16Storage::No,
    };
    let mut executable = device.executable(&plan, LaunchPlan::of(&plan, &with)?, &SharedBuffers::new())?;
    Ok(run_once(&mut *executable, &plan, words)?.swap_remove(0))
}

/// Creates the error for a wrong result.
fn wrong(what: String) -> Error {
    Error::misuse(what, "the driver computes a wrong result")
}

/// Checks a matmul of few rows, whose sums are added up by subgroups.
fn test_subgroups(run: &Run) -> Result<()> {
    let [m, k, n] = SIZES;
    let mut graph = Graph::new();
    let (a, b) = (graph.input("a", &[m, k]), graph.input("b", &[n, k]));
    let product = graph.matmul_bt(a, b);
    graph.set_outputs(vec![product]);
    let mut rng = SplitMix64::new(23);
    let mut numbers = |count: usize| -> Vec<f32> { (0..count).map(|_| (2.0 * rng.unit() - 1.0) as f32).collect() };
    let (a, b) = (numbers(m * k), numbers(n * k));
    let found = run(&graph, &|name| {
        let values = if name == "a" { &a } else { &b };
        values.iter().map(|v| v.to_le_bytes()).collect()
    })?;
    for (i, word) in found.iter().take(m * n).enumerate() {
        let (row, column) = (i / n, i % n);
        let terms = a[row * k..][..k].iter().zip(&b[column * k..][..k]);
        let want: f64 = terms.map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
        let got = f64::from(f32::from_le_bytes(*word));
        if got.is_nan() || (got - want).abs() > 1e-4 {
            return Err(wrong(format!(
                "element [{row}, {column}] of a matmul is {got}, not {want}"
            )));
        }
    }
    Ok(())
}

/// Checks the conversion of every `f16` value.
fn test_f16(run: &Run) -> Result<()> {
    let count = 1 << 16;
    let mut graph = Graph::new();
    let halves = graph.input_typed("halves", &[count], DType::F16);
    let floats = graph.cast(halves, DType::F32);
    graph.set_outputs(vec![floats]);
    let found = run(&graph, &|_| {
        let pair = |i: usize| (2 * i as u32) | (2 * i as u32 + 1) << 16;
        (0..count / 2).map(|i| pair(i).to_le_bytes()).collect()
    })?;
    for (bits, word) in (0..=u16::MAX).zip(&found) {
        let (want, got) = (f16::from_bits(bits).to_f32(), f32::from_le_bytes(*word));
        if want.to_bits() != got.to_bits() && !(want.is_nan() && got.is_nan()) {
            return Err(wrong(format!("the half 0x{bits:04x} becomes {got}, not {want}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use meganeura_core::reference::evaluate;

    use super::*;

    const ALL: Features = Features {
        subgroup_size: Some(32),
        exact_f16: true,
        workgroup_bytes: 0,
    };

    /// Returns the features that are selected if all are listed and `change` modifies the correct results.
    fn chosen(change: impl Fn(&mut [f32])) -> Features {
        choose("a device", ALL, |_| {
            |graph: &Graph, words: &dyn Fn(&str) -> Vec<Word>| {
                let inputs = graph.node_ids().filter_map(|id| graph.nodes()[id.index()].name.clone());
                let feeds = inputs.filter(|name| !words(name).is_empty()).map(|name| {
                    let words = words(&name);
                    let values = if &*name == "halves" {
                        words
                            .iter()
                            .flat_map(|w| [[w[0], w[1]], [w[2], w[3]]])
                            .map(|half| f16::from_le_bytes(half).to_f64())
                            .collect()
                    } else {
                        words.iter().map(|&w| f64::from(f32::from_le_bytes(w))).collect()
                    };
                    (name.to_string(), values)
                });
                let evaluation = evaluate(graph, &feeds.collect())?;
                let result = evaluation.get(graph.outputs()[0]).expect("a result");
                let mut values: Vec<f32> = result.data.iter().map(|&v| v as f32).collect();
                change(&mut values);
                Ok(values.iter().map(|v| v.to_le_bytes()).collect())
            }
        })
    }

    #[test]
    fn only_features_that_compute_right_are_used() {
        assert_eq!(chosen(|_| ()), ALL);
        let is_product = |values: &[f32]| values.len() == SIZES[0] * SIZES[2];
        // First a subgroup that omits the terms of its last thread, then a driver that computes nothing.
        let one_off = chosen(|values| {
            if is_product(values) {
                values[77] += 1e-3;
            }
        });
        let half_alone = Features {
            subgroup_size: None,
            ..ALL
        };
        assert_eq!(one_off, half_alone);
        assert_eq!(chosen(|values| values.fill(0.0)), Features::default());
        // Small numbers are flushed to zero.
        let flushed = chosen(|values| {
            if !is_product(values) {
                values.iter_mut().filter(|v| v.abs() < 6e-5).for_each(|v| *v = 0.0);
            }
        });
        assert_eq!(
            flushed,
            Features {
                exact_f16: false,
                ..ALL
            }
        );
        // Features that are not listed are not tested.
        let none = choose("a device", Features::default(), |_| {
            |_: &Graph, _: &dyn Fn(&str) -> Vec<Word>| -> Result<Vec<Word>> { panic!("nothing is run") }
        });
        assert_eq!(none, Features::default());
    }
}
