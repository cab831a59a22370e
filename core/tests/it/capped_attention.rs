//! Tests of attention with a soft cap on the scores: values against loops, derivatives against central differences in
//! `f64`.

use meganeura_core::graph::Graph;
use meganeura_core::ops::AttentionOptions;
use meganeura_core::{DType, NodeId};

use crate::compositions::{Feeds, check_gradients, feeds, numbers, value};

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const WIDTH: usize = 3;
const CAP: f32 = 1.5;

fn options(causal: bool, window: Option<u32>) -> AttentionOptions {
    AttentionOptions {
        causal,
        window,
        scale: Some(0.8),
        softcap: Some(CAP),
        ..AttentionOptions::new(HEADS as u32, KV_HEADS as u32, WIDTH as u32)
    }
}

/// Computes the result of one query `[HEADS * WIDTH]` with these rows of keys and values `[KV_HEADS * WIDTH]`.
fn attend(query: &[f64], keys: &[&[f64]], values: &[&[f64]]) -> Vec<f64> {
    let mut out = Vec::new();
    for head in 0..HEADS {
        let shared = head / (HEADS / KV_HEADS) * WIDTH;
        let own = &query[head * WIDTH..][..WIDTH];
        let score = |key: &&[f64]| {
            let product: f64 = own.iter().zip(&key[shared..][..WIDTH]).map(|(q, k)| q * k).sum();
            let cap = f64::from(CAP);
            cap * (f64::from(0.8f32) * product / cap).tanh()
        };
        let weights: Vec<f64> = keys.iter().map(|key| score(key).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for at in shared..shared + WIDTH {
            let weighted = weights.iter().zip(values).map(|(w, value)| w * value[at]);
            out.push(weighted.sum::<f64>() / sum);
        }
    }
    out
}

fn rows(numbers: &[f64], width: usize) -> Vec<&[f64]> {
    numbers.chunks_exact(width).collect()
}

fn agrees(g: &Graph, y: NodeId, feeds: &Feeds, expected: &[f64]) {
    let found = value(g, y, feeds);
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() < 1e-6, "{i}: {found}, not {expected}");
    }
}

#[test]
fn attention_to_the_own_sequence() {
    let [batch, rows_q, rows_k] = [2, 4, 6];
    for (causal, window) in [(false, None), (true, None), (true, Some(2))] {
        let mut g = Graph::new();
        let q = g.input("q", &[batch, rows_q, HEADS * WIDTH]);
        let [k, v] = ["k", "v"].map(|name| g.input(name, &[batch, rows_k, KV_HEADS * WIDTH]));
        for operand in [q, k, v] {
            g.require_grad(operand);
        }
        let y = g.attention(q, k, v, options(causal, window));
        g.set_outputs(vec![y]);
        g.verify().expect("valid");
        let feeds = feeds(&[
            ("q", numbers(batch * rows_q * HEADS * WIDTH, 1)),
            ("k", numbers(batch * rows_k * KV_HEADS * WIDTH, 2)),
            ("v", numbers(batch * rows_k * KV_HEADS * WIDTH, 3)),
        ]);
        let queries = rows(&feeds["q"], HEADS * WIDTH);
        let [keys, values] = ["k", "v"].map(|name| rows(&feeds[name], KV_HEADS * WIDTH));
        let mut expected = Vec::new();
        for (i, query) in queries.iter().enumerate() {
            let (sequence, row) = (i / rows_q * rows_k, i % rows_q);
            let end = if causal { row + 1 + rows_k - rows_q } else { rows_k };
            let start = window.map_or(0, |window| end.saturating_sub(window as usize));
            let seen = sequence + start..sequence + end;
            expected.extend(attend(query, &keys[seen.clone()], &values[seen]));
        }
        agrees(&g, y, &feeds, &expected);
        check_gradients(g, y, &feeds);
    }
}

#[test]
fn a_mask_comes_after_the_bound() {
    let mut g = Graph::new();
    let q = g.input("q", &[2, HEADS * WIDTH]);
    let [k, v] = ["k", "v"].map(|name| g.input(name, &[3, KV_HEADS * WIDTH]));
    let mask = g.input_u32("mask", &[2, 3]);
    let y = g.masked_attention(q, k, v, mask, options(false, None));
    let feeds = feeds(&[
        ("q", numbers(2 * HEADS * WIDTH, 1)),
        ("k", numbers(3 * KV_HEADS * WIDTH, 2)),
        ("v", numbers(3 * KV_HEADS * WIDTH, 3)),
        ("mask", vec![1.0, 0.0, 1.0, 0.0, 1.0, 1.0]),
    ]);
    let queries = rows(&feeds["q"], HEADS * WIDTH);
    let [keys, values] = ["k", "v"].map(|name| rows(&feeds[name], KV_HEADS * WIDTH));
    let expected = [
        attend(queries[0], &[keys[0], keys[2]], &[values[0], values[2]]),
        attend(queries[1], &keys[1..], &values[1..]),
    ];
    g.set_outputs(vec![y]);
    agrees(&g, y, &feeds, &expected.concat());
}

