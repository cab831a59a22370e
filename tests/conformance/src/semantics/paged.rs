//! Cases of paged key-value caches: sequences of any lengths in one step, blocks in any order, shared prefixes.

use std::ops::Range;

use meganeura_core::error::{Error, Result};
use meganeura_core::graph::{Graph, Value};
use meganeura_core::ops::AttentionOptions;
use meganeura_core::random::SplitMix64;
use meganeura_core::{DType, Session};

use super::caches::{HEADS, LIMIT, Rows, THETA, WIDTHS, open};
use super::exact::{case, same_f32};
use super::kernel_limits::{agrees, input};
use crate::case::{Case, CaseRun, Check, SharedDevice, ensure, fail};
use crate::compare::compare_within;
use crate::harness::Feeds as NamedFeeds;
use crate::precision::on_units;
use crate::storage::wide;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("paged/sequences in pieces, in one step", sequences),
        case("paged/whole tiles of one sequence", tiles),
        case("paged/tiles of heads for cooperative matrices", |device| {
            wide_heads(device, false)
        }),
        case("paged/tiles of heads of a quantized cache", |device| {
            wide_heads(device, true)
        }),
        case("paged/a slot that is not there writes nothing", bad_slot),
    ]
}

const BLOCKS: usize = 20;
const BLOCK_ROWS: usize = 4;
const TABLE_LEN: usize = 8;
/// Number of rows of a step.
const ROWS: usize = 48;
/// Slot index beyond the cache, for rows that are not written.
const NOWHERE: u32 = (BLOCKS * BLOCK_ROWS) as u32;

/// Returns a graph with rotary positions, two writes and attention, for rows of any sequences.
fn graph() -> Graph {
    let mut g = Graph::new();
    let [heads, kv_heads, width] = HEADS;
    let [positions, slots] = ["positions", "slots"].map(|name| g.input_u32(name, &[ROWS]));
    let table = g.input_u32("table", &[ROWS, TABLE_LEN]);
    let q = g.input("q", &[ROWS, WIDTHS[0]]);
    let [k, v] = ["k", "v"].map(|name| g.input(name, &[ROWS, WIDTHS[1]]));
    let [k_cache, v_cache] = ["cache.k", "cache.v"].map(|name| {
        let cache = g.parameter(name, &[BLOCKS, BLOCK_ROWS, WIDTHS[1]]);
        g.trainable(cache, false)
    });
    let [q, k] = [(q, WIDTHS[0]), (k, WIDTHS[1])].map(|(x, wide)| {
        let of_sequences = g.reshape(x, &[ROWS, 1, wide]);
        let turned = g.rope_dynamic_offset(of_sequences, THETA, positions, width);
        g.reshape(turned, &[ROWS, wide])
    });
    g.paged_cache_write(k, k_cache, slots);
    g.paged_cache_write(v, v_cache, slots);
    let options = AttentionOptions::new(heads, kv_heads, width);
    // Reads of the leaves themselves return the written rows.
    let y = g.paged_attention(q, k_cache, v_cache, positions, table, options);
    g.set_outputs(vec![y]);
    g
}

/// Inputs of a step.
#[derive(Default)]
struct Feeds {
    rows: [Vec<f32>; 3],
    positions: Vec<u32>,
    slots: Vec<u32>,
    table: Vec<u32>,
}

impl Feeds {
    /// Adds some rows of a sequence with these blocks; rows that are cached already are not
    /// written.
    fn add(&mut self, sequence: &Rows, rows: Range<usize>, blocks: &[u32]) {
        let parts = sequence.part(rows.clone());
        for (all, part) in self.rows.iter_mut().zip(parts) {
            all.extend(part);
        }
        for position in rows {
            self.positions.push(position as u32);
            let block = blocks[position / BLOCK_ROWS] as usize;
            self.slots.push((block * BLOCK_ROWS + position % BLOCK_ROWS) as u32);
            let start = self.table.len();
            self.table.extend(blocks);
            self.table.resize(start + TABLE_LEN, 0);
        }
    }

