//! Cases of sizes beyond the limits of kernels, without and with fusion, compared with the oracle.
//! `docs/kernel-limits.md` lists the limits.

use meganeura_compiler::builder::Builder;
use meganeura_core::DType;
use meganeura_core::autodiff::try_differentiate;
use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::AttentionOptions;
use meganeura_core::reference::evaluate;

use super::exact::case;
use crate::case::{Case, CaseRun, Check, SharedDevice, fail};
use crate::compare::{compare_within, widening};
use crate::harness::{Feeds, numbers, open, run_once};
use crate::precision::Deviations;

/// Accepted error of a result with one term, relative to the largest magnitude.
const LIMIT: f64 = 1e-5;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("limits/70 operands of a fused call", fused_operands),
        case("limits/20 results of a fused call", fused_results),
        case("limits/70 operands of an optimized concatenation", concatenated),
        case("limits/14 reductions of a row", reductions_of_a_row),
        case("limits/14 reductions after each other", dependent_reductions),
        case("limits/30 large decompositions in a chain", long_fused_chain),
        case("limits/14 axes of a fused call", fused_axes),
        case("limits/heads of 257 elements", |device| heads(device, 257, false)),
        case("limits/gradients of heads of 129 elements", |device| {
            heads(device, 129, true)
        }),
        case("limits/heads of 257 elements in a cache", |device| {
            cached_heads(device, 257)
        }),
        case("limits/heads of 2049 elements in a cache", |device| {
            cached_heads(device, 2049)
        }),
        case("limits/heads of 2049 elements in blocks of a cache", paged_heads),
        case("limits/17 rows of 3100 terms", rows_of_products),
        case("limits/a product of a normalised row of 16400", normalised_product),
        case("limits/softmax of 300001 columns", long_softmax),
        case("limits/a maximum over 70001 columns", long_reduction),
        case("limits/an axis resized to 4200001 elements", long_resize),
    ]
}

/// Compares the results of a graph with the oracle: compiled without optimization, and optimized and fused.
pub(super) fn agrees(device: &SharedDevice, graph: &Graph, feeds: &Feeds) -> CaseRun {
    let oracle = evaluate(graph, feeds)?;
    let limit = LIMIT * widening(graph);
    let fused = Builder::on(device.clone()).inference().build(graph)?.0;
    let mut check = Check::default();
    for (form, mut session) in [("as it is", open(device, graph)?), ("fused", fused)] {
        let results = run_once(&mut session, graph, feeds)?;
        let off = Deviations::of(&session, graph, feeds)?;
        for (i, (&value, found)) in graph.outputs().iter().zip(&results).enumerate() {
            let Some(expected) = oracle.get(value) else {
                return fail(format!("the oracle has no result {i}"));
            };
            let what = format!("result {i} {form}");
            check = check.worse(compare_within(
                &what,
                expected.ty.dtype,
                found,
                &expected.data,
                limit,
                off.output(i),
            )?);
        }
    }
    Ok(check)
}

/// Adds an input with numbers in `[-2, 2]`.
pub(super) fn input(g: &mut Graph, feeds: &mut Feeds, name: &str, shape: &[usize]) -> Value {
    let seed = feeds.len() as u64 + 1;
    feeds.insert(name.to_owned(), numbers(shape.iter().product(), seed));
    g.input(name, shape).into()
}

fn fused_operands(device: &SharedDevice) -> CaseRun {
    let (mut g, mut feeds) = (Graph::new(), Feeds::new());
    let mut sum = input(&mut g, &mut feeds, "x0", &[3, 5]);
    for i in 1..70 {
        let x = input(&mut g, &mut feeds, &format!("x{i}"), &[3, 5]);
        let size = g.abs(x);
        sum = g.add(sum, size).into();
    }
    g.set_outputs(vec![sum]);
    agrees(device, &g, &feeds)
}

fn fused_results(device: &SharedDevice) -> CaseRun {
    let (mut g, mut feeds) = (Graph::new(), Feeds::new());
    let x = input(&mut g, &mut feeds, "x", &[3, 5]);
    let mut at = x;
    let mut results = Vec::new();
    for _ in 0..20 {
        let more = g.add(at, x);
        at = g.tanh(more).into();
        results.push(at);
    }
    g.set_outputs(results);
    agrees(device, &g, &feeds)
}

