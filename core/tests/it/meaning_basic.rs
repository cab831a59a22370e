//! Tests of operators in cases that samples do not cover: ties, NaN, zeros, repeated indices, parts.

use std::collections::HashMap;

use meganeura_core::autodiff::try_differentiate;
use meganeura_core::graph::{Graph, Value};
use meganeura_core::reference::evaluate;

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

fn feeds(list: &[(&str, &[f64])]) -> HashMap<String, Vec<f64>> {
    list.iter()
        .map(|(name, data)| ((*name).to_owned(), data.to_vec()))
        .collect()
}

/// Returns the values of results, by the operators' definitions.
fn values(g: &mut Graph, results: &[Value], list: &[(&str, &[f64])]) -> Vec<Vec<f64>> {
    g.set_outputs(results.to_vec());
    let all = evaluate(g, &feeds(list)).expect("evaluates");
    results
        .iter()
        .map(|&v| all.get(v).expect("a result").data.clone())
        .collect()
}

/// Returns the gradient of the sum of `y` times 1, 2, 3 ... by the input `x`.
fn gradient(g: &mut Graph, y: Value, x: &str, list: &[(&str, &[f64])]) -> Vec<f64> {
    let shape = g.shape(y).to_vec();
    let count: usize = shape.iter().product();
    let weights = g.constant((1..=count).map(|i| i as f32).collect(), &shape);
    let product = g.mul(y, weights);
    let loss = g.sum_all(product);
    g.set_outputs(vec![loss]);
    let leaf = g.leaf_named(x).expect("a leaf");
    g.require_grad(leaf);
    let full = try_differentiate(g).expect("a gradient");
    let all = evaluate(&full, &feeds(list)).expect("evaluates");
    all.get(full.gradients()[0].1).expect("the gradient").data.clone()
}

#[test]
fn top_k_puts_nan_first_and_equal_elements_in_order() {
    let mut g = Graph::new();
    let x = g.input("x", &[6]);
    let top = g.top_k(x, 0, 4);
    let results = [g.port(top, 0), g.port(top, 1)];
    let data = [("x", &[1.0, 3.0, NAN, 3.0, -INF, NAN][..])];
    let found = values(&mut g, &results, &data);
    assert!(found[0][0].is_nan() && found[0][1].is_nan());
    assert_eq!(found[0][2..], [3.0, 3.0]);
    assert_eq!(found[1], [2.0, 5.0, 1.0, 3.0]);
}

#[test]
fn arg_reductions_take_the_first() {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 4]);
    let (low, high) = (g.argmin(x, 1), g.argmax(x, 1));
    let data = [("x", &[3.0, 1.0, 1.0, 3.0, 0.0, NAN, -INF, NAN][..])];
    let found = values(&mut g, &[low.into(), high.into()], &data);
    assert_eq!(found, [[1.0, 1.0], [0.0, 1.0]]);
}

#[test]
fn integers_have_a_smallest_element_at_their_limits() {
    use meganeura_core::DType;
    for (dtype, data) in [
        (DType::I32, [-2147483648.0, 5.0, 2147483647.0]),
        (DType::U32, [4294967295.0, 0.0, 7.0]),
    ] {
        let mut g = Graph::new();
        let x = g.input_typed("x", &[3], dtype);
        let (least, at) = (g.min(x, &[], false), g.argmin(x, 0));
        let found = values(&mut g, &[least.into(), at.into()], &[("x", &data)]);
        let want = if dtype == DType::I32 { 0 } else { 1 };
        assert_eq!(found, [[data[want]], [want as f64]]);
    }
}

#[test]
fn products_have_gradients_at_zeros() {
    for (x, want) in [
        ([2.0, 0.0, 4.0, 5.0], [0.0, 40.0, 0.0, 0.0]),
        ([2.0, 0.0, 0.0, 5.0], [0.0; 4]),
        ([2.0, 1.0, 3.0, 5.0], [15.0, 30.0, 10.0, 6.0]),
    ] {
        let mut g = Graph::new();
        let p = g.input("x", &[4]);
        let y = g.prod(p, &[], false);
        assert_eq!(gradient(&mut g, y.into(), "x", &[("x", &x)]), want);
    }
}

