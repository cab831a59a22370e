//! Winograd convolutions: 3x3 kernels with stride 1 by minimal filtering, F(4x4, 3x3) of Lavin and Gray, "Fast
//! Algorithms for Convolutional Neural Networks", 2015.
//!
//! A tile of 4x4 positions of the result follows from 6x6 positions of an image by 36 products for each pair of
//! channels, instead of 144 for the sum over taps. Let `d` be a tile of the image and `g` a kernel. Then the result
//! is `A^T ((G g G^T) * (B^T d B)) A`, summed over the input channels. For each of the 36 elements, this sum is a
//! matmul of tiles by channels. Kernels are transformed panel by panel while they are packed. They are thus read
//! once and sequentially. A training step changes its kernels, and its convolutions are as fast as those of inference.

mod transforms;

use std::ops::Range;
use std::sync::Arc;

use meganeura_core::ops::Conv2dDims;

use super::forward::{Epilogue, OptionalEpilogue};
use super::sizes::{FLOPS_PER_NANO, places};
use crate::gemm::{Blocks, LeftBlock, Strides, Target};
use crate::kernel::{Compiled, Kernel, RunCx, Task};
use crate::memory::{View, aligned};
use crate::share::share;
use crate::vmath::Level;
use transforms::{IN, LANES, OUT, Planes, transform_products, transform_tile, transform_weights};

/// Number of elements of an image tile. Each of them has a separate matmul.
const ELEMENTS: usize = IN * IN;
/// Maximum number of tiles in a block. Their products with a panel of weights fill a quarter of a 1 MiB second-level
/// cache.
const BLOCK: usize = 56;
/// Maximum number of weights of a panel that are in scratch at a time, for each of the [`ELEMENTS`]. They fill
/// another quarter of the cache.
const PANEL_LEN: usize = 2048;
/// Desired number of tasks of a convolution with few tiles.
const WANTED_TASKS: usize = 8;
/// Minimum number of blocks for which each task transforms its own tiles.
const MANY_BLOCKS: usize = 4;
/// Costs of the transforms, in vector multiplications and additions: of a channel of an image tile, of a channel of a
/// result tile, and of a pair of channels (a kernel).
const INPUT_COST: usize = 170;
const OUTPUT_COST: usize = 120;
const WEIGHT_COST: usize = 120;

/// Returns true if Winograd tiles are faster for a channels-last convolution.
pub(super) fn applies(d: &Conv2dDims) -> bool {
    let shape = d.kernel == [3, 3] && d.stride == [1, 1] && d.dilation == [1, 1] && d.groups == 1;
    if !shape || !d.c.is_multiple_of(LANES) || !d.o.is_multiple_of(LANES) || d.n == 0 {
        return false;
    }
    let tiles = Tiles::new(d).count();
    let blocks = tiles.div_ceil(BLOCK);
    let pairs = d.c * d.o;
    let by_tiles = tiles * (ELEMENTS * pairs + INPUT_COST * d.c + OUTPUT_COST * d.o) + blocks * WEIGHT_COST * pairs;
    let by_taps = places(d) * 9 * pairs;
    by_tiles + by_tiles / 4 < by_taps
}

/// The tiles of a result, ordered by image, then row by row.
#[derive(Clone, Copy)]
struct Tiles {
    dims: Conv2dDims,
    /// Number of rows, and number of columns, of tiles in an image.
    grid: [usize; 2],
}

impl Tiles {
    fn new(d: &Conv2dDims) -> Self {
        Tiles {
            dims: *d,
            grid: d.output.map(|size| size.div_ceil(OUT)),
        }
    }

    fn count(&self) -> usize {
        self.dims.n * self.grid[0] * self.grid[1]
    }

    /// Returns the image of a tile, and the row and column of the tile's first position in the result of the image.
    fn place(&self, tile: usize) -> (usize, [usize; 2]) {
        let row = tile / self.grid[1];
        (
            row / self.grid[0],
            [row % self.grid[0] * OUT, tile % self.grid[1] * OUT],
        )
    }

    /// Returns the index of a tile's first position in the whole result, and the number of rows and of columns of the
    /// tile that are inside the image.
    fn inside(&self, tile: usize) -> (usize, [usize; 2]) {
        let (image, [top, left]) = self.place(tile);
        let [rows, columns] = self.dims.output;
        (
            (image * rows + top) * columns + left,
            [OUT.min(rows - top), OUT.min(columns - left)],
        )
    }
}

