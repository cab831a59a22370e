//! The specification of a matmul, and the operands of a call.

/// Distances between neighbouring elements of a matrix, in f32s. Any distance is allowed. Kernels are fast if one of
/// the two distances is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strides {
    /// Distance from element (i, j) to (i + 1, j).
    pub row: usize,
    /// Distance from element (i, j) to (i, j + 1).
    pub col: usize,
}

/// A matmul `C[m, n] = A[m, k] · B[k, n]`, or `C += A · B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmSpec {
    /// Number of rows of A and C.
    pub m: usize,
    /// Number of columns of B and C.
    pub n: usize,
    /// Number of columns of A and of rows of B. If it is 0, the product is all zeros.
    pub k: usize,
    /// Strides of A.
    pub a: Strides,
    /// Strides of B.
    pub b: Strides,
    /// Distance between rows of C, in f32s, at least `n`. C's columns are adjacent.
    pub ldc: usize,
    /// True to add the product to C, false to overwrite C.
    pub accumulate: bool,
}

/// An implementation of the inner loops of a matmul, by instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// x86-64 with AVX-512F, AVX2, FMA and F16C.
    Avx512,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// Any CPU.
    Portable,
}

/// A matrix that a call adds to the result: element (i, j) is at offset `i * row + j` from `start`.
#[derive(Clone, Copy, Debug)]
pub struct Addend {
    /// Address of element (0, 0); null to add nothing.
    pub start: *const f32,
    /// Distance between rows, in f32s. It is 0 if the same row is added to every row of the result.
    pub row: usize,
}

impl Addend {
    /// The empty addend, which adds nothing.
    pub const NONE: Addend = Addend {
        start: std::ptr::null(),
        row: 0,
    };

    /// Returns the address of element (i, j), or `None` without an addend. The address is valid if the addend is.
    pub(super) fn at(self, i: usize, j: usize) -> Option<*const f32> {
        (!self.start.is_null()).then(|| self.start.wrapping_add(i * self.row + j))
    }
}

/// The operands of a call, as [`super::Gemm::run_task`] specifies them.
#[derive(Clone, Copy)]
pub struct Operands {
    /// Address of A.
    pub a: *const f32,
    /// Address of B.
    pub b: *const f32,
    /// Address of C.
    pub c: *mut f32,
    /// Matrix added to the result while C is written. Ignored with [`GemmSpec::accumulate`].
    pub addend: Addend,
    /// Scratch that all tasks share.
    pub shared: *mut f32,
    /// Scratch of the worker that runs the task.
    pub worker: *mut f32,
}
