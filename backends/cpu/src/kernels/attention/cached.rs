//! Attention to the valid rows of a cache. Its time depends on the number of valid rows, not on the capacity.
//!
//! A task has the queries of one key-value head (or of neighbouring ones, if there is only one row). It iterates over
//! the visible keys in tiles, as [`forward`](super::forward) does. There are few queries for each key, so keys and
//! values are read in place; in a paged cache, the tiles are its blocks. If there are too few heads and rows for all
//! threads, each task has a share of the keys, and a second phase combines the results of the shares ("flash
//! decoding": Dao, Haziza, Massa and Sizov, 2023).

use std::ops::Range;

use meganeura_core::ops::{AttentionDims, PagedDims, attention_sinks};

use super::caches::Cache;
use super::paged::Paged;
use super::tile::{Tile, softmax_step};
use super::{Head, KEYS, nanos, rows, scratch, scratch_len, target};
use crate::gemm::Blocks;
use crate::kernel::{CompileCx, Compiled, Kernel, RunCx, Task, stream_nanos};
use crate::memory::View;
use crate::share::share;
use crate::simd::LINE;
use crate::vmath::{self, Isa, Level, multiversion};

/// Maximum number of query rows of a task.
const ROWS: usize = 16;
/// Number of valid rows that time estimates assume.
const USUAL_KEYS: usize = 256;
/// Number of neighbouring `f32`s of a cache that are read together: 1 KiB.
const RUN: usize = 256;
/// Number of positions in the keys, and in the values, whose reads are interleaved.
const TOUCHES: usize = 4;
/// Minimum number of tasks at which keys are not divided.
const TASKS_THRESHOLD: usize = 16;
/// Minimum number of keys of a task. Each task has to copy the queries, and its result has to be combined with the
/// results of other tasks.
const TASK_KEYS: usize = 32;

/// A call of attention to a cache.
#[derive(Clone, Copy)]
struct Cached {
    /// Sizes of the call. The number of keys is the capacity of the cache.
    dims: AttentionDims,
    /// Maximum number of query rows, and maximum number of neighbouring key-value heads, of a task.
    row_block: usize,
    heads_together: usize,
    /// Maximum number of shares that the keys of each query are divided into.
    parts: usize,
    /// Exclusive upper bound of positions, or of block numbers.
    bound: usize,
    dispatch: usize,
    level: Level,
    blocks: Blocks,
    q: View<f32>,
    /// Keys and values.
    caches: [Cache; 2],
    positions: View<u32>,
    /// A further score of each head, which has no value.
    sinks: Option<View<f32>>,
    out: View<f32>,
    /// Block table of a paged cache; `None` if the rows of a sequence are contiguous.
    paged: Option<Paged>,
}

/// The location of a tile of keys or values in its cache.
#[derive(Clone, Copy)]
struct TileRows {
    /// Rows of the first key-value head of a [`Unit`]; its further heads are adjacent.
    head: Head,
    /// Index of the first key in these rows.
    first: usize,
}

impl TileRows {
    /// Returns the rows of one of the unit's key-value heads.
    fn head(&self, index: usize) -> Head {
        Head {
            start: self.head.start + index * self.head.width,
            ..self.head
        }
    }
}

/// The queries of a task: some rows of all heads that share one key-value head, or of a few such groups of heads.
#[derive(Clone, Copy)]
struct Unit {
    entry: usize,
    /// First key-value head, and number of key-value heads.
    kv_head: usize,
    kv_heads: usize,
    /// First query row, and number of rows. When keys are read, the rows belong to one sequence.
    first: usize,
    rows: usize,
}

/// The intermediate result of a unit's queries after some of the keys, as in an online softmax.
struct State<'a> {
    /// Sums of values, each times its softmax numerator, `[queries, width]`.
    out: &'a mut [f32],
    /// Maximum score of each query, and its sum of numerators relative to this score.
    greatest: &'a mut [f32],
    sums: &'a mut [f32],
}

