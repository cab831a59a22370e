//! Tests of builder methods that consist of several calls: values against loops, derivatives against central
//! differences in `f64`.

use std::collections::HashMap;

use meganeura_core::autodiff::try_differentiate;
use meganeura_core::graph::Graph;
use meganeura_core::ops::AttentionOptions;
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::evaluate;
use meganeura_core::{DType, NodeId};

pub(crate) type Feeds = HashMap<String, Vec<f64>>;

pub(crate) fn numbers(len: usize, seed: u64) -> Vec<f64> {
    let mut rng = SplitMix64::new(seed);
    (0..len).map(|_| f64::from((rng.unit() * 4.0 - 2.0) as f32)).collect()
}

pub(crate) fn feeds(values: &[(&str, Vec<f64>)]) -> Feeds {
    values.iter().map(|(n, v)| ((*n).to_owned(), v.clone())).collect()
}

pub(crate) fn value(g: &Graph, node: NodeId, feeds: &Feeds) -> Vec<f64> {
    evaluate(g, feeds)
        .expect("evaluates")
        .get(node)
        .expect("a value")
        .data
        .clone()
}

/// Checks the derivatives with respect to every differentiable input. The loss weights each element of the result
/// differently.
pub(crate) fn check_gradients(mut g: Graph, y: NodeId, feeds: &Feeds) {
    let shape = g.shape(y).to_vec();
    let weights = numbers(shape.iter().product(), 91).iter().map(|w| *w as f32).collect();
    let weights = g.constant(weights, &shape);
    let product = g.mul(y, weights);
    let loss = g.sum_all(product);
    g.set_outputs(vec![loss]);
    let full = try_differentiate(&g).expect("differentiates");
    let values = evaluate(&full, feeds).expect("evaluates");
    assert!(!full.gradients().is_empty());
    for &(leaf, gradient) in full.gradients() {
        let name = full.nodes()[leaf.index()].name.clone().expect("leaves are named");
        let found = &values.get(gradient).expect("a gradient").data;
        for (i, found) in found.iter().enumerate() {
            let probe = |h: f64| {
                let mut moved = feeds.clone();
                moved.get_mut(&*name).expect("fed")[i] += h;
                value(&g, loss, &moved)[0]
            };
            let expected = (probe(1e-6) - probe(-1e-6)) / 2e-6;
            assert!(
                (found - expected).abs() < 1e-6 * expected.abs().max(1.0),
                "{name}[{i}]: {found}, not {expected}"
            );
        }
    }
}

fn rejection(build: impl FnOnce(&mut Graph)) -> String {
    let mut g = Graph::new();
    build(&mut g);
    assert_eq!(g.errors().len(), 1, "{:?}", g.errors());
    let error = g.errors()[0].to_string();
    assert!(error.contains("compositions.rs:"), "at the caller's line: {error}");
    error
}

// ---- biases ----------------------------------------------------------------------------------------------

#[test]
fn a_channel_has_one_bias() {
    for (shape, inner) in [(vec![2, 3], 1), (vec![2, 3, 4], 4), (vec![2, 3, 2, 2], 4)] {
        let mut g = Graph::new();
        let x = g.input("x", &shape);
        let b = g.input("b", &[3]);
        g.require_grad(b);
        let y = g.channel_bias_add(x, b);
        assert_eq!(g.shape(y), shape);
        let (xs, bs) = (numbers(6 * inner, 1), numbers(3, 2));
        let expected: Vec<f64> = (0..xs.len()).map(|i| xs[i] + bs[i / inner % 3]).collect();
        let feeds = feeds(&[("x", xs), ("b", bs)]);
        g.set_outputs(vec![y]);
        assert_eq!(value(&g, y, &feeds), expected);
        check_gradients(g, y, &feeds);
    }
}

