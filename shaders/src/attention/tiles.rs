//! Tiles of rows of single threads, queries or keys: what the kernel files of attention and its gradients have in common.

use meganeura_core::ops::AttentionDims;

use super::super::template::{KernelFile, Template};
use super::heads::{self, Side, vectors};

/// Most vectors of a slab: a part of a head that a row of threads sums up at a time.
const SLAB: usize = 16;
/// Rows of a tile where there are few workgroups, and where there are many.
pub(super) const FEW_ROWS: usize = 16;
const MANY_ROWS: usize = 32;
/// Workgroups from which on the larger tile is better: it reads the columns half as often.
const MANY_GROUPS: usize = 528;

/// Numbers of rows of a tile.
pub(super) const ROWS: [usize; 2] = [FEW_ROWS, MANY_ROWS];

/// The number of rows of a tile that is likely to be the best.
pub(super) fn usual_rows(dims: &AttentionDims, side: Side) -> usize {
    let groups = dims.batch * dims.heads * side.rows(dims).div_ceil(MANY_ROWS);
    match groups >= MANY_GROUPS {
        true => MANY_ROWS,
        false => FEW_ROWS,
    }
}

/// A kernel file for a call, with tiles of so many rows.
pub(super) fn template(file: KernelFile, dims: &AttentionDims, rows: usize) -> Template {
    let slab = vectors(dims).next_power_of_two().min(SLAB);
    heads::template(file, dims).sizes([("ROWS", rows), ("SLAB", slab)])
}

/// Workgroups: one for each tile of so many rows and each head of the queries.
pub(super) fn groups(dims: &AttentionDims, side: Side, rows: usize) -> usize {
    dims.batch * dims.heads * side.rows(dims).div_ceil(rows)
}