#[test]
fn attention_to_a_cache() {
    let [batch, count, capacity] = [2, 2, 5];
    let mut g = Graph::new();
    let q = g.input("q", &[batch, count, HEADS * WIDTH]);
    let [k, v] = ["k", "v"].map(|name| g.input(name, &[batch, capacity, KV_HEADS * WIDTH]));
    let at = g.input_u32("at", &[batch]);
    let y = g.cached_attention_with(q, k, v, at, options(true, Some(3)));
    g.set_outputs(vec![y]);
    g.verify().expect("valid");
    let mut keys = numbers(batch * capacity * KV_HEADS * WIDTH, 2);
    // Unwritten rows have no effect.
    keys[2 * KV_HEADS * WIDTH..5 * KV_HEADS * WIDTH].fill(f64::NAN);
    let feeds = feeds(&[
        ("q", numbers(batch * count * HEADS * WIDTH, 1)),
        ("k", keys),
        ("v", numbers(batch * capacity * KV_HEADS * WIDTH, 3)),
        ("at", vec![0.0, 3.0]),
    ]);
    let queries = rows(&feeds["q"], HEADS * WIDTH);
    let [keys, values] = ["k", "v"].map(|name| rows(&feeds[name], KV_HEADS * WIDTH));
    let mut expected = Vec::new();
    for (i, query) in queries.iter().enumerate() {
        let (sequence, end) = (i / count * capacity, [0, 3][i / count] + i % count + 1);
        let seen = sequence + end - end.min(3)..sequence + end;
        expected.extend(attend(query, &keys[seen.clone()], &values[seen]));
    }
    agrees(&g, y, &feeds, &expected);
}

#[test]
fn attention_to_blocks() {
    let [count, blocks, block_rows] = [3, 4, 2];
    let mut g = Graph::new();
    let q = g.input("q", &[count, HEADS * WIDTH]);
    let [k, v] = ["k", "v"].map(|name| g.input(name, &[blocks, block_rows, KV_HEADS * WIDTH]));
    let at = g.input_u32("at", &[count]);
    let table = g.input_u32("table", &[count, 2]);
    let y = g.paged_attention(q, k, v, at, table, options(true, Some(2)));
    g.set_outputs(vec![y]);
    g.verify().expect("valid");
    let tables = [[3usize, 1], [0, 2], [2, 2]];
    let positions = [2usize, 0, 1];
    let feeds = feeds(&[
        ("q", numbers(count * HEADS * WIDTH, 1)),
        ("k", numbers(blocks * block_rows * KV_HEADS * WIDTH, 2)),
        ("v", numbers(blocks * block_rows * KV_HEADS * WIDTH, 3)),
        ("at", positions.map(|p| p as f64).to_vec()),
        ("table", tables.concat().iter().map(|&block| block as f64).collect()),
    ]);
    let queries = rows(&feeds["q"], HEADS * WIDTH);
    let [keys, values] = ["k", "v"].map(|name| rows(&feeds[name], KV_HEADS * WIDTH));
    let mut expected = Vec::new();
    for (row, query) in queries.iter().enumerate() {
        let end = positions[row] + 1;
        let seen = (end - end.min(2)..end).map(|j| tables[row][j / block_rows] * block_rows + j % block_rows);
        let (keys, values): (Vec<_>, Vec<_>) = seen.map(|at| (keys[at], values[at])).unzip();
        expected.extend(attend(query, &keys, &values));
    }
    agrees(&g, y, &feeds, &expected);
}

#[test]
fn what_does_not_fit_is_refused() {
    let rejection = |build: &dyn Fn(&mut Graph)| {
        let mut g = Graph::new();
        build(&mut g);
        let errors: Vec<String> = g.errors().iter().map(ToString::to_string).collect();
        assert_eq!(errors.len(), 1, "{errors:?}");
        errors[0].clone()
    };
    for cap in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let options = AttentionOptions {
            softcap: Some(cap),
            ..options(true, None)
        };
        let error = rejection(&|g| {
            let q = g.input("q", &[2, HEADS * WIDTH]);
            let k = g.input("k", &[2, KV_HEADS * WIDTH]);
            g.attention(q, k, k, options);
        });
        assert!(error.contains("soft cap") && error.contains("above 0"), "{error}");
        let error = rejection(&|g| {
            let q = g.input("q", &[2, HEADS * WIDTH]);
            let k = g.input("k", &[2, KV_HEADS * WIDTH]);
            let mask = g.input_u32("mask", &[2, 2]);
            g.masked_attention(q, k, k, mask, options);
        });
        assert!(error.contains("soft cap"), "{error}");
    }
    let error = rejection(&|g| {
        let q = g.input("q", &[2, HEADS * WIDTH]);
        let k = g.input("k", &[2, HEADS * WIDTH]);
        g.attention(q, k, k, options(true, None));
    });
    assert!(error.contains("the keys"), "{error}");
    let error = rejection(&|g| {
        let q = g.input("q", &[2, 1, HEADS * WIDTH]);
        let k = g.input("k", &[2, 3, KV_HEADS * WIDTH]);
        let at = g.input("at", &[2]);
        g.cached_attention_with(q, k, k, at, options(true, None));
    });
    assert!(error.contains("must be u32"), "{error}");
    let error = rejection(&|g| {
        let q = g.input("q", &[2, HEADS * WIDTH]);
        let k = g.input("k", &[2, 3, KV_HEADS * WIDTH]);
        let at = g.input_u32("at", &[2]);
        let table = g.input_typed("table", &[2, 0], DType::U32);
        g.paged_attention(q, k, k, at, table, options(true, None));
    });
    assert!(error.contains("block table"), "{error}");
}