/// Returns the number of neighbouring key-value heads whose rows are read together. Their rows are adjacent, and
/// longer runs use the memory bandwidth better. Calls with several query rows do not need this: after the first row,
/// keys and values are in the cache of the CPU.
fn heads_in_a_run(dims: &AttentionDims) -> usize {
    (RUN / dims.head_dim.max(1)).clamp(1, dims.kv_heads.max(1))
}

pub(super) fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = AttentionDims::of_cached(&cx.call())?;
    let heads_together = if dims.rows_q == 1 { heads_in_a_run(&dims) } else { 1 };
    compile_call(cx, dims, [ROWS, heads_together], None)
}

/// Compiles attention to the blocks of a paged cache. A block table contains the location of keys and values. The
/// query rows of a call are tokens of any sequences. Adjacent rows with consecutive positions in one sequence, such
/// as the rows of a prompt, are detected when the step runs, and share a pass over their keys.
pub(super) fn compile_paged(cx: &CompileCx) -> Result<Compiled, String> {
    let paged_dims = PagedDims::of(&cx.call())?;
    let (dims, paged) = (paged_dims.dims, Paged::of(cx, &paged_dims));
    // A task has several rows only if there are enough tasks without a division of the keys. If the keys are divided,
    // each task has one row.
    let row_block = |together: usize| dims.rows_q * dims.kv_heads.div_ceil(together) / TASKS_THRESHOLD;
    let together = heads_in_a_run(&dims);
    let [rows, heads] = match row_block(together) {
        0 | 1 => [1, together],
        _ => [row_block(1).min(ROWS), 1],
    };
    compile_call(cx, dims, [rows, heads], Some(paged))
}

/// Compiles a call whose tasks have at most `row_block` rows and `heads_together` key-value heads.
fn compile_call(
    cx: &CompileCx,
    dims: AttentionDims,
    [row_block, heads_together]: [usize; 2],
    paged: Option<Paged>,
) -> Result<Compiled, String> {
    let mut call = Cached {
        dims,
        row_block,
        heads_together,
        parts: 1,
        bound: cx.dispatch.index_bound().unwrap_or_default(),
        dispatch: cx.index,
        level: cx.level,
        blocks: Blocks::detect(),
        q: cx.input(0),
        caches: [0, 1].map(|which| Cache::of(cx, which)),
        positions: cx.input(3),
        sinks: attention_sinks(cx.call().inputs).map(|sinks| cx.input(sinks)),
        out: cx.output(0),
        paged,
    };
    let units = call.units();
    if units > 0 {
        call.parts = TASKS_THRESHOLD.div_ceil(units).min(dims.rows_k.div_ceil(KEYS)).max(1);
    }
    let usual = AttentionDims {
        // Queries before the first key would have no visible keys.
        rows_k: dims.rows_k.min(USUAL_KEYS).max(dims.rows_q),
        ..dims
    };
    let mut phases: Vec<Box<dyn Kernel>> = vec![Box::new(Task {
        tasks: units * call.parts,
        nanos: nanos(&usual, 2),
        // SAFETY: the contract of `Kernel::run`.
        body: move |task: usize, cx: &RunCx| unsafe { call.attend(task, cx) },
    })];
    let shared = match call.parts {
        1 => 0,
        parts => units * parts * scratch_len(&call.state_lens()),
    };
    if call.parts > 1 {
        phases.push(Box::new(Task {
            tasks: units,
            nanos: stream_nanos(size_of::<f32>() * shared),
            // SAFETY: as above.
            body: move |task: usize, cx: &RunCx| unsafe { call.combine_shares(task, cx) },
        }));
    }
    Ok(Compiled {
        phases,
        shared,
        private: scratch_len(&call.private_lens()) + scratch_len(&call.state_lens()),
    })
}

impl Cached {
    /// Returns the number of row blocks of each head.
    fn row_blocks(&self) -> usize {
        self.dims.rows_q.div_ceil(self.row_block)
    }

    /// Returns the number of units for each row block of a batch entry.
    fn head_blocks(&self) -> usize {
        self.dims.kv_heads.div_ceil(self.heads_together)
    }