    /// Fills the rest of the step with unused rows, and runs it.
    fn step(mut self, session: &mut Session) -> Result<Vec<f64>> {
        let widths = [WIDTHS[0], WIDTHS[1], WIDTHS[1]];
        for (all, width) in self.rows.iter_mut().zip(widths) {
            all.resize(ROWS * width, 0.5);
        }
        self.positions.resize(ROWS, 0);
        self.slots.resize(ROWS, NOWHERE);
        self.table.resize(ROWS * TABLE_LEN, 0);
        for (name, values) in ["q", "k", "v"].into_iter().zip(&self.rows) {
            session.try_set_input(name, values)?;
        }
        for (name, values) in [
            ("positions", &self.positions),
            ("slots", &self.slots),
            ("table", &self.table),
        ] {
            session.try_set_input_u32(name, values)?;
        }
        session.try_step()?;
        Ok(wide(&session.try_read_output(ROWS * WIDTHS[0])?))
    }
}

fn sequences(device: &SharedDevice) -> CaseRun {
    let mut session = open(device, &graph())?;
    // The contents of blocks before they are written have no effect; unused rows read block 0.
    for name in ["cache.k", "cache.v"] {
        let mut cache = vec![f32::NAN; BLOCKS * BLOCK_ROWS * WIDTHS[1]];
        cache[..BLOCK_ROWS * WIDTHS[1]].fill(0.0);
        session.try_upload_param(name, &cache)?;
    }
    let all: Vec<Rows> = (0..3).map(|i| Rows::new(30, 60 + 3 * i)).collect();
    let blocks: [&[u32]; 3] = [&[7, 3, 19, 4, 11, 2, 9, 1], &[5, 18, 6], &[12, 8]];
    let mut found: [Vec<f64>; 3] = Default::default();
    // The last rows of the first sequence are computed twice, as for a sequence with a shared
    // prefix.
    for pieces in [[0..20, 0..11, 0..2], [20..30, 11..11, 2..5], [24..30, 11..12, 5..6]] {
        let mut feeds = Feeds::default();
        for ((sequence, rows), blocks) in all.iter().zip(pieces.clone()).zip(blocks) {
            feeds.add(sequence, rows, blocks);
        }
        let results = feeds.step(&mut session)?;
        let mut results = results.chunks_exact(WIDTHS[0]);
        for (rows, found) in pieces.into_iter().zip(&mut found) {
            found.truncate(rows.start * WIDTHS[0]);
            found.extend(results.by_ref().take(rows.len()).flatten());
        }
    }
    let mut check = Check::default();
    for (sequence, found) in all.iter().zip(&found) {
        let count = found.len() / WIDTHS[0];
        let (expected, off) = sequence.expected(count)?;
        let more = if on_units(session.plan()) > 0 { off } else { 0.0 };
        let what = format!("a sequence of {count} tokens");
        check = check.worse(compare_within(&what, DType::F32, found, &expected, LIMIT, more)?);
    }
    Ok(check)
}

/// Tests steps where the rows of one sequence fill whole tiles of queries, and other sequences fill the rest.
fn tiles(device: &SharedDevice) -> CaseRun {
    let mut session = open(device, &graph())?;
    let long = Rows::new(TABLE_LEN * BLOCK_ROWS, 70);
    let others = [Rows::new(6, 71), Rows::new(6, 72)];
    let blocks: [&[u32]; 3] = [&[7, 3, 19, 4, 11, 2, 9, 1], &[5, 18], &[12, 8]];
    let mut check = Check::default();
    // The other sequences come before the long one, after it, or in its last tile.
    for (before, rows) in [(0, 0..32), (16, 0..32), (0, 0..28)] {
        let mut feeds = Feeds::default();
        let mut parts: Vec<(&Rows, Range<usize>, &[u32])> = Vec::new();
        if before > 0 {
            parts.extend([
                (&others[0], 0..6, blocks[1]),
                (&others[1], 0..6, blocks[2]),
                (&others[0], 2..6, blocks[1]),
            ]);
        }
        parts.push((&long, rows, blocks[0]));
        if before == 0 {
            parts.extend([(&others[0], 0..6, blocks[1]), (&others[1], 0..6, blocks[2])]);
        }
        for (sequence, rows, blocks) in &parts {
            feeds.add(sequence, rows.clone(), blocks);
        }
        let results = feeds.step(&mut session)?;
        let mut results = results.chunks_exact(WIDTHS[0]);
        for (sequence, rows, _) in parts {
            let found: Vec<f64> = results.by_ref().take(rows.len()).flatten().copied().collect();
            let (expected, off) = sequence.expected(rows.end)?;
            let more = if on_units(session.plan()) > 0 { off } else { 0.0 };
            let what = format!("rows {rows:?} after {before}");
            let expected = &expected[rows.start * WIDTHS[0]..];
            check = check.worse(compare_within(&what, DType::F32, &found, expected, LIMIT, more)?);
        }
    }
    Ok(check)
}

