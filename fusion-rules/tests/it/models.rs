//! Tests that whole models give the same results with and without rewriting, by the reference definitions: outputs,
//! gradients and running statistics.

use std::collections::BTreeMap;
use std::collections::HashMap;

use meganeura_compiler::OptimizeReport;
use meganeura_compiler::builder::prepare;
use meganeura_compiler::optimize::for_inference;
use meganeura_compiler::rewrite::{RewriteConfig, SimulatedDevice};
use meganeura_core::Mode;
use meganeura_core::autodiff::try_differentiate;
use meganeura_core::graph::{Graph, NodeKind};
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::evaluate;
use meganeura_nn::models::{
    CnnConfig, LlamaConfig, MlpConfig, ResNetConfig, UnetConfig, VitConfig, classifier, language_model, preset,
    segmentation,
};

/// Returns values for the leaves, by name.
fn feeds(graph: &Graph) -> HashMap<String, Vec<f64>> {
    let mut rng = SplitMix64::new(3);
    let mut feeds = HashMap::new();
    for node in graph.nodes().iter().filter(|n| n.is_named_leaf()) {
        let ty = &node.outputs[0];
        let positive = matches!(node.kind, NodeKind::State { .. });
        let number = |_| match (ty.dtype.is_integer(), positive) {
            // Token and class ids.
            (true, _) => rng.below(3) as f64,
            (false, true) => f64::from((0.5 + rng.unit()) as f32),
            (false, false) => f64::from((rng.unit() - 0.5) as f32),
        };
        let name = node.name.as_deref().expect("leaves are named");
        feeds.insert(name.to_owned(), (0..ty.numel()).map(number).collect());
    }
    feeds
}

/// Returns outputs by index, and gradients and written states by name; for packed parameters, by their sources' names.
fn results(graph: &Graph, feeds: &HashMap<String, Vec<f64>>) -> BTreeMap<String, Vec<f64>> {
    let values = evaluate(graph, feeds).unwrap_or_else(|e| panic!("{e}\n{graph}"));
    let mut found = BTreeMap::new();
    for (i, &output) in graph.outputs().iter().enumerate() {
        found.insert(format!("output {i}"), values.get(output).expect("a value").data.clone());
    }
    for &(leaf, gradient) in graph.gradients() {
        let node = &graph.nodes()[leaf.index()];
        let tensor = values.get(gradient).expect("a value");
        let Some(packing) = node.packing() else {
            let name = node.name.as_deref().expect("leaves are named");
            found.insert(format!("gradient of {name}"), tensor.data.clone());
            continue;
        };
        let inner: usize = tensor.shape()[packing.axis + 1..].iter().product();
        let row = tensor.shape()[packing.axis] * inner;
        let mut start = 0;
        for source in &packing.sources {
            let run = source.size * inner;
            let rows = tensor.data.chunks(row);
            let part = rows.flat_map(|r| r[start..start + run].to_vec()).collect();
            found.insert(format!("gradient of {}", source.name), part);
            start += run;
        }
    }
    for (name, data) in values.written {
        found.insert(format!("state {name}"), data);
    }
    found
}

fn prepared(graph: &Graph, mode: Mode) -> (Graph, OptimizeReport) {
    let config = RewriteConfig {
        // Other tests run at the same time.
        time_ms: 300_000,
        ..RewriteConfig::default()
    };
    let (optimized, report) = prepare(graph, mode, &SimulatedDevice::discrete_gpu(), &config, None)
        .unwrap_or_else(|e| panic!("{e}\n{graph}"));
    assert_eq!(report.budget_hit, None);
    assert!(report.extraction_exact);
    (optimized, report)
}

#[track_caller]
fn check(graph: &Graph, tolerance: f64) {
    graph.verify().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(meganeura_rules::rule_sets().len(), 9, "the rules are linked");
    for mode in [Mode::Training, Mode::Inference] {
        let plain = match mode {
            Mode::Training => try_differentiate(graph),
            Mode::Inference => for_inference(graph),
        };
        let plain = plain.unwrap_or_else(|e| panic!("{e}"));
        let feeds = feeds(&plain);
        let (optimized, report) = prepared(graph, mode);
        let used = !report.fusions.is_empty() || !report.clusters.is_empty();
        assert!(used, "{mode:?}: nothing was rewritten\n{optimized}");
        let (before, after) = (results(&plain, &feeds), results(&optimized, &feeds));
        assert_eq!(
            before.keys().collect::<Vec<_>>(),
            after.keys().collect::<Vec<_>>(),
            "{mode:?}"
        );
        for (name, a) in &before {
            let b = &after[name];
            assert_eq!(a.len(), b.len(), "{mode:?}, {name}");
            let scale = a.iter().fold(1e-3f64, |m, v| m.max(v.abs()));
            let differs = a
                .iter()
                .zip(b)
                .position(|(a, b)| b.is_nan() || (a - b).abs() > tolerance * scale);
            if let Some(i) = differs {
                panic!("{mode:?}, {name}[{i}]: {} became {}\n{optimized}", a[i], b[i]);
            }
        }
    }
}

#[test]
fn mlp() {
    let mlp = MlpConfig::new(6, 4).hidden([7, 5]).dropout(0.0);
    check(&classifier(3, &[6], |g, x| mlp.build(g, "").forward(g, x)), 5e-6);
}

#[test]
fn cnn() {
    let cnn = CnnConfig::new([1, 16, 16], 5)
        .channels([2, 3, 4])
        .hidden(6)
        .dropout(0.0);
    check(
        &classifier(2, &[1, 16, 16], |g, x| cnn.build(g, "").forward(g, x)),
        5e-6,
    );
}

#[test]
fn llama() {
    let llama = LlamaConfig {
        dim: 8,
        layers: 2,
        heads: 2,
        kv_heads: 1,
        hidden: 12,
        ..LlamaConfig::small(11)
    };
    check(&language_model(2, 5, |g, x| llama.build(g, "").forward(g, x)), 5e-6);
}

#[test]
fn vit() {
    let vit = VitConfig::new([3, 8, 8], 4, 5).size(8, 2, 2, 16);
    check(&classifier(2, &[3, 8, 8], |g, x| vit.build(g, "").forward(g, x)), 5e-6);
}

#[test]
fn unet() {
    let unet = UnetConfig::new(2, 3).width(8).depth(1);
    check(
        &segmentation(2, [2, 8, 8], |g, x| unet.build(g, "").forward(g, x)),
        2e-5,
    );
}

#[test]
fn resnet() {
    let resnet = ResNetConfig::resnet18(5)
        .width(4)
        .depths([1, 1, 1, 1])
        .small_images(true);
    check(
        &classifier(2, &[3, 16, 16], |g, x| resnet.build(g, "").forward(g, x)),
        2e-5,
    );
}

/// The training graph of a real language model is rewritten within all budgets except time, which depends on the
/// machine.
#[test]
fn a_whole_language_model_is_extracted_exactly() {
    assert_eq!(meganeura_rules::rule_sets().len(), 9, "the rules are linked");
    let model = preset("smollm2-135m").expect("a preset");
    let (_, report) = prepared(&model.graph(model.rows), Mode::Training);
    assert!(report.fusions.len() > 100, "{report}");
    assert!(report.cost_after_ps < report.cost_before_ps, "{report}");
}
