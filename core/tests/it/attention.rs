//! Tests of attention, rotary embedding and gated units against plain loops, and of derivatives through every result.

use std::collections::HashMap;

use meganeura_core::autodiff::try_differentiate;
use meganeura_core::graph::Graph;
use meganeura_core::ops::AttentionOptions;
use meganeura_core::random::SplitMix64;
use meganeura_core::reference::evaluate;

fn numbers(len: usize, seed: u64, size: f64) -> Vec<f64> {
    let mut rng = SplitMix64::new(seed);
    (0..len).map(|_| size * (2.0 * rng.unit() - 1.0)).collect()
}

/// Sizes of a call.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    rows: [usize; 2],
    /// Query heads, key-value heads, width.
    heads: [usize; 3],
}

/// Computes output and log-sum-exp by the definition.
fn attention(s: Sizes, options: AttentionOptions, [q, k, v]: [&[f64]; 3]) -> [Vec<f64>; 2] {
    let ([rows_q, rows_k], [heads, kv_heads, width]) = (s.rows, s.heads);
    let scale = options.scale.map_or(1.0 / (width as f64).sqrt(), f64::from);
    let mut out = vec![0.0; q.len()];
    let mut lse = Vec::new();
    for b in 0..s.batch {
        for h in 0..heads {
            let kv = h / (heads / kv_heads);
            for i in 0..rows_q {
                let q_at = ((b * rows_q + i) * heads + h) * width;
                let kv_at = |j: usize| ((b * rows_k + j) * kv_heads + kv) * width;
                let own = i + rows_k.saturating_sub(rows_q);
                let sees =
                    |j: &usize| !options.causal || (*j <= own && options.window.is_none_or(|w| own - j < w as usize));
                let seen: Vec<usize> = (0..rows_k).filter(sees).collect();
                let score =
                    |&j: &usize| -> f64 { (0..width).map(|e| q[q_at + e] * k[kv_at(j) + e]).sum::<f64>() * scale };
                let scores: Vec<f64> = seen.iter().map(score).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
                lse.push(max + sum.ln());
                for (j, score) in seen.into_iter().zip(scores) {
                    for e in 0..width {
                        out[q_at + e] += (score - max).exp() / sum * v[kv_at(j) + e];
                    }
                }
            }
        }
    }
    [out, lse]
}

fn close(found: &[f64], wanted: &[f64], what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (i, (f, w)) in found.iter().zip(wanted).enumerate() {
        // Constants of a decomposition are f32 numbers.
        assert!((f - w).abs() <= 1e-6 * w.abs().max(1.0), "{what} [{i}]: {f}, not {w}");
    }
}

fn check(s: Sizes, options: AttentionOptions, size: f64) {
    let (batch, [heads, kv_heads, width]) = (s.batch, s.heads);
    let mut g = Graph::new();
    let shapes = [
        [batch, s.rows[0], heads * width],
        [batch, s.rows[1], kv_heads * width],
        [batch, s.rows[1], kv_heads * width],
    ];
    let mut feeds = HashMap::new();
    let [q, k, v] = [0, 1, 2].map(|i| {
        let name = ["q", "k", "v"][i];
        feeds.insert(name.to_owned(), numbers(shapes[i].iter().product(), i as u64, size));
        g.input(name, &shapes[i])
    });
    let y = g.attention(q, k, v, options);
    let lse = g.port(y, 1);
    assert_eq!(g.shape(lse), [batch, heads, s.rows[0]]);
    g.set_outputs(vec![y.into(), lse]);
    let values = evaluate(&g, &feeds).expect("evaluates");
    let want = attention(s, options, [&feeds["q"], &feeds["k"], &feeds["v"]]);
    let what = format!("{s:?} {options:?}");
    close(&values.get(y).expect("a result").data, &want[0], &what);
    close(&values.get(lse).expect("a result").data, &want[1], &what);
}

#[test]
fn attention_is_what_its_formula_says() {
    let heads = [[1, 1, 1], [4, 2, 3], [3, 1, 2], [2, 2, 5]];
    let masks = [
        (false, None),
        (true, None),
        (true, Some(1)),
        (true, Some(3)),
        (true, Some(u32::MAX)),
    ];
    for heads in heads {
        for rows in [[1, 1], [1, 6], [4, 4], [3, 7]] {
            for (causal, window) in masks {
                for scale in [None, Some(-0.5)] {
                    let [h, kv, d] = heads.map(|n| n as u32);
                    let options = AttentionOptions {
                        causal,
                        window,
                        scale,
                        ..AttentionOptions::new(h, kv, d)
                    };
                    let batch = 1 + rows[0] % 2;
                    check(Sizes { batch, rows, heads }, options, 2.0);
                }
            }
        }
    }
    // More queries than keys are possible without a mask.
    let s = Sizes {
        batch: 2,
        rows: [5, 2],
        heads: [2, 1, 3],
    };
    check(s, AttentionOptions::new(2, 1, 3), 2.0);
    // Scores above ten thousand do not overflow.
    check(s, AttentionOptions::new(2, 1, 3), 200.0);
}

