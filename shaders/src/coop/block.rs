//! Blocks of products on cooperative matrices: which there are, and which is commonly the best.

use super::super::contraction::Sizes;
use super::{CoopConfig, FEW_ROWS};

/// Workgroups from which on the largest block is better, and below which the summed dimension is cut.
const GROUPS_THRESHOLD: usize = 100;
/// Workgroups that are wanted where it is cut, but for few rows. Measured for 72 blocks of sums of 1,536 terms: three
/// parts are better than two.
const GROUPS_OF_PARTS: usize = 200;
/// Workgroups from which on blocks are better than small ones whose subgroups share the terms of steps.
const FEWER_GROUPS: usize = 60;

/// Sizes of a workgroup's block, and of a subgroup's part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Length of a step along the summed dimension.
    pub(crate) step: usize,
    pub(crate) sub_rows: usize,
    pub(crate) sub_columns: usize,
    /// Subgroups that share the terms of a step.
    pub(crate) depths: usize,
    /// Steps that are in flight.
    pub(crate) prefetch: usize,
    /// Workgroups from which on it is better than smaller ones.
    enough: usize,
}

/// Blocks for tiles of 16, the largest first. With half as many subgroups, which have twice as much to do, the second takes
/// as long for the product, but longer for what follows: nothing else runs while a thread waits.
const BLOCKS_16: [Block; 2] = [
    Block {
        rows: 128,
        columns: 128,
        step: 32,
        sub_rows: 64,
        sub_columns: 64,
        depths: 1,
        prefetch: 1,
        enough: GROUPS_THRESHOLD,
    },
    Block {
        rows: 64,
        columns: 64,
        step: 64,
        sub_rows: 32,
        sub_columns: 16,
        depths: 1,
        prefetch: 2,
        enough: FEWER_GROUPS,
    },
];

/// More blocks for tiles of 16, which are used only where they were measured to be faster: wide and high ones, and those
/// whose subgroups have more to do each.
const MORE_BLOCKS_16: [Block; 4] = [
    Block {
        rows: 64,
        columns: 128,
        step: 32,
        sub_rows: 32,
        sub_columns: 64,
        ..BLOCKS_16[0]
    },
    Block {
        rows: 128,
        columns: 64,
        step: 32,
        sub_rows: 64,
        sub_columns: 32,
        ..BLOCKS_16[0]
    },
    Block {
        rows: 64,
        columns: 64,
        step: 64,
        sub_rows: 32,
        sub_columns: 32,
        ..BLOCKS_16[0]
    },
    Block {
        rows: 64,
        columns: 64,
        step: 32,
        sub_rows: 32,
        sub_columns: 32,
        ..BLOCKS_16[0]
    },
];

/// The block for tiles of 8.
const BLOCKS_8: [Block; 1] = [Block {
    rows: 32,
    columns: 32,
    step: 16,
    sub_rows: 16,
    sub_columns: 16,
    depths: 1,
    prefetch: 1,
    enough: FEWER_GROUPS,
}];

/// Most steps in flight.
const MAX_PREFETCH: usize = 8;
/// Threads of a small block, and most subgroups of them that share the terms of a step where there are few rows.
const DEEP_THREADS: usize = 256;
const MAX_DEPTHS: usize = 8;
/// Threads of a subgroup below which each computes one tile: more would need too many registers, and software drivers
/// minutes to compile.
const SMALL_SUBGROUP: u32 = 16;

impl Block {
    /// The block that is commonly the best. `is_few` says whether there are so few rows that large ones are left out.
    pub(super) fn usual(config: &CoopConfig, sizes: &Sizes, is_few: bool) -> Option<Self> {
        let blocks = Block::large(config);
        let large = blocks.iter().find(|b| !is_few && b.groups(sizes) >= b.enough);
        match large.copied() {
            Some(block) => Some(block),
            None if sizes.m <= FEW_ROWS && !is_few => blocks.last().copied(),
            None => Some(Block::deep(config, sizes.m, sizes.k)),
        }
    }

    /// Parts of the summed dimension that are commonly the best, if there are enough terms.
    pub(super) fn usual_parts(&self, sizes: &Sizes, is_few: bool) -> usize {
        let groups = self.groups(sizes).max(1);
        match groups < GROUPS_THRESHOLD {
            true if is_few => GROUPS_THRESHOLD.div_ceil(groups),
            true => GROUPS_OF_PARTS.div_ceil(groups),
            false => 1,
        }
    }

