//! Attention to the valid rows of a cache: its time goes with them, not with the capacity.
//!
//! A task has the queries of one key-value head (or of neighbouring ones, if there is but one row), some rows of each of its
//! query heads, and goes over the keys that they see in tiles, as [`forward`](super::forward) does. There are few queries for each key, so keys and values are read
//! where they lie instead of being packed; in a paged cache these are its blocks. Where heads and rows are fewer than threads may be, as with one token of one
//! sequence, each task has a share of the keys only, and a second phase brings the shares together ("flash decoding": Dao,
//! Haziza, Massa and Sizov, 2023).

use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;
use meganeura_core::ops::{AttentionDims, PagedDims};

use super::super::cached_rows::has_halves;
use super::paged::Paged;
use super::tile::{Tile, softmax_step};
use super::{Head, KEYS, nanos, rows, scratch, scratch_len, target};
use crate::gemm::Blocks;
use crate::kernel::{CompileCx, Compiled, Kernel, RunCx, Task, stream_nanos};
use crate::memory::View;
use crate::share::share;
use crate::simd::LINE;
use crate::vmath::{self, Isa, Level, multiversion};

/// Rows of queries of a task.
const ROWS: usize = 16;
/// Valid rows that estimates of the duration go by.
const USUAL_KEYS: usize = 256;
/// Neighbouring `f32`s of a cache that are worth being read together: 1 KiB.
const RUN: usize = 256;
/// Places of keys, and as many of values, from which on they are read at the same time.
const TOUCHES: usize = 4;
/// Tasks that are enough for the keys not to be divided.
const TASKS_THRESHOLD: usize = 16;
/// Keys that are worth a task, as each has to bring the queries and to be brought together with the others.
const TASK_KEYS: usize = 32;

/// A call.
#[derive(Clone, Copy)]
struct Cached {
    /// With the capacity as the number of keys.
    dims: AttentionDims,
    /// Rows of queries, and neighbouring key-value heads, of a task at most.
    row_block: usize,
    heads_together: usize,
    /// Shares that the keys of each query are divided into, at most.
    parts: usize,
    /// What positions, or numbers of blocks, must be below.
    bound: usize,
    dispatch: usize,
    level: Level,
    blocks: Blocks,
    q: View<f32>,
    /// Keys and values.
    caches: [Cache; 2],
    positions: View<u32>,
    out: View<f32>,
    /// Where the rows of a sequence are; `None` if one after the other.
    paged: Option<Paged>,
}

/// Cached keys or values.
#[derive(Clone, Copy)]
enum Cache {
    Plain(View<f32>),
    /// Tiles are converted before they are used.
    Halves(View<f16>),
}

/// Where the keys or values of a tile are.
#[derive(Clone, Copy)]
struct TileRows {
    /// Of the first key-value head of a unit; the others lie side by side.
    head: Head,
    /// The number that the first key has there.
    first: usize,
}

impl TileRows {
    /// One of a unit's key-value heads.
    fn head(&self, index: usize) -> Head {
        Head {
            start: self.head.start + index * self.head.width,
            ..self.head
        }
    }
}

/// The queries of a task: some rows of the heads that share one key-value head, or one of a few.
#[derive(Clone, Copy)]
struct Unit {
    entry: usize,
    /// First key-value head and number of them.
    kv_head: usize,
    kv_heads: usize,
    /// First row and number of rows, which are of one sequence when keys are looked at.
    first: usize,
    rows: usize,
}

/// What is known of queries after some keys.
struct State<'a> {
    /// Sums of values, each times its numerator, `[queries, width]`.
    out: &'a mut [f32],
    /// The greatest score, and the sum of numerators relative to it.
    greatest: &'a mut [f32],
    sums: &'a mut [f32],
}

/// Neighbouring key-value heads whose rows are worth being read together. They lie side by side, and memory is faster in
/// longer runs; more than one row finds keys and values in the cache again.
fn heads_in_a_run(dims: &AttentionDims) -> usize {
    (RUN / dims.head_dim.max(1)).clamp(1, dims.kv_heads.max(1))
}

