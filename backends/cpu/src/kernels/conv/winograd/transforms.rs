//! The Winograd transforms of tiles, kernels and products, for a vector of channels at a time.

use std::ops::Range;

use crate::simd::prefetch;
use crate::vmath::{Isa, Level, mul_add, multiversion};

/// Number of positions of a tile along an axis: in the result (`OUT`) and in the image (`IN`).
pub(super) const OUT: usize = 4;
pub(super) const IN: usize = 6;
/// Number of channels that are transformed together.
pub(super) const LANES: usize = 16;
/// Prefetch distance of weights, in input channels.
const AHEAD: usize = 6;

/// Values of neighbouring channels.
type Lanes = [f32; LANES];

/// Matrices, one for each of the 6x6 elements of a tile, in one contiguous range of memory.
#[derive(Clone, Copy)]
pub(super) struct Planes {
    pub(super) start: *mut f32,
    /// Distance between the starts of two matrices, in `f32`s.
    pub(super) step: usize,
}

impl Planes {
    /// Returns the same matrices from an offset in `f32`s on, that is, from a later tile or channel on.
    ///
    /// # Safety
    /// The offset must be within each matrix.
    pub(super) unsafe fn behind(self, offset: usize) -> Self {
        Planes {
            // SAFETY: forwarded.
            start: unsafe { self.start.add(offset) },
            ..self
        }
    }

    /// Returns the address of an element's matrix.
    ///
    /// # Safety
    /// The memory must contain all matrices.
    pub(super) unsafe fn of(self, element: usize) -> *mut f32 {
        // SAFETY: forwarded.
        unsafe { self.start.add(element * self.step) }
    }

    /// Reads a vector of channels from the matrix of element `(i, j)`.
    ///
    /// # Safety
    /// The matrix must have a vector at this offset, and no code may write it meanwhile.
    #[inline(always)]
    unsafe fn read(self, [i, j]: [usize; 2], at: usize) -> Lanes {
        // SAFETY: forwarded.
        unsafe { self.of(i * IN + j).add(at).cast::<Lanes>().read_unaligned() }
    }

    /// Writes a vector of channels to the matrix of element `(i, j)`.
    ///
    /// # Safety
    /// The matrix must have a vector at this offset, which no other code accesses meanwhile.
    #[inline(always)]
    unsafe fn write(self, [i, j]: [usize; 2], at: usize, lanes: &Lanes) {
        // SAFETY: forwarded.
        unsafe { self.of(i * IN + j).add(at).cast::<Lanes>().write_unaligned(*lanes) };
    }
}

/// Returns element `i` of each column.
///
/// Here and below, arrays are filled by loops: closures of `from_fn` are not always inlined, and would then be compiled
/// without the caller's instruction set.
#[inline(always)]
fn across<const M: usize, const N: usize>(columns: &[[Lanes; M]; N], i: usize) -> [Lanes; N] {
    let mut row = [[0.0; LANES]; N];
    for (lanes, column) in row.iter_mut().zip(columns) {
        *lanes = column[i];
    }
    row
}

/// The transform matrices follow from the points 0, A, -A, B, -B and infinity, at which polynomials are multiplied.
/// With the points 1 and 2 of the paper, the largest error is four times as large as that of a sum over taps. With
/// these points, both errors are equal. The powers of A and B are exact in `f32`.
const A: f32 = 0.625;
const B: f32 = 1.5;
const A2: f32 = A * A;
const B2: f32 = B * B;