#[test]
fn the_product_of_nothing_is_one() {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 0]);
    let y = g.prod(x, &[1], true);
    assert_eq!(values(&mut g, &[y.into()], &[("x", &[])]), [[1.0, 1.0]]);
}

#[test]
fn scatter_keeps_the_last_update_and_its_gradient() {
    let build = || {
        let mut g = Graph::new();
        let (x, i, u) = (g.input("x", &[4]), g.input_u32("i", &[3]), g.input("u", &[3]));
        let y = g.scatter(x, i, u, 0);
        (g, y)
    };
    let data: [(&str, &[f64]); 3] = [
        ("x", &[1.0, 2.0, 3.0, 4.0]),
        ("i", &[2.0, 0.0, 2.0]),
        ("u", &[7.0, 8.0, 9.0]),
    ];
    let (mut g, y) = build();
    assert_eq!(values(&mut g, &[y.into()], &data), [[8.0, 2.0, 9.0, 4.0]]);
    assert_eq!(gradient(&mut g, y.into(), "x", &data), [0.0, 2.0, 0.0, 4.0]);
    let (mut g, y) = build();
    assert_eq!(gradient(&mut g, y.into(), "u", &data), [0.0, 1.0, 3.0]);
}

#[test]
fn masked_elements_take_the_source_in_order() {
    let build = || {
        let mut g = Graph::new();
        let (x, m, s) = (g.input("x", &[2, 3]), g.input_u32("m", &[3]), g.input("s", &[5]));
        let y = g.masked_scatter(x, m, s);
        (g, y)
    };
    let data: [(&str, &[f64]); 3] = [
        ("x", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        ("m", &[7.0, 0.0, 1.0]),
        ("s", &[10.0, 20.0, 30.0, 40.0, 50.0]),
    ];
    let (mut g, y) = build();
    assert_eq!(values(&mut g, &[y.into()], &data), [[10.0, 2.0, 20.0, 30.0, 5.0, 40.0]]);
    assert_eq!(gradient(&mut g, y.into(), "x", &data), [0.0, 2.0, 0.0, 0.0, 5.0, 0.0]);
    let (mut g, y) = build();
    assert_eq!(gradient(&mut g, y.into(), "s", &data), [1.0, 3.0, 4.0, 6.0, 0.0]);
}

#[test]
fn masks_hide_what_is_not_a_number() {
    let mut g = Graph::new();
    let (x, m) = (g.input("x", &[3]), g.input_u32("m", &[3]));
    let y = g.masked_fill(x, m, f32::NEG_INFINITY);
    let z = g.select(m, y, x);
    let low = g.reshape(x, &[1, 3]);
    let low = g.triu(low, 3);
    let data: [(&str, &[f64]); 2] = [("x", &[1.0, NAN, INF]), ("m", &[0.0, 1.0, 1.0])];
    let found = values(&mut g, &[y.into(), z.into(), low.into()], &data);
    assert_eq!(found, [[1.0, -INF, -INF], [1.0, -INF, -INF], [0.0; 3]]);
}

#[test]
fn negative_axes_of_a_permutation_count_from_the_last() {
    let mut g = Graph::new();
    let x = g.input("x", &[1, 2, 3]);
    let y = g.permute(x, &[-1, 0, -2]);
    assert_eq!(g.shape(y), [3, 1, 2]);
    let data: [(&str, &[f64]); 1] = [("x", &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])];
    assert_eq!(values(&mut g, &[y.into()], &data), [[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]]);
    // Rules and kernels receive non-negative axes.
    let attrs = g.nodes()[y.index()].op().expect("a call").1.clone();
    assert_eq!(attrs.ints("axes"), Ok(&[2, 0, 1][..]));
}

#[test]
fn an_unused_part_of_a_split_has_no_gradient() {
    let mut g = Graph::new();
    let x = g.input("x", &[5]);
    let parts = g.split(x, 0, &[2, 1, 2]);
    assert_eq!(
        gradient(&mut g, parts[2], "x", &[("x", &[0.0; 5])]),
        [0.0, 0.0, 0.0, 1.0, 2.0]
    );
}

