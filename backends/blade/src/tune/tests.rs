//! Tests of variants on a device: each variant is correct, stored variants are used, and unusable ones are harmless.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meganeura_core::backend::{Backend, Device, SharedBuffers};
use meganeura_core::config::Config;
use meganeura_core::graph::Graph;
use meganeura_core::ops::Conv2dOptions;
use meganeura_core::plan::compile_for;
use meganeura_core::{DType, ExecutionPlan, NodeId, Result};

use super::comparison::{Subject, comparison};
use super::trial::Trial;
use super::tuner::CallClass;
use super::validate::{Difference, validate_by};
use super::{Entry, Tuning};
use crate::backend::BladeBackend;
use crate::device::BladeDevice;
use crate::executable::{self, BladeExecutable};
use meganeura_core::backend::{Tune, TuneOptions};
use meganeura_shaders::host::{F16Storage, KernelOptions, LaunchPlan, run_once};

/// Opens the first usable device with the stored variants in a folder. Returns `None` without a device.
pub(super) fn device(folder: &Path) -> Option<Arc<BladeDevice>> {
    let text = format!("[backend.blade]\ntune_folder = '{}'", folder.display());
    let config: Config = toml::from_str(&text).expect("a configuration");
    let devices = BladeBackend.devices(&config).expect("a listing");
    let usable = devices.into_iter().find(|d| d.rejected.is_none())?;
    Some(BladeBackend.open_device(usable.index, &config).expect("it opens"))
}

/// Returns the text about stored variants in the device list.
fn fact(folder: &Path, more: &str) -> String {
    let text = format!("[backend.blade]\ntune_folder = '{}'\n{more}", folder.display());
    let config: Config = toml::from_str(&text).expect("a configuration");
    let devices = BladeBackend.devices(&config).expect("a listing");
    let facts = devices.iter().flat_map(|d| &d.details);
    let tuned = facts.into_iter().find(|f| f.name == "tuned kernels");
    tuned.expect("it is told").value.clone()
}

fn plan(device: &BladeDevice, build: impl FnOnce(&mut Graph) -> NodeId) -> ExecutionPlan {
    let mut graph = Graph::new();
    let result = build(&mut graph);
    graph.set_outputs(vec![result]);
    compile_for(&graph, device).expect("a plan")
}

/// Returns the plan of a matmul that is large enough for tiles.
fn product(device: &BladeDevice) -> ExecutionPlan {
    plan(device, |g| {
        let (a, b) = (g.input("a", &[70, 90]), g.input("b", &[90, 50]));
        g.matmul(a, b)
    })
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

pub(super) fn trial<'a>(device: &'a BladeDevice, found: &'a CallClass) -> Trial<'a> {
    let trial = Trial::new(
        device.handle(),
        &found.dispatch,
        &found.operands,
        (found.precision, device.coop_at(found.precision)),
        (&found.class, &found.variants),
        later(),
    );
    trial.expect("the call stands alone")
}

/// Checks that every variant of a class has the same results as the default one.
pub(super) fn check_ways(device: &BladeDevice, found: &CallClass) {
    let trial = trial(device, found);
    let mut usual = trial.prepare(&found.variants[0]).expect("the default variant");
    for variant in &found.variants[1..] {
        let mut other = trial
            .prepare(variant)
            .unwrap_or_else(|e| panic!("{}, {variant}: {e}", found.class));
        let difference = trial.difference(&mut usual, &mut other).expect("it runs");
        assert_eq!(difference, None, "{}, {variant}", found.class);
    }
}

/// Returns the only class of a plan.
fn only_class(device: &BladeDevice, plan: &ExecutionPlan) -> CallClass {
    let mut classes = device.classes(std::slice::from_ref(plan)).expect("it has kernels");
    assert_eq!(classes.len(), 1);
    classes.remove(0)
}

/// Results in `f16` are compared by their values. This is skipped on drivers without `f16` in shaders.
#[test]
fn results_in_halves_are_compared_by_their_values() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(device) = device(folder.path()) else { return };
    let plan = product(&device);
    let mut found = only_class(&device, &plan);
    let output = |found: &CallClass| {
        let trial = trial(&device, found);
        let mut executable = trial.executable(&found.variants[0])?;
        let mut spoiled = trial.executable(&found.variants[0])?;
        trial.spoil(&mut spoiled)?;
        let differs = trial.difference(&mut executable, &mut spoiled)?;
        assert!(differs.is_some_and(|text| text.contains("wrong")));
        trial.outputs(&mut executable)
    };
    let wide = output(&found).expect("it runs");
    found.operands.f16_results = vec![true];
    let f16_storage = match output(&found) {
        Ok(f16_storage) => f16_storage,
        Err(error) => return eprintln!("NOT-TESTED: results in halves, which the driver refuses: {error}"),
    };
    assert_eq!(wide.len(), f16_storage.len());
    assert!(wide.iter().any(|value| *value != 0.0));
    for (wide, f16_storage) in wide.iter().zip(&f16_storage) {
        assert!((wide - f16_storage).abs() <= 1e-3 * wide.abs(), "{wide} {f16_storage}");
    }
}