/// Multiplies `B^T` by six vectors.
#[inline(always)]
fn input_lanes<const FMA: bool>(d: [Lanes; IN]) -> [Lanes; IN] {
    let mut out = [[0.0; LANES]; IN];
    for l in 0..LANES {
        let d = [d[0][l], d[1][l], d[2][l], d[3][l], d[4][l], d[5][l]];
        let (near, near_odd) = (mul_add::<FMA>(-B2, d[2], d[4]), mul_add::<FMA>(-B2, d[1], d[3]));
        let (far, far_odd) = (mul_add::<FMA>(-A2, d[2], d[4]), mul_add::<FMA>(-A2, d[1], d[3]));
        out[0][l] = mul_add::<FMA>(A2 * B2, d[0], mul_add::<FMA>(-(A2 + B2), d[2], d[4]));
        out[1][l] = mul_add::<FMA>(A, near_odd, near);
        out[2][l] = mul_add::<FMA>(-A, near_odd, near);
        out[3][l] = mul_add::<FMA>(B, far_odd, far);
        out[4][l] = mul_add::<FMA>(-B, far_odd, far);
        out[5][l] = mul_add::<FMA>(A2 * B2, d[1], mul_add::<FMA>(-(A2 + B2), d[3], d[5]));
    }
    out
}

/// Multiplies `G` by three vectors.
#[inline(always)]
fn weight_lanes<const FMA: bool>(g: [Lanes; 3]) -> [Lanes; IN] {
    const NEAR: f32 = 1.0 / (2.0 * A2 * (A2 - B2));
    const FAR: f32 = 1.0 / (2.0 * B2 * (B2 - A2));
    let mut out = [[0.0; LANES]; IN];
    for l in 0..LANES {
        let g = [g[0][l], g[1][l], g[2][l]];
        let near = NEAR * mul_add::<FMA>(A2, g[2], g[0]);
        let far = FAR * mul_add::<FMA>(B2, g[2], g[0]);
        out[0][l] = 1.0 / (A2 * B2) * g[0];
        out[1][l] = mul_add::<FMA>(NEAR * A, g[1], near);
        out[2][l] = mul_add::<FMA>(-NEAR * A, g[1], near);
        out[3][l] = mul_add::<FMA>(FAR * B, g[1], far);
        out[4][l] = mul_add::<FMA>(-FAR * B, g[1], far);
        out[5][l] = g[2];
    }
    out
}

/// Multiplies `A^T` by six vectors.
#[inline(always)]
fn output_lanes<const FMA: bool>(m: [Lanes; IN]) -> [Lanes; OUT] {
    let mut out = [[0.0; LANES]; OUT];
    for l in 0..LANES {
        let m = [m[0][l], m[1][l], m[2][l], m[3][l], m[4][l], m[5][l]];
        let (near, near_odd) = (m[1] + m[2], m[1] - m[2]);
        let (far, far_odd) = (m[3] + m[4], m[3] - m[4]);
        out[0][l] = m[0] + near + far;
        out[1][l] = mul_add::<FMA>(A, near_odd, B * far_odd);
        out[2][l] = mul_add::<FMA>(A2, near, B2 * far);
        out[3][l] = mul_add::<FMA>(A2 * A, near_odd, mul_add::<FMA>(B2 * B, far_odd, m[5]));
    }
    out
}

multiversion! {
    /// Computes `B^T d B` of a tile for all channels, and writes one row of each matrix. For each element of the
    /// tile, `places` contains the index of `channels` elements of `x`, or `None` in the padding. The caller
    /// guarantees that indices and matrices are valid.
    pub(super) fn transform_tile(x: &[f32], places: &[[Option<usize>; IN]; IN], channels: usize, to: Planes)
        = transform_tile_body;
}

#[inline(always)]
fn transform_tile_body<const FMA: bool>(x: &[f32], places: &[[Option<usize>; IN]; IN], channels: usize, to: Planes) {
    for first in (0..channels).step_by(LANES) {
        let mut columns = [[[0.0; LANES]; IN]; IN];
        for (j, column) in columns.iter_mut().enumerate() {
            for (lanes, places) in column.iter_mut().zip(places) {
                if let Some(at) = places[j] {
                    // SAFETY: a position of the image has `channels` elements, a multiple of LANES.
                    *lanes = unsafe { x.as_ptr().add(at + first).cast::<Lanes>().read_unaligned() };
                }
            }
            *column = input_lanes::<FMA>(*column);
        }
        for i in 0..IN {
            for (j, lanes) in input_lanes::<FMA>(across(&columns, i)).iter().enumerate() {
                // SAFETY: a row has room for all channels; the caller guarantees this.
                unsafe { to.write([i, j], first, lanes) };
            }
        }
    }
}

