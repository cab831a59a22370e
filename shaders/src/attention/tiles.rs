//! Tiles of rows (queries or keys) without cooperative matrices, for the kernel files of attention and its gradients.

use meganeura_core::ops::AttentionDims;

use super::super::template::{KernelFile, Template};
use super::heads::{self, TiledOperand, vectors};

/// Maximum number of vectors of a slab. A slab is the part of a head that the threads of a row accumulate at a time.
const SLAB: usize = 16;
/// Number of rows of a tile: the smaller number for few workgroups, the larger number for many.
pub(super) const FEW_ROWS: usize = 16;
const MANY_ROWS: usize = 32;
/// Minimum number of workgroups for the larger tile, which reads the columns half as often.
const MANY_GROUPS: usize = 528;

/// Possible numbers of rows of a tile.
pub(super) const ROWS: [usize; 2] = [FEW_ROWS, MANY_ROWS];

/// Returns the number of rows of a tile that is probably the fastest.
pub(super) fn usual_rows(dims: &AttentionDims, side: TiledOperand) -> usize {
    let groups = dims.batch * dims.heads * side.rows(dims).div_ceil(MANY_ROWS);
    if groups >= MANY_GROUPS { MANY_ROWS } else { FEW_ROWS }
}

/// Creates a template of a kernel file for a call, with tiles of `rows` rows.
pub(super) fn template(file: KernelFile, dims: &AttentionDims, rows: usize) -> Template {
    let slab = vectors(dims).next_power_of_two().min(SLAB);
    heads::template(file, dims).sizes([("ROWS", rows), ("SLAB", slab)])
}

/// Returns the number of workgroups: one for each tile of `rows` rows and each query head.
pub(super) fn groups(dims: &AttentionDims, side: TiledOperand, rows: usize) -> usize {
    dims.batch * dims.heads * side.rows(dims).div_ceil(rows)
}