    /// Returns the number of units.
    fn units(&self) -> usize {
        self.dims.batch * self.head_blocks() * self.row_blocks()
    }

    fn unit(&self, index: usize) -> Unit {
        let (heads_index, block) = (index / self.row_blocks(), index % self.row_blocks());
        let first = block * self.row_block;
        let kv_head = heads_index % self.head_blocks() * self.heads_together;
        Unit {
            entry: heads_index / self.head_blocks(),
            kv_head,
            kv_heads: self.heads_together.min(self.dims.kv_heads - kv_head),
            first,
            rows: self.row_block.min(self.dims.rows_q - first),
        }
    }

    /// Returns the maximum number of queries of a unit.
    fn queries(&self) -> usize {
        self.heads_together * self.dims.group() * self.row_block.min(self.dims.rows_q)
    }

    /// Returns the lengths of a task's queries and scores, and of its tiles of converted keys and values.
    fn private_lens(&self) -> [usize; 4] {
        let (queries, width) = (self.queries(), self.dims.head_dim);
        let [keys, values] = self.caches.map(|cache| match cache {
            Cache::Plain(_) => 0,
            Cache::Converted(_) => KEYS * self.heads_together * width,
        });
        [queries * width, queries * KEYS, keys, values]
    }

    /// Returns the lengths of the three slices of a [`State`].
    fn state_lens(&self) -> [usize; 3] {
        let (queries, width) = (self.queries(), self.dims.head_dim);
        [queries * width, queries, queries]
    }

    /// Returns the state that is stored at an address.
    ///
    /// # Safety
    /// The memory must have the size of [`Cached::state_lens`] and belong to the caller while the
    /// state is used.
    unsafe fn state<'a>(&self, at: *mut f32) -> State<'a> {
        // SAFETY: forwarded.
        let [out, greatest, sums] = unsafe { scratch(at, self.state_lens()) };
        State { out, greatest, sums }
    }

    /// Returns the rows of head `h` of a unit in `view`, which contains the queries or the results.
    fn head(&self, view: View<f32>, unit: Unit, h: usize) -> Head {
        let at = [unit.entry, unit.kv_head * self.dims.group() + h, self.dims.heads];
        Head::of(view, self.dims.rows_q, at, self.dims.head_dim)
    }

    /// Returns the sizes of a call that has only the rows of the unit. The first row is at `position`, and the cache
    /// ends after the last row.
    fn dims_at(&self, unit: Unit, position: usize) -> AttentionDims {
        AttentionDims {
            rows_q: unit.rows,
            rows_k: position + unit.rows,
            ..self.dims
        }
    }

    /// Calls `attend` for each part of a unit whose rows are consecutive in one sequence, with the position of the
    /// first row. Skips parts with an invalid position or block number.
    ///
    /// # Safety
    /// Positions and block tables must not be written meanwhile.
    unsafe fn sequences(&self, unit: Unit, cx: &RunCx, mut attend: impl FnMut(Unit, usize)) {
        // SAFETY: forwarded.
        let positions = unsafe { self.positions.all() };
        if let Some(paged) = &self.paged {
            let of_rows = |rows: Range<usize>, position| {
                let part = Unit {
                    first: rows.start,
                    rows: rows.len(),
                    ..unit
                };
                attend(part, position);
            };
            // SAFETY: forwarded.
            let found = unsafe { paged.sequences(positions, unit.first..unit.first + unit.rows, self.bound, of_rows) };
            if let Err(bad) = found {
                cx.index_out_of_range(self.dispatch, bad, self.bound);
            }
            return;
        }
        let position = positions[unit.entry];
        if (position as usize) < self.bound {
            attend(unit, position as usize + unit.first)
        } else {
            cx.index_out_of_range(self.dispatch, position, self.bound)
        }
    }

    /// Returns the number of shares into which `keys` keys are divided. Above two, the number is even. With an odd
    /// number, one of two threads would have an additional share.
    fn parts_of(&self, keys: usize) -> usize {
        let parts = keys.div_ceil(TASK_KEYS).clamp(1, self.parts);
        if parts > 2 { parts / 2 * 2 } else { parts }
    }

