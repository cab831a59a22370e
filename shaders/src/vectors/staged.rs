//! Contractions of few rows with a large matrix, for models with billions of parameters. The rows are in shared
//! memory, and each row element is read once for several columns.

use meganeura_core::quantization::BLOCK;

use super::super::contraction::{Contraction, Sizes, packed_block};
use super::super::emit::Emitter;
use super::super::epilogue::SumConsumer;
use super::super::files;
use super::super::kernel::{CompileCx, Launch};
use super::super::packed::Packed;
use super::super::schedule::Schedule;
use super::super::template::Template;
use super::{SharedSums, THREADS, WIDTH, has_vectors, load_rows, vector};

/// Number of threads that share the sum of a column.
const LANES: usize = 32;
/// Number of columns of a tile for each column of a thread.
const GROUPS: usize = THREADS / LANES;
/// Possible numbers of columns of a thread, the largest first.
pub(super) const COLUMNS: [usize; 3] = [4, 2, 1];
/// Maximum number of sums of a thread.
const MAX_SUMS: usize = 16;
/// Minimum number of terms of a part. For fewer terms, copying the rows to shared memory takes longer than it saves.
const MIN_LENGTH: usize = 2048;
/// Minimum number of elements of the matrix.
const MIN_ELEMENTS: usize = 1 << 21;
/// Number of vectors of an unpacked matrix that a thread loads together.
const LOADED_VECTORS: usize = 8;
/// Minimum number of workgroups that occupies a device.
const ENOUGH_GROUPS: usize = 224;
/// With at least this number of workgroups, a workgroup computes several tiles, and copies the rows to shared memory only
/// once for all of them.
const MANY_GROUPS: usize = 896;
/// Maximum number of tiles of a workgroup.
const MAX_TILES: usize = 4;
/// Number of bytes of shared memory for sums.
const OTHER_BYTES: usize = 4096;

/// A launch of `kernels/matmul_rows_staged.wgsl`. A *unit* is the part of a column that a thread loads at a time: a
/// block of packed weights, or a vector of four terms.
pub(crate) struct StagedRowMatmul<'a> {
    contraction: &'a dyn Contraction,
    sizes: Sizes,
    packed: Option<Packed>,
    subgroups: bool,
    columns: usize,
    tiles: usize,
    parts: usize,
    /// Number of terms of a part.
    length: usize,
    /// Number of units of a row that are in shared memory at a time.
    chunk: usize,
    shared: Option<SharedSums>,
}

impl<'a> StagedRowMatmul<'a> {
    /// Returns the launch with `columns` columns per thread, or with the maximum that the number of workgroups
    /// allows. Returns `None` for operands or sizes that other kernels compute.
    pub(super) fn new(
        contraction: &'a dyn Contraction,
        cx: &CompileCx,
        parts: usize,
        columns: Option<usize>,
        shared: Option<SharedSums>,
    ) -> Option<Self> {
        let sizes = contraction.sizes();
        let Sizes { batch, m, n, k } = sizes;
        let packed = contraction.packed(1).filter(|_| contraction.is_along_k(1));
        let terms = if packed.is_some() { BLOCK } else { WIDTH };
        let length = k.div_ceil(parts.max(1)).next_multiple_of(terms);
        let is_computed = contraction.stored(0).is_none();
        let loads =
            (packed.is_some() || has_vectors(contraction, cx, 1)) && (is_computed || has_vectors(contraction, cx, 0));
        let is_large = n * k >= MIN_ELEMENTS && length >= MIN_LENGTH;
        if k == 0 || !k.is_multiple_of(terms) || !loads || !is_large {
            return None;
        }
        let stride = if packed.is_some() { BLOCK / WIDTH + 1 } else { 1 };
        let chunk = chunk(length / terms, stride * 4 * WIDTH * m, cx.features.workgroup_bytes())?;
        let tile_fits = |columns| shared.is_none_or(|shared| shared.fits(columns * GROUPS, n));
        let groups = |columns: usize| batch * parts * n.div_ceil(columns * GROUPS);
        let mut fitting = COLUMNS
            .into_iter()
            .filter(|&columns| m * columns <= MAX_SUMS && tile_fits(columns));
        let columns = fitting.find(|&fitting| match columns {
            Some(columns) => fitting == columns,
            None => fitting == 1 || groups(fitting) >= ENOUGH_GROUPS,
        })?;
        // If the rows do not fit into one chunk, they would be copied again for each tile.
        let tiles = if shared.is_some() || chunk * terms < length {
            1
        } else {
            (groups(columns) / MANY_GROUPS).clamp(1, MAX_TILES)
        };
        Some(StagedRowMatmul {
            contraction,
            sizes,
            packed,
            subgroups: cx.features.subgroup_size == Some(LANES as u32),
            columns,
            tiles,
            parts: k.div_ceil(length),
            length,
            chunk,
            shared,
        })
    }

