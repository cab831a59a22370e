//! Tests of attention kernels: masks, heads, numbers of rows around the size of a tile, and critical values.

use std::collections::HashMap;
use std::sync::Arc;

use crate::case::Case;
use crate::common;
use meganeura_core::attrs::Attrs;
use meganeura_core::backend::Device;
use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::AttentionOptions;
use meganeura_core::ops::sample::SampleInput;
use meganeura_core::plan::compile_for;
use meganeura_core::reference::evaluate;
use meganeura_core::{ExecutionPlan, NodeId, Session, autodiff, registry};

/// Sizes of a call: batch, number of queries and of keys; query heads, key-value heads, head size; and the window if
/// it is causal.
#[derive(Clone, Copy, Debug)]
struct Call {
    rows: [usize; 3],
    heads: [usize; 3],
    causal: Option<Option<u32>>,
    /// Maximum magnitude of queries and keys.
    size: f64,
}

impl Call {
    fn new(rows: [usize; 3], heads: [usize; 3]) -> Self {
        Call {
            rows,
            heads,
            causal: None,
            size: 2.0,
        }
    }

    fn causal(self) -> Self {
        Call {
            causal: Some(None),
            ..self
        }
    }

    fn window(self, window: u32) -> Self {
        Call {
            causal: Some(Some(window)),
            ..self
        }
    }

    fn inputs(self) -> [SampleInput; 3] {
        let ([batch, rows_q, rows_k], [heads, kv_heads, width]) = (self.rows, self.heads);
        let size = self.size;
        let kv = [batch, rows_k, kv_heads * width];
        // Values are positive, so that their means do not cancel.
        [
            SampleInput::range(&[batch, rows_q, heads * width], -size, size),
            SampleInput::range(&kv, -size, size),
            SampleInput::range(&kv, 0.25, 2.0),
        ]
    }

    fn build(self, g: &mut Graph, x: &[NodeId]) -> NodeId {
        let [heads, kv_heads, width] = self.heads.map(|n| n as u32);
        let options = AttentionOptions {
            causal: self.causal.is_some(),
            window: self.causal.flatten(),
            ..AttentionOptions::new(heads, kv_heads, width)
        };
        g.attention(x[0], x[1], x[2], options)
    }

    /// Returns the call with changed values. `change` returns the new value of an element, given the index of the
    /// operand, the index of the element, and the original value.
    fn case(self, change: impl Fn(usize, usize, f64) -> f64) -> Case {
        let build = |g: &mut Graph, x: &[NodeId]| -> Vec<Value> {
            let y = self.build(g, x);
            vec![y.into(), g.port(y, 1)]
        };
        Case::with(&self.inputs(), build, change)
    }

    fn check(self) {
        if let Some(device) = common::device() {
            let mut case = self.case(|_, _, value| value);
            case.label = format!("{self:?}");
            case.check(session(&device, &case.graph), 1e-5 * self.size);
            let mut case = self.gradient();
            case.label = format!("gradient of {self:?}");
            let plan = compile_for(&case.graph, &*device).expect("a plan");
            assert_launches(&device, &plan, if self.heads[0] == self.heads[1] { 2 } else { 3 });
            case.check(Session::on(device, plan).expect("a session"), 2e-5 * self.size);
        }
    }

    /// Returns the gradients, with logarithms and deltas of realistic size.
    fn gradient(self) -> Case {
        let ([batch, rows_q, rows_k], [heads, kv_heads, width]) = (self.rows, self.heads);
        let mut inputs = self.inputs().to_vec();
        let (rows, lse) = ([batch, heads, rows_q], (rows_k as f64).ln() + 0.7 * self.size);
        inputs.extend([
            SampleInput::range(&rows, lse, lse + 1.0),
            SampleInput::f32(&rows),
            SampleInput::f32(&[batch, rows_q, heads * width]),
        ]);
        let attrs = Attrs::new()
            .with("num_heads", heads)
            .with("num_kv_heads", kv_heads)
            .with("head_dim", width)
            .with("causal", self.causal.is_some())
            .with("window", self.causal.flatten().map_or(0, i64::from))
            .with("scale", 1.0 / (width as f64).sqrt());
        let build = |g: &mut Graph, x: &[NodeId]| -> Vec<Value> {
            let op = registry::op("core.attention_grad").expect("an operator");
            let grads = g.call(op, attrs.clone(), x.iter().map(|&x| x.into()).collect());
            (0..3).map(|port| g.port(grads, port)).collect()
        };
        Case::with(&inputs, build, |_, _, value| value)
    }
}