    /// Runs a task of the first phase.
    ///
    /// # Safety
    /// As for `Kernel::run`.
    unsafe fn attend(&self, task: usize, cx: &RunCx) {
        // Adjacent units read the same rows of the cache, so they follow each other.
        let (part, index) = (task / self.units(), task % self.units());
        let unit = self.unit(index);
        // SAFETY: this dispatch does not write the operands; passed on to the caller.
        unsafe {
            self.sequences(unit, cx, |unit, position| {
                self.attend_sequence(unit, position, [index, part], cx)
            })
        };
    }

    /// Processes share `part` of the keys for rows of one sequence. The first row is at `position`.
    ///
    /// # Safety
    /// As for `Kernel::run`.
    unsafe fn attend_sequence(&self, unit: Unit, position: usize, [index, part]: [usize; 2], cx: &RunCx) {
        let dims = &self.dims_at(unit, position);
        let (width, rows) = (dims.head_dim, unit.rows);
        let heads = unit.kv_heads * dims.group();
        let seen = seen(dims);
        let parts = self.parts_of(seen.len());
        if part >= parts {
            return;
        }
        // SAFETY: private scratch and the shared scratch of each task have the requested sizes.
        let ([queries, scores, keys_of_tile, values_of_tile], state) = unsafe {
            let own = cx.private.add(scratch_len(&self.private_lens()));
            let at = match self.parts {
                1 => own,
                parts => cx.shared.add((index * parts + part) * scratch_len(&self.state_lens())),
            };
            (scratch(cx.private, self.private_lens()), self.state(at))
        };
        for (h, queries) in queries.chunks_exact_mut(rows * width).take(heads).enumerate() {
            // SAFETY: this dispatch does not write the operands.
            unsafe {
                self.head(self.q, unit, h)
                    .copy(unit.first..unit.first + rows, dims.scale as f32, queries)
            };
        }
        state.out.fill(0.0);
        state.greatest.fill(f32::NEG_INFINITY);
        state.sums.fill(0.0);
        let own = share(seen.len(), parts, part);
        let keys = seen.start + own.start..seen.start + own.end;
        let mut next = keys.start;
        while next < keys.end {
            let key = next;
            let cols = KEYS.min(keys.end - key).min(self.rows_from(key));
            next += cols;
            let tile = Tile {
                dims,
                query: 0,
                rows,
                key,
                cols,
            };
            // SAFETY: rows of a tile are valid, so they exist, and this dispatch does not write the operands.
            let [keys_at, values_at] = unsafe {
                [
                    self.rows_of_tile(0, unit, tile, keys_of_tile),
                    self.rows_of_tile(1, unit, tile, values_of_tile),
                ]
            };
            if let [Cache::Plain(_), _] = self.caches {
                self.touch(unit, tile, [keys_at, values_at]);
            }
            self.multiply_keys(queries, keys_at, unit, scores, tile);
            for h in 0..heads {
                let scores = &mut scores[h * rows * KEYS..][..rows * KEYS];
                let out = &mut state.out[h * rows * width..][..rows * width];
                let of_head = h * rows..(h + 1) * rows;
                let row_state = [&mut state.greatest[of_head.clone()], &mut state.sums[of_head]];
                softmax_step(self.level, scores, row_state, Some(out), tile);
            }
            self.add_values(scores, values_at, unit, state.out, tile);
        }
        if self.parts == 1 {
            // SAFETY: only this task writes these rows of these heads.
            unsafe { self.write(unit, &state) };
        }
    }

    /// Returns the number of contiguous cache rows from key `key` on.
    fn rows_from(&self, key: usize) -> usize {
        self.paged
            .as_ref()
            .map_or(usize::MAX, |paged| paged.block_rows - key % paged.block_rows)
    }

