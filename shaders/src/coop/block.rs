//! Block sizes of contractions on cooperative matrices, and the selection of the default block.

use super::super::contraction::Sizes;
use super::{CoopConfig, FEW_ROWS};

/// The largest block is the default if it has at least this number of workgroups. With fewer workgroups of any block,
/// the summed dimension is split.
const GROUPS_THRESHOLD: usize = 100;
/// Desired number of workgroups of a split sum, except for few rows. Measured for 72 blocks of sums of 1,536 terms:
/// three parts are faster than two.
const GROUPS_OF_PARTS: usize = 200;
/// Minimum size of a block in elements, and minimum number of terms, for which sums are split until there are
/// [`GROUPS_OF_PARTS`] workgroups. On an H200 through Vulkan, 128 blocks of 128 x 128 and 14,336 terms take 277 us in
/// two parts and 473 us in one.
const LARGE_BLOCK: usize = 128 * 128;
const LONG_SUM: usize = 4096;
/// Minimum number of workgroups for normal blocks. With fewer workgroups, small blocks whose subgroups share the
/// terms of a step are faster.
const FEWER_GROUPS: usize = 60;

/// Sizes of a workgroup's block, and of the part that a subgroup computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Number of terms of a step along the summed dimension.
    pub(crate) step: usize,
    pub(crate) sub_rows: usize,
    pub(crate) sub_columns: usize,
    /// Number of subgroups that share the terms of a step.
    pub(crate) depths: usize,
    /// Number of prefetched steps.
    pub(crate) prefetch: usize,
    /// Minimum number of workgroups for which this block is faster than smaller ones.
    enough: usize,
    /// Number of workgroups up to which sums are split; 0 for the number of [`Block::usual_parts`].
    split_groups: usize,
}

/// Blocks for tiles of 16, the largest first. The second block has half the subgroups with twice the work for each.
/// It takes the same time for the matmul but longer for the epilogue, because no other subgroups run while one of
/// them waits.
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
        split_groups: 0,
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
        split_groups: 0,
    },
];

/// More blocks for tiles of 16: wide and tall blocks, and blocks with more work for each subgroup. They are used only
/// if they are measured to be faster.
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

/// Blocks of one row of tiles of 16, for few rows of large matrices. A wide block reads the rows less often. Its
/// subgroups share the terms of a step.
const WIDE_BLOCKS_16: [Block; 4] = [
    Block {
        rows: 16,
        columns: 64,
        step: 128,
        sub_rows: 16,
        sub_columns: 16,
        depths: 2,
        prefetch: 2,
        enough: 0,
        split_groups: 0,
    },
    Block {
        rows: 16,
        columns: 128,
        step: 64,
        sub_rows: 16,
        sub_columns: 32,
        depths: 2,
        prefetch: 2,
        enough: 0,
        split_groups: 0,
    },
    Block {
        rows: 16,
        columns: 128,
        step: 64,
        sub_rows: 16,
        sub_columns: 16,
        depths: 1,
        prefetch: 2,
        enough: 0,
        split_groups: 0,
    },
    Block {
        rows: 16,
        columns: 32,
        step: 256,
        sub_rows: 16,
        sub_columns: 16,
        depths: 4,
        prefetch: 2,
        enough: 0,
        split_groups: 0,
    },
];

/// Maximum number of rows for which [`PACKED_BLOCK_16`] is the default. With 64 rows, it gained at most 7 % on an H200.
const MAX_PACKED_ROWS: usize = 32;
/// Block of one row of tiles of 16, for few rows and a large packed matrix. Each thread copies one block of 32 packed elements in a
/// step. On an H200, 16 rows and 8 layers of a model of 8B parameters in `q4` take 1.53 ms (CUDA) and 2.18 ms (Vulkan), instead of
/// 2.4 and 4.0 ms with blocks whose threads copy four elements at a time.
const PACKED_BLOCK_16: Block = Block {
    rows: 16,
    columns: 64,
    step: 64,
    sub_rows: 16,
    sub_columns: 16,
    depths: 1,
    prefetch: 2,
    enough: 0,
    split_groups: 600,
};

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
    split_groups: 0,
}];

/// Maximum number of prefetched steps.
const MAX_PREFETCH: usize = 8;
/// Number of threads of a small block, and maximum number of its subgroups that share the terms of a step if there
/// are few rows.
const DEEP_THREADS: usize = 256;
const MAX_DEPTHS: usize = 8;
/// Minimum number of threads of a subgroup that computes several tiles. With fewer threads, more tiles would need too
/// many registers, and software drivers would take minutes to compile.
const SMALL_SUBGROUP: u32 = 16;