#[test]
fn a_bias_that_does_not_fit_is_pointed_to_the_right_function() {
    let of = |shape: &[usize], bias: usize| {
        rejection(|g| {
            let x = g.input("x", shape);
            let b = g.input("b", &[bias]);
            g.bias_add(x, b);
        })
    };
    let image = of(&[2, 3, 5, 5], 3);
    assert!(
        image.contains("axis 1 has as many elements") && image.contains("`channel_bias_add`"),
        "{image}"
    );
    let rows = of(&[2, 3], 4);
    assert!(rows.contains("one element for each column"), "{rows}");
    let wrong = rejection(|g| {
        let x = g.input("x", &[2, 3, 5, 5]);
        let b = g.input("b", &[5]);
        g.channel_bias_add(x, b);
    });
    assert!(wrong.contains("axis 1") && wrong.contains("`bias_add`"), "{wrong}");
    let vector = rejection(|g| {
        let x = g.input("x", &[3]);
        let b = g.input("b", &[3]);
        g.channel_bias_add(x, b);
    });
    assert!(vector.contains("channels"), "{vector}");
}

// ---- l2_normalize ----------------------------------------------------------------------------------------

#[test]
fn vectors_get_the_length_one() {
    for axis in [-1, 1, 0] {
        let mut g = Graph::new();
        let x = g.input("x", &[3, 4]);
        g.require_grad(x);
        let y = g.l2_normalize(x, axis, 1e-12);
        let xs = numbers(12, 3);
        let length = |at: usize| {
            let same = |i: &usize| if axis == 0 { i % 4 == at % 4 } else { i / 4 == at / 4 };
            (0..12).filter(same).map(|i| xs[i] * xs[i]).sum::<f64>().sqrt()
        };
        let expected: Vec<f64> = (0..12).map(|i| xs[i] / length(i)).collect();
        let feeds = feeds(&[("x", xs.clone())]);
        g.set_outputs(vec![y]);
        for (found, expected) in value(&g, y, &feeds).iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-12, "{found}, not {expected}");
        }
        check_gradients(g, y, &feeds);
    }
}

#[test]
fn short_vectors_are_divided_by_eps() {
    let mut g = Graph::new();
    let x = g.input("x", &[2, 2]);
    g.require_grad(x);
    let y = g.l2_normalize(x, -1, 0.5);
    g.set_outputs(vec![y]);
    let feeds = feeds(&[("x", vec![0.0, 0.0, 0.03, -0.04])]);
    for (found, expected) in value(&g, y, &feeds).iter().zip([0.0, 0.0, 0.06, -0.08]) {
        assert!((found - expected).abs() < 1e-12, "{found}, not {expected}");
    }
    // At zero as well: the derivative is 1 / eps.
    check_gradients(g, y, &feeds);
}

#[test]
fn what_has_no_length_is_refused() {
    let of = |dtype: DType, axis: i32, eps: f32| {
        rejection(|g| {
            let x = g.input_typed("x", &[2, 2], dtype);
            g.l2_normalize(x, axis, eps);
        })
    };
    for eps in [0.0, -1.0, 1e-30, 1e30, f32::NAN, f32::INFINITY] {
        assert!(of(DType::F32, -1, eps).contains("eps is"), "{eps}");
    }
    assert!(of(DType::U32, -1, 1e-12).contains("u32"));
    assert!(of(DType::F32, 2, 1e-12).contains("axis"));
    let mut g = Graph::new();
    let x = g.input_typed("x", &[2, 2], DType::F16);
    let y = g.l2_normalize(x, -1, 1e-12);
    assert_eq!(g.dtype(y), DType::F16);
}

// ---- masked attention ------------------------------------------------------------------------------------

/// Number of query heads, of key-value heads, and of features per head; with 4 features, the scale of the scores is
/// exact.
const HEADS: [usize; 3] = [4, 2, 4];
const BATCH: usize = 2;

