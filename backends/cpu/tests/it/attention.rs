//! Tests of attention, rotary embedding and gated units. Sizes and values are critical for tiles and exponentials.

use std::sync::Arc;

use meganeura_compiler::builder::Builder;
use meganeura_core::attrs::Attrs;
use meganeura_core::backend::Device;
use meganeura_core::ops::sample::{Sample, SampleInput};
use meganeura_core::{DType, Graph, reference};
use meganeura_cpu::CpuDevice;

use crate::common::{case, check, check_case, numbers, op, results, sample};

/// Sizes of a call: batch, number of queries and of keys; query heads, key-value heads, head size; causal, window.
#[derive(Clone, Copy, Debug)]
struct Call {
    rows: [usize; 3],
    heads: [usize; 3],
    causal: bool,
    window: i64,
    /// Maximum magnitude of queries and keys.
    size: f64,
}

impl Call {
    fn new(rows: [usize; 3], heads: [usize; 3]) -> Self {
        Call {
            rows,
            heads,
            causal: false,
            window: 0,
            size: 2.0,
        }
    }

    fn causal(self, window: i64) -> Self {
        Call {
            causal: true,
            window,
            ..self
        }
    }

    fn sample(self, backward: bool) -> Sample {
        let ([batch, rows_q, rows_k], [heads, kv_heads, width]) = (self.rows, self.heads);
        let (q, kv) = ([batch, rows_q, heads * width], [batch, rows_k, kv_heads * width]);
        let attrs = Attrs::new()
            .with("num_heads", heads)
            .with("num_kv_heads", kv_heads)
            .with("head_dim", width)
            .with("causal", self.causal)
            .with("window", self.window)
            .with("scale", 1.0 / (width as f64).sqrt());
        let large = |shape: &[usize]| SampleInput::range(shape, -self.size, self.size);
        // The values are positive, so that their means do not cancel.
        let values = SampleInput::range(&kv, 0.25, 2.0);
        let mut inputs = vec![large(&q), large(&kv), values];
        if backward {
            let rows = [batch, heads, rows_q];
            let lse = (rows_k as f64).ln() + 0.7 * self.size;
            inputs.extend([
                SampleInput::range(&rows, lse, lse + 1.0),
                SampleInput::f32(&rows),
                SampleInput::f32(&q),
            ]);
        }
        let mut sample = sample(inputs, attrs);
        // Scores are sums of products, and the exponential amplifies their rounding errors.
        sample.tolerance = 3e-6 * self.size * self.size;
        sample
    }

    fn check(self) {
        check("core.attention", &self.sample(false), 3);
        check("core.attention_grad", &self.sample(true), 3);
    }
}

#[test]
fn attention_of_many_shapes() {
    for rows in [[1, 1, 1], [1, 1, 300], [2, 66, 96], [1, 67, 97], [1, 200, 200]] {
        for heads in [[1, 1, 1], [4, 2, 16], [3, 1, 33]] {
            let call = Call::new(rows, heads);
            call.check();
            call.causal(0).check();
            call.causal(1).check();
            call.causal(70).check();
            call.causal(10_000).check();
        }
    }
    // More queries than keys; a large head size; many batch entries with one head each.
    Call::new([1, 300, 5], [2, 2, 64]).check();
    Call::new([1, 20, 30], [2, 1, 260]).causal(0).check();
    Call::new([19, 3, 4], [1, 1, 7]).causal(2).check();
    // A window that excludes whole tiles.
    Call::new([1, 500, 500], [1, 1, 8]).causal(33).check();
    // One key-value head whose keys are divided among several tasks.
    Call::new([1, 100, 900], [2, 1, 8]).causal(0).check();
}

/// Runs attention with these operand values, checks the results against the definition, and returns them.
fn compare(call: Call, values: [Box<dyn Fn(usize) -> f64>; 3]) -> Vec<Vec<f64>> {
    let mut case = case(op("core.attention"), &call.sample(false), 1);
    for (i, value) in values.iter().enumerate() {
        let operand = case.values.get_mut(&format!("operand{i}")).expect("an operand");
        operand.iter_mut().enumerate().for_each(|(at, v)| *v = value(at));
    }
    let want = reference::evaluate(&case.graph, &case.values).expect("an evaluation");
    let got = results(&case, 2);
    let outputs = case.graph.outputs().iter().zip(&got);
    outputs
        .map(|(&value, got)| {
            let want = &want.get(value).expect("a result").data;
            let got = numbers(got, DType::F32);
            for (i, (&want, &got)) in want.iter().zip(&got).enumerate() {
                let close = (want - got).abs() <= 1e-5 * want.abs().max(1.0) || (want.is_nan() && got.is_nan());
                assert!(close, "{call:?} [{i}]: {got}, not {want}");
            }
            got
        })
        .collect()
}