#[test]
fn code_of_their_own_changes_no_results() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(device) = device(folder.path()) else { return };
    let found = only_class(&device, &product(&device));
    let mut trial = trial(&device, &found);
    let mut shared = trial.prepare(&found.variants[0]).expect("one code");
    trial.codes = 3;
    let mut own = trial.prepare(&found.variants[0]).expect("three codes");
    let difference = trial.difference(&mut shared, &mut own);
    assert_eq!(difference.expect("it runs"), None);
}

/// A trial in which times are predefined, and in which one variant has wrong results.
struct PredefinedTrial<'a> {
    trial: Trial<'a>,
    wrong: &'a str,
    fast: &'a str,
}

impl Subject for PredefinedTrial<'_> {
    type Prepared = (String, BladeExecutable);

    fn variants(&self) -> &[String] {
        self.trial.variants()
    }

    fn prepare(&self, variant: &str) -> Result<Self::Prepared> {
        let mut executable = self.trial.executable(variant)?;
        if variant == self.wrong {
            self.trial.spoil(&mut executable)?;
        }
        Ok((variant.to_owned(), executable))
    }

    fn difference(&self, usual: &mut Self::Prepared, other: &mut Self::Prepared) -> Result<Option<String>> {
        self.trial.difference(&mut usual.1, &mut other.1)
    }

    fn time(&self, (variant, _): &mut Self::Prepared, _: u32) -> Result<f64> {
        Ok(match variant {
            variant if variant == self.fast => 0.5,
            variant if variant == self.wrong => 0.1,
            _ => 1.0,
        })
    }

    fn warm_up(&self, ready: &mut Self::Prepared) -> Result<()> {
        self.trial.warm_up(&mut ready.1)
    }

    fn is_over(&self) -> bool {
        false
    }
}

/// Runs the matmul on a device and checks the result.
fn run_product(device: &BladeDevice, plan: &ExecutionPlan) {
    let value = |name: &str, i: usize| ((i * if name == "a" { 7 } else { 11 }) % 13) as f32 - 6.0;
    let count = |name: &str| if name == "a" { 70 * 90 } else { 90 * 50 };
    let mut executable = device.compile(plan).expect("it compiles");
    for (name, buffer) in &plan.input_buffers {
        let bytes: Vec<u8> = (0..count(name)).flat_map(|i| value(name, i).to_le_bytes()).collect();
        executable.write(*buffer, 0, &bytes).expect("it fits");
    }
    let args = meganeura_core::backend::StepArgs {
        segments: &[0],
        scalars: &[],
    };
    let ticket = executable.run(&args).expect("it runs");
    executable.wait(ticket).expect("it ends");
    let mut bytes = vec![0; 4 * 70 * 50];
    executable
        .read(plan.output_buffers[0], 0, &mut bytes)
        .expect("it reads");
    for (at, word) in bytes.as_chunks::<4>().0.iter().enumerate() {
        let (row, column) = (at / 50, at % 50);
        let want: f32 = (0..90)
            .map(|k| value("a", row * 90 + k) * value("b", k * 50 + column))
            .sum();
        assert_eq!(f32::from_le_bytes(*word), want, "[{row}, {column}]");
    }
}