fn concatenated(device: &SharedDevice) -> CaseRun {
    let (mut g, mut feeds) = (Graph::new(), Feeds::new());
    let parts: Vec<Value> = (0..70)
        .map(|i| input(&mut g, &mut feeds, &format!("x{i}"), &[1 + i % 3, 2]))
        .collect();
    let joined = g.concat(&parts, 0);
    let y = g.neg(joined);
    g.set_outputs(vec![y]);
    agrees(device, &g, &feeds)
}

fn reductions_of_a_row(device: &SharedDevice) -> CaseRun {
    let (mut g, mut feeds) = (Graph::new(), Feeds::new());
    let x = input(&mut g, &mut feeds, "x", &[3, 70]);
    let mut y = x;
    for i in 0..14 {
        let factor = g.scalar_of(DType::F32, 0.1 * f64::from(i + 1));
        let scaled = g.mul(x, factor);
        let wave = g.tanh(scaled);
        let sum = g.sum(wave, &[1], true);
        y = g.add(y, sum).into();
    }
    g.set_outputs(vec![y]);
    agrees(device, &g, &feeds)
}

/// Tests a chain of reductions, each of which reads the result of the previous one.
fn dependent_reductions(device: &SharedDevice) -> CaseRun {
    let (mut g, mut feeds) = (Graph::new(), Feeds::new());
    let mut y = input(&mut g, &mut feeds, "x", &[4, 6]);
    for i in 0..14 {
        let mean = g.mean(y, &[i % 2], true);
        let moved = g.sub(y, mean);
        y = g.tanh(moved).into();
    }
    g.set_outputs(vec![y]);
    agrees(device, &g, &feeds)
}

fn long_fused_chain(device: &SharedDevice) -> CaseRun {
    let (mut g, mut feeds) = (Graph::new(), Feeds::new());
    let x = input(&mut g, &mut feeds, "x", &[40]);
    let mut y = x;
    for _ in 0..30 {
        let bent = g.gelu_erf(y);
        y = g.sub(x, bent).into();
    }
    g.set_outputs(vec![y]);
    agrees(device, &g, &feeds)
}