#[test]
fn scores_far_from_zero() {
    let noise = |at: usize| (at * 7 % 13) as f64 / 8.0 - 0.75;
    for call in [
        Call::new([1, 80, 200], [2, 1, 4]),
        Call::new([1, 80, 200], [2, 1, 4]).causal(50),
    ] {
        // If all scores of a row are equal and far below or above zero, the result is the mean of the values, without
        // infinities.
        for score in [-1e30, -1e4, 1e4, 1e30] {
            let q = move |_| score / 2.0;
            let results = compare(call, [Box::new(q), Box::new(|_| 1.0), Box::new(noise)]);
            assert!(results.iter().flatten().all(|v| v.is_finite()));
        }
        // The scores grow with the key: every tile has a new maximum, much larger than the previous one.
        let k = |at: usize| (at / 4 * 64) as f64;
        compare(call, [Box::new(|_| 1.0), Box::new(k), Box::new(noise)]);
        let k = |at: usize| -((at / 4 * 64) as f64);
        compare(call, [Box::new(|_| 1.0), Box::new(k), Box::new(noise)]);
    }
}

#[test]
fn a_nan_stays_with_the_queries_that_see_it() {
    let call = Call::new([1, 150, 150], [1, 1, 2]).causal(0);
    let mut case = case(op("core.attention"), &call.sample(false), 1);
    // The key of row 120 is NaN. Queries in whole tiles before it must not change.
    case.values.get_mut("operand1").expect("keys")[240] = f64::NAN;
    let lse = numbers(&results(&case, 2)[1], DType::F32);
    for (query, lse) in lse.iter().enumerate() {
        assert_eq!(lse.is_nan(), query >= 120, "{query}");
    }
}

/// The gradient of a loss through both results is correct, as training computes it.
#[test]
fn a_training_step_of_attention() {
    let mut g = Graph::new();
    let shapes = [[70, 12], [70, 6], [70, 6]];
    let leaves = [0, 1, 2].map(|i| {
        let x = g.input(["q", "k", "v"][i], &shapes[i]);
        g.require_grad(x)
    });
    let q = g.rope(leaves[0], 10_000.0, 6);
    let k = g.rope(leaves[1], 10_000.0, 6);
    let y = g.causal_attention(q, k, leaves[2], 2, 1, 6);
    let lse = g.port(y, 1);
    let gated = g.swiglu_concat(y);
    let square = g.square(gated);
    let first = g.sum_all(square);
    let second = g.mean_all(lse);
    let loss = g.add(first, second);
    g.set_outputs(vec![loss]);
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(2));
    let (mut session, _) = Builder::on(device).build(&g).expect("a session");
    let mut feeds = std::collections::HashMap::new();
    for (name, shape) in ["q", "k", "v"].iter().zip(shapes) {
        let data: Vec<f32> = (0..shape[0] * shape[1])
            .map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0)
            .collect();
        session.set_input(name, &data);
        feeds.insert((*name).to_owned(), data.iter().map(|&v| f64::from(v)).collect());
    }
    session.step();
    let full = meganeura_core::autodiff::differentiate(&g);
    let want = reference::evaluate(&full, &feeds).expect("an evaluation");
    for &(leaf, gradient) in full.gradients() {
        let name = full.nodes()[leaf.index()].name.clone().expect("a name");
        let want = &want.get(gradient).expect("a gradient").data;
        let scale = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        for (got, want) in session.read_grad(&name).iter().zip(want) {
            assert!(
                (f64::from(*got) - want).abs() < 2e-5 * scale,
                "{name}: {got}, not {want}"
            );
        }
    }
}

/// No buffer of a training plan has an element for each pair of a query and a key.
#[test]
fn buffers_grow_with_the_rows_only() {
    let largest = |rows: usize| {
        let mut g = Graph::new();
        let [q, k, v] = ["q", "k", "v"].map(|name| {
            let x = g.input(name, &[rows, 64]);
            g.require_grad(x)
        });
        let y = g.causal_attention(q, k, v, 2, 2, 32);
        let loss = g.mean_all(y);
        g.set_outputs(vec![loss]);
        let full = meganeura_core::autodiff::differentiate(&g);
        let plan = meganeura_core::plan::compile_for(&full, &CpuDevice::new(1)).expect("a plan");
        plan.buffers.iter().sum::<usize>()
    };
    let (short, long) = (largest(2048), largest(4096));
    assert!(long <= 2 * short, "{short} bytes for 2048 rows, {long} for 4096");
}