/// Tests heads whose size is a multiple of the tiles of cooperative matrices. Rows of one sequence fill two tiles of 32
/// queries; other rows follow.
fn wide_heads(device: &SharedDevice, is_quantized: bool) -> CaseRun {
    const QUERIES: usize = 80;
    const LEN: usize = 6;
    const CACHE: [usize; 3] = [12, 16, 2 * 32];
    let (mut g, mut feeds) = (Graph::new(), NamedFeeds::new());
    let q = input(&mut g, &mut feeds, "q", &[QUERIES, 4 * 32]);
    let at = g.input_u32("positions", &[QUERIES]);
    let table = g.input_u32("table", &[QUERIES, LEN]);
    let mut positions: Vec<usize> = (10..74).chain(0..6).collect();
    let mut tables = vec![[7, 3, 11, 4, 9, 1]; 64];
    tables.extend([[5, 0, 0, 0, 0, 0]; 6]);
    for row in positions.len()..QUERIES {
        positions.push(9 * (row - 69));
        tables.push([2, 8, 6, 10, 0, 5].map(|block| (block + row) % 12));
    }
    feeds.insert("positions".into(), positions.iter().map(|&p| p as f64).collect());
    feeds.insert(
        "table".into(),
        tables.as_flattened().iter().map(|&b| b as f64).collect(),
    );
    let options = AttentionOptions::new(4, 2, 32);
    let y = if is_quantized {
        let [k, v] = ["k", "v"].map(|name| quantized_cache(&mut g, &mut feeds, name, CACHE));
        g.quantized_paged_attention(q, k, v, at, table, options)
    } else {
        let [k, v] = ["k", "v"].map(|name| input(&mut g, &mut feeds, name, &CACHE));
        g.paged_attention(q, k, v, at, table, options)
    };
    g.set_outputs(vec![y]);
    agrees(device, &g, &feeds)
}

/// Adds the words and scales of a cache with rows of `width` numbers between -2.5 and 2.5.
fn quantized_cache(g: &mut Graph, feeds: &mut NamedFeeds, name: &str, [blocks, rows, width]: [usize; 3]) -> [Value; 2] {
    let mut random = SplitMix64::new(feeds.len() as u64);
    let (words, scales) = (format!("{name}.words"), format!("{name}.scales"));
    let shapes = [width / 4, width / 32].map(|width| [blocks, rows, width]);
    let count = shapes.map(|shape| shape.iter().product::<usize>());
    let integers = (0..count[0]).map(|_| random.below(u32::MAX as usize) as f64);
    feeds.insert(words.clone(), integers.collect());
    // Exact in f16, and different for neighbours.
    let steps = (0..count[1]).map(|_| (1 + random.below(5)) as f64 / 256.0);
    feeds.insert(scales.clone(), steps.collect());
    [
        g.input_u32(&words, &shapes[0]).into(),
        g.input_typed(&scales, &shapes[1], DType::F16).into(),
    ]
}

fn bad_slot(device: &SharedDevice) -> CaseRun {
    let mut session = open(device, &graph())?;
    let cache: Vec<f32> = (0..BLOCKS * BLOCK_ROWS * WIDTHS[1]).map(|i| i as f32).collect();
    for name in ["cache.k", "cache.v"] {
        session.try_upload_param(name, &cache)?;
    }
    let rows = Rows::new(3, 9);
    let mut feeds = Feeds::default();
    feeds.add(&rows, 0..3, &[1]);
    feeds.slots[1] = NOWHERE + 1;
    let outcome = feeds.step(&mut session);
    match outcome.and_then(|_| session.try_wait().map(|_| ())) {
        Err(Error::IndexOutOfRange { index, .. }) if index == NOWHERE + 1 => {}
        other => return fail(format!("the slot {} of {NOWHERE}: {other:?}", NOWHERE + 1)),
    }
    for name in ["cache.k", "cache.v"] {
        same_f32(name, &session.try_read_parameter(name)?, &cache)?;
    }
    let mut feeds = Feeds::default();
    feeds.add(&rows, 0..3, &[1]);
    feeds.step(&mut session)?;
    ensure!(
        session.try_read_parameter("cache.k")? != cache,
        "slots that are there wrote nothing"
    );
    Ok(Check::default())
}