impl Block {
    /// Returns the default block. If `is_few`, there are few rows, and large blocks are excluded. If `is_packed`, the second operand
    /// is packed along the summed dimension.
    pub(super) fn usual(config: &CoopConfig, sizes: &Sizes, is_few: bool, is_packed: bool) -> Option<Self> {
        if is_packed
            && sizes.m <= MAX_PACKED_ROWS
            && sizes.k.is_multiple_of(PACKED_BLOCK_16.step)
            && Block::suits_wide(config, sizes)
        {
            return Some(Block::of_packed(sizes.m));
        }
        let blocks = Block::large(config);
        let large = blocks.iter().find(|b| !is_few && b.groups(sizes) >= b.enough);
        match large.copied() {
            Some(block) => Some(block),
            None if sizes.m <= FEW_ROWS && !is_few => blocks.last().copied(),
            None if is_few && config.wide_rows && Block::suits_wide(config, sizes) => Some(WIDE_BLOCKS_16[0]),
            None => Some(Block::deep(config, sizes.m, sizes.k)),
        }
    }

    /// Returns the block for at most [`MAX_PACKED_ROWS`] rows and a packed matrix.
    fn of_packed(m: usize) -> Self {
        let rows = m.next_multiple_of(PACKED_BLOCK_16.rows);
        Block {
            rows,
            sub_rows: rows,
            ..PACKED_BLOCK_16
        }
    }

    /// Returns true if few rows are multiplied by a large matrix. A wide block then reads the rows less often.
    fn suits_wide(config: &CoopConfig, sizes: &Sizes) -> bool {
        /// Minimum number of columns and of terms.
        const MIN_COLUMNS: usize = 1024;
        const MIN_TERMS: usize = 2048;
        let fits = config.tile_size == 16 && config.subgroup_size == 32;
        fits && sizes.n >= MIN_COLUMNS && sizes.k >= MIN_TERMS
    }

    /// Returns the default number of parts of the summed dimension, provided that there are enough terms.
    pub(super) fn usual_parts(&self, sizes: &Sizes, is_few: bool) -> usize {
        let groups = self.groups(sizes).max(1);
        let is_large = self.rows * self.columns >= LARGE_BLOCK && sizes.k >= LONG_SUM;
        match groups {
            _ if self.split_groups > 0 => self.split_groups.div_ceil(groups),
            _ if is_few && self.columns > self.rows => GROUPS_OF_PARTS.div_ceil(groups),
            _ if is_few && groups < GROUPS_THRESHOLD => GROUPS_THRESHOLD.div_ceil(groups),
            _ if is_few => 1,
            _ if groups < GROUPS_THRESHOLD || is_large => GROUPS_OF_PARTS.div_ceil(groups),
            _ => 1,
        }
    }

    /// Returns all blocks for a contraction. Each block also occurs with fewer and with more prefetched steps than
    /// the default.
    pub(super) fn all(config: &CoopConfig, sizes: &Sizes) -> Vec<Self> {
        let mut all = Block::large(config);
        if config.tile_size == 16 && config.subgroup_size >= SMALL_SUBGROUP {
            all.extend(MORE_BLOCKS_16);
            if sizes.m <= FEW_ROWS {
                all.extend(WIDE_BLOCKS_16);
            }
            if sizes.m <= MAX_PACKED_ROWS {
                all.push(Block::of_packed(sizes.m));
            }
        }
        all.push(Block::deep(config, sizes.m, sizes.k));
        // The block for more rows may also be faster for few rows.
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

    /// Returns the largest block.
    pub(super) fn largest(config: &CoopConfig) -> Option<Self> {
        Block::large(config).first().copied()
    }

    /// Returns the blocks for many rows and columns, the largest first.
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
                split_groups: 0,
            }],
            16 => BLOCKS_16.to_vec(),
            _ => BLOCKS_8.to_vec(),
        }
    }

    /// Returns a small block whose subgroups share the terms of each step, for at least `m` rows and sums of `k`
    /// terms.
    fn deep(config: &CoopConfig, m: usize, k: usize) -> Self {
        let tile = config.tile_size as usize;
        let most_depths = (DEEP_THREADS / config.subgroup_size.max(1) as usize).clamp(1, MAX_DEPTHS);
        // All steps have about the same length, and all subgroups have the same number of tiles.
        let even = |longest: usize| k.div_ceil(k.div_ceil(longest)).next_multiple_of(tile * most_depths);
        let longest = if config.use_f16_input { 256 } else { 128 };
        let (side, sub, depths, step, max_prefetch) = match config.subgroup_size < SMALL_SUBGROUP {
            // These are the smallest possible sizes.
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
            split_groups: 0,
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