multiversion! {
    /// Computes `G g G^T` of the kernels of some input and output channels. The weights `w` are `[3, 3, inputs,
    /// outputs]`. Writes a row of `width` elements to each matrix for each input channel, with zeros after the last
    /// output channel. The caller guarantees that the matrices are valid.
    pub(super) fn transform_weights(
        w: &[f32],
        sizes: [usize; 2],
        channels: Range<usize>,
        columns: Range<usize>,
        width: usize,
        to: Planes,
    ) = transform_weights_body;
}

#[inline(always)]
fn transform_weights_body<const FMA: bool>(
    w: &[f32],
    [inputs, outputs]: [usize; 2],
    channels: Range<usize>,
    columns: Range<usize>,
    width: usize,
    to: Planes,
) {
    assert!(w.len() == 9 * inputs * outputs && channels.end <= inputs && columns.end <= outputs);
    for (row, channel) in channels.enumerate() {
        // The nine rows are far apart from each other, so the hardware prefetcher cannot predict them.
        let ahead = (channel + AHEAD).min(inputs - 1);
        for tap in 0..9 {
            let at = (tap * inputs + ahead) * outputs + columns.start;
            prefetch(w.as_ptr().wrapping_add(at), columns.len());
        }
        for first in (0..width).step_by(LANES) {
            let mut taps = [[[0.0; LANES]; IN]; 3];
            for (j, column) in taps.iter_mut().enumerate().filter(|_| first < columns.len()) {
                let mut kernel = [[0.0; LANES]; 3];
                for (i, lanes) in kernel.iter_mut().enumerate() {
                    let at = ((i * 3 + j) * inputs + channel) * outputs + columns.start + first;
                    // SAFETY: `columns` has a multiple of LANES elements and was checked above, as the channel was.
                    *lanes = unsafe { w.as_ptr().add(at).cast::<Lanes>().read_unaligned() };
                }
                *column = weight_lanes::<FMA>(kernel);
            }
            for i in 0..IN {
                for (j, lanes) in weight_lanes::<FMA>(across(&taps, i)).iter().enumerate() {
                    // SAFETY: there is room for a row of `width` elements for each of the channels; the caller
                    // guarantees this.
                    unsafe { to.write([i, j], row * width + first, lanes) };
                }
            }
        }
    }
}

multiversion! {
    /// Computes `A^T m A` of the products of a tile with `channels` output channels. Only `size` rows and columns of
    /// the tile are inside the result; `steps` are the distances between them. The caller guarantees that products
    /// and positions are valid.
    pub(super) fn transform_products(
        from: Planes,
        channels: usize,
        to: *mut f32,
        steps: [usize; 2],
        size: [usize; 2],
    ) = transform_products_body;
}

#[inline(always)]
fn transform_products_body<const FMA: bool>(
    from: Planes,
    channels: usize,
    to: *mut f32,
    steps: [usize; 2],
    size: [usize; 2],
) {
    for first in (0..channels).step_by(LANES) {
        let mut columns = [[[0.0; LANES]; OUT]; IN];
        for (j, column) in columns.iter_mut().enumerate() {
            let mut elements = [[0.0; LANES]; IN];
            for (i, lanes) in elements.iter_mut().enumerate() {
                // SAFETY: a row has the products of all channels, a multiple of LANES; the caller guarantees this.
                *lanes = unsafe { from.read([i, j], first) };
            }
            *column = output_lanes::<FMA>(elements);
        }
        for i in 0..size[0] {
            let row = output_lanes::<FMA>(across(&columns, i));
            for (j, lanes) in row.iter().enumerate().take(size[1]) {
                // SAFETY: the caller guarantees that only it accesses `size` positions of the result.
                unsafe {
                    to.add(i * steps[0] + j * steps[1] + first)
                        .cast::<Lanes>()
                        .write_unaligned(*lanes);
                }
            }
        }
    }
}
