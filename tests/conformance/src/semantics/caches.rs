//! Cases of key-value caches: rows written in place, attention to the valid rows, sequences at different positions.

use meganeura_compiler::builder::Builder;
use meganeura_core::error::{Error, Result};
use meganeura_core::graph::Graph;
use meganeura_core::reference::evaluate;
use meganeura_core::{DType, Session};

use super::exact::{case, same_f32};
use crate::case::{Case, CaseRun, Check, SharedDevice, ensure, fail};
use crate::compare::compare_within;
use crate::harness::numbers;
use crate::precision::{Deviations, on_units};
use crate::storage::{narrow, wide};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("cache/a write is seen, and kept", writes_are_seen),
        case("cache/rows behind the position change nothing", invalid_rows),
        case("cache/a position that does not fit writes nothing", bad_position),
        case("cache/row by row and in pieces as all at once", decoding),
        case("cache/sequences at positions of their own", batched),
    ]
}

pub(super) const HEADS: [u32; 3] = [4, 2, 6];
/// Number of elements of a row of queries, and of a row of the cache.
pub(super) const WIDTHS: [usize; 2] = [24, 12];
pub(super) const THETA: f32 = 100.0;
/// Accepted error of results in `f32`, relative to the largest element.
pub(super) const LIMIT: f64 = 2e-5;

/// Returns a graph with rotary positions, two cache writes and attention, for `rows` rows of each
/// sequence.
fn step_of(batch: &[usize], rows: usize, capacity: usize) -> Graph {
    let mut g = Graph::new();
    let [heads, kv_heads, width] = HEADS;
    let shape = |rows: usize, width: usize| [batch, &[rows, width]].concat();
    let positions = if batch.is_empty() { &[1] } else { batch };
    let position = g.input_u32("position", positions);
    let q = g.input("q", &shape(rows, WIDTHS[0]));
    let [k, v] = ["k", "v"].map(|name| g.input(name, &shape(rows, WIDTHS[1])));
    let [k_cache, v_cache] = ["cache.k", "cache.v"].map(|name| {
        let cache = g.parameter(name, &shape(capacity, WIDTHS[1]));
        g.trainable(cache, false)
    });
    let q = g.rope_dynamic_offset(q, THETA, position, width);
    let k = g.rope_dynamic_offset(k, THETA, position, width);
    g.cache_write(k, k_cache, position);
    g.cache_write(v, v_cache, position);
    // Reads of the leaves themselves return the written rows.
    let y = g.cached_attention(q, k_cache, v_cache, position, heads, kv_heads, width);
    g.set_outputs(vec![y]);
    g
}

pub(super) fn open(device: &SharedDevice, graph: &Graph) -> Result<Session> {
    Ok(Builder::on(device.clone()).inference().build(graph)?.0)
}

/// Rows of queries, keys and values of a sequence.
pub(super) struct Rows([Vec<f32>; 3]);

impl Rows {
    pub(super) fn new(count: usize, seed: u64) -> Self {
        let widths = [WIDTHS[0], WIDTHS[1], WIDTHS[1]];
        let all = widths.iter().zip(seed..);
        let all: Vec<Vec<f32>> = all.map(|(width, seed)| narrow(&numbers(count * width, seed))).collect();
        Rows(all.try_into().unwrap_or_default())
    }

    pub(super) fn part(&self, rows: std::ops::Range<usize>) -> [&[f32]; 3] {
        let widths = [WIDTHS[0], WIDTHS[1], WIDTHS[1]];
        [0, 1, 2].map(|i| &self.0[i][rows.start * widths[i]..rows.end * widths[i]])
    }