/// Compiles a convolution `y` of `[x, w]` with its epilogue. The sizes must be ones that [`applies`] accepts.
pub(super) fn convolution(
    level: Level,
    dims: &Conv2dDims,
    [x, w]: [View<f32>; 2],
    y: View<f32>,
    epilogue: Option<Arc<dyn Epilogue>>,
) -> Compiled {
    let tiles = Tiles::new(dims);
    let multiply = Blocks::detect();
    let width = multiply.panel_cols().next_multiple_of(LANES);
    let panels = dims.o.div_ceil(width);
    let blocks = tiles.count().div_ceil(BLOCK);
    let chunk = (PANEL_LEN / width / LANES * LANES).min(dims.c);
    let convolution = Arc::new(Winograd {
        level,
        tiles,
        multiply,
        width,
        blocks,
        groups: WANTED_TASKS.div_ceil(blocks).clamp(1, panels),
        chunk,
        x,
        w,
        y,
        after: OptionalEpilogue(epilogue),
    });
    let nanos = tiles.count() as u64 * (2 * ELEMENTS * dims.c * dims.o) as u64 / FLOPS_PER_NANO;
    let nanos = nanos + convolution.after.nanos();
    let tiles_len = |count: usize| ELEMENTS * convolution.plane(count);
    let (shared, private_tiles) = if blocks < MANY_BLOCKS {
        (tiles_len(tiles.count()), 0)
    } else {
        (0, tiles_len(BLOCK))
    };
    let private = private_tiles + convolution.scratch();
    let mut phases: Vec<Box<dyn Kernel>> = Vec::new();
    if shared > 0 {
        let own = convolution.clone();
        // Each task has some tiles, about as much work as some rows of a matmul.
        let tasks = tiles.count().min(WANTED_TASKS);
        phases.push(Box::new(Task {
            tasks,
            // For all sizes, this is about the same fraction of the total.
            nanos: nanos / 8,
            body: move |task: usize, cx: &RunCx| {
                let count = own.tiles.count();
                // SAFETY: this dispatch does not write any operand. The shared scratch has room for all tiles, and
                // only this task writes the tiles of its share.
                unsafe {
                    let all = Planes {
                        start: cx.shared,
                        step: own.plane(count),
                    };
                    own.transform(share(count, tasks, task), 0, all);
                }
            },
        }));
    }
    let own = convolution.clone();
    phases.push(Box::new(Task {
        tasks: own.blocks * own.groups,
        nanos,
        body: move |task: usize, cx: &RunCx| {
            let count = own.tiles.count();
            let block = share(count, own.blocks, task / own.groups);
            // SAFETY: as above. Private scratch has the size requested below, and only this task uses it. Only this
            // task writes the positions of its tiles and the channels of its panels of the result.
            unsafe {
                let transformed = if shared > 0 {
                    let all = Planes {
                        start: cx.shared,
                        step: own.plane(count),
                    };
                    all.behind(block.start * own.tiles.dims.c)
                } else {
                    let own_tiles = Planes {
                        start: cx.private,
                        step: own.plane(BLOCK),
                    };
                    own.transform(block.clone(), block.start, own_tiles);
                    own_tiles
                };
                own.multiply(block, task % own.groups, transformed, cx.private.add(private_tiles));
            }
        },
    }));
    Compiled {
        phases,
        shared,
        private,
    }
}

struct Winograd {
    level: Level,
    tiles: Tiles,
    multiply: Blocks,
    /// Number of output channels of a panel.
    width: usize,
    /// Number of blocks of tiles, and of groups of panels. A task processes one block with one group.
    blocks: usize,
    groups: usize,
    /// Number of input channels that are multiplied at a time.
    chunk: usize,
    x: View<f32>,
    w: View<f32>,
    y: View<f32>,
    after: OptionalEpilogue,
}

impl Winograd {
    /// Returns the distance between the matrices of two elements of `tiles` transformed tiles. It is an odd number of
    /// cache lines, so that the matrices do not share cache sets.
    fn plane(&self, tiles: usize) -> usize {
        odd_lines(tiles * self.tiles.dims.c)
    }

    /// Returns the distance between the matrices of two elements of a transformed panel of weights.
    /// [`Self::products_plane`] is this distance for the products with a block of tiles.
    fn weights_plane(&self) -> usize {
        odd_lines(self.chunk * self.width)
    }