pub(super) fn sources(device: &BladeDevice, plan: &ExecutionPlan) -> Vec<String> {
    let sources = device.kernel_sources(plan).expect("it has kernels");
    sources.into_iter().map(|s| s.text).collect()
}

#[test]
fn a_planted_way_wins_is_stored_and_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(first) = device(folder.path()) else { return };
    let plan = product(&first);
    let (usual_kernels, usual_sources) = (first.kernels(), sources(&first, &plan));
    let found = only_class(&first, &plan);
    assert!(
        fact(folder.path(), "").starts_with("none"),
        "{}",
        fact(folder.path(), "")
    );
    let [_, wrong, .., fast] = &found.variants[..] else {
        panic!("{:?}", found.variants)
    };
    let decision = comparison(&PredefinedTrial {
        trial: trial(&first, &found),
        wrong,
        fast,
    });
    let decision = decision.expect("it ends");
    assert_eq!(decision.winner.as_ref(), Some(fast));
    let [refusal] = &decision.refused[..] else {
        panic!("{decision:?}")
    };
    assert_eq!((&refusal.schedule, refusal.wrong), (wrong, true));
    assert!(refusal.reason.contains("element"), "{refusal:?}");

    let entry = Entry {
        sizes: found.class.sizes.clone(),
        usual: found.variants[0].clone(),
        winner: decision.winner.clone(),
        gain: 2.0,
        qualified: Default::default(),
    };
    first.tuning().keep(&found.class.name, entry).expect("it is written");
    let tuned_sources = sources(&first, &plan);
    assert_ne!(tuned_sources, usual_sources, "it is used at once");
    assert_ne!(first.kernels(), usual_kernels, "cached plans are made anew");
    run_product(&first, &plan);
    let path = first.tuned_file().expect("a file").to_owned();
    drop(first);

    let second = device(folder.path()).expect("as before");
    assert_eq!(
        sources(&second, &plan),
        tuned_sources,
        "and read when the device is opened"
    );
    run_product(&second, &plan);
    let told = fact(folder.path(), "");
    assert!(told.starts_with("1 of 1 classes"), "{told}");
    assert_eq!(fact(folder.path(), "tune = 'off'"), "not used");
    assert!(second.forget_tuned().expect("it is deleted"));
    assert!(!path.exists() && !second.forget_tuned().expect("there is none"));
    assert_eq!(
        (second.kernels(), sources(&second, &plan)),
        (usual_kernels, usual_sources)
    );
}

/// Stores a variant for the class of the matmul, and opens the device with it.
fn with_winner(
    folder: &Path,
    choose: impl FnOnce(&CallClass) -> String,
) -> Option<(Arc<BladeDevice>, ExecutionPlan, String)> {
    let device = device(folder)?;
    let plan = product(&device);
    let found = only_class(&device, &plan);
    let entry = Entry {
        sizes: found.class.sizes.clone(),
        usual: found.variants[0].clone(),
        winner: Some(choose(&found)),
        gain: 2.0,
        qualified: Default::default(),
    };
    device.tuning().keep(&found.class.name, entry).expect("it is written");
    Some((device, plan, found.class.name))
}

