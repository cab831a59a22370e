//! Tables of the matmul kernels, one for each instruction set.

use super::packed::{MAX_ROWS, PackedKernels, Rows};
use super::spec::{Kernel, Strides};
use super::tile::{Pieces, PiecesFn, Tile, TileRow};
use crate::simd::Portable;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};

/// Type of [`super::pack::panels`] for one instruction set.
pub(super) type PanelsFn = unsafe fn(*const f32, Strides, usize, usize, usize, *mut f32);
/// Type of [`super::vector::stream`] for one instruction set.
pub(super) type StreamFn = unsafe fn(*const f32, *const f32, usize, usize, usize, *mut f32);
/// Type of [`super::vector::dots`] for one instruction set.
pub(super) type DotsFn = unsafe fn(*const f32, *const f32, [usize; 3], [usize; 2], *mut f32);

/// All matmul kernels for one instruction set. Calling any of them requires a CPU that has the instruction set.
pub(super) struct KernelSet {
    pub kernel: Kernel,
    /// Number of columns in one vector register.
    pub lanes: usize,
    /// Number of columns of the widest tile: two vectors.
    pub tile_cols: usize,
    /// Kernels for an A with contiguous columns; `by_cols[r - 1]` computes `r` rows.
    pub by_cols: &'static [TileRow],
    /// Kernels for an A with contiguous rows; `by_rows[r - 1]` computes `r` rows.
    pub by_rows: &'static [TileRow],
    /// Kernels that also copy B to panels.
    pub copying: &'static [TileRow],
    /// Kernels for an A in [`Pieces`].
    pub pieces: &'static [TileRow<PiecesFn>],
    pub panels: PanelsFn,
    pub stream: StreamFn,
    /// Kernels of dot products with contiguous columns; `dots[r - 1]` computes `r` rows.
    pub dots: [DotsFn; 4],
    /// Kernels for weights in `f16`, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 and Q6, in this order.
    pub packed: [PackedKernels; 7],
}

impl KernelSet {
    /// Selects the kernel for a number of columns.
    fn for_columns<F: Copy>(&self, kernels: &TileRow<F>, cols: usize) -> F {
        if cols == self.tile_cols {
            kernels.full
        } else if cols > self.lanes {
            kernels.wide
        } else {
            kernels.narrow
        }
    }

    /// Runs the kernel for a tile. `kernels` has the tile's number of rows; the kernel is selected by its number of
    /// columns.
    ///
    /// # Safety
    ///
    /// As for [`super::tile::TileFn`].
    pub(super) unsafe fn run(&self, kernels: &TileRow, tile: &Tile) {
        // SAFETY: passed on to the caller.
        unsafe { self.for_columns(kernels, tile.cols)(tile) }
    }

    /// Runs the kernel for a tile like [`KernelSet::run`], with an A in [`Pieces`].
    ///
    /// # Safety
    ///
    /// As for [`PiecesFn`].
    pub(super) unsafe fn run_pieces(&self, kernels: &TileRow<PiecesFn>, tile: &Tile, pieces: &Pieces) {
        // SAFETY: passed on to the caller.
        unsafe { self.for_columns(kernels, tile.cols)(tile, pieces) }
    }
}

/// Number of vectors of columns in the widest tile. With two, every narrower tile has either two vectors or
/// one, the last of them masked.
const VECTORS: usize = 2;