/// Computes the result by the definition, with the mask as a number that is added to each score
/// `[batch, head, query, key]`.
fn expected([q, k, v]: [&[f64]; 3], [rows_q, rows_k]: [usize; 2], mask: impl Fn([usize; 4]) -> f64) -> Vec<f64> {
    let [heads, kv_heads, width] = HEADS;
    let mut out = vec![0.0; q.len()];
    for b in 0..BATCH {
        for h in 0..heads {
            for i in 0..rows_q {
                let own = ((b * rows_q + i) * heads + h) * width;
                let at = |j: usize| ((b * rows_k + j) * kv_heads + h / (heads / kv_heads)) * width;
                let e = |j: usize| {
                    let dot: f64 = (0..width).map(|c| q[own + c] * k[at(j) + c]).sum();
                    (dot / (width as f64).sqrt() + mask([b, h, i, j])).exp()
                };
                let sum: f64 = (0..rows_k).map(e).sum();
                for c in (0..width).filter(|_| sum > 0.0) {
                    out[own + c] = (0..rows_k).map(|j| e(j) / sum * v[at(j) + c]).sum();
                }
            }
        }
    }
    out
}

/// Builds attention with a mask of this shape and type, and the values of its inputs.
fn masked(rows: [usize; 2], shape: &[usize], dtype: DType, causal: bool, mask: Vec<f64>) -> (Graph, NodeId, Feeds) {
    let [heads, kv_heads, width] = HEADS;
    let mut g = Graph::new();
    let q = g.input("q", &[BATCH, rows[0], heads * width]);
    let k = g.input("k", &[BATCH, rows[1], kv_heads * width]);
    let v = g.input("v", &[BATCH, rows[1], kv_heads * width]);
    let m = g.input_typed("mask", shape, dtype);
    for operand in [q, k, v] {
        g.require_grad(operand);
    }
    if dtype == DType::F32 && mask.iter().all(|m| m.is_finite()) {
        g.require_grad(m);
    }
    let options = AttentionOptions {
        causal,
        ..AttentionOptions::new(heads as u32, kv_heads as u32, width as u32)
    };
    let y = g.masked_attention(q, k, v, m, options);
    g.set_outputs(vec![y]);
    g.verify().expect("valid");
    let feeds = feeds(&[
        ("q", numbers(BATCH * rows[0] * heads * width, 5)),
        ("k", numbers(BATCH * rows[1] * kv_heads * width, 6)),
        ("v", numbers(BATCH * rows[1] * kv_heads * width, 7)),
        ("mask", mask),
    ]);
    (g, y, feeds)
}

fn agrees((g, y, feeds): (Graph, NodeId, Feeds), rows: [usize; 2], mask: impl Fn([usize; 4]) -> f64) {
    let found = value(&g, y, &feeds);
    let expected = expected([&feeds["q"], &feeds["k"], &feeds["v"]], rows, mask);
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert!((found - expected).abs() < 1e-9, "{i}: {found}, not {expected}");
    }
    check_gradients(g, y, &feeds);
}

const HIDDEN: f64 = f64::NEG_INFINITY;

#[test]
fn an_additive_mask_is_added_to_the_scores_and_has_a_gradient() {
    let rows = [3, 5];
    let all = numbers(BATCH * 4 * 15, 8);
    let full = masked(rows, &[BATCH, 4, 3, 5], DType::F32, false, all.clone());
    agrees(full, rows, |[b, h, i, j]| all[((b * 4 + h) * 3 + i) * 5 + j]);
    // A bias for relative positions: one for all sequences.
    let bias = numbers(4 * 15, 9);
    let shared = masked(rows, &[4, 3, 5], DType::F32, false, bias.clone());
    agrees(shared, rows, |[_, h, i, j]| bias[(h * 3 + i) * 5 + j]);
    // The mask cannot show keys that a causal layer hides.
    let causal = masked(rows, &[3, 5], DType::F32, true, bias[..15].to_vec());
    agrees(
        causal,
        rows,
        |[_, _, i, j]| if j <= i + 2 { bias[i * 5 + j] } else { HIDDEN },
    );
    let mut infinite = bias[..15].to_vec();
    (infinite[3], infinite[7]) = (HIDDEN, HIDDEN);
    let hides = masked(rows, &[3, 5], DType::F32, false, infinite.clone());
    agrees(hides, rows, |[_, _, i, j]| infinite[i * 5 + j]);
}

