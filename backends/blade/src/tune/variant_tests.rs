//! Tests of the variants of reductions, argmax, argmin and attention. Each variant has the same results as the
//! default one, and stored variants are used.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meganeura_core::attrs::Attrs;
use meganeura_core::backend::Device as _;
use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::AttentionOptions;
use meganeura_core::plan::compile_for;
use meganeura_core::precision::Precision;
use meganeura_core::{DType, ExecutionPlan, registry};

use super::Entry;
use super::tests::{check_ways, device, sources};
use super::tuner::CallClass;
use crate::device::BladeDevice;
use meganeura_core::backend::{Tune, TuneOptions};
use meganeura_shaders::Schedule;

/// Type of the functions that build graphs.
type Build = fn(&mut Graph) -> Vec<Value>;

fn plan(device: &BladeDevice, build: Build) -> ExecutionPlan {
    let mut graph = Graph::new();
    let results = build(&mut graph);
    graph.set_outputs(results);
    compile_for(&graph, device).expect("a plan")
}

/// Returns graphs of softmaxes and norms with one column and with prime sizes, along either axis.
fn rows() -> Vec<Build> {
    vec![
        |g| {
            let x = g.input("x", &[37, 131]);
            vec![g.softmax(x, -1).into()]
        },
        |g| {
            let x = g.input("x", &[3, 1]);
            vec![g.softmax(x, -1).into()]
        },
        // Elements of neighbouring rows are adjacent in memory.
        |g| {
            let x = g.input("x", &[2, 67, 45]);
            vec![g.softmax(x, 1).into()]
        },
        |g| {
            let (x, w, b) = (g.input("x", &[5, 515]), g.input("w", &[515]), g.input("b", &[515]));
            vec![g.layer_norm(x, w, b, 1e-5).into()]
        },
        |g| {
            let (x, w) = (g.input("x", &[300, 96]), g.input("w", &[96]));
            vec![g.rms_norm(x, w, 1e-5).into()]
        },
    ]
}

/// Returns graphs of reductions with long rows that are split, for several dtypes.
fn long_rows() -> Vec<Build> {
    vec![
        |g| {
            let x = g.input("x", &[3, 10_007]);
            vec![g.sum(x, &[1], false).into()]
        },
        |g| {
            let x = g.input("x", &[4099, 7]);
            vec![g.max(x, &[0], true).into()]
        },
        |g| {
            let x = g.input_typed("x", &[2, 1, 2053], DType::U32);
            vec![g.sum(x, &[2], false).into()]
        },
        |g| {
            let x = g.input_typed("x", &[1, 6007], DType::F16);
            let x = g.cast(x, DType::F32);
            vec![g.mean(x, &[0, 1], false).into()]
        },
    ]
}

/// Returns graphs of losses with class indices and with probabilities, with both results.
fn losses() -> Vec<Build> {
    vec![
        |g| {
            let (x, labels) = (g.input("x", &[19, 203]), g.input_u32("labels", &[19]));
            let loss = g.cross_entropy_loss(x, labels);
            g.values(loss).collect()
        },
        |g| {
            let (x, labels) = (g.input("x", &[11, 1201]), g.input("labels", &[11, 1201]));
            let loss = g.cross_entropy_loss(x, labels);
            g.values(loss).collect()
        },
    ]
}

/// Returns graphs of argmax and argmin along either axis, for several dtypes, with rows that are split. The data of a
/// trial contains many equal elements.
fn extremes() -> Vec<Build> {
    vec![
        |g| {
            let x = g.input("x", &[3, 20_011]);
            vec![g.argmax(x, -1).into()]
        },
        |g| {
            let x = g.input("x", &[2, 4099, 7]);
            vec![g.argmin(x, 1).into()]
        },
        |g| {
            let x = g.input_typed("x", &[300, 5003], DType::I32);
            vec![g.argmax(x, 1).into()]
        },
        |g| {
            let x = g.input("x", &[37, 131]);
            vec![g.argmin(x, -1).into()]
        },
    ]
}

fn attend(g: &mut Graph, [batch, rows_q, rows_k]: [usize; 3], options: AttentionOptions) -> Vec<Value> {
    let width = options.head_dim as usize;
    let q = g.input("q", &[batch, rows_q, options.num_heads as usize * width]);
    let [k, v] = ["k", "v"].map(|name| g.input(name, &[batch, rows_k, options.num_kv_heads as usize * width]));
    let out = g.attention(q, k, v, options);
    g.values(out).collect()
}

/// Returns graphs of attention with grouped heads, odd head sizes, and fewer or more rows than a tile.
fn attentions() -> Vec<Build> {
    vec![
        |g| attend(g, [2, 37, 131], AttentionOptions::new(4, 2, 12)),
        |g| attend(g, [1, 1, 3], AttentionOptions::new(1, 1, 5)),
        |g| {
            let options = AttentionOptions {
                causal: true,
                window: Some(19),
                ..AttentionOptions::new(3, 3, 64)
            };
            attend(g, [1, 67, 70], options)
        },
        // The default variant of this call is a decomposition.
        |g| attend(g, [1, 3, 2_100], AttentionOptions::new(2, 1, 16)),
    ]
}