#[test]
fn ways_of_other_versions_are_dropped() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some((first, plan, class)) = with_winner(folder.path(), |_| "matmul_tiled.v1 each=3 split_k=1".into()) else {
        return;
    };
    let path = first.tuned_file().expect("a file").to_owned();
    drop(first);
    assert!(std::fs::read_to_string(&path).expect("it is there").contains(&class));
    let second = device(folder.path()).expect("as before");
    assert_eq!(second.tuning().fingerprint(), None);
    run_product(&second, &plan);
    let left = std::fs::read_to_string(&path).expect("it is there");
    assert!(!left.contains(&class), "{left}");
}

#[test]
fn a_way_that_a_product_does_not_have_is_passed_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some((device, plan, _)) = with_winner(folder.path(), |_| "matmul_tiled.v2 each=8 split_k=77".into()) else {
        return;
    };
    run_product(&device, &plan);
    let untuned = tempfile::tempdir().expect("a folder");
    let usual = self::device(untuned.path()).expect("as before");
    assert_eq!(sources(&device, &plan), sources(&usual, &plan));
}

#[test]
fn a_way_that_the_driver_refuses_is_dropped() {
    let folder = tempfile::tempdir().expect("a folder");
    let last = |found: &CallClass| found.variants.last().expect("several").clone();
    let Some((device, plan, class)) = with_winner(folder.path(), last) else {
        return;
    };
    let chosen = sources(&device, &plan);
    device
        .handle()
        .pipelines()
        .refused
        .lock()
        .expect("no panic")
        .extend(chosen.clone());
    run_product(&device, &plan);
    assert_ne!(sources(&device, &plan), chosen, "the default variant from now on");
    let path = device.tuned_file().expect("a file");
    assert!(!std::fs::read_to_string(path).expect("it is there").contains(&class));
}

/// Compares the stored variants of a plan by means of `difference`.
fn compare_stored(device: &BladeDevice, plan: &ExecutionPlan, difference: &Difference) -> Result<()> {
    let chosen = device.tuning().choices(plan.precision).expect("a variant is stored");
    validate_by(
        device.handle(),
        &chosen,
        device.coop_at(plan.precision),
        plan,
        difference,
    )
}

#[test]
fn stored_ways_are_compared_before_they_are_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let last = |found: &CallClass| found.variants.last().expect("several").clone();
    let Some((device, plan, class)) = with_winner(folder.path(), last) else {
        return;
    };
    let path = device.tuned_file().expect("a file").to_owned();
    let file = || std::fs::read_to_string(&path).expect("it is there");
    let (chosen, before) = (sources(&device, &plan), file());
    let asked = std::cell::Cell::new(0);
    let right = |_: &_, _: &_, variants: &[String; 2]| {
        assert_ne!(variants[0], variants[1]);
        asked.set(asked.get() + 1);
        Ok(None)
    };
    compare_stored(&device, &plan, &right).expect("it is compared");
    assert_ne!(file(), before, "that it was is remembered");
    compare_stored(&device, &plan, &right).expect("it was compared");
    assert_eq!(asked.get(), 1, "once");
    // A call of the class with another number of rows has other kernels.
    let other = self::plan(&device, |g| {
        let (a, b) = (g.input("a", &[71, 90]), g.input("b", &[90, 50]));
        g.matmul(a, b)
    });
    let wrong = |_: &_, _: &_, _: &_| Ok(Some("element 3 is 1, not 2".to_owned()));
    compare_stored(&device, &other, &wrong).expect("it is compared");
    assert_ne!(sources(&device, &plan), chosen, "what is wrong is not used");
    assert!(!file().contains(&class));
    run_product(&device, &plan);
}