#[test]
fn a_boolean_mask_hides_keys() {
    let rows = [4, 4];
    // Row 2 sees nothing: its result is zero, and no gradient is NaN.
    let seen = [1, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0];
    let mask = seen.iter().map(|&s| f64::from(s)).collect();
    let case = masked(rows, &[4, 4], DType::U32, false, mask);
    let found = value(&case.0, case.1, &case.2);
    assert!(found[2 * 16..3 * 16].iter().all(|v| *v == 0.0), "{found:?}");
    agrees(
        case,
        rows,
        |[_, _, i, j]| if seen[i * 4 + j] == 1 { 0.0 } else { HIDDEN },
    );
}

#[test]
fn padding_is_seen_by_no_query() {
    let [heads, kv_heads, width] = HEADS;
    let mut g = Graph::new();
    let [q, k, v] = [("q", heads), ("k", kv_heads), ("v", kv_heads)].map(|(n, h)| g.input(n, &[BATCH, 3, h * width]));
    let real = g.input_u32("mask", &[BATCH, 3]);
    g.require_grad(k);
    let mask = g.key_padding_mask(real);
    assert_eq!(g.shape(mask), [BATCH, 1, 1, 3]);
    let y = g.masked_attention(q, k, v, mask, AttentionOptions::new(4, 2, 4));
    g.set_outputs(vec![y]);
    let lengths = [3, 1];
    let feeds = feeds(&[
        ("q", numbers(BATCH * 3 * 16, 5)),
        ("k", numbers(BATCH * 3 * 8, 6)),
        ("v", numbers(BATCH * 3 * 8, 7)),
        ("mask", vec![1.0, 1.0, 1.0, 1.0, 0.0, 0.0]),
    ]);
    agrees(
        (g, y, feeds),
        [3, 3],
        |[b, _, _, j]| if j < lengths[b] { 0.0 } else { HIDDEN },
    );
}

#[test]
fn masks_that_do_not_fit_are_refused() {
    let of = |shape: &[usize], dtype: DType, options: AttentionOptions| {
        rejection(|g| {
            let x = g.input("x", &[2, 3, 8]);
            let mask = g.input_typed("mask", shape, dtype);
            g.masked_attention(x, x, x, mask, options);
        })
    };
    let two = AttentionOptions::new(2, 2, 4);
    let wide = of(&[3, 4], DType::F32, two);
    assert!(
        wide.contains("does not broadcast") && wide.contains("[2, 2, 3, 3]"),
        "{wide}"
    );
    // An unexpanded padding mask would be interpreted as one of queries and keys.
    let padding = of(&[2, 3], DType::U32, two);
    assert!(padding.contains("`key_padding_mask`"), "{padding}");
    let half = of(&[3, 3], DType::F16, two);
    assert!(half.contains("additive mask in the dtype of the queries"), "{half}");
    let heads = of(&[3, 3], DType::F32, AttentionOptions::new(3, 3, 4));
    assert!(heads.contains("the queries"), "{heads}");
    let window = AttentionOptions {
        window: Some(0),
        causal: true,
        ..two
    };
    assert!(of(&[3, 3], DType::F32, window).contains("window of 0"));
    let float = rejection(|g| {
        let real = g.input("real", &[2, 3]);
        g.key_padding_mask(real);
    });
    assert!(float.contains("1 for real rows"), "{float}");
}

#[test]
fn masked_attention_of_half_precision_has_its_dtype() {
    let mut g = Graph::new();
    let x = g.input_typed("x", &[2, 3, 8], DType::F16);
    let mask = g.input_u32("mask", &[3, 3]);
    let y = g.masked_attention(x, x, x, mask, AttentionOptions::new(2, 2, 4));
    assert!(g.errors().is_empty(), "{:?}", g.errors());
    assert_eq!((g.dtype(y), g.shape(y)), (DType::F16, &[2, 3, 8][..]));
}