    fn products_plane(&self) -> usize {
        odd_lines(BLOCK * self.width)
    }

    /// Returns the number of `f32`s of a task's scratch: weights, products, and the epilogue's scratch.
    fn scratch(&self) -> usize {
        ELEMENTS * (self.weights_plane() + self.products_plane()) + self.after.scratch()
    }

    /// Transforms tiles to rows of the matrices `to`. Tile `first` has row 0.
    ///
    /// # Safety
    /// The matrices `to` must have room for the rows, and no other code may access these rows. The image must not be
    /// written meanwhile.
    unsafe fn transform(&self, tiles: Range<usize>, first: usize, to: Planes) {
        let d = &self.tiles.dims;
        // SAFETY: forwarded.
        let x = unsafe { self.x.all() };
        for tile in tiles {
            let (image, [row, column]) = self.tiles.place(tile);
            let places: [[Option<usize>; IN]; IN] = std::array::from_fn(|i| {
                std::array::from_fn(|j| {
                    let at = [
                        (row + i).checked_sub(d.padding[0])?,
                        (column + j).checked_sub(d.padding[1])?,
                    ];
                    let inside = at[0] < d.input[0] && at[1] < d.input[1];
                    inside.then(|| ((image * d.input[0] + at[0]) * d.input[1] + at[1]) * d.c)
                })
            });
            // SAFETY: only the caller uses these rows, by this function's contract.
            unsafe { transform_tile(self.level, x, &places, d.c, to.behind((tile - first) * d.c)) };
        }
    }

    /// Multiplies a block of tiles by a group of panels, and writes the positions of the result.
    ///
    /// # Safety
    /// `tiles` must be the transformed tiles of the block. No other code may access their positions of the result in
    /// the channels of the group. The scratch must have the size [`Self::scratch`], and no other code may access it.
    unsafe fn multiply(&self, block: Range<usize>, group: usize, tiles: Planes, scratch: *mut f32) {
        let d = &self.tiles.dims;
        let panels = share(d.o.div_ceil(self.width), self.groups, group);
        // SAFETY: the parts of the scratch have the requested lengths. Channels and tiles are within the operands.
        unsafe {
            let weights = Planes {
                start: scratch,
                step: self.weights_plane(),
            };
            let products = Planes {
                start: weights.of(ELEMENTS),
                step: self.products_plane(),
            };
            let epilogue = products.of(ELEMENTS);
            for panel in panels.clone() {
                let columns = panel * self.width..((panel + 1) * self.width).min(d.o);
                for first in (0..d.c).step_by(self.chunk) {
                    let channels = first..d.c.min(first + self.chunk);
                    let (k, w, sizes) = (channels.len(), self.w.all(), [d.c, d.o]);
                    transform_weights(self.level, w, sizes, channels, columns.clone(), self.width, weights);
                    for element in 0..ELEMENTS {
                        let a = LeftBlock {
                            start: tiles.of(element).add(first),
                            strides: Strides { row: d.c, col: 1 },
                        };
                        let b = self.multiply.in_place(weights.of(element), self.width);
                        let c = Target {
                            start: products.of(element),
                            row: self.width,
                            add: first > 0,
                        };
                        self.multiply.multiply(a, b, c, [block.len(), columns.len(), k]);
                    }
                }
                for (row, tile) in block.clone().enumerate() {
                    let (place, size) = self.tiles.inside(tile);
                    let to = self.y.as_ptr().add(place * d.o + columns.start);
                    let from = products.behind(row * self.width);
                    let steps = [d.output[1] * d.o, d.o];
                    transform_products(self.level, from, columns.len(), to, steps, size);
                }
            }
            if self.after.is_nothing() {
                return;
            }
            let channels = panels.start * self.width..(panels.end * self.width).min(d.o);
            for tile in block {
                let (first, [rows, columns]) = self.tiles.inside(tile);
                for place in (0..rows).map(|row| first + row * d.output[1]) {
                    self.after
                        .run_channels(place..place + columns, &channels, d.o, epilogue);
                }
            }
        }
    }
}

/// Rounds a number of `f32`s up to an odd number of cache lines.
fn odd_lines(len: usize) -> usize {
    let lines = len.div_ceil(aligned(1));
    (lines + 1 - lines % 2) * aligned(1)
}