    /// Returns the schedule of the contraction.
    pub(crate) fn schedule(&self) -> Schedule {
        Schedule::of("matmul_rows_staged")
            .with("columns", [self.columns])
            .with("tiles", [self.tiles])
            .with("split_k", [self.parts])
    }

    pub(crate) fn parts(&self) -> usize {
        self.parts
    }

    /// Compiles a launch that passes each sum to `sink`.
    pub(super) fn launch(&self, mut e: Emitter, sink: &SumConsumer) -> Result<Launch, String> {
        let Sizes { batch, m, n, k } = self.sizes;
        let before = std::mem::take(&mut e.code);
        let template = SharedSums::tell(self.shared, sink.finish(Template::new(files::MATMUL_ROWS_STAGED)));
        let is_computed = self.contraction.stored(0).is_none();
        let mut template = self
            .contraction
            .element_number(&mut e, template)?
            .insert("before", before)
            .sizes([("BATCH", batch), ("M", m), ("N", n), ("K", k)])
            .sizes([("COLUMNS", self.columns), ("TILES", self.tiles)])
            .sizes([("SPLIT_K", self.parts), ("LENGTH", self.length)])
            .sizes([("CHUNK", self.chunk), ("COUNT", self.count())])
            .sizes([("THREADS", THREADS), ("LANES", LANES)])
            .flag("COMPUTED", is_computed)
            .flag("SUBGROUPS", self.subgroups && m * self.columns <= LANES);
        template = match self.packed {
            Some(packed) => self.packed_loads(&mut e, template, packed)?,
            None => {
                let (b, b_value) = vector(self.contraction, &mut e, 1)?;
                template.returns("load_b", &b, &b_value)
            }
        };
        template = load_rows(self.contraction, &mut e, template, is_computed)?;
        let tiles = n.div_ceil(self.columns * GROUPS);
        e.module
            .finish_template(template, tiles.div_ceil(self.tiles) * batch * self.parts)
    }

    /// Returns the number of units of a column that a thread loads together. For a packed matrix, one block of each
    /// column is enough to keep the memory busy. More blocks need registers that other workgroups could use: on an
    /// H200, two blocks were 9 % slower and four blocks 50 % slower.
    fn count(&self) -> usize {
        let own = self.chunk.div_ceil(LANES);
        match self.packed {
            Some(_) => 1,
            None => (LOADED_VECTORS / self.columns).clamp(1, own),
        }
    }

    /// Adds the blocks of a packed matrix, their scales, and the code that expands and sums them to the kernel file.
    fn packed_loads(&self, e: &mut Emitter, template: Template, packed: Packed) -> Result<Template, String> {
        let block = |e: &mut Emitter| packed_block(e, self.contraction, "line", "k");
        let (low, low_value) = e.block(|e| {
            let block = block(e)?;
            packed.load_block_low(e, &block)
        })?;
        let (scales, scales_value) = e.block(|e| {
            let block = block(e)?;
            packed.load_block_scales(e, &block)
        })?;
        let mut template = template
            .flag("PACKED", true)
            .flag("SUMMED", packed.is_summed())
            .flag("HIGH", packed.has_high())
            .sizes([("UNIT", BLOCK / WIDTH), ("STRIDE", BLOCK / WIDTH + 1)])
            .returns("load_low", &low, &low_value)
            .returns("load_scales", &scales, &scales_value)
            .returns("expand", "", &packed.expand_block())
            .returns("scaled", "", &packed.scaled_block());
        if packed.has_high() {
            let (high, high_value) = e.block(|e| {
                let block = block(e)?;
                packed.load_block_high(e, &block)
            })?;
            template = template.returns("load_high", &high, &high_value);
        }
        Ok(template)
    }
}

/// Returns the number of units of a row, of `bytes` bytes each, that are in shared memory at a time: all units, or
/// equal chunks that are multiples of the lanes. Returns `None` if not even one unit per lane fits.
fn chunk(units: usize, bytes: usize, workgroup_bytes: usize) -> Option<usize> {
    let most = workgroup_bytes.saturating_sub(OTHER_BYTES) / bytes;
    if units <= most {
        return Some(units);
    }
    let chunks = (2..=units).find(|chunks| units.div_ceil(*chunks).next_multiple_of(LANES) <= most)?;
    Some(units.div_ceil(chunks).next_multiple_of(LANES))
}

#[cfg(test)]
mod tests {
    use super::chunk;

    #[test]
    fn rows_are_cut_into_chunks_of_about_the_same_size() {
        assert_eq!(chunk(128, 144, 32 << 10), Some(128));
        assert_eq!(chunk(448, 144, 32 << 10), Some(160));
        assert_eq!(chunk(448, 144, 48 << 10), Some(224));
        assert_eq!(chunk(128, 144, 16 << 10), Some(64));
        assert_eq!(chunk(1024, 16, 16 << 10), Some(512));
        assert_eq!(chunk(64, 144 * 16, 16 << 10), None);
    }
}