/// Checks that the plan has one dispatch with this number of kernels.
fn assert_launches(device: &Arc<dyn Device>, plan: &ExecutionPlan, launches: usize) {
    assert_eq!(plan.dispatches.len(), 1);
    let sources = device.kernel_sources(plan).expect("sources");
    assert_eq!(sources.len(), launches, "launches");
    assert!(
        sources.iter().any(|s| s.text.contains("numerators(")),
        "it is decomposed"
    );
}

/// Returns a session for a graph whose attention is one launch.
fn session(device: &Arc<dyn Device>, graph: &Graph) -> Session {
    let plan = compile_for(graph, &**device).expect("a plan");
    assert_launches(device, &plan, 1);
    Session::on(device.clone(), plan).expect("a session")
}

#[test]
fn sizes_around_those_of_tiles() {
    for (rows, heads) in [
        ([1, 1, 1], [1, 1, 1]),
        ([2, 7, 31], [3, 1, 33]),
        ([1, 16, 128], [2, 1, 64]),
        ([1, 17, 129], [2, 1, 64]),
        ([2, 67, 261], [4, 2, 16]),
    ] {
        Call::new(rows, heads).check();
        Call::new(rows, heads).causal().check();
    }
}

#[test]
fn masks() {
    for (rows, windows) in [([1, 150, 150], [1, 70, 150]), ([1, 37, 300], [2, 129, 10_000])] {
        for window in windows {
            Call::new(rows, [2, 1, 8]).window(window).check();
        }
    }
    // More queries than keys; keys that are visible to no query.
    Call::new([1, 300, 5], [2, 2, 64]).check();
    Call::new([1, 9, 200], [2, 1, 8]).window(3).check();
    // A window that excludes whole tiles.
    Call::new([1, 700, 700], [1, 1, 8]).window(33).check();
}

#[test]
fn heads_of_all_widths() {
    for width in [2, 5, 12, 20, 48, 65, 128] {
        Call::new([1, 20, 150], [2, 1, width]).causal().check();
    }
    let Some(device) = common::device() else { return };
    for width in [130, 256] {
        let case = Call::new([1, 20, 150], [2, 1, width])
            .causal()
            .case(|_, _, value| value);
        case.check(session(&device, &case.graph), 1e-5);
    }
    // Attention with larger heads is decomposed.
    let call = Call::new([1, 20, 30], [2, 1, 260]).causal();
    for case in [call.case(|_, _, value| value), call.gradient()] {
        let plan = compile_for(&case.graph, &*device).expect("a plan");
        case.check(Session::on(device.clone(), plan).expect("a session"), 2e-5);
    }
}

#[test]
fn tiles_of_many_workgroups() {
    Call::new([17, 33, 45], [16, 4, 8]).causal().check();
    Call::new([270, 35, 140], [2, 1, 6]).check();
}

#[test]
fn scores_far_from_zero() {
    let Some(device) = common::device() else { return };
    let noise = |at: usize| (at * 7 % 13) as f64 / 8.0 - 0.75;
    for call in [
        Call::new([1, 40, 200], [2, 1, 4]),
        Call::new([1, 40, 200], [2, 1, 4]).window(50),
    ] {
        let check = |query: f64, key: &dyn Fn(usize) -> f64| {
            let case = call.case(|operand, at, _| match operand {
                0 => query,
                1 => key(at),
                _ => noise(at),
            });
            case.check(session(&device, &case.graph), 1e-5);
        };
        // If all scores of a row are equal and far below or above zero, the result is the mean of the values, without
        // infinities.
        for score in [-1e30, -1e4, 1e4, 1e30] {
            check(score / 2.0, &|_| 1.0);
        }
        // The scores grow with the key: every tile has a much larger maximum than the previous one.
        check(1.0, &|at| (at / 4 * 64) as f64);
        check(1.0, &|at| -((at / 4 * 64) as f64));
    }
}