    /// Returns the oracle's attention without a cache, and the accepted error on cooperative
    /// matrices.
    pub(super) fn expected(&self, count: usize) -> Result<(Vec<f64>, f64)> {
        let mut g = Graph::new();
        let [heads, kv_heads, width] = HEADS;
        let q = g.input("q", &[count, WIDTHS[0]]);
        let [k, v] = ["k", "v"].map(|name| g.input(name, &[count, WIDTHS[1]]));
        let q = g.rope(q, THETA, width);
        let k = g.rope(k, THETA, width);
        let y = g.causal_attention(q, k, v, heads, kv_heads, width);
        g.set_outputs(vec![y]);
        let parts = ["q", "k", "v"].into_iter().zip(self.part(0..count));
        let feeds = parts.map(|(name, part)| (name.to_owned(), wide(part))).collect();
        let values = evaluate(&g, &feeds)?;
        let values = values.get(y).map(|tensor| tensor.data.clone()).unwrap_or_default();
        Ok((values, Deviations::tried(&g, &feeds)?.most()))
    }
}

/// Sets the inputs of a step and runs it. Returns the output.
fn step(session: &mut Session, [q, k, v]: [&[f32]; 3], position: &[u32]) -> Result<Vec<f64>> {
    session.try_set_input("q", q)?;
    session.try_set_input("k", k)?;
    session.try_set_input("v", v)?;
    session.try_set_input_u32("position", position)?;
    session.try_step()?;
    Ok(wide(&session.try_read_output(q.len())?))
}

fn writes_are_seen(device: &SharedDevice) -> CaseRun {
    let mut g = Graph::new();
    let new = g.input("new", &[2, 3]);
    let position = g.input_u32("position", &[1]);
    let cache = g.state("cache", &[5, 3]);
    let before = g.add(cache, cache);
    // Nothing uses the result.
    g.cache_write(new, cache, position);
    let after = g.add(cache, cache);
    g.set_outputs(vec![before, after]);
    let mut session = open(device, &g)?;
    let start: Vec<f32> = (0..15).map(|i| i as f32).collect();
    session.try_set_state("cache", &start)?;
    let mut expected = start.clone();
    for (position, value) in [(1, 100.0), (3, 200.0)] {
        let doubled: Vec<f32> = expected.iter().map(|x| 2.0 * x).collect();
        session.try_set_input("new", &[value; 6])?;
        session.try_set_input_u32("position", &[position])?;
        session.try_step()?;
        same_f32("what is read before the write", &session.try_read_output(15)?, &doubled)?;
        expected[3 * position as usize..][..6].fill(value);
        let doubled: Vec<f32> = expected.iter().map(|x| 2.0 * x).collect();
        let mut found = vec![0.0; 15];
        session.try_read_output_by_index(1, &mut found)?;
        same_f32("what is read after the write", &found, &doubled)?;
        same_f32("the cache", &session.try_read_state("cache")?, &expected)?;
    }
    Ok(Check::default())
}

fn invalid_rows(device: &SharedDevice) -> CaseRun {
    // Other kernels are used for many queries than for one.
    invalid_rows_behind(device, 1).and_then(|_| invalid_rows_behind(device, 9))
}

fn invalid_rows_behind(device: &SharedDevice, count: usize) -> CaseRun {
    const CAPACITY: usize = 150;
    let mut session = open(device, &step_of(&[], count, CAPACITY))?;
    let rows = Rows::new(count, 5);
    let mut results = Vec::new();
    for beyond in [0.0, f32::NAN, f32::INFINITY, -1e30] {
        for (name, seed) in [("cache.k", 1), ("cache.v", 2)] {
            let mut cache = narrow(&numbers(CAPACITY * WIDTHS[1], seed));
            cache[7 * WIDTHS[1]..].fill(beyond);
            session.try_upload_param(name, &cache)?;
        }
        results.push(step(&mut session, rows.part(0..count), &[7])?);
    }
    for result in &results {
        ensure!(
            result.iter().all(|x| x.is_finite()) && *result == results[0],
            "invalid rows show in the result: {results:?}"
        );
    }
    Ok(Check::default())
}