#[test]
fn chunks_are_equal_but_for_the_last() {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 7]);
    let mut sizes = |n: usize| -> Vec<usize> {
        let parts = g.chunk(x, -1, n);
        parts.into_iter().map(|p| g.shape(p)[1]).collect()
    };
    assert_eq!(sizes(1), [7]);
    assert_eq!(sizes(3), [3, 3, 1]);
    // Four parts of two: a fifth would be empty.
    assert_eq!(sizes(5), [2, 2, 2, 1]);
    assert_eq!(sizes(100), [1; 7]);
    let nothing = g.input("nothing", &[0]);
    let parts = g.chunk(nothing, 0, 3);
    assert_eq!(parts.len(), 1);
    assert_eq!(g.shape(parts[0]), [0]);
    assert!(g.errors().is_empty(), "{:?}", g.errors());
}

#[test]
fn what_follows_a_wrong_call_is_not_reported_again() {
    let mut g = Graph::new();
    let x = g.input("x", &[3]);
    let bad = g.tile(x, &[1, 2]);
    let parts = g.chunk(bad, 0, 2);
    g.relu(parts[0]);
    let pieces = g.split(bad, 0, &[1, 2]);
    g.relu(pieces[1]);
    let top = g.top_k(bad, 0, 1);
    g.tril(top, 0);
    assert_eq!(g.errors().len(), 1, "{:?}", g.errors());
}

#[test]
fn moments_of_small_samples() {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 4]);
    let biased = g.variance(x, &[1], 0, false);
    let unbiased = g.variance(x, &[1], 1, true);
    let deviation = g.std_dev(x, &[1], 0, false);
    let data = [("x", &[1.0, 2.0, 3.0, 4.0, 1e8, 1e8, 1e8, 1e8][..])];
    let found = values(&mut g, &[biased.into(), unbiased.into(), deviation.into()], &data);
    assert_eq!(found[0], [1.25, 0.0]);
    assert!((found[1][0] - 5.0 / 3.0).abs() < 1e-6 && found[1][1] == 0.0);
    assert_eq!(found[2], [1.25f64.sqrt(), 0.0]);
    assert_eq!(g.shape(unbiased), [2, 1]);
}

#[test]
fn categories_are_drawn_with_their_probabilities() {
    const ROWS: usize = 20_000;
    let probabilities = [0.15, 0.5, 0.05, 0.3];
    let mut g = Graph::new();
    let logits = g.input("logits", &[ROWS, 4]);
    let temperature = g.input("temperature", &[ROWS]);
    let seeds = g.input_u32("seeds", &[ROWS, 2]);
    let drawn = g.categorical(logits, temperature, seeds).into();
    let row = probabilities.map(|p: f64| p.ln());
    let draw = |g: &mut Graph, temperature: f64, seed: &dyn Fn(usize) -> [f64; 2]| -> [f64; 4] {
        let seeds: Vec<f64> = (0..ROWS).flat_map(seed).collect();
        let list: [(&str, &[f64]); 3] = [
            ("logits", &row.repeat(ROWS)),
            ("temperature", &vec![temperature; ROWS]),
            ("seeds", &seeds),
        ];
        let mut counts = [0.0; 4];
        for &category in &values(g, &[drawn], &list)[0] {
            counts[category as usize] += 1.0 / ROWS as f64;
        }
        counts
    };
    // Either of the two words differs.
    for seed in [|i: usize| [i as f64, 7.0], |i: usize| [7.0, i as f64]] {
        for (found, expected) in draw(&mut g, 1.0, &seed).into_iter().zip(probabilities) {
            assert!((found - expected).abs() < 0.015, "{found}, not {expected}");
        }
        // Half the temperature squares them.
        let squares = probabilities.map(|p| p * p);
        let sum: f64 = squares.iter().sum();
        for (found, expected) in draw(&mut g, 0.5, &seed).into_iter().zip(squares) {
            assert!((found - expected / sum).abs() < 0.015, "{found}, not {expected}");
        }
    }
    let greedy = draw(&mut g, 0.0, &|i| [i as f64, 0.0]);
    assert!(greedy[1] > 0.999, "{greedy:?}");
    let same = draw(&mut g, 1.0, &|_| [3.0, 4.0]);
    assert!(same.iter().any(|&p| p > 0.999), "{same:?}");
}
