//! Assignment of offsets by lifetimes.

use std::cmp::Reverse;

use super::{Lifetime, MemoryLayout, aligned};
use crate::error::{Error, Result};
use crate::plan::{BufferRef, ExecutionPlan};

/// A buffer that may share memory with other buffers.
#[derive(Clone, Copy, Debug)]
struct Block {
    buffer: usize,
    bytes: usize,
    life: Lifetime,
}

/// A range of bytes that is occupied during a range of levels.
#[derive(Clone, Copy, Debug)]
struct OccupiedRange {
    start: usize,
    end: usize,
    life: Lifetime,
}

/// Assigns offsets to all buffers. The persistent ones come first, next to each other; then each transient one gets the
/// lowest offset that is free during its lifetime. Several orders are tried, and the shortest arena is used. The best
/// order depends on the graph; for most graphs it is large buffers first. Borrowed buffers take no space in the arena.
pub(super) fn place(plan: &ExecutionPlan, slab: Option<usize>) -> Result<MemoryLayout> {
    if let Some(limit) = slab
        && let Some(i) = plan.buffers.iter().position(|&bytes| aligned(bytes) > limit)
    {
        return Err(Error::BufferTooLarge {
            tensor: plan.describe(BufferRef(i as u32)),
            bytes: plan.buffers[i] as u64,
            limit: limit as u64,
        });
    }
    let lives = plan.lifetimes();
    let mut offsets = vec![0; plan.buffers.len()];
    let mut blocks = Vec::new();
    let mut persistent = 0;
    let borrowed = &plan.memory.borrowed;
    for (i, &bytes) in plan.buffers.iter().enumerate() {
        match lives[i] {
            _ if plan.memory.is_borrowed(BufferRef(i as u32)) => {}
            Some(life) => blocks.push(Block {
                buffer: i,
                bytes: aligned(bytes),
                life,
            }),
            None => {
                offsets[i] = fitting(persistent, aligned(bytes), slab);
                persistent = end(offsets[i], aligned(bytes))?;
            }
        }
    }
    blocks.retain(|b| b.bytes > 0);
    let mut best: Option<(usize, Vec<usize>)> = None;
    for order in ORDERS {
        blocks.sort_by_key(|b| (order(b), b.buffer));
        let (found, bytes) = first_fit(&blocks, persistent, slab)?;
        if best.as_ref().is_none_or(|(least, _)| bytes < *least) {
            for (block, offset) in blocks.iter().zip(&found) {
                offsets[block.buffer] = *offset;
            }
            best = Some((bytes, offsets.clone()));
        }
    }
    let (bytes, mut offsets) = best.unwrap_or((persistent, offsets));
    let mut after = aligned(bytes);
    for buffer in borrowed {
        offsets[buffer.index()] = after;
        after = end(after, aligned(plan.buffers[buffer.index()]))?;
    }
    Ok(MemoryLayout {
        bytes,
        slab,
        offsets,
        borrowed: borrowed.clone(),
    })
}

/// Function that returns the sort keys of a block: blocks are sorted in descending order of the first, then of the
/// second number.
type Order = fn(&Block) -> (Reverse<usize>, Reverse<usize>);

/// Orders to try: largest first; longest lifetime first; greatest product of size and lifetime first; plan order.
const ORDERS: [Order; 4] = [
    |b| (Reverse(b.bytes), Reverse(levels(b))),
    |b| (Reverse(levels(b)), Reverse(b.bytes)),
    |b| (Reverse(levels(b).saturating_mul(b.bytes)), Reverse(b.bytes)),
    |b| (Reverse(usize::MAX - b.life.first), Reverse(b.bytes)),
];

fn levels(block: &Block) -> usize {
    block.life.last - block.life.first + 1
}

/// Returns the offset of each block, and the end of the arena. The arena begins with `persistent` bytes.
fn first_fit(blocks: &[Block], persistent: usize, slab: Option<usize>) -> Result<(Vec<usize>, usize)> {
    let mut taken: Vec<OccupiedRange> = Vec::with_capacity(blocks.len());
    let mut offsets = Vec::with_capacity(blocks.len());
    let mut arena = persistent;
    for block in blocks {
        let mut offset = fitting(persistent, block.bytes, slab);
        // Sorted by start, so that the first free range is found.
        for other in &taken {
            if end(offset, block.bytes)? <= other.start {
                break;
            }
            let overlaps = other.life.first <= block.life.last && block.life.first <= other.life.last;
            if overlaps && other.end > offset {
                offset = fitting(other.end, block.bytes, slab);
            }
        }
        let place = OccupiedRange {
            start: offset,
            end: end(offset, block.bytes)?,
            life: block.life,
        };
        arena = arena.max(place.end);
        let at = taken.partition_point(|t| t.start <= offset);
        taken.insert(at, place);
        offsets.push(offset);
    }
    Ok((offsets, arena))
}

fn end(offset: usize, bytes: usize) -> Result<usize> {
    let end = offset.checked_add(bytes).filter(|&end| end <= isize::MAX as usize);
    end.ok_or_else(|| Error::plan("its buffers have more bytes than memory can have"))
}

/// Returns the offset, or the start of the next slab if the buffer would span two.
fn fitting(offset: usize, bytes: usize, slab: Option<usize>) -> usize {
    match slab {
        Some(slab) if bytes > 0 && offset / slab != (offset + bytes - 1) / slab => offset.next_multiple_of(slab),
        _ => offset,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    fn random_blocks(count: usize, rng: &mut SplitMix64) -> Vec<Block> {
        let block = |buffer: usize, rng: &mut SplitMix64| {
            let (first, longest) = (rng.below(60), 1 + rng.below(30));
            Block {
                buffer,
                bytes: aligned(1 + rng.below(9000)),
                life: Lifetime {
                    first,
                    last: first + rng.below(longest),
                },
            }
        };
        (0..count).map(|i| block(i, rng)).collect()
    }

    #[test]
    fn no_two_blocks_share_memory_at_one_time_and_none_lies_in_two_slabs() {
        let mut rng = SplitMix64::new(4);
        for slab in [None, Some(aligned(9000)), Some(40 * super::super::ALIGNMENT)] {
            for count in [1, 2, 7, 80] {
                let blocks = random_blocks(count, &mut rng);
                let (offsets, bytes) = first_fit(&blocks, 512, slab).expect("small");
                for (i, a) in blocks.iter().enumerate() {
                    assert!(offsets[i] >= 512 && offsets[i] + a.bytes <= bytes);
                    if let Some(slab) = slab {
                        assert_eq!(offsets[i] / slab, (offsets[i] + a.bytes - 1) / slab);
                    }
                    for (j, b) in blocks.iter().enumerate().skip(i + 1) {
                        let together = a.life.first <= b.life.last && b.life.first <= a.life.last;
                        let apart = offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i];
                        assert!(
                            !together || apart,
                            "{a:?} at {} and {b:?} at {}",
                            offsets[i],
                            offsets[j]
                        );
                    }
                }
            }
        }
    }
}