/// Adds a call of the gradient of attention, with its operands.
fn attend_back(g: &mut Graph, [rows_q, rows_k]: [usize; 2], [heads, kv_heads, width]: [usize; 3]) -> Vec<Value> {
    let attrs = Attrs::new()
        .with("num_heads", heads)
        .with("num_kv_heads", kv_heads)
        .with("head_dim", width)
        .with("causal", rows_q <= rows_k)
        .with("window", 0i64)
        .with("scale", 0.25);
    let [q, dout] = ["q", "dout"].map(|name| g.input(name, &[rows_q, heads * width]).into());
    let [k, v] = ["k", "v"].map(|name| g.input(name, &[rows_k, kv_heads * width]).into());
    let [lse, delta] = ["lse", "delta"].map(|name| g.input(name, &[heads, rows_q]).into());
    let op = registry::op("core.attention_grad").expect("an operator");
    let grads = g.call(op, attrs, vec![q, k, v, lse, delta, dout]);
    g.values(grads).collect()
}

fn gradients() -> Vec<Build> {
    vec![
        |g| attend_back(g, [37, 41], [4, 2, 12]),
        |g| attend_back(g, [1, 7], [1, 1, 5]),
        |g| attend_back(g, [67, 61], [2, 2, 64]),
    ]
}

fn attend_cache(g: &mut Graph, [batch, rows_q, rows_k]: [usize; 3], options: AttentionOptions) -> Vec<Value> {
    let width = options.head_dim as usize;
    let q = g.input("q", &[batch, rows_q, options.num_heads as usize * width]);
    let [k, v] = ["k", "v"].map(|name| g.input(name, &[batch, rows_k, options.num_kv_heads as usize * width]));
    let positions = g.input_u32("positions", &[batch]);
    vec![g.cached_attention_with(q, k, v, positions, options).into()]
}

/// Returns graphs of attention to caches, with sequences at different positions and with few or many queries.
fn caches() -> Vec<Build> {
    vec![
        |g| attend_cache(g, [3, 1, 300], AttentionOptions::new(4, 2, 64)),
        |g| attend_cache(g, [1, 1, 1100], AttentionOptions::new(3, 3, 20)),
        |g| attend_cache(g, [2, 3, 131], AttentionOptions::new(2, 1, 7)),
        |g| {
            let options = AttentionOptions {
                window: Some(90),
                ..AttentionOptions::new(2, 1, 128)
            };
            attend_cache(g, [2, 2, 701], options)
        },
        |g| attend_cache(g, [2, 19, 97], AttentionOptions::new(2, 1, 32)),
    ]
}

/// Collects the variants of some calls by family, and passes each class to `check`.
fn families(builds: Vec<Build>, check: fn(&BladeDevice, &CallClass)) -> Option<BTreeMap<String, BTreeSet<String>>> {
    let folder = tempfile::tempdir().expect("a folder");
    let device = device(folder.path())?;
    let mut families: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let plans = builds.into_iter().flat_map(|build| {
        let plan = plan(&device, build);
        let mixed = device.coop_at(Precision::Mixed).map(|_| ExecutionPlan {
            precision: Precision::Mixed,
            ..plan.clone()
        });
        std::iter::once(plan).chain(mixed)
    });
    for plan in plans {
        let mut classes = device.classes(&[plan]).expect("it has kernels");
        // Ignore the matmuls of decomposed attention, which have other tests.
        classes.retain(|found| !found.class.name.starts_with("matmul"));
        assert!(!classes.is_empty());
        for found in classes {
            let names: BTreeSet<&String> = found.variants.iter().collect();
            assert_eq!(names.len(), found.variants.len(), "{:?}", found.variants);
            assert!(found.class.work > 0, "{:?}", found.class);
            for variant in &found.variants {
                assert!(variant.parse::<Schedule>().is_ok(), "{variant}");
                let (family, rest) = variant.split_once(' ').unwrap_or((variant, ""));
                families.entry(family.to_owned()).or_default().insert(rest.to_owned());
            }
            check(&device, &found);
        }
    }
    if device.coop_at(Precision::Mixed).is_some() && families.contains_key("attention_tiled.v2") {
        assert!(families.contains_key("attention_coop.v2"), "{families:?}");
    }
    Some(families)
}

fn check_families(builds: Vec<Build>, expected: &[&str]) -> Option<BTreeMap<String, BTreeSet<String>>> {
    let families = families(builds, check_ways)?;
    for family in expected {
        assert!(families.contains_key(*family), "{family}: {families:?}");
    }
    Some(families)
}

#[test]
fn every_way_to_reduce_rows_gives_what_the_usual_one_does() {
    check_families(rows(), &["reduce.v2"]);
}