#[test]
fn damaged_files_and_unwritable_folders_harm_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let last = |found: &CallClass| found.variants.last().expect("several").clone();
    let Some((first, plan, _)) = with_winner(folder.path(), last) else {
        return;
    };
    let path = first.tuned_file().expect("a file").to_owned();
    drop(first);
    let whole = std::fs::read_to_string(&path).expect("it is there");
    let damaged = whole.replace("gain: 2.0", "gain: 3.0");
    assert_ne!(damaged, whole);
    std::fs::write(&path, &damaged).expect("it is written");
    let second = device(folder.path()).expect("as before");
    assert_eq!(second.tuning().fingerprint(), None);
    run_product(&second, &plan);
    let told = fact(folder.path(), "");
    assert!(told.contains("damaged") && told.contains("--forget"), "{told}");
    assert_eq!(
        std::fs::read_to_string(&path).expect("it is there"),
        damaged,
        "for whoever looks"
    );
    drop(second);

    // Root may write to a read-only folder, but cannot use a file as a folder.
    let third = device(&path).expect("as before");
    let found = only_class(&third, &plan);
    let entry = Entry {
        sizes: found.class.sizes.clone(),
        usual: found.variants[0].clone(),
        winner: None,
        gain: 1.0,
        qualified: Default::default(),
    };
    let error = third.tuning().keep(&found.class.name, entry).expect_err("no folder");
    assert!(error.to_string().contains("tune_folder"), "{error}");
    run_product(&third, &plan);
    let options = TuneOptions {
        time: Duration::ZERO,
        keep: true,
    };
    let error = Tuning::none().file().expect_err("nowhere").to_string();
    assert!(error.contains("tune_folder"), "{error}");
    let tuned = third
        .tune(&[plan], &options, &mut |_, _, _| ())
        .expect("nothing to write");
    assert_eq!(tuned[0].skipped.as_deref(), Some("the time limit was reached"));
}

#[test]
fn wrong_settings_are_errors() {
    for (text, expected) in [
        ("tune = 'always'", "use 'stored' or 'off'"),
        ("tune = 3", "backend.blade.tune"),
        ("tune_folder = true", "backend.blade.tune_folder"),
    ] {
        let config: Config = toml::from_str(&format!("[backend.blade]\n{text}")).expect("a configuration");
        let error = super::folder(&config).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Tuning with real measurements finishes, and reports no variant as wrong.
#[test]
fn tuning_measures_and_keeps() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(device) = device(folder.path()) else { return };
    let plans = [product(&device)];
    let options = TuneOptions {
        time: Duration::from_secs(20),
        keep: true,
    };
    let mut told = Vec::new();
    let tuned = device.tune(&plans, &options, &mut |number, of, tuned| {
        told.push((number, of, tuned.clone()))
    });
    let tuned = tuned.expect("it ends");
    assert_eq!(told, [(1, 1, tuned[0].clone())]);
    let only = &tuned[0];
    assert!(
        only.refused.is_empty() && only.skipped.is_none() && only.timed > 0,
        "{only:?}"
    );
    assert!(only.default_seconds > 0.0 && only.gain() >= 1.0, "{only:?}");
    assert!(fact(folder.path(), "").contains(" of 1 classes"));
    run_product(&device, &plans[0]);
}

/// Returns graphs of matmuls of odd sizes, in all layouts.
fn products() -> Vec<fn(&mut Graph) -> NodeId> {
    vec![
        |g| {
            let (a, b) = (g.input("a", &[37, 133]), g.input("b", &[133, 45]));
            g.matmul(a, b)
        },
        |g| {
            let (a, b) = (g.input("a", &[140, 35]), g.input("b", &[140, 67]));
            g.matmul_at(a, b)
        },
        // Long sums. They are split into parts.
        |g| {
            let (a, b) = (g.input("a", &[19, 1030]), g.input("b", &[33, 1030]));
            let product = g.matmul_bt(a, b);
            g.neg(product)
        },
        // Few rows, with operands that can be read as vectors, and with operands that cannot.
        |g| {
            let (a, b) = (g.input("a", &[3, 1100]), g.input("b", &[70, 1100]));
            g.matmul_bt(a, b)
        },
        |g| {
            let (a, b) = (g.input("a", &[1, 1031]), g.input("b", &[1031, 37]));
            g.matmul(a, b)
        },
        |g| {
            let a = g.input_typed("a", &[5, 516], DType::F16);
            let b = g.input_typed("b", &[31, 516], DType::F16);
            let [a, b] = [a, b].map(|x| g.cast(x, DType::F32));
            g.matmul_bt(a, b)
        },
        // In batches, and with one matrix for the whole batch.
        |g| {
            let (a, b) = (g.input("a", &[3, 21, 70]), g.input("b", &[3, 70, 30]));
            g.matmul(a, b)
        },
        |g| {
            let (a, b) = (g.input("a", &[3, 7, 80]), g.input("b", &[80, 41]));
            g.matmul(a, b)
        },
        |g| {
            let (x, w) = (g.input("x", &[2, 5, 9, 11]), g.input("w", &[19, 5, 3, 3]));
            g.conv2d(x, w, Conv2dOptions::default())
        },
    ]
}

#[test]
fn every_way_gives_what_the_usual_one_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(device) = device(folder.path()) else { return };
    let mut families = std::collections::BTreeSet::new();
    for build in products() {
        let plan = plan(&device, build);
        for found in device.classes(&[plan]).expect("it has kernels") {
            check_ways(&device, &found);
            let others = found.variants[1..].iter();
            families.extend(others.filter_map(|variant| variant.split(' ').next().map(str::to_owned)));
        }
    }
    for family in [
        "matmul_direct.v2",
        "matmul_tiled.v2",
        "matmul_rows.v2",
        "matmul_rows_wide.v2",
    ] {
        assert!(families.contains(family), "{families:?}");
    }
}