#[test]
fn infinite_scores_are_what_the_definition_makes_of_them() {
    let Some(device) = common::device() else { return };
    let call = Call::new([1, 150, 150], [1, 1, 1]).causal();
    // All scores of the first tiles are minus infinity. The scores of the last rows are larger.
    let late = |operand: usize, at: usize, value: f64| match operand {
        0 => 1.0,
        1 if at < 140 => f64::NEG_INFINITY,
        _ => value,
    };
    let case = call.case(late);
    case.check(session(&device, &case.graph), 1e-5);
    // An infinite score results in NaN.
    let case = call.case(|operand, at, value| match (operand, at) {
        (0, _) => 1.0,
        (1, 70) => f64::INFINITY,
        _ => value,
    });
    case.check(session(&device, &case.graph), 1e-5);
}

#[test]
fn a_nan_stays_with_the_queries_that_see_it() {
    let Some(device) = common::device() else { return };
    let call = Call::new([1, 150, 150], [1, 1, 2]).causal();
    for (operand, row) in [(0, 30), (1, 120)] {
        let nan = |o: usize, at: usize, value: f64| if o == operand && at == 2 * row { f64::NAN } else { value };
        let case = call.case(nan);
        case.check(session(&device, &case.graph), 2e-5);
    }
    // Rows that cannot see the NaN value may be NaN or not, but their sums are valid.
    let case = call.case(|o, at, value| if o == 2 && at == 240 { f64::NAN } else { value });
    let found = case.run(&mut session(&device, &case.graph));
    for row in 0..150 {
        assert!(found[0][2 * row].is_nan() || row < 120, "{row}");
        assert!(!found[0][2 * row].is_nan() || row >= 96, "{row}: of a tile before it");
        assert!(!found[1][row].is_nan(), "{row}");
    }
}

/// Attention of few queries to many keys is decomposed and correct.
#[test]
fn a_query_of_many_keys() {
    let Some(device) = common::device() else { return };
    let case = Case::new(&[&[1, 64], &[3000, 32], &[3000, 32]], |g, x| {
        vec![g.causal_attention(x[0], x[1], x[2], 4, 2, 16)]
    });
    let plan = compile_for(&case.graph, &*device).expect("a plan");
    case.check(Session::on(device, plan).expect("a session"), 2e-5);
}

/// The gradient of a loss through both results is correct, as training computes it.
#[test]
fn a_training_step() {
    let Some(device) = common::device() else { return };
    let mut g = Graph::new();
    let leaves = [("q", 12), ("k", 6), ("v", 6)].map(|(name, width)| {
        let x = g.input(name, &[70, width]);
        g.require_grad(x)
    });
    let y = g.causal_attention(leaves[0], leaves[1], leaves[2], 2, 1, 6);
    let lse = g.port(y, 1);
    let square = g.square(y);
    let (first, second) = (g.sum_all(square), g.mean_all(lse));
    let loss = g.add(first, second);
    g.set_outputs(vec![loss]);
    let full = autodiff::differentiate(&g);
    let mut feeds = HashMap::new();
    let mut session = Session::on(device.clone(), compile_for(&full, &*device).expect("a plan")).expect("a session");
    for (name, width) in [("q", 12), ("k", 6), ("v", 6)] {
        let data: Vec<f32> = (0..70 * width).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
        session.set_input(name, &data);
        feeds.insert(name.to_owned(), data.iter().map(|&v| f64::from(v)).collect());
    }
    session.step();
    let want = evaluate(&full, &feeds).expect("an evaluation");
    for &(leaf, gradient) in full.gradients() {
        let name = full.nodes()[leaf.index()].name.clone().expect("a name");
        let want = &want.get(gradient).expect("a gradient").data;
        let scale = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        for (&got, want) in session.read_grad(&name).iter().zip(want) {
            assert!(
                (f64::from(got) - want).abs() < 2e-5 * scale,
                "{name}: {got}, not {want}"
            );
        }
    }
}

