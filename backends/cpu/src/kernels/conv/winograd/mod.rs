//! Convolutions of 3x3 with stride 1 by minimal filtering: F(4x4, 3x3) of Lavin and Gray, "Fast Algorithms for Convolutional
//! Neural Networks", 2015.
//!
//! A tile of 4x4 places of the result follows from 6x6 places of an image by 36 products for each pair of channels, where the
//! sum over taps takes 144. With `d` a tile of the image and `g` a kernel, it is `A^T ((G g G^T) * (B^T d B)) A`, summed over the
//! input channels; for each of the 36 elements that sum is a matmul of tiles by channels. Kernels are transformed panel by panel
//! while they are packed, so that they are read once, in their own order, and a kernel that a step has just written costs no more.

mod transforms;

use std::ops::Range;
use std::sync::Arc;

use meganeura_core::ops::Conv2dDims;

use super::forward::{After, Epilogue};
use super::sizes::{FLOPS_PER_NANO, places};
use crate::gemm::{Blocks, Left, Strides, Target};
use crate::kernel::{Compiled, Kernel, RunCx, Task};
use crate::memory::{View, aligned};
use crate::share::share;
use crate::vmath::Level;
use transforms::{IN, LANES, OUT, Planes, transform_products, transform_tile, transform_weights};

/// Elements of a tile of the image, each of which has a matmul of its own.
const ELEMENTS: usize = IN * IN;
/// Tiles of a block, at most: their products with a panel of weights are a quarter of a second-level cache of 1 MiB.
const BLOCK: usize = 56;
/// Weights of a panel that are there at a time, for each element: another quarter.
const PANEL_LEN: usize = 2048;
/// Tasks that a convolution is cut into if its tiles do not yield as many.
const WANTED_TASKS: usize = 8;
/// With at least so many blocks, each task transforms the tiles of its own.
const MANY_BLOCKS: usize = 4;
/// Multiplications and additions, in vectors, that transforms take for a channel of a tile of the image and of the result, and
/// for a pair of channels.
const INPUT_COST: usize = 170;
const OUTPUT_COST: usize = 120;
const WEIGHT_COST: usize = 120;

/// Whether tiles are the faster way for a convolution of images with channels last.
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

/// The tiles of a result, row by row and image by image.
#[derive(Clone, Copy)]
struct Tiles {
    dims: Conv2dDims,
    /// Rows and columns of tiles of an image.
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

    /// The image of a tile, and the first place of it in the result.
    fn place(&self, tile: usize) -> (usize, [usize; 2]) {
        let row = tile / self.grid[1];
        (
            row / self.grid[0],
            [row % self.grid[0] * OUT, tile % self.grid[1] * OUT],
        )
    }

    /// The number of a tile's first place among all of the result, and how many rows and columns of the tile are inside.
    fn inside(&self, tile: usize) -> (usize, [usize; 2]) {
        let (image, [top, left]) = self.place(tile);
        let [rows, columns] = self.dims.output;
        (
            (image * rows + top) * columns + left,
            [OUT.min(rows - top), OUT.min(columns - left)],
        )
    }
}

/// A convolution `y` of `[x, w]`, and what follows it. [`applies`] says of which sizes.
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
        after: After(epilogue),
    });
    let nanos = tiles.count() as u64 * (2 * ELEMENTS * dims.c * dims.o) as u64 / FLOPS_PER_NANO;
    let nanos = nanos + convolution.after.nanos();
    let tiles_len = |count: usize| ELEMENTS * convolution.plane(count);
    let (shared, private_tiles) = match blocks < MANY_BLOCKS {
        true => (tiles_len(tiles.count()), 0),
        false => (0, tiles_len(BLOCK)),
    };
    let private = private_tiles + convolution.scratch();
    let mut phases: Vec<Box<dyn Kernel>> = Vec::new();
    if shared > 0 {
        let own = convolution.clone();
        // A task for some tiles, which are as much work as some rows of a matmul.
        let tasks = tiles.count().min(WANTED_TASKS);
        phases.push(Box::new(Task {
            tasks,
            // A part of the whole that is about the same for all sizes.
            nanos: nanos / 8,
            body: move |task: usize, cx: &RunCx| {
                let count = own.tiles.count();
                // SAFETY: no operand is written by this dispatch; the shared scratch has room for all tiles, and this task alone
                // writes those of its share.
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
            // SAFETY: as above; private scratch is as long as asked for below, and the task's own. This task alone writes the
            // places of its tiles and the channels of its panels of the result.
            unsafe {
                let transformed = match shared > 0 {
                    true => {
                        let all = Planes {
                            start: cx.shared,
                            step: own.plane(count),
                        };
                        all.behind(block.start * own.tiles.dims.c)
                    }
                    false => {
                        let own_tiles = Planes {
                            start: cx.private,
                            step: own.plane(BLOCK),
                        };
                        own.transform(block.clone(), block.start, own_tiles);
                        own_tiles
                    }
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
    /// Output channels of a panel.
    width: usize,
    /// Blocks of tiles, and groups of panels: a task has one of each.
    blocks: usize,
    groups: usize,
    /// Input channels that are multiplied at a time.
    chunk: usize,
    x: View<f32>,
    w: View<f32>,
    y: View<f32>,
    after: After,
}

impl Winograd {
    /// Distance between elements of so many transformed tiles: an odd number of cache lines, so that they do not share sets.
    fn plane(&self, tiles: usize) -> usize {
        odd_lines(tiles * self.tiles.dims.c)
    }

    /// The same of a panel of weights, and of its products with a block of tiles.
    fn weights_plane(&self) -> usize {
        odd_lines(self.chunk * self.width)
    }

    fn products_plane(&self) -> usize {
        odd_lines(BLOCK * self.width)
    }

    /// `f32`s of scratch of a task: weights, products, and what the epilogue needs.
    fn scratch(&self) -> usize {
        ELEMENTS * (self.weights_plane() + self.products_plane()) + self.after.scratch()
    }

    /// Transforms tiles to rows, of which the first one is that of tile `first`.
    ///
    /// # Safety
    /// Matrices `to` have room for the rows, and nobody else touches these. Nobody writes the image.
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
            // SAFETY: rows of the caller's, as it says.
            unsafe { transform_tile(self.level, x, &places, d.c, to.behind((tile - first) * d.c)) };
        }
    }

    /// Multiplies a block of tiles with a group of panels and writes the places of the result.
    ///
    /// # Safety
    /// `tiles` are those of the block, transformed; nobody else touches their places of the result in the group's channels, and
    /// the scratch is as long as [`Self::scratch`] and the caller's own.
    unsafe fn multiply(&self, block: Range<usize>, group: usize, tiles: Planes, scratch: *mut f32) {
        let d = &self.tiles.dims;
        let panels = share(d.o.div_ceil(self.width), self.groups, group);
        // SAFETY: parts of the scratch, of lengths that it was asked for with; channels and tiles are those of the operands.
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
                        let a = Left {
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

/// At least so many `f32`s, in an odd number of cache lines.
fn odd_lines(len: usize) -> usize {
    let lines = len.div_ceil(aligned(1));
    (lines + 1 - lines % 2) * aligned(1)
}
