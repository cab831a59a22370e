//! What to multiply, and what a call gets.

/// Distances, in f32s, between neighbours in a matrix. Any will do; kernels are
/// fast where at least one of the two is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strides {
    /// From element (i, j) to (i + 1, j).
    pub row: usize,
    /// From element (i, j) to (i, j + 1).
    pub col: usize,
}

/// What to multiply: `C[m, n] = A[m, k] · B[k, n]`, or `C += A · B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmSpec {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A, rows of B. With none, the result is all zeros.
    pub k: usize,
    /// Strides of A.
    pub a: Strides,
    /// Strides of B.
    pub b: Strides,
    /// Distance between rows of C, in f32s, at least `n`. C's columns are adjacent.
    pub ldc: usize,
    /// Add to C rather than overwrite it.
    pub accumulate: bool,
}

/// An implementation of the inner loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// x86-64 with AVX-512F, AVX2 and FMA.
    Avx512,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// Any CPU.
    Portable,
}

/// What a call adds to the result: element (i, j) lies `i * row + j` behind `start`.
#[derive(Clone, Copy, Debug)]
pub struct Addend {
    /// Element (0, 0); null to add nothing.
    pub start: *const f32,
    /// Distance between rows, in f32s: 0 where all rows add the same.
    pub row: usize,
}

impl Addend {
    /// Adds nothing.
    pub const NONE: Addend = Addend {
        start: std::ptr::null(),
        row: 0,
    };

    /// Element (i, j), if there is one. The address is valid where the addend is.
    pub(super) fn at(self, i: usize, j: usize) -> Option<*const f32> {
        (!self.start.is_null()).then(|| self.start.wrapping_add(i * self.row + j))
    }
}

/// The operands of a call, which are what [`super::Gemm::run_task`] says.
#[derive(Clone, Copy)]
pub struct Operands {
    /// A.
    pub a: *const f32,
    /// B.
    pub b: *const f32,
    /// C.
    pub c: *mut f32,
    /// Added to the result, in the pass that writes C. With [`GemmSpec::accumulate`] it is not looked at.
    pub addend: Addend,
    /// Scratch of all tasks.
    pub shared: *mut f32,
    /// Scratch of the worker.
    pub worker: *mut f32,
}