    /// Returns the location of a tile's keys (`which` is 0) or values (1). `f16` rows are first converted to
    /// `expanded`, where the heads of a unit are adjacent, as in a cache.
    ///
    /// # Safety
    /// The rows of the tile must exist, and no code may write them.
    unsafe fn rows_of_tile(&self, which: usize, unit: Unit, tile: Tile, expanded: &mut [f32]) -> TileRows {
        let (rows, entry, first) = match &self.paged {
            None => (self.dims.rows_k, unit.entry, tile.key),
            // SAFETY: forwarded.
            Some(paged) => unsafe {
                let block = paged.block(unit.first, tile.key / paged.block_rows);
                (paged.block_rows, block, tile.key % paged.block_rows)
            },
        };
        let (width, heads) = (self.dims.head_dim, self.dims.kv_heads);
        match self.caches[which] {
            Cache::Plain(view) => TileRows {
                head: Head::of(view, rows, [entry, unit.kv_head, heads], width),
                first,
            },
            Cache::Converted(stored) => {
                let run = unit.kv_heads * width;
                for (row, to) in expanded.chunks_exact_mut(run).take(tile.cols).enumerate() {
                    let row = entry * rows + first + row;
                    // SAFETY: forwarded.
                    unsafe { stored.convert(row, heads * width, unit.kv_head * width, to) };
                }
                let head = Head {
                    view: View::new(expanded.as_mut_ptr().cast(), expanded.len()),
                    start: 0,
                    row: run,
                    width,
                };
                TileRows { head, first: 0 }
            }
        }
    }

    /// Reads one number of every cache line of a tile's keys and values, alternating between several positions.
    ///
    /// The matmuls process one head after the other. They read parts of rows in an order that the hardware cannot
    /// predict. A cache of keys is larger than the caches of the CPU, so the matmuls would wait for each part.
    /// Prefetch instructions do not help if address translations are missing, too.
    fn touch(&self, unit: Unit, tile: Tile, caches: [TileRows; 2]) {
        let run = unit.kv_heads * self.dims.head_dim;
        let share = tile.cols.div_ceil(TOUCHES);
        for (row, at) in (0..share).flat_map(|row| (0..run).step_by(LINE / size_of::<f32>()).map(move |at| (row, at))) {
            for TileRows { head, first: key } in caches {
                for first in (0..tile.cols).step_by(share) {
                    let row = key + (first + row).min(tile.cols - 1);
                    // SAFETY: heads of a unit are adjacent in each row, and rows of a tile are valid, so they exist.
                    unsafe { head.pointer(row).add(at).read_volatile() };
                }
            }
        }
    }

    /// Computes the scores of a tile: multiplies the queries of all heads by the keys that are visible to them.
    fn multiply_keys(&self, queries: &[f32], at: TileRows, unit: Unit, scores: &mut [f32], tile: Tile) {
        let (width, group) = (self.dims.head_dim, self.dims.group());
        for index in 0..unit.kv_heads {
            let (keys, key) = (at.head(index), at.first);
            for row in 0..tile.rows {
                let seen = tile.seen(row);
                if seen.is_empty() {
                    continue;
                }
                // The same row of all heads of the group.
                let at = index * group * tile.rows + row;
                let queries = &queries[at * width..];
                let scores = &mut scores[at * KEYS + seen.start..];
                let sizes = [group, seen.len(), width];
                // SAFETY: these rows are valid, so they exist, and this dispatch does not write the operands. The
                // slices contain this row of each head.
                unsafe {
                    let rows = keys.rows(key + seen.start..key + seen.end);
                    let queries = (queries.as_ptr(), tile.rows * width);
                    let scores = (scores.as_mut_ptr(), tile.rows * KEYS);
                    self.blocks.few_rows(queries, (rows.as_ptr(), keys.row), scores, sizes);
                }
            }
        }
    }

