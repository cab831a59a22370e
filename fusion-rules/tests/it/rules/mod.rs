//! Tests of every family of rules on its target graphs: the rule fires, the resulting graph has the expected operators, and it
//! computes the same.

mod algebra;
mod convolution;
mod fusion;
mod packing;
mod parts;
mod recognition;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use meganeura_compiler::rewrite::{Pass, Request, RewriteConfig, SimulatedDevice, rewrite};
use meganeura_core::autodiff::try_differentiate;
use meganeura_core::graph::{Graph, NodeKind, Value};
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::{Evaluation, evaluate};

/// Graph before and after rewriting, and the rules that fired.
pub(crate) struct RewriteResult {
    pub(crate) before: Graph,
    pub(crate) after: Graph,
    /// Titles of the rules that fired.
    pub(crate) fired: BTreeSet<String>,
}

/// Returns the names of the operators of a graph, with repetitions.
fn operators(graph: &Graph) -> Vec<&'static str> {
    let calls = graph.nodes().iter().filter_map(|node| node.op());
    calls.map(|(op, _)| op.get().name()).collect()
}

/// Returns outputs by index, and gradients by the names of their leaves; for packed parameters, by their sources.
fn results(graph: &Graph, values: &Evaluation) -> BTreeMap<String, Vec<f64>> {
    let data = |v: Value| &values.get(v).expect("a value").data;
    let outputs = graph.outputs().iter().enumerate();
    let mut results: BTreeMap<String, Vec<f64>> = outputs
        .map(|(i, &v)| (format!("output {i}"), data(v).clone()))
        .collect();
    for &(leaf, gradient) in graph.gradients() {
        let node = &graph.nodes()[leaf.index()];
        let Some(packing) = node.packing() else {
            let name = node.name.as_deref().expect("leaves are named").to_owned();
            results.insert(name, data(gradient).clone());
            continue;
        };
        let shape = graph.shape(gradient);
        let inner: usize = shape[packing.axis + 1..].iter().product();
        let mut start = 0;
        for source in &packing.sources {
            let rows = data(gradient).chunks(shape[packing.axis] * inner);
            let part = rows.flat_map(|row| &row[start * inner..(start + source.size) * inner]);
            results.insert(source.name.to_string(), part.copied().collect());
            start += source.size;
        }
    }
    results
}

/// Rewrites a graph for a device with kernels for all operators.
pub(crate) fn rewritten(before: Graph, pass: Pass) -> RewriteResult {
    meganeura_compiler::link_plugins!(meganeura_rules).expect("the sets that ship are well formed");
    let request = Request {
        pass,
        target: &SimulatedDevice::discrete_gpu(),
        config: &RewriteConfig {
            time_ms: 60_000,
            ..RewriteConfig::default()
        },
        group_of: &|_| 0,
    };
    let (after, report) = rewrite(&before, &request).unwrap_or_else(|e| panic!("{e}\n{before}"));
    assert_eq!(report.budget_hit, None, "{before}");
    assert!(report.extraction_exact, "{before}");
    let result = RewriteResult {
        fired: report.rules_fired.into_iter().map(|(title, _)| title).collect(),
        before,
        after,
    };
    result.compare();
    result
}

/// Builds a graph with one output, and rewrites it.
pub(crate) fn of(pass: Pass, build: impl FnOnce(&mut Graph) -> Value) -> RewriteResult {
    let mut g = Graph::new();
    let y = build(&mut g);
    g.set_outputs(vec![y]);
    g.verify().unwrap_or_else(|e| panic!("{e}"));
    rewritten(g, pass)
}

/// Rewrites the gradients, with the sum of the output as loss.
pub(crate) fn of_gradients(build: impl FnOnce(&mut Graph) -> Value) -> RewriteResult {
    let mut g = Graph::new();
    let y = build(&mut g);
    let wavy = g.sin(y);
    let loss = g.sum_all(wavy);
    g.set_outputs(vec![loss]);
    let full = try_differentiate(&g).unwrap_or_else(|e| panic!("{e}"));
    rewritten(full, Pass::Backward)
}

impl RewriteResult {
    /// Checks that outputs and gradients are equal before and after rewriting, for random numbers.
    fn compare(&self) {
        let mut rng = SplitMix64::new(11);
        let mut feeds = HashMap::new();
        for node in self.before.nodes() {
            if matches!(
                node.kind,
                NodeKind::Input | NodeKind::Parameter { .. } | NodeKind::State { .. }
            ) {
                let ty = &node.outputs[0];
                let number = |_| {
                    if ty.dtype.is_integer() {
                        rng.below(3) as f64
                    } else {
                        f64::from((rng.unit() * 3.0 - 1.5) as f32)
                    }
                };
                let values: Vec<f64> = (0..ty.numel()).map(number).collect();
                feeds.insert(node.name.as_deref().expect("leaves are named").to_owned(), values);
            }
        }
        let [before, after] = [&self.before, &self.after].map(|g| {
            let values = evaluate(g, &feeds).unwrap_or_else(|e| panic!("{e}\n{g}"));
            results(g, &values)
        });
        assert!(before.keys().eq(after.keys()), "{:?} {:?}", before.keys(), after.keys());
        for (name, before) in &before {
            let after = &after[name];
            assert_eq!(before.len(), after.len(), "{name}");
            let scale = before
                .iter()
                .filter(|v| v.is_finite())
                .fold(1e-3f64, |m, v| m.max(v.abs()));
            for (x, y) in before.iter().zip(after) {
                // Constants are f32 numbers, and so are constants that a rule creates.
                let same = (x - y).abs() <= 3e-6 * scale || (x.is_nan() && y.is_nan()) || x == y;
                assert!(same, "{name}: {x} became {y}\n{}\n{}", self.before, self.after);
            }
        }
    }

    /// Checks that the rule fired, even if the final graph does not contain its result.
    pub(crate) fn fires(&self, title: &str) -> &Self {
        assert!(
            self.fired.contains(title),
            "{title} is not among {:?}\n{}",
            self.fired,
            self.before
        );
        self
    }

    /// Checks that the rule did not fire.
    pub(crate) fn spares(&self, title: &str) -> &Self {
        assert!(!self.fired.contains(title), "{title} fired\n{}", self.before);
        self
    }

    /// Checks the operators of the resulting graph, with repetitions, in any order.
    pub(crate) fn gives(&self, expected: &[&str]) -> &Self {
        let mut found = operators(&self.after);
        let mut expected = expected.to_vec();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "{:?}\n{}\n{}", self.fired, self.before, self.after);
        self
    }

    /// Checks the number of calls of an operator in the resulting graph.
    pub(crate) fn has(&self, op: &str, count: usize) -> &Self {
        let found = operators(&self.after).into_iter().filter(|name| *name == op).count();
        assert_eq!(found, count, "{op}; {:?}\n{}\n{}", self.fired, self.before, self.after);
        self
    }
}