#[test]
fn every_way_to_reduce_long_rows_gives_what_the_usual_one_does() {
    check_families(long_rows(), &["reduce.v2"]);
}

#[test]
fn every_way_to_compute_losses_gives_what_the_usual_one_does() {
    check_families(losses(), &["reduce.v2"]);
}

#[test]
fn reductions_have_all_ways() {
    let all = [rows(), long_rows(), losses()].concat();
    let Some(families) = families(all, |_, _| {}) else {
        return;
    };
    let has = |part: &str| families["reduce.v2"].iter().any(|variant| variant.contains(part));
    for part in [
        "lanes=1 ",
        "lanes=8 ",
        "lanes=256 ",
        "split=1 ",
        "split=2 ",
        "split=16 ",
        "unroll=0",
        "unroll=9",
    ] {
        assert!(has(part), "{part}: {families:?}");
    }
}

#[test]
fn every_way_to_look_for_extremes_gives_what_the_usual_one_does() {
    let Some(families) = check_families(extremes(), &["arg_reduce.v1"]) else {
        return;
    };
    let expected = ["split=1", "split=4", "split=16"].map(str::to_owned);
    assert_eq!(families["arg_reduce.v1"], BTreeSet::from(expected));
}

#[test]
fn every_way_to_attend_gives_what_the_usual_one_does() {
    check_families(attentions(), &["attention_tiled.v2", "attention_decomposed.v2"]);
}

#[test]
fn every_way_to_the_gradient_of_attention_gives_what_the_usual_one_does() {
    check_families(gradients(), &["attention_tiled.v2", "attention_decomposed.v2"]);
}

#[test]
fn every_way_to_attend_to_a_cache_gives_what_the_usual_one_does() {
    let expected = [
        "attention_cached.v2",
        "attention_cached_elements.v2",
        "attention_tiled.v2",
        "attention_decomposed.v2",
    ];
    check_families(caches(), &expected);
}

/// Returns a softmax, a norm, and an attention.
fn several(g: &mut Graph) -> Vec<Value> {
    let (x, w) = (g.input("x", &[40, 96]), g.input("w", &[96]));
    let shares = g.softmax(x, -1);
    let y = g.input("y", &[24, 200]);
    let (scale, bias) = (g.input("scale", &[200]), g.input("bias", &[200]));
    let normed = g.layer_norm(y, scale, bias, 1e-5);
    let scaled = g.mul(shares, w);
    let mut results = vec![scaled.into(), normed.into()];
    results.extend(
        attend(g, [1, 40, 50], AttentionOptions::new(2, 1, 16))
            .into_iter()
            .take(1),
    );
    results
}

#[test]
fn ways_of_reductions_and_attention_are_measured_stored_and_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(first) = device(folder.path()) else { return };
    let plan = plan(&first, several);
    let classes = first.classes(std::slice::from_ref(&plan)).expect("it has kernels");
    let kinds = ["reduction max", "reduction sum", "attention forward"];
    for kind in kinds {
        let found = classes.iter().find(|found| found.class.name.starts_with(kind));
        let found =
            found.unwrap_or_else(|| panic!("{kind}: {:?}", classes.iter().map(|f| &f.class).collect::<Vec<_>>()));
        assert!(found.variants.len() > 1, "{:?}", found.variants);
    }
    let options = TuneOptions {
        time: Duration::from_secs(30),
        keep: true,
    };
    let tuned = first
        .tune(std::slice::from_ref(&plan), &options, &mut |_, _, _| ())
        .expect("it ends");
    assert_eq!(tuned.len(), classes.len());
    for tuned in &tuned {
        assert!(
            tuned.skipped.is_none() && tuned.refused.is_empty() && tuned.default_seconds > 0.0,
            "{tuned:?}"
        );
    }
    // Measured times vary, so the last variants are stored as if they were the fastest.
    for found in &classes {
        let entry = Entry {
            sizes: found.class.sizes.clone(),
            usual: found.variants[0].clone(),
            winner: found
                .variants
                .iter()
                .rfind(|variant| !variant.contains("decomposed"))
                .cloned(),
            gain: 2.0,
            qualified: Default::default(),
        };
        first.tuning().keep(&found.class.name, entry).expect("it is written");
    }
    let chosen = sources(&first, &plan);
    drop(first);
    let second = device(folder.path()).expect("as before");
    assert_eq!(sources(&second, &plan), chosen, "it is read when the device is opened");
    second.compile(&plan).expect("every variant is right");
    assert_eq!(sources(&second, &plan), chosen, "none is dropped");
    second.forget_tuned().expect("it is deleted");
    assert_ne!(sources(&second, &plan), chosen, "they are not the default ones");
}

#[test]
fn a_call_without_ways_has_no_class() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(device) = device(folder.path()) else { return };
    let plan = plan(&device, |g| {
        let x = g.input("x", &[40, 50]);
        vec![g.neg(x).into()]
    });
    assert!(device.classes(&[plan]).expect("it has kernels").is_empty());
}