    /// Adds the values of a tile to the sums of the queries of all heads, each multiplied by its softmax numerator.
    fn add_values(&self, numerators: &[f32], at: TileRows, unit: Unit, out: &mut [f32], tile: Tile) {
        let (width, group) = (self.dims.head_dim, self.dims.group());
        for index in 0..unit.kv_heads {
            let (values, key) = (at.head(index), at.first);
            for row in 0..tile.rows {
                let seen = tile.seen(row);
                if seen.is_empty() {
                    continue;
                }
                // The same row of all heads of the group.
                let at = index * group * tile.rows + row;
                let numerators = rows(&numerators[at * KEYS + seen.start..], tile.rows * KEYS);
                let out = target(&mut out[at * width..], tile.rows * width, true);
                // SAFETY: as above.
                unsafe {
                    let rows = values.rows(key + seen.start..key + seen.end);
                    let panels = self.blocks.in_place(rows.as_ptr(), values.row);
                    self.blocks
                        .multiply(numerators, panels, out, [group, width, seen.len()]);
                }
            }
        }
    }

    /// Runs a task of the second phase: combines the results of all shares of a unit's keys.
    ///
    /// # Safety
    /// As for `Kernel::run`.
    unsafe fn combine_shares(&self, task: usize, cx: &RunCx) {
        let len = scratch_len(&self.state_lens());
        let unit = self.unit(task);
        // The first phase has already reported missing rows.
        let bring = |unit: Unit, position| {
            let parts = self.parts_of(seen(&self.dims_at(unit, position)).len());
            // SAFETY: the first phase has written the states of the parts in use, and they are contiguous. Only this
            // task reads the states of its unit and writes its rows of the result.
            unsafe {
                let at = cx.shared.add(task * self.parts * len);
                let mut state = self.state(at);
                for part in 1..parts {
                    join(self.level, &mut state, &self.state(at.add(part * len)));
                }
                self.write(unit, &state);
            }
        };
        // SAFETY: this dispatch does not write positions or block tables.
        unsafe { self.sequences(unit, cx, bring) };
    }

    /// Writes the results of a unit: the sums of values divided by the sums of numerators, including the numerators of sinks.
    ///
    /// # Safety
    /// No other code may access these results meanwhile, or write the sinks.
    unsafe fn write(&self, unit: Unit, state: &State) {
        let queries = unit.kv_heads * self.dims.group() * unit.rows;
        let rows = state
            .out
            .chunks_exact(self.dims.head_dim)
            .zip(&*state.sums)
            .take(queries);
        for (query, (out, sum)) in rows.enumerate() {
            let head = self.head(self.out, unit, query / unit.rows);
            // SAFETY: forwarded.
            let to = unsafe { head.get_mut(unit.first + query % unit.rows) };
            let mut sum = *sum;
            if let Some(sinks) = self.sinks {
                let head = unit.kv_head * self.dims.group() + query / unit.rows;
                // SAFETY: forwarded.
                let sink = unsafe { sinks.all()[head] };
                // Far above the scores, it is infinite, and the result is 0.
                sum += (sink - state.greatest[query]).exp();
            }
            let inverse = 1.0 / sum;
            for (to, &out) in to.iter_mut().zip(out) {
                *to = out * inverse;
            }
        }
    }
}

/// Returns the range from the first to the last key that is visible to any query.
fn seen(dims: &AttentionDims) -> Range<usize> {
    dims.keys_of(0).start..dims.keys_of(dims.rows_q - 1).end
}

multiversion! {
    /// Merges another state into `state`, as if `state` had also processed the keys of `other`.
    fn join(state: &mut State, other: &State) = join_body;
}

#[inline(always)]
fn join_body<const FMA: bool>(state: &mut State, other: &State) {
    let width = state.out.len() / state.sums.len();
    let rows = state.out.chunks_exact_mut(width).zip(other.out.chunks_exact(width));
    for (row, (out, other_out)) in rows.enumerate() {
        let (before, there) = (state.greatest[row], other.greatest[row]);
        let now = if there > before { there } else { before };
        // With a maximum of minus infinity, the difference of scores would be NaN: subtract 0 instead.
        let shift = if now == f32::NEG_INFINITY { 0.0 } else { now };
        let factors = [before, there].map(|greatest| vmath::exp_nonpositive::<FMA>(greatest - shift));
        state.greatest[row] = now;
        state.sums[row] = state.sums[row] * factors[0] + other.sums[row] * factors[1];
        for (out, other) in out.iter_mut().zip(other_out) {
            *out = *out * factors[0] + other * factors[1];
        }
    }
}