fn bad_position(device: &SharedDevice) -> CaseRun {
    let mut session = open(device, &step_of(&[2], 2, 6))?;
    let rows = Rows::new(4, 9);
    let cache = narrow(&numbers(12 * WIDTHS[1], 3));
    for name in ["cache.k", "cache.v"] {
        session.try_upload_param(name, &cache)?;
    }
    for positions in [[5, 1], [1, 5], [0, u32::MAX]] {
        let worst = positions[0].max(positions[1]);
        let outcome = step(&mut session, rows.part(0..4), &positions);
        match outcome.and_then(|_| session.try_wait().map(|_| ())) {
            Err(Error::IndexOutOfRange { index, rows: 5, .. }) if index == worst => {}
            other => return fail(format!("positions {positions:?} of 5: {other:?}")),
        }
        for name in ["cache.k", "cache.v"] {
            same_f32(name, &session.try_read_parameter(name)?, &cache)?;
        }
    }
    step(&mut session, rows.part(0..4), &[4, 0])?;
    ensure!(
        session.try_read_parameter("cache.k")? != cache,
        "a position that fits wrote nothing"
    );
    Ok(Check::default())
}

fn decoding(device: &SharedDevice) -> CaseRun {
    const COUNT: usize = 13;
    let rows = Rows::new(COUNT, 21);
    let (expected, off) = rows.expected(COUNT)?;
    let mut check = Check::default();
    // Sessions of several sizes fill the same cache, as in prefill and decode.
    for pieces in [&[1; COUNT][..], &[5, 5, 3], &[13], &[4, 1, 1, 7]] {
        let mut position = 0;
        let mut found = Vec::new();
        let mut units = 0;
        let mut caches: Option<[Vec<f32>; 2]> = None;
        for &piece in pieces {
            let mut session = open(device, &step_of(&[], piece, 16))?;
            units += on_units(session.plan());
            let names = ["cache.k", "cache.v"];
            if let Some(caches) = &caches {
                for (name, cache) in names.iter().zip(caches) {
                    session.try_upload_param(name, cache)?;
                }
            }
            found.extend(step(
                &mut session,
                rows.part(position..position + piece),
                &[position as u32],
            )?);
            caches = Some([
                session.try_read_parameter(names[0])?,
                session.try_read_parameter(names[1])?,
            ]);
            position += piece;
        }
        let what = format!("pieces of {pieces:?}");
        let more = if units > 0 { off } else { 0.0 };
        check = check.worse(compare_within(&what, DType::F32, &found, &expected, LIMIT, more)?);
    }
    Ok(check)
}

fn batched(device: &SharedDevice) -> CaseRun {
    const COUNTS: [usize; 3] = [4, 9, 1];
    let sequences: Vec<Rows> = (0..3).map(|i| Rows::new(10, 40 + 3 * i)).collect();
    let mut session = open(device, &step_of(&[3], 1, 12))?;
    let mut found: [Vec<f64>; 3] = Default::default();
    // All sequences end at the same step. Sequences that have ended or not begun write to rows that they will write
    // again.
    for time in 0..9 {
        let at = COUNTS.map(|count| (time + count).saturating_sub(9));
        let parts: Vec<[&[f32]; 3]> = sequences.iter().zip(at).map(|(s, at)| s.part(at..at + 1)).collect();
        let joined = [0, 1, 2].map(|i| parts.iter().flat_map(|p| p[i]).copied().collect::<Vec<f32>>());
        let result = step(
            &mut session,
            [&joined[0], &joined[1], &joined[2]],
            &at.map(|at| at as u32),
        )?;
        for (sequence, found) in found.iter_mut().enumerate() {
            if time + COUNTS[sequence] >= 9 {
                found.extend(&result[sequence * WIDTHS[0]..][..WIDTHS[0]]);
            }
        }
    }
    let mut check = Check::default();
    for (sequence, count) in COUNTS.into_iter().enumerate() {
        let (expected, off) = sequences[sequence].expected(count)?;
        let more = if on_units(session.plan()) > 0 { off } else { 0.0 };
        let what = format!("sequence {sequence}");
        let found = &found[sequence];
        check = check.worse(compare_within(&what, DType::F32, found, &expected, LIMIT, more)?);
    }
    Ok(check)
}
