//! Kernels that find the k largest elements along an axis.

use meganeura_core::DType;

use super::index::around_axis;
use crate::kernel::{CompileCx, Compiled, KernelDef, RunCx, Task, f32_or_integers, rows_per_task};
use crate::vmath::{Isa, Level, multiversion};

pub(super) const KERNELS: &[KernelDef] = &[KernelDef {
    name: "core.top_k",
    supports: f32_or_integers,
    compile: |cx| match cx.input_type(0).dtype {
        DType::F32 => top_k::<f32>(cx),
        DType::U32 => top_k::<u32>(cx),
        _ => top_k::<i32>(cx),
    },
}];

/// An element type whose values can be mapped to words in the same order.
trait Key: Copy + Send + Sync + 'static {
    fn key(self) -> u32;
}

const SIGN: u32 = 1 << 31;

impl Key for f32 {
    /// Returns a word that orders elements. Both zeros are equal, and NaN is greater than all numbers.
    #[inline(always)]
    fn key(self) -> u32 {
        let bits = (self + 0.0).to_bits();
        let mask = if bits & SIGN == 0 { SIGN } else { u32::MAX };
        if self.is_nan() { u32::MAX } else { bits ^ mask }
    }
}

impl Key for u32 {
    #[inline(always)]
    fn key(self) -> u32 {
        self
    }
}

impl Key for i32 {
    #[inline(always)]
    fn key(self) -> u32 {
        self as u32 ^ SIGN
    }
}

/// The key and the position of an element. Of two equal keys, the one at the lower position comes first.
type Entry = [u32; 2];

/// Orders entries from the largest to the smallest.
#[inline(always)]
fn before(a: &Entry, b: &Entry) -> std::cmp::Ordering {
    b[0].cmp(&a[0]).then(a[1].cmp(&b[1]))
}

/// Up to this k, the best entries are kept sorted by insertion. For a larger k, all entries are partitioned.
const FEW: usize = 64;

fn top_k<T: Key>(cx: &CompileCx) -> Result<Compiled, String> {
    let (x, values, indices) = (cx.input::<T>(0), cx.output::<T>(0), cx.output::<u32>(1));
    let axis = cx.attrs().int("axis")?;
    let [outer, len, inner] = around_axis(&cx.input_type(0).shape, axis)?;
    let [_, k, _] = around_axis(&cx.output_type(0).shape, axis)?;
    let rows = if k == 0 { 0 } else { outer * inner };
    let per_task = rows_per_task(len);
    let level = cx.level;
    let entries = if k <= FEW { k } else { len };
    Ok(Compiled {
        phases: vec![Box::new(Task {
            tasks: rows.div_ceil(per_task),
            nanos: if k <= FEW { 1 } else { 10 } * x.len() as u64,
            body: move |task: usize, cx: &RunCx| {
                // SAFETY: private scratch has the size that is requested below, and only this thread uses it. Entries
                // have the alignment of its numbers, and every bit pattern is a valid word.
                let (keys, entries) = unsafe {
                    (
                        std::slice::from_raw_parts_mut(cx.private.cast::<u32>(), len),
                        std::slice::from_raw_parts_mut(cx.private.add(len).cast::<Entry>(), entries),
                    )
                };
                for row in task * per_task..((task + 1) * per_task).min(rows) {
                    let (o, i) = (row / inner, row % inner);
                    // SAFETY: this dispatch does not write the operand.
                    let part = unsafe { x.slice(o * len * inner..(o + 1) * len * inner) };
                    read_keys(level, part, keys, [i, inner]);
                    let best = select(level, keys, entries, k);
                    for (rank, &[_, position]) in best.iter().enumerate() {
                        let at = (o * k + rank) * inner + i;
                        // SAFETY: only this task writes the results of this row.
                        unsafe {
                            values.slice_mut(at..at + 1)[0] = part[position as usize * inner + i];
                            indices.slice_mut(at..at + 1)[0] = position;
                        }
                    }
                }
            },
        })],
        shared: 0,
        private: len + 2 * entries,
    })
}

multiversion! {
    /// Reads the keys of one column.
    fn read_keys<T: Key>(x: &[T], keys: &mut [u32], column: [usize; 2]) = read_keys_body;
}

#[inline(always)]
fn read_keys_body<const FMA: bool, T: Key>(x: &[T], keys: &mut [u32], [first, step]: [usize; 2]) {
    if step == 1 {
        for (key, &x) in keys.iter_mut().zip(x) {
            *key = x.key();
        }
    } else {
        for (key, &x) in keys.iter_mut().zip(x[first..].iter().step_by(step)) {
            *key = x.key();
        }
    }
}

/// Returns the `k` largest entries in order. There must be at least `k` keys.
fn select<'a>(level: Level, keys: &[u32], entries: &'a mut [Entry], k: usize) -> &'a [Entry] {
    if k <= FEW {
        insert_all(level, keys, entries);
        return entries;
    }
    for (position, (entry, &key)) in entries.iter_mut().zip(keys).enumerate() {
        *entry = [key, position as u32];
    }
    if k < entries.len() {
        entries.select_nth_unstable_by(k - 1, before);
    }
    let best = &mut entries[..k];
    best.sort_unstable_by(before);
    best
}

/// Number of keys that are checked together. In most blocks, no key is large enough.
const BLOCK: usize = 64;

/// Fills `best` with the largest entries in order. It must have at least one slot.
fn insert_all(level: Level, keys: &[u32], best: &mut [Entry]) {
    let mut filled = 0;
    let mut threshold = 0;
    for (block, start) in keys.chunks(BLOCK).zip((0u32..).step_by(BLOCK)) {
        // An element with an equal key comes after the kept ones, so it does not replace one of them.
        if filled == best.len() && largest(level, block) <= threshold {
            continue;
        }
        for (&key, position) in block.iter().zip(start..) {
            if filled == best.len() && key <= threshold {
                continue;
            }
            filled = (filled + 1).min(best.len());
            let mut at = filled - 1;
            while at > 0 && best[at - 1][0] < key {
                best[at] = best[at - 1];
                at -= 1;
            }
            best[at] = [key, position];
            threshold = best[filled - 1][0];
        }
    }
}

multiversion! {
    /// Returns the largest of some keys.
    fn largest(keys: &[u32]) -> u32 = largest_body;
}

#[inline(always)]
fn largest_body<const FMA: bool>(keys: &[u32]) -> u32 {
    let mut largest = 0;
    for &key in keys {
        largest = if key > largest { key } else { largest };
    }
    largest
}