/// Defines `pub static SET` in a module. It contains the generic kernels, compiled for one vector type and
/// instruction set, for tiles with the given numbers of rows.
macro_rules! kernel_set {
    ($module:ident, $kernel:expr, $vector:ty, [$(#[$feature:meta])?], [$($rows:literal)+]) => {
        pub(super) mod $module {
            use super::*;
            use crate::gemm::packed::kernels as packed;
            use crate::gemm::{pack, tile, vector};
            use crate::simd::Vector;

            $(#[$feature])?
            /// Compiles [`tile::multiply`] for the instruction set.
            ///
            /// # Safety
            ///
            /// As for [`tile::multiply`].
            unsafe fn multiply<
                const ROWS: usize,
                const COLS: usize,
                const MASKED: bool,
                const BY_ROWS: bool,
                const COPY: bool,
            >(
                operands: &tile::Tile,
            ) {
                // SAFETY: passed on to the caller.
                unsafe { tile::multiply::<$vector, ROWS, COLS, MASKED, BY_ROWS, COPY>(operands) }
            }

            /// Returns the kernels for one number of rows.
            const fn row<const ROWS: usize, const BY_ROWS: bool, const COPY: bool>() -> TileRow {
                TileRow {
                    full: multiply::<ROWS, VECTORS, false, BY_ROWS, COPY>,
                    wide: multiply::<ROWS, VECTORS, true, BY_ROWS, COPY>,
                    narrow: multiply::<ROWS, 1, true, BY_ROWS, COPY>,
                }
            }

            $(#[$feature])?
            /// Compiles [`tile::multiply_pieces`] for the instruction set.
            ///
            /// # Safety
            ///
            /// As for [`tile::multiply_pieces`].
            unsafe fn multiply_pieces<const ROWS: usize, const COLS: usize, const MASKED: bool>(
                operands: &tile::Tile,
                pieces: &tile::Pieces,
            ) {
                // SAFETY: passed on to the caller.
                unsafe { tile::multiply_pieces::<$vector, ROWS, COLS, MASKED>(operands, pieces) }
            }

            const fn pieces<const ROWS: usize>() -> TileRow<PiecesFn> {
                TileRow {
                    full: multiply_pieces::<ROWS, VECTORS, false>,
                    wide: multiply_pieces::<ROWS, VECTORS, true>,
                    narrow: multiply_pieces::<ROWS, 1, true>,
                }
            }

            $(#[$feature])?
            /// Compiles [`pack::panels`] for the instruction set.
            ///
            /// # Safety
            ///
            /// As for [`pack::panels`].
            unsafe fn panels(
                b: *const f32,
                strides: Strides,
                k: usize,
                cols: usize,
                width: usize,
                to: *mut f32,
            ) {
                // SAFETY: passed on to the caller.
                unsafe { pack::panels::<$vector>(b, strides, k, cols, width, to) }
            }

            $(#[$feature])?
            /// Compiles [`vector::stream`] for the instruction set.
            ///
            /// # Safety
            ///
            /// As for [`vector::stream`].
            unsafe fn stream(
                x: *const f32,
                matrix: *const f32,
                row: usize,
                k: usize,
                cols: usize,
                y: *mut f32,
            ) {
                // SAFETY: passed on to the caller.
                unsafe { vector::stream::<$vector>(x, matrix, row, k, cols, y) }
            }

            $(#[$feature])?
            /// Compiles [`vector::dots`] for the instruction set.
            ///
            /// # Safety
            ///
            /// As for [`vector::dots`].
            unsafe fn dots<const M: usize, const S: usize>(
                x: *const f32,
                matrix: *const f32,
                distances: [usize; 3],
                sizes: [usize; 2],
                y: *mut f32,
            ) {
                // SAFETY: passed on to the caller.
                unsafe { vector::dots::<$vector, M, S>(x, matrix, distances, sizes, y) }
            }

            $(#[$feature])?
            /// Compiles [`packed::matmul`] for the instruction set.
            ///
            /// # Safety
            ///
            /// As for [`packed::matmul`].
            unsafe fn matmul<F: packed::Expand, const M: usize, const C: usize>(
                x: *const f32,
                weights: Rows,
                cols: usize,
                y: *mut f32,
                y_row: usize,
            ) {
                // SAFETY: passed on to the caller.
                unsafe { packed::matmul::<$vector, F, M, C>(x, weights, cols, y, y_row) }
            }

            $(#[$feature])?
            /// Compiles [`packed::expand`] for the instruction set.
            ///
            /// # Safety
            ///
            /// As for [`packed::expand`].
            unsafe fn expand<F: packed::Expand>(weights: Rows, first: usize, len: usize, to: *mut f32) {
                // SAFETY: passed on to the caller.
                unsafe { packed::expand::<$vector, F>(weights, first, len, to) }
            }

            $(#[$feature])?
            /// Compiles [`packed::panels`] for the instruction set.
            ///
            /// # Safety
            ///
            /// As for [`packed::panels`].
            unsafe fn expanded<F: packed::Expand>(
                weights: Rows,
                steps: [usize; 2],
                cols: [usize; 2],
                to: *mut f32,
            ) {
                // SAFETY: passed on to the caller.
                unsafe { packed::panels::<$vector, F>(weights, steps, cols, to) }
            }

            const fn packed_kernels<F: packed::Expand>() -> PackedKernels {
                const { assert!(MAX_ROWS == 4) };
                PackedKernels {
                    matmul: [
                        matmul::<F, 1, 4>,
                        matmul::<F, 2, 2>,
                        matmul::<F, 3, 1>,
                        matmul::<F, 4, 1>,
                    ],
                    expand: expand::<F>,
                    panels: expanded::<F>,
                }
            }

            pub(crate) static SET: KernelSet = KernelSet {
                kernel: $kernel,
                lanes: <$vector>::LANES,
                tile_cols: VECTORS * <$vector>::LANES,
                by_cols: &[$(row::<$rows, false, false>()),+],
                by_rows: &[$(row::<$rows, true, false>()),+],
                copying: &[$(row::<$rows, true, true>()),+],
                pieces: &[$(pieces::<$rows>()),+],
                panels,
                stream,
                dots: [dots::<1, 4>, dots::<2, 2>, dots::<3, 2>, dots::<4, 2>],
                packed: [
                    packed_kernels::<packed::F16>(),
                    packed_kernels::<packed::Bytes>(),
                    packed_kernels::<packed::Nibbles>(),
                    packed_kernels::<packed::Affine<0>>(),
                    packed_kernels::<packed::FewBits<1, 16>>(),
                    packed_kernels::<packed::Affine<1>>(),
                    packed_kernels::<packed::Halves>(),
                ],
            };
        }
    };
}

// Registers limit the number of rows: they contain the sums, the vectors of B and one element of A. AVX-512
// and NEON have 32 registers, other instruction sets have 16. (With 12 rows of AVX-512, the compiler spills
// sums to memory if A's rows are contiguous.)
#[cfg(target_arch = "x86_64")]
kernel_set!(avx512, Kernel::Avx512, Avx512, [#[target_feature(enable = "avx512f")]],
    [1 2 3 4 5 6 7 8 9 10 11]);
#[cfg(target_arch = "x86_64")]
kernel_set!(avx2, Kernel::Avx2, Avx2, [#[target_feature(enable = "avx2,fma,f16c")]], [1 2 3 4 5 6]);
#[cfg(target_arch = "aarch64")]
kernel_set!(portable, Kernel::Portable, Portable, [], [1 2 3 4 5 6 7 8]);
#[cfg(not(target_arch = "aarch64"))]
kernel_set!(portable, Kernel::Portable, Portable, [], [1 2 3 4 5 6]);

impl Kernel {
    /// Returns the kernels that this CPU can run, the fastest first.
    pub fn available() -> impl Iterator<Item = Kernel> {
        [Kernel::Avx512, Kernel::Avx2, Kernel::Portable]
            .into_iter()
            .filter(|kernel| kernel.is_available())
    }

    /// Returns the fastest kernel that this CPU can run.
    pub fn detect() -> Kernel {
        Self::available().next().unwrap_or(Kernel::Portable)
    }

    #[cfg(target_arch = "x86_64")]
    fn is_available(self) -> bool {
        let avx2 =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        match self {
            Kernel::Avx512 => avx2 && is_x86_feature_detected!("avx512f"),
            Kernel::Avx2 => avx2,
            Kernel::Portable => true,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_available(self) -> bool {
        self == Kernel::Portable
    }

    /// Returns this kernel's functions. If the CPU does not support it, returns the functions of the best supported kernel.
    pub(super) fn set(self) -> &'static KernelSet {
        let kernel = if self.is_available() { self } else { Self::detect() };
        match kernel {
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512 => &avx512::SET,
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 => &avx2::SET,
            _ => &portable::SET,
        }
    }
}