/// Attention to a cache is correct for few and many queries, for numbers of rows around the sizes of tiles, and with
/// NaN in all rows after a position.
#[test]
fn caches_that_are_filled_so_far() {
    let Some(device) = common::device() else { return };
    /// A test case: number of queries, capacity, positions of the sequences, heads, and a window.
    type CacheCase<'a> = (usize, usize, &'a [u32], [usize; 3], Option<u32>);
    let cases: [CacheCase; 22] = [
        (1, 1300, &[0], [2, 1, 64], None),
        (1, 1300, &[511], [2, 2, 64], None),
        (1, 1300, &[512], [6, 2, 64], None),
        (1, 1300, &[1100, 70], [3, 1, 64], None),
        (2, 1300, &[1023], [1, 1, 12], None),
        (3, 900, &[520, 3], [2, 1, 80], None),
        (1, 700, &[600], [1, 1, 256], None),
        (1, 1300, &[1100], [2, 1, 64], Some(600)),
        (7, 200, &[90], [2, 1, 10], Some(33)),
        (8, 100, &[0], [2, 1, 64], None),
        (20, 100, &[3, 80], [4, 2, 16], None),
        (20, 100, &[3, 80], [4, 2, 16], Some(5)),
        (33, 300, &[129, 200], [2, 1, 64], Some(64)),
        (40, 64, &[24], [1, 1, 80], None),
        // Several workgroups share the keys of a query. Some of them have no keys.
        (1, 2048, &[0], [2, 1, 64], None),
        (1, 2048, &[2047], [9, 3, 64], None),
        (1, 4500, &[511], [2, 2, 64], None),
        (1, 2600, &[512], [6, 2, 64], None),
        (1, 4500, &[4000, 70], [3, 1, 64], None),
        (2, 3000, &[1535], [1, 1, 12], None),
        (7, 2100, &[2093], [2, 1, 20], None),
        (1, 5000, &[4444, 600], [2, 1, 64], Some(2300)),
    ];
    for (rows, capacity, positions, [heads, kv_heads, width], window) in cases {
        let batch = positions.len();
        let kv = [batch, capacity, kv_heads * width];
        let inputs = [
            SampleInput::range(&[batch, rows, heads * width], -2.0, 2.0),
            SampleInput::range(&kv, -2.0, 2.0),
            SampleInput::range(&kv, 0.25, 2.0),
        ];
        let build = |g: &mut Graph, x: &[NodeId]| -> Vec<Value> {
            let given = g.constant_u32(positions.to_vec(), &[batch]);
            let [heads, kv_heads, width] = [heads, kv_heads, width].map(|n| n as u32);
            let options = AttentionOptions {
                window,
                ..AttentionOptions::new(heads, kv_heads, width)
            };
            vec![g.cached_attention_with(x[0], x[1], x[2], given, options).into()]
        };
        let behind = |input: usize, at: usize, value: f64| {
            let (sequence, row) = (at / (capacity * kv_heads * width), at / (kv_heads * width) % capacity);
            let valid = input == 0 || row < positions[sequence] as usize + rows;
            if valid { value } else { f64::NAN }
        };
        let mut case = Case::with(&inputs, build, behind);
        case.label = format!("{rows} of {capacity} at {positions:?}, heads {heads} {kv_heads} {width}, {window:?}");
        let plan = compile_for(&case.graph, &*device).expect("a plan");
        assert_eq!(plan.dispatches.len(), 1, "{}", case.label);
        case.check(Session::on(device.clone(), plan).expect("a session"), 2e-5);
    }
}