/// The default variants of these calls agree with the oracle, and therefore all variants do.
#[test]
fn the_usual_ways_are_right() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(device) = device(folder.path()) else { return };
    for build in products() {
        let mut graph = Graph::new();
        let result = build(&mut graph);
        graph.set_outputs(vec![result]);
        let plan = compile_for(&graph, &*device).expect("a plan");
        let fill = |name: &str, count: usize| -> Vec<f64> {
            let seed = name.len() + usize::from(name.as_bytes()[0]);
            (0..count).map(|i| ((i * seed) % 17) as f64 / 8.0 - 1.0).collect()
        };
        let size = |name: &str| {
            let buffers = plan.input_buffers.iter().find(|(n, _)| n == name);
            plan.buffer_types[buffers.expect("an input").1.index()].clone()
        };
        if plan
            .input_buffers
            .iter()
            .any(|(name, _)| size(name).dtype != DType::F32)
        {
            // This test can write only `f32` inputs.
            continue;
        }
        let feeds = plan.input_buffers.iter();
        let feeds = feeds.map(|(name, _)| (name.clone(), fill(name, size(name).numel())));
        let evaluation = meganeura_core::reference::evaluate(&graph, &feeds.collect()).expect("the oracle");
        let want = evaluation.get(meganeura_core::Value::from(result));
        let want = &want.expect("a value").data;
        let with = KernelOptions {
            backend: crate::gpu::NAME,
            library: None,
            coop: None,
            features: device.handle().features(),
            custom: &Default::default(),
            choices: None,
            f16_storage: F16Storage::No,
        };
        let draft = LaunchPlan::of(&plan, &with).expect("kernels");
        let mut executable =
            executable::open(device.handle(), &plan, draft, &SharedBuffers::new()).expect("it compiles");
        let words = |name: &str| {
            let values = fill(name, size(name).numel()).into_iter();
            values.map(|v| (v as f32).to_le_bytes()).collect()
        };
        let found = run_once(&mut executable, &plan, words).expect("it runs");
        let scale = want.iter().fold(1.0, |m: f64, v| m.max(v.abs()));
        for (want, found) in want.iter().zip(&found[0]) {
            let found = f64::from(f32::from_le_bytes(*found));
            assert!((want - found).abs() < 1e-5 * scale, "{found}, not {want}");
        }
    }
}