/// The gradient of a loss that depends on both results equals central differences.
#[test]
fn gradients_through_both_results() {
    for (with_out, with_lse) in [(true, true), (false, true), (true, false)] {
        let mut g = Graph::new();
        let mut feeds = HashMap::new();
        let shapes = [[3, 8], [5, 4], [5, 4]];
        let leaves = [0, 1, 2].map(|i| {
            let name = ["q", "k", "v"][i];
            feeds.insert(name.to_owned(), numbers(shapes[i].iter().product(), 5 + i as u64, 1.5));
            let x = g.input(name, &shapes[i]);
            g.require_grad(x)
        });
        let y = g.sliding_window_attention(leaves[0], leaves[1], leaves[2], 4, 2, 2, 3);
        let lse = g.port(y, 1);
        let mut loss = g.scalar(0.0);
        for (used, value, len) in [(with_out, y.into(), 24), (with_lse, lse, 12)] {
            if used {
                let shape = g.shape(value).to_vec();
                let weights = numbers(len, 9, 1.0).iter().map(|&w| w as f32).collect();
                let weights = g.constant(weights, &shape);
                let weighted = g.mul(value, weights);
                let sum = g.sum_all(weighted);
                loss = g.add(loss, sum);
            }
        }
        g.set_outputs(vec![loss]);
        let full = try_differentiate(&g).expect("a gradient");
        let values = evaluate(&full, &feeds).expect("evaluates");
        for &(leaf, gradient) in full.gradients() {
            let name = full.nodes()[leaf.index()].name.clone().expect("a name");
            let analytic = &values.get(gradient).expect("a gradient").data;
            for (at, &found) in analytic.iter().enumerate() {
                let probe = |by: f64| {
                    let mut feeds = feeds.clone();
                    feeds.get_mut(&*name).expect("fed")[at] += by;
                    let values = evaluate(&g, &feeds).expect("evaluates");
                    values.get(loss).expect("a loss").data[0]
                };
                let want = (probe(1e-5) - probe(-1e-5)) / 2e-5;
                assert!((found - want).abs() < 1e-6, "{name}[{at}]: {found}, not {want}");
            }
        }
    }
}

#[test]
fn builders_are_forms_of_one_operator() {
    let mut g = Graph::new();
    let (q, k) = (g.input("q", &[3, 8]), g.input("k", &[5, 4]));
    let full = g.attention(q, k, k, AttentionOptions::new(4, 2, 2));
    let causal = g.causal_attention(q, k, k, 4, 2, 2);
    let window = g.sliding_window_attention(q, k, k, 4, 2, 2, 3);
    assert!(g.errors().is_empty(), "{:?}", g.errors());
    let attrs = |id: meganeura_core::NodeId| g.nodes()[id.index()].op().expect("a call").1.clone();
    assert_eq!(attrs(full).with("causal", true), attrs(causal));
    assert_eq!(attrs(causal).with("window", 3i64), attrs(window));
    assert_eq!(attrs(full).float("scale"), Ok(1.0 / 2f64.sqrt()));
}

#[test]
fn rotation_turns_pairs_half_a_head_apart() {
    let (rows, heads, half, theta, offset) = (3, 2, 2, 100.0f64, 7);
    let x = numbers(2 * rows * heads * 2 * half, 3, 2.0);
    let mut g = Graph::new();
    let input = g.input("x", &[2, rows, heads * 2 * half]);
    let y = g.rope_with_offset(input, theta as f32, offset as u32, 2 * half as u32);
    let first = g.rope(input, theta as f32, 2 * half as u32);
    g.set_outputs(vec![y, first]);
    let feeds = HashMap::from([("x".to_owned(), x.clone())]);
    let values = evaluate(&g, &feeds).expect("evaluates");
    for (node, offset) in [(y, offset), (first, 0)] {
        let found = &values.get(node).expect("a result").data;
        for (at, head) in x.chunks(2 * half).enumerate() {
            let row = at / heads % rows;
            for i in 0..half {
                let angle = (row + offset) as f64 * theta.powf(-2.0 * i as f64 / (2 * half) as f64);
                let (sin, cos) = angle.sin_cos();
                let (x1, x2) = (head[i], head[i + half]);
                let base = at * 2 * half + i;
                close(
                    &[found[base], found[base + half]],
                    &[x1 * cos - x2 * sin, x2 * cos + x1 * sin],
                    "rope",
                );
            }
        }
    }
}

#[test]
fn gated_units_are_what_their_formulas_say() {
    let (gate, up) = (numbers(6, 1, 4.0), numbers(6, 2, 4.0));
    let mut g = Graph::new();
    let [a, b] = ["gate", "up"].map(|name| g.input(name, &[2, 3]));
    let packed = g.concat(&[a, b], -1);
    let outputs = [g.swiglu(a, b), g.swiglu_concat(packed), g.geglu(a, b)];
    g.set_outputs(outputs.to_vec());
    let feeds = HashMap::from([("gate".to_owned(), gate.clone()), ("up".to_owned(), up.clone())]);
    let values = evaluate(&g, &feeds).expect("evaluates");
    let silu: Vec<f64> = gate.iter().zip(&up).map(|(x, u)| x / (1.0 + (-x).exp()) * u).collect();
    close(&values.get(outputs[0]).expect("a result").data, &silu, "swiglu");
    close(&values.get(outputs[1]).expect("a result").data, &silu, "swiglu_concat");
    // gelu(x) - gelu(-x) = x holds for every distribution function.
    let gelu = &values.get(outputs[2]).expect("a result").data;
    let negated = gate.iter().map(|x| -x).collect();
    let feeds = HashMap::from([("gate".to_owned(), negated), ("up".to_owned(), up.clone())]);
    let values = evaluate(&g, &feeds).expect("evaluates");
    let other = &values.get(outputs[2]).expect("a result").data;
    let difference: Vec<f64> = gelu.iter().zip(other).map(|(a, b)| a - b).collect();
    let product: Vec<f64> = gate.iter().zip(&up).map(|(x, u)| x * u).collect();
    close(&difference, &product, "geglu");
}