pub(super) fn compile(cx: &CompileCx) -> Result<Compiled, String> {
    let dims = AttentionDims::of_cached(&cx.call())?;
    let heads_together = if dims.rows_q == 1 { heads_in_a_run(&dims) } else { 1 };
    compile_call(cx, dims, [ROWS, heads_together], None)
}

/// Attention to the blocks of a paged cache: keys and values lie where a block table says. The rows of a call are tokens of any
/// sequences; neighbours that follow each other in one sequence, as those of a prompt do, are found when the step runs, and go over
/// their keys together.
pub(super) fn compile_paged(cx: &CompileCx) -> Result<Compiled, String> {
    let paged_dims = PagedDims::of(&cx.call())?;
    let (dims, paged) = (paged_dims.dims, Paged::of(cx, &paged_dims));
    // Rows are together in a task only where there are enough tasks without dividing keys: whatever shares the keys of a task
    // has one row then.
    let row_block = |together: usize| dims.rows_q * dims.kv_heads.div_ceil(together) / TASKS_THRESHOLD;
    let together = heads_in_a_run(&dims);
    let [rows, heads] = match row_block(together) {
        0 | 1 => [1, together],
        _ => [row_block(1).min(ROWS), 1],
    };
    compile_call(cx, dims, [rows, heads], Some(paged))
}

/// A call whose tasks have at most so many rows and key-value heads.
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
        caches: [1, 2].map(|i| match has_halves(cx.input_type(i)) {
            true => Cache::Halves(cx.input(i)),
            false => Cache::Plain(cx.input(i)),
        }),
        positions: cx.input(3),
        out: cx.output(0),
        paged,
    };
    let units = call.units();
    if units > 0 {
        call.parts = TASKS_THRESHOLD.div_ceil(units).min(dims.rows_k.div_ceil(KEYS)).max(1);
    }
    let usual = AttentionDims {
        // Queries in front of the first key would see nothing.
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
            body: move |task: usize, cx: &RunCx| unsafe { call.bring_together(task, cx) },
        }));
    }
    Ok(Compiled {
        phases,
        shared,
        private: scratch_len(&call.private_lens()) + scratch_len(&call.state_lens()),
    })
}

impl Cached {
    /// Blocks of rows of a head.
    fn row_blocks(&self) -> usize {
        self.dims.rows_q.div_ceil(self.row_block)
    }

    /// Units of a row block, which have the key-value heads of a batch entry.
    fn head_blocks(&self) -> usize {
        self.dims.kv_heads.div_ceil(self.heads_together)
    }

    /// Groups of queries that have tasks of their own.
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

    /// Most queries of a unit.
    fn queries(&self) -> usize {
        self.heads_together * self.dims.group() * self.row_block.min(self.dims.rows_q)
    }

    /// Queries and scores of a task, and a tile of converted keys and values.
    fn private_lens(&self) -> [usize; 4] {
        let (queries, width) = (self.queries(), self.dims.head_dim);
        let [keys, values] = self.caches.map(|cache| match cache {
            Cache::Plain(_) => 0,
            Cache::Halves(_) => KEYS * self.heads_together * width,
        });
        [queries * width, queries * KEYS, keys, values]
    }

    /// The parts of a [`State`].
    fn state_lens(&self) -> [usize; 3] {
        let (queries, width) = (self.queries(), self.dims.head_dim);
        [queries * width, queries, queries]
    }

    /// The state at an address.
    ///
    /// # Safety
    /// There are as many `f32`s as [`Cached::state_lens`] says, the caller's own for as long as the state is used.
    unsafe fn state<'a>(&self, at: *mut f32) -> State<'a> {
        // SAFETY: forwarded.
        let [out, greatest, sums] = unsafe { scratch(at, self.state_lens()) };
        State { out, greatest, sums }
    }