fn fused_axes(device: &SharedDevice) -> CaseRun {
    let (mut g, mut feeds) = (Graph::new(), Feeds::new());
    let x = input(&mut g, &mut feeds, "x", &[2, 1, 2, 1, 2, 1, 1, 2, 1, 2, 1, 2, 1, 2]);
    let column = input(
        &mut g,
        &mut feeds,
        "column",
        &[2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    );
    let order: Vec<i32> = (0..14).rev().collect();
    let turned = g.permute(x, &order);
    let sum = g.add(turned, column);
    let y = g.relu(sum);
    let rows = g.sum(y, &[0, 4, 13], true);
    let z = g.sub(y, rows);
    g.set_outputs(vec![y, z]);
    agrees(device, &g, &feeds)
}

/// Tests attention with heads of this size: two query heads share one head of keys and values.
fn heads(device: &SharedDevice, size: usize, is_gradient: bool) -> CaseRun {
    let (mut g, mut feeds) = (Graph::new(), Feeds::new());
    let q = input(&mut g, &mut feeds, "q", &[5, 2 * size]);
    let k = input(&mut g, &mut feeds, "k", &[7, size]);
    let v = input(&mut g, &mut feeds, "v", &[7, size]);
    let y = g.attention(q, k, v, AttentionOptions::new(2, 1, size as u32));
    if !is_gradient {
        g.set_outputs(vec![y]);
        return agrees(device, &g, &feeds);
    }
    let weights = input(&mut g, &mut feeds, "weights", &[5, 2 * size]);
    let weighted = g.mul(y, weights);
    let loss = g.sum_all(weighted);
    g.set_outputs(vec![loss]);
    for operand in [q, k, v] {
        g.require_grad(operand.node);
    }
    let mut full = try_differentiate(&g)?;
    let gradients: Vec<Value> = full.gradients().iter().map(|&(_, value)| value).collect();
    full.set_outputs(gradients);
    agrees(device, &full, &feeds)
}

fn cached_heads(device: &SharedDevice, size: usize) -> CaseRun {
    let (mut g, mut feeds) = (Graph::new(), Feeds::new());
    let q = input(&mut g, &mut feeds, "q", &[1, 2 * size]);
    let k = input(&mut g, &mut feeds, "k", &[9, size]);
    let v = input(&mut g, &mut feeds, "v", &[9, size]);
    let at = g.input_u32("at", &[1]);
    feeds.insert("at".into(), vec![6.0]);
    let y = g.cached_attention(q, k, v, at, 2, 1, size as u32);
    g.set_outputs(vec![y]);
    agrees(device, &g, &feeds)
}

fn paged_heads(device: &SharedDevice) -> CaseRun {
    const SIZE: usize = 2049;
    let (mut g, mut feeds) = (Graph::new(), Feeds::new());
    let q = input(&mut g, &mut feeds, "q", &[2, SIZE]);
    let k = input(&mut g, &mut feeds, "k", &[3, 4, SIZE]);
    let v = input(&mut g, &mut feeds, "v", &[3, 4, SIZE]);
    let positions = g.input_u32("positions", &[2]);
    let table = g.input_u32("table", &[2, 2]);
    feeds.insert("positions".into(), vec![2.0, 5.0]);
    feeds.insert("table".into(), vec![0.0, 0.0, 2.0, 1.0]);
    let y = g.paged_attention(q, k, v, positions, table, AttentionOptions::new(1, 1, SIZE as u32));
    g.set_outputs(vec![y]);
    agrees(device, &g, &feeds)
}

fn rows_of_products(device: &SharedDevice) -> CaseRun {
    let (mut g, mut feeds) = (Graph::new(), Feeds::new());
    let x = input(&mut g, &mut feeds, "x", &[17, 3100]);
    let w = input(&mut g, &mut feeds, "w", &[3100, 33]);
    let bias = input(&mut g, &mut feeds, "bias", &[33]);
    let size = g.abs(x);
    let product = g.matmul(size, w);
    let y = g.add(product, bias);
    g.set_outputs(vec![y]);
    agrees(device, &g, &feeds)
}

fn normalised_product(device: &SharedDevice) -> CaseRun {
    let (mut g, mut feeds) = (Graph::new(), Feeds::new());
    let x = input(&mut g, &mut feeds, "x", &[1, 16_400]);
    let weight = input(&mut g, &mut feeds, "weight", &[16_400]);
    let w = input(&mut g, &mut feeds, "w", &[16_400, 12]);
    let normalised = g.rms_norm(x, weight, 1e-5);
    let y = g.matmul(normalised, w);
    g.set_outputs(vec![y]);
    agrees(device, &g, &feeds)
}

fn long_softmax(device: &SharedDevice) -> CaseRun {
    let (mut g, mut feeds) = (Graph::new(), Feeds::new());
    let x = input(&mut g, &mut feeds, "x", &[2, 300_001]);
    let size = g.abs(x);
    let y = g.softmax(size, 1);
    g.set_outputs(vec![y]);
    agrees(device, &g, &feeds)
}

fn long_reduction(device: &SharedDevice) -> CaseRun {
    let (mut g, mut feeds) = (Graph::new(), Feeds::new());
    let x = input(&mut g, &mut feeds, "x", &[3, 70_001]);
    let weight = input(&mut g, &mut feeds, "weight", &[70_001]);
    let weighted = g.mul(x, weight);
    let most = g.max(weighted, &[1], true);
    let y = g.sub(weighted, most);
    g.set_outputs(vec![y, most]);
    agrees(device, &g, &feeds)
}

/// Tests resizing along a long axis, for which kernels need a table with an entry for each element.
fn long_resize(device: &SharedDevice) -> CaseRun {
    let (mut g, mut feeds) = (Graph::new(), Feeds::new());
    let x = input(&mut g, &mut feeds, "x", &[1, 1, 1, 3]);
    let y = g.upsample_nearest2d(x, [1, 4_200_001]);
    g.set_outputs(vec![y]);
    agrees(device, &g, &feeds)
}