#[test]
fn rotations_and_gates_of_many_shapes() {
    for (shape, head_dim) in [
        (vec![3, 5, 2], 2),
        (vec![40, 3 * 64], 64),
        (vec![2, 1, 9, 34], 34),
        (vec![1, 70_000], 70_000),
        (vec![5000, 6], 6),
    ] {
        for inverse in [false, true] {
            let attrs = Attrs::new()
                .with("theta", 10_000.0)
                .with("offset", 3i64)
                .with("head_dim", head_dim as i64)
                .with("inverse", inverse);
            check("core.rope", &sample(vec![SampleInput::f32(&shape)], attrs), 1);
        }
    }
    for (rows, width) in [(1, 40_000), (3, 16_385), (5000, 3), (2, 1), (0, 4)] {
        let half = SampleInput::range(&[rows, width], -30.0, 30.0);
        let packed = SampleInput::range(&[rows, 2 * width], -30.0, 30.0);
        let calls = [
            ("core.swiglu", vec![half.clone(); 2]),
            ("core.swiglu_grad", vec![half.clone(); 3]),
            ("core.geglu", vec![half.clone(); 2]),
            ("core.geglu_grad", vec![half.clone(); 3]),
            ("core.swiglu_concat", vec![packed.clone()]),
            ("core.swiglu_concat_grad", vec![packed, half]),
        ];
        for (name, inputs) in calls {
            check(name, &sample(inputs, Attrs::new()), 2);
        }
    }
}

/// Derivatives of gates reach their limits at both ends, without any NaN in between.
#[test]
fn gates_at_the_ends_of_their_range() {
    for name in ["core.swiglu", "core.geglu", "core.swiglu_grad", "core.geglu_grad"] {
        let backward = name.ends_with("grad");
        let inputs = vec![SampleInput::f32(&[6]); if backward { 3 } else { 2 }];
        let mut case = case(op(name), &sample(inputs, Attrs::new()), 1);
        let gates = vec![-1e30, -200.0, -90.0, 90.0, 200.0, 1e30];
        case.values.insert("operand0".into(), gates.clone());
        for operand in ["operand1", "operand2"].iter().take(if backward { 2 } else { 1 }) {
            case.values.insert((*operand).into(), vec![1.0; 6]);
        }
        let got = results(&case, 1);
        let first = numbers(&got[0], DType::F32);
        for (&gate, &found) in gates.iter().zip(&first) {
            let want: f64 = match (backward, gate > 0.0) {
                (_, false) => 0.0,
                (true, true) => 1.0,
                (false, true) => gate,
            };
            assert!(
                (found - want).abs() <= 1e-6 * want.abs().max(1.0),
                "{name}({gate}): {found}"
            );
        }
    }
}

/// Keys can be divided among tasks: with positions at which tasks have no tile, one tile or several tiles, with NaN
/// in all later rows, and with scores that dominate the result.
#[test]
fn parts_of_long_caches() {
    for ([rows, capacity], [heads, kv_heads, width], window) in [
        ([1, 512], [9, 3, 64], 0),
        ([1, 1000], [1, 1, 17], 0),
        ([1, 400], [6, 3, 100], 0),
        ([1, 200], [5, 5, 64], 20),
        ([5, 700], [4, 2, 24], 0),
        ([1, 600], [2, 1, 8], 33),
        ([20, 300], [2, 2, 5], 40),
    ] {
        let attrs = Attrs::new()
            .with("num_heads", heads)
            .with("num_kv_heads", kv_heads)
            .with("head_dim", width)
            .with("causal", true)
            .with("window", window)
            .with("scale", 1.0 / (width as f64).sqrt());
        let large = |rows: usize, heads: usize| SampleInput::range(&[rows, heads * width], -3.0, 3.0);
        let inputs = vec![
            large(rows, heads),
            large(capacity, kv_heads),
            SampleInput::range(&[capacity, kv_heads * width], 0.25, 2.0),
            SampleInput::below(&[1], capacity),
        ];
        for position in [0, 1, 5, 127, capacity / 2, capacity - rows] {
            let label = format!("{rows} of {capacity} rows at {position}, {heads} on {kv_heads} of {width}, {window}");
            let sample = Sample::new(label, inputs.clone(), attrs.clone());
            let mut case = case(op("core.cached_attention"), &sample, 7);
            for (name, value) in [("operand1", f64::NAN), ("operand2", f64::INFINITY)] {
                let cache = case.values.get_mut(name).expect("an operand");
                cache[(position + rows) * kv_heads * width..].fill(value);
            }
            case.values.insert("operand3".into(), vec![position as f64]);
            check_case("core.cached_attention", &sample, &case);
        }
    }
}