    /// The rows of one of a unit's heads in queries or results.
    fn head(&self, view: View<f32>, unit: Unit, h: usize) -> Head {
        let at = [unit.entry, unit.kv_head * self.dims.group() + h, self.dims.heads];
        Head::of(view, self.dims.rows_q, at, self.dims.head_dim)
    }

    /// The rows of a unit as a call, the first of them at a position, as if the cache ended behind the last one.
    fn dims_at(&self, unit: Unit, position: usize) -> AttentionDims {
        AttentionDims {
            rows_q: unit.rows,
            rows_k: position + unit.rows,
            ..self.dims
        }
    }

    /// Calls `attend` for the parts of a unit that are rows of one sequence behind each other, with the position of the first
    /// row; not at all if there is no such position or block.
    ///
    /// # Safety
    /// Positions and block tables are not written meanwhile.
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
        match (position as usize) < self.bound {
            true => attend(unit, position as usize + unit.first),
            false => cx.index_out_of_range(self.dispatch, position, self.bound),
        }
    }

    /// Shares that so many keys are divided into: an even number beyond two, or one of two threads would have a share more.
    fn parts_of(&self, keys: usize) -> usize {
        let parts = keys.div_ceil(TASK_KEYS).clamp(1, self.parts);
        if parts > 2 { parts / 2 * 2 } else { parts }
    }

    /// # Safety
    /// As for `Kernel::run`.
    unsafe fn attend(&self, task: usize, cx: &RunCx) {
        // Units side by side read the same rows of the cache, so they come one after the other.
        let (part, index) = (task / self.units(), task % self.units());
        let unit = self.unit(index);
        // SAFETY: operands are not written by this dispatch; forwarded.
        unsafe {
            self.sequences(unit, cx, |unit, position| {
                self.attend_sequence(unit, position, [index, part], cx)
            })
        };
    }

    /// A part of the keys of rows of one sequence, the first of them at a position.
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
        // SAFETY: private scratch is as long as asked for, and so is the shared one for each task.
        let ([queries, scores, keys_of_tile, values_of_tile], state) = unsafe {
            let own = cx.private.add(scratch_len(&self.private_lens()));
            let at = match self.parts {
                1 => own,
                parts => cx.shared.add((index * parts + part) * scratch_len(&self.state_lens())),
            };
            (scratch(cx.private, self.private_lens()), self.state(at))
        };
        for (h, queries) in queries.chunks_exact_mut(rows * width).take(heads).enumerate() {
            // SAFETY: operands are not written by this dispatch.
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
            // SAFETY: rows of a tile are valid, so they exist, and operands are not written by this dispatch.
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
            // SAFETY: this task alone writes these rows of these heads.
            unsafe { self.write(unit, &state) };
        }
    }

    /// Rows that lie one after the other from a key on.
    fn rows_from(&self, key: usize) -> usize {
        self.paged
            .as_ref()
            .map_or(usize::MAX, |paged| paged.block_rows - key % paged.block_rows)
    }

    /// Where the keys (0) or values (1) of a tile are; those of `f16` are converted to `expanded` first, the heads of a unit side by
    /// side as in a cache.
    ///
    /// # Safety
    /// The rows of the tile exist, and nobody writes them.
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
            Cache::Halves(view) => {
                let run = unit.kv_heads * width;
                for (row, to) in expanded.chunks_exact_mut(run).take(tile.cols).enumerate() {
                    let start = ((entry * rows + first + row) * heads + unit.kv_head) * width;
                    // SAFETY: forwarded.
                    unsafe { view.slice(start..start + run) }.convert_to_f32_slice(to);
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

    /// Reads one number of every line of a tile's keys and values, from several places on.
    ///
    /// The matmuls go over a head after the other, so over pieces of rows in an order that the hardware does not foresee, and each
    /// piece would be waited for: caches of the keys are too large to stay near. Asking for lines before their use does not
    /// help where their pages have to be looked up, too.
    fn touch(&self, unit: Unit, tile: Tile, caches: [TileRows; 2]) {
        let run = unit.kv_heads * self.dims.head_dim;
        let share = tile.cols.div_ceil(TOUCHES);
        for (row, at) in (0..share).flat_map(|row| (0..run).step_by(LINE / size_of::<f32>()).map(move |at| (row, at))) {
            for TileRows { head, first: key } in caches {
                for first in (0..tile.cols).step_by(share) {
                    let row = key + (first + row).min(tile.cols - 1);
                    // SAFETY: heads of a unit lie side by side in each row, and rows of a tile are valid, so they exist.
                    unsafe { head.pointer(row).add(at).read_volatile() };
                }
            }
        }
    }

    /// Products of the queries of all heads and the keys that they see in a tile.
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
                // SAFETY: these rows are valid, so they exist, and operands are not written by this dispatch; the slices have
                // that row of each head.
                unsafe {
                    let rows = keys.rows(key + seen.start..key + seen.end);
                    let queries = (queries.as_ptr(), tile.rows * width);
                    let scores = (scores.as_mut_ptr(), tile.rows * KEYS);
                    self.blocks.few_rows(queries, (rows.as_ptr(), keys.row), scores, sizes);
                }
            }
        }
    }

    /// Adds up the values of a tile, each times its numerator, for the queries of all heads.
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

    /// The second phase: what the parts of a unit's keys gave.
    ///
    /// # Safety
    /// As for `Kernel::run`.
    unsafe fn bring_together(&self, task: usize, cx: &RunCx) {
        let len = scratch_len(&self.state_lens());
        let unit = self.unit(task);
        // What is not there the first phase has told.
        let bring = |unit: Unit, position| {
            let parts = self.parts_of(seen(&self.dims_at(unit, position)).len());
            // SAFETY: the first phase has written the states of the parts in use, which lie one after the other; this task
            // alone looks at those of its unit, and writes its rows of the result.
            unsafe {
                let at = cx.shared.add(task * self.parts * len);
                let mut state = self.state(at);
                for part in 1..parts {
                    join(self.level, &mut state, &self.state(at.add(part * len)));
                }
                self.write(unit, &state);
            }
        };
        // SAFETY: positions and block tables are not written by this dispatch.
        unsafe { self.sequences(unit, cx, bring) };
    }

    /// Writes the results of a unit.
    ///
    /// # Safety
    /// Nobody else accesses them meanwhile.
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
            let inverse = 1.0 / sum;
            for (to, &out) in to.iter_mut().zip(out) {
                *to = out * inverse;
            }
        }
    }
}

/// Keys that some query sees.
fn seen(dims: &AttentionDims) -> Range<usize> {
    dims.keys_of(0).start..dims.keys_of(dims.rows_q - 1).end
}

multiversion! {
    /// Brings a state to where it would be after the keys of another one, too.
    fn join(state: &mut State, other: &State) = join_body;
}

#[inline(always)]
fn join_body<const FMA: bool>(state: &mut State, other: &State) {
    let width = state.out.len() / state.sums.len();
    let rows = state.out.chunks_exact_mut(width).zip(other.out.chunks_exact(width));
    for (row, (out, other_out)) in rows.enumerate() {
        let (before, there) = (state.greatest[row], other.greatest[row]);
        let now = if there > before { there } else { before };
        // Scores that are all minus infinity have no exponential relative to each other.
        let shift = if now == f32::NEG_INFINITY { 0.0 } else { now };
        let factors = [before, there].map(|greatest| vmath::exp_nonpositive::<FMA>(greatest - shift));
        state.greatest[row] = now;
        state.sums[row] = state.sums[row] * factors[0] + other.sums[row] * factors[1];
        for (out, other) in out.iter_mut().zip(other_out) {
            *out = *out * factors[0] + other * factors[1];
        }
    }
}