    /// All blocks that there are for a product, each with fewer and more steps in flight than usual.
    pub(super) fn all(config: &CoopConfig, sizes: &Sizes) -> Vec<Self> {
        let mut all = Block::large(config);
        if config.tile_size == 16 && config.subgroup_size >= SMALL_SUBGROUP {
            all.extend(MORE_BLOCKS_16);
        }
        all.push(Block::deep(config, sizes.m, sizes.k));
        // That of many rows may be better for a few.
        all.push(Block::deep(config, FEW_ROWS + 1, sizes.k));
        let with_prefetch = |block: &Block| {
            let prefetch = [block.prefetch, 1, 2, 4];
            let most = sizes.k.div_ceil(block.step).min(MAX_PREFETCH);
            prefetch
                .into_iter()
                .filter(move |prefetch| *prefetch <= most)
                .map({
                    let block = *block;
                    move |prefetch| Block {
                        prefetch,
                        enough: 0,
                        ..block
                    }
                })
                .collect::<Vec<_>>()
        };
        let mut each: Vec<Block> = Vec::new();
        for block in all.iter().flat_map(with_prefetch) {
            if !each.contains(&block) {
                each.push(block);
            }
        }
        each
    }

    /// The largest block.
    pub(super) fn largest(config: &CoopConfig) -> Option<Self> {
        Block::large(config).first().copied()
    }

    /// Blocks of many rows and columns, the largest first.
    fn large(config: &CoopConfig) -> Vec<Self> {
        let tile = config.tile_size as usize;
        match tile {
            _ if config.subgroup_size < SMALL_SUBGROUP => vec![Block {
                rows: 2 * tile,
                columns: 2 * tile,
                step: 2 * tile,
                sub_rows: tile,
                sub_columns: tile,
                depths: 1,
                prefetch: 1,
                enough: FEWER_GROUPS,
            }],
            16 => BLOCKS_16.to_vec(),
            _ => BLOCKS_8.to_vec(),
        }
    }

    /// A small block whose subgroups share the terms of each step, for so many rows, or more, and sums of `k` terms.
    fn deep(config: &CoopConfig, m: usize, k: usize) -> Self {
        let tile = config.tile_size as usize;
        let most_depths = (DEEP_THREADS / config.subgroup_size.max(1) as usize).clamp(1, MAX_DEPTHS);
        // Of about the same length, with tiles for each subgroup.
        let even = |longest: usize| k.div_ceil(k.div_ceil(longest)).next_multiple_of(tile * most_depths);
        let longest = if config.use_f16_input { 256 } else { 128 };
        let (side, sub, depths, step, max_prefetch) = match config.subgroup_size < SMALL_SUBGROUP {
            // As few as there can be of each without leaving one out.
            true => (tile, tile, 2, 2 * tile, 2),
            false if m <= FEW_ROWS => (16, 16, most_depths, even(longest), 6),
            false => (32, 16, 2, 64, 4),
        };
        Block {
            rows: side,
            columns: side,
            step,
            sub_rows: sub,
            sub_columns: sub,
            depths,
            prefetch: k.div_ceil(step).min(max_prefetch),
            enough: 0,
        }
    }

    pub(super) fn subgroups(&self) -> usize {
        (self.rows / self.sub_rows) * (self.columns / self.sub_columns) * self.depths
    }

    pub(super) fn groups(&self, sizes: &Sizes) -> usize {
        sizes.batch * sizes.m.div_ceil(self.rows) * sizes.n.div_ceil(self.columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_few_blocks_are_cut() {
        let block = BLOCKS_16[1];
        let parts = |m, n, is_few| {
            let sizes = Sizes {
                batch: 1,
                m,
                n,
                k: 4096,
            };
            block.usual_parts(&sizes, is_few)
        };
        assert_eq!(parts(512, 576, false), 3, "72 blocks");
        assert_eq!(parts(512, 960, false), 1, "120 blocks");
        assert_eq!(parts(64, 64, false), GROUPS_OF_PARTS);
        assert_eq!(parts(16, 576, true), GROUPS_THRESHOLD.div_ceil(9));
        assert_eq!(parts(0, 576, false), GROUPS_OF_PARTS);
    }
}
